"""Evaluation: the training's own tool loop over a split, greedily or sampled, with error bars.

    python -m nl2sql_trl.evaluate --model runs/demo/grpo/model --data pocket --out runs/demo/dev
    python -m nl2sql_trl.evaluate --model MODEL --data DIR --limit 50 --out OUT
    python -m nl2sql_trl.evaluate --model MODEL --samples 4 --temperature 1 --out OUT

Writes predictions.sql (one line a row, in the split's order; Spider's format), trajectories.jsonl
and report.json: execution accuracy on the base databases with a 95% interval clustered by
database, and the behavioural profile of the reference's card.

Execution accuracy here is the training reward's comparison, not the official test suite.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nl2sql_trl import runs, stats
from nl2sql_trl.policy import Policy
from nl2sql_trl.records import Trajectory, Verdict
from nl2sql_trl.rollout import RolloutConfig, rollout
from nl2sql_trl.task import Task, make_task


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Trajectories and verdicts of one pass: `samples` in a row for each example, in order."""

    task: Task
    samples: int
    trajectories: tuple[Trajectory, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def correct(self) -> list[float]:
        """Per example: the share of its samples that are right (0 or 1 for a single one)."""
        right = [float(v.correct) for v in self.verdicts]
        return [
            sum(right[i : i + self.samples]) / self.samples
            for i in range(0, len(right), self.samples)
        ]

    @property
    def databases(self) -> list[str]:
        """The db_id of each example: the clusters of the error bars."""
        return [e.db_id for e in self.task.examples.values()]


def evaluate(task: Task, policy: Policy, samples: int = 1, progress: bool = True) -> Evaluation:
    """Roll out every example of the task `samples` times and judge the answers."""
    from tqdm import tqdm

    prompts = [p for p in task.prompts.values() for _ in range(samples)]
    with tqdm(total=len(prompts), desc="rollouts", unit="row", disable=not progress) as bar:

        def on_done(_key: int, _trajectory: Trajectory) -> None:
            bar.update()

        done = rollout(prompts, policy, task.rollout, on_done)
    return Evaluation(task, samples, tuple(done), tuple(task.verdict(t) for t in done))


def report(evaluation: Evaluation) -> dict[str, Any]:
    """Accuracy with its interval, by database, and the behavioural profile."""
    done, verdicts = evaluation.trajectories, evaluation.verdicts
    correct, databases = evaluation.correct, evaluation.databases
    accuracy = stats.mean(correct, databases)
    by_database = {
        name: sum(c for c, d in zip(correct, databases, strict=True) if d == name)
        / databases.count(name)
        for name in sorted(set(databases))
    }
    calls = [c for t in done for c in t.calls]
    return {
        "rows": len(correct),
        "samples": evaluation.samples,
        "set_aside": len(evaluation.task.dropped),
        "execution_accuracy": asdict(accuracy),
        "by_database": by_database,
        "reasons": dict(Counter(v.reason for v in verdicts).most_common()),
        "profile": {
            "executable": _share(v.executable for v in verdicts),
            "ran_its_answer": _share(t.ran_its_answer for t in done),
            "calls_per_row": len(calls) / len(done),
            "malformed_calls_per_row": sum(bool(c.problem) for c in calls) / len(done),
            "answered": _share(t.answer is not None for t in done),
            "out_of_budget": _share(t.stop == "budget" for t in done),
            "turn_limit": _share(t.stop == "turn_limit" for t in done),
            "empty_match": _share(v.correct and v.empty_match for v in verdicts),
            "sampled_tokens": sum(sum(t.env_mask) for t in done) / len(done),
        },
    }


def _share(flags: Any) -> float:
    values = [bool(f) for f in flags]
    return sum(values) / len(values)


def write(evaluation: Evaluation, out: Path, extra: dict[str, Any]) -> dict[str, Any]:
    """Write predictions.sql, trajectories.jsonl and report.json to `out`; returns the report."""
    found = extra | report(evaluation)
    firsts = evaluation.trajectories[:: evaluation.samples]
    lines = [" ".join((t.answer or "").split()) + "\n" for t in firsts]
    # A tab would end the query in Spider's format, and an empty line the session.
    runs.write_text(
        out / "predictions.sql", "".join(line if line.strip() else "SELECT\n" for line in lines)
    )
    examples = evaluation.task.examples
    rows = []
    for t, v in zip(evaluation.trajectories, evaluation.verdicts, strict=True):
        example = examples[t.prompt.key]
        rows.append({"db_id": example.db_id, "gold": example.gold, **runs.describe(t, v)})
    path = out / "trajectories.jsonl"
    path.unlink(missing_ok=True)
    runs.append_jsonl(path, rows)
    runs.write_json(out / "report.json", found)
    return found


def printed(found: dict[str, Any], name: str) -> str:
    """A report in a few lines."""
    accuracy = stats.Estimate(**found["execution_accuracy"])
    profile = found["profile"]
    how = "greedy" if found["samples"] == 1 else f"mean of {found['samples']} samples"
    lines = [
        f"{name}: {found['rows']} rows of {accuracy.clusters} database(s), {how}",
        f"  execution accuracy          {accuracy}  (95%, clustered by database)",
        f"  valid executable SQL        {profile['executable']:.1%}",
        f"  answers a query that it ran {profile['ran_its_answer']:.1%}",
        f"  run_sql calls per row       {profile['calls_per_row']:.2f}",
        "  verdicts                    "
        + ", ".join(f"{reason} {count}" for reason, count in found["reasons"].items()),
    ]
    return "\n".join(lines)


def model_task_policy(
    model_name: str,
    data: str,
    split: str,
    *,
    limit: int | None,
    rows: int | None,
    temperature: float,
    seed: int,
    rollout_config: RolloutConfig,
    bf16: bool,
) -> tuple[Task, Policy]:
    """Load a model and a split, ready for `evaluate`."""
    import torch

    from nl2sql_trl.generate import model_policy
    from nl2sql_trl.models import load_model, load_tokenizer
    from nl2sql_trl.prompts import Codec
    from nl2sql_trl.sampling import Sampling

    codec = Codec(load_tokenizer(model_name))
    task = make_task(data, split, codec, rollout=rollout_config, rows=rows, seed=seed)
    if limit is not None:
        task = first_rows(task, limit)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = load_model(model_name).to(device)
    return task, model_policy(model, codec, Sampling(temperature), seed=seed, autocast=bf16)


def first_rows(task: Task, limit: int) -> Task:
    """The task cut to its first `limit` rows."""
    from dataclasses import replace

    keys = list(task.examples)[:limit]
    examples = {k: task.examples[k] for k in keys}
    return replace(task, examples=examples, prompts={k: task.prompts[k] for k in keys})


def _checked(options: argparse.Namespace) -> RolloutConfig:
    """The rollout's limits. Raises ConfigError for options that cannot be, before any work."""
    from nl2sql_trl.launch import ConfigError
    from nl2sql_trl.sampling import Sampling

    for name in ("limit", "rows", "samples"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name} must be at least 1, not {value}")
    if options.samples > 1 and options.temperature == 0:
        raise ConfigError("--samples above 1 needs a --temperature above 0")
    try:
        Sampling(options.temperature)
        return RolloutConfig(
            options.budget, options.max_turns, options.truncation, options.tool_chars
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    from nl2sql_trl.launch import guarded

    parser = argparse.ArgumentParser(
        prog="python -m nl2sql_trl.evaluate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", required=True, help="folder, hub name, smollm2-135m or tiny")
    parser.add_argument("--data", default="pocket", help="pocket, or a Spider-layout folder")
    parser.add_argument("--split", default="dev", choices=["train", "dev"])
    parser.add_argument("--out", required=True, type=Path, help="folder for the results")
    parser.add_argument("--limit", type=int, help="only the first N rows")
    parser.add_argument("--rows", type=int, help="only N rows, drawn by the seed")
    parser.add_argument("--samples", type=int, default=1, help="rollouts a row")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=int, default=2048, help="tokens over all turns")
    parser.add_argument("--max_turns", type=int, default=5)
    parser.add_argument("--truncation", default="rows", choices=["rows", "seed"])
    parser.add_argument("--tool_chars", type=int, default=400)
    parser.add_argument("--bf16", action="store_true", help="bf16 autocast instead of fp32")
    options = parser.parse_args(argv)
    with guarded():
        config = _checked(options)
        task, policy = model_task_policy(
            options.model,
            options.data,
            options.split,
            limit=options.limit,
            rows=options.rows,
            temperature=options.temperature,
            seed=options.seed,
            rollout_config=config,
            bf16=options.bf16,
        )
        done = evaluate(task, policy, options.samples)
        settings = {k: v for k, v in vars(options).items() if k != "out"}
        found = write(done, options.out, {"settings": settings})
        print(printed(found, options.model))
        print(f"written to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
