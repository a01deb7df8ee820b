"""One rank of a small GRPO training on the CPU, started by test_ranks.py: writes rank<n>.json.

    torchrun --nproc_per_node 2 rank_script.py OUT DATA MODEL scripted|sampled|failing

scripted: rank 0 plays one turn a trajectory, rank 1 three to six. sampled: the model's own tokens,
read as answers on rank 0 and mostly as calls on rank 1. failing: as sampled, but rank 1's reward
fails in the second step.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate.state import PartialState
from accelerate.utils import DistributedType
from fakes import chat_tokenizer
from test_trainer import config
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from nl2sql_trl.backends import trained_policy
from nl2sql_trl.policy import Policy, ScriptedPolicy
from nl2sql_trl.prompts import Codec, answer_text, call_text
from nl2sql_trl.records import Verdict
from nl2sql_trl.rewards import executable, execution_match
from nl2sql_trl.rollout import RolloutConfig
from nl2sql_trl.task import make_task
from nl2sql_trl.trainer import RunCallback, SqlGRPOTrainer, save_run_model

OUT, (DATA, MODEL, KIND) = Path(sys.argv[1]), sys.argv[2:]
RANK = int(os.environ["RANK"])
COUNT = "SELECT count(*) FROM singer"
BUDGET = 700 if KIND == "scripted" else 300


class Turns(Codec):
    """Reads calls and answers into what a random model writes; many tokens end a turn."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self.stop_ids |= frozenset(range(300, len(tokenizer), 8))

    def decode(self, ids: Sequence[int]) -> str:
        if RANK and sum(ids) % 4:
            return call_text(COUNT)
        return answer_text("SELECT 1") if len(ids) % 2 else "I do not know."


def script(key: int, turn: int) -> str:
    turns = 3 + key if RANK else 1
    return call_text(COUNT) if turn < turns - 1 else answer_text(COUNT if key % 2 else "SELECT 1")


def local(weight: Any) -> Any:
    """What this rank holds of a weight."""
    if isinstance(weight, DTensor):
        return weight.to_local()
    return getattr(weight, "ds_tensor", weight)


def main() -> None:
    codec = Codec(chat_tokenizer()) if KIND == "scripted" else Turns(chat_tokenizer())
    limits = RolloutConfig(budget=BUDGET, max_turns=8)
    task = make_task(DATA, "train", codec, rollout=limits)
    seeds: list[int] = []

    def policy(trainer: Any, seed: int) -> Policy:
        seeds.append(seed)
        return (
            ScriptedPolicy(script, codec) if KIND == "scripted" else trained_policy(trainer, seed)
        )

    def reward(verdict: Verdict) -> float:
        if KIND == "failing" and RANK == 1 and trainer.state.global_step == 1:
            raise RuntimeError("the disk is full")
        return execution_match(verdict) if KIND == "scripted" else executable(verdict)

    settings = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "max_steps": 3,
        "max_completion_length": BUDGET,
        "ddp_timeout": 120,
        "save_strategy": "steps" if KIND == "sampled" else "no",
        "save_steps": 2,
    }
    args = config(OUT, **settings)
    if "ACCELERATE_USE_FSDP" in os.environ:
        # accelerate shards on accelerators only; said to be some, CPUs shard over gloo as well.
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    if "ACCELERATE_USE_DEEPSPEED" in os.environ:
        # It would compile its communication over shared memory, for minutes.
        importlib.import_module("deepspeed.comm.torch")
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    trainer = SqlGRPOTrainer(
        AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        args,
        task,
        codec,
        [reward],
        run_dir=OUT,
        policy_factory=policy,
        callbacks=[RunCallback(OUT)],
    )
    trainer.train()
    save_run_model(trainer, OUT / "model")
    found = {
        "processes": trainer.accelerator.num_processes,
        "rows": [row for row in trainer.state.log_history if "loss" in row],
        "parameters": sum(local(p).numel() for p in trainer.model.parameters()),
        "not_shared": trainer.not_shared,
        "seeds": seeds,
    }
    (OUT / f"rank{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
