"""Greedy evaluation and the warm start by both sides, and the comparison of two gradients."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from trl import SFTConfig, SFTTrainer

from benchmarks.cases import Cast, distinct, evaluation_case, warm_start_task
from benchmarks.forced import ForcedEngine, ForcedGenerate
from benchmarks.grpo import Steps, loaded, result
from benchmarks.jobs import Job
from benchmarks.meter import Meter
from nl2sql_trl.demonstrations import demonstrations
from nl2sql_trl.evaluation import evaluate
from nl2sql_trl.prompts import Codec
from nl2sql_trl.sampling import Sampling
from nl2sql_trl.sft import to_rows
from nl2sql_trl.trainer import SqlSFTTrainer

BATCH = 32  # of plain `generate`: on CPUs larger batches are hardly faster, smaller ones slower


def measure_evaluation(job: Job, codec: Codec) -> dict[str, Any]:
    """Greedy evaluation with our engine, or with the same loop on plain batched `generate`."""
    case = evaluation_case(job, codec)
    model = loaded(job)
    meter, cast = Meter(model), Cast(case, codec)
    options: dict[str, Any] = {"autocast": job.precision == "autocast"}
    policy = (
        ForcedEngine(cast, model, codec, Sampling(0.0), **options)
        if job.side == "ours"
        else ForcedGenerate(cast, model, codec, Sampling(0.0), batch=BATCH, **options)
    )
    with meter("rollout"):
        done = evaluate(case.task, policy, progress=False)
    meter.seconds["sql"] = sum(c.result.seconds for t in done.trajectories for c in t.calls)  # type: ignore[union-attr]
    full = [[*t.prompt.ids, *t.completion_ids] for t in done.trajectories]
    return result(meter) | {
        "digest": hashlib.sha256(repr(full).encode()).hexdigest()[:16],
        "rows": len(full),
        "databases": len({e.db_id for e in case.task.examples.values()}),
        "right": sum(done.correct),
        "sampled_tokens": sum(sum(t.env_mask) for t in done.trajectories),
        "all_tokens": sum(map(len, full)),
        "distinct_tokens": distinct(full),
    }


def measure_warm_start(job: Job, codec: Codec) -> dict[str, Any]:
    """One optimiser step of the warm start on all rows, in the same micro-batches on both sides."""
    task = warm_start_task(job, codec)
    dataset = to_rows(demonstrations(task, codec, 0.15, job.seed), task)
    model = loaded(job)
    meter = Meter(model)

    class Measured(SqlSFTTrainer if job.side == "ours" else SFTTrainer):  # type: ignore[misc]
        loss_sum = 0.0
        # TRL would mix databases in a micro-batch and pad to the longest: it is given ours.
        _get_train_sampler = SqlSFTTrainer._get_train_sampler

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            with meter("update"):
                loss = super().training_step(*args, **kwargs)
            self.loss_sum += float(loss)
            return loss

    with tempfile.TemporaryDirectory() as folder:
        trainer = Measured(
            model=model,
            args=_sft_config(job, folder, len(dataset)),
            train_dataset=dataset,
            processing_class=codec.tokenizer,
            callbacks=[Steps(meter, job.gradients)],
        )
        trainer.train()
    if job.side == "ours":
        assert not trainer.not_shared, trainer.not_shared
    rows = dataset["input_ids"]
    scored = sum(label != -100 for labels in dataset["labels"] for label in labels)
    return result(meter) | {
        "digest": hashlib.sha256(repr(sorted(rows)).encode()).hexdigest()[:16],
        "loss": trainer.loss_sum,
        "nll": trainer.loss_sum,
        "rows": len(rows),
        "databases": len(set(dataset["db_id"])),
        "scored_tokens": scored,
        "all_tokens": sum(map(len, rows)),
        "distinct_tokens": distinct(list(rows)),
    }


def _sft_config(job: Job, folder: str, rows: int) -> SFTConfig:
    return SFTConfig(
        output_dir=folder,
        per_device_train_batch_size=job.micro,
        gradient_accumulation_steps=-(-rows // job.micro),
        max_steps=1,
        learning_rate=1e-4,
        max_length=None,
        max_grad_norm=0.0,
        gradient_checkpointing=False,
        bf16=job.precision == "autocast",
        use_cpu=job.device == "cpu",
        dataset_kwargs={"skip_prepare_dataset": True},
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=job.seed,
    )


def compare(ours: Path, theirs: Path) -> dict[str, Any]:
    """The lowest cosine over all parameters of two gradient files, whose it is, and its norms."""
    lowest, name = 2.0, ""
    with safe_open(ours, "pt") as a, safe_open(theirs, "pt") as b:
        if set(a.keys()) != set(b.keys()):
            raise ValueError(f"{ours} and {theirs} hold gradients of different parameters")
        squares = [0.0, 0.0]
        for key in a.keys():  # noqa: SIM118, it is no dictionary
            x, y = a.get_tensor(key).double().flatten(), b.get_tensor(key).double().flatten()
            squares = [squares[0] + float(x @ x), squares[1] + float((x - y) @ (x - y))]
            cosine = float(torch.nn.functional.cosine_similarity(x, y, dim=0))
            if cosine < lowest:
                lowest, name = cosine, key
        return {
            "lowest_cosine": lowest,
            "of": name,
            "parameters": len(list(a.keys())),
            "relative_difference": (squares[1] / squares[0]) ** 0.5,
        }
