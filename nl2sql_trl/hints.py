"""What a model is told beside SQLite's error: names of the schema that it may have meant.

`no such column: T1.singer_name` says what is wrong, not what would be right, and a small model
writes the same query again. `helped` adds the names nearest to the missing one, columns with their
table, or the tables that an ambiguous column is in. SQLite's own words stay in front.

Nothing is mended here: the model reads and decides. The reference's tool says SQLite's words alone
(`truncation: seed`).
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from functools import lru_cache
from pathlib import Path

from nl2sql_trl.database import columns
from nl2sql_trl.sqlengine import printable

_MISSING = re.compile(r"no such (table|column): (.+)", re.DOTALL)
_AMBIGUOUS = re.compile(r"ambiguous column name: (.+)", re.DOTALL)
_NAMES = 3
_LONGEST = 64  # characters of a missing name that are compared
_HERE = 0.2  # by so much a column of a table that the query names is nearer
_WORD = re.compile(r"\w+")


def helped(error: str, query: str, path: Path) -> str:
    """The error with the names that may have been meant; as it is where it is about no name."""
    said = {word.lower() for word in _WORD.findall(query)}
    if found := _MISSING.fullmatch(error):
        kind, missing = found.groups()
        if names := _nearest(kind, missing, said, _schema(path)):
            return f"{error}. Did you mean {_listed(names, 'or')}?"
    elif found := _AMBIGUOUS.fullmatch(error):
        tables = _holders(found[1], said, _schema(path))
        if len(tables) > 1:
            return f"{error}. It is in {_listed(tables, 'and')}"
    return error


def _nearest(
    kind: str, missing: str, said: set[str], schema: dict[str, tuple[str, ...]]
) -> list[str]:
    """Up to _NAMES names of this kind, the nearest first. `said`: the words of the query."""
    wanted = missing.rpartition(".")[2].lower()[:_LONGEST]
    if kind == "table":
        return sorted(schema, key=lambda name: -_alike(wanted, name.lower()))[:_NAMES]
    near = []
    for table, held in schema.items():
        bonus = _HERE if table.lower() in said else 0.0
        for column in held:
            # `singer_name` may be the `name` of singer.
            forms = (column.lower(), f"{table}_{column}".lower())
            near.append((-max(_alike(wanted, form) for form in forms) - bonus, table, column))
    return [f"{table}.{column}" for _, table, column in sorted(near)[:_NAMES]]


def _holders(column: str, said: set[str], schema: dict[str, tuple[str, ...]]) -> list[str]:
    """The tables that the query names and that have this column."""
    return [
        table
        for table, held in schema.items()
        if table.lower() in said and column.lower() in map(str.lower, held)
    ]


def _alike(a: str, b: str) -> float:
    return SequenceMatcher(None, a, b).ratio()


def _listed(names: list[str], word: str) -> str:
    *first, last = names
    return f"{', '.join(first)} {word} {last}" if first else last


@lru_cache(maxsize=1024)
def _schema(path: Path) -> dict[str, tuple[str, ...]]:
    """Columns of each user table. Raises DatabaseError if there is no such file."""
    return {
        printable(table): tuple(map(printable, held))
        for table, held in columns(path).items()
        if held and not table.lower().startswith("sqlite_")
    }
