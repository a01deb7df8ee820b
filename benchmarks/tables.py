"""Markdown tables out of the measurements of one part. No number here is made: all are read.

Times are medians over the rounds; a ratio is TRL's median over ours.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Run = Mapping[str, Any]


def page(report: Mapping[str, Any]) -> str:
    """The whole page of one part: what was run on what, the tables, and what was compared."""
    machine, work = report["machine"], report["settings"]
    about = (
        f"{machine['cpu']}, {machine['threads']} threads, {machine['device']}; "
        f"{_versions(machine)}; commit {machine['commit']}; "
        f"{work['model']}, {work['data']}; median of {rounds(report)} interleaved rounds; "
        f"load before a run at most {max(r['load_before'] for r in report['runs']):.1f}."
    )
    maker = {
        "rollout": _rollout, "update": _update, "step": _step, "evaluate": _rows, "sft": _rows,
        "growth": _growth,
    }[report["part"]]  # fmt: skip
    parts = [f"## {TITLES[report['part']]}", about, maker(report)]
    if report["comparisons"]:
        parts.append(_comparisons(report["comparisons"]))
    return "\n\n".join(parts) + "\n"


TITLES = {
    "rollout": "Rollouts",
    "update": "Update: loss and backward pass",
    "step": "A whole GRPO step",
    "evaluate": "Greedy evaluation",
    "sft": "Warm start",
    "growth": "How the cost grows",
}


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|--:" * (len(head) - 1) + "|"]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines)


def median(runs: Iterable[Run], phase: str, kind: str = "seconds") -> float:
    """The median of a phase; 0 where a side has no such phase."""
    return statistics.median(run[kind].get(phase, 0.0) for run in runs)


def sides(report: Mapping[str, Any]) -> Iterable[tuple[str, list[Run], list[Run]]]:
    """(precision, runs of ours, runs of TRL's) in the order of the measurements."""
    whole = [r for r in report["runs"] if r["job"]["micro"] == report["settings"]["micro"]]
    for precision in dict.fromkeys(r["job"]["precision"] for r in whole):
        of = [r for r in whole if r["job"]["precision"] == precision]
        ours, trl = ([r for r in of if r["job"]["side"] == side] for side in ("ours", "trl"))
        if ours and trl:
            yield precision, ours, trl


def _phases(report: Mapping[str, Any], total: str, phases: Sequence[str]) -> str:
    """Seconds by phase of both sides, and their ratio; what no phase covers is the rest."""
    blocks = []
    for precision, ours, trl in sides(report):
        rows: list[list[object]] = []
        left = [median(ours, total), median(trl, total)]
        for phase in phases:
            pair = [median(ours, phase), median(trl, phase)]
            left = [a - b for a, b in zip(left, pair, strict=True)]
            rows.append([phase, *_pair(*pair)])
        # SQL runs beside the rest on our side, and in it on TRL's.
        rows.append(["all else", *(f"{max(0.0, x):.2f}" for x in left), ""])
        rows.append([f"**{total}**", *_pair(median(ours, total), median(trl, total))])
        cpu = [median(runs, total, "cpu_seconds") for runs in (ours, trl)]
        if all(cpu):
            rows.append(["CPU seconds", *_pair(*cpu)])
        rows.append(["peak memory, GiB", *_pair(*(peak(r) for r in (ours, trl)))])
        blocks.append(table([precision, "ours, s", "TRL, s", "ratio"], rows))
        blocks.append(_tokens(ours, trl))
    return "\n\n".join(blocks)


def _rollout(report: Mapping[str, Any]) -> str:
    return _phases(report, "rollout", ["prefill", "decode", "sql"])


def _update(report: Mapping[str, Any]) -> str:
    return _phases(report, "update", [])


def _step(report: Mapping[str, Any]) -> str:
    return _phases(report, "step", ["prefill", "decode", "sql", "reward", "update", "optimiser"])


def _tokens(ours: list[Run], trl: list[Run]) -> str:
    """How many tokens each side computed, beside those that are distinct."""
    phases = [p for p in ("prefill", "decode", "forward") if p in trl[0]["tokens"]]
    rows = [[p, ours[0]["tokens"].get(p, 0), trl[0]["tokens"][p]] for p in phases]
    run = ours[0]
    mean = run["all_tokens"] / run["rows"]
    note = (
        f"{run['rows']} rows of {mean:.0f} tokens on average: {run['all_tokens']} tokens, "
        f"{run['distinct_tokens']} of them distinct "
        f"({run['all_tokens'] / run['distinct_tokens']:.1f} to 1)."
    )
    return table(["tokens computed", "ours", "TRL"], rows) + "\n\n" + note


def _rows(report: Mapping[str, Any]) -> str:
    total = "rollout" if report["part"] == "evaluate" else "update"
    rows: list[list[object]] = []
    notes = []
    for precision, ours, trl in sides(report):
        speeds = [r[0]["rows"] / median(r, total) for r in (ours, trl)]
        rows.append([f"{precision}, rows a second", f"{speeds[0]:.2f}", f"{speeds[1]:.2f}",
                     f"{speeds[0] / speeds[1]:.2f}"])  # fmt: skip
        rows.append([f"{precision}, peak GiB", *_pair(*(peak(r) for r in (ours, trl)))])
        notes.append(f"{precision}:\n\n{_tokens(ours, trl)}")
    other = "plain generate" if report["part"] == "evaluate" else "TRL"
    return table(["", "ours", other, "ratio"], rows) + "\n\n" + "\n\n".join(notes)


def _growth(report: Mapping[str, Any]) -> str:
    """Seconds of one prompt's rollouts and update by prompt length, group size and turns."""
    points: dict[tuple[int, int, int], dict[str, list[Run]]] = {}
    for run in report["runs"]:
        job = run["job"]
        point = points.setdefault((job["prompt_tokens"], job["group"], job["turns"]), {})
        point.setdefault(job["side"], []).append(run)
    rows = []
    for (length, group, turns), found in points.items():
        ours, trl = found.get("ours"), found.get("trl")
        if not ours or not trl:
            continue
        run = ours[0]
        seconds = [median(r, p) for p in ("rollout", "update") for r in (ours, trl)]
        rows.append([
            f"{length} x {group}, {turns}", run["distinct_tokens"], run["all_tokens"],
            f"{run['all_tokens'] / run['distinct_tokens']:.1f}",
            *(f"{s:.2f}" for s in seconds[:2]), f"{seconds[1] / seconds[0]:.1f}",
            *(f"{s:.2f}" for s in seconds[2:]), f"{seconds[3] / seconds[2]:.1f}",
        ])  # fmt: skip
    return table(
        ["prompt x group, turns", "distinct tokens", "all tokens", "all / distinct",
         "rollouts: ours, s", "TRL, s", "ratio", "update: ours, s", "TRL, s", "ratio"],
        rows,
    )  # fmt: skip


def _comparisons(found: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [c["name"], f"{c['loss']:.1e}", f"{c['nll']:.1e}", f"{1 - c['lowest_cosine']:.1e}",
         f"{c['relative_difference']:.1e}"]
        for c in found
    ]  # fmt: skip
    return table(
        ["compared with TRL", "loss, absolute", "negative log-likelihood, relative",
         "1 - lowest cosine of a parameter's gradient", "gradient, relative"],
        rows,
    )  # fmt: skip


def _pair(ours: float, trl: float) -> list[str]:
    return [f"{ours:.2f}", f"{trl:.2f}", f"{trl / ours:.2f}" if ours else ""]


def peak(runs: list[Run]) -> float:
    """The median peak memory of a side's runs, in GiB."""
    return statistics.median(r["peak_bytes"] for r in runs) / 2**30


def rounds(report: Mapping[str, Any]) -> int:
    """How often each side ran."""
    return max(r["round"] for r in report["runs"]) + 1


def _versions(machine: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
