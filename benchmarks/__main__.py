"""Ours against TRL's own loop: the same model, prompts and forced tokens, phase by phase.

    python -m benchmarks --data DIR                       # everything, on real Spider
    python -m benchmarks --only rollout,step --rounds 5   # some parts, on pocket's prompts
    python -m benchmarks --data DIR --device cuda         # on a GPU (not run by us)
    python -m benchmarks --quick                          # does all of it run, on a tiny model

Run it from the root of a clone, on a machine that does nothing else. Each part writes OUT/PART.json
and its tables to OUT/PART.md, anew after each round. docs/speed.md says how things are measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.jobs import PARTS, Job, Process, processes
from benchmarks.tables import page
from nl2sql_trl import runs
from nl2sql_trl.launch import KEEP_MEMORY, ConfigError, guarded

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "transformers", "trl")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    with guarded():
        options = _parse(argv)
        base = Job(
            "rollout",
            "ours",
            "fp32",
            model=options.model,
            data=options.data,
            device=options.device,
            prompts=options.prompts,
            group=options.group,
            turns=options.turns,
            tokens=options.tokens,
            prompt_tokens=options.prompt_tokens,
            micro=options.group,
            rows=options.rows,
            quick=options.quick,
            seed=options.seed,
        )
        for part in options.only:
            measure(part, base, options)
    return 0


def measure(part: str, base: Job, options: argparse.Namespace) -> dict[str, Any]:
    """All rounds of a part; the report, which is on disk as well."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        report: dict[str, Any] = {
            "part": part,
            "machine": machine(options.device, options.threads),
            "settings": asdict(replace(base, part=part)),
            "runs": found,
            "comparisons": [],
        }
        for number in range(options.rounds):
            # The gradients of the first round are compared; later rounds are for the times alone.
            kept = "" if number else str(folder)
            for process in processes(part, base, options.precisions, kept):
                started = time.monotonic()
                for run in in_process(process, folder, options.threads):
                    found.append({"round": number, **run})
                took = time.monotonic() - started
                print(f"round {number + 1}: {process.name} ({took:.0f} s)", flush=True)
            if number == 0:
                report["comparisons"] = compare(found, folder, options.threads)
            report["different"] = differences(found)
            runs.write_json(options.out / f"{part}.json", report)
            runs.write_text(options.out / f"{part}.md", page(report))
    print(f"\n{page(report)}", flush=True)
    if report["different"]:
        raise ConfigError(f"both sides were not given the same work: {report['different'][0]}")
    return report


def in_process(process: Process, folder: Path, threads: int) -> list[dict[str, Any]]:
    """Run jobs in a process of their own. Raises ConfigError with its last line if it fails."""
    results = work({"jobs": [asdict(job) for job in process.jobs]}, process.name, folder, threads)
    return [
        {"job": asdict(job), **result} for job, result in zip(process.jobs, results, strict=True)
    ]


def work(asked: dict[str, Any], name: str, folder: Path, threads: int) -> Any:
    """What a worker process answers to `asked`."""
    source, target, log = (folder / n for n in ("asked.json", "found.json", "log.txt"))
    source.write_text(json.dumps(asked), encoding="utf-8")
    environment = os.environ | KEEP_MEMORY | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "benchmarks.worker", str(source), str(target)]
    with log.open("w", encoding="utf-8") as file:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=file, stderr=file)
    if done.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        sys.stderr.write("\n".join(lines[-30:]) + "\n")
        raise ConfigError(f"{name} ended with code {done.returncode}: {(lines or ['?'])[-1]}")
    return json.loads(target.read_text(encoding="utf-8"))


