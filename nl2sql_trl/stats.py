"""Error bars: accuracies with intervals, paired comparisons, seeds put together, pass@k.

Questions on one database are not independent (one schema misread fails many of them), so
databases are drawn first, then rows inside each (the two-stage cluster bootstrap of Davison and
Hinkley 1997, section 3.8, percentile intervals). With few databases such intervals are wide.
Wilson's interval (1927) stands beside it, for comparison with papers: it takes rows for
independent, which is too narrow.

Plain numbers in, plain numbers out: nothing here knows of models or SQL.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95% interval; Wilson's beside it where every value is right or wrong."""

    mean: float
    low: float
    high: float
    rows: int
    clusters: int
    wilson_low: float | None = None
    wilson_high: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def mean(values: Sequence[float], clusters: Sequence[str], seed: int = 0) -> Estimate:
    """Mean of `values`, resampling clusters and then rows inside each drawn one.

    `values` and `clusters` go together row by row. Raises ValueError if they are empty or differ
    in length. The same seed gives the same interval.
    """
    if len(values) != len(clusters) or not len(values):
        raise ValueError(f"{len(values)} values with {len(clusters)} clusters")
    data = np.asarray(values, dtype=float)
    names = np.asarray(clusters)
    groups = [data[names == name] for name in sorted(set(clusters))]
    rng = np.random.default_rng(seed)
    # A row resample inside each cluster, once per draw of that cluster: sums and counts suffice.
    sums = np.zeros(RESAMPLES)
    counts = np.zeros(RESAMPLES)
    drawn = rng.integers(len(groups), size=(RESAMPLES, len(groups)))
    binary = bool(np.isin(data, (0, 1)).all())
    for g, rows in enumerate(groups):
        times = (drawn == g).sum(axis=1)
        if binary:
            # What a resample of zeros and ones sums to, without drawing its rows one by one.
            sums += rng.binomial(times * len(rows), rows.mean())
            counts += times * len(rows)
            continue
        for repeat in range(1, int(times.max(initial=0)) + 1):
            which = np.flatnonzero(times >= repeat)
            picks = rng.integers(len(rows), size=(len(which), len(rows)))
            sums[which] += rows[picks].sum(axis=1)
            counts[which] += len(rows)
    low, high = np.quantile(sums / counts, [0.025, 0.975])
    return Estimate(float(data.mean()), float(low), float(high), len(data), len(groups))


def paired_difference(
    before: Sequence[float], after: Sequence[float], clusters: Sequence[str], seed: int = 0
) -> Estimate:
    """Mean of `after - before` on the same rows, with its interval."""
    if len(before) != len(after):
        raise ValueError(f"{len(before)} rows before, {len(after)} after: not the same rows")
    return mean([b - a for a, b in zip(before, after, strict=True)], clusters, seed)


def accuracy(values: Sequence[float], clusters: Sequence[str], seed: int = 0) -> Estimate:
    """`mean` with Wilson's interval beside it, unless a value is a share of several samples."""
    found = mean(values, clusters, seed)
    if any(value not in (0, 1) for value in values):
        return found
    low, high = wilson(int(sum(values)), len(values))
    return replace(found, wilson_low=low, wilson_high=high)


def wilson(right: int, rows: int) -> tuple[float, float]:
    """Wilson's 95% score interval (1927) of a share. Raises ValueError for impossible counts."""
    if not 0 <= right <= rows or not rows:
        raise ValueError(f"{right} right of {rows} rows")
    share, z = right / rows, 1.959963984540054
    centre = share + z * z / (2 * rows)
    half = z * math.sqrt(share * (1 - share) / rows + z * z / (4 * rows * rows))
    scale = 1 + z * z / rows
    # Rounding may leave the ends a hair beyond a share of 0 or 1.
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


@dataclass(frozen=True, slots=True)
class McNemar:
    """Rows that one run got right and the other wrong, and the exact two-sided p-value."""

    gained: int
    lost: int
    p: float


def mcnemar(before: Sequence[bool], after: Sequence[bool]) -> McNemar:
    """McNemar's exact test (1947) of two runs on the same rows: are gains as frequent as losses?

    It takes rows for independent, so with few databases it is too sure of itself.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} rows before, {len(after)} after: not the same rows")
    gained = sum(b and not a for a, b in zip(before, after, strict=True))
    lost = sum(a and not b for a, b in zip(before, after, strict=True))
    changed = gained + lost
    tail = sum(math.comb(changed, k) for k in range(min(gained, lost) + 1))
    return McNemar(gained, lost, min(1.0, 2 * tail / 2**changed))


@dataclass(frozen=True, slots=True)
class Seeds:
    """Several runs of one recipe: the mean over runs and rows, and how the runs differ.

    `mean` has the clustered interval of the seeds' row by row average: it speaks of questions,
    `sd` (n - 1 in the denominator) and the extremes of the runs.
    """

    mean: Estimate
    sd: float
    lowest: float
    highest: float
    seeds: int

    def __str__(self) -> str:
        return f"{self.mean} over {self.seeds} seeds, s.d. {self.sd:.3f}"


def across_seeds(runs: Sequence[Sequence[float]], clusters: Sequence[str]) -> Seeds:
    """Put seeds together: `runs` holds one sequence a seed, all over the same rows."""
    if len({len(run) for run in runs}) != 1:
        raise ValueError(f"runs of {[len(run) for run in runs]} rows: not the same rows")
    table = np.asarray(runs, dtype=float)
    means = table.mean(axis=1)
    sd = float(means.std(ddof=1)) if len(runs) > 1 else 0.0
    whole = mean(list(table.mean(axis=0)), clusters)
    return Seeds(whole, sd, float(means.min()), float(means.max()), len(runs))


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Chance that at least one of k draws, without replacement, is right.

    The unbiased estimator of Chen et al. 2021, "Evaluating Large Language Models Trained on
    Code", equation 1. Raises ValueError unless 1 <= k <= samples and 0 <= right <= samples.
    """
    if not 1 <= k <= samples or not 0 <= right <= samples:
        raise ValueError(f"pass@{k} of {samples} samples with {right} right")
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)
