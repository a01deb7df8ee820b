"""Run SQL on a database file without changing it, within limits of time and size.

Files are opened read-only and immutable. A statement that would write runs on a copy in memory,
since the official scorers let it write. Nothing here protects against a single SQLite operation
that takes long by itself, and ATTACH is refused.
"""

from __future__ import annotations

import hashlib
import marshal
import re
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from nl2sql_trl.padding import bound_widths
from nl2sql_trl.spider.result import Row

TIMEOUT = "timeout"
"""The reason given when a statement is stopped at one of the limits."""

_WRITES = "SQLITE_READONLY"
_STEPS_BETWEEN_CHECKS = 10_000
_MAX_KEPT_ROWS = 300_000
_MAX_BATCH = 1_024
_MAX_CELL_BYTES = 2_000_000
_MAX_COPY_PAGES = 32_768
_FIRST_BATCH = 64
# What can make cells larger than any in the file: their rows are fetched with care.
_GROWS = re.compile(
    r"\|\||\b(?:zeroblob|randomblob|printf|format|hex|quote|replace|char|concat(?:_ws)?"
    r"|group_concat|string_agg|json\w*)\s*\(",
    re.IGNORECASE,
)
# SELECTs of plain words, in which only these stand before a parenthesis, raise no error at run
# time: sum() may overflow, a recursive query may not end.
_TAME = re.compile(r"\s*SELECT\b[^;{}\x00]*;?\s*", re.IGNORECASE)
_BEFORE_PAREN = re.compile(r"([\w\"'`\]]+)\s*\(")
_TAME_WORDS = frozenset(
    """count min max avg total in and or not on where from select distinct by having union
    intersect except exists when then else case between like is join""".split()  # noqa: SIM905
)
_READ_ONLY = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*+(?:SELECT|WITH|VALUES)\b", re.IGNORECASE | re.DOTALL
)
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
    """When to stop a statement: seconds, rows, and bytes of its result."""

    seconds: float = 10.0
    rows: int = 200_000
    size: int = 64_000_000


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


_PIECE = re.compile(
    r"(?P<kept>'(?:[^']|'')*'?|\"(?:[^\"]|\"\")*\"?|`[^`]*`?|\[[^\]]*\]?)"
    r"|\s*(?P<mark>[(),])\s*|(?P<space>\s+)"
)


class _Statement(NamedTuple):
    """What is known of a statement from its text; looked at once, not once a file.

    ``spelling`` is the same for statements that differ in white space and case outside of quotes
    alone. ``grows`` says that cells may be larger than any in the file; ``tame`` that nothing in
    it can fail, or go on for ever, once it is compiled.
    """

    spelling: str
    reads: bool
    grows: bool
    tame: bool


@lru_cache(maxsize=4_096)
def _read(sql: str) -> _Statement:
    grows = _GROWS.search(sql) is not None
    reads = _READ_ONLY.match(sql) is not None
    tame = not grows and _TAME.fullmatch(sql) is not None
    tame &= {word.lower() for word in _BEFORE_PAREN.findall(sql)} <= _TAME_WORDS
    if "--" in sql or "/*" in sql:
        return _Statement(sql, reads, grows, tame)
    parts, at = [], 0
    for found in _PIECE.finditer(sql):
        parts.append(sql[at : found.start()].lower())
        parts.append(found["kept"] or found["mark"] or " ")
        at = found.end()
    return _Statement("".join(parts) + sql[at:].lower(), reads, grows, tame)


def is_query(sql: str) -> bool:
    """Whether a statement begins as one that returns rows."""
    return _read(sql).reads


def same_statement(one: str, two: str) -> bool:
    """Whether two statements are the same but for white space and case outside of quotes."""
    return _read(one).spelling == _read(two).spelling


class Runner:
    """Executes each statement once per database file, on one connection per file.

    ``forget`` closes the connections and drops the results; so does leaving a ``with`` block.
    Results are dropped earlier when they grow large.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        """Start with nothing open."""
        self.limits = limits or Limits()
        self._connections: dict[Path, _Connection] = {}
        self._done: dict[tuple[Path, str], Execution] = {}
        self._same_schema: dict[tuple[Path, Path], bool] = {}
        self._rows_kept = 0

    def __enter__(self) -> Runner:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close what is open."""
        self.forget()

    def execute(self, path: Path, sql: str) -> Execution:
        """Run one statement; errors and limits are reported in the result, never raised."""
        key = (path, _read(sql).spelling)
        done = self._done.get(key)
        if done is None:
            try:
                done = self._run(path, sql)
            except sqlite3.Error as error:
                done = Execution(error=f"{path.name}: {error}")
            self._rows_kept += len(done.rows)
            if self._rows_kept > _MAX_KEPT_ROWS:
                self._done.clear()
                self._rows_kept = len(done.rows)
            self._done[key] = done
        return done

    def cannot_fail(self, sql: str, path: Path, base: Path) -> bool:
        """Whether a statement is sure to run on a file, without running it there.

        That is so where it ran on ``base``, the schemas are the same to the letter, and it holds
        nothing that can fail at run time.
        """
        return (
            path != base
            and _read(sql).tame
            and self.execute(base, sql).error is None
            and self._alike(path, base)
        )

    def _alike(self, path: Path, base: Path) -> bool:
        """Whether two files have the same schema to the letter, and no views."""
        alike = self._same_schema.get((path, base))
        if alike is None:
            schema = self._schema(base)
            alike = schema is not None and self._schema(path) == schema
            self._same_schema[path, base] = alike
        return alike

    def _schema(self, path: Path) -> tuple[Row, ...] | None:
        """The statements that made the file's tables; None where there are views."""
        done = self.execute(path, "SELECT type, name, sql FROM sqlite_master ORDER BY type, name")
        broken = done.error is not None or any(row[0] == "view" for row in done.rows)
        return None if broken else done.rows

    def forget(self) -> None:
        """Close all connections and drop all results."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._same_schema.clear()
        self._done.clear()
        self._rows_kept = 0

    def _run(self, path: Path, sql: str) -> Execution:
        # Whatever might leave a trace on the connection gets one of its own.
        if not _read(sql).reads:
            return self._run_on_copy(path, sql)
        if path not in self._connections:
            self._connections[path] = _Connection(_open_read_only(path), self.limits)
        execution = self._connections[path].execute(sql)
        return self._run_on_copy(path, sql) if execution.error == _WRITES else execution

    def _run_on_copy(self, path: Path, sql: str) -> Execution:
        with closing(_Connection(_open_copy(path), self.limits)) as connection:
            return connection.execute(sql)


class _Connection:
    """A bounded connection."""

    def __init__(self, raw: sqlite3.Connection, limits: Limits) -> None:
        self.raw = raw
        self.limits = limits
        self.deadline = 0.0
        raw.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        raw.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_CELL_BYTES)
        bound_widths(raw, _MAX_CELL_BYTES)
        raw.set_progress_handler(self._overdue, _STEPS_BETWEEN_CHECKS)

    def close(self) -> None:
        self.raw.close()

    def execute(self, sql: str) -> Execution:
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
        batch = 1 if _read(sql).grows else _FIRST_BATCH
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
        if name == _WRITES:
            return Execution(error=_WRITES)
        return Execution(error=f"{type(error).__name__}: {error}")

    def _overdue(self) -> int:
        return time.monotonic() > self.deadline


def _open_read_only(path: Path) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    # No statement is run twice on a file: results are kept instead.
    return sqlite3.connect(uri, uri=True, isolation_level=None, cached_statements=0)


def _open_copy(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    with closing(_open_read_only(path)) as source:
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
