"""The Spider result of SmolLM2-135M: evaluate every stage, and make the tables from the files.

    python scripts/spider_result.py evaluate --data DIR   # each trained stage on dev, once
    python scripts/spider_result.py table                 # results/, and README's table and picture

Stages are folders of `--runs` (runs/spider_smollm2), where the recipes put them; one that was not
trained is left out. `table` copies what is small (manifests, metrics, predictions, reports) and
puts a line a question into rows.csv; all numbers of the tables are computed from those alone.
Weights and trajectories stay where they are.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nl2sql_trl import results, runs, stats
from nl2sql_trl.analysis import CAUSES
from nl2sql_trl.launch import KEEP_MEMORY
from nl2sql_trl.report import write_report
from nl2sql_trl.spider.hardness import LEVELS

ROOT = Path(__file__).resolve().parents[1]
README, MARKS = ROOT / "README.md", ("<!-- spider result -->\n", "<!-- end -->\n")
SAMPLES = 8
BASE, WARM = "base", "sft"
SEEDS = ("grpo_0", "grpo_1")
# A stage's folder, its name in the tables and how many turns it may take.
STAGES = {
    BASE: ("base", 3),
    WARM: ("warm start", 3),
    "grpo_0": ("GRPO, seed 0", 3),
    "grpo_1": ("GRPO, seed 1", 3),
    "sft_one_turn": ("warm start without tool", 1),
    "grpo_one_turn": ("GRPO without tool", 1),
    "grpo_suite": ("GRPO, test suite as reward", 3),
}
# What is compared with what, paired by question.
CHANGES = {
    "grpo_0": WARM,
    "grpo_1": WARM,
    "grpo_suite": WARM,
    "grpo_one_turn": "sft_one_turn",
}
_FLAGS = ("executable", "ran_its_answer")


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["evaluate", "table"])
    parser.add_argument("--data", help="Spider's folder, for evaluate")
    parser.add_argument("--runs", type=Path, default=Path("runs/spider_smollm2"))
    parser.add_argument("--out", type=Path, default=Path("results/spider_smollm2"))
    options = parser.parse_args(argv)
    if options.what == "evaluate":
        if not options.data:
            parser.error("evaluate needs --data DIR")
        evaluate(options.runs, options.data)
    else:
        collect(options.runs, options.out)
        print(write(options.out))
    return 0


def evaluate(folder: Path, data: str) -> None:
    """Greedy and sampled evaluation of each stage on all of dev; what is there is kept."""
    for stage, (_, turns) in STAGES.items():
        model = "smollm2-135m" if stage == BASE else str(folder / stage / "model")
        out = folder / "evaluation" / stage
        if (out / "report.json").is_file() or (stage != BASE and not Path(model).is_dir()):
            continue
        command = [sys.executable, "-m", "nl2sql_trl.evaluate", "--model", model, "--data", data]
        command += ["--out", str(out), "--bf16", "--budget", "256", "--max_turns", str(turns)]
        # The base model writes no SQL and rambles up to the budget: greedy says it all.
        if stage != BASE:
            command += ["--samples", str(SAMPLES), "--temperature", "1"]
        print("$", " ".join(command), flush=True)
        subprocess.run(command, check=True, env=os.environ | KEEP_MEMORY)


def collect(folder: Path, out: Path) -> None:
    """Copy what is small of each evaluated stage into `out`."""
    for stage, (name, _) in STAGES.items():
        source, target = folder / "evaluation" / stage, out / stage
        if not (source / "report.json").is_file():
            continue
        report = json.loads((source / "report.json").read_text(encoding="utf-8"))
        runs.write_json(target / "report.json", report | {"name": name})
        runs.write_text(target / "predictions.sql", (source / "predictions.sql").read_text("utf-8"))
        greedy, sampled = (
            runs.read_jsonl(source / n) for n in ("trajectories.jsonl", "samples.jsonl")
        )
        _write_csv(target / "rows.csv", _lines(greedy, sampled))
        for file in ("manifest.json", "metrics.jsonl", "config.yaml"):
            if (folder / stage / file).is_file():
                text = (folder / stage / file).read_text(encoding="utf-8")
                runs.write_text(target / file, text.replace(f"{ROOT}/", ""))
    stages = [folder / "evaluation" / s for s in (BASE, WARM) if (out / s).is_dir()]
    seeds = [str(folder / "evaluation" / s) for s in SEEDS if (out / s).is_dir()]
    write_report([*stages, ",".join(seeds)] if seeds else stages, folder)
    runs.write_text(out / "report.md", (folder / "report.md").read_text(encoding="utf-8"))


def _lines(greedy: list[dict[str, Any]], sampled: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line a question: verdicts of the greedy answer, and of each sample by the test suite."""
    samples = len(sampled) // len(greedy)
    found = []
    for n, row in enumerate(greedy):
        more = sampled[n * samples : (n + 1) * samples]
        calls = sum(len(turn.get("calls", ())) for turn in row["turns"])
        found.append(
            {name: row[name] for name in ("key", "db_id", "hardness")}
            | {m: int(results.value(row, m)) for m in results.MEASURES}
            | {name: int(row[name]) for name in _FLAGS}
            | {"calls": calls, "cause": (row["failure"] or {"cause": ""})["cause"]}
            | {
                "samples": "".join(str(int(results.value(r, "testsuite_exec"))) for r in more),
                "voted": sum(int(results.value(r, "testsuite_exec")) for r in more if r["picked"]),
            }
        )
    return found


