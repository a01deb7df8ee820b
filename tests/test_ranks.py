"""Two processes on the CPU whose trajectories take unequal turns: DDP and FSDP2, over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import ROOT, write_spider_folder

from nl2sql_trl.runs import read_jsonl

FSDP2 = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
}
LOGGED = ["loss", "grad_norm", "reward", "entropy", "num_tokens", "rollout/calls", "rollout/turns",
          "tokens/prompt", "tokens/sampled", "tokens/forced", "rollout/truncated",
          "seconds/rollout", "seconds/generate", "seconds/sql_wait", "seconds/sql",
          "seconds/reward", "seconds/rank_wait", "seconds/update", "seconds/sql_p95"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_spider_folder(tmp_path_factory.mktemp("ranks") / "spider")


def launched(out: Path, folder: Path, kind: str, **env: str) -> subprocess.CompletedProcess[str]:
    out.mkdir()
    command = [
        str(Path(sys.executable).with_name("accelerate")), "launch", "--multi_gpu",
        "--num_processes", "2", "--main_process_port", "0", str(ROOT / "tests" / "rank_script.py"),
        str(out), str(folder), kind,
    ]  # fmt: skip
    env = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"} | env
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=400)


def trained(out: Path, folder: Path, kind: str, **env: str) -> tuple[dict[str, Any], ...]:
    """What both ranks found."""
    done = launched(out, folder, kind, **env)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((out / f"rank{n}.json").read_text()) for n in (0, 1))
    assert first["processes"] == 2
    # A group may lie on both ranks: they must not draw the same.
    assert not set(first["seeds"]) & set(second["seeds"])
    return first, second


@pytest.mark.slow
def test_two_ranks_with_different_numbers_of_turns_finish_and_agree(
    folder: Path, tmp_path: Path
) -> None:
    first, second = trained(tmp_path / "run", folder, "scripted")
    clocks = ("seconds/update", "step_time")
    for a, b in zip(first["rows"], second["rows"], strict=True):
        assert a.keys() == b.keys() >= set(LOGGED)
        for name in a:
            assert name in clocks or a[name] == pytest.approx(b[name], rel=1e-6), name
        # Rank 0: one turn each; rank 1: three to six.
        assert a["rollout/turns"] == (4 * 1 + 3 + 4 + 5 + 6) / 8
        assert a["seconds/rank_wait"] > 0
    assert [row["step"] for row in read_jsonl(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3]


@pytest.mark.slow
def test_fsdp2_trains_as_ddp_does_on_unequal_turns(folder: Path, tmp_path: Path) -> None:
    """The same seeds draw the same tokens only if the gathered copy has the trained weights."""
    from safetensors.torch import load_file

    whole, _ = trained(tmp_path / "ddp", folder, "sampled")
    first, second = trained(tmp_path / "fsdp", folder, "sampled", **FSDP2)
    assert first["weight"] == second["weight"] == "DTensor"
    assert "FSDP" in first["not_shared"]
    for a, b in zip(whole["rows"], first["rows"], strict=True):
        for name in LOGGED:
            assert "seconds" in name or a[name] == pytest.approx(b[name], rel=1e-3, abs=1e-5), name
        assert a["rollout/turns"] > 1
    assert any(row["grad_norm"] > 0 for row in whole["rows"][:2])
    ddp, fsdp = (
        load_file(tmp_path / name / "model" / "model.safetensors") for name in ("ddp", "fsdp")
    )
    assert ddp.keys() == fsdp.keys()
    for name, weight in ddp.items():
        assert weight.shape == fsdp[name].shape
        assert (weight - fsdp[name]).abs().max() < 1e-3


@pytest.mark.slow
def test_an_error_on_one_rank_is_raised_on_both(folder: Path, tmp_path: Path) -> None:
    done = launched(tmp_path / "run", folder, "failing")
    assert done.returncode != 0
    own = r"reward failed on train:"
    assert done.stderr.count(f"RolloutError: {own}") == 1
    assert done.stderr.count(f"RolloutError: rank 1 failed: {own}") == 1
