"""Execution accuracy: does a prediction return what the gold query returns?

Two official notions. *Legacy* compares one database file column by column, keyed by the parsed
SELECT items, in row order. *Test suite* compares whole results on every file of a database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nl2sql_trl.spider.errors import OfficialAbort
from nl2sql_trl.spider.execution import TIMEOUT, Execution, Runner, is_query, same_statement
from nl2sql_trl.spider.plug import plugged
from nl2sql_trl.spider.result import result_eq
from nl2sql_trl.spider.text import executed_text, order_matters, suite_text
from nl2sql_trl.spider.tree import Query


@dataclass(frozen=True)
class Verdict:
    """Whether a prediction counts as correct, and if not, why."""

    correct: bool
    reason: str | None = None


_MAX_CANDIDATES = 10_000
CORRECT = Verdict(True)
WRONG_RESULT = Verdict(False, "wrong result")


def legacy_accuracy(
    runner: Runner, path: Path, gold: str, pred: str, gold_query: Query, pred_query: Query
) -> Verdict:
    """Judge by the legacy script; both trees must be canonical.

    Raises OfficialAbort where the script dies.
    """
    pred_run = runner.execute(path, pred)
    if pred_run.error or pred_run.undecodable:
        return Verdict(False, pred_run.error or "text in the result is not UTF-8")
    gold_run = runner.execute(path, gold)
    if gold_run.error or gold_run.undecodable:
        raise OfficialAbort(f"gold: {gold_run.error or 'text in the result is not UTF-8'}")
    same = _cells_by_item(pred_run, pred_query) == _cells_by_item(gold_run, gold_query)
    return CORRECT if same else WRONG_RESULT


def _cells_by_item(run: Execution, query: Query) -> dict[object, list[Any]]:
    """The column under each SELECT item; aggregates around items are no part of the key."""
    if run.rows and len(query.select) > len(run.rows[0]):
        raise OfficialAbort("more SELECT items parsed than columns returned")
    return {
        (item.value if item.value.right is not None else item.value.left): [
            row[index] for row in run.rows
        ]
        for index, item in enumerate(query.select)
    }


def suite_accuracy(
    runner: Runner,
    paths: Sequence[Path],
    gold: str,
    pred: str,
    *,
    plug_value: bool = False,
    keep_distinct: bool = False,
    fixed: bool = False,
) -> Verdict:
    """Judge by the test-suite script on all files; ``pred`` is the rewritten prediction.

    With ``plug_value`` the gold's values are also tried in the prediction, up to a number of
    combinations. ``fixed`` repairs the order rule and the comparison of numbers. Raises
    OfficialAbort where the script dies.
    """
    gold_text = suite_text(gold, keep_distinct=keep_distinct)
    pred_text = suite_text(pred, keep_distinct=keep_distinct)
    ordered = order_matters(gold_text, fixed=fixed)

    def judge(candidate: str) -> Verdict:
        return _all_equal(runner, paths, gold_text, candidate, ordered, fixed)

    verdict = judge(pred_text)
    if verdict.correct or not plug_value:
        return verdict
    for tried, candidate in enumerate(plugged(gold_text, pred_text)):
        if tried == _MAX_CANDIDATES:
            return Verdict(False, TIMEOUT)
        if judge(candidate).correct:
            return CORRECT
    return verdict


def _all_equal(
    runner: Runner, paths: Sequence[Path], gold: str, pred: str, ordered: bool, fixed: bool
) -> Verdict:
    gold, pred = executed_text(gold), executed_text(pred)
    if fixed and not is_query(gold):
        raise OfficialAbort("gold: it is no query")
    same = same_statement(gold, pred)
    for path in paths:
        if same and runner.cannot_fail(gold, path, paths[0]):
            continue
        gold_run = runner.execute(path, gold)
        if gold_run.error:
            raise OfficialAbort(f"gold: {path.name}: {gold_run.error}")
        pred_run = runner.execute(path, pred)
        if pred_run.error:
            return Verdict(False, pred_run.error)
        if pred_run.digest != gold_run.digest and not result_eq(
            gold_run.rows, pred_run.rows, ordered, fixed=fixed
        ):
            return WRONG_RESULT
    return CORRECT
