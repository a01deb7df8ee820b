"""The curves of a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nl2sql_trl import display, runs
from nl2sql_trl.curves import smooth


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


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """A run directory with these metrics."""
    runs.append_jsonl(folder / "metrics.jsonl", rows)
    return folder


def panel(figure: Any, title: str) -> Any:
    """The axes with this title."""
    return next(axis for axis in figure.axes if axis.get_title(loc="left") == title)


def data(line: Any) -> dict[float, float]:
    """A drawn line: value by step."""
    pairs = zip(line.get_xdata(), line.get_ydata(), strict=True)
    return {step: round(value, 6) for step, value in pairs}


def legend(figure: Any) -> list[str]:
    """What the legend of the names says, its title first."""
    (found,) = figure.legends
    return [found.get_title().get_text(), *(text.get_text() for text in found.get_texts())]


def test_a_curve_of_a_metrics_file_has_its_lines_with_labels_and_axes_with_names(
    tmp_path: Path,
) -> None:
    figure = display.reward_curve(write(tmp_path, metrics(5)), title="a run")
    reward = panel(figure, "Training reward")
    assert data(reward.lines[0]) == {1: 0.2, 2: 0.4, 3: 0.6, 4: 0.8, 5: 1.0}
    assert len(reward.collections) == 1, "the band"
    assert len(figure.axes) == 6
    for axis in figure.axes:
        assert axis.get_ylabel()
        assert axis.get_title(loc="left")
        assert axis.lines


def test_kl_has_a_panel_where_a_run_logs_it_and_only_there(tmp_path: Path) -> None:
    plain = display.reward_curve(write(tmp_path / "plain", metrics(3)))
    assert "KL to the reference" not in [a.get_title(loc="left") for a in plain.axes]
    rows = [row | {"kl": 0.01 * row["step"]} for row in metrics(3)]
    with_kl = panel(display.reward_curve(write(tmp_path / "kl", rows)), "KL to the reference")
    assert data(with_kl.lines[0]) == {1: 0.01, 2: 0.02, 3: 0.03}


def test_runs_over_each_other_have_the_ends_of_their_paths_for_names_and_a_colour_each(
    tmp_path: Path,
) -> None:
    dirs = [write(tmp_path / name / "grpo", metrics(4)) for name in ("a", "b")]
    figure = display.reward_curve(dirs)
    assert legend(figure)[1:] == ["a/grpo", "b/grpo"]
    colours = {line.get_color() for line in panel(figure, "Training reward").lines}
    assert len(colours) == 2


def test_smoothing_keeps_a_line_where_it_is_and_a_jump_within_its_ends() -> None:
    ramp = [float(n) for n in range(101)]
    assert smooth(ramp)[30:70] == pytest.approx(ramp[30:70], abs=1e-3)
    jump = smooth([0.0] * 5 + [1.0] * 5)
    assert jump == sorted(jump)
    assert 0 < jump[0] < jump[-1] < 1
    assert smooth([0.5]) == [0.5]


def test_seeds_under_one_name_are_drawn_as_their_mean_with_a_band_from_lowest_to_highest(
    tmp_path: Path,
) -> None:
    low, high = (
        write(tmp_path / str(r), [row | {"reward": r} for row in metrics(4)]) for r in (0.2, 0.6)
    )
    figure = display.reward_curve({"with tool": [low, high]})
    reward = panel(figure, "Training reward")
    assert data(reward.lines[0]) == dict.fromkeys((1, 2, 3, 4), 0.4)
    heights = {
        round(y, 6) for path in reward.collections[0].get_paths() for y in path.vertices[:, 1]
    }
    assert {min(heights), max(heights)} == {0.2, 0.6}
    assert "lowest to highest seed" in legend(figure)[0]
    assert legend(figure)[1] == "with tool (2 seeds)"


def test_beyond_the_shortest_seed_there_is_no_mean_but_the_longer_seed_itself(
    tmp_path: Path,
) -> None:
    short, long = (
        write(tmp_path / str(n), [r | {"reward": n / 10} for r in metrics(n)]) for n in (3, 5)
    )
    mean, rest = panel(display.reward_curve({"x": [short, long]}), "Training reward").lines
    assert data(mean) == dict.fromkeys((1, 2, 3), 0.4)
    assert data(rest) == dict.fromkeys((3, 4, 5), 0.5)


def test_seeds_without_a_step_in_common_are_drawn_each(tmp_path: Path) -> None:
    odd = write(tmp_path / "odd", metrics(5)[::2])
    even = write(tmp_path / "even", metrics(5)[1::2])
    lines = panel(display.reward_curve({"x": [odd, even]}), "Training reward").lines
    assert [list(data(line)) for line in lines] == [[], [1, 3, 5], [2, 4]]


@pytest.mark.parametrize("steps", [1, 2])
def test_a_run_too_short_to_smooth_is_drawn_as_points(steps: int, tmp_path: Path) -> None:
    figure = display.reward_curve(write(tmp_path, metrics(steps)))
    assert all(line.get_marker() == "o" for axis in figure.axes for line in axis.lines)
    figure.canvas.draw()
    ticks = panel(figure, "Training reward").get_xticks()
    assert all(tick == int(tick) for tick in ticks), "steps are whole"


def test_what_a_run_did_not_log_is_said(tmp_path: Path) -> None:
    lacking = [{k: v for k, v in row.items() if k != "entropy"} for row in metrics(4)]
    bare, whole = write(tmp_path / "bare", lacking), write(tmp_path / "whole", metrics(4))
    alone = panel(display.reward_curve(bare), "Entropy")
    assert [text.get_text() for text in alone.texts] == ["not logged"]
    assert legend(display.reward_curve([bare, whole]))[1:] == [
        "bare; not logged: Entropy",
        "whole",
    ]
    seeds = display.reward_curve({"x": [bare, whole]})
    assert legend(seeds)[1] == "x (2 seeds; not logged: Entropy (1))"


def test_gaps_nothings_and_a_cut_last_line_are_left_out(tmp_path: Path) -> None:
    rows = metrics(6)
    rows[1]["reward"], rows[3]["reward"] = float("nan"), None
    del rows[4]["reward"]
    folder = write(tmp_path, rows)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "rew')
    reward = panel(display.reward_curve(folder), "Training reward")
    assert list(data(reward.lines[0])) == [1, 3, 6]


def test_evaluations_while_training_stand_in_the_reward_panel(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", metrics(6))
    evaluated = [{"step": n, "eval_loss": 0.0, "eval_reward": n / 10} for n in (3, 6)]
    runs.append_jsonl(folder / "evaluations.jsonl", evaluated)
    reward = panel(display.reward_curve(folder), "Training reward")
    (held_out,) = [line for line in reward.lines if line.get_label() == "held-out questions"]
    assert data(held_out) == {3: 0.3, 6: 0.6}
    both = display.reward_curve([folder, write(tmp_path / "other", metrics(6))])
    assert "Diamonds: held-out questions" in legend(both)[0]


def test_a_warm_start_shows_its_loss_and_token_accuracy(tmp_path: Path) -> None:
    rows = [{"step": n, "loss": 1 / n, "mean_token_accuracy": 0.5} for n in range(1, 5)]
    figure = display.reward_curve(write(tmp_path, rows))
    assert [axis.get_title(loc="left") for axis in figure.axes] == [
        "Loss of the warm start",
        "Token accuracy",
    ]
    assert data(figure.axes[0].lines[0])[4] == 0.25


@pytest.mark.parametrize("name", ["_hidden", "$x^2$", "a$b", "\\frac{"])
def test_a_name_is_shown_as_it_stands(name: str, tmp_path: Path) -> None:
    dirs = {name: write(tmp_path / "a", metrics(3)), "other": write(tmp_path / "b", metrics(3))}
    figure = display.reward_curve(dirs, title=name)
    assert legend(figure)[0].splitlines()[0] == legend(figure)[1] == name
    figure.canvas.draw()


def test_no_legend_lies_over_any_axes(tmp_path: Path) -> None:
    dirs = [write(tmp_path / n, [r | {"kl": 0.1} for r in metrics(9)]) for n in "abcd"]
    for figure in (display.reward_curve(dirs), display.reward_curve(dirs[0])):
        figure.canvas.draw()
        found = [*figure.legends, *(a.get_legend() for a in figure.axes if a.get_legend())]
        assert found
        boxes = [legend.get_window_extent() for legend in found]
        inside = [axis.get_window_extent() for axis in figure.axes]
        assert not [1 for box in boxes for area in inside if box.overlaps(area.padded(-1))]


@pytest.mark.parametrize(
    ("runs_to_draw", "message"),
    [
        ([], "no run"),
        ({}, "no run"),
        ({"empty": []}, "no run to draw for empty"),
        (["a", "./a"], "twice"),
        ({"x": ["a", "a"]}, "twice under x"),
        ([f"r{n}" for n in range(8)], "8 names are more than can be told apart"),
    ],
)
def test_runs_that_make_no_picture_are_refused(runs_to_draw: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        display.reward_curve(runs_to_draw)


def test_of_several_runs_the_one_without_metrics_is_named(tmp_path: Path) -> None:
    good = write(tmp_path / "good", metrics(2))
    with pytest.raises(FileNotFoundError, match=r"no metrics in .*bad"):
        display.reward_curve([good, tmp_path / "bad"])


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


@pytest.mark.parametrize("module", ["display", "curves", "charts"])
def test_importing_it_loads_neither_torch_nor_matplotlib(module: str) -> None:
    heavy = ["torch", "transformers", "matplotlib", "IPython"]
    script = f"import sys, nl2sql_trl.{module}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
