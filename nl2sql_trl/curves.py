"""Draws metrics over training steps: panels, bands over seeds, legends that cover nothing.

One panel shows the reward with a band, the others what explains it; a warm start, which has no
reward, shows its loss and token accuracy. Lines are smoothed. Two names or more have a colour
each, and styles tell the lines of one panel apart. The colours are those of Okabe and Ito (2008),
which colour-blind readers can tell apart.

Rows in, a figure out: nothing here reads a file or computes a metric. `display.py` finds the runs.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
COLOURS = (BLUE, ORANGE, GREEN, PINK, "#E69F00", "#56B4E9", "#000000")

Rows = Sequence[dict[str, Any]]
Points = dict[int, float]  # step to value


@dataclass(frozen=True, slots=True)
class Panel:
    """What one pair of axes shows: keys of metrics.jsonl, with a label each if there are two."""

    title: str
    unit: str
    lines: dict[str, str]
    limits: tuple[float, float] | None = None


_SHARE = (-0.03, 1.03)
HELD_OUT = "eval_reward"  # of an evaluation while training, in the reward's panel
REWARD = Panel("Training reward", "mean reward of a step", {"reward": ""})
BESIDE = (
    Panel("Groups without variance", "share of groups", {"frac_reward_zero_std": ""}, _SHARE),
    Panel("run_sql calls", "calls per trajectory", {"rollout/calls": ""}),
)
BELOW = (
    Panel(
        "Answers",
        "share of trajectories",
        {"rollout/executable": "executable", "rollout/ran_its_answer": "was run first"},
        _SHARE,
    ),
    Panel("Length of a trajectory", "sampled tokens", {"completions/mean_length": ""}),
    Panel("Entropy", "nats per token", {"entropy": ""}),
)
KL = Panel("KL to the reference", "nats per token", {"kl": ""})
WARM_START = (
    Panel("Loss of the warm start", "nats per token", {"loss": ""}),
    Panel("Token accuracy", "share predicted right", {"mean_token_accuracy": ""}),
)


def picture(size: tuple[float, float]) -> Figure:
    """An empty figure of this size in inches, which a notebook shows without pyplot's help."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            return png(self)

    return Picture(figsize=size, layout="constrained", facecolor="white")


def png(figure: Figure) -> bytes:
    """The figure for a notebook, in 256 colours: a third of the bytes, and no difference to see."""
    from PIL import Image

    whole, small = io.BytesIO(), io.BytesIO()
    figure.savefig(whole, format="png", dpi=90)
    Image.open(whole).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(
        small, format="png", optimize=True
    )
    return small.getvalue()


def smooth(values: Sequence[float], weight: float = 0.7) -> list[float]:
    """Means whose weights fall off by `weight` a step to both sides: unlike a moving average of
    the past, they do not lag behind a curve that rises."""

    def sums(found: Sequence[float]) -> list[float]:
        return list(accumulate(found, lambda total, value: weight * total + value))

    ones = [1.0] * len(values)
    before, after = sums(values), sums(values[::-1])[::-1]
    norms, others = sums(ones), sums(ones)[::-1]
    return [
        (b + a - value) / (n + o - 1)
        for b, a, value, n, o in zip(before, after, values, norms, others, strict=True)
    ]


