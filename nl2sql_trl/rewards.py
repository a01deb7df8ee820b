"""Facts, then a verdict, then a reward.

`judge` runs an answer, compares its rows with the gold's, and says what is wrong first. A reward
is a plain function of the verdict: to add one, write a function `(Verdict) -> float` here and
name it in the recipe.

The comparison is the reference's by default: rows as a multiset, in order only where the gold has
a top-level ORDER BY; duplicates count; column order counts, column names don't. Values compare as
Python's do (2 equals 2.0, '1' differs from 1, NULL equals NULL). `Comparison` switches each choice.

What this does not do: it does not look at how the answer was found (turns, calls, style), and a
query that is right by accident on this one database is right here.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from nl2sql_trl.database import GOLD_LIMITS, Limits, execute, reads
from nl2sql_trl.records import QueryResult, Reason, Row, SqlValue, Verdict

Reward = Callable[[Verdict], float]

_MAX_PERMUTED_COLUMNS = 12


@dataclass(frozen=True, slots=True)
class Comparison:
    """Choices in comparing two results.

    column_order: "strict", or "any" to accept the gold's columns in another order.
    numbers: "exact" (Python equality), or "tolerant" (floats to 9 significant digits as well).
    empty: "equal" credits an empty result where the gold's is empty too; "wrong" never does.
    """

    column_order: Literal["strict", "any"] = "strict"
    numbers: Literal["exact", "tolerant"] = "exact"
    empty: Literal["equal", "wrong"] = "equal"

    def __post_init__(self) -> None:
        choices = (
            ("column_order", self.column_order, ("strict", "any")),
            ("numbers", self.numbers, ("exact", "tolerant")),
            ("empty_results", self.empty, ("equal", "wrong")),
        )
        for name, value, known in choices:
            if value not in known:
                raise ValueError(f"{name} is {' or '.join(known)}, not {value!r}")


# An answer may return more rows than the tool shows: it is bounded like a gold, but for the clock.
ANSWER_LIMITS = Limits(
    seconds=20.0,
    steps=200_000_000,
    rows=GOLD_LIMITS.rows,
    value_bytes=GOLD_LIMITS.value_bytes,
    result_bytes=GOLD_LIMITS.result_bytes,
    memory_bytes=GOLD_LIMITS.memory_bytes,
)


def judge(
    answer: str | None,
    gold: str,
    gold_result: QueryResult,
    db_path: Path,
    comparison: Comparison | None = None,
    limits: Limits = ANSWER_LIMITS,
) -> Verdict:
    """The verdict on an answer, given the gold query and what it returned on `db_path`.

    A gold that did not execute, or whose rows were cut, gives `gold_unusable`: never credit.
    `crashed` says that the answer ended two processes in a row (see `execute`): it earns nothing,
    and is counted apart from wrong answers.
    """
    comparison = comparison or Comparison()
    if gold_result.outcome != "ok" or not gold_result.complete:
        detail = gold_result.error or "the gold's rows were cut at the row cap"
        return Verdict(False, "gold_unusable", detail)
    if answer is None:
        return Verdict(False, "no_answer")
    # One row more than the gold's is enough to know that there are too many.
    rows = min(limits.rows, max(1000, 2 * len(gold_result.rows) + 1))
    result = execute(db_path, answer, replace(limits, rows=rows))
    if result.outcome == "timeout":
        return Verdict(False, "timeout", result.error)
    if result.outcome == "denied":
        return Verdict(False, "not_allowed", result.error)
    if result.outcome == "too_big":
        return Verdict(False, "too_big", result.error)
    if result.outcome == "crashed":
        return Verdict(False, "crashed", result.error)
    if result.outcome == "error":
        return Verdict(False, "not_executable", result.error)
    found = compare(result, gold_result, ordered(gold), comparison)
    wanted = _gold_reads(db_path, gold)
    share = len(result.reads & wanted) / max(len(result.reads | wanted), 1)
    return replace(found, reads_share=share)


@lru_cache(maxsize=10_000)
def _gold_reads(db_path: Path, gold: str) -> frozenset[tuple[str, str]]:
    return reads(db_path, gold) or frozenset()


def judge_on_suite(
    verdict: Verdict,
    answer: str,
    gold: str,
    files: Sequence[Path],
    comparison: Comparison,
) -> Verdict:
    """A right verdict made stricter: the answer must give the gold's rows on every file.

    `files` are further databases of the same schema (see the package `suite`). A file on which
    the gold fails decides nothing. Where it was ended by the clock or with its process there is no
    verdict, and so no credit: on a quieter machine it might have run. Of a wrong answer, the share
    of right rows is that on the file that told.
    """
    for file in files:
        gold_result = _gold_on(file, gold)
        if gold_result.outcome in ("timeout", "crashed"):
            detail = f"{file.name}: {gold_result.error}"
            return Verdict(False, "gold_unusable", detail)
        found = judge(answer, gold, gold_result, file, comparison)
        if found.correct or found.reason == "gold_unusable":
            continue
        reason: Reason = "crashed" if found.reason == "crashed" else "wrong_on_suite"
        detail = f"{file.name}: {found.reason}, {found.detail}"
        return replace(
            verdict,
            correct=False,
            reason=reason,
            detail=detail,
            rows_share=found.rows_share,
            empty_match=False,
        )
    return verdict


class _NotKept(Exception):
    """Carries a result past the cache."""


def _gold_on(file: Path, gold: str) -> QueryResult:
    """A gold's result on a file of a test suite, kept unless it may be another next time."""
    try:
        return _lasting(file, gold)
    except _NotKept as carrier:
        return carrier.args[0]


