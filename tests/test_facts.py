"""The numbers of a step's rollouts: how ranks are put together, and how phases are timed."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import Any

import pytest

from nl2sql_trl.facts import RankFacts, TimedPolicy, percentile, summary
from nl2sql_trl.policy import ByteTokenizer, ScriptedPolicy
from nl2sql_trl.prompts import Codec


def rank(calls: float, rollout: float, reward: float, *latencies: float) -> RankFacts:
    return RankFacts({"rollout/calls": calls}, {"rollout": rollout, "reward": reward}, latencies)


def test_a_summary_has_means_over_ranks_and_percentiles_over_all_queries() -> None:
    found = summary([rank(1.0, 4.0, 1.0, 0.1, 0.3), rank(3.0, 2.0, 1.0, 0.2)])
    assert found == {
        "rollout/calls": 2.0,
        "seconds/rollout": 3.0,
        "seconds/reward": 1.0,
        "seconds/rank_wait": 1.0,  # the second rank waits 2 seconds, the first none
        "seconds/sql_p50": 0.2,
        "seconds/sql_p95": 0.3,
        "seconds/sql_max": 0.3,
    }


def test_the_names_are_the_same_without_any_query() -> None:
    assert summary([rank(0.0, 1.0, 1.0)]).keys() == summary([rank(1.0, 1.0, 1.0, 0.5)]).keys()


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, 0.0),
        ([7.0], 0.5, 7.0),
        ([7.0], 0.95, 7.0),
        ([1.0, 2.0], 0.5, 1.0),
        ([1.0, 2.0, 3.0], 0.5, 2.0),
        ([float(n) for n in range(1, 101)], 0.95, 95.0),
        ([float(n) for n in range(1, 101)], 1.0, 100.0),
    ],
)
def test_a_percentile_is_the_least_value_that_the_share_does_not_exceed(
    values: list[float], share: float, expected: float
) -> None:
    assert percentile(values, share) == expected


class Slow(ScriptedPolicy):
    """Takes a moment to begin, for each step and to end."""

    @contextmanager
    def session(self) -> Any:
        clock.append(1.0)
        with super().session():
            yield
        clock.append(1.0)

    def step(self) -> Any:
        clock.append(2.0)
        return super().step()


clock: list[float] = []


def test_the_time_in_the_policy_is_counted_and_the_rest_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock.clear()
    monkeypatch.setattr(time, "monotonic", lambda: sum(clock))
    policy = TimedPolicy(Slow([["a", "b"]], Codec(ByteTokenizer())))
    with policy.session():
        for _ in range(2):
            policy.submit(0, [1], 5)
            clock.append(100.0)  # SQL, say
            assert policy.step()
        policy.release(0)
    assert policy.seconds == 1 + 2 + 2 + 1
