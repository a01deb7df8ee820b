"""Run SQL on a database file without changing it, within limits of time, size and memory.

Statements of a few plain words, most of any set, are run right here, for a fraction of a second at
most. All others, and those that need longer, run in a process that can be ended (`sandbox`).
Everything is executed once a file and kept.
"""

from __future__ import annotations

import sqlite3
from dataclasses import astuple, replace
from pathlib import Path
from types import TracebackType

from nl2sql_trl import sandbox
from nl2sql_trl.spider.connection import (
    TIMEOUT,
    Connection,
    Execution,
    Limits,
    failure,
    open_read_only,
)
from nl2sql_trl.spider.result import Row
from nl2sql_trl.spider.statement import is_query, read, same_statement

__all__ = ["TIMEOUT", "Execution", "Limits", "Runner", "is_query", "same_statement"]

_MAX_KEPT_ROWS = 300_000
_MEMORY_BYTES = 1_000_000_000
# Of a plain statement in this process. Cells are kept short, or one LIKE could take seconds.
_HERE = Limits(seconds=0.25, rows=20_000, size=4_000_000, cell=10_000, steps=1_000)


class Runner:
    """Executes each statement once per database file, on one connection per file.

    ``forget`` closes the connections and drops the results; so does leaving a ``with`` block.
    Results are dropped earlier when they grow large.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        """Start with nothing open."""
        self.limits = limits or Limits()
        self._connections: dict[Path, Connection] = {}
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
        key = (path, read(sql).spelling)
        done = self._done.get(key)
        if done is None:
            try:
                done = self._run(path, sql)
            except sqlite3.Error as error:
                done = failure(path, error)
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
            and read(sql).tame
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
        if read(sql).plain:
            if path not in self._connections:
                here = replace(_HERE, seconds=min(_HERE.seconds, self.limits.seconds))
                self._connections[path] = Connection(open_read_only(path), here)
            done = self._connections[path].execute(sql)
            # Those limits hold here alone.
            if done.error != TIMEOUT and "too big" not in (done.error or ""):
                return done
        return self._run_apart(path, sql)

    def _run_apart(self, path: Path, sql: str) -> Execution:
        limits = astuple(self.limits)
        status, *found = sandbox.call(
            "official", self.limits.seconds, _MEMORY_BYTES, str(path.absolute()), sql, *limits
        )
        if status == "done":
            rows, error, undecodable, digest = found
            return Execution(rows, error, undecodable, digest)
        if status == "late":
            return Execution(error=TIMEOUT)
        if status == "memory":
            return Execution(error="MemoryError: it needs too much memory")
        if status == "died":
            return Execution(error=f"crashed: it ended the process that ran it ({found[0]})")
        raise sandbox.SandboxError(f"the process that runs SQL has a fault: {found[0]}")
