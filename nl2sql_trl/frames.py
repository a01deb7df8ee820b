"""Runs as pandas DataFrames, and which rows changed between two evaluations.

    run = Run("runs/demo/grpo")          # a training run, or a folder that evaluate has written
    run.metrics                          # one row a step
    run.trajectories                     # one row a trajectory; show_row(run.rows[0]) shows one
    run.predictions                      # one row a question, with every metric's verdict
    compare("runs/demo/evaluation/warm_start", "runs/demo/evaluation/grpo")      # what flipped

Files are read when they are asked for, so a run that goes on shows what it has by then. Nothing is
judged or computed here that `evaluate` or the report computes: this only puts it into columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql_trl import report_runs, results, stats
from nl2sql_trl.report_tables import METRICS
from nl2sql_trl.runs import read_jsonl
from nl2sql_trl.shown import Comparison
from nl2sql_trl.spider import scoring

if TYPE_CHECKING:
    from pandas import DataFrame

_SAMPLED = ("execution_accuracy", "testsuite_exec")  # what the sampled pass is told by


class Run:
    """A training run directory or an evaluation folder. Raises FileNotFoundError if there is none.

    What a folder does not hold is a FileNotFoundError that names the file and what writes it.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder}: give a run's or an evaluation's")

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @property
    def metrics(self) -> DataFrame:
        """What training logged: one row a step, the columns of metrics.jsonl."""
        from pandas import DataFrame

        path = self._file("metrics.jsonl", "train and sft write it, step by step")
        return DataFrame(read_jsonl(path))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The stored trajectories as they are, in the order of `trajectories`."""
        return [row for _, rows in self._passes() for row in rows]

    @property
    def trajectories(self) -> DataFrame:
        """One row a trajectory: what was asked, what came of it, and how it went.

        Of a training run: the trajectories that it kept, with their `step`. Of an evaluation: the
        greedy ones, then (`sampled`) those of samples.jsonl, with their metrics and why they fail.
        """
        from pandas import DataFrame

        return DataFrame(
            [
                ({"sampled": name == "samples.jsonl"} if "scores" in row else {}) | _columns(row)
                for name, rows in self._passes()
                for row in rows
            ]
        )

    @property
    def predictions(self) -> DataFrame:
        """One row a question: gold, answer, every metric's verdict, and why it fails.

        Where questions were also sampled, `sampled_...` is the share of samples that are right.
        Of a training run these are its model's, from the one evaluation of it that is beside it.
        """
        from pandas import DataFrame

        folder = self.evaluation
        run = report_runs.load(folder)
        shares = {m: results.shares(run.rows, m, run.samples) for m in results.MEASURES}
        more = read_jsonl(folder / "samples.jsonl")
        samples = len(more) // len(run.questions)
        sampled = {m: results.shares(more, m, samples) for m in _SAMPLED} if more else {}
        found = []
        for number, (first, *_) in enumerate(run.questions):
            told = _columns(first)
            # With one answer a question a share is a verdict.
            told |= {
                m: s[number] if run.samples > 1 else bool(s[number]) for m, s in shares.items()
            }
            told |= {f"sampled_{m}": s[number] for m, s in sampled.items()}
            found.append(told)
        return DataFrame(found).drop(columns="correct")

    @property
    def evaluation(self) -> Path:
        """The evaluation folder: this one, or the one beside a training run that is of its model.

        Looked for in the run, in its `evaluation` folder and in its parent's. Raises
        FileNotFoundError if there is none and ValueError if there are several.
        """
        if (self.folder / "report.json").is_file():
            return self.folder
        model = self.folder.resolve() / "model"
        places = [base / part for base in (self.folder, self.folder.parent)
                  for part in ("", "evaluation")]  # fmt: skip
        found = [
            path.parent
            for place in places
            for path in sorted(place.glob("*/report.json"))
            if _evaluated(path) == model.parts[-2:]
        ]
        if not found:
            raise FileNotFoundError(
                f"no evaluation of {self.folder} is beside it: python -m nl2sql_trl.evaluate "
                f"--model {self.folder / 'model'} --out {self.folder / 'evaluation' / 'dev'}"
            )
        if len(found) > 1:
            names = ", ".join(map(str, found))
            raise ValueError(f"{self.folder} was evaluated more than once: open one of {names}")
        return found[0]

    def _passes(self) -> list[tuple[str, list[dict[str, Any]]]]:
        """The files of trajectories with their rows: an evaluation may have two."""
        path = self._file(
            "trajectories.jsonl", "train writes it, and evaluate does; a warm start has none"
        )
        names = [path.name, "samples.jsonl"]
        return [(name, read_jsonl(self.folder / name)) for name in names]

    def _file(self, name: str, made_by: str) -> Path:
        path = self.folder / name
        if not path.is_file():
            raise FileNotFoundError(f"there is no {path}: {made_by}")
        return path


def _evaluated(report: Path) -> tuple[str, ...]:
    """The last two names of the path of the model that a report.json is about.

    No more of it, so that a run can be moved with its evaluations.
    """
    try:
        return Path(json.loads(report.read_bytes())["settings"]["model"]).parts[-2:]
    except (ValueError, LookupError, TypeError):
        return ()  # something else of that name, or half written


def _columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of a trajectory in one line of a table."""
    calls = [call for turn in row["turns"] for call in turn.get("calls", ())]
    tokens = {
        role: sum(turn["tokens"] for turn in row["turns"] if turn["role"] == role)
        for role in ("assistant", "tool")
    }
    told = {name: row[name] for name in ("step", "key", "db_id", "hardness") if name in row}
    told |= {name: row[name] for name in ("question", "gold", "answer") if name in row}
    told |= {
        **{name: row.get(name) for name in ("correct", "reason", "detail", "executable")},
        "stop": row["stop"],
        "calls": len(calls),
        "malformed_calls": sum(bool(call["problem"]) for call in calls),
        "turns": sum(turn["role"] == "assistant" for turn in row["turns"]),
        "sampled_tokens": tokens["assistant"],
        "tool_tokens": tokens["tool"],
        "ran_its_answer": row.get("ran_its_answer"),
        "empty_match": row.get("empty_match"),
    }
    if "scores" in row:
        failure = row["failure"] or {}
        told |= {metric: row["scores"][metric] for metric in scoring.METRICS}
        told |= {"cause": failure.get("cause"), "part": failure.get("part")}
        told |= {"sql_differs": failure.get("sql_differs", [])}
        told |= {"result_differs": failure.get("result_differs"), "detectors": row["detectors"]}
    return told


