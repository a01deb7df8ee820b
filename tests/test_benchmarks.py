"""The benchmark gives both sides the same work and counts it right. No time is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import ROOT, write_spider_folder

sys.path.insert(0, str(ROOT))  # benchmarks/ is beside the package, not in it

from benchmarks import jobs, summary
from benchmarks.__main__ import differences
from benchmarks.cases import distinct
from benchmarks.jobs import PARTS, Job, processes
from benchmarks.tables import page


@pytest.fixture(scope="module")
def job(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    data = write_spider_folder(tmp_path_factory.mktemp("speed") / "spider")
    return Job("step", "ours", "fp32", str(model_folder), str(data), prompts=2, group=4, micro=4,
               tokens=90, rows=8, quick=True)  # fmt: skip


def run(job: Job) -> dict[str, Any]:
    """A job in this process, without the warm-up."""
    from benchmarks.grpo import measure
    from benchmarks.others import measure_evaluation, measure_warm_start
    from nl2sql_trl.models import load_tokenizer
    from nl2sql_trl.prompts import Codec

    kinds = {"evaluate": measure_evaluation, "sft": measure_warm_start}
    return kinds.get(job.part, measure)(job, Codec(load_tokenizer(job.model)))


def both(job: Job) -> tuple[dict[str, Any], dict[str, Any]]:
    ours, trl = (run(replace(job, side=side)) for side in ("ours", "trl"))
    assert ours["digest"] == trl["digest"]
    return ours, trl


@pytest.fixture(scope="module")
def step(job: Job) -> tuple[dict[str, Any], dict[str, Any]]:
    return both(job)


def test_a_step_of_ours_and_of_trl_has_the_same_tokens_loss_and_likelihood(
    step: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    ours, trl = step
    assert ours["loss"] == pytest.approx(trl["loss"], rel=1e-5, abs=1e-7)
    assert ours["nll"] == pytest.approx(trl["nll"], rel=1e-5)
    assert ours["tool_tokens"] > 0
    assert ours["flat_groups"] == trl["flat_groups"] == 0
    assert ours["rows"] == 8


def test_all_phases_of_a_step_are_measured_on_both_sides(
    step: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    phases = ("prefill", "decode", "sql", "rollout", "reward", "update", "optimiser", "step")
    for side in step:
        assert all(side["seconds"][phase] > 0 for phase in phases)
        parts = ("prefill", "decode", "reward", "update", "optimiser")
        assert sum(side["seconds"][p] for p in parts) < side["seconds"]["step"]
        assert side["peak_bytes"] > 0


def test_ours_computes_about_the_distinct_tokens_and_trl_all_of_them(
    step: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    ours, trl = step
    everything, once = ours["all_tokens"], ours["distinct_tokens"]
    assert everything > 2 * once
    for phases in (("prefill", "decode"), ("forward",)):
        assert sum(ours["tokens"][p] for p in phases) < 1.3 * once
        assert sum(trl["tokens"][p] for p in phases) >= everything - ours["rows"]
    # TRL prefills each row anew in each turn.
    assert trl["tokens"]["prefill"] > 1.9 * ours["prompt_tokens"] * ours["rows"]


def test_without_the_update_no_token_is_pushed_through_it(job: Job) -> None:
    ours, trl = both(replace(job, part="rollout"))
    for side in (ours, trl):
        assert "forward" not in side["tokens"]
        assert side["tokens"]["decode"] > 0


def test_the_update_alone_samples_nothing_and_its_gradients_agree(job: Job, tmp_path: Path) -> None:
    from benchmarks.others import compare

    ours, trl = (tmp_path / "ours", tmp_path / "trl")
    results = [
        run(replace(job, part="update", side=side, gradients=str(tmp_path / side)))
        for side in ("ours", "trl")
    ]
    half = replace(job, part="update", side="trl", micro=2, gradients=str(tmp_path / "half"))
    results.append(run(half))
    assert len({r["digest"] for r in results}) == 1
    assert all(set(r["tokens"]) == {"forward"} for r in results)
    assert compare(ours, trl)["lowest_cosine"] > 0.99999
    assert compare(tmp_path / "half", trl)["lowest_cosine"] > 0.99999
    assert 0 < compare(ours, trl)["relative_difference"] < 1e-3


def test_greedy_evaluation_by_our_engine_and_by_generate_is_the_same(job: Job) -> None:
    ours, generate = both(replace(job, part="evaluate"))
    # Each row answers with its gold.
    assert ours["right"] == generate["right"] == ours["rows"] == 8
    assert sum(ours["tokens"].values()) < sum(generate["tokens"].values()) / 2


def test_the_warm_start_of_both_sides_has_the_same_loss_and_gradients(
    job: Job, tmp_path: Path
) -> None:
    from benchmarks.others import compare

    found = [
        run(replace(job, part="sft", side=side, gradients=str(tmp_path / side)))
        for side in ("ours", "trl")
    ]
    assert found[0]["digest"] == found[1]["digest"]
    assert found[0]["loss"] == pytest.approx(found[1]["loss"], rel=1e-5)
    assert compare(tmp_path / "ours", tmp_path / "trl")["lowest_cosine"] > 0.99999


@pytest.mark.parametrize(
    ("rows", "count"),
    [
        ([], 0),
        ([[1, 2, 3]], 3),
        ([[1, 2, 3], [1, 2, 3]], 3),
        ([[1, 2, 3], [1, 2, 4]], 4),
        ([[1, 2, 3], [1, 2]], 3),
        ([[2, 2], [1, 2], [2, 1], [1]], 5),
    ],
)
def test_distinct_tokens_are_those_of_the_tree_of_all_rows(
    rows: list[list[int]], count: int
) -> None:
    assert distinct(rows) == count


def test_each_round_of_a_part_runs_both_sides_in_turn(job: Job) -> None:
    for part, precisions in PARTS.items():
        asked = list(processes(part, job, ["autocast", "bf16", "fp32"], ""))
        sides = [p.jobs[0].side for p in asked]
        assert sides == ["trl", "ours"] * len(precisions)


def test_growth_changes_one_number_at_a_time() -> None:
    points = jobs.growth(Job("growth", "ours", "autocast"))
    default = (600, 8, 2)
    for point in points:
        numbers = (point.prompt_tokens, point.group, point.turns)
        assert sum(a != b for a, b in zip(numbers, default, strict=True)) <= 1
    assert len(points) == len(set(points)) == 11


def test_other_tokens_on_one_side_are_noticed() -> None:
    runs = [
        {"job": {"precision": "fp32", "prompt_tokens": 1, "group": 2, "turns": 1}, "digest": digest}
        for digest in ("a", "b")
    ]
    assert "other tokens" in differences(runs)[0]
    assert not differences(runs[:1])
    assert "no variance" in differences([runs[0] | {"flat_groups": 1}])[0]


def written(flags: list[str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "benchmarks", *flags]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--only", "speed"], "there is no 'speed'"),
        (["--group", "3"], "--group must be even"),
        (["--rows", "9"], "does not divide"),
        (["--precisions", "int8"], "there is no 'int8'"),
    ],
)
def test_a_wrong_flag_is_told_in_one_line(flags: list[str], words: str) -> None:
    done = written(flags)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.slow
def test_the_command_writes_a_report_with_its_tables(job: Job, tmp_path: Path) -> None:
    flags = ["--quick", "--only", "update,growth", "--model", job.model, "--data", job.data]
    done = written([*flags, "--precisions", "fp32,autocast", "--out", str(tmp_path)])
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "update.json").read_text())
    assert {r["job"]["side"] for r in report["runs"]} == {"ours", "trl"}
    names = [c["name"] for c in report["comparisons"]]
    assert names == [
        "autocast, TRL, with TRL in fp32",
        "autocast, ours",
        "autocast, ours, with TRL in fp32",
        "autocast, TRL in half micro-batches",
        "fp32, ours",
        "fp32, TRL in half micro-batches",
    ]
    for found in report["comparisons"]:
        # In bf16 TRL's own micro-batches differ by as much.
        limit = 1e-5 if found["name"].startswith("fp32") else 1e-1
        assert found["nll"] < limit
        assert 1 - found["lowest_cosine"] < limit
    assert not report["different"]
    text = (tmp_path / "update.md").read_text()
    assert text == page(report)
    assert "| **update** |" in text
    growth = json.loads((tmp_path / "growth.json").read_text())
    # Two prompt lengths, another group size, another number of turns, on two sides.
    assert len(growth["runs"]) == 8
    assert (tmp_path / "growth.md").read_text().count("\n| 300 x") == 3


@pytest.mark.parametrize(
    ("page", "marks", "made"),
    [
        (summary.PAGE, summary.MARKS, summary.summary),
        (summary.README, summary.README_MARKS, summary.headline),
    ],
    ids=["docs", "README"],
)
def test_the_speed_that_is_told_is_made_of_the_committed_results(
    page: Path, marks: tuple[str, str], made: Callable[[Path], str]
) -> None:
    start, end = marks
    told = page.read_text(encoding="utf-8").partition(start)[2].partition(end)[0]
    assert told == made(summary.RESULTS)


@pytest.mark.parametrize("part", PARTS)
def test_a_committed_page_is_made_of_its_measurements(part: str) -> None:
    file = summary.RESULTS / f"{part}.json"
    if not file.is_file():
        pytest.skip(f"{part} was not measured")
    report = json.loads(file.read_text(encoding="utf-8"))
    assert file.with_suffix(".md").read_text(encoding="utf-8") == page(report)
    assert not report["different"]
