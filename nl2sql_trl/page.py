"""The report as one HTML page: its tables, a picture, and a list of rows to filter and open.

The page fetches nothing and runs the one script that its policy names by hash (page.js); its
style is page.css. Texts of models and databases are escaped in the tables. In the rows they are
data: JSON that no text can end, of which the script makes text nodes and never markup.

What the tables say is decided in `report_tables` and `report_sections`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from nl2sql_trl.report_runs import Evaluated
from nl2sql_trl.report_tables import (
    METRICS,
    TIMES,
    Cell,
    Link,
    Table,
    about,
    levels,
    readable,
    roles,
    unlike,
)

# What the rows show of a rollout; the question, its gold and its database stand once a row.
_ROLLOUT = ("turns", "stop", "answer", "ran_its_answer", "correct", "reason", "detail", "scores",
            "failure", "detectors")  # fmt: skip

_NUMBER = rf"[-+{TIMES}\d.,%()\[\] e]+"

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src {script_hash}; \
style-src {style_hash}; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
{about}
<nav aria-label="sections">{links}</nav>
</header>
<main>
{sections}
<section id="rows">
<h2>Rows</h2>
<noscript><p>The list of rows needs JavaScript. All of it is in trajectories.jsonl.</p></noscript>
<form id="filter" role="search" aria-label="filter rows"></form>
<p><output id="matched" aria-live="polite"></output></p>
<div id="list"></div>
</section>
</main>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def html(runs: Sequence[Evaluated], found: Sequence[Table]) -> str:
    """The page of one run, or of several on the same questions, with the given tables."""
    title = f"Evaluation of {runs[-1].name}"
    if len(runs) > 1:
        title += f" against {runs[0].name}"
    style, script = _asset("page.css"), _asset("page.js")
    difference = unlike(runs)
    titles = [table.title for table in found if table.title]
    return _PAGE.format(
        title=_safe(title),
        about="\n".join(
            [
                *(
                    f"<p><b>{_safe(role)}</b>, {_safe(about(run))}.</p>"
                    for role, run in zip(roles(runs), runs, strict=True)
                ),
                *([f"<p>{_safe(difference)}</p>"] if difference else []),
            ]
        ),
        links=" ".join(f'<a href="#{_anchor(t)}">{_safe(t)}</a>' for t in (*titles, "Rows")),
        sections=_sections(runs, found),
        data=_embedded(_data(runs)),
        script=script,
        script_hash=_hash(script),
        style=style,
        style_hash=_hash(style),
    )


def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """A source of a Content-Security-Policy: this very text and no other."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _data(runs: Sequence[Evaluated]) -> dict[str, Any]:
    """What the script lists: a row for each question, in it the rollouts of each run."""
    rows = [
        {
            "key": samples[0][0]["key"],
            "db": samples[0][0]["db_id"],
            "level": samples[0][0]["hardness"],
            "question": samples[0][0]["question"],
            "gold": samples[0][0]["gold"],
            "runs": [[{k: r.get(k) for k in _ROLLOUT} for r in one] for one in samples],
        }
        for samples in zip(*(run.questions for run in runs), strict=True)
    ]
    return {"runs": [run.name for run in runs], "rows": rows}


def _embedded(value: object) -> str:
    """JSON for a script element: nothing in it ends the element or opens a comment."""
    text = json.dumps(_readable(value), ensure_ascii=False, separators=(",", ":"))
    return re.sub("[<>&\u2028\u2029]", lambda mark: f"\\u{ord(mark[0]):04x}", text)


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, Mapping):
        return {readable(str(k)): _readable(v) for k, v in value.items()}
    return [_readable(v) for v in value] if isinstance(value, (list, tuple)) else value


def _sections(runs: Sequence[Evaluated], found: Sequence[Table]) -> str:
    """Each title with its tables. The first has the picture, the others stand side by side."""
    grouped: list[list[str]] = []
    for table in found:
        if table.title:
            grouped.append([f"<h2>{_safe(table.title)}</h2>"])
        grouped[-1].append(_table(table))
    grouped[0].insert(2, _picture(runs))
    titles = [table.title for table in found if table.title]
    first, *others = (
        f'<section id="{_anchor(title)}">\n{"".join(parts)}\n</section>'
        for title, parts in zip(titles, grouped, strict=True)
    )
    return "\n".join([first, '<div class="more">', *others, "</div>"])


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{_safe(text)}</th>' for text in table.head)
    rows = "\n".join(
        f'<tr{_class("all", row[0] == "all")}><th scope="row">{_cell(row[0])}</th>'
        + "".join(f"<td{_class('number', _is_number(c))}>{_cell(c)}</td>" for c in row[1:])
        + "</tr>"
        for row in table.rows
    )
    note = f'<p class="note">{_safe(table.note)}</p>' if table.note else ""
    grid = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"
    return f'{note}<div class="wide">{grid}</div>'


