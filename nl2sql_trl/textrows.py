"""Rows of a query as text for a terminal: aligned, cut to a sensible size, and harmless.

A result that is too wide for the terminal is printed one value a line, as psql's expanded display
does. Control characters, marks of direction and bytes that are no UTF-8 are shown as escapes, so
that data cannot move a cursor or colour a line. Nothing here runs SQL.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from nl2sql_trl.records import QueryResult, SqlValue
from nl2sql_trl.report_tables import readable

ROWS, RECORDS, FIELDS = 20, 5, 50  # rows of a table, rows and columns of the expanded form
_CELLS = (60, 30, 16)  # columns of the terminal that a cell may take, the first that fits
_FIELD = 300


def text_table(result: QueryResult, width: int) -> str:
    """The first rows of a result that ran, and how many there are, in lines of about `width`."""
    names = [cell(name) for name in result.columns]
    shown = result.rows[:ROWS]
    for limit in _CELLS:
        body = [[clip(cell(value), limit) for value in row] for row in shown]
        lines = _aligned([clip(name, limit) for name in names], body, _numeric(shown))
        if max(map(columns_of, lines)) <= width:
            return "\n".join([*lines, counted(result, len(shown))])
    return _expanded(names, result)


def counted(result: QueryResult, shown: int) -> str:
    """How many rows a result has, and how many of them are shown if not all are."""
    total = len(result.rows)
    rows = f"{total:,} row{'' if total == 1 else 's'}"
    if not result.complete:
        rows = f"more than {rows}"
    return rows if shown == total and result.complete else f"({shown} shown) {rows} in all"


def cell(value: SqlValue) -> str:
    """One value on one line; NULL as NULL, a BLOB as x'hex'."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value[:_FIELD].hex()}'"
    if not isinstance(value, str):
        return str(value)
    return plain(value[: _FIELD + 1]).replace("\n", "\\n").replace("\t", "\\t")


def plain(text: str) -> str:
    """Text as a terminal can show it: line feeds and tabs stay, other controls are escapes."""
    decoded = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return readable(decoded)


def clip(text: str, limit: int) -> str:
    """At most `limit` columns of a terminal, the last an ellipsis where something was cut."""
    if columns_of(text) <= limit:
        return text
    kept, used = 0, 0
    for character in text:
        used += _columns(character)
        if used > limit - 1:
            break
        kept += 1
    return text[:kept] + "…"


def columns_of(text: str) -> int:
    """How many columns of a terminal a line takes."""
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) == "Cf":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _numeric(rows: Sequence[Sequence[SqlValue]]) -> list[bool]:
    columns = zip(*rows, strict=True)
    return [all(v is None or isinstance(v, (int, float)) for v in column) for column in columns]


def _aligned(
    names: Sequence[str], body: Sequence[Sequence[str]], numeric: Sequence[bool]
) -> list[str]:
    """Lines of a table: names, a rule, rows; numbers stand on the right."""
    widths = [max(map(columns_of, column)) for column in zip(names, *body, strict=True)]
    right = numeric or [False] * len(names)

    def line(cells: Sequence[str]) -> str:
        padded = []
        for text, width, numbers in zip(cells, widths, right, strict=True):
            space = " " * (width - columns_of(text))
            padded.append(space + text if numbers else text + space)
        return "  ".join(padded).rstrip()

    return [line(names), "  ".join("-" * w for w in widths), *(line(row) for row in body)]


def _expanded(names: Sequence[str], result: QueryResult) -> str:
    """A row after the other, one value a line."""
    fields = [clip(name, 30) for name in names[:FIELDS]]
    width = max(map(columns_of, fields))
    lines = []
    for number, row in enumerate(result.rows[:RECORDS], start=1):
        lines.append(f"-- row {number} --")
        for name, value in zip(fields, row[:FIELDS], strict=True):
            lines.append(f"{name}{' ' * (width - columns_of(name))}  {clip(cell(value), _FIELD)}")
        if len(names) > FIELDS:
            lines.append(f"({FIELDS} of {len(names):,} columns shown)")
    if not result.rows:
        lines.append(f"columns: {', '.join(fields)}")
    return "\n".join([*lines, counted(result, min(RECORDS, len(result.rows)))])
