"""Bounded, read-only execution of one SQL statement in this very process.

`Engine.run` opens the file read-only and immutable, allows reads alone (SQLite's authorizer sees
every action at compile time), runs one statement and fetches rows under limits on wall clock, VM
steps, rows, bytes of one value and bytes in all. It never raises for what a query does.

What it does not do: the clock and the steps are looked at between SQLite's own steps, so neither
a single long call inside SQLite nor the compilation of a statement is bounded by them. That is
why `sqlworker` runs an engine in a process that can be killed, and `database.execute` asks it.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from nl2sql_trl.padding import bound_widths
from nl2sql_trl.records import Outcome, QueryResult, Row

_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
_DENIED_FUNCTIONS = {
    "edit",
    "fts3_tokenizer",
    "load_extension",
    "readfile",
    "sqlite_log",  # it writes to the error log
    "writefile",
}
# Tables that SQLite makes up: they show the file's pages or the connection's state, or hold code.
_DENIED_TABLES = {"dbstat", "fts3tokenize", "sqlite_dbpage", "sqlite_stmt"}
_STEPS_PER_CHECK = 1_000
_MIN_FILE_BYTES = 512  # one page of the smallest size
_NUMBER_BYTES = 32  # what Python holds for an int or a float
_KEPT_CONNECTIONS = 16
# A file that changed this recently may change again under the same time stamp.
_SETTLED_SECONDS = 2.0


class DatabaseError(Exception):
    """A database file is missing, cut short or not SQLite; the message names it and the remedy."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one query. VM steps are the limit that repeats; the clock is the backstop.

    seconds: wall clock. steps: SQLite virtual-machine instructions. rows: fetched at most.
    value_bytes: the longest text or BLOB, also in intermediate results. result_bytes: sum over
    all fetched values, and over the column names. sql_bytes: the longest statement. memory_bytes:
    what the query may make its process allocate; Linux holds to it, macOS has no such limit.
    """

    seconds: float = 5.0
    steps: int = 50_000_000
    rows: int = 1_000
    value_bytes: int = 1_000_000
    result_bytes: int = 16_000_000
    sql_bytes: int = 100_000
    memory_bytes: int = 512_000_000


class _Guard:
    """Counts VM steps and watches the clock from SQLite's progress handler."""

    def __init__(self, limits: Limits) -> None:
        self.deadline = time.monotonic() + limits.seconds
        self.checks_left = max(1, limits.steps // _STEPS_PER_CHECK)
        self.tripped = ""

    def __call__(self) -> int:
        self.checks_left -= 1
        if self.checks_left < 0:
            self.tripped = "the query did too much work and was stopped"
        elif time.monotonic() > self.deadline:
            self.tripped = "the query ran too long and was stopped"
        return int(bool(self.tripped))


class Engine:
    """Runs statements on files; connections to files that lie still are kept for the next one.

    Not to be used by two threads at once.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Path, tuple[_Signature, sqlite3.Connection]] = OrderedDict()

    def run(self, path: Path, query: str, limits: Limits) -> QueryResult:
        """Run one statement. Raises DatabaseError only if there is no such file to read."""
        guard = _Guard(limits)
        signature = _signature(path)
        connection = self._take(path, signature)
        try:
            reads = _apply(connection, limits, guard)
            return replace(_fetch(connection, query, limits), reads=frozenset(reads))
        except MemoryError:
            return _failed("too_big", "the query needs too much memory")
        # sqlite3.Warning (two statements, before Python 3.12) is not a sqlite3.Error.
        except (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError, OverflowError) as error:
            if guard.tripped:
                return _failed("timeout", guard.tripped)
            message = printable(str(error)).replace(str(path), path.name)
            code = getattr(error, "sqlite_errorcode", None)
            # A denied function has no code of its own.
            if code == sqlite3.SQLITE_AUTH or message.startswith("not authorized"):
                return _failed("denied", message)
            if code == sqlite3.SQLITE_TOOBIG:
                return _failed("too_big", message)
            return _failed("error", message)
        finally:
            self._give_back(path, signature, connection)

    def close(self) -> None:
        """Close every connection."""
        while self._kept:
            self._kept.popitem()[1][1].close()

    def _take(self, path: Path, signature: _Signature) -> sqlite3.Connection:
        known, connection = self._kept.pop(path, (None, None))
        if connection is not None:
            if known == signature:
                return connection
            connection.close()
        return connect(path)

    def _give_back(self, path: Path, signature: _Signature, raw: sqlite3.Connection) -> None:
        if signature is None or time.time() - max(signature[:2]) / 1e9 < _SETTLED_SECONDS:
            raw.close()
            return
        self._kept[path] = signature, raw
        if len(self._kept) > _KEPT_CONNECTIONS:
            self._kept.popitem(last=False)[1][1].close()


_Signature = tuple[int, int, int, int, int] | None


def _signature(path: Path) -> _Signature:
    """What tells one state of a file from another; None where there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev


def connect(path: Path) -> sqlite3.Connection:
    """A read-only, immutable connection. Raises DatabaseError if there is no such file to read."""
    if not path.is_file():
        raise DatabaseError(f"no database file at {path}: check db_id and the data folder")
    if path.stat().st_size < _MIN_FILE_BYTES:  # SQLite takes an empty file for an empty database
        raise unreadable(path, sqlite3.DatabaseError("the file is almost empty"))
    # immutable: no locks, no journal look-ups, nothing is ever written beside the file.
    uri = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False, cached_statements=0
        )
        # Large sorts stay in memory, under its limit: temporary files could fill the disk.
        connection.execute("PRAGMA temp_store = MEMORY")
    except sqlite3.Error as error:
        raise DatabaseError(f"{path} cannot be opened ({error}): check its permissions") from error
    connection.text_factory = _lossless
    return connection


