"""GRPO with `run_sql` in the loop.

    accelerate launch nl2sql_trl/train.py --config recipes/pocket_cpu.yaml
    accelerate launch nl2sql_trl/train.py --config recipes/spider_cpu.yaml --data DIR

Add `--resume_from_checkpoint true` to go on from the run's last whole checkpoint. A recipe gives
defaults, flags override. Arguments are ours (TrainArguments below), TRL's
GRPOConfig and ModelConfig (LoRA included). What a run leaves behind is described in `runs.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__" and sys.path[0] == str(Path(__file__).parent):
    sys.path.pop(0)  # launched as a file: its folder must not shadow libraries

from dataclasses import dataclass, field


@dataclass
class TrainArguments:
    """What to train on and how a rollout goes, beside GRPOConfig and ModelConfig.

    The completion budget of a trajectory, over all turns, is GRPOConfig's max_completion_length.
    """

    data: str = field(default="pocket", metadata={"help": "pocket, or a Spider-layout folder"})
    split: str = field(
        default="train", metadata={"help": "train, or fit: train without its holdout databases"}
    )
    rows: int | None = field(default=None, metadata={"help": "how many train rows (default: all)"})
    rewards: list[str] = field(
        default_factory=lambda: ["execution_match"],
        metadata={"help": "reward functions of nl2sql_trl.rewards; weights: reward_weights"},
    )
    difficulty: str | None = field(
        default=None,
        metadata={
            "help": "an evaluation of the train rows: keep those that were right in "
            "difficulty_range of its samples"
        },
    )
    difficulty_range: list[float] = field(
        default_factory=lambda: [0.01, 0.99], metadata={"help": "lowest and highest share right"}
    )
    max_turns: int = field(default=5, metadata={"help": "model turns in a trajectory"})
    reserve_tokens: int = field(
        default=0, metadata={"help": "tokens kept for a forced final answer (0: none is forced)"}
    )
    truncation: str = field(
        default="rows", metadata={"help": "rows (whole rows that fit) or seed (256 characters)"}
    )
    tool_chars: int = field(default=400, metadata={"help": "longest tool response, in characters"})
    column_order: str = field(default="strict", metadata={"help": "strict or any"})
    empty_results: str = field(
        default="equal",
        metadata={"help": "equal: empty matches an empty gold; wrong: such rows are out"},
    )
    suite: str | None = field(
        default=None,
        metadata={
            "help": "reward only what is right on every file of this test suite, too: "
            "a folder, or pocket"
        },
    )
    max_prompt_tokens: int | None = field(
        default=None, metadata={"help": "leave rows with longer prompts out"}
    )


def main() -> int:
    """Run the training that the command line and its recipe describe."""
    from trl import GRPOConfig, ModelConfig, get_peft_config

    from nl2sql_trl import display
    from nl2sql_trl.launch import (
        ConfigError,
        guarded,
        parse,
        settle,
        start_run,
        stop_on_interrupt,
    )

    with guarded():
        arguments, config, model_config = parse((TrainArguments, GRPOConfig, ModelConfig))
        assert isinstance(arguments, TrainArguments)
        settle(config)
        run_dir = Path(config.output_dir)

        from nl2sql_trl.groups import measured
        from nl2sql_trl.models import load_model, load_tokenizer
        from nl2sql_trl.prompts import Codec
        from nl2sql_trl.rewards import REWARDS, Comparison
        from nl2sql_trl.rollout import RolloutConfig
        from nl2sql_trl.sampling import Sampling
        from nl2sql_trl.task import make_task
        from nl2sql_trl.trainer import RunCallback, SqlGRPOTrainer, train_and_save

        if unknown := [name for name in arguments.rewards if name not in REWARDS]:
            raise ConfigError(f"there is no reward {unknown[0]!r}: {', '.join(REWARDS)}")
        try:
            if not config.temperature:
                raise ValueError("temperature must be above 0 to train on samples")
            Sampling(config.temperature, config.top_p, config.top_k or 0, config.min_p or 0.0)
            rollout = RolloutConfig(
                budget=config.max_completion_length,
                max_turns=arguments.max_turns,
                truncation=arguments.truncation,  # type: ignore[arg-type]
                tool_chars=arguments.tool_chars,
                reserve_tokens=arguments.reserve_tokens,
            )
            comparison = Comparison(arguments.column_order, empty=arguments.empty_results)  # type: ignore[arg-type]
        except ValueError as error:
            raise ConfigError(str(error)) from error
        keys = None
        if arguments.difficulty:
            if len(arguments.difficulty_range) != 2:
                raise ConfigError("difficulty_range takes two numbers, such as 0.1 0.9")
            keys = measured(Path(arguments.difficulty), *arguments.difficulty_range)
        codec = Codec(load_tokenizer(model_config.model_name_or_path))
        task = make_task(
            arguments.data,
            arguments.split,
            codec,
            rollout=rollout,
            comparison=comparison,
            keys=keys,
            rows=arguments.rows,
            seed=config.seed,
            max_prompt_tokens=arguments.max_prompt_tokens,
            suite=arguments.suite,
            cache=run_dir / "gold_cache.jsonl",
        )
        sampling = {
            name: getattr(config, name)
            for name in ("temperature", "top_p", "top_k", "min_p", "max_completion_length")
        }
        start_run(run_dir, config, task, (arguments, config, model_config), sampling)
        callback = RunCallback(run_dir)
        stop_on_interrupt(callback)
        model = load_model(
            model_config.model_name_or_path,
            dtype=model_config.dtype,
            attn_implementation=model_config.attn_implementation,
        )
        try:
            trainer = SqlGRPOTrainer(
                model,
                config,
                task,
                codec,
                [REWARDS[name] for name in arguments.rewards],
                run_dir=run_dir,
                peft_config=get_peft_config(model_config),
                callbacks=[callback],
            )
        except ValueError as error:  # settings that do not go together
            raise ConfigError(str(error)) from error
        train_and_save(trainer, run_dir)
        # A run shorter than logging_steps has logged nothing.
        if trainer.accelerator.is_main_process and (run_dir / "metrics.jsonl").is_file():
            print(f"saved {display.save_reward_curve(run_dir)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
