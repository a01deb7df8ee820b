"""The tables of the Spider result are computed from its small files, and README has them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_evaluations import rollout, rollouts, write_evaluation
from fakes import ROOT

from nl2sql_trl import runs, stats

sys.path.insert(0, str(ROOT / "scripts"))

import spider_result

COMMITTED = ROOT / "results" / "spider_smollm2"
GREEDY = {"base": "00000000", "sft_retry": "10010000", "grpo_0": "11010010", "grpo_1": "10011000"}
MACHINE = {"cpu": "a processor", "cpus": 2}
COST = {"seconds": 1800.0, "peak_bytes": 2**31} | MACHINE
METRICS = {"reward": 0.2, "seconds/steps": 1800.0, "memory/peak_bytes": 2**30}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Run folders of four stages, evaluated; the base model was not sampled."""
    for stage, verdicts in GREEDY.items():
        out = write_evaluation(
            tmp_path / "runs" / "evaluation" / stage, rollouts(verdicts), cost=COST
        )
        (out / "predictions.sql").write_text("SELECT 1\n" * 8, encoding="utf-8")
        if stage != "base":
            # The first six questions are sampled twice: the first sample is as the greedy answer,
            # the second is right, and the vote takes it.
            rows = [
                rollout(at, right, picked=picked)
                for at, verdict in enumerate(verdicts[:6])
                for right, picked in ((verdict == "1", False), (True, True))
            ]
            drawn = tmp_path / "runs" / "evaluation" / f"{stage}_sampled"
            runs.append_jsonl(drawn / "samples.jsonl", rows)
            runs.write_json(drawn / "report.json", {"more": {}, "cost": COST})
            metrics = [
                METRICS | {"step": n + 1, "loss": 0.1, "memory/peak_bytes": 2**30 * (n + 1)}
                for n in range(4)
            ]
            runs.append_jsonl(tmp_path / "runs" / stage / "metrics.jsonl", metrics)
            manifest = {"command": [f"{ROOT}/nl2sql_trl/sft.py"]} | MACHINE
            runs.write_json(tmp_path / "runs" / stage / "manifest.json", manifest)
    return tmp_path


