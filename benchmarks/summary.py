"""The results in one table, from their files: `python -m benchmarks.summary` puts it in the docs.

It stands in docs/speed.md between two marks; a test holds the two equal. Each row is one part in
one precision, medians over the rounds, with the file that it comes from.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.jobs import PARTS
from benchmarks.tables import median, peak, rounds, sides, table
from nl2sql_trl import runs

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "speed.md"
MARKS = ("<!-- results -->\n", "<!-- end of results -->\n")
WHAT = {
    "rollout": "rollouts",
    "update": "update",
    "step": "whole step",
    "evaluate": "greedy evaluation",
    "sft": "warm start",
}


def summary(folder: Path) -> str:
    """The table, and in what it was measured."""
    rows, about = [], {}
    for part in PARTS:
        file = folder / f"{part}.json"
        if part not in WHAT or not file.is_file():
            continue
        report = json.loads(file.read_text(encoding="utf-8"))
        machine = report["machine"]
        about[f"{machine['cpu']}, commit {machine['commit']}"] = None
        total = "rollout" if part == "evaluate" else {"sft": "update"}.get(part, part)
        for precision, ours, trl in sides(report):
            seconds = [median(r, total) for r in (ours, trl)]
            rows.append([
                f"{WHAT[part]}, {precision}", *(f"{s:.1f}" for s in seconds),
                f"{seconds[1] / seconds[0]:.1f}", *(f"{peak(r):.1f}" for r in (ours, trl)),
                rounds(report), f"[{part}](../benchmarks/results/{part}.md)",
            ])  # fmt: skip
    head = ["", "ours, s", "theirs, s", "ratio", "ours, GiB", "theirs, GiB", "rounds", "file"]
    parts = [f"{'; '.join(about)}.", table(head, rows)]
    turns = folder / "vllm_turns.json"
    if turns.is_file():
        found: dict[str, Any] = json.loads(turns.read_text(encoding="utf-8"))["medians"]
        shown = [
            f"{name} ours {found[n]['ours']:.1f} s, vLLM {found[n]['vllm']:.1f} s"
            for n, name in (("1", "in one turn"), ("2", "in two"))
        ]
        parts.append(
            f"32 rollouts of the same number of tokens, bf16 weights, against vLLM's CPU build: "
            f"{'; '.join(shown)} ([file](../benchmarks/results/vllm_turns.json))."
        )
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Put the table between the marks of docs/speed.md."""
    found = summary(RESULTS)
    runs.write_between(PAGE, MARKS, found)
    print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
