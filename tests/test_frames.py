"""Runs as DataFrames, and what flipped between two evaluations."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fake_evaluations import rollout, rollouts, write_evaluation

from nl2sql_trl import frames, runs
from nl2sql_trl.frames import Run, compare
from nl2sql_trl.report_tables import Link, Table, headline
from nl2sql_trl.shown import show_table
from nl2sql_trl.viewer import show_row

HOSTILE = "</td></table><script>alert(1)</script>"


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A training run of two steps, two trajectories a step."""
    folder = tmp_path / "runs" / "grpo"
    metrics = [{"step": n, "loss": 0.0, "reward": n / 4} for n in (1, 2)]
    runs.append_jsonl(folder / "metrics.jsonl", metrics)
    evaluated = {"db_id", "gold", "hardness", "scores", "failure", "detectors"}
    kept = [
        {"step": step} | {k: v for k, v in row.items() if k not in evaluated}
        for step in (1, 2)
        for row in (rollout(0, True), rollout(1, False))
    ]
    runs.append_jsonl(folder / "trajectories.jsonl", kept)
    return folder


def evaluated(folder: Path, verdicts: str, model: str = "") -> Path:
    return write_evaluation(folder, rollouts(verdicts), settings={"model": model, "seed": 0})


def test_metrics_have_a_row_a_step(trained: Path) -> None:
    assert Run(trained).metrics.to_dict("list") == {
        "step": [1, 2],
        "loss": [0.0, 0.0],
        "reward": [0.25, 0.5],
    }


def test_trajectories_of_training_have_a_row_each_with_their_step(trained: Path) -> None:
    frame = Run(trained).trajectories
    assert list(frame["step"]) == [1, 1, 2, 2]
    first = frame.iloc[0]
    assert (first["key"], first["correct"], first["reason"]) == ("dev:0", True, "correct")
    assert (first["calls"], first["turns"], first["malformed_calls"]) == (1, 2, 0)
    assert (first["sampled_tokens"], first["tool_tokens"]) == (49, 20)
    assert not {"gold", "hardness", "sampled"} & set(frame.columns)


def test_a_row_of_the_frame_is_a_stored_one_that_can_be_shown(trained: Path) -> None:
    run = Run(trained)
    assert [row["key"] for row in run.rows] == list(run.trajectories["key"])
    assert "thinking 0" in show_row(run.rows[0]).html


