"""SQL and tool responses made readable: keywords in bold, rows as a table.

A response that is not of a form that `tools.render` writes (it was cut in the middle, say) is shown
as it is. What is shown is what the model read; nothing is run or looked up here. Hostile texts: see
`markup.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from nl2sql_trl.markup import dim, label, line, pre, safe, scroll
from nl2sql_trl.records import SqlValue

# A longer cell is folded; shorter ones keep to their lines, and the table scrolls.
_CELL_CHARS = 40
_CELL = (
    "padding:2px 16px 2px 0;border:0;border-top:1px solid rgba(128,128,128,0.35);"
    "vertical-align:top;line-height:1.5;text-align:"
)
_TABLE = (
    "border-collapse:collapse;border:0;margin:2px 0;table-layout:auto;font-size:13px;"
    "font-variant-numeric:tabular-nums;color:inherit;background:transparent"
)
# Keywords are set in bold, except in comments and quotes.
_SQL = re.compile(
    r"(?P<quoted>--[^\n]*|/\*.*?(?:\*/|\Z)|'(?:[^']|'')*'?|\"(?:[^\"]|\"\")*\"?)"
    r"|\b(?P<keyword>select|distinct|from|where|and|or|not|in|is|null|like|between|exists|join"
    r"|left|right|full|inner|outer|cross|natural|on|using|as|group|order|by|having|limit|offset"
    r"|asc|desc|union|all|intersect|except|with|recursive|case|when|then|else|end|cast|values"
    r"|insert|into|update|set|delete|create|table|drop|alter|pragma)\b",
    re.DOTALL | re.IGNORECASE,
)


def sql(query: str) -> str:
    """A query as HTML, its keywords in bold."""
    parts, at = [], 0
    for m in _SQL.finditer(query):
        if m["keyword"]:
            parts += [safe(query[at : m.start()]), f"<b>{safe(m[0])}</b>"]
            at = m.end()
    return "".join([*parts, safe(query[at:])])


def response(text: str) -> str:
    """A tool response as HTML: rows as a table, an error as one, anything else as it is."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # cut in the middle, or nested without end
        return pre(safe(text))
    match found:
        case {"error": str(message), **rest} if not rest:
            return pre(f"<b>error</b> {safe(message)}")
        case {"columns": list(columns), "rows": list(rows), **rest} if rest.keys() <= {
            "total_rows"
        } and _is_table(columns, rows):
            return table(columns, rows, rest.get("total_rows", len(rows)))
        case {"column_count": columns, "total_rows": total, **rest} if not rest:
            return line(safe(f"{columns} columns, too wide to be shown; {total} rows"))
    return pre(safe(text))


def _is_table(columns: list[Any], rows: list[Any]) -> bool:
    return all(isinstance(name, str) for name in columns) and all(
        isinstance(row, list)
        and len(row) == len(columns)
        and all(value is None or type(value) in (str, int, float) for value in row)
        for row in rows
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[SqlValue]], total: object) -> str:
    """Rows as an HTML table that scrolls inside itself, with their number under it.

    total: how many rows there are, a number or words; more than `rows` where some are left out.
    """
    names = []
    for n, name in enumerate(columns):
        numeric = any(_is_number(row[n]) for row in rows)
        side = "right" if numeric else "left"
        names.append(f'<th style="{_CELL}{side};font-weight:600;border-top:0">{_cell(name)}</th>')
    body = "".join(
        f'<tr style="background:transparent">{"".join(_value(value) for value in row)}</tr>'
        for row in rows
    )
    head = f'<tr style="background:transparent">{"".join(names)}</tr>'
    whole = f'<table style="{_TABLE}"><thead>{head}</thead><tbody>{body}</tbody></table>'
    return scroll(whole) + label(_count(len(rows), total))


def _count(shown: int, total: object) -> str:
    if shown == total:
        return f"{total} row{'' if total == 1 else 's'}"
    return f"the first {shown} of {total} rows in all"


def _value(value: SqlValue) -> str:
    side = "right" if _is_number(value) else "left"
    # Upright text NULL is a string; the absence of a value is set apart.
    text = value.hex() if isinstance(value, bytes) else str(value)
    inner = f"<i>{dim('NULL')}</i>" if value is None else _cell(text)
    return f'<td style="{_CELL}{side}">{inner}</td>'


def _cell(text: str) -> str:
    fold = "white-space:pre"
    if len(text) > _CELL_CHARS:
        fold = "white-space:pre-wrap;overflow-wrap:break-word;width:20em"
    return f'<div style="{fold}">{safe(text)}</div>'


def _is_number(value: SqlValue) -> bool:
    return type(value) in (int, float)
