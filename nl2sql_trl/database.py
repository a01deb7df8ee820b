"""Read-only, bounded execution of SQL that a model wrote, and the schema of a SQLite file.

`execute` opens the file read-only and immutable, allows reads alone (SQLite's authorizer sees
every action at compile time), runs one statement and fetches rows under limits on wall clock,
VM steps, rows, bytes of one value and bytes in all. It never raises for what a query does:
the outcome is in the QueryResult. Any thread may call it; SQLite releases Python's lock while
it works, so queries of different threads run in parallel.

What it does not do: it does not bound one single long C call (a `LIKE` over a value of the
largest allowed size, say) by anything but the size limits, and it does not isolate SQLite in a
process of its own.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
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
_DENIED_FUNCTIONS = {"load_extension", "fts3_tokenizer", "edit", "readfile", "writefile"}
_STEPS_PER_CHECK = 1_000
_MIN_FILE_BYTES = 512  # one page of the smallest size


class DatabaseError(Exception):
    """A database file is missing, cut short or not SQLite; the message names it and the remedy."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one query. VM steps are the limit that repeats; the clock is the backstop.

    seconds: wall clock. steps: SQLite virtual-machine instructions. rows: fetched at most.
    value_bytes: the longest text or BLOB, also in intermediate results. result_bytes: sum over
    all fetched values. sql_bytes: the longest statement.
    """

    seconds: float = 5.0
    steps: int = 50_000_000
    rows: int = 1_000
    value_bytes: int = 1_000_000
    result_bytes: int = 16_000_000
    sql_bytes: int = 100_000


TOOL_LIMITS = Limits()
# A gold query is trusted more than a model's: it runs once and its result is kept.
GOLD_LIMITS = Limits(
    seconds=60.0, steps=2_000_000_000, rows=200_000, value_bytes=4_000_000, result_bytes=256_000_000
)


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


def _authorise(
    action: int, arg1: str | None, arg2: str | None, _db: str | None, _by: object
) -> int:
    if action not in _ALLOWED:
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_FUNCTION and (arg2 or "").lower() in _DENIED_FUNCTIONS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _lossless(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def connect(path: Path) -> sqlite3.Connection:
    """A read-only, immutable connection. Raises DatabaseError if there is no such file to read."""
    if not path.is_file():
        raise DatabaseError(f"no database file at {path}: check db_id and the data folder")
    if path.stat().st_size < _MIN_FILE_BYTES:  # SQLite takes an empty file for an empty database
        raise unreadable(path, sqlite3.DatabaseError("the file is almost empty"))
    # immutable: no locks, no journal look-ups, nothing is ever written beside the file.
    uri = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise DatabaseError(f"{path} cannot be opened ({error}): check its permissions") from error
    connection.text_factory = _lossless
    return connection


def _apply(connection: sqlite3.Connection, limits: Limits, guard: _Guard) -> None:
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits.value_bytes)
    connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, limits.sql_bytes)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1_000)
    connection.setlimit(sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 200)
    connection.setlimit(sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0)
    bound_widths(connection, limits.value_bytes)
    connection.set_progress_handler(guard, _STEPS_PER_CHECK)
    connection.set_authorizer(_authorise)


def execute(path: Path, query: str, limits: Limits = TOOL_LIMITS) -> QueryResult:
    """Run one read-only statement on the file at `path`. Never raises for a bad query.

    Raises DatabaseError only when the file itself is missing, empty or not to be opened: that is
    the user's data, not the model's query.
    """
    start = time.monotonic()

    def failed(outcome: Outcome, error: str) -> QueryResult:
        return QueryResult(outcome, error=error, seconds=time.monotonic() - start)

    if "\x00" in query:
        return failed("error", "the query contains a NUL character")
    try:
        query.encode("utf-8")
    except UnicodeEncodeError:
        return failed("error", "the query contains characters that are not valid Unicode")
    guard = _Guard(limits)
    connection = connect(path)
    try:
        _apply(connection, limits, guard)
        cursor = connection.execute(query)
        if cursor.description is None:
            return failed("error", "the query is empty: write one SELECT statement")
        columns = tuple(_printable(d[0]) for d in cursor.description)
        rows: list[Row] = []
        complete, size = True, 0
        for row in cursor:
            if len(rows) == limits.rows:
                complete = False
                break
            size += _size(row)
            if size > limits.result_bytes:
                return failed("too_big", "the result is too large: select fewer or shorter values")
            rows.append(row)
        return QueryResult("ok", columns, tuple(rows), complete, seconds=time.monotonic() - start)
    except MemoryError:
        return failed("too_big", "the query needs too much memory")
    # sqlite3.Warning (two statements, before Python 3.12) is not a sqlite3.Error.
    except (sqlite3.Error, sqlite3.Warning, UnicodeDecodeError, OverflowError) as error:
        if guard.tripped:
            return failed("timeout", guard.tripped)
        message = _printable(str(error)).replace(str(path), path.name)
        if "not authorized" in message or "authorization denied" in message:
            return failed("denied", message)
        if "too big" in message:
            return failed("too_big", message)
        return failed("error", message)
    finally:
        connection.close()


def _size(row: Row) -> int:
    return sum(len(v) if isinstance(v, (str, bytes)) else 8 for v in row)


def _printable(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def ddl(path: Path) -> str:
    """CREATE TABLE statements of every user table, by name, a blank line between.

    This is the schema text of the prompt. Views, indexes and SQLite's own tables are left out.
    Raises DatabaseError if the file cannot be read as a database.
    """
    connection = connect(path)
    try:
        rows = connection.execute(
            "SELECT sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%'"
            " ESCAPE '\\' ORDER BY name"
        ).fetchall()
    except sqlite3.Error as error:
        raise unreadable(path, error) from error
    finally:
        connection.close()
    return "\n\n".join(_printable(sql.strip()) for (sql,) in rows if sql)


def table_counts(path: Path) -> dict[str, int]:
    """Rows of each user table. Raises DatabaseError if the file is cut short or damaged."""
    connection = connect(path)
    try:
        check = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if check != "ok":
            raise unreadable(path, sqlite3.DatabaseError(check))
        names = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%'"
            " ESCAPE '\\' ORDER BY name"
        ).fetchall()
        count = 'SELECT count(*) FROM "{}"'
        return {
            name: connection.execute(count.format(name.replace('"', '""'))).fetchone()[0]
            for (name,) in names
        }
    except sqlite3.Error as error:
        raise unreadable(path, error) from error
    finally:
        connection.close()


def unreadable(path: Path, error: Exception) -> DatabaseError:
    """The error for a file that is there but is no sound database."""
    return DatabaseError(
        f"{path} cannot be read as a SQLite database ({_printable(str(error))}): "
        "the file is damaged or only partly downloaded; fetch it again"
    )
