"""Databases in memory whose statements end after a number of steps, the same on every machine."""

from __future__ import annotations

import marshal
import sqlite3
from collections.abc import Sequence
from contextlib import closing

from nl2sql_trl.padding import bound_widths
from nl2sql_trl.spider.result import Row
from nl2sql_trl.suite.shape import Table, quoted

_MAX_CELL_BYTES = 1_000_000
_MAX_BYTES = 16_000_000
_BATCH = 128
_MAX_RESULT = 100_000
_STEPS_PER_CHECK = 1_000


class Reader:
    """A connection whose statements end after a number of steps, the same on every machine."""

    def __init__(self, connection: sqlite3.Connection, steps: int) -> None:
        """Take over the connection; ``steps`` bounds each statement and may be changed."""
        self.raw = connection
        self.steps = steps
        self._left = steps
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_CELL_BYTES)
        bound_widths(connection, _MAX_CELL_BYTES)
        connection.set_progress_handler(self._tick, _STEPS_PER_CHECK)

    def rows(self, sql: str) -> list[Row] | None:
        """All rows of a statement; None when it fails, takes too long or returns too much."""
        self._left = self.steps
        try:
            with closing(self.raw.execute(sql)) as cursor:
                rows: list[Row] = []
                size = 0
                while size <= _MAX_BYTES and len(rows) <= _MAX_RESULT:
                    batch = cursor.fetchmany(_BATCH)
                    rows += batch
                    size += len(marshal.dumps(batch, 2))
                    if len(batch) < _BATCH:
                        return rows if size <= _MAX_BYTES else None
        except (sqlite3.Error, sqlite3.Warning, OverflowError, MemoryError):
            return None
        return None

    def _tick(self) -> bool:
        self._left -= _STEPS_PER_CHECK
        return self._left < 0


def memory(script: Sequence[str], steps: int) -> Reader:
    """A fresh database in memory, made by these statements."""
    raw = sqlite3.connect(":memory:", isolation_level=None, cached_statements=1_000)
    for statement in script:
        raw.execute(statement)
    return Reader(raw, steps)


def insertion(table: Table, *more: str) -> str:
    """The statement that adds a row, with ``more`` columns before the table's own."""
    names = [*more, *(quoted(column.name) for column in table.columns)]
    marks = ", ".join("?" * len(names))
    return f"INSERT INTO {quoted(table.name)} ({', '.join(names)}) VALUES ({marks})"
