"""Score text-to-SQL predictions by the official Spider metrics.

Spider's file formats, one line a question::

    python -m nl2sql_trl.score --gold dev_gold.sql --pred pred.sql --db database \\
        --tables tables.json --json scores.json

or one JSON object a line with ``id``, ``db_id``, ``gold`` and ``pred``::

    python -m nl2sql_trl.score --cases cases.jsonl --db database --out verdicts.jsonl

The files beside ``<db_id>.sqlite`` are its test suite. Bad input ends with one line on standard
error and exit status 2. Interactions (SParC, CoSQL) are not scored as such.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nl2sql_trl.spider.evaluator import CaseScore, Evaluator, UnknownDatabaseError
from nl2sql_trl.spider.hardness import LEVELS
from nl2sql_trl.spider.schema import Schema, schemas_from_tables_json

_SUMMARY = "Score text-to-SQL predictions by the official Spider metrics."
METRICS = {
    "testsuite_exec": "test suite",
    "exact_match": "exact match",
    "exact_match_legacy": "exact match (legacy)",
    "legacy_exec": "legacy execution",
    "pred_parses": "parses",
    "pred_parses_legacy": "parses (legacy)",
}


class InputError(Exception):
    """The input cannot be scored; the message names file and line."""


@dataclass(frozen=True)
class Case:
    """One prediction to score and where it was read."""

    id: Any
    db_id: str
    gold: str
    pred: str
    place: str


def read_spider_files(gold: Path, pred: Path) -> list[Case]:
    """Pair the lines ``SQL<TAB>db_id`` of ``gold`` with those of ``pred``.

    A blank prediction stays one. Blank lines at the end count only as far as the gold file goes.
    """
    golds, preds = _lines(gold), _lines(pred)
    while golds and not golds[-1].strip():
        golds.pop()
    while len(preds) > len(golds) and not preds[-1].strip():
        preds.pop()
    if len(golds) != len(preds):
        first = min(len(golds), len(preds)) + 1
        raise InputError(
            f"{pred}:{first}: {len(preds)} predictions for {len(golds)} lines of {gold}"
        )
    cases = []
    for number, (line, prediction) in enumerate(zip(golds, preds, strict=True), start=1):
        fields = line.strip().split("\t")
        if len(fields) != 2:
            raise InputError(f"{gold}:{number}: expected SQL, one TAB and a db_id")
        cases.append(Case(number - 1, fields[1], fields[0], prediction, f"{gold}:{number}"))
    return cases


def read_cases(path: Path) -> list[Case]:
    """Read one JSON object a line; blank lines are skipped."""
    cases = []
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            entry = json.loads(line)
            db_id, gold, pred = entry["db_id"], entry["gold"], entry["pred"]
            if not all(isinstance(text, str) for text in (db_id, gold, pred)):
                raise InputError(f"{place}: db_id, gold and pred must be strings")
            cases.append(Case(entry["id"], db_id, gold, pred, place))
        except (ValueError, TypeError) as error:
            raise InputError(f"{place}: no JSON object: {error}") from error
        except KeyError as error:
            raise InputError(f"{place}: no field {error}") from error
    return cases


def score_cases(cases: Sequence[Case], evaluator: Evaluator) -> list[CaseScore]:
    """Score all cases, one database after the other; results come in the order of the cases."""
    scores: dict[int, CaseScore] = {}
    for index in sorted(range(len(cases)), key=lambda index: cases[index].db_id):
        case = cases[index]
        try:
            scores[index] = evaluator.score(case.db_id, case.gold, case.pred)
        except UnknownDatabaseError as error:
            raise InputError(f"{case.place}: unknown db_id {case.db_id!r}: {error}") from error
    evaluator.close()
    return [scores[index] for index in range(len(cases))]


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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    args = _parser().parse_args(argv)
    try:
        _run(args)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def _run(args: argparse.Namespace) -> None:
    if args.cases is not None and args.gold is None and args.pred is None:
        cases = read_cases(args.cases)
    elif args.gold is not None and args.pred is not None and args.cases is None:
        cases = read_spider_files(args.gold, args.pred)
    else:
        raise InputError("give either --gold and --pred, or --cases")
    for folder in args.db:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder")
    evaluator = Evaluator(
        args.db,
        _schemas(args.tables),
        plug_value=args.plug_value,
        keep_distinct=args.keep_distinct,
        fixed=args.fixed,
    )
    scores = score_cases(cases, evaluator)
    summary = summarize(scores)
    pairs = list(zip(cases, scores, strict=True))
    if args.out is not None:
        lines = (f"{json.dumps(_verdict(case, score))}\n" for case, score in pairs)
        args.out.write_text("".join(lines), encoding="utf-8")
    if args.json is not None:
        report = {"rows": [_row(case, score) for case, score in pairs], "summary": summary}
        args.json.write_text(f"{json.dumps(report, indent=1)}\n", encoding="utf-8")
    print(table(summary))


def _verdict(case: Case, score: CaseScore) -> dict[str, Any]:
    verdict = {"id": case.id, **asdict(score)}
    del verdict["partial"]
    return verdict


def _row(case: Case, score: CaseScore) -> dict[str, Any]:
    partial = {name: component._asdict() for name, component in score.partial.items()}
    texts = {"db_id": case.db_id, "gold": case.gold, "pred": case.pred}
    return {**_verdict(case, score), **texts, "partial": partial}


def _schemas(path: Path | None) -> dict[str, Schema]:
    if path is None:
        return {}
    try:
        return schemas_from_tables_json(path)
    except (ValueError, TypeError, LookupError) as error:
        raise InputError(f"{path}: not in the format of Spider's tables.json: {error}") from error


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8: {error}") from error
    return lines if lines[-1] else lines[:-1]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m nl2sql_trl.score", description=_SUMMARY)
    add = parser.add_argument
    add("--gold", type=Path, help="file with one SQL<TAB>db_id a line")
    add("--pred", type=Path, help="file with one SQL statement a line; a blank one is wrong")
    add("--cases", type=Path, help="JSONL file with id, db_id, gold and pred")
    add("--db", type=Path, nargs="+", required=True, help="folders of databases, first one first")
    add("--tables", type=Path, help="tables.json, for foreign keys; default: as declared in files")
    add("--json", type=Path, help="write rows and summary here")
    add("--out", type=Path, help="write one verdict a line here, as JSONL")
    add("--plug_value", action="store_true", help="test suite: also try the gold's values")
    add("--keep_distinct", action="store_true", help="test suite: leave DISTINCT in")
    add("--fixed", action="store_true", help="test suite: without the official script's mistakes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