def compare(found: list[dict[str, Any]], folder: Path, threads: int) -> list[dict[str, Any]]:
    """Loss and gradients of runs that kept them: with TRL's in that precision, and in fp32."""
    kept = {r["job"]["gradients"]: r for r in found if r["job"]["gradients"]}
    compared = []
    for file, run in kept.items():
        # Files are named PART-PRECISION-WHO.
        part, precision, who = file.split("-")
        side = {"ours": "ours", "trl": "TRL", "half": "TRL in half micro-batches"}[who]
        others = {"": f"{part}-{precision}-trl", ", with TRL in fp32": f"{part}-fp32-trl"}
        for note, theirs in others.items():
            if theirs == file or theirs not in kept:
                continue
            if note and (precision == "fp32" or who == "half"):
                continue
            other = kept[theirs]
            compared.append(
                {
                    "name": f"{precision}, {side}{note}",
                    # GRPO's loss is a mean of advantages here, near 0: of no use as a divisor.
                    "loss": abs(run["loss"] - other["loss"]),
                    "nll": abs(run["nll"] - other["nll"]) / abs(other["nll"]),
                    **work({"compare": [file, theirs]}, f"comparing {file}", folder, threads),
                }
            )
    for file, run in kept.items():
        Path(file).unlink()
        run["job"]["gradients"] = None
    return compared


def differences(found: list[dict[str, Any]]) -> list[str]:
    """What shows that two sides did not do the same: other rows, or groups that ours leaves out."""
    told = []
    digests: dict[tuple[Any, ...], set[str]] = {}
    for run in found:
        job = run["job"]
        key = (job["precision"], job["prompt_tokens"], job["group"], job["turns"])
        digests.setdefault(key, set()).add(run["digest"])
        if run.get("flat_groups"):
            told.append(f"{run['flat_groups']} groups of {key} have no variance")
    told += [f"other tokens in {key}" for key, seen in digests.items() if len(seen) > 1]
    return told


def machine(device: str, threads: int) -> dict[str, Any]:
    """What the numbers hold for."""
    git = runs.git_state()
    versions = runs.manifest(0, {}, {})
    return {
        "cpu": f"{cpus()} x {runs.cpu()}",
        "cpus": cpus(),
        "threads": threads,
        "device": device if device == "cpu" else f"{device}: {_gpu()}",
        "platform": versions["platform"],
        "python": versions["python"],
        "packages": {name: versions["packages"][name] for name in PACKAGES},
        "commit": f"{(git['commit'] or 'none')[:12]}{' with changes' if git['changed'] else ''}",
        "date": time.strftime("%Y-%m-%d"),
    }


def cpus() -> int:
    """Cores of this machine."""
    return os.cpu_count() or 1


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch sees no GPU here")
    return torch.cuda.get_device_name()


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", default="pocket", help="pocket, or a Spider-layout folder")
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--precisions", default="autocast,bf16,fp32", help="of these")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved runs of each side")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, help="default: OMP_NUM_THREADS, or all cores")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--group", type=int, default=8, help="rollouts of a prompt")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=50, help="of a turn, tool tokens included")
    parser.add_argument("--prompt_tokens", type=int, default=600, help="about so many")
    parser.add_argument("--rows", type=int, default=96, help="of evaluation and warm start")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/speed"))
    parser.add_argument("--quick", action="store_true", help="a tiny model and little of all")
    options = parser.parse_args(argv)
    options.only = _listed(options.only, PARTS, "--only")
    options.precisions = _listed(options.precisions, PARTS["rollout"], "--precisions")
    options.threads = options.threads or int(
        os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1
    )
    if options.quick:
        options.model = "tiny" if options.model == "smollm2-135m" else options.model
        options.prompts, options.group, options.tokens, options.prompt_tokens = 2, 4, 40, 300
        options.rows, options.rounds = 8, 1
    if options.group % 2 or options.turns < 1 or options.prompts < 1 or options.rounds < 1:
        raise ConfigError("--group must be even, --turns, --prompts and --rounds at least 1")
    if options.rows % options.group:
        raise ConfigError(f"--rows {options.rows} does not divide by --group {options.group}")
    return options


def _listed(text: str, known: Sequence[str] | dict[str, Any], flag: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ConfigError(f"{flag}: there is no {name!r}, only {', '.join(known)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