def _class(name: str, holds: bool) -> str:
    return f' class="{name}"' if holds else ""


def _is_number(cell: Cell) -> bool:
    """Whether a cell must not be broken into lines: a count, a share, an interval."""
    text = cell.text if isinstance(cell, Link) else cell
    return isinstance(text, str) and re.fullmatch(_NUMBER, text) is not None


def _cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return _safe(cell)
    links = cell if isinstance(cell, tuple) else (cell,)
    return ", ".join(f'<a href="#{_safe(_query(link))}">{_safe(link.text)}</a>' for link in links)


def _query(link: Link) -> str:
    """The filter as the script reads it out of the address."""
    return urlencode({name: readable(value) for name, value in link.where.items()})


def _anchor(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower())


def _safe(text: str) -> str:
    return escape(readable(text))


# The picture: one line of dots for each run (or, of a single run, each metric), by hardness

_LEFT, _WIDTH, _STEP, _GAP, _TOP = 90, 440, 16, 14, 6


def _picture(runs: Sequence[Evaluated]) -> str:
    """Accuracies by hardness with their intervals, as inline SVG without text of models."""
    if len(runs) == 1:
        series = [(label, runs[0].report["metrics"][m]) for m, label in METRICS.items()]
    else:
        series = [(run.name, run.report["metrics"]["testsuite_exec"]) for run in runs]
    shown = levels(runs[-1])
    band = _STEP * len(series) + _GAP
    bottom = _TOP + band * len(shown)
    parts = []
    for tenth in range(0, 11, 2):
        x = _LEFT + _WIDTH * tenth / 10
        parts.append(f'<line class="grid" x1="{x:g}" x2="{x:g}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(
            f'<text x="{x:g}" y="{bottom + 16}" text-anchor="middle">{tenth / 10:.1f}</text>'
        )
    for row, level in enumerate(shown):
        top = _TOP + band * row + _GAP / 2
        middle = top + _STEP * len(series) / 2
        rows = series[-1][1][level]["rows"]
        parts.append(
            f'<text x="{_LEFT - 10}" y="{middle + 4:g}" text-anchor="end">{level} ({rows})</text>'
        )
        for at, (_, found) in enumerate(series):
            parts.append(_dot(at, found[level], top + _STEP * (at + 0.5)))
    width, height = _LEFT + _WIDTH + 60, bottom + 24
    label = "Accuracies by hardness with 95% intervals; the numbers are in the table above."
    opening = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
    keys = "".join(
        f'<li><svg viewBox="0 0 16 16" aria-hidden="true">{_mark(at, 8, 8)}</svg> '
        f"{_safe(name)}</li>"
        for at, (name, _) in enumerate(series)
    )
    return f'<figure>{opening}{"".join(parts)}</svg><ul class="keys">{keys}</ul></figure>'


def _dot(at: int, found: Mapping[str, Any], y: float) -> str:
    low, mean, high = (_LEFT + _WIDTH * found[name] for name in ("low", "mean", "high"))
    return (
        f'<line class="series{at % 5}" x1="{low:.1f}" x2="{high:.1f}" y1="{y:g}" y2="{y:g}"/>'
        + _mark(at, mean, y)
        + f'<text x="{high + 8:.1f}" y="{y + 4:g}">{found["mean"]:.3f}</text>'
    )


def _mark(at: int, x: float, y: float) -> str:
    """A mark of its own colour and its own shape."""
    shapes = {
        0: f'<circle cx="{x:.1f}" cy="{y:g}" r="4.5"/>',
        1: f'<rect x="{x - 4:.1f}" y="{y - 4:g}" width="8" height="8"/>',
        2: f'<path d="M{x:.1f} {y - 5.5:g}l5.5 9.5h-11z"/>',
        3: f'<path d="M{x:.1f} {y - 6:g}l6 6l-6 6l-6-6z"/>',
        4: f'<path d="M{x:.1f} {y + 5.5:g}l5.5-9.5h-11z"/>',
    }
    return f'<g class="series{at % 5}">{shapes[at % 5]}</g>'
