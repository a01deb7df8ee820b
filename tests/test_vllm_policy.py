"""ColocatedPolicy over a stand-in engine, alone and shared by ranks (real: tests/real_vllm).

Ranks are threads here; what they exchange goes through a barrier in place of a process group.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from fakes import chat_tokenizer

from nl2sql_trl import vllm_policy
from nl2sql_trl.prompts import Codec
from nl2sql_trl.records import Sample
from nl2sql_trl.rollout import RolloutError
from nl2sql_trl.sampling import Sampling
from nl2sql_trl.vllm_policy import ColocatedPolicy


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two names of vLLM that the policy uses."""
    top, params = ModuleType("vllm"), ModuleType("vllm.sampling_params")
    top.SamplingParams = SimpleNamespace  # type: ignore[attr-defined]
    params.RequestOutputKind = SimpleNamespace(FINAL_ONLY=2)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", top)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", params)


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec(chat_tokenizer())


class Engine:
    """A request of n first tokens gives max_tokens times its first token, one a step.

    `history` has what was done to it, in order: as a shared engine it must be alike on all ranks.
    """

    def __init__(self) -> None:
        self.llm_engine = self
        self.running: dict[str, Any] = {}
        self.history: list[Any] = []
        self.params: list[Any] = []

    def add_request(self, name: str, prompt: dict[str, list[int]], params: Any) -> None:
        ids = prompt["prompt_token_ids"]
        if len(ids) > 50:
            raise OverflowError("the context is 50 tokens")
        self.history.append(("add", name, tuple(ids), params.max_tokens))
        self.params.append(params)
        self.running[name] = [ids, params.max_tokens, 0]

    def step(self) -> list[Any]:
        self.history.append("step")
        ended = []
        for name, request in list(self.running.items()):
            request[2] += 1
            ids, limit, made = request
            if made == limit:
                del self.running[name]
                tokens = [] if ids[0] == 13 else [ids[0]] * made
                entries = [{ids[0]: SimpleNamespace(logprob=-float(n))} for n in range(made)]
                completion = SimpleNamespace(
                    token_ids=tokens, logprobs=entries, finish_reason="length"
                )
                ended.append(
                    SimpleNamespace(request_id=name, finished=True, outputs=[completion],
                                    prompt_token_ids=ids)
                )  # fmt: skip
        return ended

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            self.running.pop(name, None)


def test_rows_end_one_by_one_each_at_its_own_limit(codec: Codec) -> None:
    engine = Engine()
    policy = ColocatedPolicy(engine, codec, Sampling(temperature=0.7, top_k=5))
    order: list[tuple[int, Sample]] = []
    with policy.session():
        for key, limit in enumerate((5, 1, 3)):
            policy.submit(key, [40 + key], limit)
        while len(order) < 3:
            order += policy.step()
    assert [key for key, _ in order] == [1, 2, 0]
    assert dict(order)[2] == Sample((42, 42, 42), (0.0, -1.0, -2.0))
    params = vars(engine.params[0])
    assert (params["temperature"], params["top_k"], params["max_tokens"]) == (0.7, 5, 5)
    assert (params["logprobs"], params["stop_token_ids"]) == (0, sorted(codec.stop_ids))


def test_a_row_joins_while_others_run(codec: Codec) -> None:
    policy = ColocatedPolicy(Engine(), codec, Sampling())
    with policy.session():
        policy.submit(0, [40], 9)
        policy.step()
        policy.submit(1, [41], 2)
        done = [policy.step() for _ in range(8)]
    assert [key for step in done for key, _ in step] == [1, 0]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([5] * 60, "refused the context of row 8: the context is 50"),
        ([13], "wrote nothing for row 8"),
    ],
)
def test_what_the_engine_refuses_names_the_row(codec: Codec, ids: list[int], message: str) -> None:
    engine = Engine()
    policy = ColocatedPolicy(engine, codec, Sampling())
    with policy.session():
        policy.submit(7, [40], 9)
        policy.submit(8, ids, 1)
        with pytest.raises(RolloutError, match=message):
            policy.step()
    assert not engine.running


