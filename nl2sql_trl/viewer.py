"""A trajectory as readable HTML: what the model wrote, what it was told, and the verdict.

    show(trajectory, task.verdict(trajectory))     # the last line of a notebook cell

Every text in it was written by a model or comes out of a database, so all of it is escaped and
stands in `<pre>`, which notebooks do not typeset either. Colours are translucent or inherited: it
reads on light and on dark pages. No scripts, no style sheets, no widgets.

This module judges nothing and reads no database.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from nl2sql_trl.records import Call, ModelTurn, ToolTurn, Trajectory, Verdict

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#888888"

_STOPS = {
    "answer": "the model answered",
    "budget": "the token budget ran out",
    "turn_limit": "the turn limit was reached",
}
_PRE = (
    "margin:2px 0;padding:0;background:transparent;color:inherit;border:0;"
    "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:13px;line-height:1.45;"
    "white-space:pre-wrap;overflow-wrap:anywhere;word-break:normal;text-align:left"
)
_BOX = (
    "border-left:4px solid {colour};background:rgba(128,128,128,0.10);"
    "margin:6px 0;padding:6px 10px;border-radius:3px"
)


@dataclass(frozen=True, repr=False)
class Shown:
    """HTML for a notebook, with one line of plain text for everywhere else."""

    html: str
    line: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.line


def show(trajectory: Trajectory, verdict: Verdict | None = None) -> Shown:
    """The turns of a trajectory in order, then its answer and, if given, the verdict on it."""
    question = trajectory.prompt.messages[-1]["content"]
    key = trajectory.prompt.key
    boxes = [_box(GREY, f"question {key}".strip(), _pre(question))]
    for turn in trajectory.turns:
        boxes.append(_model(turn) if isinstance(turn, ModelTurn) else _tool(turn))
    boxes.append(_end(trajectory, verdict))
    html = (
        f'<div class="tex2jax_ignore mathjax_ignore" style="max-width:60em">{"".join(boxes)}</div>'
    )
    calls = len(trajectory.calls)
    line = f"trajectory {key}: {calls} call{'' if calls == 1 else 's'}, {_STOPS[trajectory.stop]}"
    return Shown(html, line + (f", {_verdict(verdict)}" if verdict else ""))


def _model(turn: ModelTurn) -> str:
    return _box(BLUE, f"model · {len(turn.ids)} tokens, sampled", _pre(turn.text))


def _tool(turn: ToolTurn) -> str:
    calls = "".join(_parts(call) for call in turn.calls)
    return _box(GREY, f"run_sql · {len(turn.ids)} tokens, forced", calls)


def _parts(call: Call) -> str:
    refused = _label(f"refused: {call.problem}") if call.problem else ""
    query = "" if call.query is None else _pre(call.query, strong=True)
    return refused + query + _pre(call.response)


def _end(trajectory: Trajectory, verdict: Verdict | None) -> str:
    answer = _pre("no answer" if trajectory.answer is None else trajectory.answer, strong=True)
    if verdict is None:
        return _box(GREY, f"final answer · {_STOPS[trajectory.stop]}", answer)
    colour = GREEN if verdict.correct else ORANGE
    label = f"final answer · {_STOPS[trajectory.stop]} · {_verdict(verdict)}"
    return _box(colour, label, answer + (_pre(verdict.detail) if verdict.detail else ""))


def _verdict(verdict: Verdict) -> str:
    return "✓ correct" if verdict.correct else f"✗ {verdict.reason.replace('_', ' ')}"


def _box(colour: str, label: str, inner: str) -> str:
    return f'<div style="{_BOX.format(colour=colour)}">{_label(label)}{inner}</div>'


def _label(text: str) -> str:
    return f'<pre style="{_PRE};font-size:11px;opacity:0.75">{_safe(text)}</pre>'


def _pre(text: str, strong: bool = False) -> str:
    weight = ";font-weight:600" if strong else ""
    return f'<pre style="{_PRE}{weight}">{_safe(text)}</pre>'


def _safe(text: str) -> str:
    """Escaped, and encodable: half a surrogate pair would break the notebook's file."""
    return escape(text.encode("utf-8", "backslashreplace").decode("utf-8"))
