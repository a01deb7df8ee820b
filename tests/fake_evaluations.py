"""Evaluation folders made by hand: eight questions on two databases, with chosen verdicts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nl2sql_trl import stats

QUESTIONS = (
    ("music", "easy", "How many singers are there?", "SELECT count(*) FROM singer"),
    ("music", "easy", "What are the names of the singers?", "SELECT name FROM singer"),
    ("music", "medium", "Who is the oldest?", "SELECT name FROM singer ORDER BY age DESC LIMIT 1"),
    ("music", "hard", "Which ages are there?", "SELECT DISTINCT age FROM singer"),
    ("shops", "easy", "How many shops are in Oslo?", "SELECT count(*) FROM shop"),
    ("shops", "medium", "Which cities have shops?", "SELECT DISTINCT city FROM shop"),
    ("shops", "extra", "List the shops by city.", "SELECT id FROM shop ORDER BY city"),
    ("shops", None, "Count the shops of each city.", "SELECT city, count(*) FROM shop GROUP BY 1"),
)
FAILURES = (
    ("no answer", ""),
    ("not executable", "no such column"),
    ("wrong rows", "condition"),
    ("wrong rows", "join path"),
)
METRICS = ("testsuite_exec", "exact_match", "exact_match_legacy", "legacy_exec", "pred_parses",
           "pred_parses_legacy")  # fmt: skip


def rollout(at: int, right: bool, **changes: Any) -> dict[str, Any]:
    """A line of trajectories.jsonl for question `at`; a wrong one fails by `FAILURES` in turn."""
    db_id, hardness, question, gold = QUESTIONS[at % len(QUESTIONS)]
    cause, part = FAILURES[at % len(FAILURES)]
    query = gold if right else f"SELECT wrong_{at}"
    answer = None if not right and cause == "no answer" else query
    call = {"query": query, "problem": None, "response": f'{{"rows": [["cell {at}"]]}}'}
    scores = dict.fromkeys(METRICS[:4], right)
    parses = dict.fromkeys(METRICS[4:], right or at % 2 == 0)
    failure = {
        "cause": cause,
        "part": part,
        "sql_differs": ["condition", "tables"],
        "result_differs": "missing rows",
        "tables_missing": ["city"],
        "tables_extra": [],
        "wrong_join_keys": [],
    }
    return {
        "db_id": db_id,
        "gold": gold,
        "key": f"dev:{at}",
        "question": question,
        "hardness": hardness,
        "turns": [
            {"role": "assistant", "content": f"thinking {at} <tool_call>", "tokens": 40 + at},
            {"role": "tool", "calls": [call], "tokens": 20},
            {"role": "assistant", "content": f"done {at}", "tokens": 9},
        ],
        "stop": "answer",
        "answer": answer,
        "ran_its_answer": answer is not None,
        "correct": right,
        "reason": "correct" if right else "wrong_rows",
        "detail": "" if right else "3 rows, gold 1",
        "executable": right or cause == "wrong rows",
        "empty_match": False,
        "scores": {**scores, **parses, "reason": None, "flags": []},
        "failure": None if right else failure,
        "detectors": [] if right or at % 3 else ["answer_never_executed"],
        **changes,
    }


def rollouts(verdicts: str) -> list[dict[str, Any]]:
    """One rollout a question: `1` is right, `0` is wrong."""
    return [rollout(at, verdict == "1") for at, verdict in enumerate(verdicts)]


def report(rows: Sequence[dict[str, Any]], name: str, samples: int = 1) -> dict[str, Any]:
    """report.json of these rollouts."""
    wrong = [row["failure"] for row in rows if row["failure"]]
    tree = {}
    for cause, number in Counter(f["cause"] for f in wrong).most_common():
        parts = Counter(f["part"] for f in wrong if f["cause"] == cause and f["part"])
        tree[cause] = {"cause": cause, "count": number, "parts": dict(parts)}
    detectors = {}
    for detector in dict.fromkeys(d for row in rows for d in row["detectors"]):
        keys = [row["key"] for row in rows if detector in row["detectors"]]
        detectors[detector] = {"count": len(keys), "examples": keys[:10]}
    return {
        "name": name,
        "settings": {"temperature": 0.0 if samples == 1 else 1.0, "seed": 0},
        "rows": len(rows) // samples,
        "samples": samples,
        "set_aside": 1,
        "metrics": {m: _levels(rows, m, samples) for m in (*METRICS, "execution_accuracy")},
        "by_database": _by_database(rows, samples),
        "reasons": dict(Counter(row["reason"] for row in rows).most_common()),
        "profile": {
            "executable": 0.875,
            "ran_its_answer": 0.5,
            "calls_per_row": 1.25,
            "malformed_calls_per_row": 0.0,
            "answered": 0.75,
            "out_of_budget": 0.25,
            "turn_limit": 0.0,
            "empty_match": 0.0,
            "sampled_tokens": 49.5,
        },
        "failures": list(tree.values()),
        "detectors": detectors,
        "grounding": {
            "wrong_rows": len(wrong),
            "tables_missing": len(wrong),
            "tables_extra": 0,
            "wrong_join_keys": 0,
        },
        "suite": {"files": 40},
    }


def write_evaluation(folder: Path, rows: Sequence[dict[str, Any]], **changes: Any) -> Path:
    """Write the two files that a report is made of; `changes` are to report.json."""
    samples = changes.get("samples", 1)
    folder.mkdir(parents=True, exist_ok=True)
    found = {**report(rows, folder.name, samples), **changes}
    (folder / "report.json").write_text(json.dumps(found), encoding="utf-8")
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "trajectories.jsonl").write_text(lines, encoding="utf-8")
    return folder


def _levels(rows: Sequence[dict[str, Any]], metric: str, samples: int) -> dict[str, Any]:
    def value(row: dict[str, Any]) -> bool:
        return bool(row["correct"] if metric == "execution_accuracy" else row["scores"][metric])

    found = {}
    for level in ("easy", "medium", "hard", "extra", "all"):
        those = [row for row in rows if level in ("all", row["hardness"])]
        if those:
            right = [float(value(row)) for row in those]
            means = [sum(right[i : i + samples]) / samples for i in range(0, len(right), samples)]
            databases = [row["db_id"] for row in those[::samples]]
            found[level] = asdict(stats.accuracy(means, databases))
    return found


def _by_database(rows: Sequence[dict[str, Any]], samples: int) -> dict[str, Any]:
    found = {}
    for db_id in dict.fromkeys(row["db_id"] for row in rows):
        those = [row for row in rows if row["db_id"] == db_id]
        found[db_id] = {
            "rows": len(those) // samples,
            "execution_accuracy": sum(row["correct"] for row in those) / len(those),
            "testsuite_exec": sum(row["scores"]["testsuite_exec"] for row in those) / len(those),
        }
    return found
