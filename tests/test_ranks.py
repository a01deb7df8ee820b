"""Two processes on the CPU with trajectories of unequal turns: DDP, FSDP2 and ZeRO-3, on gloo."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import ROOT, random_model, write_spider_folder

from nl2sql_trl.runs import read_jsonl

DDP = {"ACCELERATE_USE_CPU": "true"}
FSDP2 = {
    "ACCELERATE_USE_CPU": "true",
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
}
# Without ACCELERATE_USE_CPU, with which accelerate leaves DeepSpeed out.
ZERO3 = {
    "ACCELERATE_USE_DEEPSPEED": "true",
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
    "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true",
    "DS_ACCELERATOR": "cpu",
}
LOGGED = ["loss", "grad_norm", "reward", "entropy", "num_tokens", "rollout/calls", "rollout/turns",
          "tokens/prompt", "tokens/sampled", "tokens/forced", "rollout/truncated",
          "seconds/rollout", "seconds/generate", "seconds/sql_wait", "seconds/sql",
          "seconds/reward", "seconds/rank_wait", "seconds/update", "seconds/sql_p95"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_spider_folder(tmp_path_factory.mktemp("ranks") / "spider")


@pytest.fixture(scope="module")
def ranks_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("ranks") / "model"
    random_model().save_pretrained(found)
    return found


def launched(
    out: Path, folder: Path, model: Path, kind: str, env: dict[str, str] = DDP
) -> subprocess.CompletedProcess[str]:
    out.mkdir()
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
        str(ROOT / "tests" / "rank_script.py"), str(out), str(folder), str(model), kind,
    ]  # fmt: skip
    env = os.environ | {"OMP_NUM_THREADS": "1"} | env
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=500)


def trained(
    out: Path, folder: Path, model: Path, kind: str, env: dict[str, str] = DDP
) -> tuple[dict[str, Any], ...]:
    """What both ranks found."""
    done = launched(out, folder, model, kind, env)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((out / f"rank{n}.json").read_text()) for n in (0, 1))
    assert first["processes"] == 2
    # A group may lie on both ranks: they must not draw the same.
    assert not set(first["seeds"]) & set(second["seeds"])
    return first, second


@pytest.mark.slow
def test_two_ranks_with_different_numbers_of_turns_finish_and_agree(
    folder: Path, ranks_model: Path, tmp_path: Path
) -> None:
    first, second = trained(tmp_path / "run", folder, ranks_model, "scripted")
    clocks = ("seconds/update", "step_time")
    for a, b in zip(first["rows"], second["rows"], strict=True):
        assert a.keys() == b.keys() >= set(LOGGED)
        for name in a:
            assert name in clocks or a[name] == pytest.approx(b[name], rel=1e-6), name
        # Rank 0: one turn each; rank 1: three to six.
        assert a["rollout/turns"] == (4 * 1 + 3 + 4 + 5 + 6) / 8
        assert a["seconds/rank_wait"] > 0
    assert [row["step"] for row in read_jsonl(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3]


@pytest.fixture(scope="module")
def whole(
    folder: Path, ranks_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """A run under DDP whose ranks take unequal turns."""
    out = tmp_path_factory.mktemp("whole") / "run"
    first, _ = trained(out, folder, ranks_model, "sampled")
    assert all(row["rollout/turns"] > 1 for row in first["rows"][:2])
    assert any(row["grad_norm"] > 0 for row in first["rows"][:2])
    return out, first


@pytest.mark.slow
@pytest.mark.parametrize("env", [FSDP2, ZERO3], ids=["FSDP2", "ZeRO-3"])
def test_sharded_weights_train_as_whole_ones_do_on_unequal_turns(
    whole: tuple[Path, dict[str, Any]],
    folder: Path,
    ranks_model: Path,
    tmp_path: Path,
    env: dict[str, str],
) -> None:
    """The same seeds draw the same tokens only if what is gathered are the trained weights."""
    from safetensors.torch import load_file

    if env is ZERO3 and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is not installed: pip install deepspeed")
    out, expected = whole
    first, second = trained(tmp_path / "run", folder, ranks_model, "sampled", env)
    assert {rank["not_shared"] for rank in (first, second)} != {""}
    # Each rank holds about half, and rounds up.
    assert first["parameters"] + second["parameters"] < 1.2 * expected["parameters"]
    for a, b in zip(expected["rows"], first["rows"], strict=True):
        for name in LOGGED:
            assert "seconds" in name or a[name] == pytest.approx(b[name], rel=1e-3, abs=1e-4), name
    assert (tmp_path / "run" / "checkpoint-2" / "trainer_state.json").is_file()
    start, weights, sharded = (
        load_file(folder / "model.safetensors")
        for folder in (ranks_model, out / "model", tmp_path / "run" / "model")
    )
    assert weights.keys() == sharded.keys()
    # Adam makes a step of a whole learning rate out of a gradient that is a rounding error, so a
    # single value may end elsewhere: what is compared is the whole way that the weights went.
    apart = moved = 0.0
    for name, weight in weights.items():
        assert weight.shape == sharded[name].shape
        apart += float((weight - sharded[name]).square().sum())
        moved += float((weight - start[name]).square().sum())
    assert moved > 0
    assert (apart / moved) ** 0.5 < 0.01, (apart, moved)


@pytest.mark.slow
def test_an_error_on_one_rank_is_raised_on_both(
    folder: Path, ranks_model: Path, tmp_path: Path
) -> None:
    done = launched(tmp_path / "run", folder, ranks_model, "failing")
    assert done.returncode != 0
    own = r"reward failed on train:"
    assert done.stderr.count(f"RolloutError: {own}") == 1
    assert done.stderr.count(f"RolloutError: rank 1 failed: {own}") == 1
