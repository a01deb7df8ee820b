"""What an evaluation does: rollouts of a task, their official verdicts, and the files of a report.

Needs a task and a policy; `evaluate.py` is the command that makes both, `results.py` has what a
report holds, and `kept.py` lets a pass that was stopped go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nl2sql_trl import results, runs, stats
from nl2sql_trl.goldtext import one_line
from nl2sql_trl.kept import Kept
from nl2sql_trl.policy import Policy
from nl2sql_trl.records import Trajectory, Verdict
from nl2sql_trl.report import write_report
from nl2sql_trl.results import Row
from nl2sql_trl.rollout import rollout
from nl2sql_trl.spider.scoring import Mode, Setup
from nl2sql_trl.task import Task


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Trajectories and verdicts of one pass: `samples` in a row for each example, in order."""

    task: Task
    samples: int
    trajectories: tuple[Trajectory, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def correct(self) -> list[float]:
        """Per example: the share of its samples that are right by the training's comparison."""
        right = [float(v.correct) for v in self.verdicts]
        return [
            sum(right[i : i + self.samples]) / self.samples
            for i in range(0, len(right), self.samples)
        ]


def evaluate(
    task: Task,
    policy: Policy,
    samples: int = 1,
    progress: bool = True,
    kept: Kept | None = None,
) -> Evaluation:
    """Roll out every example of the task `samples` times and judge the answers.

    kept: where rollouts are kept as they end; those that are there already are not sampled again.
    """
    from tqdm import tqdm

    prompts = [p for p in task.prompts.values() for _ in range(samples)]
    with tqdm(total=len(prompts), desc="rollouts", unit="row", disable=not progress) as bar:

        def on_done(row: int, trajectory: Trajectory) -> None:
            bar.update()
            if kept:
                kept.add(row, trajectory)

        done = rollout(prompts, kept.over(policy) if kept else policy, task.rollout, on_done)
    return Evaluation(task, samples, tuple(done), tuple(task.verdict(t) for t in done))


def measure(
    done: Evaluation,
    sampled: Evaluation | None = None,
    *,
    setup: Setup | None = None,
    mode: Mode = "official",
    progress: bool = False,
) -> tuple[dict[str, Any], list[Row], list[Row]]:
    """The report on a pass, its rows, and the rows of the sampled pass that goes with it.

    setup: the databases to score on, by default those of `results.setup_for`.
    """
    setup = setup or results.setup_for(done.task)
    rows = results.judged_rows(
        done.task, done.trajectories, done.verdicts, setup, mode, progress=progress
    )
    found = {
        **results.report(rows, done.samples),
        "set_aside": len(done.task.dropped),
        "mode": mode,
        "suite": {"files": results.suite_files(done.task, setup)},
    }
    if sampled is None:
        return found, rows, []
    more = results.judged_rows(
        sampled.task, sampled.trajectories, sampled.verdicts, setup, mode, progress=progress
    )
    more = results.with_picks(sampled.task, more, sampled.samples)
    found["more"] = results.sampled_report(more, sampled.samples)
    return found, rows, more


def write(found: dict[str, Any], rows: list[Row], sampled: list[Row], out: Path) -> None:
    """Write predictions, trajectories and the report to `out`; report.json comes last."""
    (out / "report.json").unlink(missing_ok=True)
    firsts = rows[:: found["samples"]]
    # Spider's format: a tab would end the query and an empty line the session.
    lines = [one_line(row["answer"] or "") or "SELECT" for row in firsts]
    runs.write_text(out / "predictions.sql", "".join(line + "\n" for line in lines))
    for name, kept in (("trajectories.jsonl", rows), ("samples.jsonl", sampled)):
        path = out / name
        path.unlink(missing_ok=True)
        if kept:
            runs.append_jsonl(path, kept)
    runs.write_json(out / "report.json", found)
    write_report([out], out)


def printed(found: dict[str, Any], name: str) -> str:
    """A report in a few lines."""
    accuracies = {m: stats.Estimate(**e["all"]) for m, e in found["metrics"].items()}
    profile, files = found["profile"], found["suite"]["files"]
    how = "greedy" if found["samples"] == 1 else f"mean of {found['samples']} samples"
    clusters = accuracies["execution_accuracy"].clusters
    lines = [
        f"{name}: {found['rows']} rows of {clusters} database(s), {how}; 95% by database",
        f"  test-suite accuracy         {accuracies['testsuite_exec']}  ({files} database files)",
        f"  exact match                 {accuracies['exact_match']}"
        f"  ({1 - accuracies['pred_parses'].mean:.1%} not parsed by Spider)",
        f"  legacy execution            {accuracies['legacy_exec']}",
        f"  same rows (training reward) {accuracies['execution_accuracy']}",
    ]
    if "more" in found:
        more = found["more"]
        mean = stats.Estimate(**more["mean"]["testsuite_exec"])
        consistent = stats.Estimate(**more["self_consistency"])
        at_k = ", ".join(f"pass@{k} {share:.3f}" for k, share in more["pass_at_k"].items())
        lines += [
            f"  mean of {more['samples']} samples           {mean}",
            f"  self-consistency            {consistent}",
            f"  {at_k}",
        ]
    lines += [
        f"  valid executable SQL        {profile['executable']:.1%}",
        f"  answers a query that it ran {profile['ran_its_answer']:.1%}",
        f"  run_sql calls per row       {profile['calls_per_row']:.2f}",
    ]
    for failure in found["failures"]:
        parts = ", ".join(f"{part} {n}" for part, n in list(failure["parts"].items())[:4])
        lines.append(f"  {failure['count']:4} {failure['cause']}: {parts}")
    return "\n".join(lines)
