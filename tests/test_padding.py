"""printf in SQL: SQLite's own for all widths that fit, "too big" at once for the rest."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from nl2sql_trl.padding import bound_widths


@pytest.fixture
def bounded() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
    bound_widths(connection, 10_000)
    yield connection
    connection.close()


@pytest.mark.parametrize(
    "call",
    [
        "printf('%d of %s', 99999999999, 'x')",
        "printf('%5.2f|%-8s|%08d', 3.14159, 'ab', 42)",
        "printf('%*d', 12, 7)",
        "printf('%.*f', 3, 2.5)",
        "printf('100%% %d', 1)",
        "printf('%,d', 1234567)",
        "printf('%q', 'it''s')",
        "format('%x', 255)",
        "printf()",
        "printf(NULL)",
        "printf(12)",
        "printf('%s', NULL)",
        "printf('%s', x'4142')",
    ],
)
def test_widths_that_fit_give_what_sqlite_gives(call: str, bounded: sqlite3.Connection) -> None:
    plain = sqlite3.connect(":memory:")
    query = f"SELECT {call}, typeof({call})"
    assert bounded.execute(query).fetchone() == plain.execute(query).fetchone()


@pytest.mark.parametrize(
    "call",
    [
        "printf('%2000000000d', 1)",
        "printf('%.2000000000f', 1.5)",
        "printf('%.*c', 900000000, 'x')",
        "format('%*s', -2000000000, 'x')",
        "printf('%s %900000000d', 'a', 1)",
        "printf('%10001d', 1)",
    ],
)
def test_widths_that_do_not_fit_are_too_big_at_once(call: str, bounded: sqlite3.Connection) -> None:
    many = " UNION ALL ".join([f"SELECT length({call})"] * 50)
    with pytest.raises(sqlite3.DataError, match="too big"):
        bounded.execute(many).fetchall()