def draw(curves: Mapping[str, Sequence[Rows]], title: str) -> Figure:
    """The figure of metrics by name: one list of rows a directory, several are seeds of a name."""
    every = [row for seeds in curves.values() for rows in seeds for row in rows]
    logged = {key for row in every for key, value in row.items() if value is not None}
    panels: Sequence[Panel]
    if "reward" in logged or not logged & WARM_START[1].lines.keys():
        below = (*BELOW, KL) if "kl" in logged else BELOW
        panels = (REWARD, *BESIDE, *below)
        figure = picture((3 * len(below) + 1, 7))
        grid = figure.add_gridspec(3, len(below))
        cells = [grid[:2, :-1], grid[0, -1], grid[1, -1], *(grid[2, n] for n in range(len(below)))]
    else:
        panels = WARM_START
        figure = picture((10, 3.4))
        grid = figure.add_gridspec(1, 2)
        cells = [grid[0, 0], grid[0, 1]]
    first: Axes | None = None
    missing: dict[str, list[str]] = {name: [] for name in curves}
    for panel, cell in zip(panels, cells, strict=True):
        axis = figure.add_subplot(cell, sharex=first)
        for name, what in _panel(axis, panel, curves, leading=first is None):
            missing[name].append(what)
        # Those beside the first stand above one that says it.
        axis.set_xlabel("" if panel in BESIDE else "training step")
        first = first or axis
    if sum(map(len, curves.values())) > 1:
        _names(figure, curves, missing, title)
    elif title:
        figure.suptitle(title).set_parse_math(False)
    return figure


def _panel(
    axis: Axes, panel: Panel, curves: Mapping[str, Sequence[Rows]], *, leading: bool
) -> list[tuple[str, str]]:
    """Draw every name's lines; returns which names have not logged what."""
    from matplotlib.ticker import MaxNLocator

    alone = sum(map(len, curves.values())) == 1
    missing = []
    for colour, (name, seeds) in zip(COLOURS, curves.items(), strict=False):
        for key, style, own in zip(panel.lines, ("-", "--"), COLOURS, strict=False):
            found = [points for rows in seeds if (points := _points(rows, key))]
            line = own if alone else colour  # a run on its own can spend colours on its lines
            if len(found) < len(seeds):
                missing.append((name, f"{panel.title} ({len(seeds) - len(found)})"
                                if found else panel.title))  # fmt: skip
            if found and len(seeds) > 1:
                _draw_seeds(axis, found, line, style, band=len(panel.lines) == 1)
            elif found:
                _draw_run(axis, found[0], line, style, raw=alone, band=panel is REWARD)
        for rows in seeds if panel is REWARD else ():
            if held := _points(rows, HELD_OUT):
                axis.plot(list(held), list(held.values()), "D", color=colour, mec="white", ms=8,
                          label="held-out questions")  # fmt: skip
    if not axis.has_data():
        axis.text(0.5, 0.5, "not logged", transform=axis.transAxes, ha="center", color=GREY)
        axis.set_yticks([])
    elif leading and alone:
        _legend(axis, *axis.get_legend_handles_labels())
    elif len(panel.lines) > 1:
        _line_legend(axis, panel, alone)
    pad = 6 if axis.get_legend() is None else 20
    axis.set_title(panel.title, loc="left", fontsize="medium", pad=pad)
    axis.set_ylabel(panel.unit)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
    if panel.limits:
        axis.set_ylim(*panel.limits)
    axis.grid(alpha=0.25)
    return list(dict.fromkeys(missing))


def _points(rows: Rows, key: str) -> Points:
    """Value by step: finite ones only, the last one if a step was logged twice."""
    found = {row["step"]: row[key] for row in rows if row.get(key) is not None and "step" in row}
    return {step: value for step, value in sorted(found.items()) if math.isfinite(value)}


def _draw_run(
    axis: Axes, points: Points, colour: str, style: str, *, raw: bool, band: bool
) -> None:
    steps, values = list(points), list(points.values())
    if len(values) < 3:  # nothing to smooth
        axis.plot(steps, values, color=colour, ls=style, label="mean of the step", **_dot(style))
        return
    line = smooth(values)
    if raw:
        axis.plot(
            steps, values, color=colour, ls=style, lw=0.9, alpha=0.4, label="mean of the step"
        )
    axis.plot(steps, line, color=colour, ls=style, lw=2, label="smoothed")
    if band:
        spread = _spread(values, line)
        low = [v - s for v, s in zip(line, spread, strict=True)]
        high = [v + s for v, s in zip(line, spread, strict=True)]
        axis.fill_between(
            steps, low, high, color=colour, alpha=0.15, lw=0, label="±1 s.d. of the steps"
        )


