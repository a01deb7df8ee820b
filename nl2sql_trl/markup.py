"""HTML pieces of the viewers: boxes, labels and texts that nobody can break out of.

Every text that is shown was written by a model or comes out of a database. All of it is escaped;
what would be invisible or would turn the text around it (control characters, overrides of the
writing direction, halves of a surrogate pair) is written as `\\uNNNN`.

Styles are inline, because notebooks drop style sheets and scripts of what they don't trust.
Colours are translucent or inherited, so they read on light and on dark pages alike; the lines'
colours are of Okabe and Ito's palette (2008), or near it. No scripts, no widgets.

This module knows no record and lays out no trajectory: that is `viewer.py` and `tokens.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

BLUE, AMBER, VERMILION, GREEN, GREY = "#0072B2", "#B87700", "#D55E00", "#009E73", "#888888"
SAMPLED, FORCED = BLUE, AMBER

_MONO = "font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
_PRE = (
    f"margin:2px 0;padding:0;background:transparent;color:inherit;border:0;{_MONO};font-size:13px;"
    "line-height:{height};white-space:pre-wrap;overflow-wrap:break-word;word-break:normal;"
    "text-align:left"
)
_PAGE = "max-width:62em;font-size:14px;line-height:1.5;text-align:left;direction:ltr"
_BOX = "border-left:4px {edge} {colour};background:{paper};margin:6px 0;padding:6px 12px"

# Controls, C1 controls, marks and overrides of direction, line separators, halves of pairs.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff]"
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


def safe(text: str) -> str:
    """Escaped for HTML, and everything in it visible and encodable."""
    return escape(_UNSEEN.sub(lambda m: f"\\u{ord(m[0]):04x}", text))


def page(*parts: str) -> str:
    """The whole: parts one under the other. The classes keep formulas from being typeset."""
    inner = "".join(parts)
    return f'<div class="tex2jax_ignore mathjax_ignore" style="{_PAGE}">{inner}</div>'


def box(colour: str, title: str, inner: str, edge: str = "solid") -> str:
    """A block with a coloured line on its left (`edge` as in CSS) and a title over it."""
    style = _BOX.format(colour=colour, edge=edge, paper="rgba(128,128,128,0.09)")
    return f'<div style="{style}">{label(title)}{inner}</div>'


def label(text: str, above: int = 0) -> str:
    """A small line over or under something, with `above` pixels of room."""
    return f'<div style="font-size:12px;opacity:0.8;margin-top:{above}px">{safe(text)}</div>'


def line(inner: str, strong: bool = False) -> str:
    """A line of ordinary text, given as HTML."""
    weight = "font-weight:600;" if strong else ""
    return f'<div style="{weight}overflow-wrap:break-word">{inner}</div>'


def pre(inner: str, height: float = 1.5) -> str:
    """Text with its white space kept, given as HTML; long lines are folded."""
    return f'<pre style="{_PRE.format(height=height)}">{inner}</pre>'


def dim(text: str) -> str:
    """Text that is there but matters less."""
    return f'<span style="opacity:0.7">{safe(text)}</span>'


def scroll(inner: str) -> str:
    """What may be wider or longer than the page: it scrolls inside itself."""
    return f'<div style="overflow:auto;max-width:100%;max-height:24em">{inner}</div>'


def strip(parts: Sequence[tuple[int, str]], rest: int = 0) -> str:
    """A bar of turns: how many tokens each has and its colour (SAMPLED or FORCED).

    Forced ones are hollow and dashed; `rest` is what nobody took.
    """
    styles = {
        SAMPLED: f"height:10px;background:{SAMPLED}",
        FORCED: f"height:6px;border:2px dashed {FORCED}",
        GREY: "height:8px;border:1px solid rgba(128,128,128,0.5)",
    }
    cells = "".join(
        f'<div style="flex:{size} 1 0;min-width:1px;margin-right:2px;{styles[colour]}"></div>'
        for size, colour in (*parts, (rest, GREY))
        if size
    )
    return f'<div style="display:flex;align-items:center;margin:8px 0 4px">{cells}</div>'
