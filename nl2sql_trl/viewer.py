"""A trajectory as readable HTML: what the model wrote, what it was told, and the verdict.

    show(trajectory, task.verdict(trajectory))     # the last line of a notebook cell
    show_row(row)                                  # a line of a run's trajectories.jsonl

Rows that came back are shown as a table, calls and answers as SQL; what is not of the usual form
is shown as it is. The bar at the end says how many tokens were sampled and forced, and in which
order; `tokens.py` shows every one of them. Hostile texts: see `markup.py`.

This module judges nothing and reads no database: it shows what the model saw, not the gold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from nl2sql_trl.markup import (
    FORCED,
    GREEN,
    GREY,
    SAMPLED,
    VERMILION,
    Shown,
    box,
    dim,
    label,
    line,
    page,
    pre,
    safe,
    strip,
)
from nl2sql_trl.readable import response, sql
from nl2sql_trl.records import Trajectory, Verdict
from nl2sql_trl.runs import describe

STOPS = {
    "answer": "the model made no further call",
    "budget": "the token budget ran out",
    "turn_limit": "the turn limit was reached",
}

# What a message is made of, beside plain text: thoughts, calls, fenced blocks.
_PARTS = re.compile(
    r"(?P<think><think>.*?(?:</think>|\Z))"
    r"|<tool_call>(?P<call>.*?)(?:</tool_call>|\Z)"
    r"|^(?P<open>```[ \t]*(?P<label>\w*)[ \t]*\n)(?P<block>.*?)(?P<close>^```|\Z)",
    re.DOTALL | re.MULTILINE,
)


def show(trajectory: Trajectory, verdict: Verdict | None = None) -> Shown:
    """The turns of a trajectory in order, then how it ended and, if given, the verdict."""
    if verdict is not None:
        return show_row(describe(trajectory, verdict))
    row = describe(trajectory, Verdict(False, "no_answer"))
    return show_row(row | {"reason": None})


def show_row(row: Mapping[str, Any]) -> Shown:
    """The same of a row of a run's or an evaluation's trajectories.jsonl."""
    boxes = [box(GREY, f"question {row['key']}".strip(), line(safe(row["question"]), strong=True))]
    bar: list[tuple[int, str]] = []
    for turn in row["turns"]:
        sampled = turn["role"] == "assistant"
        bar.append((turn["tokens"], SAMPLED if sampled else FORCED))
        boxes.append(_model(turn) if sampled else _tool(turn))
    boxes.append(_end(row))
    sizes = {colour: sum(size for size, of in bar if of == colour) for colour in (SAMPLED, FORCED)}
    counts = f"{sizes[SAMPLED]} tokens sampled, {sizes[FORCED]} forced"
    calls = sum(len(turn["calls"]) for turn in row["turns"] if turn["role"] == "tool")
    words = f"trajectory {row['key']}: {calls} call{'' if calls == 1 else 's'}, {_stop(row)}"
    if row["reason"] is not None:
        words += f", {_verdict(row)}"
    return Shown(page(*boxes, strip(bar), label(counts)), words)


def _model(turn: Mapping[str, Any]) -> str:
    return box(SAMPLED, f"model · {turn['tokens']} tokens, sampled", pre(_message(turn["content"])))


def _tool(turn: Mapping[str, Any]) -> str:
    parts = []
    for call in turn["calls"]:
        if call["problem"]:
            parts.append(line(safe(f"refused: {call['problem'].replace('_', ' ')}"), strong=True))
        parts.append(response(call["response"]))
    names = ", ".join(dict.fromkeys(call.get("tool", "run_sql") for call in turn["calls"]))
    title = f"{names or 'run_sql'} · {turn['tokens']} tokens, forced"
    return box(FORCED, title, "".join(parts), edge="dashed")


def _end(row: Mapping[str, Any]) -> str:
    parts = []
    if row["reason"] is not None:
        parts.append(line(safe(_verdict(row)), strong=True))
        if row["detail"]:
            parts.append(pre(safe(row["detail"])))
    last = row["turns"][-1]["content"]
    blocks = [m["block"].strip() for m in _PARTS.finditer(last) if m["block"] is not None]
    if row["answer"] is None:
        parts.append(line(dim("there is no sql block in the last message, so there is no answer")))
    elif blocks != [row["answer"]]:  # otherwise it stands right above, and alone
        parts.append(label("the answer") + pre(sql(row["answer"])))
    colour = GREY if row["reason"] is None else GREEN if row["correct"] else VERMILION
    return box(colour, f"end · {_stop(row)}", "".join(parts))


def _stop(row: Mapping[str, Any]) -> str:
    return STOPS.get(row["stop"], row["stop"])


def _verdict(row: Mapping[str, Any]) -> str:
    return "✓ correct" if row["correct"] else f"✗ {row['reason'].replace('_', ' ')}"


def _message(text: str) -> str:
    """A message as HTML, with the SQL in its calls and fences made readable."""
    parts, at = [], 0
    for m in _PARTS.finditer(text):
        parts.append(safe(text[at : m.start()]))
        at = m.end()
        if m["think"] is not None:
            parts.append(dim(m[0]))
        elif m["call"] is not None:
            query = _query(m["call"])
            end = "</tool_call>" if m[0].endswith("</tool_call>") else ""
            shown = safe(m["call"]) if query is None else f"{dim(' run_sql')}\n{sql(query)}\n"
            parts.append(dim("<tool_call>") + shown + dim(end))
        else:
            plain = m["label"].lower() not in ("", "sql", "sqlite")
            block = safe(m["block"]) if plain else sql(m["block"])
            parts.append(dim(m["open"]) + block + dim(m["close"]))
    return "".join([*parts, safe(text[at:])])


def _query(body: str) -> str | None:
    """The query of a call that says nothing else; None for one that has to be shown as it is."""
    try:
        call = json.loads(body, strict=False)
    except (ValueError, RecursionError):
        return None
    arguments = call.get("arguments") if isinstance(call, dict) else None
    query = arguments.get("query") if isinstance(arguments, dict) else None
    usual = {"name": "run_sql", "arguments": {"query": query}}
    return query if isinstance(query, str) and call == usual else None
