"""The results in one table, from their files: `python -m benchmarks.summary` puts it in the docs.

It stands in docs/speed.md between two marks, and its ratios in README; a test holds them equal.
Each row is one part in one precision, medians over the rounds, with the file that it comes from.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.jobs import PARTS
from benchmarks.tables import median, peak, rounds, sides, table
from nl2sql_trl import runs

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "speed.md"
MARKS = ("<!-- results -->\n", "<!-- end of results -->\n")
README, README_MARKS = ROOT / "README.md", ("<!-- speed -->\n", "<!-- end of speed -->\n")
WHAT = {
    "rollout": "rollouts",
    "update": "update",
    "step": "whole step",
    "evaluate": "greedy evaluation",
    "sft": "warm start",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One part in one precision: seconds and peak GiB of both sides, ours first."""

    part: str
    precision: str
    seconds: tuple[float, float]
    memory: tuple[float, float]
    rounds: str

    @property
    def ratio(self) -> float:
        """How many times as fast as the other side."""
        return self.seconds[1] / self.seconds[0]


def lines(folder: Path) -> tuple[list[Line], str]:
    """What was measured, and on what."""
    found, about = [], {}
    for part in PARTS:
        file = folder / f"{part}.json"
        if part not in WHAT or not file.is_file():
            continue
        report = json.loads(file.read_text(encoding="utf-8"))
        machine = report["machine"]
        about[f"{machine['cpu']}, commit {machine['commit']}"] = None
        total = "rollout" if part == "evaluate" else {"sft": "update"}.get(part, part)
        for precision, ours, trl in sides(report):
            seconds = (median(ours, total), median(trl, total))
            memory = (peak(ours), peak(trl))
            found.append(Line(part, precision, seconds, memory, rounds(report)))
    return found, "; ".join(about)


def summary(folder: Path) -> str:
    """The table, and in what it was measured."""
    found, about = lines(folder)
    rows = [
        [
            f"{WHAT[line.part]}, {line.precision}", *(f"{s:.1f}" for s in line.seconds),
            f"{line.ratio:.1f}", *(f"{m:.1f}" for m in line.memory),
            line.rounds, f"[{line.part}](../benchmarks/results/{line.part}.md)",
        ]
        for line in found
    ]  # fmt: skip
    head = ["", "ours, s", "theirs, s", "ratio", "ours, GiB", "theirs, GiB", "rounds", "file"]
    parts = [f"{about}.", table(head, rows)]
    if turns := _vllm(folder):
        shown = [f"in {name} ours {a:.1f} s, vLLM {b:.1f} s" for name, (a, b) in turns.items()]
        parts.append(
            "32 rollouts, 96 new tokens each, bf16 weights, against vLLM's CPU build: "
            f"{'; '.join(shown)} ([file](../benchmarks/results/vllm_turns.json))."
        )
    if (folder / "growth.md").is_file():
        parts.append("How the cost grows: [growth](../benchmarks/results/growth.md).")
    return "\n\n".join(parts) + "\n"


def headline(folder: Path) -> str:
    """README's few lines on speed: what recipes run in, bf16 autocast."""
    rows = [
        [WHAT[line.part], f"{line.ratio:.1f}", "{:.1f} against {:.1f}".format(*line.memory)]
        for line in lines(folder)[0]
        if line.precision == "autocast"
    ]
    parts = [table(["", "times as fast", "peak memory, GiB"], rows)]
    if turns := _vllm(folder):
        shown = " and ".join(f"{a:.1f} s against {b:.1f} in {n}" for n, (a, b) in turns.items())
        parts.append(f"Beside vLLM's CPU build, 32 rollouts with bf16 weights take {shown}.")
    return "\n\n".join(parts) + "\n"


def _vllm(folder: Path) -> dict[str, tuple[float, float]]:
    """Median seconds of ours and vLLM's, by the number of turns."""
    file = folder / "vllm_turns.json"
    if not file.is_file():
        return {}
    medians = json.loads(file.read_text(encoding="utf-8"))["medians"]
    named = {"one turn": medians["1"], "two turns": medians["2"]}
    return {name: (found["ours"], found["vllm"]) for name, found in named.items()}


def main() -> int:
    """Put the table into docs/speed.md and its ratios into README, between their marks."""
    found = summary(RESULTS)
    runs.write_between(PAGE, MARKS, found)
    runs.write_between(README, README_MARKS, headline(RESULTS))
    print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
