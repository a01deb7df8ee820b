"""Error bars: right on cases that can be worked out, and wider where rows hang together."""

from __future__ import annotations

import math
import random
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nl2sql_trl.stats import (
    Estimate,
    McNemar,
    accuracy,
    across_seeds,
    mcnemar,
    mean,
    paired_difference,
    pass_at_k,
    wilson,
)


def rows(count: int) -> list[str]:
    """Every row a cluster of its own."""
    return [str(n) for n in range(count)]


@pytest.mark.parametrize("value", [0.0, 1.0, -2.5])
def test_values_that_are_all_alike_have_no_width(value: float) -> None:
    found = mean([value] * 12, list("aaabbbcccddd"))
    assert (found.mean, found.low, found.high) == (value, value, value)
    assert (found.rows, found.clusters) == (12, 4)


def test_a_single_row_has_no_width() -> None:
    assert mean([0.5], ["a"]) == Estimate(0.5, 0.5, 0.5, 1, 1)


def test_one_cluster_is_the_ordinary_bootstrap_of_its_rows() -> None:
    found = mean([0.0, 1.0] * 200, ["a"] * 400)
    error = 1.96 * 0.5 / math.sqrt(400)
    assert found.mean == 0.5
    assert found.low == pytest.approx(0.5 - error, abs=0.01)
    assert found.high == pytest.approx(0.5 + error, abs=0.01)


def test_clusters_of_one_row_are_the_ordinary_bootstrap_too() -> None:
    found = mean([0.0, 1.0] * 200, rows(400))
    error = 1.96 * 0.5 / math.sqrt(400)
    assert found.low == pytest.approx(0.5 - error, abs=0.01)
    assert found.high == pytest.approx(0.5 + error, abs=0.01)


def test_two_clusters_of_one_row_give_all_or_nothing() -> None:
    # 00, 01, 10 and 11 are equally likely: both ends have a quarter.
    found = mean([0.0, 1.0], ["a", "b"])
    assert (found.mean, found.low, found.high) == (0.5, 0.0, 1.0)


def test_rows_that_agree_within_their_database_widen_the_interval() -> None:
    values = [float(d % 2) for d in range(20) for _ in range(20)]
    clustered = mean(values, [str(d) for d in range(20) for _ in range(20)])
    independent = mean(values, rows(400))
    assert clustered.mean == independent.mean == 0.5
    width = clustered.high - clustered.low
    assert width > 3 * (independent.high - independent.low)
    # As wide as if each database were one row.
    assert width == pytest.approx(2 * 1.96 * 0.5 / math.sqrt(20), rel=0.1)


def test_clusters_of_unequal_size_weigh_by_their_rows() -> None:
    found = mean([1.0] * 9 + [0.0], ["big"] * 9 + ["small"])
    assert found.mean == 0.9
    assert (found.low, found.high) == (0.0, 1.0)


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng, covered, trials = random.Random(1), 0, 100
    for trial in range(trials):
        share = [rng.betavariate(4, 4) for _ in range(30)]
        values = [float(rng.random() < p) for p in share for _ in range(8)]
        found = mean(values, [str(d) for d in range(30) for _ in range(8)], seed=trial)
        covered += found.low <= 0.5 <= found.high
    assert 90 <= covered <= 100


def test_the_same_seed_gives_the_same_interval_and_another_another() -> None:
    rng = random.Random(0)
    values = [rng.random() for _ in range(60)]
    clusters = [str(n // 6) for n in range(60)]
    assert mean(values, clusters, 1) == mean(values, clusters, 1)
    assert mean(values, clusters, 1) != mean(values, clusters, 2)


def test_the_order_of_clusters_and_the_types_of_values_do_not_matter() -> None:
    one = mean([1, 0, 1, 1], ["a", "a", "b", "b"])
    other = mean([True, True, True, False], ["b", "b", "a", "a"])
    assert one.mean == other.mean == 0.75
    assert (one.low, one.high) == pytest.approx((other.low, other.high), abs=0.01)


def test_the_interval_holds_the_mean_and_keeps_within_the_values() -> None:
    for values in product([0.0, 1.0], repeat=4):
        found = mean(values, ["a", "a", "b", "b"])
        assert 0 <= found.low <= found.mean <= found.high <= 1


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(-5, 5), st.sampled_from("abc")), min_size=1, max_size=30))
def test_the_mean_is_that_of_the_rows_whatever_the_clusters(data: list[tuple[float, str]]) -> None:
    values, clusters = zip(*data, strict=True)
    found = mean(values, clusters)
    assert found.mean == pytest.approx(sum(values) / len(values), abs=1e-9)
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9
    assert (found.rows, found.clusters) == (len(data), len(set(clusters)))


# Paired differences


def test_pairing_takes_out_what_the_rows_have_in_common() -> None:
    rng = random.Random(3)
    before = [rng.random() for _ in range(100)]
    after = [value + 0.05 for value in before]
    paired = paired_difference(before, after, rows(100))
    assert paired.mean == pytest.approx(0.05)
    assert paired.low > 0.04
    # Apart, the two intervals overlap.
    assert mean(before, rows(100)).high > mean(after, rows(100)).low


