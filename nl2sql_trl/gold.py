"""The gold gate: every gold query runs once, and a row whose gold is unusable is set aside.

    checked = gate(examples, cache=run_dir / "gold_cache.jsonl")
    checked.kept                                # train and evaluate on these
    checked.dropped                             # each with a reason and SQLite's message
    checked.results[example.db_path, example.gold]   # the gold's result, for rewards

The cache holds outcomes, not rows: whether a gold ran, how many rows it gave and a hash of them.
Rows are computed again when a reward first asks for them and kept in memory up to a bound, so a
second start costs next to nothing and results of any size and type are safe. A stored outcome
counts only for the same bytes of the database, limits and SQLite version.

Not here: what a gold means (ties, empty results, missing ON): see `prepare.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import sys
import tempfile
import threading
import warnings
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeVar

from nl2sql_trl import questions
from nl2sql_trl.data import SPLIT_FILES, row_key
from nl2sql_trl.database import GOLD_LIMITS, DatabaseError, Limits, execute
from nl2sql_trl.records import Example, QueryResult

DropReason = Literal[
    "not_executable", "not_allowed", "timeout", "too_big", "too_many_rows", "crashed"
]
Key = tuple[Path, str]
T = TypeVar("T")

_REASONS: dict[str, DropReason] = {
    "error": "not_executable",
    "denied": "not_allowed",
    "timeout": "timeout",
    "too_big": "too_big",
    "crashed": "crashed",
}
_FORMAT = 1
_MEMORY_BYTES = 512_000_000


class GoldError(Exception):
    """A gold that passed the gate does not hold what it gave there; the message names the row."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """An example that is set aside: why, and SQLite's own message or the limit that it broke."""

    example: Example
    reason: DropReason
    detail: str


@dataclass(frozen=True, slots=True)
class Check:
    """What is remembered of one execution. `digest` is a hash of columns and rows."""

    reason: DropReason | None
    detail: str
    rows: int
    digest: str


@dataclass(frozen=True, slots=True)
class Gate:
    """The examples on both sides of the gate, in their order, and the results of the kept."""

    kept: list[Example]
    dropped: list[Dropped]
    results: GoldResults


class GoldResults:
    """Results of the golds that passed, by (database file, gold). Any thread may ask.

    A result is computed when it is first asked for and kept while all kept ones together take
    no more than about `memory_bytes`; those not asked for longest go first.
    """

    def __init__(self, limits: Limits = GOLD_LIMITS, memory_bytes: int = _MEMORY_BYTES) -> None:
        """Start with no golds: `gate` adds those that pass."""
        self._limits = limits
        self._room, self._used = memory_bytes, 0
        self._passed: dict[Key, tuple[Example, Check]] = {}
        self._memory: OrderedDict[Key, tuple[QueryResult, int]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, example: Example, check: Check, result: QueryResult | None = None) -> None:
        """Take in a gold that passed, with its result if that was just computed."""
        key = example.db_path, example.gold
        self._passed[key] = example, check
        if result is not None:
            self._keep(key, result)

    def row_count(self, key: Key) -> int:
        """How many rows a gold returns, without running it."""
        return self._entry(key)[1].rows

    def __getitem__(self, key: Key) -> QueryResult:
        """The complete result of a gold.

        Raises GoldError if it did not pass the gate, no longer runs, or gives other rows now.
        """
        with self._lock:
            if key in self._memory:
                self._memory.move_to_end(key)
                return self._memory[key][0]
        example, passed = self._entry(key)
        try:
            result = execute(*key, self._limits)
        except DatabaseError as error:
            raise GoldError(f"{_where(example)} ran at the gate but not now: {error}") from error
        check = _check(result)
        if check.reason is not None:
            raise GoldError(
                f"{_where(example)} ran at the gate but not now ({check.reason}: {check.detail}): "
                "see whether the database changed or the machine is overloaded, then start again"
            )
        if check.digest != passed.digest:
            raise GoldError(
                f"{_where(example)} gives other rows than at the gate: the database changed, or "
                "the query depends on chance or the clock; restore the one or leave out the other"
            )
        self._keep(key, result)
        return result

    def _entry(self, key: Key) -> tuple[Example, Check]:
        if key not in self._passed:
            raise GoldError(f"no gold {key[1]!r} on {key[0]} has passed the gate")
        return self._passed[key]

    def _keep(self, key: Key, result: QueryResult) -> None:
        size = _memory_size(result)
        with self._lock:
            if key in self._memory or size > self._room:
                return
            self._memory[key] = result, size
            self._used += size
            while self._used > self._room:
                self._used -= self._memory.popitem(last=False)[1][1]