def evaluations(folders: Mapping[str, str | Path]) -> list[report_runs.Evaluated]:
    """Evaluation folders under names of your choice, for `report_tables`, `report_sections`
    and `compare`. Raises what `report_runs.load` raises, and ValueError if they are not of the
    same questions."""
    found = [replace(report_runs.load(path), name=name) for name, path in folders.items()]
    report_runs.check_same_questions(found)
    return found


def compare(
    before: str | Path | Run | report_runs.Evaluated,
    after: str | Path | Run | report_runs.Evaluated,
    metric: str = "testsuite_exec",
) -> Comparison:
    """What flipped from one evaluation to another: folders, runs, or of `evaluations`.

    metric: one of the report's (`report_tables.METRICS`). Raises ValueError for another, and, with
    what differs, if the two are not of the same questions scored the same way.
    """
    if metric not in METRICS:
        raise ValueError(f"there is no metric {metric!r}: take one of {', '.join(METRICS)}")
    runs = [_opened(before), _opened(after)]
    report_runs.check_same_questions(runs)
    old, new = (results.shares(run.rows, metric, run.samples) for run in runs)
    firsts = [[samples[0] for samples in run.questions] for run in runs]
    pairs = list(zip(*firsts, strict=True))
    gained = tuple(pair for pair, a, b in zip(pairs, old, new, strict=True) if b > a)
    lost = tuple(pair for pair, a, b in zip(pairs, old, new, strict=True) if b < a)
    single = all(run.samples == 1 for run in runs)
    return Comparison(
        before=runs[0].name,
        after=runs[1].name,
        metric=METRICS[metric],
        questions=len(pairs),
        gained=gained,
        lost=lost,
        difference=stats.paired_difference(old, new, [row["db_id"] for row in firsts[0]]),
        mcnemar=stats.mcnemar([v > 0 for v in old], [v > 0 for v in new]) if single else None,
    )


def _opened(run: str | Path | Run | report_runs.Evaluated) -> report_runs.Evaluated:
    """An evaluation, under its folder's name unless it has been given another."""
    if isinstance(run, report_runs.Evaluated):
        return run
    folder = (run if isinstance(run, Run) else Run(run)).evaluation
    return replace(report_runs.load(folder), name=folder.resolve().name)
