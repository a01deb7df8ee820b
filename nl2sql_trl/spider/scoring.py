"""Score many cases: one database after the other, in one process or several, golds included.

Every distinct gold is also scored against itself. It must be right by every metric; where it is
not (text that is not UTF-8, a word that the official script rewrites), no prediction can be
judged well there, so the failures are part of the result.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from nl2sql_trl.spider.cases import Case, InputError
from nl2sql_trl.spider.evaluator import (
    CaseScore,
    DamagedDatabaseError,
    Evaluator,
    UnknownDatabaseError,
)
from nl2sql_trl.spider.hardness import LEVELS
from nl2sql_trl.spider.schema import Schema

Mode = Literal["official", "fixed"]
METRICS = {
    "testsuite_exec": "test suite",
    "exact_match": "exact match",
    "exact_match_legacy": "exact match (legacy)",
    "legacy_exec": "legacy execution",
    "pred_parses": "parses",
    "pred_parses_legacy": "parses (legacy)",
}
_UNIT = 64
"""Cases of one database that are scored in one go, between two moves of the progress bar."""


@dataclass(frozen=True)
class Setup:
    """Where the databases are and how to judge: what an `Evaluator` is made of."""

    folders: Sequence[Path]
    schemas: dict[str, Schema] = field(default_factory=dict)
    databases: Mapping[str, Path] = field(default_factory=dict)
    plug_value: bool = False
    keep_distinct: bool = False

    def evaluator(self, mode: Mode) -> Evaluator:
        """A new evaluator."""
        return Evaluator(
            self.folders,
            self.schemas,
            self.databases,
            plug_value=self.plug_value,
            keep_distinct=self.keep_distinct,
            fixed=mode == "fixed",
        )


@dataclass(frozen=True)
class GoldFailure:
    """A gold that is wrong by some metric when it is scored against itself."""

    db_id: str
    gold: str
    metrics: tuple[str, ...]
    reason: str | None


@dataclass(frozen=True)
class Scored:
    """The scores in the order of the cases, and the golds that fail against themselves."""

    scores: list[CaseScore]
    golds: int
    gold_failures: list[GoldFailure]


@dataclass(frozen=True)
class _Part:
    scores: dict[int, CaseScore]
    golds: int
    gold_failures: list[GoldFailure]


def score_all(
    cases: Sequence[Case],
    setup: Setup,
    mode: Mode = "official",
    *,
    processes: int = 1,
    progress: bool = False,
) -> Scored:
    """Score all cases. Raises InputError for an unknown db_id or a worker that was killed."""
    from tqdm import tqdm

    units = _units(cases)
    scores: dict[int, CaseScore] = {}
    failures: list[GoldFailure] = []
    golds = 0
    with tqdm(
        total=len(cases), desc=f"scoring ({mode})", unit="row", disable=not progress,
        file=sys.stderr,
    ) as bar:  # fmt: skip
        for part in _parts(cases, units, setup, mode, processes):
            scores |= part.scores
            failures += part.gold_failures
            golds += part.golds
            bar.update(len(part.scores))
    failures.sort(key=lambda failure: (failure.db_id, failure.gold))
    return Scored([scores[index] for index in range(len(cases))], golds, failures)


def _units(cases: Sequence[Case]) -> list[list[int]]:
    """Indices of cases: those of one database and gold stay together, golds near their like."""
    order = sorted(range(len(cases)), key=lambda index: (cases[index].db_id, cases[index].gold))
    units: list[list[int]] = []
    last = None
    for index in order:
        key = cases[index].db_id, cases[index].gold
        new_database = last is None or key[0] != last[0]
        if new_database or (key != last and len(units[-1]) >= _UNIT):
            units.append([])
        units[-1].append(index)
        last = key
    return units


def _parts(
    cases: Sequence[Case], units: list[list[int]], setup: Setup, mode: Mode, processes: int
) -> Iterator[_Part]:
    if processes == 1 or len(units) < 2:
        evaluator = setup.evaluator(mode)
        try:
            for unit in units:
                yield _score(evaluator, {index: cases[index] for index in unit})
        finally:
            evaluator.close()
        return
    # Spawned: a fork would copy whatever threads and connections the caller has.
    pool = ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=_start, initargs=(setup, mode)
    )
    with pool:
        try:
            # The largest databases first, so that no worker starts one last.
            units = sorted(units, key=len, reverse=True)
            jobs = [pool.submit(_work, {index: cases[index] for index in unit}) for unit in units]
            for job in as_completed(jobs):
                yield job.result()
        except BrokenProcessPool as error:
            raise InputError(
                "a scoring process was killed, most likely for memory: use fewer --processes"
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_worker: list[Evaluator] = []
"""The evaluator of a worker process, made once when it starts."""


def _start(setup: Setup, mode: Mode) -> None:
    _worker[:] = [setup.evaluator(mode)]


def _work(cases: dict[int, Case]) -> _Part:
    return _score(_worker[0], cases)


def _score(evaluator: Evaluator, cases: dict[int, Case]) -> _Part:
    """Score cases of one database, and each of their golds against itself."""
    scores, failures = {}, []
    golds: dict[str, CaseScore] = {}
    for index, case in cases.items():
        try:
            scores[index] = evaluator.score(case.db_id, case.gold, case.pred)
        except UnknownDatabaseError as error:
            place = cases[min(cases)].place
            raise InputError(f"{place}: unknown db_id {case.db_id[:80]!r}: {error}") from error
        except DamagedDatabaseError as error:
            raise InputError(str(error)) from error
        if case.gold not in golds:
            same = case.pred == case.gold
            golds[case.gold] = own = (
                scores[index] if same else evaluator.score(case.db_id, case.gold, case.gold)
            )
            wrong = tuple(metric for metric in METRICS if not getattr(own, metric))
            if wrong:
                failures.append(GoldFailure(case.db_id, case.gold, wrong, own.reason))
    return _Part(scores, len(golds), failures)


def summarize(scores: Iterable[CaseScore]) -> dict[str, dict[str, float]]:
    """Count and rates by hardness and over all; rates of an empty level are 0."""
    scores = list(scores)
    levels: dict[str, list[CaseScore]] = {
        level: [score for score in scores if score.hardness == level] for level in LEVELS
    }
    levels["all"] = scores
    return {
        level: {
            "count": len(members),
            **{
                metric: sum(getattr(score, metric) for score in members) / max(len(members), 1)
                for metric in METRICS
            },
        }
        for level, members in levels.items()
    }


def table(summary: dict[str, dict[str, float]]) -> str:
    """The summary as text, one line a metric and one column a level."""
    lines = ["".ljust(22) + "".join(level.rjust(9) for level in summary)]
    lines.append("count".ljust(22) + "".join(f"{row['count']:9}" for row in summary.values()))
    for metric, title in METRICS.items():
        cells = "".join(f"{row[metric]:9.3f}" for row in summary.values())
        lines.append(title.ljust(22) + cells)
    return "\n".join(lines)


def gold_line(scored: Scored) -> str:
    """One line on the golds against themselves, with the failures below it."""
    if not scored.gold_failures:
        return f"gold against gold: all {scored.golds} distinct golds are right by every metric"
    lines = [
        f"gold against gold: {len(scored.gold_failures)} of {scored.golds} distinct golds fail; "
        "no prediction can be judged well there:"
    ]
    for failure in scored.gold_failures[:20]:
        lines.append(
            f"  {failure.db_id}: {' '.join(failure.gold.split())}\n"
            f"    fails {', '.join(failure.metrics)}: {failure.reason or 'no reason given'}"
        )
    if len(scored.gold_failures) > 20:
        lines.append(f"  and {len(scored.gold_failures) - 20} more (all are in --json)")
    return "\n".join(lines)


def verdict(case: Case, score: CaseScore) -> dict[str, Any]:
    """The fields of one scored case as plain JSON values."""
    from dataclasses import asdict

    found = {"id": case.id, **asdict(score)}
    del found["partial"]
    return found
