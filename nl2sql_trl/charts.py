"""Evaluations as a picture: accuracies with their intervals, and why the rest fails.

    accuracy_chart({"warm start": report, "GRPO": report})      # a matplotlib figure
    hardness_chart({"warm start": report, "GRPO": report})

A report is what `evaluation.measure` returns or report.json holds. Curves over training are in
`curves.py`; this module computes no metric and reads no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nl2sql_trl.analysis import CAUSES
from nl2sql_trl.curves import BLUE, GREEN, GREY, ORANGE, PINK, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_METRICS = {
    "testsuite_exec": "test suite",
    "execution_accuracy": "same rows",
    "exact_match": "exact match",
    "legacy_exec": "legacy\nexecution",
}
# A colour a run of Okabe and Ito's palette, and a colour a cause of Tol's muted one: no colour
# means both.
_RUNS = (GREY, BLUE, ORANGE, GREEN, PINK)
_CAUSES = ("#DDDDDD", "#CC6677", "#332288", "#DDCC77", "#117733", "#88CCEE", "#882255", "#44AA99")


def accuracy_chart(reports: Mapping[str, dict[str, Any]], title: str = "") -> Figure:
    """Two panels: accuracy by metric and run with 95% intervals, and the causes of failure.

    reports: run name to report, in the order to be drawn. Shares are of rows, or of rollouts
    where a report has several samples a row. Raises ValueError for none.
    """
    if not reports:
        raise ValueError("no report to draw")
    figure = picture((10, 4.2))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    if title:
        figure.suptitle(title)
    found = {
        name: [report["metrics"][metric]["all"] for metric in _METRICS]
        for name, report in reports.items()
    }
    _bars(left, found, list(_METRICS.values()))
    left.set(ylabel="share of rows right, 95% interval", ylim=(0, 1.1))
    _failures(right, reports)
    return figure


def hardness_chart(
    reports: Mapping[str, dict[str, Any]], metric: str = "testsuite_exec", title: str = ""
) -> Figure:
    """Accuracy by Spider's hardness and run, with 95% intervals, and over all rows.

    reports: as for `accuracy_chart`, of the same questions. Raises ValueError for none, or for a
    metric that they do not have.
    """
    if not reports:
        raise ValueError("no report to draw")
    first = next(iter(reports.values()))
    if metric not in first["metrics"]:
        raise ValueError(
            f"there is no metric {metric!r}: take one of {', '.join(first['metrics'])}"
        )
    levels = {name: entry["rows"] for name, entry in first["metrics"][metric].items()}
    figure = picture((10, 3.4))
    axis = figure.subplots()
    found = {
        name: [report["metrics"][metric][level] for level in levels]
        for name, report in reports.items()
    }
    _bars(axis, found, [f"{level}\n{rows} rows" for level, rows in levels.items()])
    axis.set(ylabel="share of rows right,\n95% interval", ylim=(0, 1.1))
    if title:
        figure.suptitle(title)
    return figure


def _bars(axis: Any, found: Mapping[str, list[dict[str, Any]]], labels: Sequence[str]) -> None:
    """A group of bars a label, one of each run, from what report.json has of it."""
    width = 0.8 / len(found)
    for n, (name, entries) in enumerate(found.items()):
        places = [m + (n - (len(found) - 1) / 2) * width for m in range(len(labels))]
        means = [entry["mean"] for entry in entries]
        # The bootstrap's ends may lie a rounding error on the wrong side of the mean.
        below = [max(0.0, entry["mean"] - entry["low"]) for entry in entries]
        above = [max(0.0, entry["high"] - entry["mean"]) for entry in entries]
        colour = _RUNS[n % len(_RUNS)]
        axis.bar(places, means, width * 0.92, color=colour, label=name)
        axis.errorbar(
            places, means, yerr=(below, above), fmt="none", ecolor="black", elinewidth=1, capsize=2
        )
        for place, entry in zip(places, entries, strict=True):
            # A bar of height 0 would not be there at all.
            top = max(entry["mean"], entry["high"]) + 0.02
            axis.text(place, top, f"{entry['mean']:.2f}", ha="center", fontsize="x-small")
    axis.set_xticks(range(len(labels)), labels)
    axis.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    axis.grid(axis="y", alpha=0.25)
    axis.set_axisbelow(True)
    axis.legend(frameon=False, fontsize="small", loc="lower left", bbox_to_anchor=(0, 1),
                ncols=len(found), borderaxespad=0.1)  # fmt: skip


def _failures(axis: Any, reports: Mapping[str, dict[str, Any]]) -> None:
    names = list(reports)
    starts = [0.0] * len(names)
    for cause, colour in zip(CAUSES, _CAUSES, strict=True):
        shares = [
            sum(f["count"] for f in report["failures"] if f["cause"] == cause)
            / (report["rows"] * report["samples"])
            for report in reports.values()
        ]
        if any(shares):
            axis.barh(names, shares, left=starts, color=colour, label=cause, height=0.6)
            starts = [start + share for start, share in zip(starts, shares, strict=True)]
    axis.set(xlabel="share of rows wrong, by cause", xlim=(0, 1))
    axis.invert_yaxis()
    axis.grid(axis="x", alpha=0.25)
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        axis.legend(handles, labels, frameon=False, fontsize="x-small", loc="lower left",
                    bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.1)  # fmt: skip
