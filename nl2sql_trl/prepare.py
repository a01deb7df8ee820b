"""Check a data set before training on it, and write the gold report.

    python -m nl2sql_trl.prepare --data DIR --out gold_report.json
    python -m nl2sql_trl.prepare --data shop.csv

Per split it says which golds run and why the others do not, which return nothing, which cut a
tie or have no order where they LIMIT, which JOIN without ON, which take a double-quoted string
for a literal, and which questions have two golds on one database; and for the whole, databases
with empty tables, databases that train and dev share, and the hash of every file. Row numbers
are positions in the split's file, from 0. Bad input ends with one line on standard error and
exit status 2; a broken gold is a finding, not an error.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from nl2sql_trl.data import SPLIT_FILES, DataError, data_folder, load
from nl2sql_trl.database import DatabaseError, table_counts
from nl2sql_trl.gold import Gate, Key, data_manifest, gate, track
from nl2sql_trl.goldtext import Cut, joins_without_on, limit_cut, names, quoted_literals
from nl2sql_trl.records import Example, normalise

_SHOWN = 12  # rows of a list that the printed report names; the JSON has all


def split_report(
    examples: Sequence[Example], checked: Gate, progress: bool = True
) -> dict[str, Any]:
    """What is to be known of a split's golds: counts, and a list of rows for each finding."""
    cuts: dict[Key, Cut] = {}
    for e in track(checked.kept, "LIMITs", progress):
        key = e.db_path, e.gold
        if key not in cuts:
            cuts[key] = limit_cut(*key)
    known = {path: names(path) for path in dict.fromkeys(e.db_path for e in examples)}

    def rows(where: Callable[[Example], object]) -> list[int]:
        return [e.row for e in checked.kept if where(e)]

    def cut(kind: Cut) -> list[int]:
        return rows(lambda e: cuts[e.db_path, e.gold] == kind)

    return {
        "rows": len(examples),
        "kept": len(checked.kept),
        "dropped": [
            {"row": d.example.row, "db_id": d.example.db_id, "reason": d.reason,
             "message": d.detail, "gold": d.example.gold}
            for d in checked.dropped
        ],
        "zero_rows": rows(lambda e: not checked.results.row_count((e.db_path, e.gold))),
        "limit_cuts_tie": cut("tie"),
        "limit_without_order": cut("no_order"),
        "limit_undecided": cut("undecided"),
        "joins_without_on": [e.row for e in examples if joins_without_on(e.gold)],
        "quoted_literals": rows(lambda e: quoted_literals(e.gold, known[e.db_path])),
        "question_with_several_golds": list(_several_golds(examples)),
    }  # fmt: skip


def _several_golds(examples: Sequence[Example]) -> Iterator[dict[str, Any]]:
    groups: defaultdict[tuple[str, str], list[Example]] = defaultdict(list)
    for e in examples:
        groups[e.db_id, normalise(e.question).lower()].append(e)
    for (db_id, _), group in groups.items():
        if len({normalise(e.gold) for e in group}) > 1:
            yield {"db_id": db_id, "question": group[0].question, "rows": [e.row for e in group]}


def report(
    data: str | Path, splits: Sequence[str] = tuple(SPLIT_FILES), progress: bool = True
) -> dict[str, Any]:
    """The whole gold report. Raises DataError or DatabaseError if the data cannot be used."""
    examples = {split: load(data, split) for split in splits}
    folder = data_folder(data)
    paths = {e.db_id: e.db_path for rows in examples.values() for e in rows}
    empty = {
        db_id: tables
        for db_id, path in sorted(paths.items())
        if (tables := [name for name, count in table_counts(path).items() if not count])
    }
    used = [{e.db_id for e in rows} for rows in examples.values()]
    return {
        "data": str(folder),
        "sqlite": sqlite3.sqlite_version,
        "splits": {
            split: split_report(rows, gate(rows, progress=progress), progress)
            for split, rows in examples.items()
        },
        "databases": len(paths),
        "empty_tables": empty,
        "shared_databases": sorted(set.intersection(*used)) if len(used) > 1 else None,
        "files": data_manifest(folder),
    }


_TITLES = {
    "zero_rows": "golds that return nothing",
    "limit_cuts_tie": "golds whose final LIMIT cuts a tie",
    "limit_without_order": "golds whose final LIMIT cuts rows in no order",
    "limit_undecided": "golds with a LIMIT that could not be decided",
    "joins_without_on": "golds with a JOIN without ON",
    "quoted_literals": "golds with a double-quoted string that is no name",
}


def printed(found: dict[str, Any]) -> str:
    """The report for people: the counts and the first rows of each list."""
    lines = [f"{found['data']} (SQLite {found['sqlite']}); rows are counted from 0"]
    for split, part in found["splits"].items():
        lines += ["", f"{split}: {part['kept']:,} of {part['rows']:,} golds run"]
        lines += [
            f"  dropped row {d['row']} ({d['db_id']}): {d['reason']}: {d['message']}"
            for d in part["dropped"][:_SHOWN]
        ]
        if len(part["dropped"]) > _SHOWN:
            lines.append(f"  and {len(part['dropped']) - _SHOWN} more dropped rows")
        lines += [f"  {_listed(title, part[name])}" for name, title in _TITLES.items()]
        several = part["question_with_several_golds"]
        pairs = ["/".join(map(str, one["rows"])) for one in several]
        lines.append(f"  {_listed('questions with several golds on one database', pairs)}")
    lines += ["", f"{found['databases']} databases"]
    lines += [f"  empty in {db}: {', '.join(t)}" for db, t in found["empty_tables"].items()]
    if found["shared_databases"] is not None:
        lines.append(f"  {_listed('shared by train and dev', found['shared_databases'])}")
    size = sum(entry["bytes"] for entry in found["files"].values())
    lines.append(f"{len(found['files'])} files, {size:,} bytes, hashed")
    return "\n".join(lines)


def _listed(title: str, items: Sequence[object]) -> str:
    more = ", ..." if len(items) > _SHOWN else ""
    named = f" ({', '.join(map(str, items[:_SHOWN]))}{more})" if items else ""
    return f"{title}: {len(items)}{named}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m nl2sql_trl.prepare",
        description="Check a data set before training on it, and write the gold report.",
    )
    parser.add_argument("--data", required=True, metavar="DATA",
                        help="Spider folder, questions file, or pocket")  # fmt: skip
    parser.add_argument("--split", choices=[*SPLIT_FILES, "both"], default="both")
    parser.add_argument("--out", type=Path, default=Path("gold_report.json"), metavar="FILE",
                        help="where the JSON report goes (default: %(default)s)")  # fmt: skip
    args = parser.parse_args(argv)
    splits = list(SPLIT_FILES) if args.split == "both" else [args.split]
    try:
        # Told before the work, not after it.
        if not args.out.parent.is_dir() or args.out.is_dir():
            raise DataError(f"the report cannot be written to {args.out}: give a file's path")
        found = report(args.data, splits)
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    except (DataError, DatabaseError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    print(printed(found))
    print(f"report: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