def unreadable(path: Path, error: Exception) -> DatabaseError:
    """The error for a file that is there but is no sound database."""
    return DatabaseError(
        f"{path} cannot be read as a SQLite database ({printable(str(error))}): "
        "the file is damaged or only partly downloaded; fetch it again"
    )


def printable(text: str) -> str:
    """Text that can be encoded: escaped bytes become the replacement character."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _apply(connection: sqlite3.Connection, limits: Limits, guard: _Guard) -> set[tuple[str, str]]:
    """Bound what comes next; returns a set that gets the tables and columns which it reads."""
    if connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits.value_bytes) != limits.value_bytes:
        bound_widths(connection, limits.value_bytes)
    connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, limits.sql_bytes)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1_000)
    connection.setlimit(sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 200)
    connection.setlimit(sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0)
    connection.set_progress_handler(guard, _STEPS_PER_CHECK)
    reads: set[tuple[str, str]] = set()

    def authorise(
        action: int, arg1: str | None, arg2: str | None, _db: str | None, _by: str | None
    ) -> int:
        if action == sqlite3.SQLITE_READ:
            table = (arg1 or "").lower()
            reads.update({(table, ""), (table, (arg2 or "").lower())})
        return _authorise(action, arg1, arg2)

    connection.set_authorizer(authorise)
    return reads


def _fetch(connection: sqlite3.Connection, query: str, limits: Limits) -> QueryResult:
    cursor = connection.execute(query)
    try:
        if cursor.description is None:
            return _failed("error", "the query is empty: write one SELECT statement")
        columns = tuple(printable(d[0]) for d in cursor.description)
        rows: list[Row] = []
        complete, size = True, 0
        if sum(map(len, columns)) > limits.result_bytes:
            return _failed("too_big", "the column names are too long")
        for row in cursor:
            if len(rows) == limits.rows:
                complete = False
                break
            size += _size(row)
            if size > limits.result_bytes:
                return _failed("too_big", "the result is too large: select fewer or shorter values")
            rows.append(row)
        return QueryResult("ok", columns, tuple(rows), complete)
    finally:
        cursor.close()


def _failed(outcome: Outcome, error: str) -> QueryResult:
    return QueryResult(outcome, error=error)


def _authorise(action: int, arg1: str | None, arg2: str | None) -> int:
    if action not in _ALLOWED:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (arg2 or "").lower() in _DENIED_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_READ and (arg1 or "").lower() in _DENIED_TABLES:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _lossless(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _size(row: Row) -> int:
    return sum(len(v) if isinstance(v, (str, bytes)) else _NUMBER_BYTES for v in row)
