"""Curves of runs: a picture on disk, or redrawn in a notebook while a run goes on.

    reward_curve("runs/demo/grpo")                      # a finished or running run
    reward_curve(["runs/a", "runs/b"])                  # over each other, a colour each
    reward_curve({"tool": ["runs/s0", "runs/s1"], "one turn": "runs/y"})    # seeds under a name
    live_curve(every=1)                                 # a callback that redraws in a notebook

This module finds the runs and their names; `curves.py` draws their metrics, live or saved, with
the same code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql_trl.curves import COLOURS, HELD_OUT, Rows, draw, png
from nl2sql_trl.runs import read_jsonl

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import TrainerCallback

RunDir = str | Path
RunDirs = RunDir | Sequence[RunDir] | Mapping[str, RunDir | Sequence[RunDir]]


def reward_curve(runs: RunDirs, title: str = "") -> Figure:
    """The figure of a run directory, of several, or of named ones; see the module's examples.

    Several directories under one name are seeds: their mean with a band from the lowest to the
    highest one, over the steps that all of them have; what a longer one has beyond is a thin line.
    A single run's band is one standard deviation of its steps around the smoothed line. Diamonds
    are evaluations while it trained. A metric that a run did not log is named as missing.
    Raises FileNotFoundError for a directory without metrics, ValueError for no directory, one
    that stands twice, or more names than colours.
    """
    chosen = _named(runs)
    curves = {name: [_metrics(folder) for folder in dirs] for name, dirs in chosen.items()}
    return draw(curves, title or (str(runs) if isinstance(runs, (str, Path)) else ""))


def save_reward_curve(run_dir: Path) -> Path:
    """Write `reward_curve.png` into the run directory; returns its path."""
    figure = reward_curve(run_dir, title=run_dir.name)
    path = run_dir / "reward_curve.png"
    figure.savefig(path, dpi=130)
    return path


def live_curve(every: int = 1, title: str = "") -> TrainerCallback:
    """A callback that keeps one figure in a notebook up to date, every `every` logged steps.

    It updates an output in place through IPython's display handle, so it works in JupyterLab,
    VS Code and Colab; the notebook's file keeps the last picture only. Made by a function, so
    that importing this module loads no transformers.
    """
    from IPython.display import Image, display
    from transformers import TrainerCallback

    if every < 1:
        raise ValueError(f"every must be at least 1, not {every}")

    class LiveCurve(TrainerCallback):
        def __init__(self) -> None:
            self.handle: Any = None
            self.drawn = 0

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.handle, self.drawn = None, 0

        def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.redraw(state, every)

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.redraw(state, 1)

        def redraw(self, state: Any, at_least: int) -> None:
            """Draw the log history if it has that many steps more than the picture."""
            # The summary at the end of training has neither.
            rows = [row for row in state.log_history if "loss" in row or HELD_OUT in row]
            if not state.is_world_process_zero or len(rows) - self.drawn < at_least:
                return
            self.drawn = len(rows)
            step = f"step {state.global_step} of {state.max_steps}"
            name = f"{title} · {step}" if title else step
            picture = Image(png(draw({"": [rows]}, name)))
            if self.handle is None:
                self.handle = display(picture, display_id=True)
            else:
                self.handle.update(picture)

    return LiveCurve()


# Which runs, under which names


def _named(runs: RunDirs) -> dict[str, list[Path]]:
    """Directories by name. Those given without a name get the end of their path."""
    if isinstance(runs, (str, Path)):
        return {"": [Path(runs)]}
    if not isinstance(runs, Mapping):
        paths = [Path(run) for run in runs]
        found = {name: [path] for name, path in zip(_ends(paths), paths, strict=True)}
    else:
        found = {
            name: [Path(dirs)] if isinstance(dirs, (str, Path)) else [Path(one) for one in dirs]
            for name, dirs in runs.items()
        }
    if not found or not all(found.values()):
        raise ValueError("there is no run to draw" + "".join(f" for {n}" for n in found))
    for name, dirs in found.items():
        if len({path.resolve() for path in dirs}) < len(dirs):
            raise ValueError(f"a run stands twice under {name}")
    if len(found) > len(COLOURS):
        raise ValueError(
            f"{len(found)} names are more than can be told apart ({len(COLOURS)}): "
            "draw fewer, or put seeds of one recipe under one name"
        )
    return found


def _ends(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart. Raises ValueError for equal ones."""
    parts = [path.resolve().parts for path in paths]
    if len(set(parts)) < len(parts):
        raise ValueError("a run stands twice among those to draw")
    size = 1
    while len({part[-size:] for part in parts}) < len(parts):
        size += 1
    return ["/".join(part[-size:]) for part in parts]


def _metrics(run_dir: Path) -> Rows:
    rows = read_jsonl(run_dir / "metrics.jsonl")
    if not rows:
        raise FileNotFoundError(f"no metrics in {run_dir}: has the run logged a step yet?")
    return rows + read_jsonl(run_dir / "evaluations.jsonl")
