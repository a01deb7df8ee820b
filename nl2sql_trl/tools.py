"""`run_sql` as the model sees it: its schema for the chat template and the text of its answers.

An answer is one JSON object, `{"columns": [...], "rows": [[...]]}` or `{"error": "..."}`. Two
ways of keeping it short: `rows` (the default) drops whole rows and says how many there are;
`seed` elides the middle of the text at 256 characters, as the reference model was trained with
(the result is 273 characters and no longer JSON).

This module runs nothing: it renders what `database.execute` returned.
"""

from __future__ import annotations

import json
import math
from typing import Literal

from nl2sql_trl.records import QueryResult, SqlValue

Truncation = Literal["rows", "seed"]

RUN_SQL = {
    "type": "function",
    "function": {
        "name": "run_sql",
        "description": "Execute a SQL query and return its rows.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}},
            "required": ["query"],
        },
    },
}

DEFAULT_CHARS = 400
SEED_CHARS = 256
MIN_CHARS = 64
_CELL_CHARS = (80, 24, 8)


def render(result: QueryResult, truncation: Truncation = "rows", limit: int = DEFAULT_CHARS) -> str:
    """The tool response for `result`.

    With `rows`, valid JSON of at most `limit` characters (at least MIN_CHARS): as many leading
    rows as fit whole, and `total_rows` when some are left out ("more than N" if the row cap ended
    the fetch). With `seed`, `limit` is ignored.
    """
    if truncation == "seed":
        return elide_middle(_dumps(_body(result, None), ascii_only=True), SEED_CHARS)
    if limit < MIN_CHARS:
        raise ValueError(f"a tool response needs at least {MIN_CHARS} characters, not {limit}")
    if result.outcome != "ok":
        return error(result.error, limit)
    # No budget holds more rows than half its characters: don't render the rest.
    shown = result.rows[:limit]
    if result.complete and len(shown) == len(result.rows):
        text = _dumps(_body(result, None))
        if len(text) <= limit:
            return text
    total = len(result.rows) if result.complete else f"more than {len(result.rows)}"
    for cell_chars in _CELL_CHARS:
        rows = [[_cell(v, cell_chars) for v in row] for row in shown]
        columns = [_clip(c, cell_chars) for c in result.columns]
        text = _fit({"columns": columns}, rows, total, limit)
        if text:
            return text
    return _dumps({"column_count": len(result.columns), "total_rows": total})


def error(message: str, limit: int = DEFAULT_CHARS) -> str:
    """`{"error": message}`, the message cut so that the JSON keeps to `limit` characters."""
    message = _unicode(message)
    text = _dumps({"error": message})
    if len(text) <= limit:
        return text
    # Counted as JSON writes it: a quote takes two characters, a control character six.
    room, kept = limit - len(_dumps({"error": "…"})), 0
    while (room := room - len(_dumps(message[kept])) + 2) >= 0:
        kept += 1
    return _dumps({"error": message[:kept] + "…"})


def elide_middle(text: str, max_length: int) -> str:
    """The reference's truncation: both ends kept, the middle replaced by a marker."""
    if len(text) <= max_length:
        return text
    half = max_length // 2
    return text[:half] + "...(truncated)..." + text[-half:]


def _fit(head: dict[str, object], rows: list[list[object]], total: object, limit: int) -> str:
    """The longest run of leading rows that keeps to the limit, "" if not even one does."""
    room = limit - len(_dumps({**head, "rows": [], "total_rows": total}))
    count = 0
    for row in rows:
        room -= len(_dumps(row)) + (2 if count else 0)
        if room < 0:
            break
        count += 1
    whole = count or (not rows and room >= 0)
    return _dumps({**head, "rows": rows[:count], "total_rows": total}) if whole else ""


def _body(result: QueryResult, cell_chars: int | None) -> dict[str, object]:
    if result.outcome != "ok":
        return {"error": _unicode(result.error)}
    rows = [[_cell(v, cell_chars) for v in row] for row in result.rows]
    return {"columns": list(result.columns), "rows": rows}


def _cell(value: SqlValue, cell_chars: int | None) -> object:
    if isinstance(value, bytes):
        return _clip(value.hex(), cell_chars)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity
    return _clip(_unicode(value), cell_chars) if isinstance(value, str) else value


def _clip(text: str, cell_chars: int | None) -> str:
    if cell_chars is None or len(text) <= cell_chars:
        return text
    return text[: cell_chars - 1] + "…"


def _unicode(text: str) -> str:
    """Bytes that were not UTF-8 shown as \\xNN, so that the text can be encoded again."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _dumps(value: object, ascii_only: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ascii_only, allow_nan=False)
