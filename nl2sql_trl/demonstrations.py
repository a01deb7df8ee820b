"""Trajectories to imitate: the gold query played through the rollout, some after a call that fails.

A scripted policy plays them against the real database through the same `rollout` that training
uses: call the gold, read its rows, answer with it. Some begin with a call that SQLite refuses: one
made up near a gold, or one that a model wrote in an evaluation.

Nothing here trains; what of a trajectory is trained on, `sft.py` says.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from nl2sql_trl.data import DataError
from nl2sql_trl.database import ddl, execute
from nl2sql_trl.policy import ScriptedPolicy
from nl2sql_trl.prompts import Codec, answer_text, call_text
from nl2sql_trl.records import Trajectory
from nl2sql_trl.rollout import rollout
from nl2sql_trl.runs import read_jsonl
from nl2sql_trl.task import Task

_OWN = 0.75  # of the mistakes are near the row's own gold
_MISSPELT = 0.75  # of them are a name misspelt: the tool's answer names the right one


class Attempt(NamedTuple):
    """A question, and the query of a model's first call if it failed."""

    question: str
    failed: str | None


def demonstrations(
    task: Task,
    codec: Codec,
    retry_share: float,
    seed: int,
    attempts: Mapping[str, Attempt] | None = None,
) -> list[Trajectory]:
    """One trajectory a row of the task, played from its gold.

    retry_share: of the rows, those that begin with a call that fails; the tool says its error.
    attempts: a model's first calls, by row: those that failed, in place of made-up ones. Where the
    task has one turn there is no call. Raises DataError for attempts at other questions.
    """
    rng = random.Random(seed)
    golds: dict[Path, list[str]] = {}
    for example in task.examples.values():
        golds.setdefault(example.db_path, []).append(example.gold)
    scripts = []
    for key, example in task.examples.items():
        turns = [call_text(example.gold), answer_text(example.gold)]
        if attempts is not None:
            question, query = attempts[key]
            if question != example.question:
                raise DataError(
                    f"the evaluation is of other data: its row {key} asks {question!r}, "
                    f"this data's {example.question!r}"
                )
        else:
            # Some of the mistakes are near another question's query: where the mended call is
            # always the failed one but for a name, a model learns to repeat what failed.
            near = example.gold if rng.random() < _OWN else rng.choice(golds[example.db_path])
            query = mistake(example.db_path, near, rng) if rng.random() < retry_share else None
        if query:
            turns.insert(0, call_text(query))
        if task.rollout.max_turns == 1:
            turns = turns[-1:]
        scripts.append(turns)
    return rollout(list(task.prompts.values()), ScriptedPolicy(scripts, codec), task.rollout)


def attempts_of(evaluation: Path) -> dict[str, Attempt]:
    """What an evaluation's model tried first, by row.

    Raises DataError for a folder without an evaluation.
    """
    found: dict[str, Attempt] = {}
    for row in read_jsonl(evaluation / "trajectories.jsonl"):
        calls = [call for turn in row["turns"] for call in turn.get("calls", ())]
        failed = calls and calls[0]["query"] and calls[0]["response"].startswith('{"error"')
        found[row["key"]] = Attempt(row["question"], calls[0]["query"] if failed else None)
    if not found:
        raise DataError(
            f"{evaluation} holds no evaluation: make one with python -m nl2sql_trl.evaluate"
        )
    return found


def mistake(database: Path, gold: str, rng: random.Random, tries: int = 8) -> str | None:
    """A query near a gold that SQLite refuses, as a model might write it; None if none is found.

    One name is misspelt, or stands where another name of the schema belongs.
    """
    names = _names(ddl(database))
    places = [m for m in _WORD.finditer(gold) if m[0].lower() not in KEYWORDS]
    for _ in range(tries if places and names else 0):
        place = rng.choice(places)
        last = place[0].rpartition("_")[2]  # of `country_name` a model often writes `name`
        misspelt = rng.choice([f"{place[0]}s", f"{place[0]}_name", place[0][:-1], last])
        wrong = misspelt if rng.random() < _MISSPELT else rng.choice(names)
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
