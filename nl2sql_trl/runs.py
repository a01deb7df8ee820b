"""A run directory: what a run was made of and what came out of it, readable while it goes on.

    config.yaml          every argument, resolved
    manifest.json        versions, git state, seeds, data hashes, sampling parameters
    metrics.jsonl        one object a logged step
    evaluations.jsonl    one object an evaluation during training
    trajectories.jsonl   sampled trajectories with their verdicts
    checkpoint-N/        to resume from; model/ is the final one
    evaluation/NAME/     predictions.sql, trajectories.jsonl, report.json, report.md, report.html
    reward_curve.png

Files are written whole (temporary file, fsync, rename) or by appending whole lines; a reader
skips a last line that was cut. This module knows no trainer and no torch.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nl2sql_trl.records import Call, ModelTurn, Trajectory, Verdict

_PACKAGES = ("nl2sql_trl", "torch", "trl", "transformers", "accelerate", "peft", "datasets")


def write_text(path: Path, text: str) -> None:
    """Write a file whole: a reader sees the old content or the new, never a half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_between(path: Path, marks: tuple[str, str], text: str) -> None:
    """Replace what stands between two marks of a file.

    Raises ValueError, and writes nothing, unless each mark is there once and in this order.
    """
    whole = path.read_text(encoding="utf-8")
    before, _, rest = whole.partition(marks[0])
    _, _, after = rest.partition(marks[1])
    if any(whole.count(mark) != 1 for mark in marks) or marks[1] not in rest:
        first, last = (mark.strip() for mark in marks)
        raise ValueError(f"{path} must have {first} once, and {last} once after it")
    write_text(path, before + marks[0] + text + marks[1] + after)


def write_json(path: Path, value: object) -> None:
    """`value` as indented JSON, written whole."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def append_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append one line an object."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """One line an object, written whole."""
    # In ASCII: a row may hold half a surrogate pair, which UTF-8 cannot.
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file. A cut last line (the process was killed) is left out."""
    if not path.is_file():
        return []
    rows = []
    # In bytes: the cut may be inside a character.
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line.decode("utf-8")))
        except ValueError:
            if number < len(lines) - 1 and any(rest.strip() for rest in lines[number + 1 :]):
                raise ValueError(f"{path}, line {number + 1}: not JSON") from None
    return rows


def read_settings(evaluation: Path) -> dict[str, Any]:
    """What an evaluation in this folder was made of; nothing where there is none."""
    try:
        found = json.loads((evaluation / "report.json").read_text(encoding="utf-8"))
        return dict(found["settings"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def drop_after(path: Path, step: int) -> None:
    """Forget lines of later steps than `step`: a resumed run writes them again."""
    if path.is_file():
        write_jsonl(path, [row for row in read_jsonl(path) if row.get("step", 0) <= step])


def manifest(seed: int, data: Mapping[str, Any], sampling: Mapping[str, Any]) -> dict[str, Any]:
    """What is needed to repeat a run: versions, machine, git state, seed, data and sampling."""
    return {
        "command": sys.argv,
        "seed": seed,
        "sampling": dict(sampling),
        "data": dict(data),
        "git": git_state(),
        "python": platform.python_version(),
        "sqlite": __import__("sqlite3").sqlite_version,
        "platform": platform.platform(),
        "cpu": cpu(),
        "cpus": os.cpu_count(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def cpu() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def peak_memory() -> int:
    """Bytes of memory that this process held at most; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def git_state() -> dict[str, Any]:
    """Commit of the working tree this package runs from, and whether it has changes."""
    root = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    status = git("status", "--porcelain")
    return {"commit": git("rev-parse", "HEAD"), "changed": None if status is None else bool(status)}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def turns(trajectory: Trajectory) -> list[dict[str, Any]]:
    """The turns of a trajectory as plain JSON values."""
    found: list[dict[str, Any]] = []
    for turn in trajectory.turns:
        if isinstance(turn, ModelTurn):
            found.append({"role": "assistant", "content": turn.text, "tokens": len(turn.ids)})
        else:
            found.append(
                {"role": "tool", "calls": [_call(c) for c in turn.calls], "tokens": len(turn.ids)}
            )
    return found


def _call(call: Call) -> dict[str, Any]:
    found = {"query": call.query, "problem": call.problem, "response": call.response}
    own = {"tool": call.tool, "arguments": call.arguments}
    return found if call.tool == "run_sql" else found | own


def describe(trajectory: Trajectory, verdict: Verdict) -> dict[str, Any]:
    """A trajectory and its verdict as plain JSON values, for people and for analysis."""
    return {
        "key": trajectory.prompt.key,
        "question": trajectory.prompt.messages[-1]["content"],
        "turns": turns(trajectory),
        "stop": trajectory.stop,
        "answer": trajectory.answer,
        "ran_its_answer": trajectory.ran_its_answer,
        "correct": verdict.correct,
        "reason": verdict.reason,
        "detail": verdict.detail,
        "executable": verdict.executable,
        "empty_match": verdict.empty_match,
    }