@lru_cache(maxsize=10_000)
def _lasting(file: Path, gold: str) -> QueryResult:
    result = execute(file, gold, ANSWER_LIMITS)
    if result.outcome in ("timeout", "crashed"):
        raise _NotKept(result)
    return result


def compare(
    result: QueryResult, gold: QueryResult, in_order: bool, comparison: Comparison
) -> Verdict:
    """The verdict on two results that both executed."""
    if comparison.numbers == "tolerant":
        # Rounding would part an integer of ten digits from the same number as a float.
        exactly = compare(result, gold, in_order, replace(comparison, numbers="exact"))
        if exactly.correct:
            return exactly
    ours = [_key(row, comparison) for row in result.rows]
    theirs = [_key(row, comparison) for row in gold.rows]
    detail = f"{len(ours)}{'' if result.complete else ' or more'} rows, gold {len(theirs)}"
    if not theirs and not ours:
        if comparison.empty == "wrong":
            return Verdict(False, "empty", "both are empty", executable=True, empty_match=True)
        # Without rows there is nothing to compare but the width.
        if len(result.columns) == len(gold.columns):
            return Verdict(True, "correct", detail, True, 1.0, empty_match=True)
    if len(result.columns) != len(gold.columns):
        columns = f"{len(result.columns)} columns, gold {len(gold.columns)}"
        return Verdict(False, "wrong_columns", columns, executable=True)
    share = _share(ours, theirs)
    if not ours and theirs:
        return Verdict(False, "empty", detail, executable=True)
    if not result.complete:
        return Verdict(False, "wrong_rows", detail, True, share)
    if _equal(ours, theirs, in_order):
        return Verdict(True, "correct", detail, True, 1.0)
    if comparison.column_order == "any" and _equal_permuted(ours, theirs, in_order):
        return Verdict(True, "correct", f"{detail}, columns in another order", True, 1.0)
    if in_order and Counter(ours) == Counter(theirs):
        return Verdict(False, "wrong_order", detail, True, share)
    return Verdict(False, "wrong_rows", detail, True, share)


def execution_match(verdict: Verdict) -> float:
    """The seed's reward: 1 for the gold's rows, 0 for anything else."""
    return float(verdict.correct)


def executable(verdict: Verdict) -> float:
    """1 if the answer ran at all."""
    return float(verdict.executable)


def rows_share(verdict: Verdict) -> float:
    """Share of rows right, 0 to 1: the multiset overlap over the larger of the two results."""
    return verdict.rows_share


def reads_share(verdict: Verdict) -> float:
    """Share of tables and columns right, 0 to 1: the Jaccard index of what answer and gold read.

    0 for an answer that did not run. It tells nearly every wrong answer from another, where rows
    are seldom right; after the schema-linking reward of Reasoning-SQL (Pourreza et al. 2025,
    https://arxiv.org/abs/2503.23157), but from SQLite's own account of what a query reads.
    """
    return verdict.reads_share


REWARDS: dict[str, Reward] = {
    f.__name__: f for f in (execution_match, executable, rows_share, reads_share)
}


_COMMENT_OR_QUOTED = re.compile(
    r"(--[^\n]*|/\*.*?(?:\*/|\Z))|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*(?:\]|\Z)",
    re.DOTALL,
)


def ordered(query: str) -> bool:
    """Whether a query has an ORDER BY outside every parenthesis, string and comment."""
    text = _COMMENT_OR_QUOTED.sub(lambda m: " " if m[1] else " x ", query)
    depth, outer = 0, []
    for char in text:
        depth += (char == "(") - (char == ")")
        outer.append(char if depth <= 0 and char != ")" else " ")
    return re.search(r"\border\s+by\b", "".join(outer), re.IGNORECASE) is not None


def _key(row: Row, comparison: Comparison) -> Row:
    if comparison.numbers == "exact":
        return row
    return tuple(_rounded(v) for v in row)


def _rounded(value: SqlValue) -> SqlValue:
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.9g}")
    return value


def _share(ours: list[Row], theirs: list[Row]) -> float:
    common = (Counter(ours) & Counter(theirs)).total()
    return common / max(len(ours), len(theirs), 1)


def _equal(ours: Sequence[Row], theirs: Sequence[Row], in_order: bool) -> bool:
    if len(ours) != len(theirs):
        return False
    return list(ours) == list(theirs) if in_order else Counter(ours) == Counter(theirs)


def _equal_permuted(ours: list[Row], theirs: list[Row], in_order: bool) -> bool:
    """Whether some order of our columns gives the gold's rows.

    Places one column after the other and goes back where the columns so far don't fit: the rows cut
    to them must be the gold's rows cut likewise.
    """
    if len(ours) != len(theirs) or len(theirs[0]) > _MAX_PERMUTED_COLUMNS:
        return False
    width = len(theirs[0])
    our_columns = [Counter(row[c] for row in ours) for c in range(width)]
    their_columns = [Counter(row[c] for row in theirs) for c in range(width)]

    def place(chosen: list[int]) -> bool:
        cut = [tuple(row[c] for c in chosen) for row in ours]
        if not _equal(cut, [row[: len(chosen)] for row in theirs], in_order):
            return False
        if len(chosen) == width:
            return True
        target = their_columns[len(chosen)]
        tried: set[Row] = set()
        for c in range(width):
            # Two columns of ours that are equal row by row need not both be tried.
            column = tuple(row[c] for row in ours)
            if c in chosen or our_columns[c] != target or column in tried:
                continue
            tried.add(column)
            if place([*chosen, c]):
                return True
        return False

    return place([])
