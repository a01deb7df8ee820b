"""Groups that teach nothing, and others in their place.

GRPO compares the rollouts of one prompt. Where all of a group got the same reward, every advantage
is 0 and the rollouts were for nothing. `resample` replaces such groups by groups on other prompts,
a few rounds at most: the dynamic sampling of DAPO (Yu et al. 2025, https://arxiv.org/abs/2503.14476,
section 3.2), with a cap. `measured` reads how often each question was right in an evaluation, so
that a run can leave out what is always or never right from the start.

This module samples and judges nothing itself, and knows no trainer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from nl2sql_trl.data import DataError
from nl2sql_trl.records import Prompt
from nl2sql_trl.runs import read_jsonl

Done = TypeVar("Done")


def without_variance(rewards: Sequence[float], size: int) -> list[int]:
    """Which groups of `size` rollouts in a row have one and the same reward, by number from 0."""
    return [n for n in range(len(rewards) // size) if len(set(rewards[n * size :][:size])) == 1]


def resample(
    prompts: Sequence[Prompt],
    size: int,
    run: Callable[[Sequence[Prompt]], list[Done]],
    reward: Callable[[Done], float],
    spare: Iterator[Prompt],
    rounds: int,
    go_on: Callable[[int], bool] = bool,
) -> tuple[list[Done], int]:
    """Run `prompts`, then up to `rounds` times other prompts for the groups without variance.

    prompts: each repeated `size` times in a row. run: rolls out and judges, in order. spare: other
    prompts; when it ends, what is there stays. A group that never got variance is left as its last
    try. go_on: told how many groups are to be replaced, says whether to run another round; with
    several ranks, all must take part in each, if only with no prompt. Returns one result a
    prompt, and how many groups had no variance at first.
    Raises ValueError if `prompts` are not whole groups.
    """
    keys = [prompt.key for prompt in prompts]
    if len(keys) % size or any(len(set(keys[n : n + size])) > 1 for n in range(0, len(keys), size)):
        raise ValueError(f"the {len(keys)} prompts are not groups of {size} equal ones")
    done = run(prompts)
    dull = without_variance([reward(d) for d in done], size)
    first = len(dull)
    for _ in range(rounds):
        others = [prompt for _, prompt in zip(dull, spare, strict=False)]
        if not go_on(len(others)):
            break
        again = run([prompt for prompt in others for _ in range(size)])
        for n, group in zip(dull, range(len(others)), strict=False):
            done[n * size : (n + 1) * size] = again[group * size : (group + 1) * size]
        still = set(without_variance([reward(d) for d in again], size))
        dull = [n for group, n in enumerate(dull) if group in still or group >= len(others)]
    return done, first


def measured(evaluation: Path, low: float, high: float) -> dict[str, float]:
    """Row keys of an evaluation whose share of right rollouts is from `low` to `high`.

    The sampled pass is read where there is one, else the greedy one. Raises DataError for a folder
    without an evaluation, and if no row is left.
    """
    for name in ("samples.jsonl", "trajectories.jsonl"):
        right = defaultdict(list)
        for row in read_jsonl(evaluation / name):
            right[row["key"]].append(float(row["correct"]))
        shares = {key: sum(values) / len(values) for key, values in right.items()}
        kept = {key: share for key, share in shares.items() if low <= share <= high}
        if kept:
            return kept
        if shares:
            raise DataError(f"{evaluation}: no row was right in {low} to {high} of its samples")
    raise DataError(
        f"{evaluation} holds no evaluation: make one with python -m nl2sql_trl.evaluate "
        "--split train --samples 8 --temperature 1"
    )