@pytest.fixture
def block(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """All tables, after `table` wrote a README of its own."""
    readme = folder / "README.md"
    readme.write_text(f"before\n{''.join(spider_result.MARKS)}after\n", encoding="utf-8")
    monkeypatch.setattr(spider_result, "README", readme)
    arguments = ["table", "--runs", str(folder / "runs"), "--out", str(folder / "out")]
    assert spider_result.main(arguments) == 0
    return spider_result.tables(folder / "out")


def test_readme_gets_the_block_between_its_marks_and_once(block: str, folder: Path) -> None:
    readme = folder / "README.md"
    start, end = spider_result.MARKS
    head = spider_result.headline(folder / "out")
    assert block.startswith(head)
    assert readme.read_text(encoding="utf-8") == f"before\n{start}{head}{end}after\n"
    spider_result.write(folder / "out")
    assert readme.read_text(encoding="utf-8") == f"before\n{start}{head}{end}after\n"


def test_the_tables_hold_what_the_rows_give(block: str) -> None:
    databases = ["music"] * 4 + ["shops"] * 4
    warm, grpo = ([float(v) for v in GREEDY[s]] for s in ("sft_retry", "grpo_0"))
    assert f"| GRPO, seed 0 | {stats.mean(grpo, databases)} |" in block
    # Half of the samples repeat the greedy verdict, the others are right, and so is the vote.
    assert f"| {stats.mean([(1 + v) / 2 for v in grpo[:6]], databases[:6])} | 1.000 " in block
    before, after = ([v / 2 for v in values[:6]] for values in (warm, grpo))
    sampled = stats.paired_difference(before, after, databases[:6])
    assert f"| {sampled.mean:+.3f} [{sampled.low:+.3f}, {sampled.high:+.3f}] |" in block
    assert "the last two columns are of 6 of them" in block
    assert "| sampling of warm start |  | 0.50 | 2.0 GiB | 2 x a processor |" in block
    change = stats.paired_difference(warm, grpo, databases)
    assert f"| {change.mean:+.3f} [{change.low:+.3f}, {change.high:+.3f}] |" in block
    assert "| 2.00 |" in block  # four right where two were
    assert "| base | 0.000 [0.000, 0.000] |" in block
    assert "not sampled" in block
    assert "| no answer | 2 | 1 | 1 | 0 |" in block
    assert "| none: it was right | 2 | 2 (100.0%) | 2 (100.0%) |" in block
    assert "| no answer | 1 | 0 (0.0%) | 1 (100.0%) |" in block
    assert "| warm start | 4 | 2.00 | 4.0 GiB | 2 x a processor |" in block
    assert "| evaluation of base |  | 0.50 | 2.0 GiB | 2 x a processor |" in block


def test_without_an_evaluation_nothing_is_written_over(
    block: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder / "out" / "tables.md").read_bytes()
    arguments = ["table", "--runs", str(folder / "nosuch"), "--out", str(folder / "out")]
    assert spider_result.main(arguments) == 2
    assert "evaluate first" in capsys.readouterr().err
    assert (folder / "out" / "tables.md").read_bytes() == before


def test_a_stage_that_is_no_more_leaves_the_tables(block: str, folder: Path) -> None:
    assert "GRPO, seed 1" in block
    shutil.rmtree(folder / "runs" / "evaluation" / "grpo_1")
    arguments = ["table", "--runs", str(folder / "runs"), "--out", str(folder / "out")]
    assert spider_result.main(arguments) == 0
    assert "GRPO, seed 1" not in (folder / "out" / "tables.md").read_text(encoding="utf-8")


def test_a_model_that_was_trained_again_is_evaluated_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        asked.append(command[command.index("--out") + 1])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(spider_result.subprocess, "run", run)
    for stage in ("sft_retry", "grpo_0", "grpo_1"):
        model = folder / "runs" / stage / "model" / "model.safetensors"
        model.parent.mkdir()
        model.touch()
        later = model.stat().st_mtime + (100 if stage == "grpo_0" else -100)
        os.utime(model, (later, later))
        os.utime(folder / "runs" / "evaluation" / stage / "report.json")
    spider_result.evaluate(folder / "runs", "data")
    assert sorted(Path(out).name for out in asked) == ["grpo_0", "grpo_0_sampled"]


def test_an_evaluation_that_fails_ends_the_command_and_names_its_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(folder / "runs" / "evaluation" / "base")

    def run(command: list[str], stdout: Any, **_: Any) -> subprocess.CompletedProcess[bytes]:
        stdout.write("what was wrong")
        return subprocess.CompletedProcess(command, 2)

    monkeypatch.setattr(spider_result.subprocess, "run", run)
    with pytest.raises(SystemExit) as stopped:
        spider_result.evaluate(folder / "runs", "data")
    log = folder / "runs" / "evaluation" / "base.log"
    assert stopped.value.code == f"error: an evaluation failed: see {log}"
    assert log.read_text(encoding="utf-8") == "what was wrong"


def test_right_on_one_database_and_wrong_on_its_suite_is_an_accident() -> None:
    rows = rollouts("11110000")
    rows[0]["scores"]["testsuite_exec"] = False
    lines = spider_result._lines(rows, [])
    stage = spider_result.Stage("one", {k: [str(line[k]) for line in lines] for k in lines[0]})
    assert spider_result._profile(stage)[-1] == "1 of 4 (25.0%)"


def test_a_cause_with_commas_is_read_back_whole(tmp_path: Path) -> None:
    rows = rollouts("0")
    rows[0]["failure"]["cause"] = "ran a query, saw rows, still wrong"
    spider_result._write_csv(tmp_path / "base" / "rows.csv", spider_result._lines(rows, []))
    found = spider_result.read(tmp_path)["base"]
    assert found.columns["cause"] == ["ran a query, saw rows, still wrong"]
    assert found.columns["voted"] == [""]  # not sampled


def test_what_is_kept_is_small_and_names_no_folder_of_this_machine(
    block: str, folder: Path
) -> None:
    kept = [path for path in (folder / "out").rglob("*") if path.is_file()]
    assert {path.name for path in kept} == {
        "accuracy.png", "manifest.json", "metrics.jsonl", "predictions.sql", "report.json",
        "report.md", "reward_curve.png", "rows.csv", "tables.md",
    }  # fmt: skip
    for path in kept:
        if path.suffix != ".png":
            assert str(ROOT) not in path.read_text(encoding="utf-8"), path
    manifest = json.loads(
        (folder / "out" / "sft_retry" / "manifest.json").read_text(encoding="utf-8")
    )
    assert manifest["command"] == ["nl2sql_trl/sft.py"]


def committed() -> list[Any]:
    return sorted(path.parent for path in COMMITTED.glob("*/rows.csv"))


@pytest.mark.skipif(not committed(), reason="no result is committed yet")
def test_every_number_of_readmes_spider_tables_comes_from_the_committed_files() -> None:
    start, end = spider_result.MARKS
    found = (ROOT / "README.md").read_text(encoding="utf-8").partition(start)[2].partition(end)[0]
    assert found == spider_result.headline(COMMITTED)
    tables = (COMMITTED / "tables.md").read_text(encoding="utf-8")
    assert tables == spider_result.tables(COMMITTED)


@pytest.mark.parametrize("stage", committed(), ids=lambda path: str(path.name))
def test_a_committed_report_has_the_means_of_its_rows(stage: Path) -> None:
    report = json.loads((stage / "report.json").read_text(encoding="utf-8"))
    rows = spider_result.read(COMMITTED)[stage.name]
    for metric, levels in report["metrics"].items():
        assert levels["all"]["mean"] == pytest.approx(
            sum(rows.values(metric).values()) / levels["all"]["rows"]
        ), metric
    if "more" in report:
        for name, column in (("mean", "samples"), ("self_consistency", "voted")):
            found = report["more"][name]
            mean = found["testsuite_exec"]["mean"] if name == "mean" else found["mean"]
            values = rows.values(column).values()
            assert mean == pytest.approx(sum(values) / len(values))
