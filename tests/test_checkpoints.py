"""A checkpoint is there whole or not at all."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from nl2sql_trl.checkpoints import UNFINISHED, CheckpointError, WholeCheckpoints
from nl2sql_trl.launch import last_checkpoint


class Slope(torch.nn.Module):
    """y = w x, with enough unused weights to fill a small disk."""

    def __init__(self, spare: int = 10) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(1))
        self.spare = torch.nn.Parameter(torch.zeros(spare))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": ((self.w * x - labels) ** 2).mean(), "logits": self.w * x}


class SlopeTrainer(WholeCheckpoints, Trainer):
    fail_at = 0

    def _save_rng_state(self, output_dir: str) -> None:
        if self.state.global_step == self.fail_at:
            raise OSError(28, "No space left on device")
        super()._save_rng_state(output_dir)


ROWS = [{"x": float(n), "labels": 2.0 * n} for n in range(1, 5)]


def trainer(out: Path, spare: int = 10, **changes: Any) -> SlopeTrainer:
    settings: dict[str, Any] = {
        "output_dir": str(out), "max_steps": 4, "save_steps": 1, "save_total_limit": 2,
        "learning_rate": 0.1, "use_cpu": True, "report_to": "none", "disable_tqdm": True,
    }  # fmt: skip
    args = TrainingArguments(**(settings | changes))
    return SlopeTrainer(Slope(spare), args, train_dataset=ROWS, eval_dataset=ROWS)


def names(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir())


def test_the_last_checkpoints_are_kept_and_no_scaffolding(tmp_path: Path) -> None:
    trainer(tmp_path).train()
    assert names(tmp_path) == ["checkpoint-3", "checkpoint-4"]
    found = {path.name for path in (tmp_path / "checkpoint-4").iterdir()}
    assert {"trainer_state.json", "optimizer.pt", "rng_state.pth", "model.safetensors"} <= found
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-4")


def test_the_best_is_kept_beside_the_last_and_is_named_by_its_place(tmp_path: Path) -> None:
    # So large a step overshoots: the loss grows from the first step on.
    done = trainer(
        tmp_path, learning_rate=9.0, eval_strategy="steps", eval_steps=1, save_total_limit=1,
        load_best_model_at_end=True, metric_for_best_model="eval_loss", greater_is_better=False,
    )  # fmt: skip
    done.train()
    best = done.state.best_model_checkpoint
    assert best == str(tmp_path / f"checkpoint-{done.state.best_global_step}")
    assert names(tmp_path) == sorted({Path(best).name, "checkpoint-4"})
    assert UNFINISHED not in (Path(best) / "trainer_state.json").read_text()


def test_a_failure_while_writing_leaves_the_last_whole_one(tmp_path: Path) -> None:
    failing = trainer(tmp_path)
    failing.fail_at = 3
    said = r"checkpoint-3 .*No space left.*checkpoint-2 is whole"
    with pytest.raises(CheckpointError, match=said):
        failing.train()
    assert names(tmp_path) == ["checkpoint-1", "checkpoint-2"]
    resumed = trainer(tmp_path)
    resumed.train(resume_from_checkpoint=last_checkpoint(tmp_path))
    whole = trainer(tmp_path / "other")
    whole.train()
    assert torch.equal(resumed.model.w, whole.model.w)


def test_what_a_killed_process_left_unfinished_is_no_checkpoint_and_is_cleared(
    tmp_path: Path,
) -> None:
    left = tmp_path / UNFINISHED / "checkpoint-9"
    left.mkdir(parents=True)
    (left / "trainer_state.json").write_text("{}")
    assert last_checkpoint(tmp_path) is None
    trainer(tmp_path).train()
    assert names(tmp_path) == ["checkpoint-3", "checkpoint-4"]


def test_a_run_started_again_without_resuming_writes_over_its_checkpoints(tmp_path: Path) -> None:
    trainer(tmp_path).train()
    old = (tmp_path / "checkpoint-4" / "model.safetensors").read_bytes()
    trainer(tmp_path, learning_rate=0.2).train()
    assert (tmp_path / "checkpoint-4" / "model.safetensors").read_bytes() != old


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if os.name != "posix" or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_is_really_full_is_told_in_one_line_and_costs_no_whole_checkpoint(
    small_disk: Path,
) -> None:
    # 6 MB of weights: one checkpoint fits, not two.
    with pytest.raises(CheckpointError, match=r"0\.00 GB free .*checkpoint-1 is whole") as caught:
        trainer(small_disk, spare=1_500_000).train()
    assert "\n" not in str(caught.value)
    assert names(small_disk) == ["checkpoint-1"]
    assert last_checkpoint(small_disk) == str(small_disk / "checkpoint-1")
