"""ColocatedPolicy over a real engine: its rollouts are those of the transformers policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cpu_vllm
import pytest

from nl2sql_trl.engine import TransformersPolicy
from nl2sql_trl.policy import Policy
from nl2sql_trl.records import Sample, ToolTurn, Trajectory
from nl2sql_trl.rollout import RolloutConfig, RolloutError, check, rollout
from nl2sql_trl.sampling import Sampling
from nl2sql_trl.task import Task, make_task
from nl2sql_trl.vllm_policy import ColocatedPolicy

BUDGET = 300


@pytest.fixture(scope="module")
def llm(vllm_model: Path) -> Any:
    import vllm

    return vllm.LLM(
        model=str(vllm_model),
        dtype="float32",
        max_model_len=2048,
        max_num_seqs=16,
        gpu_memory_utilization=0.12,
        logprobs_mode="processed_logprobs",
        enforce_eager=True,
    )


@pytest.fixture(scope="module")
def task(folder: Path) -> Task:
    config = RolloutConfig(budget=BUDGET, max_turns=4, tool_chars=200)
    return make_task(str(folder), "train", cpu_vllm.codec(), rollout=config)


class Asked:
    """A policy that keeps what was asked of it and what it gave."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.codec = policy, policy.codec
        self.session, self.release = policy.session, policy.release
        self.limits: dict[int, int] = {}
        self.given: list[tuple[int, int]] = []

    def submit(self, key: int, ids: Any, max_tokens: int) -> None:
        self.limits[key] = max_tokens
        self.policy.submit(key, ids, max_tokens)

    def step(self) -> list[tuple[int, Sample]]:
        done = self.policy.step()
        self.given += [(self.limits[key], len(sample.ids)) for key, sample in done]
        return done


def rolled(task: Task, policy: Any, copies: int = 2) -> list[Trajectory]:
    found = rollout(list(task.prompts.values()) * copies, policy, task.rollout)
    check(found, BUDGET)
    return found


def test_greedy_rollouts_are_those_of_the_transformers_policy(
    llm: Any, task: Task, vllm_model: Path
) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(vllm_model, dtype="float32")
    codec, greedy = cpu_vllm.codec(), Sampling(temperature=0.0)
    theirs = rolled(task, TransformersPolicy(model, codec, greedy))
    ours = rolled(task, ColocatedPolicy(llm, codec, greedy))
    assert len({len(t.turns) for t in theirs}) > 1
    assert any(isinstance(turn, ToolTurn) for t in theirs for turn in t.turns)
    for a, b in zip(theirs, ours, strict=True):
        assert a.completion_ids == b.completion_ids
        assert (a.env_mask, a.stop, a.answer) == (b.env_mask, b.stop, b.answer)


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0.7), Sampling(temperature=1.3, top_k=20)],
    ids=str,
)
def test_log_probabilities_are_of_the_distribution_that_was_drawn_from(
    llm: Any, task: Task, vllm_model: Path, sampling: Sampling
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(vllm_model, dtype="float32").eval()
    for t in rolled(task, ColocatedPolicy(llm, cpu_vllm.codec(), sampling), copies=1):
        ids, start = torch.tensor([[*t.prompt.ids, *t.completion_ids]]), len(t.prompt.ids)
        with torch.no_grad():
            logits = model(ids).logits[0, start - 1 : -1] / sampling.temperature
        if sampling.top_k:
            least = logits.topk(sampling.top_k).values[:, -1:]
            logits = logits.masked_fill(logits < least, float("-inf"))
        expected = logits.log_softmax(-1).gather(1, ids[0, start:, None])[:, 0].tolist()
        for value, given, sampled in zip(expected, t.logprobs, t.env_mask, strict=True):
            assert not sampled or given == pytest.approx(value, abs=2e-3)


def test_each_request_has_its_own_token_limit(llm: Any, task: Task) -> None:
    policy = Asked(ColocatedPolicy(llm, cpu_vllm.codec(), Sampling()))
    rolled(task, policy)
    assert all(length <= limit for limit, length in policy.given)
    assert len({limit for limit, _ in policy.given}) > 3


def test_a_limit_of_one_token_is_kept_beside_a_long_one(llm: Any, task: Task) -> None:
    codec = cpu_vllm.codec()
    codec.stop_ids = frozenset()
    policy = ColocatedPolicy(llm, codec, Sampling())
    ids = next(iter(task.prompts.values())).ids
    done: dict[int, Sample] = {}
    with policy.session():
        for key, limit in enumerate((1, 40, 7)):
            policy.submit(key, ids, limit)
        while len(done) < 3:
            done.update(policy.step())
    assert [len(done[key].ids) for key in range(3)] == [1, 40, 7]


def test_an_error_within_a_rollout_leaves_no_request_behind(llm: Any, task: Task) -> None:
    policy = ColocatedPolicy(llm, cpu_vllm.codec(), Sampling())

    def boom(position: int, trajectory: Trajectory) -> None:
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        rollout(list(task.prompts.values()), policy, task.rollout, on_done=boom)
    assert not llm.llm_engine.has_unfinished_requests()
    rolled(task, policy)


def test_a_context_beyond_the_engines_is_refused(llm: Any, task: Task) -> None:
    policy = ColocatedPolicy(llm, cpu_vllm.codec(), Sampling())
    refused = r"vLLM refused the context of row 1: .*2048"
    with policy.session():
        policy.submit(0, range(3, 300), 10)
        policy.submit(1, [5] * 2100, 10)
        with pytest.raises(RolloutError, match=refused):
            policy.step()
    assert not llm.llm_engine.has_unfinished_requests()
