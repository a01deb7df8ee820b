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
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
SAMPLES, SAMPLED_ROWS = 8, 256  # samples a question, and of how many questions, drawn by seed 0
BUDGET = 288  # tokens over all turns, as in grpo.yaml
BASE, WARM = "base", "sft_retry"
SEEDS = ("grpo_0", "grpo_1")
# A stage's folder, its name in the tables and how many turns it may take.
STAGES = {
    BASE: ("base", 3),
    "sft": ("warm start without tool", 1),
    "sft_tool": ("warm start without its own failed calls", 3),
    WARM: ("warm start", 3),
    "grpo_0": ("GRPO, seed 0", 3),
    "grpo_1": ("GRPO, seed 1", 3),
    "grpo_one_turn": ("GRPO without tool", 1),
    "grpo_suite": ("GRPO, test suite as reward", 3),
}
# What is compared with what, paired by question.
CHANGES = {
    "grpo_0": WARM,
    "grpo_1": WARM,
    "grpo_suite": WARM,
    "grpo_one_turn": "sft",
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
        try:
            collect(options.runs, options.out)
        except FileNotFoundError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(write(options.out))
    return 0


def evaluate(folder: Path, data: str) -> None:
    """Greedy evaluation of each stage on all of dev, and a sampled one on some questions.

    One a core at a time, its output in a log beside it. What is there is kept, and what was stopped
    goes on. Exits naming the log of the first that failed.
    """
    commands: dict[Path, list[str]] = {}
    for stage, (_, turns) in STAGES.items():
        model = "smollm2-135m" if stage == BASE else str(folder / stage / "model")
        if stage != BASE and not Path(model).is_dir():
            continue
        passes: dict[str, list[str]] = {stage: []}
        if stage in (WARM, *SEEDS):
            passes[_sampled(stage)] = ["--rows", str(SAMPLED_ROWS), "--samples", str(SAMPLES)]
            passes[_sampled(stage)] += ["--temperature", "1"]
        for name, more in passes.items():
            out = folder / "evaluation" / name
            if not _is_newer(out / "report.json", Path(model)):
                command = [sys.executable, "-m", "nl2sql_trl.evaluate", "--model", model]
                command += ["--data", data, "--out", str(out), "--bf16", "--budget", str(BUDGET)]
                commands[out] = [*command, "--max_turns", str(turns), *more]
    # The greedy ones first: the tables can be made without the sampled ones.
    order = sorted(commands, key=lambda out: out.name.endswith(_sampled("")))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = [f for f in pool.map(lambda out: _evaluated(out, commands[out]), order) if f]
    if failed:
        sys.exit(f"error: an evaluation failed: see {failed[0]}")


def _evaluated(out: Path, command: list[str]) -> Path | None:
    """Run one evaluation on a core of its own; returns its log if it failed."""
    log = out.parent / f"{out.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    print("$", " ".join(command), f"> {log}", flush=True)
    with log.open("w", encoding="utf-8") as file:
        env = os.environ | KEEP_MEMORY | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=env, stdout=file, stderr=subprocess.STDOUT)
    return log if done.returncode else None


def _is_newer(report: Path, model: Path) -> bool:
    """Whether there is a report, and the model was not trained again after it."""
    if not report.is_file():
        return False
    files = model.iterdir() if model.is_dir() else ()
    return all(file.stat().st_mtime <= report.stat().st_mtime for file in files)


def _sampled(stage: str) -> str:
    return f"{stage}_sampled"


