"""From judged trajectories to what is written down: one row each, and the report over them.

A row holds the whole trajectory, the training verdict, the official Spider verdicts, the failure
and the detectors; the report is computed from rows alone, so that every number in it can be
recomputed from the files. `analysis.py` has the causes, `stats.py` the intervals.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nl2sql_trl import analysis, runs, stats
from nl2sql_trl.data import POCKET, data_folder
from nl2sql_trl.database import execute
from nl2sql_trl.questions import is_questions
from nl2sql_trl.records import QueryResult, Trajectory, Verdict
from nl2sql_trl.rewards import ANSWER_LIMITS
from nl2sql_trl.spider.cases import Case, read_schemas
from nl2sql_trl.spider.evaluator import CaseScore
from nl2sql_trl.spider.hardness import LEVELS
from nl2sql_trl.spider.scoring import METRICS, Mode, Setup, score_all
from nl2sql_trl.task import Task
from nl2sql_trl.task import suite_files as task_suite_files

Row = dict[str, Any]
MEASURES = ("execution_accuracy", *METRICS)


def setup_for(task: Task, suite: Path | None = None, progress: bool = False) -> Setup:
    """The databases to score a task on: its suite where there is one, then its own.

    suite: a folder of `<db_id>/<db_id>*.sqlite`. By default that is `test_suite_database` in the
    data folder, or the one built for pocket; a questions file has none, and its schemas are those
    that its databases declare.
    """
    suites = [] if suite is None else [suite]
    if is_questions(data_folder(task.data)):
        databases = {example.db_id: example.db_path for example in task.examples.values()}
        return Setup(suites, databases=databases)
    bases = {example.db_path.parents[1] for example in task.examples.values()}
    folder = next(iter(bases)).parent
    if suite is None and task.data == POCKET:
        from nl2sql_trl.suite import pocket_suite

        names = sorted({example.db_id for example in task.examples.values()})
        suites = [pocket_suite(name, progress) for name in names]
    elif suite is None and (folder / "test_suite_database").is_dir():
        suites = [folder / "test_suite_database"]
    tables = folder / "tables.json"
    schemas = read_schemas(tables if tables.is_file() else None)
    return Setup([*suites, *sorted(bases)], schemas)


def check(task: Task, setup: Setup, suite: Path | None) -> None:
    """Raise DataError or InputError for databases that cannot be scored on.

    A `suite` that was asked for must have files for every database.
    """
    names = sorted({example.db_id for example in task.examples.values()})
    if suite is not None:
        task_suite_files(suite, names)
    cases = [Case(name, name, "SELECT 1", "SELECT 1", f"database {name}") for name in names]
    score_all(cases, setup)


def suite_files(task: Task, setup: Setup) -> int:
    """How many database files stand behind the test-suite verdicts."""
    names = {example.db_id for example in task.examples.values()}
    evaluator = setup.evaluator("official")
    return sum(len(evaluator.files(name)) for name in names)


def judged_rows(
    task: Task,
    trajectories: Sequence[Trajectory],
    verdicts: Sequence[Verdict],
    setup: Setup,
    mode: Mode = "official",
    progress: bool = False,
) -> list[Row]:
    """One row a trajectory, in order, with everything that is known of it."""
    examples = [task.examples[t.prompt.key] for t in trajectories]
    cases = [
        Case(t.prompt.key, e.db_id, e.gold, t.answer or "", t.prompt.key)
        for t, e in zip(trajectories, examples, strict=True)
    ]
    scores = score_all(cases, setup, mode, progress=progress).scores
    evaluator = setup.evaluator(mode)
    # The evaluator keeps one database open: all rows of a database in a row.
    found: dict[int, Row] = {}
    for index in sorted(range(len(cases)), key=lambda i: cases[i].db_id):
        example, trajectory = examples[index], trajectories[index]
        verdict, score = verdicts[index], scores[index]
        gold = task.golds[example.db_path, example.gold]
        failure = analysis.explain(example, trajectory, verdict, score, gold, evaluator)
        found[index] = {
            "db_id": example.db_id,
            "gold": example.gold,
            "hardness": score.hardness,
            **runs.describe(trajectory, verdict),
            "logprob": mean_logprob(trajectory),
            "scores": _scores(score),
            "failure": None if failure is None else asdict(failure),
            "detectors": list(analysis.detect(example, trajectory, verdict)),
        }
    evaluator.close()
    return [found[index] for index in range(len(cases))]


def _scores(score: CaseScore) -> dict[str, Any]:
    fields = asdict(score)
    return {name: fields[name] for name in (*METRICS, "reason", "flags")}


def mean_logprob(trajectory: Trajectory) -> float | None:
    """Mean log-probability of the sampled tokens; None without any (greedy policies give none)."""
    sampled = [value for turn in trajectory.model_turns for value in turn.sample.logprobs]
    return sum(sampled) / len(sampled) if sampled else None


def value(row: Mapping[str, Any], measure: str) -> float:
    """1.0 if the row is right by a measure, else 0.0."""
    return float(row["correct"] if measure == "execution_accuracy" else row["scores"][measure])


def report(rows: Sequence[Row], samples: int = 1) -> dict[str, Any]:
    """Accuracies with intervals by hardness, profile, failure tree and detectors of one pass.

    With several samples a question (they stand together in `rows`) its value is their mean, and
    everything that is counted is counted over all of them.
    """
    firsts = rows[::samples]
    levels: dict[str, list[int]] = {level: [] for level in (*LEVELS, "all")}
    for number, row in enumerate(firsts):
        levels["all"].append(number)
        if row["hardness"] is not None:
            levels[row["hardness"]].append(number)
    databases = [row["db_id"] for row in firsts]
    values = {measure: shares(rows, measure, samples) for measure in MEASURES}
    return {
        "rows": len(firsts),
        "samples": samples,
        "metrics": {
            measure: {
                level: asdict(
                    stats.accuracy([found[i] for i in chosen], [databases[i] for i in chosen])
                )
                for level, chosen in levels.items()
                if chosen
            }
            for measure, found in values.items()
        },
        "by_database": {
            name: {
                "rows": databases.count(name),
                **{
                    measure: _mean([v for v, d in zip(found, databases, strict=True) if d == name])
                    for measure, found in values.items()
                    if measure in ("execution_accuracy", "testsuite_exec")
                },
            }
            for name in sorted(set(databases))
        },
        "reasons": dict(Counter(row["reason"] for row in rows).most_common()),
        "profile": _profile(rows),
        "failures": analysis.failure_tree(rows),
        "detectors": analysis.detectors(rows),
        "grounding": analysis.grounding(rows),
    }


def shares(rows: Sequence[Row], measure: str, samples: int = 1) -> list[float]:
    """For each question the share of its samples that are right by a measure."""
    found = [value(row, measure) for row in rows]
    return [_mean(found[i : i + samples]) for i in range(0, len(found), samples)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _profile(rows: Sequence[Row]) -> dict[str, float]:
    """The behavioural profile of the reference's card, per row."""
    calls = [call for row in rows for turn in row["turns"] for call in turn.get("calls", ())]
    tokens = [
        turn["tokens"] for row in rows for turn in row["turns"] if turn["role"] == "assistant"
    ]
    shares = {
        "executable": [row["executable"] for row in rows],
        "ran_its_answer": [row["ran_its_answer"] for row in rows],
        "answered": [row["answer"] is not None for row in rows],
        "out_of_budget": [row["stop"] == "budget" for row in rows],
        "turn_limit": [row["stop"] == "turn_limit" for row in rows],
        "empty_match": [row["correct"] and row["empty_match"] for row in rows],
    }
    return {
        **{name: sum(flags) / len(rows) for name, flags in shares.items()},
        "calls_per_row": len(calls) / len(rows),
        "malformed_calls_per_row": sum(bool(call["problem"]) for call in calls) / len(rows),
        "sampled_tokens": sum(tokens) / len(rows),
    }


