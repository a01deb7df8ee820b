"""Which policy each mode gets, what is refused, and the whole copy of a sharded model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes import chat_tokenizer, random_model, write_spider_folder
from test_trainer import Fortune, config

from nl2sql_trl import backends
from nl2sql_trl.backends import check_vllm, server_url, trained_policy
from nl2sql_trl.engine import TransformersPolicy
from nl2sql_trl.prompts import Codec
from nl2sql_trl.rewards import executable
from nl2sql_trl.rollout import RolloutConfig, RolloutError
from nl2sql_trl.served import ServedPolicy
from nl2sql_trl.sharded import GatheredPolicy, Replica, replica_of, weights_are_sharded
from nl2sql_trl.task import Task, make_task
from nl2sql_trl.trainer import SqlGRPOTrainer
from nl2sql_trl.vllm_policy import ColocatedPolicy


def accelerator(fsdp: int = 0, zero: int = 0, **names: Any) -> Any:
    state = SimpleNamespace(
        deepspeed_plugin=SimpleNamespace(zero_stage=zero) if zero else None,
        fsdp_plugin=SimpleNamespace(fsdp_version=fsdp) if fsdp else None,
    )
    common = {"unwrap_model": lambda model: model, "is_main_process": True}
    return SimpleNamespace(state=state, **common | names)


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec(chat_tokenizer())


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory, codec: Codec) -> Task:
    folder = write_spider_folder(tmp_path_factory.mktemp("backends") / "spider")
    return make_task(str(folder), "train", codec, rollout=RolloutConfig(budget=24))


def args(**changes: Any) -> Any:
    usual = {"temperature": 0.7, "top_p": 1.0, "top_k": 0, "min_p": None, "bf16": False}
    vllm = {"use_vllm": False, "vllm_mode": "colocate", "vllm_server_base_url": None,
            "vllm_server_host": "here", "vllm_server_port": 8000}  # fmt: skip
    return SimpleNamespace(**usual | vllm | changes)


class Generation:
    """TRL's VLLMGeneration as far as it is used, telling what is done to it."""

    def __init__(self, sleep: bool = False, sleeping: bool = False, context: int = 99) -> None:
        self.heard: list[str] = []
        self.enable_sleep_mode, self._llm_weights_sleeping = sleep, sleeping
        self.tensor_parallel_size = 1
        model_config = SimpleNamespace(max_model_len=context)
        self.llm = SimpleNamespace(
            wake_up=lambda tags: self.heard.append(f"wake {tags[0]}"),
            sleep=lambda level: self.heard.append(f"sleep {level}"),
            llm_engine=SimpleNamespace(model_config=model_config, abort_request=lambda names: None),
        )

    def sync_weights(self) -> None:
        self.heard.append("sync")
        self._llm_weights_sleeping = False


def trainer(codec: Codec, **names: Any) -> Any:
    usual = {"args": args(), "accelerator": accelerator(), "codec": codec, "model": random_model()}
    return SimpleNamespace(**usual | names)


@pytest.mark.parametrize(
    ("accelerated", "kind"),
    [
        (accelerator(), TransformersPolicy),
        (accelerator(zero=2), TransformersPolicy),
        (accelerator(zero=3), GatheredPolicy),
        (accelerator(fsdp=2), GatheredPolicy),
    ],
    ids=["whole", "ZeRO-2", "ZeRO-3", "FSDP2"],
)
def test_a_sharded_model_is_gathered_for_the_rollout_and_a_whole_one_is_not(
    codec: Codec, accelerated: Any, kind: type
) -> None:
    policy = trained_policy(trainer(codec, accelerator=accelerated), 1)
    assert isinstance(policy, kind)


def test_a_ranks_requests_to_a_server_wait_until_the_weights_are_pushed(codec: Codec) -> None:
    waits: list[str] = []
    accelerated = accelerator(wait_for_everyone=lambda: waits.append("wait"))
    settings = args(use_vllm=True, vllm_mode="server")
    policy = trained_policy(trainer(codec, args=settings, accelerator=accelerated), 1)
    assert isinstance(policy, ServedPolicy)
    assert (policy.url, policy.sampling.temperature) == ("http://here:8000", 0.7)
    assert waits == ["wait"]


def test_a_servers_whole_address_wins_over_host_and_port() -> None:
    assert server_url(args(vllm_server_base_url="http://there:1")) == "http://there:1"


