"""Copies of databases under other names, so that training teaches to read the schema.

    python -m nl2sql_trl.renamed --data DIR --split fit --out OUT

A small model that trains on a hundred databases learns their names by heart, and on a new one it
writes names that are not there. Here every few questions get a copy of their database in which
tables and columns are called otherwise, in another order, and of a long schema some tables that
the questions do not need are gone. What a name stands for can still be read from it
(`singer_name`, `SingerName`, `tbl_sngr`), and the gold queries are rewritten with it.

Each copy is checked by execution: a gold must return there what it returns on the original; a
question whose gold does not stays on the original, as do all of a database that cannot be copied.
OUT/questions.jsonl, a questions file that `--data` takes everywhere, holds them as its train rows
and the `holdout` rows, as they are, as its dev rows.

Nothing is renamed in questions or in values, and no query is made that was not there.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import sqlite3
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nl2sql_trl.data import DataError, load
from nl2sql_trl.database import GOLD_LIMITS, DatabaseError, connect, execute
from nl2sql_trl.goldtext import tokens
from nl2sql_trl.records import Example
from nl2sql_trl.runs import write_jsonl

AS_IT_IS = 0.25  # of the copies keep their names: real schemas are read too
LONG = 1_600  # characters of CREATE TABLE statements from which on tables are left out
_KEPT = 0.3  # of the tables that no question needs, where a schema is long

# Words that mean something in SQL or in a column's type are no names to be changed.
KEYWORDS = frozenset(
    """select from where and or not in as on join group by having order asc desc limit distinct
    union intersect except between like count sum avg min max null is with case when then else end
    create table primary key foreign references constraint unique default check cascade collate
    autoincrement without rowid update delete set exists left right inner outer natural cross
    int integer bigint smallint tinyint text real float double precision numeric decimal number
    char varchar varchar2 bool boolean bit date datetime time timestamp blob year unsigned
    """.split()  # noqa: SIM905
)
# What people write for a word in a schema.
_SHORT = {
    word: others.split()
    for word, others in {
        "id": "id key code no ident", "name": "name title label nm", "number": "number num no nr",
        "code": "code cd key", "date": "date day dt", "description": "description descr details",
        "details": "details info descr", "address": "address addr", "department": "department dept",
        "amount": "amount amt total", "quantity": "quantity qty", "country": "country nation ctry",
        "first": "first fst given", "last": "last lst family", "type": "type kind category",
        "city": "city town", "state": "state province region", "phone": "phone tel telephone",
        "email": "email mail", "age": "age years", "student": "student stu pupil",
        "employee": "employee emp staff", "customer": "customer cust client", "year": "year yr",
        "product": "product prod item", "document": "document doc", "location": "location loc",
        "capacity": "capacity cap", "price": "price cost", "place": "place spot",
        "status": "status state", "title": "title caption", "course": "course class",
        "company": "company firm", "order": "order ord", "reference": "reference ref",
    }.items()
}  # fmt: skip
_STYLES = {
    "snake": lambda words: "_".join(words).lower(),
    "Snake": lambda words: "_".join(word.capitalize() for word in words),
    "UPPER": lambda words: "_".join(words).upper(),
    "camel": lambda words: words[0].lower() + "".join(word.capitalize() for word in words[1:]),
    "Pascal": lambda words: "".join(word.capitalize() for word in words),
    "flat": lambda words: "".join(words).lower(),
}
_AROUND = {
    "table": [("", ""), ("", "s"), ("tbl", ""), ("t", ""), ("", "info"), ("", "data"),
              ("", "list"), ("", "records"), ("all", ""), ("", "table")],
    "column": [("", ""), ("", ""), ("", ""), ("", "value"), ("col", ""), ("the", ""), ("", "txt")],
}  # fmt: skip
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@dataclass(frozen=True, slots=True)
class Tables:
    """A database's user tables by name: their statement, columns and the tables they refer to."""

    sql: dict[str, str]
    columns: dict[str, list[str]]
    refers: dict[str, set[str]]