def collect(folder: Path, out: Path) -> None:
    """Copy what is small of each evaluated stage into `out`, in place of what is there.

    Raises FileNotFoundError if none was evaluated.
    """
    evaluated = [s for s in STAGES if (folder / "evaluation" / s / "report.json").is_file()]
    if not evaluated:
        raise FileNotFoundError(f"no evaluation in {folder / 'evaluation'}: evaluate first")
    for stage, (name, _) in STAGES.items():
        source, target = folder / "evaluation" / stage, out / stage
        shutil.rmtree(target, ignore_errors=True)  # of another run, maybe
        if stage not in evaluated:
            continue
        report = json.loads((source / "report.json").read_text(encoding="utf-8"))
        drawn = folder / "evaluation" / _sampled(stage)
        sampled = []
        if (drawn / "report.json").is_file():
            sampled = runs.read_jsonl(drawn / "samples.jsonl")
            found = json.loads((drawn / "report.json").read_text(encoding="utf-8"))
            report |= {"more": found["more"], "sampled_cost": found["cost"]}
        runs.write_json(target / "report.json", report | {"name": name})
        runs.write_text(target / "predictions.sql", (source / "predictions.sql").read_text("utf-8"))
        greedy = runs.read_jsonl(source / "trajectories.jsonl")
        _write_csv(target / "rows.csv", _lines(greedy, sampled))
        _copy_run(folder / stage, target)
    stages = [folder / "evaluation" / s for s in (BASE, WARM) if s in evaluated]
    seeds = [str(folder / "evaluation" / s) for s in SEEDS if s in evaluated]
    write_report([*stages, ",".join(seeds)] if seeds else stages, folder)
    runs.write_text(out / "report.md", (folder / "report.md").read_text(encoding="utf-8"))


def _copy_run(run: Path, target: Path) -> None:
    """What a training wrote down, if it was one, without this machine's folders."""
    for file in ("manifest.json", "metrics.jsonl", "config.yaml"):
        if (run / file).is_file():
            text = (run / file).read_text(encoding="utf-8")
            runs.write_text(target / file, text.replace(f"{ROOT}/", ""))


