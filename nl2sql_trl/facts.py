"""What one step's rollouts were like, in numbers for the logs: the same names in every mode.

A rank describes its own trajectories (`RankFacts`); `summary` puts the ranks together. What TRL
logs itself (rewards, lengths, shares of groups without variance) is not repeated here.
No torch, no trainer.

    rollout/...   means over trajectories, or shares of them
    tokens/...    tokens of a trajectory by kind: of the prompt, sampled, forced by the environment
    seconds/...   of a step, means over ranks:
        rollout       from the first token to the last, of which
        generate      in the policy, and
        sql_wait      out of it: waiting for SQL with nothing to generate, and our own code
        sql           all queries together; they run beside each other and beside generation
        reward        verdicts and rewards
        rank_wait     until the slowest rank was done
        update        everything else in the step (`callbacks.StepClock`)
        sql_p50, sql_p95, sql_max   of single queries, over all ranks
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nl2sql_trl.policy import Policy
from nl2sql_trl.records import Sample, Trajectory, Verdict


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank's share: means over its trajectories, its seconds by phase, each query's seconds."""

    means: dict[str, float]
    seconds: dict[str, float]
    latencies: tuple[float, ...]


def describe(
    trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict], seconds: dict[str, float]
) -> RankFacts:
    """The facts of one rank's rollouts. `seconds` has rollout, generate and reward."""
    rows = [_row(t, v) for t, v in zip(trajectories, verdicts, strict=True)]
    means = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
    latencies = tuple(
        c.result.seconds for t in trajectories for c in t.calls if c.result and c.tool == "run_sql"
    )
    waited = seconds["rollout"] - seconds["generate"]
    return RankFacts(means, seconds | {"sql_wait": waited, "sql": sum(latencies)}, latencies)


def summary(ranks: Sequence[RankFacts]) -> dict[str, float]:
    """Metrics of a step from all ranks, which hold equally many trajectories."""
    metrics = {name: _mean([r.means[name] for r in ranks]) for name in ranks[0].means}
    for name in ranks[0].seconds:
        metrics[f"seconds/{name}"] = _mean([r.seconds[name] for r in ranks])
    busy = [r.seconds["rollout"] + r.seconds["reward"] for r in ranks]
    metrics["seconds/rank_wait"] = max(busy) - _mean(busy)
    latencies = sorted(s for r in ranks for s in r.latencies)
    for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0)):
        metrics[f"seconds/sql_{name}"] = percentile(latencies, share)
    return metrics


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed; 0 where there is none."""
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _row(trajectory: Trajectory, verdict: Verdict) -> dict[str, float]:
    calls, mask = trajectory.calls, trajectory.env_mask
    problems = Counter(c.problem for c in calls if c.problem)
    outcomes = Counter(c.result.outcome for c in calls if c.result and c.tool == "run_sql")
    return {
        "rollout/calls": float(len(calls)),
        "rollout/malformed_calls": float(problems.total()),
        "rollout/sql_errors": float(outcomes["error"] + outcomes["denied"] + outcomes["too_big"]),
        "rollout/sql_timeouts": float(outcomes["timeout"]),
        "rollout/sql_crashes": float(outcomes["crashed"] + (verdict.reason == "crashed")),
        "rollout/turns": float(len(trajectory.model_turns)),
        "rollout/answered": float(trajectory.answer is not None),
        "rollout/executable": float(verdict.executable),
        "rollout/ran_its_answer": float(trajectory.ran_its_answer),
        "rollout/truncated": float(trajectory.stop == "budget"),
        "rollout/out_of_turns": float(trajectory.stop == "turn_limit"),
        "rollout/empty_match": float(verdict.correct and verdict.empty_match),
        "tokens/prompt": float(len(trajectory.prompt.ids)),
        "tokens/sampled": float(mask.count(1)),
        "tokens/forced": float(mask.count(0)),
    }


class TimedPolicy:
    """Any policy, with the seconds spent in it."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self.codec = policy, policy.codec
        self.seconds = 0.0

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds += time.monotonic() - started

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """The policy's own; to begin and to end it counts, what happens within does not."""
        with contextlib.ExitStack() as stack:
            with self._timed():
                stack.enter_context(self._policy.session())
            try:
                yield
            finally:
                self.seconds -= time.monotonic()
        self.seconds += time.monotonic()

    def submit(self, key: int, ids: Sequence[int], max_tokens: int) -> None:
        """Timed."""
        with self._timed():
            self._policy.submit(key, ids, max_tokens)

    def step(self) -> list[tuple[int, Sample]]:
        """Timed."""
        with self._timed():
            return self._policy.step()

    def release(self, key: int) -> None:
        """Timed."""
        with self._timed():
            self._policy.release(key)
