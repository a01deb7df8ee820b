"""Why answers fail: one primary cause for each wrong row, from facts, and detectors beside it.

A row is wrong when its test-suite verdict is. Causes are tried in the order of a trajectory: was
there an answer, did it run, did it end in time, had the model seen rows. What is still wrong then
is split by what differs from the gold in the SQL (its most basic difference) and in the rows.

Detectors are facts that may explain a wrong row, or make a right one doubtful: they are counted
over all rows and name no culprit.

Nothing here calls a model, and nothing guesses what the model "meant".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nl2sql_trl.database import execute
from nl2sql_trl.differences import (
    quoted_as_literal,
    result_difference,
    tables_read,
    text_differences,
    tree_differences,
    wrong_join_keys,
)
from nl2sql_trl.goldtext import limit_cut
from nl2sql_trl.records import Example, QueryResult, ToolTurn, Trajectory, Verdict, normalise
from nl2sql_trl.rewards import ANSWER_LIMITS
from nl2sql_trl.spider.evaluator import CaseScore, Evaluator

CAUSES = (
    "no answer",
    "malformed tool call to the end",
    "budget exhausted",
    "turn limit reached",
    "not executable",
    "timeout",
    "ran a query, saw rows, still wrong",
    "saw no rows, wrong",
)
DETECTORS = (
    "answer never executed",
    "constant answer",
    "quoted name became a literal",
    "empty result matched with empty gold",
    "gold with LIMIT tie",
)
_MESSAGES = (
    ("no such table", "no such table"),
    ("no such column", "no such column"),
    ("ambiguous column", "ambiguous column"),
    ("syntax error", "syntax"),
    ("unrecognized token", "syntax"),
    ("incomplete input", "syntax"),
    ("no such function", "no such function"),
    ("misuse of aggregate", "misuse of aggregate"),
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a row is wrong: `cause` is one of CAUSES, `part` what it is split by.

    The other fields are empty for answers that did not run. `sql_differs` lists the clauses that
    differ, most basic first; `tables_missing` and `tables_extra` are what the answer does not
    read of, or reads beside, the gold's tables.
    """

    cause: str
    part: str
    sql_differs: tuple[str, ...] = ()
    result_differs: str = ""
    tables_missing: tuple[str, ...] = ()
    tables_extra: tuple[str, ...] = ()
    wrong_join_keys: tuple[str, ...] = ()


def explain(
    example: Example,
    trajectory: Trajectory,
    verdict: Verdict,
    score: CaseScore,
    gold: QueryResult,
    evaluator: Evaluator,
) -> Failure | None:
    """The failure of a row, None if it is right by the test suite.

    `verdict` is the training comparison's, `gold` the gold's rows on the base database.
    """
    if score.testsuite_exec:
        return None
    if trajectory.answer is None:
        return _no_answer(trajectory)
    if verdict.reason in ("not_executable", "not_allowed"):
        return Failure("not executable", _message(verdict))
    if verdict.reason in ("timeout", "too_big", "crashed"):
        return Failure("timeout", verdict.reason.replace("_", " "))
    return _wrong_rows(example, trajectory, gold, evaluator)


def _no_answer(trajectory: Trajectory) -> Failure:
    tool_turns = [turn for turn in trajectory.turns if isinstance(turn, ToolTurn)]
    if tool_turns and all(call.problem for call in tool_turns[-1].calls):
        problems = Counter(call.problem for call in tool_turns[-1].calls)
        return Failure("malformed tool call to the end", str(problems.most_common(1)[0][0]))
    stops = {"budget": "budget exhausted", "turn_limit": "turn limit reached"}
    queries = [normalise(c.query) for c in trajectory.calls if c.query and not c.problem]
    if not queries:
        part = "ran no query"
    elif len(queries) > 1 and len(set(queries)) < len(queries):
        part = "ran the same query again"
    else:
        part = "ran other queries"
    return Failure(stops.get(trajectory.stop, "no answer"), part)


def _message(verdict: Verdict) -> str:
    if verdict.reason == "not_allowed":
        return "not allowed"
    known = (name for text, name in _MESSAGES if text in verdict.detail)
    return next(known, "other")


def _wrong_rows(
    example: Example, trajectory: Trajectory, gold: QueryResult, evaluator: Evaluator
) -> Failure:
    answer, path = trajectory.answer or "", example.db_path
    read, wanted = tables_read(path, answer), tables_read(path, example.gold)
    missing = sorted((wanted or set()) - (read or set()))
    extra = sorted((read or set()) - (wanted or set()))
    gold_tree = evaluator.tree(example.db_id, example.gold)
    tree = evaluator.tree(example.db_id, answer)
    joins: list[str] = []
    if gold_tree is not None and tree is not None:
        schema = evaluator.schema(example.db_id)
        differs = tree_differences(gold_tree, tree, schema)
        joins = wrong_join_keys(gold_tree, tree, schema)
    else:
        differs = ["tables"] * bool(missing or extra) + text_differences(example.gold, answer)
    rows = execute(path, answer, ANSWER_LIMITS)
    saw_rows = any(call.result is not None and call.result.rows for call in trajectory.calls)
    return Failure(
        "ran a query, saw rows, still wrong" if saw_rows else "saw no rows, wrong",
        differs[0] if differs else "nothing that the parser sees",
        tuple(differs),
        result_difference(path, example.gold, gold, rows),
        tuple(missing),
        tuple(extra),
        tuple(joins),
    )


def detect(example: Example, trajectory: Trajectory, verdict: Verdict) -> tuple[str, ...]:
    """The detectors that fire on a row, whether it is right or wrong."""
    answer, path = trajectory.answer, example.db_path
    found = []
    if answer is not None:
        if not trajectory.ran_its_answer:
            found.append("answer never executed")
        if verdict.executable:
            if tables_read(path, answer) == set():
                found.append("constant answer")
            if any(True for _ in quoted_as_literal(path, answer)):
                found.append("quoted name became a literal")
    if verdict.correct and verdict.empty_match:
        found.append("empty result matched with empty gold")
    if limit_cut(path, example.gold) == "tie":
        found.append("gold with LIMIT tie")
    return tuple(found)


def failure_tree(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Causes with their counts and parts, in the order of CAUSES, of rows as written to disk."""
    parts: dict[str, Counter[str]] = {cause: Counter() for cause in CAUSES}
    for row in rows:
        if row["failure"] is not None:
            cause = parts.setdefault(row["failure"]["cause"], Counter())
            cause[row["failure"]["part"]] += 1
    return [
        {"cause": cause, "count": found.total(), "parts": dict(found.most_common())}
        for cause, found in parts.items()
        if found
    ]


def detectors(rows: Sequence[Mapping[str, Any]], examples: int = 10) -> dict[str, dict[str, Any]]:
    """How often each detector fired, with the keys of the first rows."""
    fired = {name: [row["key"] for row in rows if name in row["detectors"]] for name in DETECTORS}
    return {name: {"count": len(keys), "examples": keys[:examples]} for name, keys in fired.items()}


def grounding(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Of the wrong answers that ran: how many miss tables, read others, or join on wrong keys."""
    wrong = [row["failure"] for row in rows if row["failure"] and row["failure"]["result_differs"]]
    return {
        "wrong_rows": len(wrong),
        "tables_missing": sum(bool(failure["tables_missing"]) for failure in wrong),
        "tables_extra": sum(bool(failure["tables_extra"]) for failure in wrong),
        "wrong_join_keys": sum(bool(failure["wrong_join_keys"]) for failure in wrong),
    }
