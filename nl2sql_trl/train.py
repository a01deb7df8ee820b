"""GRPO with `run_sql` in the loop.

    accelerate launch nl2sql_trl/train.py --config recipes/pocket_cpu.yaml
    accelerate launch nl2sql_trl/train.py --config recipes/spider_cpu.yaml --data DIR

Add `--resume_from_checkpoint true` to go on from the run's last whole checkpoint. A recipe gives
defaults, flags override. Arguments are ours (`arguments.py`), TRL's
GRPOConfig and ModelConfig (LoRA included). What a run leaves behind is described in `runs.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__" and sys.path[0] == str(Path(__file__).parent):
    sys.path.pop(0)  # launched as a file: its folder must not shadow libraries

from nl2sql_trl.arguments import TrainArguments


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
        from nl2sql_trl.preflight import check_start
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
        check_start(arguments, config, model_config, codec)
        settings = {
            "rollout": rollout,
            "comparison": comparison,
            "seed": config.seed,
            "max_prompt_tokens": arguments.max_prompt_tokens,
            "suite": arguments.suite,
            "cache": run_dir / "gold_cache.jsonl",
        }
        task = make_task(
            arguments.data, arguments.split, codec, keys=keys, rows=arguments.rows, **settings
        )
        eval_task = None
        if config.eval_strategy != "no":
            config.num_generations_eval = config.num_generations_eval or 1  # greedy
            # The same questions for every seed, or seeds could not be compared.
            drawn = settings | {"rows": arguments.eval_rows, "seed": 0}
            eval_task = make_task(arguments.data, arguments.eval_split, codec, **drawn)
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
                eval_task=eval_task,
                resample_rounds=arguments.resample_rounds,
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
