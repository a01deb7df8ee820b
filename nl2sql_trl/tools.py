"""Tools as the model sees them: their schemas for the chat template and the text of their answers.

An answer is one JSON object, `{"columns": [...], "rows": [[...]]}` or `{"error": "..."}`. Two
ways of keeping it short: `rows` (the default) drops whole rows and says how many there are, and an
error about a name comes with the nearest ones (`hints.py`);
`seed` elides the middle of the text at 256 characters, as the reference model was trained with
(the result is 273 characters and no longer JSON).

Beside `run_sql` a model may be given tools of your own: `tool` makes one out of a function, and
`Codec(tokenizer, tools=[...])` takes them.

This module runs nothing: `rollout.py` does, and this renders what came of it.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_type_hints

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


class ToolError(ValueError):
    """A function cannot be made a tool; the message says what it lacks."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call beside `run_sql`: make one with `tool`.

    `schema` is what the chat template shows.
    """

    name: str
    schema: dict[str, Any]
    function: Callable[..., object]

    def wrong(self, arguments: Mapping[str, object]) -> str:
        """What is wrong with a call's arguments, "" if nothing is."""
        parameters = self.schema["function"]["parameters"]
        from jsonschema.exceptions import best_match

        validator = _validator()({**parameters, "additionalProperties": False})
        try:
            error = best_match(validator.iter_errors(arguments))
        except RecursionError:
            return "its arguments are nested too deeply"
        if error is None:
            return ""
        return ": ".join([*map(str, error.absolute_path), error.message])


def tool(function: Callable[..., object]) -> Tool:
    """A tool out of a function with type hints and a docstring; also a decorator.

    Its first parameter, `db_path`, gets the path of the row's SQLite file. The model sees the
    others, with their types and what the docstring says of them under `Args:` (Google's style).

    What it returns becomes the tool response: text or anything else that JSON can hold, or a
    `QueryResult` of `database.execute`, which reads only and has limits. A ValueError is an error
    message to the model. Any other exception ends the run: it is a mistake in the tool. Several
    threads may call it at once. Raises ToolError for a function that cannot be a tool.
    """
    from transformers.utils import get_json_schema
    from transformers.utils.chat_template_utils import (
        DocstringParsingException,
        TypeHintParsingException,
    )

    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise ToolError(f"{function!r} is no function with a name: write one with def")
    signature = inspect.signature(function)
    names = list(signature.parameters)
    if names[:1] != ["db_path"]:
        raise ToolError(f"the first parameter of {name} must be db_path, the path of the database")
    others = list(signature.parameters.values())[1:]
    for parameter in others:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ToolError(f"{name} takes {parameter}: a model gives arguments by name alone")

    def shown() -> None:
        """Stands in for the function without `db_path`."""

    shown.__name__, shown.__doc__ = name, inspect.getdoc(function)
    shown.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    try:
        hints = get_type_hints(function)
        shown.__annotations__ = {p.name: hints[p.name] for p in others if p.name in hints}
        schema = get_json_schema(shown)
    except (TypeHintParsingException, DocstringParsingException, NameError) as error:
        raise ToolError(
            f"{name} cannot be a tool: {error}: every parameter needs a type hint and a line under "
            "Args: in the docstring"
        ) from error
    return Tool(name, schema, function)


@cache
def _validator() -> Any:
    from jsonschema import Draft4Validator, Draft202012Validator
    from jsonschema.validators import extend

    # Since draft 6 an integer may be written 5.0, which Python makes a float.
    return extend(Draft202012Validator, type_checker=Draft4Validator.TYPE_CHECKER)


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


def render_value(value: object, limit: int = DEFAULT_CHARS, total: int | None = None) -> str:
    """`{"result": value}`, the response of a tool of your own, in at most `limit` characters.

    Too long a list keeps the items that fit and says in `total` how many there are (where the list
    was cut before, how many there were); anything else is cut as text. Raises TypeError, ValueError
    or RecursionError for what JSON cannot hold.
    """
    if isinstance(value, str):
        return _cut("result", _unicode(value), limit)
    # Half a surrogate pair is written as JSON's escape: no tokenizer takes it.
    ascii_only = any("\ud800" <= character <= "\udfff" for character in _dumps(value))
    text = _dumps({"result": value} | ({} if total is None else {"total": total}), ascii_only)
    if len(text) <= limit:
        return text
    if isinstance(value, (list, tuple)):
        total = total or len(value)
        room, count = limit - len(_dumps({"result": [], "total": total})), 0
        for item in value:
            room -= len(_dumps(item, ascii_only)) + (2 if count else 0)
            if room < 0:
                break
            count += 1
        if count:
            return _dumps({"result": list(value[:count]), "total": total}, ascii_only)
    return _cut("result", _dumps(value, ascii_only), limit)


def error(message: str, limit: int = DEFAULT_CHARS) -> str:
    """`{"error": message}`, the message cut so that the JSON keeps to `limit` characters."""
    return _cut("error", _unicode(message), limit)


def _cut(name: str, text: str, limit: int) -> str:
    whole = _dumps({name: text})
    if len(whole) <= limit:
        return whole
    # Counted as JSON writes it: a quote takes two characters, a control character six.
    room, kept = limit - len(_dumps({name: "…"})), 0
    while (room := room - len(_dumps(text[kept])) + 2) >= 0:
        kept += 1
    return _dumps({name: text[:kept] + "…"})


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
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # half a surrogate pair, as a model may write it
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _dumps(value: object, ascii_only: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ascii_only, allow_nan=False)
