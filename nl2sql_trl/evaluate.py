"""Evaluation: the training's own tool loop over a split, scored by every metric, with error bars.

    python -m nl2sql_trl.evaluate --model runs/demo/grpo/model --data pocket --out runs/demo/dev
    python -m nl2sql_trl.evaluate --model MODEL --data DIR --limit 50 --out OUT
    python -m nl2sql_trl.evaluate --model MODEL --samples 8 --temperature 1 --out OUT

Greedy by default. With `--samples` a second pass is sampled, for the mean of the samples, pass@k
and self-consistency beside greedy. Writes predictions.sql (one line a row, Spider's format),
trajectories.jsonl, samples.jsonl, report.json, report.md and report.html.

Test-suite accuracy runs on the files of `--suite`, else on the data folder's
`test_suite_database`, or on the suite built for pocket; without any of these on the base database
alone, and the report says so. `results.py` has what a report holds. The same command goes on where
one was stopped.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nl2sql_trl import results, runs
from nl2sql_trl.evaluation import Evaluation, evaluate, measure, printed, write
from nl2sql_trl.kept import Kept, weights_digest
from nl2sql_trl.prompts import Codec
from nl2sql_trl.rollout import RolloutConfig
from nl2sql_trl.task import Task, make_task


def load(
    model_name: str,
    data: str,
    split: str,
    *,
    limit: int | None,
    rows: int | None,
    seed: int,
    rollout_config: RolloutConfig,
) -> tuple[Task, Any, Codec]:
    """A split, a model on the device at hand, and the model's codec."""
    import torch

    from nl2sql_trl.models import load_model, load_tokenizer

    codec = Codec(load_tokenizer(model_name))
    task = make_task(data, split, codec, rollout=rollout_config, rows=rows, seed=seed)
    if limit is not None:
        task = first_rows(task, limit)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return task, load_model(model_name).to(device), codec


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
    if not math.isfinite(options.temperature):
        raise ConfigError(f"--temperature must be a number, not {options.temperature}")
    if (options.samples > 1) != (options.temperature > 0):
        raise ConfigError(
            "--samples above 1 and a --temperature above 0 go together: they ask for a sampled "
            "pass beside the greedy one"
        )
    kept = runs.read_settings(options.out)
    other = [n for n in ("model", "data", "split") if kept and kept.get(n) != getattr(options, n)]
    if other:
        raise ConfigError(
            f"--out {options.out} holds an evaluation of another {other[0]} "
            f"({kept.get(other[0])}): give another folder, or delete it"
        )
    if options.suite is not None and not options.suite.is_dir():
        raise ConfigError(f"--suite {options.suite}: no such folder")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {options.out} cannot be made: {error.strerror}") from error
    try:
        Sampling(options.temperature)
        return RolloutConfig(
            options.budget, options.max_turns, options.truncation, options.tool_chars
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    from nl2sql_trl.generate import model_policy
    from nl2sql_trl.launch import guarded
    from nl2sql_trl.sampling import Sampling

    parser = argparse.ArgumentParser(
        prog="python -m nl2sql_trl.evaluate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", required=True, help="folder, hub name, smollm2-135m or tiny")
    parser.add_argument(
        "--data", default="pocket", help="pocket, a Spider-layout folder, or a questions file"
    )
    parser.add_argument("--split", default="dev", choices=["train", "dev", "fit", "holdout"])
    parser.add_argument("--out", required=True, type=Path, help="folder for the results")
    parser.add_argument("--limit", type=int, help="only the first N rows")
    parser.add_argument("--rows", type=int, help="only N rows, drawn by the seed")
    parser.add_argument("--samples", type=int, default=1, help="also sample N rollouts a row")
    parser.add_argument("--temperature", type=float, default=0.0, help="of the sampled pass")
    parser.add_argument("--suite", type=Path, help="folder of <db_id>/<db_id>*.sqlite to score on")
    parser.add_argument("--mode", default="official", choices=["official", "fixed"],
                        help="metrics with the official scripts' quirks, or without")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=int, default=2048, help="tokens over all turns")
    parser.add_argument("--max_turns", type=int, default=5)
    parser.add_argument("--truncation", default="rows", choices=["rows", "seed"])
    parser.add_argument("--tool_chars", type=int, default=400)
    parser.add_argument("--bf16", action="store_true", help="bf16 autocast instead of fp32")
    options = parser.parse_args(argv)
    started = time.monotonic()
    with guarded():
        config = _checked(options)
        task, model, codec = load(
            options.model,
            options.data,
            options.split,
            limit=options.limit,
            rows=options.rows,
            seed=options.seed,
            rollout_config=config,
        )

        of = {
            "weights": weights_digest(model),
            "prompts": [p.ids for p in task.prompts.values()],
            "limits": asdict(config),
            "bf16": options.bf16,
            "seed": options.seed,
        }

        def run(temperature: float, samples: int) -> tuple[Evaluation, Kept]:
            policy = model_policy(
                model, codec, Sampling(temperature), seed=options.seed, autocast=options.bf16
            )
            name = "greedy" if samples == 1 else "sampled"
            kept = Kept(
                options.out / f"{name}.unfinished.jsonl",
                of | {"temperature": temperature, "samples": samples},
            )
            if kept.samples:
                print(f"{name}: {len(kept.samples):,} rollouts are there from before")
            return evaluate(task, policy, samples, kept=kept), kept

        # What can be wrong with the databases or the folder is found before the long part.
        setup = results.setup_for(task, options.suite, progress=True)
        results.check(task, setup, options.suite)
        passes = [run(0.0, 1)]
        if options.samples > 1:
            passes.append(run(options.temperature, options.samples))
        done = [evaluation for evaluation, _ in passes]
        found, rows, more = measure(*done, setup=setup, mode=options.mode, progress=True)
        settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
        cost = {
            "seconds": round(time.monotonic() - started, 1),
            "peak_bytes": runs.peak_memory(),
            "cpu": runs.cpu(),
            "cpus": os.cpu_count(),
            # Rollouts of an earlier sitting, whose time and memory are not counted.
            "from_before": sum(len(kept.samples) for _, kept in passes),
        }
        whole = {"name": options.model, "settings": settings, "cost": cost, **found}
        write(whole, rows, more, options.out)
        for _, kept in passes:
            kept.drop()
        print(printed(found, options.model))
        print(f"written to {options.out}: open {options.out / 'report.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
