"""The main job, end to end, on two CPU cores in under half an hour.

    make demo                  # or: python -m nl2sql_trl.demo [--out runs/demo] [--seed 0]

SmolLM2-135M on `pocket`: warm start, GRPO, then evaluation of the base, the warm-started and the
GRPO-trained model on the dev databases, which neither stage has seen. Prints a table and draws
the reward curve. A stage that is already done in the folder is not done again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nl2sql_trl import results, runs, stats
from nl2sql_trl.analysis import CAUSES
from nl2sql_trl.charts import accuracy_chart
from nl2sql_trl.launch import KEEP_MEMORY
from nl2sql_trl.report import load, write_report

ROOT = Path(__file__).resolve().parent.parent
STAGES = ("base", "warm start", "GRPO")
BUDGET, MAX_TURNS, SAMPLES, ROWS = 192, 3, 4, 66


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m nl2sql_trl.demo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder of the run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm-start", type=Path, help="a finished warm start to go on from")
    options = parser.parse_args(argv)
    start = time.monotonic()
    out, seed = options.out.resolve(), str(options.seed)
    if not (ROOT / "recipes").is_dir():
        print("error: the demo needs the repository: clone it, then make demo", file=sys.stderr)
        return 2

    def stage(number: int, title: str) -> None:
        minutes = (time.monotonic() - start) / 60
        print(f"\n[{number}/3] {title}   ({minutes:.0f} min so far)", flush=True)

    warm = (options.warm_start or out / "sft" / "model").resolve()
    if options.warm_start and not (warm / "run.json").is_file():
        print(f"error: there is no finished warm start at {options.warm_start}", file=sys.stderr)
        return 2
    stage(1, "warm start: the tool loop's format, from train questions")
    if not (warm / "run.json").is_file():
        _run(["-m", "nl2sql_trl.sft", "--config", "recipes/pocket_cpu_sft.yaml"],
             output_dir=out / "sft", seed=seed, resume_from_checkpoint="true")  # fmt: skip
    stage(2, "GRPO: the model runs SQL and is rewarded for the gold's rows")
    trained = out / "grpo" / "model"
    if not (trained / "run.json").is_file():
        launch = [
            "-m",
            "accelerate.commands.launch",
            "--config_file",
            "accelerate_configs/cpu.yaml",
        ]
        _run([*launch, "nl2sql_trl/train.py", "--config", "recipes/pocket_cpu.yaml"],
             output_dir=out / "grpo", seed=seed, model_name_or_path=warm,
             resume_from_checkpoint="true")  # fmt: skip
    stage(3, "evaluation on the dev databases")
    models = ("smollm2-135m", str(warm), str(trained))
    evaluate_stages(dict(zip(STAGES, models, strict=True)), out)
    table = results_table(out)
    runs.write_text(out / "results.md", table)
    write_report([evaluation_folder(out, name) for name in STAGES], out)
    reports = {name: load(evaluation_folder(out, name)).report for name in STAGES}
    accuracy_chart(reports, "pocket, dev databases").savefig(out / "accuracy.png", dpi=130)
    print(f"\n{table}")
    print(f"reward curve: {out / 'grpo' / 'reward_curve.png'}")
    print(f"accuracies: {out / 'accuracy.png'}")
    print(f"report, with every trajectory: {out / 'report.html'}")
    print(f"everything else is in {out}; {(time.monotonic() - start) / 60:.0f} minutes in all")
    return 0


def _run(arguments: Sequence[str], **settings: Any) -> None:
    """Run a stage in a process of its own, so that its memory is free afterwards."""
    flags = [part for k, v in settings.items() for part in (f"--{k}", str(v))]
    paths = [str((ROOT / a).resolve()) if (ROOT / a).is_file() else a for a in arguments]
    quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    command, interrupted = [sys.executable, *paths, *flags], False
    stage = subprocess.Popen(command, env=os.environ | quiet | KEEP_MEMORY, cwd=ROOT)
    while stage.poll() is None:
        try:
            stage.wait()
        except KeyboardInterrupt:  # the stage has heard it, too, and ends in its own time
            interrupted = True
    if interrupted:
        print("stopped: the same command goes on from here", file=sys.stderr)
        raise SystemExit(130)
    if stage.returncode:
        raise SystemExit(stage.returncode)


def evaluate_stages(models: dict[str, str], out: Path) -> None:
    """Greedy and sampled evaluation of each model on the same dev questions, once."""
    for name, model in models.items():
        folder = evaluation_folder(out, name)
        if (folder / "report.json").is_file():
            continue
        # The base model writes no SQL and rambles up to the budget: greedy says it all.
        how = {} if name == "base" else {"samples": SAMPLES, "temperature": 1.0}
        _run(["-m", "nl2sql_trl.evaluate", "--bf16"], model=model, out=folder, rows=ROWS,
             budget=BUDGET, max_turns=MAX_TURNS, seed=1, **how)  # fmt: skip
        # Named by its stage: that is how the report tells the three apart.
        report = folder / "report.json"
        runs.write_json(report, json.loads(report.read_text(encoding="utf-8")) | {"name": name})


def evaluation_folder(out: Path, name: str) -> Path:
    """Where a stage's evaluation is kept."""
    return out / "evaluation" / name.replace(" ", "_").lower()