def _write_csv(path: Path, lines: list[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    runs.write_text(path, text.getvalue())


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage's rows.csv, column by column."""

    name: str
    columns: dict[str, list[str]]

    @property
    def databases(self) -> list[str]:
        """Each question's database."""
        return self.columns["db_id"]

    @property
    def sampled(self) -> bool:
        """Whether there is a sampled pass beside the greedy one."""
        return any(self.columns["samples"])

    def values(self, column: str) -> list[float]:
        """A column as numbers; of `samples` the share that is right."""
        if column == "samples":
            return [found.count("1") / len(found) for found in self.columns[column]]
        return [float(v) for v in self.columns[column]]

    def estimate(self, column: str, level: str = "all") -> str:
        """Mean with its interval, clustered by database."""
        if column in ("samples", "voted") and not self.sampled:
            return "not sampled"
        values = self.values(column)
        chosen = [n for n, h in enumerate(self.columns["hardness"]) if level in ("all", h)]
        return str(stats.mean([values[n] for n in chosen], [self.databases[n] for n in chosen]))


def read(out: Path) -> dict[str, Stage]:
    """The stages that have results, in the order of STAGES."""
    found = {}
    for stage, (name, _) in STAGES.items():
        path = out / stage / "rows.csv"
        if path.is_file():
            with path.open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
            found[stage] = Stage(name, {c: [row[c] for row in rows] for c in rows[0]})
    return found


def tables(out: Path) -> str:
    """README's block, from the files of `out` alone."""
    stages = read(out)
    found = list(stages.values())
    one = found[0]
    columns = {
        "testsuite_exec": "test suite",
        "exact_match": "exact match",
        "legacy_exec": "legacy execution",
        "samples": f"mean of {SAMPLES} at T=1",
        "voted": f"vote of {SAMPLES}",
    }
    changes = [_change(stages[a], stages[b]) for a, b in CHANGES.items() if {a, b} <= set(stages)]
    parts = [
        f"{len(one.databases)} dev questions on {len(set(one.databases))} databases; greedy, but "
        "for the last two columns. Shares right with 95% intervals clustered by database:",
        _table(
            ["model", *columns.values()],
            [[s.name, *(s.estimate(column) for column in columns)] for s in found],
        ),
        "Test suite by hardness, greedy:",
        _table(
            ["model", *LEVELS],
            [[s.name, *(s.estimate("testsuite_exec", level) for level in LEVELS)] for s in found],
        ),
        "What each training added, paired by question:",
        _table(["training", "over", "greedy", *list(columns.values())[-2:], "factor"], changes),
        "How it answers, and what passes by accident: right on the one database that the reward "
        "looks at, wrong on its test suite.",
        _table(
            ["model", "executable", "ran its answer", "calls", "accidents"],
            [[s.name, *_profile(s)] for s in found],
        ),
        "Why greedy answers fail, in questions:",
        _table(["cause", *(s.name for s in found)], _causes(found)),
        "What it took:",
        _table(["stage", "steps", "hours", "memory", "processor"], _costs(out, stages)),
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _change(after: Stage, before: Stage) -> list[str]:
    cells = []
    for column in ("testsuite_exec", "samples", "voted"):
        if column != "testsuite_exec" and not (after.sampled and before.sampled):
            cells.append("not sampled")
            continue
        found = stats.paired_difference(
            before.values(column), after.values(column), before.databases
        )
        cells.append(f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]")
    old, new = (sum(s.values("testsuite_exec")) for s in (before, after))
    return [after.name, before.name, *cells, f"{new / old:.2f}" if old else "-"]


def _profile(stage: Stage) -> list[str]:
    rows = len(stage.databases)
    shares = [f"{sum(stage.values(name)) / rows:.1%}" for name in _FLAGS]
    right, suite = stage.values("execution_accuracy"), stage.values("testsuite_exec")
    accidents = sum(a > b for a, b in zip(right, suite, strict=True))
    of = f" of {int(sum(right))}" if sum(right) else ""
    share = f" ({accidents / sum(right):.1%})" if sum(right) else ""
    return [*shares, f"{sum(stage.values('calls')) / rows:.2f}", f"{accidents}{of}{share}"]


def _causes(stages: list[Stage]) -> list[list[str]]:
    found = [s.columns["cause"] for s in stages]
    return [
        [cause, *(str(causes.count(cause)) for causes in found)]
        for cause in CAUSES
        if any(cause in causes for causes in found)
    ]


def _costs(out: Path, stages: dict[str, Stage]) -> list[list[str]]:
    rows = []
    for stage, found in stages.items():
        metrics = runs.read_jsonl(out / stage / "metrics.jsonl")
        if metrics:
            manifest = json.loads((out / stage / "manifest.json").read_text(encoding="utf-8"))
            hours = sum(m["seconds/steps"] for m in metrics) / 3600
            peak = max(m["memory/peak_bytes"] for m in metrics)
            rows.append(_cost(found.name, str(metrics[-1]["step"]), hours, peak, manifest))
    for stage, found in stages.items():
        cost = json.loads((out / stage / "report.json").read_text(encoding="utf-8"))["cost"]
        hours, peak = cost["seconds"] / 3600, cost["peak_bytes"]
        rows.append(_cost(f"evaluation of {found.name}", "", hours, peak, cost))
    return rows


def _cost(name: str, steps: str, hours: float, peak: int, machine: dict[str, Any]) -> list[str]:
    processor = f"{machine['cpus']} x {machine['cpu']}"
    return [name, steps, f"{hours:.2f}", f"{peak / 2**30:.1f} GiB", processor]


def write(out: Path) -> str:
    """Write the tables and pictures of `out`, and README's block; returns the tables."""
    from nl2sql_trl.charts import accuracy_chart
    from nl2sql_trl.display import reward_curve

    block = tables(out)
    runs.write_text(out / "tables.md", block)
    shown = {
        STAGES[s][0]: json.loads((out / s / "report.json").read_text(encoding="utf-8"))
        for s in (BASE, WARM, *SEEDS)
        if (out / s).is_dir()
    }
    accuracy_chart(shown, "Spider dev").savefig(out / "accuracy.png", dpi=110)
    trained = {"GRPO": [out / s for s in SEEDS if (out / s / "metrics.jsonl").is_file()]}
    if trained["GRPO"]:
        reward_curve(trained, title="Spider").savefig(out / "reward_curve.png", dpi=110)
    runs.write_between(README, MARKS, block)
    return block


if __name__ == "__main__":
    sys.exit(main())