def read_tables(connection: sqlite3.Connection) -> Tables:
    """The user tables of an open database; names are as their statements write them."""
    rows = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND sql IS NOT NULL "
        "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    ).fetchall()
    sql = dict(rows)
    known = {name.lower(): name for name in sql}
    columns = {
        n: [r[1] for r in connection.execute(f"PRAGMA table_info({_quoted(n)})")] for n in sql
    }
    refers = {
        n: {
            known[r[2].lower()]
            for r in connection.execute(f"PRAGMA foreign_key_list({_quoted(n)})")
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
    said = {word for gold in golds for word in words(gold)}
    kept: set[str] = set()
    todo = [n for n in names if n.lower() in said or rng.random() < _KEPT]
    while todo:
        name = todo.pop()
        if name not in kept:
            kept.add(name)
            todo += tables.refers[name]
    return [name for name in names if name in kept]


def words(sql: str) -> set[str]:
    """What could be a name in a statement, in lower case."""
    return {token.text.strip('"`[]').lower() for token in tokens(sql)}


def by_tables(examples: Sequence[Example]) -> list[Example]:
    """Questions on one database, those that need the same tables side by side."""
    with contextlib.closing(connect(examples[0].db_path)) as connection:
        names = {name.lower() for name in read_tables(connection).sql}
    return sorted(examples, key=lambda example: sorted(words(example.gold) & names))


def as_written(tables: Tables) -> dict[str, str]:
    """Each name as the schema writes it, by its lower case: golds often write it otherwise."""
    every = [*tables.sql, *(column for columns in tables.columns.values() for column in columns)]
    return {name.lower(): name for name in every if name.lower() not in KEYWORDS}


def new_names(tables: Tables, rng: random.Random) -> dict[str, str]:
    """Another name for each table and column, by the lower-case old one; no two are alike.

    Columns of one name keep one name, so that what joined still joins.
    """
    style = rng.choice(list(_STYLES.values()))
    shown = {c.lower(): (c, "column") for columns in tables.columns.values() for c in columns}
    shown |= {t.lower(): (t, "table") for t in tables.sql}
    around = {kind: rng.choice(choices) for kind, choices in _AROUND.items()}
    found: dict[str, str] = {}
    taken = set(KEYWORDS)
    for old in sorted(shown):
        name, kind = shown[old]
        if old in KEYWORDS or not re.fullmatch(r"[A-Za-z_]\w*", name):
            taken.add(old)
            continue
        new = style(_changed(name, around[kind], rng))
        while new.lower() in taken or not re.fullmatch(r"[A-Za-z_]\w*", new):
            new = f"{new}{rng.randint(2, 9)}" if new[:1].isalpha() else f"x{new}"
        found[old] = new
        taken.add(new.lower())
    return found


def _changed(name: str, around: tuple[str, str], rng: random.Random) -> list[str]:
    """The words of a name, some of them written otherwise, with what stands around them."""
    words = [word.lower() for word in _WORD.findall(name)] or [name]
    words = [rng.choice(_SHORT.get(word, [word])) for word in words]
    if rng.random() < 0.2:
        at = rng.randrange(len(words))
        words[at] = _abbreviated(words[at])
    before, after = around
    if after == "s":
        words[-1] = words[-1].removesuffix("s") if words[-1].endswith("s") else f"{words[-1]}s"
        after = ""
    return [word for word in (before, *words, after) if word]


def _abbreviated(word: str) -> str:
    """A long word without the vowels inside it."""
    return word if len(word) < 5 else word[0] + re.sub("[aeiou]", "", word[1:])


def rewritten(sql: str, names: Mapping[str, str], *, schema: bool = False) -> str:
    """A statement with other names; strings stay, and so do functions but in a `schema`."""
    parts, end = [], 0
    found = tokens(sql)
    for n, token in enumerate(found):
        text = sql[token.start : token.end]
        called = n + 1 < len(found) and found[n + 1].text == "("
        if token.kind == "quoted" and len(text) > 1:
            new = names.get(text[1:-1].lower())
            new = None if new is None else text[0] + new + text[-1]
        elif token.kind == "word" and (schema or not called):
            new = names.get(text.lower())
        else:
            new = None
        parts += [sql[end : token.start], text if new is None else new]
        end = token.end
    return "".join(parts) + sql[end:]


def copy(source: Path, target: Path, golds: Sequence[str], rng: random.Random) -> dict[str, str]:
    """Write a copy of a database to `target`; returns its new names.

    Raises sqlite3.Error if it cannot be copied so.
    """
    with contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as old:
        tables = read_tables(old)
    names = as_written(tables) if rng.random() < AS_IT_IS else new_names(tables, rng)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(target, uri=True)) as new:
        new.execute("PRAGMA foreign_keys = OFF")
        new.execute("ATTACH ? AS old", (f"file:{source}?mode=ro",))
        for name in chosen(tables, golds, rng):
            new.execute(rewritten(tables.sql[name], names, schema=True))
            there = _quoted(names.get(name.lower(), name))
            new.execute(f"INSERT INTO main.{there} SELECT * FROM old.{_quoted(name)}")
        new.commit()
        new.execute("DETACH old")
    return names


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def same_rows(source: Path, gold: str, target: Path, changed: str) -> bool:
    """Whether a gold returns on the copy what it returns on the original."""
    before, after = execute(source, gold, GOLD_LIMITS), execute(target, changed, GOLD_LIMITS)
    return before.outcome == after.outcome == "ok" and before.rows == after.rows


def renamed(
    examples: Sequence[Example], out: Path, *, size: int = 8, seed: int = 0, progress: bool = True
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Rows of a questions file in `out`, `size` on a copy, and how many are on what.

    Databases go to `out`/databases. Raises DatabaseError for an original that cannot be read.
    """
    from tqdm import tqdm

    rng = random.Random(seed)
    by_database: dict[Path, list[Example]] = {}
    for example in rng.sample(list(examples), len(examples)):
        by_database.setdefault(example.db_path, []).append(example)
    rows: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    with tqdm(total=len(examples), desc="copies", unit="row", disable=not progress) as bar:
        for source, group in sorted(by_database.items()):
            ordered = by_tables(group)
            for at in range(0, len(group), size):
                part = ordered[at : at + size]
                target = out / "databases" / f"{group[0].db_id}_{at // size}.sqlite"
                golds = [example.gold for example in part]
                try:
                    names = copy(source.resolve(), target, golds, rng)
                except sqlite3.Error:
                    target.unlink(missing_ok=True)
                    names = None
                used = "original"
                for example in part:
                    gold, path = example.gold, source
                    changed = None if names is None else rewritten(gold, names)
                    if changed and same_rows(source, gold, target, changed):
                        gold, path = changed, target
                        used = "copy"
                    counts["on copies" if path == target else "on originals"] += 1
                    rows.append(row(example, gold, path, out, "train"))
                if used == "original":
                    target.unlink(missing_ok=True)
                counts["copies"] += used == "copy"
                bar.update(len(part))
    return rows, counts


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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True, type=Path, help="folder for the file and databases")
    options = parser.parse_args(argv)
    try:
        if options.size < 1:
            raise DataError(f"--size must be at least 1, not {options.size}")
        examples = load(options.data, options.split)
        held = load(options.data, "holdout" if options.split == "fit" else "dev")
        options.out.mkdir(parents=True, exist_ok=True)
        rows, counts = renamed(examples, options.out, size=options.size, seed=options.seed)
        rows += [row(e, e.gold, e.db_path, options.out, "dev") for e in held]
        write_jsonl(options.out / "questions.jsonl", rows)
    except (DataError, DatabaseError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    print(
        f"{counts['on copies']:,} rows on {counts['copies']:,} copies, {counts['on originals']:,} "
        f"on their originals, {len(held):,} dev rows: {options.out / 'questions.jsonl'}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
