"""The warm start: supervised fine-tuning on trajectories in exactly the rollout's token format.

    python -m nl2sql_trl.sft --config recipes/pocket_cpu_sft.yaml
    accelerate launch nl2sql_trl/sft.py --config recipes/spider_cpu_sft.yaml --data DIR

A small instruct model writes no SQL at all, so GRPO from it has no signal. Here a scripted policy
plays the gold query against the real database through the same `rollout` that training uses: call
it, read the rows, answer with it. In a share of rows the first call is a mistake that SQLite
refuses: the model sees how to go on, but is not trained to write the mistake. Loss is on the
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

from nl2sql_trl.database import ddl, execute
from nl2sql_trl.policy import ScriptedPolicy
from nl2sql_trl.prompts import Codec, answer_text, call_text
from nl2sql_trl.records import ModelTurn, Trajectory
from nl2sql_trl.rewards import Comparison
from nl2sql_trl.rollout import RolloutConfig, rollout
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
    max_turns: int = field(
        default=5, metadata={"help": "1: the answer at once, without a call (and without mistakes)"}
    )
    empty_results: str = field(
        default="equal", metadata={"help": "wrong: leave rows out whose gold returns nothing"}
    )
    max_prompt_tokens: int | None = field(
        default=None, metadata={"help": "leave rows with longer prompts out"}
    )


def demonstrations(task: Task, codec: Codec, retry_share: float, seed: int) -> list[Trajectory]:
    """One trajectory a row of the task, played from its gold.

    retry_share: of the rows, those that begin with a call that fails; its error is SQLite's own.
    Where the task has one turn there is no call.
    """
    rng = random.Random(seed)
    golds: dict[Path, list[str]] = {}
    for example in task.examples.values():
        golds.setdefault(example.db_path, []).append(example.gold)
    scripts = []
    for example in task.examples.values():
        turns = [call_text(example.gold), answer_text(example.gold)]
        # Half of the mistakes are near another question's query: where the mended call is always
        # the failed one but for a name, a model learns to repeat what failed.
        near = rng.choice([example.gold, rng.choice(golds[example.db_path])])
        if rng.random() < retry_share and (query := mistake(example.db_path, near, rng)):
            turns.insert(0, call_text(query))
        if task.rollout.max_turns == 1:
            turns = turns[-1:]
        scripts.append(turns)
    return rollout(list(task.prompts.values()), ScriptedPolicy(scripts, codec), task.rollout)


def mistake(database: Path, gold: str, rng: random.Random, tries: int = 8) -> str | None:
    """A query near a gold that SQLite refuses, as a model might write it; None if none is found.

    One name is misspelt, or stands where another name of the schema belongs.
    """
    names = _names(ddl(database))
    places = [m for m in _WORD.finditer(gold) if m[0].lower() not in KEYWORDS]
    for _ in range(tries if places and names else 0):
        place = rng.choice(places)
        misspelt = rng.choice([f"{place[0]}s", f"{place[0]}_name", place[0][:-1]])
        wrong = rng.choice([misspelt, rng.choice(names)])
        query = gold[: place.start()] + wrong + gold[place.end() :]
        if execute(database, query).outcome == "error":
            return query
    return None


_WORD = re.compile(r"[A-Za-z_]\w{2,}")
KEYWORDS = frozenset(
    """select from where and or not in as on join group by having order asc desc limit distinct
    union intersect except between like count sum avg min max null is
    create table primary key foreign references constraint unique default check cascade
    int integer bigint smallint text real float double numeric decimal number char varchar
    varchar2 bool boolean bit date datetime time timestamp blob year""".split()  # noqa: SIM905
)


def _names(schema: str) -> list[str]:
    return sorted({word for word in _WORD.findall(schema) if word.lower() not in KEYWORDS})


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
        codec = Codec(load_tokenizer(model_config.model_name_or_path))
        task = make_task(
            arguments.data,
            arguments.split,
            codec,
            rollout=limits,
            rows=arguments.rows,
            seed=config.seed,
            max_prompt_tokens=arguments.max_prompt_tokens,
            comparison=comparison,
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
