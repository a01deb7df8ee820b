"""Predictions to score, read from Spider's files or from JSON lines.

Every case remembers where it stands, so that an error can name file and line. Nothing is scored
here, and no database is looked at.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nl2sql_trl.spider.schema import Schema, schemas_from_tables_json


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


def read_golds(path: Path) -> list[tuple[str, str]]:
    """The lines ``SQL<TAB>db_id`` of a gold file, as (SQL, db_id). Blank lines at the end go."""
    lines = read_lines(path)
    while lines and not lines[-1].strip():
        lines.pop()
    golds = []
    for number, line in enumerate(lines, start=1):
        fields = line.strip().split("\t")
        if len(fields) != 2:
            raise InputError(f"{path}:{number}: expected SQL, one TAB and a db_id")
        golds.append((fields[0], fields[1]))
    return golds


def read_spider_files(gold: Path, pred: Path) -> list[Case]:
    """Pair the lines of a gold file with those of a prediction file.

    A blank prediction stays one. Blank lines at the end count only as far as the gold file goes.
    """
    golds, preds = read_golds(gold), read_lines(pred)
    while len(preds) > len(golds) and not preds[-1].strip():
        preds.pop()
    if len(golds) != len(preds):
        first = min(len(golds), len(preds)) + 1
        raise InputError(
            f"{pred}:{first}: {len(preds)} predictions for {len(golds)} lines of {gold}"
        )
    return [
        Case(number, db_id, sql, prediction, f"{gold}:{number + 1}")
        for number, ((sql, db_id), prediction) in enumerate(zip(golds, preds, strict=True))
    ]


def read_cases(path: Path) -> list[Case]:
    """Read one JSON object a line; blank lines are skipped."""
    cases = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            entry = json.loads(line)
            db_id, gold, pred = entry["db_id"], entry["gold"], entry["pred"]
            if not all(isinstance(text, str) for text in (db_id, gold, pred)):
                raise InputError(f"{place}: db_id, gold and pred must be strings")
            cases.append(Case(entry["id"], db_id, gold, pred, place))
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"{place}: no JSON object: {error}") from error
        except KeyError as error:
            raise InputError(f"{place}: no field {error}") from error
    return cases


def read_schemas(path: Path | None) -> dict[str, Schema]:
    """The schemas of a tables.json; none without one. Raises InputError if it is no such file."""
    if path is None:
        return {}
    try:
        return schemas_from_tables_json(path)
    except (ValueError, TypeError, LookupError) as error:
        raise InputError(f"{path}: not in the format of Spider's tables.json: {error}") from error


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, blank ones among them."""
    try:
        # Some editors begin a file with a byte order mark.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8: {error}") from error
    return lines if lines[-1] else lines[:-1]
