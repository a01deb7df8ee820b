"""What changing a query takes: replacing a span of tokens, and naming columns and values in SQL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from nl2sql_trl.suite.reading import AFTER_FROM, WORDS, Reading
from nl2sql_trl.suite.shape import Table, Value, quoted

Tokens = list[str]


def edit(reading: Reading, start: int, end: int, *new: str) -> Tokens:
    """The tokens of a query with a span replaced."""
    return [*reading.tokens[:start], *new, *reading.tokens[end:]]


def reference(reading: Reading, index: int) -> int:
    """Where the reference to the column at ``index`` starts, its alias included."""
    return index - 2 if index >= 2 and reading.tokens[index - 1] == "." else index


def select_spans(reading: Reading, select: int) -> list[tuple[int, int]]:
    """The spans of the items of a SELECT list."""
    end = reading.until(select, "from", *AFTER_FROM)
    level = reading.depth[select]
    inside = range(select, end)
    commas = [i for i in inside if reading.tokens[i] == "," and reading.depth[i] == level]
    first = select + 1 + (reading.low[select + 1 : select + 2] == ("distinct",))
    return [(a + 1, b) for a, b in pairwise([first - 1, *commas, end])]


def columns_in_sight(
    reading: Reading, scope: int, tables: Mapping[str, Table], kind: str | None = None
) -> list[tuple[str, str, str]]:
    """References to all columns (of a kind) of a scope's own tables."""
    return [
        (alias, ".", name_text(column.name))
        for alias, table in reading.sources[scope].items()
        for column in tables[table].columns
        if kind in (None, column.kind)
    ]


def name_text(name: str) -> str:
    """A name as it may stand in a query."""
    simple = re.fullmatch(r"[A-Za-z_]\w*", name) and name.lower() not in WORDS
    return name if simple else quoted(name)


def quoted_text(text: str) -> str:
    """A string literal."""
    return "'" + text.replace("'", "''") + "'"


def value_text(value: Value) -> str:
    """A value as a literal."""
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return str(value) if isinstance(value, (int, float)) else quoted_text(str(value))