def _lines(greedy: list[dict[str, Any]], sampled: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line a question: verdicts of the greedy answer, and of each sample by the test suite.

    `samples` and `voted` are empty for a question that was not sampled.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in sampled:
        groups.setdefault(row["key"], []).append(row)
    found = []
    for row in greedy:
        more = groups.get(row["key"], [])
        calls = sum(len(turn.get("calls", ())) for turn in row["turns"])
        found.append(
            {name: row[name] for name in ("key", "db_id", "hardness")}
            | {m: int(results.value(row, m)) for m in results.MEASURES}
            | {name: int(row[name]) for name in _FLAGS}
            | {"calls": calls, "cause": (row["failure"] or {"cause": ""})["cause"]}
            | {
                "samples": "".join(str(int(results.value(r, "testsuite_exec"))) for r in more),
                "voted": _voted(more) if more else "",
            }
        )
    return found


def _voted(samples: list[dict[str, Any]]) -> int:
    return sum(int(results.value(row, "testsuite_exec")) for row in samples if row["picked"])


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

    def values(self, column: str, level: str = "all") -> dict[str, float]:
        """A column as numbers by question, of those that have it; of `samples` the share right."""
        columns = (self.columns[name] for name in ("key", "hardness", column))
        return {
            key: cell.count("1") / len(cell) if column == "samples" else float(cell)
            for key, hardness, cell in zip(*columns, strict=True)
            if cell and level in ("all", hardness)
        }

    def databases(self, keys: Iterable[str]) -> list[str]:
        """The databases of these questions."""
        of = dict(zip(self.columns["key"], self.columns["db_id"], strict=True))
        return [of[key] for key in keys]

    def estimate(self, column: str, level: str = "all") -> str:
        """Mean with its interval, clustered by database."""
        values = self.values(column, level)
        if not values:
            return "not sampled"
        return str(stats.mean(list(values.values()), self.databases(values)))


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


def headline(out: Path) -> str:
    """README's block, from the files of `out` alone: accuracies, and what training added."""
    stages = read(out)
    found = list(stages.values())
    keys = found[0].columns["key"]
    sampled = max(len(s.values("samples")) for s in found)
    columns = {
        "testsuite_exec": "test suite",
        "exact_match": "exact match",
        "legacy_exec": "legacy execution",
        "samples": f"mean of {SAMPLES} at T=1",
        "voted": f"vote of {SAMPLES}",
    }
    changes = [_change(stages[a], stages[b]) for a, b in CHANGES.items() if {a, b} <= set(stages)]
    parts = [
        f"{len(keys)} dev questions on {len(set(found[0].databases(keys)))} databases, greedy; the "
        f"last two columns are of {sampled} of them, drawn by seed 0. "
        "Shares right with 95% intervals clustered by database:",
        _table(
            ["model", *columns.values()],
            [[s.name, *(s.estimate(column) for column in columns)] for s in found],
        ),
        "What each training added to the test suite's verdict, paired by question:",
        _table(["training", "over", "greedy", *list(columns.values())[-2:], "factor"], changes),
    ]
    return "\n\n".join(parts) + "\n"


def tables(out: Path) -> str:
    """All tables, from the files of `out` alone: README's, and what stands behind them."""
    stages = read(out)
    found = list(stages.values())
    parts = [
        headline(out).rstrip(),
        "Test suite by hardness, greedy:",
        _table(
            ["model", *LEVELS],
            [[s.name, *(s.estimate("testsuite_exec", level) for level in LEVELS)] for s in found],
        ),
        "How it answers, and what passes by accident: right on the one database that the reward "
        "looks at, wrong on its test suite.",
        _table(
            ["model", "executable", "ran its answer", "calls", "accidents"],
            [[s.name, *_profile(s)] for s in found],
        ),
        "Why greedy answers fail, in questions:",
        _table(["cause", *(s.name for s in found)], _causes(found)),
        *_moves(stages),
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
        old, new = before.values(column), after.values(column)
        both = [key for key in old if key in new]
        if not both:
            cells.append("not sampled")
            continue
        found = stats.paired_difference(
            [old[key] for key in both], [new[key] for key in both], after.databases(both)
        )
        cells.append(f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]")
    first, last = (sum(s.values("testsuite_exec").values()) for s in (before, after))
    return [after.name, before.name, *cells, f"{last / first:.2f}" if first else "-"]


def _profile(stage: Stage) -> list[str]:
    rows = len(stage.columns["key"])
    shares = [f"{sum(stage.values(name).values()) / rows:.1%}" for name in _FLAGS]
    right, suite = stage.values("execution_accuracy"), stage.values("testsuite_exec")
    accidents, all_right = sum(right[key] > suite[key] for key in right), sum(right.values())
    share = f" of {all_right:.0f} ({accidents / all_right:.1%})" if all_right else ""
    calls = sum(stage.values("calls").values()) / rows
    return [*shares, f"{calls:.2f}", f"{accidents}{share}"]


def _causes(stages: list[Stage]) -> list[list[str]]:
    found = [s.columns["cause"] for s in stages]
    return [
        [cause, *(str(causes.count(cause)) for causes in found)]
        for cause in CAUSES
        if any(cause in causes for causes in found)
    ]


def _moves(stages: dict[str, Stage]) -> list[str]:
    """What became of the warm start's questions, by what was wrong with its answers."""
    after = [stages[seed] for seed in SEEDS if seed in stages]
    if WARM not in stages or not after:
        return []
    causes = dict(zip(stages[WARM].columns["key"], stages[WARM].columns["cause"], strict=True))
    right = [stage.values("testsuite_exec") for stage in after]
    rows = []
    for cause in ("", *CAUSES):
        keys = [key for key, found in causes.items() if found == cause]
        if keys:
            counts = [sum(found[key] for key in keys) for found in right]
            cells = [f"{n:.0f} ({n / len(keys):.1%})" for n in counts]
            rows.append([cause or "none: it was right", str(len(keys)), *cells])
    head = ["warm start's cause", "questions", *(f"right by {stage.name}" for stage in after)]
    title = "What became of the warm start's answers, by the cause of their failure:"
    return [title, _table(head, rows)]


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
        path = out / stage / "report.json"
        report = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        for name, what in (("cost", "evaluation"), ("sampled_cost", "sampling")):
            cost = report.get(name)
            if cost:
                hours, peak = cost["seconds"] / 3600, cost["peak_bytes"]
                rows.append(_cost(f"{what} of {found.name}", "", hours, peak, cost))
    return rows


def _cost(name: str, steps: str, hours: float, peak: int, machine: dict[str, Any]) -> list[str]:
    processor = f"{machine['cpus']} x {machine['cpu']}"
    # Of an evaluation that was stopped once, only the last sitting is counted.
    more = "> " if machine.get("from_before") else ""
    return [name, steps, f"{more}{hours:.2f}", f"{peak / 2**30:.1f} GiB", processor]


def write(out: Path) -> str:
    """Write tables.md and pictures into `out`, and README's block; returns the tables."""
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
    runs.write_between(README, MARKS, headline(out))
    return block


if __name__ == "__main__":
    sys.exit(main())