@pytest.mark.parametrize(
    ("sleep", "sleeping", "heard"),
    [
        (False, False, []),
        (True, False, ["wake kv_cache", "sleep 2"]),  # TRL has just pushed the weights
        (True, True, ["sync", "wake kv_cache", "sleep 2"]),
    ],
)
@pytest.mark.parametrize("fails", [False, True])
def test_an_engine_that_sleeps_wakes_once_and_sleeps_again_whatever_happens(
    codec: Codec, sleep: bool, sleeping: bool, heard: list[str], fails: bool
) -> None:
    generation = Generation(sleep, sleeping)
    policy = trained_policy(trainer(codec, args=args(use_vllm=True), vllm_generation=generation), 1)
    assert isinstance(policy, ColocatedPolicy)
    try:
        with policy.session():
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert fails
    assert generation.heard == heard
    assert generation._llm_weights_sleeping == sleep


def test_a_trajectory_that_can_outgrow_vllms_context_is_refused(codec: Codec, task: Task) -> None:
    longest = max(len(prompt.ids) for prompt in task.prompts.values())
    for context, fits in ((longest + 24, True), (longest + 23, False)):
        found = trainer(codec, args=args(use_vllm=True))
        found.vllm_generation = Generation(context=context)
        if fits:
            check_vllm(found, task)
            continue
        with pytest.raises(RolloutError, match=f"context of {context}: raise vllm_max_model_len"):
            check_vllm(found, task)


def test_a_servers_context_is_asked_of_the_server(
    codec: Codec, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "served_model", lambda url: {"max_model_len": 30})
    settings = args(use_vllm=True, vllm_mode="server")
    with pytest.raises(RolloutError, match="context of 30: start the server with a larger"):
        check_vllm(trainer(codec, args=settings, vllm_generation=None), task)


@pytest.mark.parametrize("half", [True, False])
def test_lora_on_a_half_precision_base_is_warned_of(
    codec: Codec, task: Task, capsys: pytest.CaptureFixture[str], half: bool
) -> None:
    model = random_model().to(torch.bfloat16 if half else torch.float32)
    model.peft_config = {}
    found = trainer(codec, args=args(use_vllm=True), model=model)
    found.vllm_generation = Generation(context=10_000)
    check_vllm(found, task)
    assert ("LoRA on a half-precision base drifts" in capsys.readouterr().out) == half


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_vllm": True}, "use_vllm needs vLLM: pip install"),
        ({"repetition_penalty": 1.1}, "repetition_penalty is not supported"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_loads(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: Any, message: str
) -> None:
    monkeypatch.setattr("nl2sql_trl.trainer.is_vllm_available", lambda: False)
    with pytest.raises(ValueError, match=message):
        SqlGRPOTrainer(
            None, config(tmp_path, **changes), task, Fortune(chat_tokenizer()), [executable]
        )


# The whole copy


def test_fsdp1_is_refused_and_without_fsdp_there_is_no_copy() -> None:
    with pytest.raises(RolloutError, match="set fsdp_version to 2"):
        replica_of(random_model(), accelerator(fsdp=1))
    assert replica_of(random_model(), accelerator(zero=3)) is None
    assert isinstance(replica_of(random_model(), accelerator(fsdp=2)), Replica)


@pytest.mark.parametrize(
    ("accelerated", "said"),
    [(accelerator(), ""), (accelerator(zero=2), ""), (accelerator(zero=3), "ZeRO-3"),
     (accelerator(fsdp=2), "FSDP")],
)  # fmt: skip
def test_sharding_is_named(accelerated: Any, said: str) -> None:
    assert weights_are_sharded(accelerated)[: len(said) or None] == said


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_the_copy_has_the_models_weights_as_they_are_now_and_only_while_it_is_filled(
    dtype: torch.dtype | None,
) -> None:
    model = random_model().eval()
    replica = Replica(model)
    assert all(p.is_meta for p in replica.model.parameters())
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1)
    ids = torch.tensor([list(range(10, 30))])
    with replica.filled(model, dtype, "cpu") as copy, torch.no_grad():
        assert copy is not model
        assert {p.dtype for p in copy.parameters()} == {dtype or torch.float32}
        assert copy.get_output_embeddings().weight is copy.get_input_embeddings().weight
        expected = model(ids).logits
        tolerance = 1e-6 if dtype is None else 0.1
        torch.testing.assert_close(copy.eval()(ids).logits.float(), expected, rtol=tolerance,
                                   atol=tolerance * float(expected.abs().max()))  # fmt: skip
    assert all(p.is_meta for p in replica.model.parameters())
    assert all(p.requires_grad for p in model.parameters())


def test_the_copy_of_a_lora_model_has_its_adapters() -> None:
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(random_model(), lora).eval()
    replica = Replica(model)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.add_(0.5)
    ids = torch.tensor([list(range(10, 30))])
    with replica.filled(model, None, "cpu") as copy, torch.no_grad():
        expected = model(ids).logits
        torch.testing.assert_close(copy.eval()(ids).logits, expected)
        merged = copy.merge_and_unload()
        torch.testing.assert_close(merged(ids).logits, expected, rtol=1e-3, atol=1e-3)
