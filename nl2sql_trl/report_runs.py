"""Reads evaluation folders: what `evaluate` wrote, checked to be whole and of the same questions.

Seeds of one recipe can be put together into one run. Nothing is judged or shown here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nl2sql_trl import results, stats
from nl2sql_trl.runs import read_jsonl
from nl2sql_trl.spider.scoring import METRICS

_REPORT: dict[str, type] = {
    "name": str,
    "settings": dict,
    "rows": int,
    "samples": int,
    "set_aside": int,
    "metrics": dict,
    "by_database": dict,
    "reasons": dict,
    "profile": dict,
    "failures": list,
    "detectors": dict,
    "grounding": dict,
    "suite": dict,
}
_ROW: dict[str, type] = {
    "key": str,
    "db_id": str,
    "gold": str,
    "question": str,
    "turns": list,
    "stop": str,
    "correct": bool,
    "reason": str,
    "scores": dict,
    "detectors": list,
    "answer": object,
    "hardness": object,
    "failure": object,
}
_SCORES: dict[str, type] = dict.fromkeys(METRICS, bool)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One evaluation: its report, and a row for each rollout (a question's samples together)."""

    name: str
    report: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def samples(self) -> int:
        """Rollouts a question."""
        return int(self.report["samples"])

    @property
    def questions(self) -> list[list[dict[str, Any]]]:
        """The rollouts of each question, in the split's order."""
        step = self.samples
        return [self.rows[i : i + step] for i in range(0, len(self.rows), step)]


def load(folder: str | Path) -> Evaluated:
    """Read an evaluation folder.

    Raises FileNotFoundError where a file is missing and ValueError where one is not whole or of
    an older version; the message is one line that names the file.
    """
    report_file, rows_file = (Path(folder) / n for n in ("report.json", "trajectories.jsonl"))
    for path in (report_file, rows_file):
        if not path.is_file():
            raise FileNotFoundError(f"there is no {path}: give a folder that evaluate has written")
    report = _read_report(report_file)
    rows = read_jsonl(rows_file)
    expected = report["rows"] * report["samples"]
    if len(rows) != expected or not rows:
        raise ValueError(
            f"{rows_file} holds {len(rows)} rollouts and report.json counts {expected}: "
            "was it stopped? evaluate again"
        )
    for number, row in enumerate(rows, start=1):
        if lacking := _lacking(row, _ROW) or _lacking(row["scores"], _SCORES):
            fields = ", ".join(lacking)
            raise ValueError(f"{rows_file}, row {number} has no {fields}: evaluate again")
    run = Evaluated(report["name"], report, rows)
    _check_samples(run, rows_file)
    return run


def together(runs: Sequence[Evaluated]) -> Evaluated:
    """Seeds of one recipe as one run: a question's value is its mean over them.

    Raises ValueError if the runs are not of the same questions, or not of as many samples.
    """
    check_same_questions(runs)
    if len({run.samples for run in runs}) > 1:
        raise ValueError("seeds with different numbers of samples cannot be put together")
    groups = zip(*(run.questions for run in runs), strict=True)
    rows = [row for group in groups for samples in group for row in samples]
    first = runs[0]
    databases = [samples[0]["db_id"] for samples in first.questions]
    found = results.report(rows, sum(run.samples for run in runs))
    found["seeds"] = {
        measure: asdict(
            stats.across_seeds(
                [results.shares(run.rows, measure, run.samples) for run in runs], databases
            )
        )
        for measure in found["metrics"]
    }
    name = f"{len(runs)} seeds of {first.name}"
    report = {k: v for k, v in first.report.items() if k != "more"} | found | {"name": name}
    return Evaluated(name, report, rows)


def _read_report(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_bytes().decode("utf-8"))
    except ValueError:
        raise ValueError(f"{path} is not whole JSON: evaluate again") from None
    lacking = _lacking(report, _REPORT)
    if not lacking:
        lacking = [
            name for name in results.MEASURES if "all" not in report["metrics"].get(name, {})
        ]
    if lacking:
        raise ValueError(f"{path} has no {', '.join(lacking)}: evaluate again")
    return dict(report)


def _lacking(found: object, fields: Mapping[str, type]) -> list[str]:
    """The fields that an object has not, or has of another type."""
    if not isinstance(found, dict):
        return list(fields)
    return [n for n, kind in fields.items() if n not in found or not isinstance(found[n], kind)]


def _check_samples(run: Evaluated, path: Path) -> None:
    seen: set[str] = set()
    for samples in run.questions:
        keys = {row["key"] for row in samples}
        if len(keys) > 1 or keys & seen:
            raise ValueError(f"{path}: the samples of {samples[0]['key']} are not together")
        seen |= keys


def check_same_questions(runs: Sequence[Evaluated]) -> None:
    """Raise ValueError, in one line that says what differs, if runs cannot be paired."""
    for run in runs[1:]:
        for what, one, two in (
            ("metrics in mode", runs[0].report.get("mode"), run.report.get("mode")),
            ("database files", runs[0].report["suite"]["files"], run.report["suite"]["files"]),
        ):
            if one != two:
                raise ValueError(
                    f"{runs[0].name} was scored with {what} {one} and {run.name} with {two}: "
                    "evaluate both the same way"
                )
        first, other = runs[0].questions, run.questions
        if len(first) != len(other):
            raise ValueError(
                f"{runs[0].name} has {len(first)} rows and {run.name} {len(other)}: "
                "evaluate both on the same rows"
            )
        for number, (a, b) in enumerate(zip(first, other, strict=True), start=1):
            for field in ("key", "db_id", "gold", "hardness"):
                one, two = a[0][field], b[0][field]
                if one != two:
                    raise ValueError(
                        f"row {number} differs in {field}: {one!r} in {runs[0].name}, "
                        f"{two!r} in {run.name}: evaluate both on the same rows"
                    )
