"""The work that both sides are given: real questions and prompts, and written turns.

The turns are made from the golds: a call of `run_sql` with the gold query, at last an answer with
it. Members of a group begin with different words, so that nothing but the prompt is shared, and
have lengths 20% to both sides of the aim; every second one answers with a wrong query, so that
each group has advantages. Everything follows from the job and its seed.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from benchmarks.jobs import Job
from nl2sql_trl import gold
from nl2sql_trl.data import load, row_key
from nl2sql_trl.database import ddl, execute
from nl2sql_trl.prompts import Codec, answer_text, call_text
from nl2sql_trl.records import Example, Prompt
from nl2sql_trl.rollout import RolloutConfig, make_prompt
from nl2sql_trl.task import Task
from nl2sql_trl.tools import render

Ids = tuple[int, ...]
WRONG = "SELECT 'wrong'"
CANDIDATES = 12  # questions looked at in a database for the one whose turns are the shortest


@dataclass(frozen=True, slots=True)
class Case:
    """A task and, for each of its prompts' ids, the members of its group: turns as text."""

    task: Task
    members: dict[Ids, list[list[str]]]


class Cast:
    """Gives rows their turns: each row of a prompt becomes its next member. For one rollout."""

    def __init__(self, case: Case, codec: Codec) -> None:
        self._left = {ids: iter(members) for ids, members in case.members.items()}
        self._codec = codec

    def member(self, prompt_ids: Sequence[int]) -> list[list[int]]:
        """The turns of the next row with this prompt, as ids that end with the end token."""
        texts = next(self._left[tuple(prompt_ids)])
        encode = self._codec.tokenizer
        end = [self._codec.eos_id]
        return [encode(text, add_special_tokens=False)["input_ids"] + end for text in texts]


def grpo_case(job: Job, codec: Codec) -> Case:
    """`job.prompts` questions on different databases with written groups."""
    chosen: dict[str, Example] = {}
    prompts: dict[str, Prompt] = {}
    members = {}
    seen: set[str] = set()
    for rows in by_length(job, "train", codec):
        # Queries are all different: TRL's tool is told the query alone, not its row.
        fresh = [e for e in islice(rows, CANDIDATES) if e.gold not in seen]
        example = min(fresh, key=lambda e: _plain_length(e, job, codec), default=None)
        if example is None:
            continue
        seen.add(example.gold)
        schema = ddl(example.db_path)
        if job.exact:
            schema = _schema_of(example, job, codec)
        prompt = make_prompt(example, schema, codec)
        chosen[prompt.key], prompts[prompt.key] = example, prompt
        members[prompt.ids] = [_turns(example, n, job, codec) for n in range(job.group)]
        if len(chosen) == job.prompts:
            break
    budget = 4 * job.tokens * job.turns + 400
    return Case(_task(job, "train", chosen, prompts, budget), members)


def evaluation_case(job: Job, codec: Codec) -> Case:
    """`job.rows` dev questions, whole databases in order; each calls with its gold and answers."""
    examples = list(islice((e for rows in by_length(job, "dev", codec) for e in rows), job.rows))
    prompts = {row_key(e): make_prompt(e, ddl(e.db_path), codec) for e in examples}
    members: dict[Ids, list[list[str]]] = {}
    for example in examples:
        turns = [call_text(example.gold), answer_text(example.gold)]
        members.setdefault(prompts[row_key(example)].ids, []).append(turns)
    chosen = {row_key(e): e for e in examples}
    return Case(_task(job, "dev", chosen, prompts, 1024), members)


def warm_start_task(job: Job, codec: Codec) -> Task:
    """`job.rows` train questions, `job.micro` of each database."""
    examples: list[Example] = []
    for rows in by_length(job, "train", codec):
        examples += islice(rows, min(job.micro, job.rows - len(examples)))
        if len(examples) == job.rows:
            break
    prompts = {row_key(e): make_prompt(e, ddl(e.db_path), codec) for e in examples}
    return _task(job, "train", {row_key(e): e for e in examples}, prompts, 2048)