def results_table(out: Path) -> str:
    """The demo's results as Markdown: accuracies, paired differences, why answers fail."""
    found = {n: load(evaluation_folder(out, n)).report for n in STAGES}
    lines = [
        f"| model | test suite, greedy | same rows, greedy | same rows, mean of {SAMPLES} at T=1 "
        "| executable | ran its answer | calls |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, report in found.items():
        suite, rows = (
            _estimate(report["metrics"][measure]["all"])
            for measure in ("testsuite_exec", "execution_accuracy")
        )
        more = report.get("more")
        sampled = _estimate(more["mean"]["execution_accuracy"]) if more else "not sampled"
        profile = report["profile"]
        lines.append(
            f"| {name} | {suite} | {rows} | {sampled} | {profile['executable']:.1%} "
            f"| {profile['ran_its_answer']:.1%} | {profile['calls_per_row']:.2f} |"
        )
    lines += ["", "GRPO over the warm start, paired by question, 95% clustered by database:", ""]
    for measure, title in (
        ("execution_accuracy", "same rows as the gold's"),
        ("testsuite_exec", "test suite"),
    ):
        for samples in (SAMPLES, 1):
            difference = paired(out, measure, samples)
            how = "greedy" if samples == 1 else f"mean of {samples} samples"
            lines.append(
                f"- {title}, {how}: {difference.mean:+.3f} "
                f"[{difference.low:+.3f}, {difference.high:+.3f}]"
            )
    lines += ["", "Why greedy answers fail, in rows:", ""]
    lines += [f"| cause | {' | '.join(found)} |", "|---|" + "---|" * len(found)]
    counts = {n: {f["cause"]: f["count"] for f in r["failures"]} for n, r in found.items()}
    for cause in CAUSES:
        if any(cause in count for count in counts.values()):
            cells = " | ".join(str(count.get(cause, 0)) for count in counts.values())
            lines.append(f"| {cause} | {cells} |")
    return "\n".join(lines) + "\n"


def paired(out: Path, measure: str, samples: int) -> stats.Estimate:
    """GRPO's accuracy less the warm start's, on the same questions."""
    file = "trajectories.jsonl" if samples == 1 else "samples.jsonl"
    before, after = (
        runs.read_jsonl(evaluation_folder(out, name) / file) for name in ("warm start", "GRPO")
    )
    if [row["key"] for row in before] != [row["key"] for row in after]:
        raise ValueError("the two evaluations are not of the same questions")
    databases = [row["db_id"] for row in before[::samples]]
    old, new = (results.shares(rows, measure, samples) for rows in (before, after))
    return stats.paired_difference(old, new, databases)


def _estimate(found: dict[str, Any]) -> str:
    return str(stats.Estimate(**found))


if __name__ == "__main__":
    sys.exit(main())
