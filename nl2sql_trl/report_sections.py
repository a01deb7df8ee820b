"""The tables below a report's headline: intervals, profile, why it fails, databases, settings.

Counts stand for rows of the page (`Link`), so that a reader gets from a number to what it counts.
What is counted was decided by `evaluate`; nothing is judged here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nl2sql_trl.report_runs import Evaluated
from nl2sql_trl.report_tables import (
    METRICS,
    NONE,
    Cell,
    Link,
    Table,
    bounds,
    count,
    headline,
    interval,
    levels,
    names,
    values,
)

_PROFILE = {
    "executable": "valid executable SQL",
    "ran_its_answer": "answers with a query it actually ran",
    "calls_per_row": "run_sql calls per row",
    "malformed_calls_per_row": "malformed calls per row",
    "answered": "gave an answer",
    "out_of_budget": "out of token budget",
    "turn_limit": "stopped at the turn limit",
    "empty_match": "right with no rows on either side",
    "sampled_tokens": "sampled tokens per row",
}
_NUMBERS = {"calls_per_row", "malformed_calls_per_row", "sampled_tokens"}
_GROUNDING = {
    "tables_missing": "miss a table of the gold",
    "tables_extra": "have a table that the gold has not",
    "wrong_join_keys": "join on other than the foreign keys",
}
_EXAMPLES = 5


def tables(runs: Sequence[Evaluated]) -> list[Table]:
    """Every table of the report, the headline first. Runs must hold the same questions."""
    found = [
        *headline(runs),
        _wilson(runs),
        _parse_coverage(runs),
        _profile(runs),
        _failures(runs),
        _detectors(runs),
        _grounding(runs),
        _databases(runs),
        _samples(runs),
        _reasons(runs),
        _settings(runs),
    ]
    return [table for table in found if table.rows]


def _wilson(runs: Sequence[Evaluated]) -> Table:
    """Only of runs with one sample a row: means over samples are no counts."""
    plain = [run for run in runs if run.samples == 1]
    columns = [(run.name, run.report["metrics"]["testsuite_exec"]) for run in plain]
    note = "95%, as if rows were independent of each other."
    if len(runs) == 1:
        columns = [(label, r.report["metrics"][m]) for r in plain for m, label in METRICS.items()]
    else:
        note += " Test-suite execution."
    rows = [
        (level, *(bounds(e[level]["wilson_low"], e[level]["wilson_high"]) for _, e in columns))
        for level in (levels(plain[-1]) if plain else [])
    ]
    return Table("Wilson intervals", ("level", *(label for label, _ in columns)), tuple(rows), note)


def _parse_coverage(runs: Sequence[Evaluated]) -> Table:
    several = len(runs) > 1
    variants = {
        "test-suite script": ("exact_match", "pred_parses"),
        "legacy script": ("exact_match_legacy", "pred_parses_legacy"),
    }
    rows = [
        (
            *((run.name,) if several else ()),
            label,
            interval(run.report["metrics"][metric]["all"]),
            count(_rejected(run, parses), len(run.rows)),
        )
        for run in runs
        for label, (metric, parses) in variants.items()
    ]
    head = (*(("run",) if several else ()), "variant", "exact match", "rejected by its parser")
    note = "A prediction that the official parser rejects is no match, whatever it returns."
    return Table("Exact match and parse coverage", head, tuple(rows), note)


def _rejected(run: Evaluated, parses: str) -> int:
    return sum(not row["scores"][parses] for row in run.rows)


def _profile(runs: Sequence[Evaluated]) -> Table:
    rows = []
    for name, label in _PROFILE.items():
        form = ".2f" if name in _NUMBERS else ".1%"
        rows.append((label, *(format(run.report["profile"][name], form) for run in runs)))
    unparsed = [f"{_rejected(run, 'pred_parses_legacy') / len(run.rows):.1%}" for run in runs]
    rows.append(("unparseable by Spider's (legacy) parser", *unparsed))
    return Table("Behavioural profile", ("measure", *names(runs)), tuple(rows))


def _failures(runs: Sequence[Evaluated]) -> Table:
    trees = [{f["cause"]: f for f in run.report["failures"]} for run in runs]
    wrong = [sum(f["count"] for f in tree.values()) for tree in trees]
    rows: list[tuple[Cell, ...]] = []
    for cause in _union(trees):
        counts = [tree.get(cause, {}).get("count", 0) for tree in trees]
        rows.append((cause, *_counts(runs, counts, cause=cause)))
        parts = [tree.get(cause, {}).get("parts", {}) for tree in trees]
        for part in _union(parts):
            found = [p.get(part, 0) for p in parts]
            rows.append((f"└ {part}", *_counts(runs, found, cause=f"{cause} / {part}")))
    if rows:
        rows.append(("all", *(count(n, len(r.rows)) for n, r in zip(wrong, runs, strict=True))))
    note = (
        "One primary cause for each rollout that fails the test suite; shares are of all rollouts."
    )
    return Table("Why it fails", ("cause", *names(runs)), tuple(rows), note)


def _detectors(runs: Sequence[Evaluated]) -> Table:
    found = [run.report["detectors"] for run in runs]
    rows: list[tuple[Cell, ...]] = []
    for name in _union(found):
        counts = [d.get(name, {}).get("count", 0) for d in found]
        keys = found[-1].get(name, {}).get("examples", [])[:_EXAMPLES]
        examples = tuple(Link(key, {"detector": name, "row": key}) for key in map(str, keys))
        rows.append((_words(name), *_counts(runs, counts, detector=name), examples or NONE))
    of = f" of {runs[-1].name}" if len(runs) > 1 else ""
    return Table("Detectors", ("detector", *names(runs), f"examples{of}"), tuple(rows))


def _grounding(runs: Sequence[Evaluated]) -> Table:
    found = [run.report["grounding"] for run in runs]
    rows = [("wrong answers that ran", *(str(g["wrong_rows"]) for g in found))]
    for name, label in _GROUNDING.items():
        rows.append((f"└ {label}", *(count(g[name], g["wrong_rows"]) for g in found)))
    return Table(
        "Schema grounding",
        ("grounding", *names(runs)),
        tuple(rows),
        "Shares are of the wrong answers that ran.",
    )


def _databases(runs: Sequence[Evaluated]) -> Table:
    several = len(runs) > 1
    causes: dict[str, Counter[str]] = {}
    for row in runs[-1].rows:
        if row["failure"]:
            causes.setdefault(row["db_id"], Counter())[row["failure"]["cause"]] += 1
    rows: list[tuple[Cell, ...]] = []
    for name, found in runs[-1].report["by_database"].items():
        cells: list[Cell] = [Link(name, {"db": name}), str(found["rows"])]
        if several:
            cells += [f"{r.report['by_database'][name]['testsuite_exec']:.3f}" for r in runs]
            cells += _moved(runs, name)
        else:
            cells += [f"{found[metric]:.3f}" for metric in ("testsuite_exec", "execution_accuracy")]
        top = causes.get(name, Counter()).most_common(1)
        cells += [Link(f"{c} ({n})", {"db": name, "cause": c}) for c, n in top] or [NONE]
        rows.append(tuple(cells))
    middle = [METRICS["testsuite_exec"], METRICS["execution_accuracy"]]
    note, of = "", ""
    if several:
        middle = [*names(runs), "gained", "lost"]
        note = "Test-suite execution; gained and lost against the first run."
        of = f" of {runs[-1].name}"
    head = ("database", "rows", *middle, f"most frequent cause{of}")
    return Table("By database", head, tuple(rows), note)


def _moved(runs: Sequence[Evaluated], database: str) -> list[Cell]:
    """How many questions of a database the last run gained on the first, and lost."""
    before, after = (values(run, "testsuite_exec") for run in (runs[0], runs[-1]))
    here = [samples[0]["db_id"] == database for samples in runs[-1].questions]
    moves = [b - a for a, b, inside in zip(before, after, here, strict=True) if inside]
    counts = {"gained": sum(m > 0 for m in moves), "lost": sum(m < 0 for m in moves)}
    return [Link(str(n), {"db": database, "verdict": v}) if n else "0" for v, n in counts.items()]


def _samples(runs: Sequence[Evaluated]) -> Table:
    """What came of the runs' sampled passes, by the test suite."""
    more = [run.report.get("more") or {} for run in runs]
    passed = [found.get("pass_at_k", {}) for found in more]
    means = [found.get("mean", {}).get("testsuite_exec") for found in more]
    rows: list[tuple[str, ...]] = []
    if any(means):
        rows.append(("samples a row", *(str(found.get("samples", NONE)) for found in more)))
        rows.append(("mean of the samples", *(interval(e) if e else NONE for e in means)))
    for k in sorted({int(k) for found in passed for k in found}):
        shares = [found.get(str(k)) for found in passed]
        rows.append((f"pass@{k}", *(NONE if s is None else f"{s:.3f}" for s in shares)))
    voted = [found.get("self_consistency") for found in more]
    if any(voted):
        label = "self-consistency (majority of result sets)"
        rows.append((label, *(interval(e) if e else NONE for e in voted)))
    note = "Test-suite execution of answers that were sampled beside the ones above."
    return Table("More than one sample", ("measure", *names(runs)), tuple(rows), note)


