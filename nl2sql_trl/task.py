"""A split made ready: examples whose gold runs, their prompts, and the judge of their answers.

Training and evaluation both start from here, so they see the same prompts and the same verdicts.
No torch and no trainer here.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from nl2sql_trl import gold
from nl2sql_trl.data import POCKET, DataError, load, row_key
from nl2sql_trl.database import ddl
from nl2sql_trl.prompts import Codec
from nl2sql_trl.records import Example, Prompt, Trajectory, Verdict
from nl2sql_trl.rewards import Comparison, judge, judge_on_suite
from nl2sql_trl.rollout import RolloutConfig, make_prompt


@dataclass(frozen=True, slots=True)
class Task:
    """Usable examples of one split with their prompts, by row key (`train:17`).

    `suite` has further database files by db_id: with them a right answer must be right on each.
    """

    data: str
    split: str
    examples: dict[str, Example]
    prompts: dict[str, Prompt]
    dropped: tuple[gold.Dropped, ...]
    golds: gold.GoldResults
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    comparison: Comparison = field(default_factory=Comparison)
    suite: dict[str, tuple[Path, ...]] = field(default_factory=dict)

    def verdict(self, trajectory: Trajectory) -> Verdict:
        """The verdict on a trajectory's answer, against its own row's gold."""
        example = self.examples[trajectory.prompt.key]
        result = self.golds[example.db_path, example.gold]
        verdict = judge(trajectory.answer, example.gold, result, example.db_path, self.comparison)
        files = self.suite.get(example.db_id)
        if not verdict.correct or trajectory.answer is None or not files:
            return verdict
        return judge_on_suite(verdict, trajectory.answer, example.gold, files, self.comparison)


def make_task(
    data: str | Path,
    split: str,
    codec: Codec,
    *,
    rollout: RolloutConfig | None = None,
    comparison: Comparison | None = None,
    keys: Collection[str] | None = None,
    rows: int | None = None,
    seed: int = 0,
    max_prompt_tokens: int | None = None,
    suite: str | Path | None = None,
    cache: Path | None = None,
) -> Task:
    """Read a split, pass its golds through the gate and render its prompts.

    keys: only these rows. rows: keep that many usable rows, drawn by `seed` (None: all, in file
    order). max_prompt_tokens: leave longer prompts out. With `comparison.empty` "wrong", rows whose
    gold returns nothing are left out: no answer to them can be right. suite: a folder of
    `<db_id>/<db_id>*.sqlite` (or "pocket") that answers are judged on as well. Raises DataError
    for unusable data.
    """
    if rows is not None and rows < 1:
        raise DataError(f"rows must be at least 1, not {rows}")
    examples = load(data, split)
    gate = gold.gate(examples, cache=cache, progress=len(examples) > 2000)
    for dropped in gate.dropped[:10]:
        key = row_key(dropped.example)
        print(f"set aside {key} ({dropped.example.db_id}): {dropped.detail}", flush=True)
    schemas = {path: ddl(path) for path in {e.db_path for e in gate.kept}}
    comparison = comparison or Comparison()
    kept = [e for e in gate.kept if keys is None or row_key(e) in keys]
    if comparison.empty == "wrong":
        full = [e for e in kept if gate.results.row_count((e.db_path, e.gold))]
        print(f"left out {len(kept) - len(full)} rows whose gold returns no rows")
        kept = full
    if rows is not None:
        # Drawn before prompts are rendered: rendering 7,000 prompts takes a while.
        random.Random(seed).shuffle(kept)
    chosen: dict[str, Example] = {}
    prompts: dict[str, Prompt] = {}
    long = 0
    for example in kept:
        if rows is not None and len(chosen) == rows:
            break
        prompt = make_prompt(example, schemas[example.db_path], codec)
        if max_prompt_tokens is not None and len(prompt.ids) > max_prompt_tokens:
            long += 1
            continue
        chosen[prompt.key], prompts[prompt.key] = example, prompt
    if long:
        print(f"left out {long} rows with prompts of more than {max_prompt_tokens} tokens")
    if not chosen:
        raise DataError(f"no usable row is left of {data}, split {split}: see the messages above")
    return Task(
        str(data),
        split,
        chosen,
        prompts,
        tuple(gate.dropped),
        gate.results,
        rollout or RolloutConfig(),
        comparison,
        {} if suite is None else suite_files(suite, {e.db_id for e in chosen.values()}),
    )


def suite_files(suite: str | Path, db_ids: Iterable[str]) -> dict[str, tuple[Path, ...]]:
    """The files of a test suite by db_id, without the base. Raises DataError if one has none.

    suite: a folder, or "pocket" for the suites that are built for pocket's databases.
    """

    def folder(name: str) -> Path:
        if suite != POCKET:
            return Path(suite) / name
        from nl2sql_trl.suite import pocket_suite

        return pocket_suite(name, progress=True) / name

    found = {
        name: tuple(sorted(p for p in folder(name).glob("*.sqlite") if p.stem != name))
        for name in sorted(set(db_ids))
    }
    if missing := [name for name, files in found.items() if not files]:
        raise DataError(
            f"the test suite {suite} has no files for {', '.join(missing[:5])}: "
            "build it with python -m nl2sql_trl.suite"
        )
    return found
