"""The picture of evaluations shows the numbers of their reports."""

from __future__ import annotations

from typing import Any

import pytest

from nl2sql_trl.analysis import CAUSES
from nl2sql_trl.charts import accuracy_chart, hardness_chart


def report(mean: float, causes: dict[str, int], rows: int = 10, samples: int = 1) -> dict[str, Any]:
    """The part of a report that is drawn."""
    entry = {"mean": mean, "low": mean - 0.1, "high": mean + 0.2}
    metrics = ("testsuite_exec", "execution_accuracy", "exact_match", "legacy_exec")
    return {
        "rows": rows,
        "samples": samples,
        "metrics": {metric: {"all": entry} for metric in metrics},
        "failures": [{"cause": c, "count": n, "parts": {}} for c, n in causes.items()],
    }


def heights(axis: Any) -> list[float]:
    return [round(patch.get_height(), 6) for patch in axis.patches]


def test_a_bar_is_as_high_as_its_accuracy() -> None:
    figure = accuracy_chart({"before": report(0.25, {}), "after": report(0.5, {})})
    assert heights(figure.axes[0]) == [0.25] * 4 + [0.5] * 4
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == [
        "before",
        "after",
    ]


def test_failures_are_shares_of_all_rollouts_and_stand_end_to_end() -> None:
    found = report(0.4, {CAUSES[0]: 4, CAUSES[4]: 8}, rows=10, samples=2)
    bars = accuracy_chart({"run": found}).axes[1].patches
    assert [round(bar.get_width(), 6) for bar in bars] == [0.2, 0.4]
    assert [round(bar.get_x(), 6) for bar in bars] == [0.0, 0.2]


def test_every_cause_has_a_colour_of_its_own() -> None:
    bars = accuracy_chart({"run": report(0, dict.fromkeys(CAUSES, 1))}).axes[1].patches
    assert len({bar.get_facecolor() for bar in bars}) == len(CAUSES)


def test_an_interval_on_the_wrong_side_by_rounding_is_drawn_all_the_same() -> None:
    found = report(1.0, {})
    for levels in found["metrics"].values():
        levels["all"] |= {"low": 1.0 + 1e-12, "high": 1.0}
    assert heights(accuracy_chart({"run": found}).axes[0]) == [1.0] * 4


def levels(found: dict[str, float]) -> dict[str, Any]:
    """A report with these accuracies by level, ten rows each."""
    entries = {k: {"mean": v, "low": v, "high": v, "rows": 10} for k, v in found.items()}
    return {"metrics": {"testsuite_exec": entries}}


def test_the_bars_of_a_level_are_its_runs_and_the_level_says_how_many_rows_it_has() -> None:
    before, after = levels({"easy": 0.5, "all": 0.25}), levels({"easy": 0.75, "all": 0.5})
    axis = hardness_chart({"before": before, "after": after}).axes[0]
    assert heights(axis) == [0.5, 0.25, 0.75, 0.5]
    assert [t.get_text() for t in axis.get_xticklabels()] == ["easy\n10 rows", "all\n10 rows"]


def test_a_bar_of_nothing_has_its_number_all_the_same() -> None:
    axis = hardness_chart({"base": levels({"all": 0.0})}).axes[0]
    assert [text.get_text() for text in axis.texts] == ["0.00"]


def test_a_metric_that_a_report_does_not_have_is_named_with_those_it_has() -> None:
    with pytest.raises(ValueError, match=r"'speed'.*testsuite_exec"):
        hardness_chart({"run": levels({"all": 0.5})}, "speed")


@pytest.mark.parametrize("chart", [accuracy_chart, hardness_chart])
def test_nothing_to_draw_is_refused(chart: Any) -> None:
    with pytest.raises(ValueError, match="no report"):
        chart({})
