"""Reads questions of your own: a CSV, JSON or JSON-lines file that names SQLite files.

    question,query,database,split
    How many customers are there?,SELECT count(*) FROM customer,shop.sqlite,train

`question` and `query` (the gold SQL) are needed in every row. `database` is the path of a SQLite
file, relative to the questions file. A row without it is on the file that lies beside the questions
file: the one of the same name, else the only one. `split` is train or dev; in a file without it
every fifth row is dev. Other columns are ignored. A JSON file is a list of objects, a JSON-lines
file has one a line, and a CSV file is separated by commas and quoted as RFC 4180 has it.

A database's db_id is the name of its file, with the folders before it where two names are alike.

No query is run here: `python -m nl2sql_trl.prepare` does, and says which golds are broken.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from nl2sql_trl.datafiles import (
    DataError,
    check_database,
    checked_object,
    checked_text,
    is_file,
    read_csv,
    read_json_rows,
    read_text,
)
from nl2sql_trl.records import Example, normalise

SUFFIXES = (".csv", ".json", ".jsonl")
DATABASE_SUFFIXES = (".sqlite", ".sqlite3", ".db")
_NEEDED, _OPTIONAL = ("question", "query"), ("database", "split")
_DEV_EVERY = 5  # without a split column, one row in so many is dev

Record = tuple[str, dict[str, Any]]  # the place of a row, as errors name it, and its fields


def is_questions(path: Path) -> bool:
    """Whether a path has the name of a questions file, be it there or not."""
    return path.suffix.lower() in SUFFIXES and not path.is_dir()


def load(file: Path, split: str) -> list[Example]:
    """The rows of a split of a questions file, `Example.row` being their position in the file.

    Says on standard output, once, if the file has no split column, and on standard error if a
    question stands on both sides of the split. Raises DataError, naming the row.
    """
    examples = [example for example in read(file) if example.split == split]
    if not examples:
        raise DataError(
            f"{file} has no {split} rows: give some rows {split!r} in a split column "
            f"(without one, every {_DEV_EVERY}th row is dev)"
        )
    return examples


def database_files(file: Path) -> list[Path]:
    """The SQLite files that a questions file is on, in the order in which it names them."""
    return list(dict.fromkeys(example.db_path for example in read(file)))


def read(file: Path) -> list[Example]:
    """All rows of a questions file. See `load`."""
    if not is_questions(file) or not file.exists():
        known = ", ".join(SUFFIXES)
        raise DataError(f"there is no questions file {file}: its name must end in one of {known}")
    records = list(_READERS[file.suffix.lower()](file))
    if not records:
        raise DataError(f"{file} holds no rows")
    texts = [
        {name: checked_text(record, name, place) for name in _NEEDED} for place, record in records
    ]
    splits = _splits(file, records)
    # By the resolved path: one file may be named in several ways.
    paths = [_database(file, place, record) for place, record in records]
    resolved = [path.resolve() for path in paths]
    first: dict[Path, Path] = {}
    for path, same in zip(paths, resolved, strict=True):
        first.setdefault(same, path)
    for path in first.values():
        _check(path)
    names = _db_ids(file, list(dict.fromkeys(resolved)))
    examples = [
        Example(row, split, text["question"], text["query"], names[path], first[path])
        for row, (split, text, path) in enumerate(zip(splits, texts, resolved, strict=True))
    ]
    _warn_of_shared(file, examples)
    return examples


def _csv_rows(file: Path) -> Iterator[Record]:
    header, rows = read_csv(file)
    _check_fields(header, f"{file}, header")
    for line, record in rows:
        # A cell that is left empty is one that isn't there.
        kept = {k: v for k, v in record.items() if v.strip() or k not in _OPTIONAL}
        yield f"{file}, line {line}", kept


def _check_fields(names: Iterable[str], place: str) -> None:
    for needed in _NEEDED:
        if needed not in names:
            there = {name.strip().lower(): name for name in names}
            near = difflib.get_close_matches(needed, there, 1)
            hint = f" (is it {there[near[0]]!r}?)" if near else ""
            raise DataError(
                f"{place}: no {needed!r}{hint}: a row needs question and query, and may have "
                f"database and split; here is {', '.join(map(repr, there.values())) or 'nothing'}"
            )


def _json_rows(file: Path) -> Iterator[Record]:
    for row, record in enumerate(read_json_rows(file)):
        yield _object(record, f"{file}, row {row}")


def _jsonl_rows(file: Path) -> Iterator[Record]:
    for number, line in enumerate(read_text(file).split("\n"), 1):
        if not line.strip():
            continue
        place = f"{file}, line {number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{place}, column {error.colno}: no JSON ({error.msg})") from error
        except (RecursionError, ValueError) as error:
            raise DataError(f"{place} cannot be read as JSON ({error})") from error
        yield _object(record, place)


def _object(record: Any, place: str) -> Record:
    record = checked_object(record, place)
    _check_fields(record, place)
    return place, {k: v for k, v in record.items() if v is not None or k not in _OPTIONAL}


_READERS = {".csv": _csv_rows, ".json": _json_rows, ".jsonl": _jsonl_rows}


def _splits(file: Path, records: Sequence[Record]) -> list[str]:
    if not any("split" in record for _, record in records):
        splits = ["train" if n % _DEV_EVERY else "dev" for n in range(1, len(records) + 1)]
        _say(
            file,
            f"{file.name} has no split column: every {_DEV_EVERY}th row is dev "
            f"({splits.count('train')} train, {splits.count('dev')} dev)",
        )
        return splits
    found = []
    for place, record in records:
        split = record.get("split")
        if split not in ("train", "dev"):
            said = "no split" if split is None else f"split {split!r}"
            raise DataError(f"{place}: {said}: give train or dev in every row, or in none")
        found.append(split)
    return found


def _database(file: Path, place: str, record: dict[str, Any]) -> Path:
    if "database" in record:
        named = checked_text(record, "database", place)
        path = file.parent / Path(named).expanduser()
        if not is_file(path):
            near = difflib.get_close_matches(path.name, _sqlite_files(path.parent), 1)
            hint = f"did you mean {near[0]!r}?" if near else "its path is relative to this file"
            raise DataError(f"{place}: there is no database {named!r}: {hint}")
        return path
    beside = _sqlite_files(file.parent)
    same = [name for name in beside if Path(name).stem == file.stem]
    chosen = same or beside
    if len(chosen) != 1:
        seen = f"there are {', '.join(chosen)}" if chosen else "there is none"
        spider = " (to read a Spider folder, give the folder)" if "db_id" in record else ""
        raise DataError(
            f"{place}: no database, and not one SQLite file beside {file.name} but {seen}: "
            f"name one in a database column{spider}"
        )
    return file.parent / chosen[0]


def _sqlite_files(folder: Path) -> list[str]:
    return sorted(
        path.name
        for path in (folder.iterdir() if folder.is_dir() else ())
        if path.suffix.lower() in DATABASE_SUFFIXES and path.is_file()
    )


def _check(path: Path) -> None:
    check_database(path)
    for mark in ("-wal", "-journal"):
        log = path.with_name(path.name + mark)
        # It is read as it lies there: what a program has not written back would be missing.
        if log.is_file() and log.stat().st_size:
            raise DataError(
                f"{log.name} beside {path} holds changes that are not in the database yet: close "
                "the program that uses it, or work on a copy made with sqlite3's .backup"
            )


def _db_ids(file: Path, paths: Sequence[Path]) -> dict[Path, str]:
    """A name for each file: its stem, and as many folders before it as tell it from the others."""
    depth = dict.fromkeys(paths, 0)
    while True:
        names = {
            path: "-".join([*path.parent.parts[1:][::-1][:count][::-1], path.stem])
            for path, count in depth.items()
        }
        # Without regard to case: a db_id is a folder's name in a test suite.
        counts = Counter(name.lower() for name in names.values())
        alike = [path for path, name in names.items() if counts[name.lower()] > 1]
        if not alike:
            return names
        if any(depth[path] > len(path.parts) for path in alike):
            raise DataError(
                f"{file}: {alike[0]} and {alike[1]} cannot be told apart by name: rename one"
            )
        for path in alike:
            depth[path] += 1


def _warn_of_shared(file: Path, examples: Sequence[Example]) -> None:
    groups: defaultdict[tuple[str, str], list[Example]] = defaultdict(list)
    for example in examples:
        groups[example.db_id, normalise(example.question).lower()].append(example)
    shared = [group for group in groups.values() if len({e.split for e in group}) > 1]
    if shared:
        rows = " and ".join(str(example.row) for example in shared[0][:2])
        _say(
            file,
            f"warning: {file.name} has questions that stand in train and in dev ({len(shared)}), "
            f"{shared[0][0].question!r} for one (rows {rows}): dev then measures memory",
            error=True,
        )


@cache  # a file is read once a split, and again for its hashes
def _say(file: Path, text: str, error: bool = False) -> None:
    """Say something on a file, once."""
    print(text, file=sys.stderr if error else sys.stdout, flush=True)
