"""The command: a test suite for the databases of a gold file.

    python -m nl2sql_trl.suite --db DIR --gold FILE --out OUT
    python -m nl2sql_trl.suite --data shop.csv --out OUT
    python -m nl2sql_trl.suite --data DIR --split fit --out OUT

DIR holds ``<db_id>/<db_id>.sqlite``, FILE one ``SQL<TAB>db_id`` a line (Spider's gold format).
`--data` takes databases and golds from a questions file (see ``questions.py``) or a folder in
Spider's layout, of both splits or of one.
OUT gets the official layout, a copy of each base and random databases beside it, so that
``python -m nl2sql_trl.score --db OUT`` scores on them, and ``suite.json`` with the counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nl2sql_trl import questions
from nl2sql_trl.data import DataError, load
from nl2sql_trl.launch import guarded
from nl2sql_trl.spider.cases import read_golds
from nl2sql_trl.suite.build import SIZE, build_suite


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m nl2sql_trl.suite", description="Build a test suite for databases."
    )
    add = parser.add_argument
    add("--db", type=Path, help="folder with <db_id>/<db_id>.sqlite")
    add("--gold", type=Path, help="file with one SQL<TAB>db_id a line")
    add("--data", type=Path, help="Spider-layout folder or questions file, not --db and --gold")
    add("--split", choices=["train", "dev", "fit", "holdout"], help="of --data (default: all)")
    add("--out", type=Path, required=True, help="folder to make")
    add("--seed", type=int, default=0, help="another seed gives another suite (default 0)")
    add("--size", type=int, default=SIZE, help=f"files beside a base at most (default {SIZE})")
    args = parser.parse_args(argv)
    if (args.data is None) == (args.db is None) or (args.db is None) != (args.gold is None):
        parser.error("give --db and --gold, or --data")
    if args.split and args.data is None:
        parser.error("--split goes with --data")
    with guarded():
        if args.data:
            paths, golds = _read_data(args.data, args.split)
        else:
            golds = _read_golds(args.gold)
            paths = {db_id: args.db / db_id / f"{db_id}.sqlite" for db_id in golds}
        manifest = build_suite(paths, golds, args.out, args.seed, args.size)
    print(_table(manifest))
    left = [(db_id, gold) for db_id, row in manifest["databases"].items()
            for gold in row["golds_left_out"]]  # fmt: skip
    if left:
        print(f"{len(left)} golds do not run within the limits and are left out:")
        for db_id, gold in left:
            print(f"  {db_id}: {gold[:200]}")


def _read_data(data: Path, split: str | None) -> tuple[dict[str, Path], dict[str, list[str]]]:
    golds: dict[str, list[str]] = {}
    if split is None and questions.is_questions(data):
        examples = questions.read(data)
    else:
        parts = [split] if split else ["train", "dev"]
        examples = [example for part in parts for example in load(data, part)]
    for example in examples:
        golds.setdefault(example.db_id, []).append(example.gold)
    return {example.db_id: example.db_path for example in examples}, golds


def _read_golds(path: Path) -> dict[str, list[str]]:
    golds: dict[str, list[str]] = {}
    try:
        for gold, db_id in read_golds(path):
            golds.setdefault(db_id, []).append(gold)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    if not golds:
        raise DataError(f"{path} holds no golds: give one SQL<TAB>db_id a line")
    return golds


def _table(manifest: Mapping[str, Any]) -> str:
    """The counts, one line a database."""
    heads = ("golds", "neighbours", "told_apart", "only_by_the_base", "never", "files")
    lines = ["".ljust(32) + "".join(head.rjust(18) for head in heads)]
    for db_id, row in manifest["databases"].items():
        cells = [len(row["files"]) if head == "files" else row[head] for head in heads]
        lines.append(db_id.ljust(32) + "".join(f"{cell:18}" for cell in cells))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
