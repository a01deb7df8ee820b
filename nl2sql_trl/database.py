"""Read-only, bounded execution of SQL that a model wrote, and the schema of a SQLite file.

`execute` has a worker process run one statement, read-only, under limits on wall clock, VM steps,
rows, bytes and memory (`sqlengine` holds the limits, `sandbox` the processes). It never raises for
what a query does: the outcome is in the QueryResult. A query that cannot be stopped otherwise, in
the middle of one long call inside SQLite, say, is ended with its process, and the next query gets
another. Any thread may call it; queries of different threads run in parallel.

What it does not do: queries on a file that is being written to. Files are taken to lie still.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from dataclasses import astuple
from pathlib import Path

from nl2sql_trl import sandbox
from nl2sql_trl.records import Outcome, QueryResult
from nl2sql_trl.sqlengine import DatabaseError, Limits, connect, printable, unreadable

__all__ = [
    "GOLD_LIMITS",
    "TOOL_LIMITS",
    "DatabaseError",
    "Limits",
    "columns",
    "connect",
    "ddl",
    "execute",
    "reads",
    "table_counts",
    "unreadable",
]

TOOL_LIMITS = Limits()
# A gold query is trusted more than a model's: it runs once and its result is kept.
GOLD_LIMITS = Limits(
    seconds=60.0,
    steps=2_000_000_000,
    rows=200_000,
    value_bytes=4_000_000,
    result_bytes=256_000_000,
    memory_bytes=1_000_000_000,
)


def execute(path: Path, query: str, limits: Limits = TOOL_LIMITS) -> QueryResult:
    """Run one read-only statement on the file at `path`. Never raises for a bad query.

    Outcome "crashed" means that two processes in a row ended while they ran it, and not by its
    clock: the query broke SQLite, or somebody killed both. Raises DatabaseError only when the file
    itself is missing, empty or not to be opened: that is the user's data, not the model's query;
    SandboxError when no process can be started.
    """
    start = time.monotonic()

    def failed(outcome: Outcome, error: str) -> QueryResult:
        return QueryResult(outcome, error=error, seconds=time.monotonic() - start)

    if "\x00" in query:
        return failed("error", "the query contains a NUL character")
    try:
        size = len(query.encode("utf-8"))
    except UnicodeEncodeError:
        return failed("error", "the query contains characters that are not valid Unicode")
    if size > limits.sql_bytes:
        return failed("error", "the query is too long")
    status, *found = sandbox.call(
        "query", limits.seconds, limits.memory_bytes, str(path.absolute()), query, *astuple(limits)
    )
    if status == "done":
        outcome, columns, rows, complete, error, reads = found
        seconds = time.monotonic() - start
        return QueryResult(outcome, columns, rows, complete, error, seconds, reads)
    if status == "late":
        return failed("timeout", "the query ran too long and was stopped")
    if status == "memory":
        return failed("too_big", "the query needs too much memory")
    if status == "died":
        return failed("crashed", f"the query ended the process that ran it ({found[0]})")
    if status == "file":
        raise DatabaseError(found[0])
    raise sandbox.SandboxError(f"the process that runs SQL has a fault: {found[0]}")


def reads(path: Path, query: str) -> frozenset[tuple[str, str]] | None:
    """What a query would read (see `QueryResult.reads`), without running it.

    None if it does not compile. Raises as `execute` does.
    """
    found = execute(path, f"EXPLAIN {query}")
    return found.reads if found.outcome == "ok" else None


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
    return "\n\n".join(printable(sql.strip()) for (sql,) in rows if sql)


def columns(path: Path) -> dict[str, tuple[str, ...]]:
    """Columns of every table and view, by name; none of a view whose table is gone.

    SQLite's own tables are among them. Raises DatabaseError if there is no such file.
    """
    found: dict[str, tuple[str, ...]] = {}
    kinds = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"
    with contextlib.closing(connect(path)) as connection:
        for (table,) in connection.execute(kinds).fetchall():
            found[table] = ()
            with contextlib.suppress(sqlite3.Error):
                rows = connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
                found[table] = tuple(name for (name,) in rows)
    return found


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
