"""Rollouts of one turn and of two by our engine and by vLLM's CPU build, on the same prompts.

    make test-vllm                                   # makes .venv-vllm
    python -m benchmarks.vllm_turns --data DIR       # 4 prompts x 8, 96 new tokens each, bf16

Both sample at temperature 1 and return log-probabilities; no row ends early. Two turns share the
new tokens out and have `--tool` given ones between them, as a tool's answer would be. vLLM has its
prefix caching on, emptied before each measurement, and its default compilation unless `--eager`.
Loading and a warm-up on another prompt are not counted. Sides alternate, each run in a process of
its own; the medians are printed and written to OUT/vllm_turns.json.
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
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

SIDES = ("ours", "vllm")
TURNS = ("1", "2")
Turn = Callable[[list[list[int]], int], list[list[int]]]  # contexts and tokens to what was sampled


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; with --worker, one side's run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="pocket")
    parser.add_argument("--vllm", default=".venv-vllm/bin/python", help="a python that has vLLM")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96, help="new tokens of each row")
    parser.add_argument("--tool", type=int, default=40, help="given tokens between two turns")
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
    seconds: dict[str, dict[str, list[float]]] = {t: {side: [] for side in SIDES} for t in TURNS}
    report: dict[str, Any] = {
        "machine": machine("cpu", asked["threads"]),
        "settings": {k: v for k, v in asked.items() if k not in ("prompts", "model")},
        "prompt_tokens": [len(ids) for ids in asked["prompts"]],
        "seconds": seconds,
    }
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "asked.json"
        work.write_text(json.dumps(asked), encoding="utf-8")
        for number in range(options.rounds):
            for side, python in zip(SIDES, (sys.executable, options.vllm), strict=True):
                command = [python, "-m", "benchmarks.vllm_turns", "--worker", side]
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
                for turns in TURNS:
                    seconds[turns][side].append(found[turns])
                shown = ", ".join(f"{found[t]:.1f} s" for t in TURNS)
                print(f"round {number + 1}, {side}: {shown}", flush=True)
            report["medians"] = {
                t: {side: statistics.median(seconds[t][side]) for side in SIDES} for t in TURNS
            }
            runs.write_json(options.out / "vllm_turns.json", report)
    for turns, found in report["medians"].items():
        ours, vllm = (found[side] for side in SIDES)
        print(f"turns {turns}: ours {ours:.1f} s, vLLM {vllm:.1f} s: {vllm / ours:.2f}")


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
        "tool": options.tool,
        "eager": options.eager,
        "threads": int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1),
    }


def _measured(asked: dict[str, Any], turn: Turn, between: Callable[[], object]) -> dict[str, float]:
    """Seconds of one turn and of two. `between` comes before each, uncounted."""
    *prompts, other = asked["prompts"]
    rows = [ids for ids in prompts for _ in range(asked["group"])]
    turn([other], 8)
    found = {}
    for turns in map(int, TURNS):
        between()
        contexts, tokens = rows, asked["tokens"] // turns
        started = time.perf_counter()
        for number in range(turns):
            if number:
                contexts = [ids + other[: asked["tool"]] for ids in contexts]
            new = turn(contexts, tokens)
            assert all(len(ids) == tokens for ids in new)
            contexts = [old + ids for old, ids in zip(contexts, new, strict=True)]
        found[str(turns)] = time.perf_counter() - started
    return found


def _ours(asked: dict[str, Any]) -> dict[str, float]:
    from contextlib import ExitStack
    from types import SimpleNamespace

    import torch

    from nl2sql_trl.engine import TransformersPolicy
    from nl2sql_trl.models import load_model, load_tokenizer

    torch.set_num_threads(asked["threads"])
    # Without an end token every row goes on to its limit.
    codec: Any = SimpleNamespace(tokenizer=load_tokenizer(asked["model"]), stop_ids=frozenset())
    policy = TransformersPolicy(load_model(asked["model"], dtype="bfloat16"), codec)
    open_session = ExitStack()

    def between() -> None:
        open_session.close()
        open_session.enter_context(policy.session())

    def turn(contexts: list[list[int]], tokens: int) -> list[list[int]]:
        for key, ids in enumerate(contexts):
            policy.submit(key, ids, tokens)
        found: dict[int, list[int]] = {}
        while len(found) < len(contexts):
            for key, sample in policy.step():
                assert len(sample.ids) == len(sample.logprobs)
                found[key] = list(sample.ids)
        return [found[key] for key in range(len(contexts))]

    between()
    with open_session:
        return _measured(asked, turn, between)


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

    def turn(contexts: list[list[int]], tokens: int) -> list[list[int]]:
        sampling = vllm.SamplingParams(
            temperature=1.0, max_tokens=tokens, ignore_eos=True, logprobs=0, detokenize=False
        )
        rows = [{"prompt_token_ids": ids} for ids in contexts]
        done = llm.generate(rows, sampling, use_tqdm=False)
        return [list(row.outputs[0].token_ids) for row in done]

    return _measured(asked, turn, llm.reset_prefix_cache)


if __name__ == "__main__":
    sys.exit(main())
