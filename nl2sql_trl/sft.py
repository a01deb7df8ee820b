"""The warm start: supervised fine-tuning on trajectories in exactly the rollout's token format.

    python -m nl2sql_trl.sft --config recipes/pocket_cpu_sft.yaml
    accelerate launch nl2sql_trl/sft.py --config recipes/spider_cpu_sft.yaml --data DIR

A small instruct model writes no SQL at all, so GRPO from it has no signal. Here it imitates
trajectories that play the gold query (see `demonstrations.py`). In a share of rows the first call
is one that SQLite refuses: the model sees how to go on, but is not trained to write the mistake.
Loss is on the assistant's tokens alone.

This teaches the format and the easy queries; it is no substitute for GRPO, and it never sees dev.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__" and sys.path[0] == str(Path(__file__).parent):
    sys.path.pop(0)  # launched as a file: its folder must not shadow libraries

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nl2sql_trl.demonstrations import attempts_of, demonstrations
from nl2sql_trl.prompts import Codec
from nl2sql_trl.records import ModelTurn, Trajectory
from nl2sql_trl.rewards import Comparison
from nl2sql_trl.rollout import RolloutConfig
from nl2sql_trl.task import Task, make_task

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass
class SftArguments:
    """What the warm start trains on, beside TRL's SFTConfig and ModelConfig."""

    data: str = field(
        default="pocket", metadata={"help": "pocket, a Spider-layout folder, or a questions file"}
    )
    split: str = field(
        default="train", metadata={"help": "train, or fit: train without its holdout databases"}
    )
    rows: int | None = field(default=None, metadata={"help": "how many train rows (default: all)"})
    retry_share: float = field(
        default=0.15, metadata={"help": "share of rows whose first call fails and is mended"}
    )
    failures: str | None = field(
        default=None,
        metadata={
            "help": "folder of an evaluation on this data: take its rows alone, and where the "
            "model's first call failed there, begin with that call in place of a made-up mistake"
        },
    )
    max_turns: int = field(
        default=5, metadata={"help": "1: the answer at once, without a call (and without mistakes)"}
    )
    empty_results: str = field(
        default="equal", metadata={"help": "wrong: leave rows out whose gold returns nothing"}
    )
    max_prompt_tokens: int | None = field(
        default=None, metadata={"help": "leave rows with longer prompts out"}
    )


def to_rows(trajectories: list[Trajectory], task: Task) -> Dataset:
    """`input_ids`, `labels` and `db_id` of each trajectory.

    Labels are -100 on the prompt, on tool tokens and on a call whose SQL failed.
    """
    from datasets import Dataset

    rows = []
    for t in trajectories:
        ids, labels = list(t.prompt.ids), [-100] * len(t.prompt.ids)
        for n, turn in enumerate(t.turns):
            ids += turn.ids
            trained = isinstance(turn, ModelTurn) and not _failed(t, n)
            labels += turn.ids if trained else [-100] * len(turn.ids)
        db_id = task.examples[t.prompt.key].db_id
        rows.append({"input_ids": ids, "labels": labels, "db_id": db_id})
    return Dataset.from_list(rows)


def _failed(trajectory: Trajectory, turn: int) -> bool:
    """Whether the call made in this turn got an error back."""
    if turn + 1 == len(trajectory.turns):
        return False
    following = trajectory.turns[turn + 1]
    return not isinstance(following, ModelTurn) and any(c.failed for c in following.calls)


def main() -> int:
    """Run the warm start that the command line and its recipe describe."""
    from trl import ModelConfig, SFTConfig

    from nl2sql_trl.launch import (
        ConfigError,
        guarded,
        parse,
        settle,
        start_run,
        stop_on_interrupt,
    )

    with guarded():
        arguments, config, model_config = parse((SftArguments, SFTConfig, ModelConfig))
        assert isinstance(arguments, SftArguments)
        config.dataset_kwargs = {"skip_prepare_dataset": True}
        settle(config)
        run_dir = Path(config.output_dir)

        from trl import get_peft_config

        from nl2sql_trl.models import load_model, load_tokenizer
        from nl2sql_trl.trainer import RunCallback, SqlSFTTrainer, train_and_save

        try:
            comparison = Comparison(empty=arguments.empty_results)  # type: ignore[arg-type]
            limits = RolloutConfig(max_turns=arguments.max_turns)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        attempts = attempts_of(Path(arguments.failures)) if arguments.failures else None
        codec = Codec(load_tokenizer(model_config.model_name_or_path))
        task = make_task(
            arguments.data,
            arguments.split,
            codec,
            keys=attempts,
            rollout=limits,
            rows=arguments.rows,
            seed=config.seed,
            max_prompt_tokens=arguments.max_prompt_tokens,
            comparison=comparison,
            cache=run_dir / "gold_cache.jsonl",
        )
        played = demonstrations(task, codec, arguments.retry_share, config.seed, attempts)
        dataset = to_rows(played, task)
        lengths = [len(ids) for ids in dataset["input_ids"]]
        print(f"{len(dataset)} trajectories, {sum(lengths) / len(lengths):.0f} tokens on average")
        start_run(run_dir, config, task, (arguments, config, model_config), sampling={})
        callback = RunCallback(run_dir)
        stop_on_interrupt(callback)
        model = load_model(
            model_config.model_name_or_path,
            dtype=model_config.dtype,
            attn_implementation=model_config.attn_implementation,
        )
        try:
            trainer = SqlSFTTrainer(
                model=model,
                args=config,
                train_dataset=dataset,
                processing_class=codec.tokenizer,
                peft_config=get_peft_config(model_config),
                callbacks=[callback],
            )
        except ValueError as error:  # settings that do not go together
            raise ConfigError(str(error)) from error
        train_and_save(trainer, run_dir)
    return 0


if __name__ == "__main__":
    sys.exit(main())
