"""Copies of databases under other names, so that training teaches to read the schema.

    python -m nl2sql_trl.renamed --data DIR --split fit --out OUT

A small model that trains on a hundred databases learns their names by heart, and on a new one it
writes names that are not there. Here every few questions get a copy of their database in which
tables and columns are called otherwise, and of a long schema some tables that the questions do not
need are gone. What a name stands for can still be read from it (`singer_name`, `SingerName`,
`tbl_sngr`), and the gold queries are rewritten with it. A quarter of the copies keep their names,
which their golds then write as the schema does.

Each copy is checked by execution: a gold must return there what it returns on the original; a
question whose gold does not stays on the original, as do all of a database that cannot be copied.
OUT/questions.jsonl, a questions file that `--data` takes everywhere, holds them as its train rows;
its dev rows are `holdout`'s as they are, or with `--split train` dev's.

Nothing is renamed in questions or in values, and no query is made that was not there.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sqlite3
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nl2sql_trl.data import DataError, load
from nl2sql_trl.database import GOLD_LIMITS, DatabaseError, connect, execute, unreadable
from nl2sql_trl.records import Example
from nl2sql_trl.renaming import Tables, as_written, mentioned, new_names, rewritten
from nl2sql_trl.runs import write_jsonl
from nl2sql_trl.suite.shape import quoted

AS_IT_IS = 0.25  # of the copies keep their names: real schemas are read too
LONG = 1_600  # characters of CREATE TABLE statements from which on tables are left out
LARGEST = 50_000_000  # bytes of a database that is copied
_KEPT = 0.3  # of the tables that no question needs, where a schema is long


def read_tables(path: Path) -> Tables:
    """The user tables of a database; names are as their statements write them.

    Raises DatabaseError if the file cannot be read as a database.
    """
    with contextlib.closing(connect(path)) as connection:
        try:
            return _read_tables(connection)
        except sqlite3.Error as error:
            raise unreadable(path, error) from error


def _read_tables(connection: sqlite3.Connection) -> Tables:
    rows = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND sql IS NOT NULL "
        "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    ).fetchall()
    sql = dict(rows)
    known = {name.lower(): name for name in sql}
    columns = {
        n: [r[1] for r in connection.execute(f"PRAGMA table_info({quoted(n)})")] for n in sql
    }
    refers = {
        n: {
            known[r[2].lower()]
            for r in connection.execute(f"PRAGMA foreign_key_list({quoted(n)})")
            if r[2].lower() in known
        }
        for n in sql
    }
    return Tables(sql, columns, refers)


def chosen(tables: Tables, golds: Sequence[str], rng: random.Random) -> list[str]:
    """The tables of a copy, in any order: all, or of a long schema those needed and some more.

    What a gold names is needed, and what a needed table refers to.
    """
    names = list(tables.sql)
    rng.shuffle(names)
    if sum(map(len, tables.sql.values())) <= LONG:
        return names
    said = {word for gold in golds for word in mentioned(gold)}
    kept: set[str] = set()
    todo = [n for n in names if n.lower() in said or rng.random() < _KEPT]
    while todo:
        name = todo.pop()
        if name not in kept:
            kept.add(name)
            todo += tables.refers[name]
    return [name for name in names if name in kept]


def by_tables(examples: Sequence[Example], tables: Tables) -> list[Example]:
    """Questions on one database, those that need the same tables side by side."""
    names = {name.lower() for name in tables.sql}
    return sorted(examples, key=lambda example: sorted(mentioned(example.gold) & names))


def copy(
    source: Path, tables: Tables, target: Path, golds: Sequence[str], rng: random.Random
) -> dict[str, str]:
    """Write a copy of a database with these tables to `target`; returns its new names.

    Raises sqlite3.Error if it cannot be copied so.
    """
    names = as_written(tables) if rng.random() < AS_IT_IS else new_names(tables, rng)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(target.resolve().as_uri(), uri=True)) as new:
        new.execute("ATTACH ? AS old", (f"{source.resolve().as_uri()}?mode=ro",))
        for name in chosen(tables, golds, rng):
            new.execute(rewritten(tables.sql[name], names, schema=True))
            there = quoted(names.get(name.lower(), name))
            new.execute(f"INSERT INTO main.{there} SELECT * FROM old.{quoted(name)}")
        new.commit()
        new.execute("DETACH old")
    return names


def same_rows(source: Path, gold: str, target: Path, changed: str) -> bool:
    """Whether a gold returns on the copy what it returns on the original."""
    before, after = execute(source, gold, GOLD_LIMITS), execute(target, changed, GOLD_LIMITS)
    return before.outcome == after.outcome == "ok" and before.rows == after.rows


def renamed(
    examples: Sequence[Example],
    out: Path,
    *,
    size: int = 8,
    copies: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Rows of a questions file in `out`, `size` on a copy, and how many are on what.

    copies: that many, drawn by `seed`, with their questions (default: all). Databases go to
    `out`/databases. Raises DatabaseError for an original that cannot be read.
    """
    from tqdm import tqdm

    rng = random.Random(seed)
    by_database: dict[Path, list[Example]] = {}
    for example in rng.sample(list(examples), len(examples)):
        by_database.setdefault(example.db_path, []).append(example)
    parts: list[tuple[Tables, int, list[Example]]] = []
    for source, group in sorted(by_database.items()):
        tables = read_tables(source)
        ordered = by_tables(group, tables)
        starts = range(0, len(group), size)
        parts += [(tables, n, ordered[at : at + size]) for n, at in enumerate(starts)]
    if copies is not None and copies < len(parts):
        drawn = sorted(random.Random(seed).sample(range(len(parts)), copies))
        parts = [parts[n] for n in drawn]
    rows: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    total = sum(len(part) for *_, part in parts)
    with tqdm(total=total, desc="copies", unit="row", disable=not progress) as bar:
        for tables, n, part in parts:
            source = part[0].db_path
            target = out / "databases" / f"{part[0].db_id}_{n}.sqlite"
            moved = _moved(part, tables, target, rng)
            for example in part:
                path = target if example in moved else source
                rows.append(row(example, moved.get(example, example.gold), path, out, "train"))
            counts["copies"] += bool(moved)
            counts["on copies"] += len(moved)
            counts["on originals"] += len(part) - len(moved)
            bar.update(len(part))
    return rows, counts


