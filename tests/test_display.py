"""The curves of a run, and the viewer's HTML."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nl2sql_trl import display, runs
from nl2sql_trl.policy import ByteTokenizer, ScriptedPolicy
from nl2sql_trl.prompts import Codec, answer_text, call_text
from nl2sql_trl.records import Trajectory, Verdict
from nl2sql_trl.rollout import rollout
from nl2sql_trl.task import Task, make_task
from nl2sql_trl.viewer import show

CODEC = Codec(ByteTokenizer())


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task("pocket", "dev", CODEC)


def play(task: Task, *turns: str) -> Trajectory:
    prompt = next(iter(task.prompts.values()))
    return rollout([prompt], ScriptedPolicy([turns], CODEC), task.rollout)[0]


class Tags(HTMLParser):
    """Every tag of a page with its attributes, and the text outside of them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</pre></div><h1>out</h1>",
    "<!-- ",
    '" onmouseover="alert(1)',
    "&lt;script&gt;",
    "<svg/onload=alert(1)>",
    r"$\href{javascript:alert(1)}{x}$",
    "\u202egnirts",
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_anywhere_in_a_trajectory_is_shown_and_is_no_markup(
    hostile: str, task: Task
) -> None:
    literal = hostile.replace("'", "''")
    trajectory = play(
        task,
        hostile + call_text(f"SELECT '{literal}' AS cell"),
        f"<tool_call>{hostile}</tool_call>",
        hostile + answer_text(f"SELECT '{literal}'"),
    )
    found = Tags(show(trajectory, Verdict(False, "wrong_rows", hostile)).html)
    assert {tag for tag, _ in found.tags} <= {"div", "pre"}
    assert {name for _, attributes in found.tags for name in attributes} <= {"class", "style"}
    # Two of the turns' texts, the query, the answer and the verdict's detail.
    assert found.text.count(hostile) >= 5


def test_text_that_is_no_unicode_is_shown_and_can_be_saved(task: Task) -> None:
    html = show(play(task, "hm"), Verdict(False, "not_executable", "near \udcff")).html
    assert "\\udcff" in html.encode("utf-8").decode("utf-8")


def test_the_turns_stand_in_order_with_the_answer_and_the_verdict_last(task: Task) -> None:
    trajectory = play(task, call_text("SELECT 11"), "Now.\n" + answer_text("SELECT 22"))
    text = Tags(show(trajectory, Verdict(True, "correct", "1 rows, gold 1")).html).text
    order = [trajectory.prompt.messages[-1]["content"], "SELECT 11", "[[11]]", "Now.", "correct"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert f"{len(trajectory.turns[1].ids)} tokens, forced" in text


def test_a_refused_call_is_named(task: Task) -> None:
    trajectory = play(task, '<tool_call>{"name": "rm"}</tool_call>', "sorry")
    shown = show(trajectory)
    assert "refused: unknown_tool" in shown.html
    assert "no answer" in shown.html


def test_a_shown_trajectory_is_one_line_where_there_is_no_html(task: Task) -> None:
    shown = show(play(task, answer_text("SELECT 1")), Verdict(False, "wrong_rows"))
    assert repr(shown) == "trajectory dev:0: 0 calls, the model answered, ✗ wrong rows"
    assert shown._repr_html_() == shown.html


def metrics(steps: int) -> list[dict[str, Any]]:
    return [
        {
            "step": n,
            "loss": 0.0,
            "reward": n / steps,
            "frac_reward_zero_std": 0.25,
            "rollout/executable": 0.5,
            "rollout/ran_its_answer": 0.5,
            "rollout/calls": 1.5,
            "completions/mean_length": 60.0,
            "entropy": 0.3,
        }
        for n in range(1, steps + 1)
    ]


def test_a_curve_of_a_metrics_file_has_its_lines_with_labels_and_axes_with_names(
    tmp_path: Path,
) -> None:
    runs.append_jsonl(tmp_path / "metrics.jsonl", metrics(5))
    figure = display.reward_curve(tmp_path, title="a run")
    reward = figure.axes[0]
    assert list(reward.lines[0].get_xdata()) == [1, 2, 3, 4, 5]
    assert list(reward.lines[0].get_ydata()) == [0.2, 0.4, 0.6, 0.8, 1.0]
    for axis in figure.axes:
        assert axis.get_ylabel()
        assert axis.lines
        assert not any(str(line.get_label()).startswith("_") for line in axis.lines)


def test_the_picture_is_saved_in_the_run_directory(tmp_path: Path) -> None:
    runs.append_jsonl(tmp_path / "metrics.jsonl", metrics(1))
    assert display.save_reward_curve(tmp_path).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("make", [False, True], ids=["no folder", "no metrics yet"])
def test_a_run_without_metrics_is_a_clear_error(make: bool, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    if make:
        folder.mkdir()
    with pytest.raises(FileNotFoundError, match=r"no metrics in .*run"):
        display.reward_curve(folder)


class Handle:
    """Stands in for IPython's display handle."""

    def __init__(self) -> None:
        self.updates: list[Any] = []

    def update(self, picture: Any) -> None:
        self.updates.append(picture)


@pytest.mark.parametrize(("every", "pictures"), [(1, 5), (2, 3), (5, 1), (7, 1)])
def test_a_live_curve_updates_one_output_as_steps_are_logged(
    every: int, pictures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import IPython.display

    shown: list[Any] = []
    handle = Handle()

    def fake_display(picture: Any, display_id: bool) -> Handle:
        assert display_id
        shown.append(picture)
        return handle

    monkeypatch.setattr(IPython.display, "display", fake_display)
    curve: Any = display.live_curve(every=every)
    state = SimpleNamespace(log_history=[], global_step=0, max_steps=5, is_world_process_zero=True)
    curve.on_train_begin(None, state, None)
    for row in metrics(5):
        state.log_history.append(row)
        state.global_step = row["step"]
        curve.on_log(None, state, None)
    state.log_history.append({"step": 5, "train_runtime": 1.0})
    curve.on_log(None, state, None)
    curve.on_train_end(None, state, None)
    assert len(shown) == 1
    assert len(shown + handle.updates) == pictures
    assert all(p.data.startswith(b"\x89PNG") for p in shown + handle.updates)


def test_a_live_curve_that_would_never_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        display.live_curve(every=0)


@pytest.mark.parametrize("module", ["display", "viewer"])
def test_importing_it_loads_neither_torch_nor_matplotlib(module: str) -> None:
    heavy = ["torch", "transformers", "matplotlib", "IPython"]
    script = f"import sys, nl2sql_trl.{module}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
