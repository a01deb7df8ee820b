"""The Slurm script, run with stand-ins for Slurm: what it would start, and where."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import ROOT

SCRIPT = ROOT / "scripts" / "slurm" / "train.sbatch"
# Writes its name, arguments and what matters of its environment; `srun` also runs the command.
STAND_IN = """#!{python}
import json, os, subprocess, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
seen = {{"name": name, "words": words, "rank": os.environ.get("SLURM_PROCID"),
        "dev": os.environ.get("VLLM_SERVER_DEV_MODE")}}
with open({log!r}, "a") as file:
    file.write(json.dumps(seen) + "\\n")
if name == "scontrol":
    print("\\n".join(os.environ["NODES"].split()))
if name == "srun":
    at = next(n for n, word in enumerate(words) if not word.startswith("--"))
    tasks = next(int(w.split("=")[1]) for w in words if w.startswith("--ntasks="))
    for rank in range(tasks):
        subprocess.run(words[at:], env=os.environ | {{"SLURM_PROCID": str(rank)}}, check=True)
"""


@pytest.fixture
def submit(tmp_path: Path) -> Any:
    """Runs the script on named nodes; returns its exit status, its stderr and what was started."""
    log = tmp_path / "log.jsonl"
    for name in ("scontrol", "srun", "accelerate", "vllm"):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(STAND_IN.format(python=sys.executable, log=str(log)))
        path.chmod(0o755)

    def run(nodes: str, *words: str, **settings: str) -> tuple[int, str, list[dict[str, Any]]]:
        folder = tmp_path / "bin"
        environment = os.environ | {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "NODES": nodes,
            "SLURM_JOB_NODELIST": "compressed[0-9]",
            "BIN": str(folder),
        }
        done = subprocess.run(
            ["bash", str(SCRIPT), *words],
            env=environment | settings,
            capture_output=True,
            text=True,
            timeout=60,
        )
        lines = log.read_text().splitlines() if log.exists() else []
        return done.returncode, done.stderr, [json.loads(line) for line in lines]

    return run


def of(started: list[dict[str, Any]], name: str) -> list[list[str]]:
    return [s["words"] for s in started if s["name"] == name]


def after(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_two_nodes_train_as_one_run(submit: Any) -> None:
    status, _, started = submit("n1 n2", "recipes/r.yaml", "--data", "a folder")
    assert status == 0
    [srun] = of(started, "srun")
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--nodelist=n1,n2"} <= set(srun)
    launches = of(started, "accelerate")
    assert [after(words, "--machine_rank") for words in launches] == ["0", "1"]
    for words in launches:
        assert words[0] == "launch"
        assert after(words, "--num_machines") == "2"
        assert after(words, "--num_processes") == "16"
        assert after(words, "--main_process_ip") == "n1"
        assert after(words, "--config_file") == "accelerate_configs/multi_node.yaml"
        assert words[words.index("--config") - 1] == "nl2sql_trl/train.py"
        assert words[-4:] == ["--config", "recipes/r.yaml", "--data", "a folder"]
    assert of(started, "vllm") == []


def test_accelerate_understands_what_it_is_started_with(submit: Any) -> None:
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    _, _, started = submit("n1 n2 n3", "recipes/r.yaml", GPUS="4")
    words = of(started, "accelerate")[2][1:]
    words[words.index("--config_file") + 1] = str(ROOT / after(words, "--config_file"))
    found, *_ = _validate_launch_command(launch_command_parser().parse_args(words))
    assert (found.machine_rank, found.num_machines, found.num_processes) == (2, 3, 12)
    assert found.training_script == "nl2sql_trl/train.py"
    assert found.training_script_args == ["--config", "recipes/r.yaml"]


def test_a_server_gets_the_last_node_and_the_trainer_its_address(submit: Any) -> None:
    status, _, started = submit("n1 n2 n3", "recipes/r.yaml", SERVER="1", MAX_LEN="5000")
    assert status == 0
    lists = {w for words in of(started, "srun") for w in words if w.startswith("--nodelist")}
    assert lists == {"--nodelist=n3", "--nodelist=n1,n2"}
    [serve] = of(started, "vllm")
    assert serve[:2] == ["serve", "Qwen/Qwen2.5-3B-Instruct"]
    assert after(serve, "--tensor-parallel-size") == "8"
    assert after(serve, "--max-model-len") == "5000"
    assert json.loads(after(serve, "--weight-transfer-config")) == {"backend": "nccl"}
    assert [s["dev"] for s in started if s["name"] == "vllm"] == ["1"]
    for words in of(started, "accelerate"):
        assert after(words, "--vllm_server_base_url") == "http://n3:8000"
        assert after(words, "--num_processes") == "16"


@pytest.mark.parametrize(
    ("nodes", "words", "settings", "told"),
    [
        ("n1", [], {}, "usage"),
        ("n1", ["recipes/r.yaml"], {"SERVER": "1"}, "--nodes=2 or more"),
    ],
)
def test_what_cannot_be_started_is_told_and_nothing_is(
    nodes: str, words: list[str], settings: dict[str, str], told: str, submit: Any
) -> None:
    status, stderr, started = submit(nodes, *words, **settings)
    assert status == 2
    assert told in stderr
    assert of(started, "srun") == []


def test_a_training_that_fails_fails_the_job(submit: Any, tmp_path: Path) -> None:
    (tmp_path / "bin" / "accelerate").write_text("#!/bin/sh\nexit 7\n")
    status, _, _ = submit("n1", "recipes/r.yaml")
    assert status != 0


def test_the_script_is_sound_to_the_shell() -> None:
    checker = shutil.which("shellcheck")
    words = [checker, str(SCRIPT)] if checker else ["bash", "-n", str(SCRIPT)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
