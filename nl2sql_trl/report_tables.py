"""What a report says first: a run by hardness, or the change from the first run to the last.

Tables are of plain cells, so that Markdown and the page show the same ones; the rest of them is in
`report_sections`. Of several runs the first is the base and the last the trained one, and changes
are paired by question. The value of a question is the mean over its samples.

This module reads no files, judges no SQL and knows no markup. Intervals of a single run are those
that `evaluate` put into report.json; those of a change are computed here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nl2sql_trl import results, stats
from nl2sql_trl.report_runs import Evaluated
from nl2sql_trl.spider.hardness import LEVELS

METRICS = {
    "testsuite_exec": "test-suite execution",
    "exact_match": "exact match",
    "legacy_exec": "legacy execution",
    "execution_accuracy": "execution accuracy (training reward)",
}
# Settings of `evaluate` that decide what a rollout can do.
_LIMITS = {
    "budget": "tokens",
    "max_turns": "turns",
    "truncation": "truncation",
    "tool_chars": "characters of a tool response",
    "bf16": "bf16",
}
NONE, TIMES = "-", "\u00d7"
# Controls but tab and line feed, marks of direction and other unseen ones, halves of pairs.
_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    r"\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


@dataclass(frozen=True, slots=True)
class Link:
    """A text that stands for rows of the page: the fields of its filter, with their values."""

    text: str
    where: Mapping[str, str]


Cell = str | Link | tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Cells in rows below a head; without a title it goes on from the table above."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


def values(run: Evaluated, metric: str) -> list[float]:
    """One value a question: the share of its samples that are right by `metric`."""
    return results.shares(run.rows, metric, run.samples)


def levels(run: Evaluated) -> list[str]:
    """The hardness levels that have rows, in order, and "all"."""
    found = run.report["metrics"]["testsuite_exec"]
    return [level for level in (*LEVELS, "all") if level in found]


def about(run: Evaluated) -> str:
    """What was evaluated, in a line."""
    report = run.report
    clusters = report["metrics"]["testsuite_exec"]["all"]["clusters"]
    files = report["suite"]["files"]
    # A temperature is that of the samples where these stand beside a greedy pass.
    greedy = "more" in report or not report["settings"].get("temperature")
    one = "greedy" if greedy else "one sample a row"
    several = f"mean of {run.samples} samples a row"
    if "seeds" in report:
        seeds = report["seeds"]["testsuite_exec"]
        several = (
            f"mean of {seeds['seeds']} seeds (test suite {seeds['lowest']:.3f} to "
            f"{seeds['highest']:.3f}, s.d. {seeds['sd']:.3f})"
        )
    parts = [
        f"{report['rows']} rows of {clusters} database{'' if clusters == 1 else 's'}",
        one if run.samples == 1 else several,
        f"test suite of {files} database files"
        if files > clusters
        else "no test suite (the base databases alone)",
    ]
    if report["set_aside"]:
        parts.append(f"{report['set_aside']} rows set aside because their gold cannot be used")
    return ", ".join(parts)


def unlike(runs: Sequence[Evaluated]) -> str:
    """What the rollouts of the runs were not given alike, in a sentence; empty if there is none."""
    found = []
    for name, words in _LIMITS.items():
        values = [run.report["settings"].get(name) for run in runs]
        if any(value != values[0] for value in values):
            found.append(f"{words} ({', '.join(map(str, values))})")
    if not found:
        return ""
    return f"Not evaluated alike: {'; '.join(found)}. A change may come from that."


def headline(runs: Sequence[Evaluated]) -> list[Table]:
    """The tables to quote: one run by hardness, or the change over several on the same rows."""
    if len(runs) == 1:
        return [_by_level(runs[0])]
    return [_change_by_level(runs), _change_by_metric(runs), _paired(runs)]


def _by_level(run: Evaluated) -> Table:
    metrics = run.report["metrics"]
    rows = [
        (
            level,
            str(metrics["testsuite_exec"][level]["rows"]),
            *(interval(metrics[metric][level]) for metric in METRICS),
        )
        for level in levels(run)
    ]
    note = "Brackets hold 95% intervals: bootstrap, clustered by database."
    return Table("Results", ("level", "rows", *METRICS.values()), tuple(rows), note)


def _change_by_level(runs: Sequence[Evaluated]) -> Table:
    rows = []
    for level in levels(runs[-1]):
        found = [run.report["metrics"]["testsuite_exec"][level] for run in runs]
        change = _change(runs[0], runs[-1], "testsuite_exec", level)
        rows.append((level, str(found[-1]["rows"]), *map(interval, found), *change))
    note = (
        "Test-suite execution. Brackets hold 95% intervals: bootstrap, clustered by database; "
        "those of a change are paired by question."
    )
    return Table("Results", ("level", "rows", *roles(runs), "change", "ratio"), tuple(rows), note)


def _change_by_metric(runs: Sequence[Evaluated]) -> Table:
    rows = [
        (
            label,
            *(interval(run.report["metrics"][metric]["all"]) for run in runs),
            *_change(runs[0], runs[-1], metric, "all"),
        )
        for metric, label in METRICS.items()
    ]
    return Table("", ("all rows", *roles(runs), "change", "ratio"), tuple(rows))


def _change(base: Evaluated, last: Evaluated, metric: str, level: str) -> tuple[str, str]:
    firsts = [samples[0] for samples in base.questions]
    at = [i for i, row in enumerate(firsts) if level in ("all", row["hardness"])]
    old, new = (values(run, metric) for run in (base, last))
    before, after = [old[i] for i in at], [new[i] for i in at]
    difference = stats.paired_difference(before, after, [firsts[i]["db_id"] for i in at])
    return signed(difference), f"{TIMES}{sum(after) / sum(before):.2f}" if any(before) else NONE


def _paired(runs: Sequence[Evaluated]) -> Table:
    """The last run against the first and, if it is another, against the one before it."""
    last = runs[-1]
    befores = [runs[0]] if len(runs) == 2 else [runs[0], runs[-2]]
    greedy = all(run.samples == 1 for run in (*befores, last))
    databases = [samples[0]["db_id"] for samples in last.questions]
    after = values(last, "testsuite_exec")
    rows: list[tuple[Cell, ...]] = []
    for before in befores:
        old = values(before, "testsuite_exec")
        difference = stats.paired_difference(old, after, databases)
        cells: list[Cell] = [f"{last.name} against {before.name}", signed(difference)]
        if greedy:
            found = stats.mcnemar([bool(v) for v in old], [bool(v) for v in after])
            counts = {"gained": found.gained, "lost": found.lost}
            # The page's filters compare with the first run.
            linked = before is runs[0]
            cells += [
                Link(str(n), {"verdict": v}) if linked and n else str(n) for v, n in counts.items()
            ]
            cells.append(f"{found.p:.3g}")
        rows.append(tuple(cells))
    head = ("test-suite execution, paired", "difference")
    mcnemar = ("gained", "lost", "McNemar's exact p") if greedy else ()
    return Table("", (*head, *mcnemar), tuple(rows))


# The text of cells


def names(runs: Sequence[Evaluated]) -> list[str]:
    """The heads of columns that show one run each."""
    return [run.name for run in runs] if len(runs) > 1 else ["this model"]


def roles(runs: Sequence[Evaluated]) -> list[str]:
    """The names of runs with the parts that they play in a comparison."""
    if len(runs) == 1:
        return [runs[0].name]
    first, *between, last = (run.name for run in runs)
    return [f"{first} (base)", *between, f"{last} (trained)"]


def count(number: int, total: int) -> str:
    """A count with its share."""
    return f"{number} ({number / total:.1%})" if total else str(number)


def bounds(low: float, high: float, form: str = ".3f") -> str:
    """An interval in brackets."""
    return f"[{low:{form}}, {high:{form}}]"


def interval(found: Mapping[str, Any]) -> str:
    """A mean of report.json with its clustered interval."""
    return f"{found['mean']:.3f} {bounds(found['low'], found['high'])}"


def signed(found: stats.Estimate) -> str:
    """A difference with its interval."""
    return f"{found.mean:+.3f} {bounds(found.low, found.high, '+.3f')}"


def readable(text: str, limit: int = 20_000) -> str:
    """Text of a model or a database as it can be written and does not deceive: cut after `limit`
    characters, with control characters, marks that turn the direction of writing, and halves of
    surrogate pairs as escapes (`\\x00`, `\\u202e`, `\\udcff`).
    """
    shown = _UNSEEN.sub(lambda m: m[0].encode("unicode_escape").decode("ascii"), text[:limit])
    left = len(text) - limit
    return f"{shown} … ({left:,} more characters)" if left > 0 else shown