def _dot(style: str, wanted: bool = True) -> dict[str, Any]:
    """A mark for a step that no line reaches; the second line's goes around the first one's."""
    if not wanted:
        return {}
    return {"marker": "o", "ms": 4} if style == "-" else {"marker": "o", "ms": 8, "mfc": "none"}


def _spread(values: Sequence[float], line: Sequence[float]) -> list[float]:
    """Standard deviation of the steps around the smoothed line, smoothed the same way."""
    squares = smooth([(v - m) ** 2 for v, m in zip(values, line, strict=True)])
    return [math.sqrt(s) for s in squares]


def _draw_seeds(
    axis: Axes, seeds: Sequence[Points], colour: str, style: str, *, band: bool
) -> None:
    """The mean of the smoothed seeds over the steps that all have; longer ones go on thinly."""
    lines = [dict(zip(p, smooth(list(p.values())), strict=True)) for p in seeds]
    common = sorted(set(lines[0]).intersection(*lines[1:]))
    columns = [[line[step] for line in lines] for step in common]
    means = [sum(column) / len(column) for column in columns]
    axis.plot(common, means, color=colour, ls=style, lw=2, **_dot(style, len(common) < 2))
    if band:
        low, high = [min(c) for c in columns], [max(c) for c in columns]
        axis.fill_between(common, low, high, color=colour, alpha=0.18, lw=0)
    for line in lines:
        rest = [step for step in line if not common or step >= common[-1]]
        if len(rest) > 1 or not common:
            axis.plot(rest, [line[s] for s in rest], color=colour, ls=style, lw=0.8, alpha=0.7)


# Legends stand above the axes: inside, they would cover lines sooner or later


def _legend(axis: Axes, handles: Sequence[Any], labels: Sequence[str]) -> None:
    axis.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(handles),
        frameon=False,
        fontsize="small",
        borderaxespad=0.1,
        borderpad=0.2,
        handlelength=1.6,
        columnspacing=1.0,
    )


def _line_legend(axis: Axes, panel: Panel, alone: bool) -> None:
    """Which line of a panel is which, whatever the run."""
    from matplotlib.lines import Line2D

    colours = COLOURS if alone else (GREY, GREY)
    handles = [
        Line2D([], [], color=colour, ls=style, lw=2)
        for colour, style in zip(colours, ("-", "--"), strict=False)
    ]
    _legend(axis, handles, list(panel.lines.values()))


def _names(
    figure: Figure,
    curves: Mapping[str, Sequence[Rows]],
    missing: Mapping[str, list[str]],
    title: str,
) -> None:
    """The title, what lines and bands are, and the names with what each did not log."""
    from matplotlib.lines import Line2D

    labels, bands = [], []
    for name, seeds in curves.items():
        several = len(seeds) > 1
        bands.append("lowest to highest seed" if several else "±1 s.d. of a single run's steps")
        lacking = f"; not logged: {', '.join(missing[name])}" if missing[name] else ""
        labels.append(f"{name} ({len(seeds)} seeds{lacking})" if several else name + lacking)
    what = f"Lines are smoothed; bands: {', or '.join(dict.fromkeys(bands))}."
    if any(HELD_OUT in row for seeds in curves.values() for rows in seeds for row in rows):
        what += " Diamonds: held-out questions."
    handles = [Line2D([], [], color=colour, lw=3) for colour in COLOURS[: len(labels)]]
    legend = figure.legend(
        handles,
        # A label that begins with an underscore would be left out: texts are set below.
        [str(n) for n in range(len(labels))],
        loc="outside upper left",
        ncols=max(1, min(len(labels), 110 // (max(map(len, labels)) + 6))),
        frameon=False,
        title=f"{title}\n{what}" if title else what,
        alignment="left",
    )
    for text in (legend.get_title(), *legend.get_texts()):
        text.set_parse_math(False)
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_text(label)