def gate(
    examples: Sequence[Example],
    cache: Path | None = None,
    limits: Limits = GOLD_LIMITS,
    progress: bool = False,
) -> Gate:
    """Run every distinct gold once, read-only and under `limits`, and part the examples.

    A gold with more rows than the limit is dropped too: what it gives in full is not known.
    `cache` is a file for the outcomes: read if it is there, written (whole or not at all) when
    something new was run, also on Ctrl-C. `progress` shows a bar on standard error.
    """
    hashes = {path: hash_file(path) for path in dict.fromkeys(e.db_path for e in examples)}
    stored = _read_cache(cache, limits) if cache else {}
    known = len(stored)
    checks: dict[Key, Check] = {}
    results = GoldResults(limits)
    distinct: dict[Key, Example] = {}
    for example in examples:
        distinct.setdefault((example.db_path, example.gold), example)
    try:
        for key, example in track(distinct.items(), "gold queries", progress):
            path, query = key
            check, result = stored.get((hashes[path], query)), None
            if check is None:
                result = execute(path, query, limits)
                check = _check(result)
                # Somebody may have killed the processes: try again at the next start.
                if check.reason != "crashed":
                    stored[hashes[path], query] = check
            checks[key] = check
            if check.reason is None:
                results.add(example, check, result)
    finally:
        if cache and len(stored) > known:
            _write_cache(cache, limits, stored)
    kept, dropped = [], []
    for example in examples:
        check = checks[example.db_path, example.gold]
        if check.reason is None:
            kept.append(example)
        else:
            dropped.append(Dropped(example, check.reason, check.detail))
    return Gate(kept, dropped, results)


def track(items: Collection[T], title: str, progress: bool = True) -> Iterable[T]:
    """The items, with a bar on standard error if `progress`."""
    if not progress:
        return items
    from tqdm import tqdm

    return tqdm(items, desc=title, unit="query", file=sys.stderr)


def hash_file(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def data_manifest(data: Path) -> dict[str, dict[str, int | str]]:
    """Bytes and SHA-256 of every file that is used of the data, by its path relative to them.

    Of a Spider-layout folder these are the JSON files and each `database/<db_id>/<db_id>.sqlite`;
    of a questions file, itself and the databases that it names.
    """
    if questions.is_questions(data):
        folder, files = data.parent, [data, *questions.database_files(data)]
    else:
        folder = data
        files = [folder / name for name in (*SPLIT_FILES.values(), "tables.json")]
        files += [path for path in (folder / "database").glob("*/*.sqlite")
                  if path.stem == path.parent.name]  # fmt: skip
    return {
        Path(os.path.relpath(path, folder)).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": hash_file(path),
        }
        for path in sorted(files)
        if path.is_file()
    }


def _check(result: QueryResult) -> Check:
    if result.outcome != "ok":
        return Check(_REASONS[result.outcome], result.error, 0, "")
    if not result.complete:
        detail = f"more than {len(result.rows)} rows, the limit"
        return Check("too_many_rows", detail, len(result.rows), "")
    # repr tells 1 from 1.0 and '1', and spells stray bytes in ASCII.
    seen = hashlib.sha256(repr(result.columns).encode())
    for row in result.rows:
        seen.update(repr(row).encode())
    return Check(None, "", len(result.rows), seen.hexdigest())


def _where(example: Example) -> str:
    return f"the gold of row {row_key(example)} ({example.db_id}: {example.gold!r})"


def _memory_size(result: QueryResult) -> int:
    return sum(
        sys.getsizeof(row) + sum(sys.getsizeof(value) for value in row) for row in result.rows
    )


def _header(limits: Limits) -> dict[str, object]:
    return {"format": _FORMAT, "sqlite": sqlite3.sqlite_version, "limits": asdict(limits)}


def _read_cache(cache: Path, limits: Limits) -> dict[tuple[str, str], Check]:
    """Stored outcomes by (hash of the database, gold); none if they were made otherwise."""
    try:
        first, _, body = cache.read_text(encoding="utf-8").partition("\n")
        # The checksum tells a cut or edited file from a whole one, whatever was done to it.
        if json.loads(first) != {"sha256": _text_hash(body)}:
            raise ValueError("its checksum does not fit")
        header, *entries = map(json.loads, body.splitlines())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        warnings.warn(
            f"the gold cache {cache} is not used ({error}): it is built anew", stacklevel=3
        )
        return {}
    if header != _header(limits):
        return {}
    return {(e.pop("database"), e.pop("gold")): Check(**e) for e in entries}


def _write_cache(cache: Path, limits: Limits, stored: dict[tuple[str, str], Check]) -> None:
    entries = [
        {"database": database, "gold": gold, **asdict(check)}
        for (database, gold), check in stored.items()
    ]
    body = "".join(json.dumps(line) + "\n" for line in [_header(limits), *entries])
    cache.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own for each writer: two ranks may write at once.
    handle, name = tempfile.mkstemp(dir=cache.parent, prefix=f".{cache.name}-")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps({"sha256": _text_hash(body)}) + "\n" + body)
        os.replace(name, cache)
    except BaseException:
        os.unlink(name)
        raise


def _text_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
