"""The warm start: supervised fine-tuning on trajectories in exactly the rollout's token format.

    python -m nl2sql_trl.sft --config recipes/pocket_cpu_sft.yaml
    accelerate launch nl2sql_trl/sft.py --config recipes/spider_cpu_sft.yaml --data DIR

A small instruct model writes no SQL at all, so GRPO from it has no signal. Here a scripted policy
plays the gold query against the real database through the same `rollout` that training uses: call
it, read the rows, answer with it. In a share of rows the first call is wrong and its error is
real: the model sees how to go on, but is not trained to write the wrong call. Loss is on the
assistant's tokens alone.

This teaches the format and the easy queries; it is no substitute for GRPO, and it never sees dev.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__" and sys.path[0] == str(Path(__file__).parent):
    sys.path.pop(0)  # launched as a file: its folder must not shadow libraries

import random
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nl2sql_trl.policy import ScriptedPolicy
from nl2sql_trl.prompts import Codec, answer_text, call_text
from nl2sql_trl.records import Example, ModelTurn, Trajectory
from nl2sql_trl.rollout import rollout
from nl2sql_trl.task import Task, make_task

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass
class SftArguments:
    """What the warm start trains on, beside TRL's SFTConfig and ModelConfig."""

    data: str = field(default="pocket", metadata={"help": "pocket, or a Spider-layout folder"})
    rows: int | None = field(default=None, metadata={"help": "how many train rows (default: all)"})
    retry_share: float = field(
        default=0.15, metadata={"help": "share of rows whose first call fails and is mended"}
    )
    max_prompt_tokens: int | None = field(
        default=None, metadata={"help": "leave rows with longer prompts out"}
    )


def demonstrations(task: Task, codec: Codec, retry_share: float, seed: int) -> list[Trajectory]:
    """One trajectory a row of the task, played from its gold. Wrong calls are real and fail."""
    rng = random.Random(seed)
    scripts = []
    for example in task.examples.values():
        turns = [call_text(example.gold), answer_text(example.gold)]
        if rng.random() < retry_share:
            turns.insert(0, call_text(spoil(example, rng)))
        scripts.append(turns)
    return rollout(list(task.prompts.values()), ScriptedPolicy(scripts, codec), task.rollout)


def spoil(example: Example, rng: random.Random) -> str:
    """The gold with one word misspelt, as a model might: most such queries do not execute."""
    words = [m for m in re.finditer(r"[A-Za-z_]{3,}", example.gold) if not _is_keyword(m[0])]
    if not words:
        return example.gold.replace("SELECT", "SELCT", 1)
    word = rng.choice(words)
    wrong = rng.choice([f"{word[0]}s", f"{word[0]}_name", word[0][:-1]])
    return example.gold[: word.start()] + wrong + example.gold[word.end() :]


_KEYWORDS = frozenset(
    """select from where and or not in as on join group by having order asc desc limit distinct
    union intersect except between like count sum avg min max null is""".split()  # noqa: SIM905
)


def _is_keyword(word: str) -> bool:
    return word.lower() in _KEYWORDS


def to_rows(trajectories: list[Trajectory], task: Task) -> Dataset:
    """`input_ids` and `labels` of each trajectory. Labels are -100 on the prompt, on tool tokens
    and on a call whose SQL failed."""
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
    return not isinstance(following, ModelTurn) and any(
        c.result is None or c.result.outcome != "ok" for c in following.calls
    )


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

        codec = Codec(load_tokenizer(model_config.model_name_or_path))
        task = make_task(
            arguments.data,
            "train",
            codec,
            rows=arguments.rows,
            seed=config.seed,
            max_prompt_tokens=arguments.max_prompt_tokens,
            cache=run_dir / "gold_cache.jsonl",
        )
        played = demonstrations(task, codec, arguments.retry_share, config.seed)
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