def test_trajectories_of_an_evaluation_are_the_greedy_ones_and_then_the_sampled(
    tmp_path: Path,
) -> None:
    folder = evaluated(tmp_path / "dev", "10")
    runs.append_jsonl(folder / "samples.jsonl", [rollout(n // 2, n > 0) for n in range(4)])
    frame = Run(folder).trajectories
    assert list(frame["sampled"]) == [False, False, True, True, True, True]
    assert list(frame["testsuite_exec"]) == [True, False, False, True, True, True]
    assert list(frame["cause"].fillna("")) == ["", "not executable", "no answer", "", "", ""]


def test_predictions_have_a_row_a_question_with_every_verdict_and_the_cause(
    tmp_path: Path,
) -> None:
    folder = evaluated(tmp_path / "dev", "0110")
    runs.append_jsonl(folder / "samples.jsonl", [rollout(n // 2, n > 0) for n in range(8)])
    frame = Run(folder).predictions
    assert list(frame["key"]) == [f"dev:{n}" for n in range(4)]
    assert list(frame["testsuite_exec"]) == [False, True, True, False]
    assert list(frame["execution_accuracy"]) == [False, True, True, False]
    assert list(frame["sampled_testsuite_exec"]) == [0.5, 1, 1, 1]
    assert list(frame["cause"].fillna("")) == ["no answer", "", "", "wrong rows"]
    assert frame["answer"].isna().tolist() == [True, False, False, False]
    assert {"gold", "hardness", "db_id", "exact_match", "legacy_exec"} <= set(frame.columns)


def test_with_several_answers_a_question_a_verdict_is_the_share_of_right_ones(
    tmp_path: Path,
) -> None:
    rows = [rollout(n // 2, n % 2 == 0) for n in range(4)]
    frame = Run(write_evaluation(tmp_path / "dev", rows, samples=2)).predictions
    assert list(frame["testsuite_exec"]) == [0.5, 0.5]


@pytest.mark.parametrize("place", ["grpo/evaluation/dev", "grpo/dev", "evaluation/grpo", "dev"])
def test_predictions_of_a_training_run_are_those_of_the_evaluation_beside_it(
    place: str, trained: Path
) -> None:
    evaluated(trained.parent / place, "10", f"elsewhere/{trained.name}/model")
    evaluated(trained.parent / "evaluation" / "base", "00", "smollm2-135m")
    assert list(Run(trained).predictions["testsuite_exec"]) == [True, False]


def test_a_training_run_that_was_not_evaluated_says_how_to(trained: Path) -> None:
    evaluated(trained.parent / "evaluation" / "base", "00", "smollm2-135m")
    with pytest.raises(FileNotFoundError, match=r"evaluate --model .*grpo/model --out"):
        _ = Run(trained).predictions


def test_a_training_run_evaluated_twice_names_both(trained: Path) -> None:
    for name in ("dev", "again"):
        evaluated(trained / name, "10", str(trained / "model"))
    with pytest.raises(ValueError, match=r"more than once: open one of .*again, .*dev"):
        _ = Run(trained).predictions


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        Run(tmp_path / "none")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("metrics", r"there is no .*metrics\.jsonl: train and sft write it"),
        ("trajectories", r"there is no .*trajectories\.jsonl: train writes it"),
        ("rows", r"there is no .*trajectories\.jsonl: train writes it"),
        ("predictions", r"python -m nl2sql_trl\.evaluate"),
    ],
)
def test_a_missing_file_is_named_with_what_writes_it(asked: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=says):
        getattr(Run(tmp_path), asked)


def test_a_cut_last_line_is_left_out(trained: Path) -> None:
    for name in ("metrics.jsonl", "trajectories.jsonl"):
        with (trained / name).open("a") as file:
            file.write('{"step": 3, "rewa')
    assert len(Run(trained).metrics) == 2
    assert len(Run(trained).trajectories) == 4


def test_a_run_that_goes_on_shows_what_it_has_by_then(trained: Path) -> None:
    run = Run(trained)
    before = len(run.metrics)
    runs.append_jsonl(trained / "metrics.jsonl", [{"step": 3, "reward": 1.0}])
    assert (before, len(run.metrics)) == (2, 3)


# What flipped


def test_what_flipped_is_counted_with_the_paired_difference_and_mcnemars_test(
    tmp_path: Path,
) -> None:
    found = compare(evaluated(tmp_path / "a", "11000000"), evaluated(tmp_path / "b", "01111000"))
    assert [row["key"] for row, _ in found.gained] == ["dev:2", "dev:3", "dev:4"]
    assert [row["key"] for row, _ in found.lost] == ["dev:0"]
    assert found.difference.mean == pytest.approx(2 / 8)
    assert found.mcnemar is not None
    assert (found.mcnemar.gained, found.mcnemar.lost) == (3, 1)
    assert found.mcnemar.p == pytest.approx(2 * (1 + 4) / 16)
    said = "b against a, test-suite execution, 8 questions: 3 gained, 1 lost, difference +0.250"
    assert repr(found).startswith(said)


def test_the_frame_of_a_comparison_has_both_answers_of_each_flip(tmp_path: Path) -> None:
    found = compare(evaluated(tmp_path / "a", "100"), evaluated(tmp_path / "b", "010"))
    frame = found.frame
    assert list(frame["flip"]) == ["gained", "lost"]
    assert list(frame["answer_before"]) == ["SELECT wrong_1", frame["gold"][1]]
    assert list(frame["reason_after"]) == ["correct", "wrong_rows"]


def test_nothing_flipped_is_an_empty_frame_and_a_line(tmp_path: Path) -> None:
    found = compare(evaluated(tmp_path / "a", "10"), evaluated(tmp_path / "b", "10"))
    assert found.frame.empty
    assert "flip" in found.frame.columns
    assert "0 gained, 0 lost" in found._repr_html_()
    assert "<table" not in found._repr_html_()


def test_another_metric_is_compared_by_its_own_verdicts(tmp_path: Path) -> None:
    rows = rollouts("00")
    rows[1]["scores"]["exact_match"] = True
    after = write_evaluation(tmp_path / "b", rows)
    before = evaluated(tmp_path / "a", "00")
    assert len(compare(before, after).gained) == 0
    assert len(compare(before, after, "exact_match").gained) == 1


def test_a_question_with_several_samples_flips_as_its_share_moves(tmp_path: Path) -> None:
    before, after = (
        write_evaluation(
            tmp_path / name, [rollout(n // 2, v == "1") for n, v in enumerate(v)], samples=2
        )
        for name, v in (("a", "1001"), ("b", "1101"))
    )
    found = compare(before, after)
    assert (len(found.gained), len(found.lost), found.mcnemar) == (1, 0, None)


def test_a_training_run_is_compared_by_its_evaluation(trained: Path, tmp_path: Path) -> None:
    evaluated(trained.parent / "evaluation" / "grpo", "11", str(trained / "model"))
    found = compare(evaluated(tmp_path / "base", "01"), Run(trained))
    assert (found.before, found.after, len(found.gained)) == ("base", "grpo", 1)


def test_evaluations_of_other_questions_are_refused_with_what_differs(tmp_path: Path) -> None:
    before = evaluated(tmp_path / "a", "10")
    with pytest.raises(ValueError, match="a has 2 rows and b 3: evaluate both on the same rows"):
        compare(before, evaluated(tmp_path / "b", "100"))
    other = write_evaluation(tmp_path / "c", [rollout(0, True), rollout(1, True, gold="SELECT 1")])
    with pytest.raises(ValueError, match="row 2 differs in gold"):
        compare(before, other)


def test_a_metric_that_there_is_not_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no metric 'speed': take one of testsuite_exec"):
        compare(tmp_path, tmp_path, "speed")


def test_evaluations_under_names_of_ones_own_keep_them_in_the_reports_tables(
    tmp_path: Path,
) -> None:
    folders = {"before": evaluated(tmp_path / "a", "10"), "after": evaluated(tmp_path / "b", "11")}
    found = frames.evaluations(folders)
    text = Page(show_table(headline(found)[0]).html).text
    assert "before (base)" in text
    assert "after (trained)" in text
    assert "+0.500" in text
    assert compare(*found).before == "before"


@pytest.mark.parametrize("cell", [HOSTILE, Link(HOSTILE, {}), (Link(HOSTILE, {}),)])
def test_a_table_of_the_report_is_shown_with_its_note_and_no_markup_of_its_texts(
    cell: Any,
) -> None:
    found = Page(show_table(Table("Why it fails", ("cause", "n"), ((cell, "3"),), HOSTILE)).html)
    assert found.tags <= {"div", "table", "tr", "th", "td"}
    assert found.text.count(HOSTILE) == 2
    assert "Why it fails" in found.text


class Page(HTMLParser):
    """The tags, attributes and text of a piece of HTML."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>alert(1)</script>",
        "</td></table><h1>out</h1>",
        '" onmouseover="alert(1)',
        "<img src=x onerror=alert(1)>",
        "<!--",
    ],
)
def test_hostile_text_in_a_flip_is_shown_and_is_no_markup(hostile: str, tmp_path: Path) -> None:
    changes = {"question": hostile, "gold": hostile, "db_id": hostile, "hardness": "easy"}
    before = write_evaluation(tmp_path / "a", [rollout(1, False, answer=hostile, **changes)])
    after = write_evaluation(tmp_path / "b", [rollout(1, True, answer=hostile, **changes)])
    found = Page(compare(before, after)._repr_html_())
    assert found.tags <= {
        "div", "pre", "span", "b", "i", "table", "thead", "tbody", "tr", "th", "td",
    }  # fmt: skip
    assert found.attributes <= {"class", "style"}
    assert found.text.count(hostile) == 5


def test_text_that_turns_around_or_is_no_unicode_can_be_saved(tmp_path: Path) -> None:
    text = "SELECT '\u202e' -- \udcff"
    before = write_evaluation(tmp_path / "a", [rollout(1, False, answer=text)])
    html = compare(before, evaluated_like(tmp_path / "b", text))._repr_html_()
    html.encode("utf-8")
    assert "\u202e" not in html
    assert "\\u202e" in html


def evaluated_like(folder: Path, answer: str) -> Path:
    return write_evaluation(folder, [rollout(1, True, answer=answer)])


def test_importing_it_loads_neither_pandas_nor_torch() -> None:
    heavy = ["torch", "transformers", "pandas", "matplotlib", "IPython"]
    script = f"import sys, nl2sql_trl.frames; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_run_that_moved_with_its_evaluations_still_finds_its_own(trained: Path) -> None:
    evaluated(trained.parent / "evaluation" / "grpo", "10", str(trained / "model"))
    moved = trained.parent.with_name("moved")
    shutil.move(trained.parent, moved)
    assert json.loads((moved / "evaluation/grpo/report.json").read_text())["settings"]["model"]
    assert len(Run(moved / "grpo").predictions) == 2
