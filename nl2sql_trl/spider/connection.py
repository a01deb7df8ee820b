"""One bounded execution of any statement on a database file, without changing the file.

Files are opened read-only and immutable. A statement that would write runs on a copy in memory,
since the official scorers let it write. ATTACH is refused. Nothing here protects against a single
SQLite operation that takes long by itself: `execution` runs what could in another process.
"""

from __future__ import annotations

import hashlib
import marshal
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nl2sql_trl.padding import bound_widths
from nl2sql_trl.spider.result import Row
from nl2sql_trl.spider.statement import read

TIMEOUT = "timeout"
"""The reason given when a statement is stopped at one of the limits."""

WRITES = "SQLITE_READONLY"
"""The reason given when a statement would write to a file that is only read."""

_MAX_BATCH = 1_024
_MAX_COPY_PAGES = 32_768
_FIRST_BATCH = 64
# These would change limits of the whole process, or ours.
_FORBIDDEN_PRAGMAS = frozenset(
    {
        "data_store_directory",
        "hard_heap_limit",
        "max_page_count",
        "soft_heap_limit",
        "temp_store_directory",
    }
)


@dataclass(frozen=True)
class Limits:
    """When to stop a statement: seconds, rows, bytes of its result and of one cell.

    ``steps`` are SQLite's between two looks at the clock.
    """

    seconds: float = 10.0
    rows: int = 200_000
    size: int = 64_000_000
    cell: int = 2_000_000
    steps: int = 10_000


@dataclass(frozen=True)
class Execution:
    """The rows of a statement, or why there are none.

    ``undecodable`` tells that text in the result is no UTF-8; its bad bytes are left out. Equal
    digests mean the same rows in the same order, down to the types of cells.
    """

    rows: tuple[Row, ...] = ()
    error: str | None = None
    undecodable: bool = False
    digest: bytes = b""


class Connection:
    """A bounded connection."""

    def __init__(self, raw: sqlite3.Connection, limits: Limits) -> None:
        self.raw = raw
        self.limits = limits
        self.deadline = 0.0
        # A worker may write no file, not even a temporary one for a large sort.
        raw.execute("PRAGMA temp_store = MEMORY")
        raw.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        raw.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limits.cell)
        bound_widths(raw, limits.cell)
        raw.set_progress_handler(self._overdue, limits.steps)

    def close(self) -> None:
        """Close the database."""
        self.raw.close()

    def execute(self, sql: str) -> Execution:
        """Run one statement; errors and limits are reported in the result."""
        try:
            return self._fetch(sql)
        except UnicodeDecodeError:
            pass
        except sqlite3.OperationalError as error:
            if not str(error).startswith("Could not decode"):
                return self._failed(error)
        except Exception as error:
            return self._failed(error)
        self.raw.text_factory = _decode_leniently
        try:
            execution = self._fetch(sql)
        except Exception as error:
            return self._failed(error)
        finally:
            self.raw.text_factory = str
        return replace(execution, undecodable=True)

    def _fetch(self, sql: str) -> Execution:
        self.deadline = time.monotonic() + self.limits.seconds
        rows: list[Row] = []
        size = 0
        digest = hashlib.blake2b(digest_size=16)
        batch = 1 if read(sql).grows else _FIRST_BATCH
        with closing(self.raw.execute(sql)) as cursor:
            while fetched := cursor.fetchmany(batch):
                rows += fetched
                # Version 2 knows no references: the bytes depend on values and types alone.
                packed = marshal.dumps(fetched, 2)
                digest.update(packed)
                size += len(packed)
                if size > self.limits.size or len(rows) > self.limits.rows:
                    return Execution(error=TIMEOUT)
                if len(fetched) < batch:
                    break
                # A batch is as large as everything before it, not more.
                batch = min(2 * batch, _MAX_BATCH)
        return Execution(tuple(rows), digest=digest.digest())

    def _failed(self, error: Exception) -> Execution:
        name = getattr(error, "sqlite_errorname", None)
        if name == "SQLITE_INTERRUPT":
            return Execution(error=TIMEOUT)
        if name == WRITES:
            return Execution(error=WRITES)
        return Execution(error=f"{type(error).__name__}: {error}")

    def _overdue(self) -> int:
        return time.monotonic() > self.deadline


def run_once(path: str, sql: str, *limits: Any) -> tuple[Any, ...]:
    """Run any statement on a connection of its own; an Execution's fields in order.

    ``limits`` are the fields of Limits. This is what a worker process calls.
    """
    file, bounds = Path(path), Limits(*limits)
    try:
        done = Execution(error=WRITES)
        if read(sql).reads:
            with closing(Connection(open_read_only(file), bounds)) as connection:
                done = connection.execute(sql)
        if done.error == WRITES:
            with closing(Connection(_open_copy(file), bounds)) as connection:
                done = connection.execute(sql)
    except sqlite3.Error as error:
        done = failure(file, error)
    return done.rows, done.error, done.undecodable, done.digest


def failure(path: Path, error: sqlite3.Error) -> Execution:
    """What is told of a file that cannot be opened."""
    return Execution(error=f"{path.name}: {error}")


def open_read_only(path: Path) -> sqlite3.Connection:
    """A connection that can neither write nor lock."""
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    # No statement is run twice on a file: results are kept instead.
    return sqlite3.connect(uri, uri=True, isolation_level=None, cached_statements=0)


def _open_copy(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    with closing(open_read_only(path)) as source:
        source.backup(connection)
    connection.execute(f"PRAGMA max_page_count = {_MAX_COPY_PAGES}")
    connection.set_authorizer(_authorize)
    return connection


def _authorize(action: int, name: str | None, *_: str | None) -> int:
    if action == sqlite3.SQLITE_PRAGMA and name in _FORBIDDEN_PRAGMAS:
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _decode_leniently(data: bytes) -> str:
    return data.decode(errors="ignore")
