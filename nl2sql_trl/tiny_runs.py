"""Trainings of `tiny`: GRPO from its warm start, and the demo's stages in under two minutes.

    python -m nl2sql_trl.tiny_runs     # makes the model; what it can do before and after GRPO

For tests and notebooks. The numbers are of the questions that `tiny` was trained on: they show that
the loop learns and say nothing about text-to-SQL.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from nl2sql_trl.models import load_model, load_tokenizer
from nl2sql_trl.prompts import Codec
from nl2sql_trl.task import Task
from nl2sql_trl.tiny import Settings, tiny_model, tiny_task, untrained

LEARNING_RATE = 1e-4  # for two million parameters; a real model wants 1e-6 to 1e-5
STAGES = ("base", "warm_start", "grpo")  # folders of `demo.py`'s evaluations


def grpo_trainer(
    model: Any, task: Task, codec: Codec, output_dir: Path, steps: int, seed: int, **kwargs: Any
) -> Any:
    """A `SqlGRPOTrainer` for `tiny`: 4 groups of 8 a step. kwargs go to it."""
    from transformers import PrinterCallback
    from trl import GRPOConfig

    from nl2sql_trl.rewards import execution_match
    from nl2sql_trl.trainer import SqlGRPOTrainer

    config = GRPOConfig(
        output_dir=str(output_dir),
        max_steps=steps,
        per_device_train_batch_size=32,
        gradient_accumulation_steps=1,
        num_generations=8,
        max_completion_length=task.rollout.budget,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        temperature=1.0,
        beta=0.0,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=seed,
    )
    trainer = SqlGRPOTrainer(model, config, task, codec, [execution_match], **kwargs)
    trainer.remove_callback(PrinterCallback)
    return trainer


def learn(steps: int, seed: int = 0) -> tuple[float, float, float]:
    """GRPO on `tiny_task`: mean reward before and after `steps`, and the seconds a step took.

    Rewards are of 4 trajectories a question at temperature 1.
    """
    from transformers import set_seed

    from nl2sql_trl.engine import TransformersPolicy
    from nl2sql_trl.evaluation import evaluate
    from nl2sql_trl.sampling import Sampling

    set_seed(seed)
    folder = str(tiny_model())
    codec, model = Codec(load_tokenizer(folder)), load_model(folder)
    task = tiny_task(codec)

    def reward() -> float:
        policy = TransformersPolicy(model, codec, Sampling(temperature=1.0), seed=seed)
        right = evaluate(task, policy, 4, progress=False).correct
        return sum(right) / len(right)

    before = reward()
    with tempfile.TemporaryDirectory() as output_dir:
        trainer = grpo_trainer(model, task, codec, Path(output_dir), steps, seed)
        started = time.monotonic()
        trainer.train()
        seconds = (time.monotonic() - started) / steps
    return before, reward(), seconds


def small_demo(out: Path, steps: int, samples: int = 4, seed: int = 0) -> None:
    """The demo's stages with `tiny`, in the demo's layout: `grpo`, and `evaluation/STAGE`.

    The base is `tiny`'s architecture with random weights, the warm start `tiny` as it is made,
    GRPO is `steps` steps from it. All are evaluated on the questions of `tiny_task`.
    """
    import torch
    from transformers import set_seed

    from nl2sql_trl.trainer import RunCallback

    set_seed(seed)
    codec = Codec(load_tokenizer(str(tiny_model())))
    task = tiny_task(codec)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        base = untrained(codec.tokenizer, Settings())
    model = load_model(str(tiny_model()))
    evaluation = {stage: out / "evaluation" / stage for stage in STAGES}
    _evaluate(base, task, codec, evaluation["base"], 1, seed)
    _evaluate(model, task, codec, evaluation["warm_start"], samples, seed)
    run_dir = out / "grpo"
    grpo_trainer(
        model, task, codec, run_dir, steps, seed, run_dir=run_dir, callbacks=[RunCallback(run_dir)]
    ).train()
    _evaluate(model, task, codec, evaluation["grpo"], samples, seed)


def _evaluate(model: Any, task: Task, codec: Codec, out: Path, samples: int, seed: int) -> None:
    """Greedy and, for several samples, sampled: what `evaluate` writes."""
    from nl2sql_trl.engine import TransformersPolicy
    from nl2sql_trl.evaluation import evaluate, measure, write
    from nl2sql_trl.sampling import Sampling

    greedy, *sampled = (
        evaluate(
            task,
            TransformersPolicy(model, codec, Sampling(temperature=t), seed=seed),
            n,
            progress=False,
        )
        for t, n in ((0.0, 1), (1.0, samples))[: 1 + (samples > 1)]
    )
    found, rows, more = measure(greedy, *sampled)
    settings = {"model": f"{out.name}/model", "samples": samples, "seed": seed}
    write({"name": out.name, "settings": settings, **found}, rows, more, out)


def main() -> int:
    """Make the model and print what it can do."""
    started = time.monotonic()
    folder = tiny_model()
    print(f"{folder} ({time.monotonic() - started:.0f} s)", flush=True)
    before, after, seconds = learn(steps=25)
    print(f"mean reward on its task at temperature 1: {before:.2f}")
    print(f"after 25 GRPO steps of {seconds:.1f} s: {after:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