def _reasons(runs: Sequence[Evaluated]) -> Table:
    found = [(run.report["reasons"], len(run.rows)) for run in runs]
    rows = [
        (_words(reason), *(count(f.get(reason, 0), total) for f, total in found))
        for reason in _union(f for f, _ in found)
    ]
    note = "The training reward's verdict on every rollout."
    return Table("Training verdicts", ("verdict", *names(runs)), tuple(rows), note)


def _settings(runs: Sequence[Evaluated]) -> Table:
    found = [run.report["settings"] for run in runs]
    rows = [(str(k), *(str(f.get(k, NONE)) for f in found)) for k in _union(found)]
    return Table("Settings", ("setting", *names(runs)), tuple(rows))


def _union(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """The keys of all of them: the last run's in its order, then what only others have."""
    return list(dict.fromkeys(key for one in reversed(list(found)) for key in one))


def _counts(runs: Sequence[Evaluated], counts: Sequence[int], **where: str) -> list[Cell]:
    """A count with its share for each run, standing for the rows that it counts."""
    cells: list[Cell] = []
    for at, (run, number) in enumerate(zip(runs, counts, strict=True)):
        # The page's filter looks at the last run unless told otherwise.
        which = {} if at == len(runs) - 1 else {"run": str(at)}
        text = count(number, len(run.rows))
        cells.append(Link(text, where | which) if number else text)
    return cells


def _words(name: str) -> str:
    return name.replace("_", " ")