def _moved(
    part: Sequence[Example], tables: Tables, target: Path, rng: random.Random
) -> dict[Example, str]:
    """The rewritten golds of the questions that could be moved to a copy; without any, no copy."""
    source = part[0].db_path
    found = {}
    if source.stat().st_size <= LARGEST:
        with contextlib.suppress(sqlite3.Error):
            names = copy(source, tables, target, [example.gold for example in part], rng)
            changed = {example: rewritten(example.gold, names) for example in part}
            found = {e: g for e, g in changed.items() if same_rows(source, e.gold, target, g)}
    if not found:
        target.unlink(missing_ok=True)
    return found


def row(example: Example, gold: str, path: Path, out: Path, split: str) -> dict[str, str]:
    """A row of a questions file in `out`."""
    database = os.path.relpath(path.resolve(), out.resolve())
    return {"question": example.question, "query": gold, "database": database, "split": split}


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m nl2sql_trl.renamed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", required=True, help="pocket, a Spider-layout folder, or a file")
    parser.add_argument("--split", default="fit", choices=["train", "fit"])
    parser.add_argument("--size", type=int, default=8, help="questions on a copy (default: 8)")
    parser.add_argument("--copies", type=int, help="how many, drawn by the seed (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True, type=Path, help="folder for the file and databases")
    options = parser.parse_args(argv)
    try:
        for name in ("size", "copies"):
            if (given := getattr(options, name)) is not None and given < 1:
                raise DataError(f"--{name} must be at least 1, not {given}")
        file = options.out / "questions.jsonl"
        if file.resolve() == Path(options.data).resolve():
            raise DataError(f"--out {options.out} would write over {options.data}: give another")
        examples = load(options.data, options.split)
        held = load(options.data, "holdout" if options.split == "fit" else "dev")
        options.out.mkdir(parents=True, exist_ok=True)
        limits = {"size": options.size, "copies": options.copies, "seed": options.seed}
        rows, counts = renamed(examples, options.out, **limits)
        rows += [row(e, e.gold, e.db_path, options.out, "dev") for e in held]
        write_jsonl(file, rows)
    except (DataError, DatabaseError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    print(
        f"{counts['on copies']:,} rows on {counts['copies']:,} copies, {counts['on originals']:,} "
        f"on their originals, {len(held):,} dev rows: {file}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
