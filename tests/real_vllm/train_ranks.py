"""One rank of a GRPO training through vLLM, started by the tests: writes rank<n>.json.

    accelerate launch ... train_ranks.py OUT MODEL DATA full|lora|fail|tensor [SERVER]

Rank 0 mostly answers at once, rank 1 mostly calls: the ranks take unequal turns.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parent)
import cpu_vllm  # noqa: E402

cpu_vllm.prepare()

OUT, MODEL, DATA, KIND, *SERVER = sys.argv[1:]
RANK = int(os.environ.get("RANK", "0"))
BUDGET = 160


def stub_weight_sync() -> None:
    """A server's weights are pushed by NCCL, which needs CUDA: here they stay as they were."""
    from trl.generation.vllm_client import VLLMClient

    def take(self: Any, metadata: Any, params: Any) -> None:
        pushed.append(sum(1 for _ in params))

    VLLMClient.init_communicator = lambda self, device=0: None
    VLLMClient.update_named_params = take


pushed: list[int] = []


def main() -> None:
    import torch
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig

    from nl2sql_trl.backends import trained_policy
    from nl2sql_trl.rewards import executable
    from nl2sql_trl.rollout import RolloutConfig
    from nl2sql_trl.task import make_task
    from nl2sql_trl.trainer import RunCallback, SqlGRPOTrainer

    if SERVER:
        stub_weight_sync()
    codec = cpu_vllm.codec(calls_of=4 if RANK else 1)
    limits = RolloutConfig(budget=BUDGET, max_turns=6, tool_chars=100)
    task = make_task(DATA, "train", codec, rollout=limits)
    asked: list[tuple[int, int]] = []

    def policy(trainer: Any, seed: int) -> Any:
        found = trained_policy(trainer, seed)
        submit, step, limits = found.submit, found.step, {}

        def asking(key: int, ids: Any, max_tokens: int) -> None:
            limits[key] = max_tokens
            submit(key, ids, max_tokens)

        def stepping() -> Any:
            if KIND == "fail" and RANK == 1 and trainer.state.global_step == 1:
                raise RuntimeError("the disk is full")
            done = step()
            asked.extend((limits[key], len(sample.ids)) for key, sample in done)
            return done

        found.submit, found.step = asking, stepping
        return found

    args = GRPOConfig(
        output_dir=OUT,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=1,
        num_generations=4,
        max_completion_length=BUDGET,
        max_steps=3,
        # A server's weights stay as they are here: ours should not leave them far behind.
        learning_rate=1e-6 if SERVER else 1e-3,
        lr_scheduler_type="constant",
        temperature=0.8,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        ddp_timeout=120,
        use_vllm=True,
        vllm_mode="server" if SERVER else "colocate",
        vllm_server_base_url=SERVER[0] if SERVER else None,
        vllm_tensor_parallel_size=2 if KIND == "tensor" else 1,
        vllm_gpu_memory_utilization=0.12,
        vllm_max_model_length=2048,
    )
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = SqlGRPOTrainer(
        AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32"),
        args,
        task,
        codec,
        [executable],
        run_dir=Path(OUT),
        policy_factory=policy,
        callbacks=[RunCallback(Path(OUT))],
        peft_config=lora if KIND == "lora" else None,
    )
    trainer.train()
    weights = [p.detach().double() for p in trainer.model.parameters() if p.requires_grad]
    found = {
        "processes": trainer.accelerator.num_processes,
        "rows": [row for row in trainer.state.log_history if "loss" in row],
        "weights": float(torch.stack([w.abs().sum() for w in weights]).sum()),
        "asked": asked,
        "pushed": pushed,
    }
    (Path(OUT) / f"rank{RANK}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