def test_the_engine_is_awake_for_the_session_and_no_longer(codec: Codec) -> None:
    import contextlib

    heard: list[str] = []

    @contextlib.contextmanager
    def awake() -> Any:
        heard.append("wake")
        yield
        heard.append("sleep")

    policy = ColocatedPolicy(Engine(), codec, Sampling(), awake=awake)
    with policy.session():
        heard.append("work")
    assert heard == ["wake", "work", "sleep"]


# An engine that ranks share


class Group:
    """Stands in for a process group of threads; `_all_gather` waits for all of them."""

    def __init__(self, size: int) -> None:
        self.local = threading.local()
        self.slots: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=20)

    def all_gather(self, message: Any, group: Any) -> list[Any]:
        self.slots[self.local.rank] = message
        self.barrier.wait()
        found = list(self.slots)
        self.barrier.wait()
        return found


def shared(
    codec: Codec, monkeypatch: pytest.MonkeyPatch, works: list[Callable[[ColocatedPolicy], Any]]
) -> tuple[list[Engine], list[Any]]:
    """Run one work a rank; returns each rank's engine, and its result or what it raised."""
    group = Group(len(works))
    monkeypatch.setattr(vllm_policy, "_all_gather", group.all_gather)
    monkeypatch.setattr(vllm_policy, "_rank", lambda _: group.local.rank)
    engines, results = [Engine() for _ in works], [None] * len(works)

    def run(rank: int) -> None:
        group.local.rank = rank
        try:
            policy = ColocatedPolicy(engines[rank], codec, Sampling(), group=group)
            with policy.session():
                results[rank] = works[rank](policy)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return engines, results


def turns(rank: int, counts: list[int], seed: int) -> Callable[[ColocatedPolicy], Any]:
    """Trajectory n takes counts[n] turns; what it was given is returned by trajectory."""

    def work(policy: ColocatedPolicy) -> dict[int, list[int]]:
        rng = random.Random(seed + rank)
        given: dict[int, list[int]] = {key: [] for key, count in enumerate(counts) if count}
        for key in given:
            policy.submit(key, [100 * (rank + 1) + key], rng.randint(1, 40))
        waiting = len(given)
        while waiting:
            for key, sample in policy.step():
                given[key].append(sample.ids[0])
                if len(given[key]) < counts[key]:
                    policy.submit(key, [100 * (rank + 1) + key], rng.randint(1, 40))
                else:
                    waiting -= 1
        return given

    return work


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("counts", [[[1, 1], [5, 2, 9]], [[], [3]], [[2], [2], [], [7, 1, 1]]])
def test_ranks_with_unequal_turns_feed_the_shared_engine_alike_and_keep_their_own(
    codec: Codec, monkeypatch: pytest.MonkeyPatch, counts: list[list[int]], seed: int
) -> None:
    works = [turns(rank, own, seed) for rank, own in enumerate(counts)]
    engines, results = shared(codec, monkeypatch, works)
    for rank, own in enumerate(counts):
        assert results[rank] == {
            key: [100 * (rank + 1) + key] * count for key, count in enumerate(own)
        }
        assert engines[rank].history == engines[0].history
        assert not engines[rank].running


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_on_one_rank_ends_the_others_with_its_words(
    codec: Codec, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    def boom(policy: ColocatedPolicy) -> None:
        policy.submit(0, [77], 20)
        policy.step()
        raise ZeroDivisionError("by zero")

    works = [turns(rank, [4, 9], 1) for rank in range(2)]
    works[failing] = boom
    engines, results = shared(codec, monkeypatch, works)
    assert isinstance(results[failing], ZeroDivisionError)
    other = results[1 - failing]
    assert isinstance(other, RolloutError)
    assert str(other) == f"rank {failing} of the engine's group failed: ZeroDivisionError: by zero"
    assert not any(engine.running for engine in engines)


def test_a_context_that_the_shared_engine_refuses_ends_all_ranks(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def long(policy: ColocatedPolicy) -> None:
        policy.submit(0, [5] * 60, 3)
        policy.step()

    _, results = shared(codec, monkeypatch, [turns(0, [4], 1), long])
    for result in results:
        assert isinstance(result, RolloutError)
        assert "refused the context of row 0" in str(result)
