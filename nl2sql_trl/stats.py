"""Error bars: accuracy with a bootstrap interval clustered by database, and paired differences.

Questions on one database are not independent (one schema misread fails many of them), so
databases are drawn first, then rows inside each (the two-stage cluster bootstrap of Davison and
Hinkley 1997, section 3.8, percentile intervals). With few databases such intervals are wide.

Plain numbers in, plain numbers out: nothing here knows of models or SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95% interval."""

    mean: float
    low: float
    high: float
    rows: int
    clusters: int

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
    for g, rows in enumerate(groups):
        times = (drawn == g).sum(axis=1)
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