def test_a_difference_turns_its_sign_with_its_order() -> None:
    before, after = [0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 1.0]
    there, back = (
        paired_difference(a, b, ["a", "a", "b", "b"]) for a, b in ((before, after), (after, before))
    )
    assert there.mean == -back.mean == 0.5
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low), abs=0.01)


def test_no_difference_has_no_width() -> None:
    found = paired_difference([0.0, 1.0, 1.0], [0.0, 1.0, 1.0], ["a", "b", "b"])
    assert (found.mean, found.low, found.high) == (0.0, 0.0, 0.0)


# What is refused


@pytest.mark.parametrize(
    ("values", "clusters"), [([], []), ([1.0], []), ([], ["a"]), ([1.0, 0.0], ["a"])]
)
def test_rows_without_clusters_are_refused(values: list[float], clusters: list[str]) -> None:
    with pytest.raises(ValueError, match="clusters"):
        mean(values, clusters)


def test_unequal_numbers_of_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rows before, 1 after"):
        paired_difference([0.0, 1.0], [1.0], ["a", "b"])


def test_an_estimate_prints_its_interval() -> None:
    assert str(Estimate(0.5, 0.25, 0.75, 8, 2)) == "0.500 [0.250, 0.750]"


@pytest.mark.parametrize(
    ("right", "rows", "low", "high"),
    [
        # Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_gives_the_published_intervals(
    right: int, rows: int, low: float, high: float
) -> None:
    assert wilson(right, rows) == pytest.approx((low, high), abs=5e-5)
    mirrored = wilson(rows - right, rows)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=5e-5)


@pytest.mark.parametrize(("right", "rows"), [(1, 0), (0, 0), (-1, 3), (4, 3)])
def test_wilson_refuses_counts_that_cannot_be(right: int, rows: int) -> None:
    with pytest.raises(ValueError, match=f"{right} right of {rows}"):
        wilson(right, rows)


def test_accuracy_has_wilson_beside_it_unless_values_are_shares() -> None:
    whole = accuracy([1.0, 0.0, 1.0], rows(3))
    assert (whole.wilson_low, whole.wilson_high) == wilson(2, 3)
    share = accuracy([0.5, 0.25, 1.0], rows(3))
    assert (share.wilson_low, share.wilson_high) == (None, None)


def test_mcnemar_counts_gains_and_losses_and_is_exact() -> None:
    before = [True] * 9 + [False] * 1 + [True] * 5 + [False] * 7
    after = [False] * 9 + [True] * 1 + [True] * 5 + [False] * 7
    # Two-sided binomial: 2 * (C(10, 0) + C(10, 1)) / 2**10.
    assert mcnemar(before, after) == McNemar(gained=1, lost=9, p=22 / 1024)
    assert mcnemar(after, before) == McNemar(gained=9, lost=1, p=22 / 1024)


def test_mcnemar_of_equal_runs_has_p_one() -> None:
    assert mcnemar([True, False], [True, False]) == McNemar(0, 0, 1.0)
    assert mcnemar([True, False], [False, True]).p == 1.0


def test_mcnemar_refuses_other_rows() -> None:
    with pytest.raises(ValueError, match="not the same rows"):
        mcnemar([True], [True, False])


@pytest.mark.parametrize(("samples", "right"), [(1, 0), (1, 1), (4, 0), (4, 1), (5, 3), (6, 6)])
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(samples: int, right: int) -> None:
    marks = [True] * right + [False] * (samples - right)
    for k in range(1, samples + 1):
        draws = [any(draw) for draw in combinations(marks, k)]
        assert pass_at_k(samples, right, k) == pytest.approx(sum(draws) / len(draws))


@pytest.mark.parametrize(("samples", "right", "k"), [(4, 1, 0), (4, 1, 5), (4, 5, 1), (4, -1, 1)])
def test_pass_at_k_refuses_what_cannot_be_drawn(samples: int, right: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} of {samples}"):
        pass_at_k(samples, right, k)


def test_seeds_have_a_mean_over_rows_and_a_spread_over_runs() -> None:
    runs = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]]
    found = across_seeds(runs, rows(4))
    assert found.mean.mean == pytest.approx(0.5)
    assert (found.lowest, found.highest, found.seeds) == (0.25, 0.75, 3)
    assert found.sd == pytest.approx(0.25)
    assert found.mean.low == pytest.approx(mean([1.0, 2 / 3, 1 / 3, 0.0], rows(4)).low)


def test_a_single_seed_has_no_spread() -> None:
    assert across_seeds([[1.0, 0.0]], rows(2)).sd == 0


def test_seeds_of_other_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="not the same rows"):
        across_seeds([[1.0], [1.0, 0.0]], rows(1))


def test_zeros_and_ones_are_resampled_like_any_other_values() -> None:
    """The quick way for right and wrong rows agrees with drawing rows one by one."""
    values = [float(d < 3) if n % 4 else float(d >= 2) for d in range(6) for n in range(15)]
    clusters = [str(d) for d in range(6) for _ in range(15)]
    quick = mean(values, clusters)
    # The same numbers moved and stretched are no longer zeros and ones.
    slow = mean([2 * v + 1 for v in values], clusters)
    assert (slow.mean - 1) / 2 == pytest.approx(quick.mean)
    assert (slow.low - 1) / 2 == pytest.approx(quick.low, abs=0.02)
    assert (slow.high - 1) / 2 == pytest.approx(quick.high, abs=0.02)