def distinct(rows: Sequence[Sequence[int]]) -> int:
    """How many tokens there are with no two rows' common beginning counted twice."""
    total, before = 0, []
    for row in sorted(list(r) for r in rows):
        common = next((n for n, (a, b) in enumerate(zip(row, before)) if a != b), None)  # noqa: B905
        total += len(row) - (min(len(row), len(before)) if common is None else common)
        before = row
    return total


def by_length(job: Job, split: str, codec: Codec) -> Iterator[Iterator[Example]]:
    """The usable rows of each database, those with prompts nearest to the wanted length first."""
    found: dict[str, list[Example]] = {}
    for example in load(job.data, split):
        found.setdefault(example.db_id, []).append(example)

    def distance(name: str) -> int:
        example = found[name][0]
        prompt = make_prompt(example, ddl(example.db_path), codec)
        return abs(len(prompt.ids) - job.prompt_tokens)

    for name in sorted(found, key=distance):
        if split == "train":
            random.Random(f"{job.seed}:{name}").shuffle(found[name])
        yield filter(_usable, found[name])


def _usable(example: Example) -> bool:
    """Whether the gold returns rows: an empty one would be matched by an empty wrong answer."""
    gate = gold.gate([example])
    return bool(gate.kept) and gate.results.row_count((example.db_path, example.gold)) > 0


def _task(
    job: Job, split: str, chosen: dict[str, Example], prompts: dict[str, Prompt], budget: int
) -> Task:
    gate = gold.gate(list(chosen.values()))
    config = RolloutConfig(budget=budget, max_turns=max(job.turns, 2))
    return Task(job.data, split, chosen, prompts, (), gate.results, config)


def _bare(example: Example, job: Job) -> list[str]:
    return [call_text(example.gold)] * (job.turns - 1) + [answer_text(example.gold)]


def _plain_length(example: Example, job: Job, codec: Codec) -> int:
    """Tokens of a trajectory without any word added, tool tokens included."""
    texts = sum(len(_encode(codec, text)) + 1 for text in _bare(example, job))
    response = render(execute(example.db_path, example.gold))
    return texts + (job.turns - 1) * len(codec.suffix_ids([response]))


def _turns(example: Example, member: int, job: Job, codec: Codec) -> list[str]:
    """A member's turns: its words, spread over the turns, before the call or the answer."""
    rng = random.Random(f"{job.seed}:{row_key(example)}:{member}")
    aim = round(job.tokens * job.turns * rng.uniform(0.8, 1.2))
    missing = max(0, aim - _plain_length(example, job, codec)) // job.turns
    texts = _bare(example, job)
    if member % 2:
        texts[-1] = answer_text(WRONG)
        missing += (len(_encode(codec, example.gold)) - len(_encode(codec, WRONG))) // job.turns
    vocabulary = sorted(set(re.findall(r"[A-Za-z]{3,}", ddl(example.db_path))))
    return [f"{_words(vocabulary, missing, rng, codec)}\n{text}" for text in texts]


def _words(vocabulary: list[str], tokens: int, rng: random.Random, codec: Codec) -> str:
    """Words of about so many tokens, two at least."""
    words = rng.sample(vocabulary, 2)
    while len(_encode(codec, " ".join(words))) < tokens:
        words.append(rng.choice(vocabulary))
    return " ".join(words)


def _schema_of(example: Example, job: Job, codec: Codec) -> str:
    """A schema that gives a prompt of `job.prompt_tokens` tokens at most: cut, or filled up.

    It begins with the example's own; what is missing comes from other databases.
    """
    paths = dict.fromkeys([example.db_path, *(e.db_path for e in load(job.data, "train"))])
    text = ""
    for path in paths:
        text += ddl(path) + "\n"
        if len(make_prompt(example, text, codec).ids) > job.prompt_tokens:
            break
    lines = text.split(" ")
    low, high = 1, len(lines)
    while low < high:  # the most words that fit
        middle = (low + high + 1) // 2
        prompt = make_prompt(example, " ".join(lines[:middle]), codec)
        low, high = (middle, high) if len(prompt.ids) <= job.prompt_tokens else (low, middle - 1)
    return " ".join(lines[:low])


def _encode(codec: Codec, text: str) -> Any:
    return codec.tokenizer(text, add_special_tokens=False)["input_ids"]
