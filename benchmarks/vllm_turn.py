"""One turn of rollouts by our engine and by vLLM's CPU build, on the same prompts.

    make test-vllm                                   # makes .venv-vllm
    python -m benchmarks.vllm_turn --data DIR        # 4 prompts x 8, 96 new tokens each, bf16

Both sample at temperature 1 and return log-probabilities; no row ends early. vLLM has its prefix
caching on, and its default compilation unless `--eager`. Loading and a warm-up on other prompts
are not counted. Sides alternate, each run in a process of its own; the medians are printed and
written to OUT/vllm_turn.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

SIDES = ("ours", "vllm")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; with --worker, one side's run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="pocket")
    parser.add_argument("--vllm", default=".venv-vllm/bin/python", help="a python that has vLLM")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96, help="new tokens of each row")
    parser.add_argument("--prompt_tokens", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--eager", action="store_true", help="vLLM without compilation")
    parser.add_argument("--out", type=Path, default=Path("runs/speed"))
    parser.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker:
        asked = json.loads(options.work.read_text(encoding="utf-8"))
        found = (_ours if options.worker == "ours" else _vllm)(asked)
        (options.work.parent / "found.json").write_text(json.dumps(found), encoding="utf-8")
        return 0
    measure(options)
    return 0


def measure(options: argparse.Namespace) -> None:
    """All rounds, printed and written."""
    from benchmarks.__main__ import machine
    from nl2sql_trl import runs
    from nl2sql_trl.launch import KEEP_MEMORY

    asked = _asked(options)
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "asked.json"
        work.write_text(json.dumps(asked), encoding="utf-8")
        for number in range(options.rounds):
            for side, python in zip(SIDES, (sys.executable, options.vllm), strict=True):
                command = [python, "-m", "benchmarks.vllm_turn", "--worker", side]
                log = Path(folder) / "log.txt"
                with log.open("w", encoding="utf-8") as file:
                    done = subprocess.run(
                        [*command, "--work", str(work)],
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        env=os.environ | KEEP_MEMORY,
                    )
                if done.returncode:
                    sys.exit(log.read_text(encoding="utf-8", errors="replace")[-3000:])
                found = json.loads((work.parent / "found.json").read_text(encoding="utf-8"))
                seconds[side].append(found["seconds"])
                print(f"round {number + 1}, {side}: {found['seconds']:.1f} s", flush=True)
    options.device, options.threads, options.seed = "cpu", asked["threads"], 0
    medians = {side: statistics.median(found) for side, found in seconds.items()}
    report = {
        "machine": machine(options),
        "settings": {k: v for k, v in asked.items() if k not in ("prompts", "model")},
        "prompt_tokens": [len(ids) for ids in asked["prompts"]],
        "seconds": seconds,
        "medians": medians,
        "ratio": medians["vllm"] / medians["ours"],
    }
    runs.write_json(options.out / "vllm_turn.json", report)
    print(f"ours {medians['ours']:.1f} s, vLLM {medians['vllm']:.1f} s: {report['ratio']:.2f}")


def _asked(options: argparse.Namespace) -> dict[str, Any]:
    from benchmarks.cases import by_length
    from benchmarks.jobs import Job
    from nl2sql_trl.database import ddl
    from nl2sql_trl.models import load_tokenizer, resolve
    from nl2sql_trl.prompts import Codec
    from nl2sql_trl.rollout import make_prompt

    codec = Codec(load_tokenizer("smollm2-135m"))
    job = Job("rollout", "ours", "bf16", data=options.data, prompt_tokens=options.prompt_tokens)
    # One more for the warm-up.
    examples = [next(rows) for rows in islice(by_length(job, "train", codec), options.prompts + 1)]
    return {
        "model": resolve("smollm2-135m"),
        "prompts": [list(make_prompt(e, ddl(e.db_path), codec).ids) for e in examples],
        "group": options.group,
        "tokens": options.tokens,
        "eager": options.eager,
        "threads": int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1),
    }


def _ours(asked: dict[str, Any]) -> dict[str, float]:
    from types import SimpleNamespace

    import torch

    from nl2sql_trl.engine import TransformersPolicy
    from nl2sql_trl.models import load_model, load_tokenizer

    torch.set_num_threads(asked["threads"])
    # Without an end token every row goes on to its limit.
    codec: Any = SimpleNamespace(tokenizer=load_tokenizer(asked["model"]), stop_ids=frozenset())
    policy = TransformersPolicy(load_model(asked["model"], dtype="bfloat16"), codec)

    def turn(prompts: list[list[int]], tokens: int) -> float:
        started, left = time.perf_counter(), len(prompts) * asked["group"]
        with policy.session():
            for key in range(left):
                policy.submit(key, prompts[key // asked["group"]], tokens)
            while left:
                for key, sample in policy.step():
                    assert len(sample.ids) == len(sample.logprobs) == tokens
                    policy.release(key)
                    left -= 1
        return time.perf_counter() - started

    turn(asked["prompts"][-1:], 8)
    return {"seconds": turn(asked["prompts"][:-1], asked["tokens"])}


def _vllm(asked: dict[str, Any]) -> dict[str, float]:
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "OMP_NUM_THREADS": str(asked["threads"]),
    }
    import vllm

    llm = vllm.LLM(
        model=asked["model"],
        dtype="bfloat16",
        max_model_len=2048,
        enable_prefix_caching=True,
        enforce_eager=asked["eager"],
        gpu_memory_utilization=0.3,
        seed=0,
    )

    def turn(prompts: list[list[int]], tokens: int) -> float:
        sampling = vllm.SamplingParams(
            temperature=1.0, max_tokens=tokens, ignore_eos=True, logprobs=0, detokenize=False
        )
        rows = [{"prompt_token_ids": ids} for ids in prompts for _ in range(asked["group"])]
        started = time.perf_counter()
        done = llm.generate(rows, sampling, use_tqdm=False)
        seconds = time.perf_counter() - started
        assert all(len(row.outputs[0].token_ids) == tokens for row in done)
        return seconds

    turn(asked["prompts"][-1:], 8)
    return {"seconds": turn(asked["prompts"][:-1], asked["tokens"])}


if __name__ == "__main__":
    sys.exit(main())
