"""Reads text-to-SQL data into Examples: `pocket`, a Spider-layout folder, or a file of your own.

`pocket` is the project's own small collection, built from the package's SQL scripts into the cache
on first use. A Spider folder is `train_spider.json`, `dev.json` and
`database/<db_id>/<db_id>.sqlite`; a row needs `question`, `query` and `db_id`, anything else in it
is ignored. Questions of your own stand in a CSV, JSON or JSON-lines file: see `questions.py`.

Whatever is wrong with the user's files is a DataError that says where and what to do. No query
is run here, so a gold query may still be broken: see `gold.py`.
"""

from __future__ import annotations

import hashlib
import sqlite3
import tempfile
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql_trl import questions
from nl2sql_trl.datafiles import DataError as DataError
from nl2sql_trl.datafiles import (
    check_database,
    checked_object,
    checked_text,
    is_file,
    read_json_rows,
)
from nl2sql_trl.models import cache_dir
from nl2sql_trl.records import Example, Prompt

if TYPE_CHECKING:
    from datasets import Dataset

POCKET = "pocket"
SPLIT_FILES = {"train": "train_spider.json", "dev": "dev.json"}
# Two parts of train, apart by database: what settings are chosen on must not be dev.
PARTS = ("fit", "holdout")
_HELD_OUT = 10  # one database in so many
_FIELDS = ("question", "query", "db_id")
_NAMED = 5  # how many missing databases an error names


def data_folder(data: str | Path) -> Path:
    """What `data` names: the folder or the file itself, or the built folder for "pocket".

    A folder of your own that is called pocket is `./pocket`.
    """
    return pocket_dir() if data == POCKET else Path(data).expanduser()


def load(data: str | Path, split: str) -> list[Example]:
    """The rows of a split ("train" or "dev") of "pocket", a Spider-layout folder or your own file.

    "fit" and "holdout" are parts of train that share no database: about a tenth of its databases,
    by a hash of their names, is held out. `Example.row` is the position in the file, from 0. Every
    database is there and, as far as its header and size show, whole. Raises DataError for anything
    else.
    """
    if split in PARTS:
        held_out = split == "holdout"
        part = [e for e in load(data, "train") if _is_held_out(e.db_id) == held_out]
        if not part:
            raise DataError(f"{data} has too few train databases for a part {split!r}: use train")
        return part
    if split not in SPLIT_FILES:
        known = ", ".join((*SPLIT_FILES, *PARTS))
        raise DataError(f"there is no split {split!r}: give one of {known}")
    folder = data_folder(data)
    if questions.is_questions(folder):
        return questions.load(folder, split)
    if not folder.is_dir():
        raise DataError(
            f"there is no data folder {folder}: give the folder that holds "
            f"{SPLIT_FILES[split]} and database/, a file of questions "
            f"({', '.join(questions.SUFFIXES)}), or {POCKET}"
        )
    file = folder / SPLIT_FILES[split]
    if not file.exists():
        raise DataError(
            f"{file} is missing: the folder is not in Spider's layout or only partly "
            "downloaded; download it again"
        )
    records = [_checked(record, file, row) for row, record in enumerate(read_json_rows(file))]
    if not records:
        raise DataError(f"{file} holds no rows: download it again")
    paths = {
        db_id: folder / "database" / db_id / f"{db_id}.sqlite"
        for db_id in dict.fromkeys(record["db_id"] for record in records)
    }
    _check_databases(folder, file, paths)
    return [
        Example(row, split, record["question"], record["query"], record["db_id"],
                paths[record["db_id"]])
        for row, record in enumerate(records)
    ]  # fmt: skip


def _is_held_out(db_id: str) -> bool:
    return int(hashlib.sha256(db_id.encode()).hexdigest(), 16) % _HELD_OUT == 0


def row_key(example: Example) -> str:
    """The name of a row in a dataset and in reports, `<split>:<row>`."""
    return f"{example.split}:{example.row}"


def to_dataset(examples: Sequence[Example], prompts: Iterable[Prompt]) -> Dataset:
    """A dataset for TRL with the columns `prompt` (chat messages), `row_key` and `db_id`.

    TRL hands a rollout function the messages alone, so the last user message carries the row's
    key as well; the other messages have an empty one, since Arrow needs the same keys in all.
    Raises ValueError if there are not as many prompts as examples.
    """
    from datasets import Dataset

    rows = [
        {"prompt": _keyed(prompt, row_key(example)), "row_key": row_key(example),
         "db_id": example.db_id}
        for example, prompt in zip(examples, prompts, strict=True)
    ]  # fmt: skip
    return Dataset.from_list(rows)


def _keyed(prompt: Prompt, key: str) -> list[dict[str, str]]:
    users = [n for n, message in enumerate(prompt.messages) if message["role"] == "user"]
    return [
        {
            "role": message["role"],
            "content": message["content"],
            "row_key": key if n == users[-1] else "",
        }
        for n, message in enumerate(prompt.messages)
    ]


def _checked(record: Any, file: Path, row: int) -> dict[str, str]:
    place = f"{file}, row {row}"
    record = checked_object(record, place)
    found = {}
    for name in _FIELDS:
        if name not in record:
            raise DataError(f"{place}: no {name!r}: a row needs question, query and db_id")
        found[name] = checked_text(record, name, place)
    if any(part in found["db_id"] for part in ("/", "\\", "..", "\0")) or found["db_id"] == ".":
        raise DataError(
            f"{place}: db_id {found['db_id']!r} leads out of the database folder: "
            "a db_id is the plain name of a folder in database/"
        )
    return found


def _check_databases(folder: Path, file: Path, paths: dict[str, Path]) -> None:
    again = f"{folder} is only partly downloaded; download it again, or mend {file.name}"
    if not (folder / "database").is_dir():
        raise DataError(f"{folder} has no database/ folder: {again}")
    missing = [db_id for db_id, path in paths.items() if not is_file(path)]
    if missing:
        names = ", ".join(map(repr, missing[:_NAMED])) + (", ..." if missing[_NAMED:] else "")
        raise DataError(
            f"{file}: {len(missing)} of {len(paths)} databases have no file "
            f"database/<db_id>/<db_id>.sqlite in {folder}: {names}: {again}"
        )
    for path in paths.values():
        check_database(path)


def pocket_dir() -> Path:
    """The embedded collection as a Spider-layout folder in the cache, built on the first call.

    The folder's name holds a hash of the package's files, so a new version is built anew. It
    appears whole or not at all, also when several processes build it at once.
    """
    package = resources.files("nl2sql_trl") / POCKET
    files = {
        entry.name: entry.read_bytes()
        for entry in sorted(package.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith((".sql", ".json"))
    }
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    target = cache_dir() / f"{POCKET}-{digest.hexdigest()[:16]}"
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as work:
            made = Path(work) / POCKET
            _build_pocket(files, made)
            try:
                made.rename(target)
            except OSError:
                # Another process was faster: its folder has the same content.
                if not target.is_dir():
                    raise
    except OSError as error:
        raise DataError(
            f"pocket cannot be built at {target} ({error.strerror}): "
            "set NL2SQL_TRL_CACHE to a folder that you can write"
        ) from error
    return target


def _build_pocket(files: dict[str, bytes], made: Path) -> None:
    for name, content in files.items():
        stem = name.removesuffix(".sql")
        if stem == name:
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (made / name).write_bytes(content)
            continue
        path = made / "database" / stem / f"{stem}.sqlite"
        path.parent.mkdir(parents=True)
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            connection.executescript(f"BEGIN;\n{content.decode('utf-8')}\n;COMMIT;")
        finally:
            connection.close()
