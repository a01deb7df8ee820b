"""Evaluations as a picture: accuracies with their intervals, and why the rest fails.

    accuracy_chart({"warm start": report, "GRPO": report})      # a matplotlib figure

A report is what `evaluate.measure` returns or report.json holds. Curves over training are in
`display.py`; this module computes no metric and reads no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nl2sql_trl.analysis import CAUSES
from nl2sql_trl.display import BLUE, GREEN, GREY, ORANGE, PINK, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_METRICS = {
    "testsuite_exec": "test suite",
    "execution_accuracy": "same rows",
    "exact_match": "exact match",
    "legacy_exec": "legacy\nexecution",
}
# Okabe and Ito's palette again, a colour a run and a colour a cause.
_RUNS = (GREY, BLUE, ORANGE, GREEN, PINK)
_CAUSES = ("#999999", "#CC79A7", "#E69F00", "#F0E442", "#D55E00", "#000000", "#0072B2", "#56B4E9")


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
    _accuracies(left, reports)
    _failures(right, reports)
    return figure


def _accuracies(axis: Any, reports: Mapping[str, dict[str, Any]]) -> None:
    width = 0.8 / len(reports)
    for n, (name, report) in enumerate(reports.items()):
        found = [report["metrics"][metric]["all"] for metric in _METRICS]
        places = [m + (n - (len(reports) - 1) / 2) * width for m in range(len(_METRICS))]
        means = [entry["mean"] for entry in found]
        # The bootstrap's ends may lie a rounding error on the wrong side of the mean.
        below = [max(0.0, entry["mean"] - entry["low"]) for entry in found]
        above = [max(0.0, entry["high"] - entry["mean"]) for entry in found]
        colour = _RUNS[n % len(_RUNS)]
        axis.bar(places, means, width * 0.92, color=colour, label=name)
        axis.errorbar(
            places, means, yerr=(below, above), fmt="none", ecolor="black", elinewidth=1, capsize=2
        )
    axis.set_xticks(range(len(_METRICS)), list(_METRICS.values()))
    axis.set(ylabel="share of rows right, 95% interval", ylim=(0, 1))
    axis.grid(axis="y", alpha=0.25)
    axis.legend(frameon=False, fontsize="small")


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
