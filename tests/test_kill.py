"""A training that is killed again and again ends as the one that never was."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from nl2sql_trl.launched import write_rows
from nl2sql_trl.models import load_model, load_tokenizer
from nl2sql_trl.prompts import Codec
from nl2sql_trl.runs import read_jsonl
from nl2sql_trl.tiny import tiny_task

KILLS, STEPS, SEED = 20, 48, 20261129
_TIMES = ("time", "step_time")


def start(data: Path, run_dir: Path) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "nl2sql_trl.train", "--model_name_or_path", "tiny",
        "--data", str(data), "--output_dir", str(run_dir), "--max_steps", str(STEPS),
        "--per_device_train_batch_size", "8", "--gradient_accumulation_steps", "2",
        "--num_generations", "8", "--max_completion_length", "224", "--max_turns", "3",
        "--learning_rate", "1e-4", "--lr_scheduler_type", "linear", "--beta", "0",
        "--resample_rounds", "1", "--gradient_checkpointing", "false", "--bf16", "false",
        "--use_cpu", "true", "--logging_steps", "1", "--save_strategy", "steps",
        "--save_steps", "1", "--save_total_limit", "2", "--report_to", "none", "--seed", "3",
        "--resume_from_checkpoint", "true",
    ]  # fmt: skip
    # One thread: sums in another order would be other numbers.
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    log = (run_dir.parent / f"{run_dir.name}.log").open("ab")
    return subprocess.Popen(command, env=env, stdout=log, stderr=log)


def finish(data: Path, run_dir: Path) -> float:
    """Run to the end; returns the seconds that it took."""
    started = time.monotonic()
    assert start(data, run_dir).wait(1500) == 0, (
        run_dir.parent / f"{run_dir.name}.log"
    ).read_text()
    return time.monotonic() - started


def metrics(run_dir: Path) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in row.items() if k not in _TIMES and not k.startswith("seconds/")}
        for row in read_jsonl(run_dir / "metrics.jsonl")
    ]


@pytest.mark.slow
def test_twenty_kills_at_random_moments_change_nothing_in_the_end(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_rows(tiny_task(Codec(load_tokenizer("tiny"))), data)
    seconds = finish(data, tmp_path / "whole")
    rng = random.Random(SEED)
    killed = tmp_path / "killed"
    # A start takes about ten of the seconds: kills fall into it, into rollouts, updates and saves.
    for _ in range(KILLS):
        process = start(data, killed)
        time.sleep(rng.uniform(2, 10 + 2 * seconds / KILLS))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        whole = [p for p in killed.glob("checkpoint-*") if (p / "trainer_state.json").is_file()]
        assert len(whole) == len(list(killed.glob("checkpoint-*")))
    finish(data, killed)
    assert [row["step"] for row in metrics(killed)] == list(range(1, STEPS + 1))
    assert metrics(killed) == metrics(tmp_path / "whole")
    assert any(row["grad_norm"] > 0 for row in metrics(killed))
    steps = [row["step"] for row in read_jsonl(killed / "trajectories.jsonl")]
    assert steps == [row["step"] for row in read_jsonl(tmp_path / "whole" / "trajectories.jsonl")]
    ours, theirs = (load_model(str(tmp_path / name)).state_dict() for name in ("killed", "whole"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