def with_picks(task: Task, rows: Sequence[Row], samples: int) -> list[Row]:
    """The rows with `picked`: whether self-consistency takes this one of a question's samples."""
    found = []
    for i in range(0, len(rows), samples):
        group = rows[i : i + samples]
        picked = self_consistent(task, group)
        found += [row | {"picked": row is picked} for row in group]
    return found


def sampled_report(rows: Sequence[Row], samples: int) -> dict[str, Any]:
    """Mean of the samples, pass@k and self-consistency, by the test suite.

    `rows` holds `samples` rows a question, one question after the other, with picks.
    """
    groups = [rows[i : i + samples] for i in range(0, len(rows), samples)]
    databases = [group[0]["db_id"] for group in groups]
    right = [int(sum(value(row, "testsuite_exec") for row in group)) for group in groups]
    sizes = [k for k in (1, 2, 4, 8, 16, 32, 64) if k < samples] + [samples]
    consistent = [
        sum(value(row, "testsuite_exec") for row in group if row["picked"]) for group in groups
    ]
    return {
        "samples": samples,
        "mean": {
            measure: asdict(stats.accuracy(shares(rows, measure, samples), databases))
            for measure in ("execution_accuracy", "testsuite_exec")
        },
        "pass_at_k": {
            str(k): _mean([stats.pass_at_k(samples, found, k) for found in right]) for k in sizes
        },
        "self_consistency": asdict(stats.accuracy(consistent, databases)),
    }


def self_consistent(task: Task, group: Sequence[Row]) -> Row | None:
    """The row that self-consistency by execution picks; None if no answer of the group runs.

    Answers vote by the rows that they return on the base database (`by_votes`).
    Wang et al. 2023, "Self-Consistency Improves Chain of Thought Reasoning in Language Models",
    with results in place of final answers.
    """
    path = task.examples[group[0]["key"]].db_path
    found = [
        execute(path, row["answer"], ANSWER_LIMITS)
        if row["answer"] is not None and row["executable"]
        else None
        for row in group
    ]
    ranked = by_votes(found, [row["logprob"] for row in group])
    return group[ranked[0][0]] if ranked else None


def by_votes(
    found: Sequence[QueryResult | None], logprobs: Sequence[float | None]
) -> list[list[int]]:
    """Positions of the results that ran, in groups of equal rows as multisets.

    The group with most votes is first, of like ones the one with the highest mean
    log-probability; inside a group the likeliest is first.
    """
    scores = [float("-inf") if value is None else value for value in logprobs]
    votes: dict[object, list[int]] = defaultdict(list)
    for number, result in enumerate(found):
        if result is not None and result.outcome == "ok":
            key = len(result.columns), frozenset(Counter(result.rows).items())
            votes[key].append(number)
    groups = [sorted(group, key=lambda n: -scores[n]) for group in votes.values()]
    return sorted(groups, key=lambda g: (-len(g), -_mean([scores[n] for n in g])))
