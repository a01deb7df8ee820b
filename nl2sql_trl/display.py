"""Curves of a run: a picture on disk, or redrawn in a notebook while the run goes on.

    reward_curve("runs/demo/grpo")        # a matplotlib figure of a finished or running run
    live_curve(every=1)                   # a TrainerCallback that redraws it in a notebook

One panel shows the reward with a band of one standard deviation, the others what explains it. The
colours are the first of Okabe and Ito's palette (2008), which colour-blind readers can tell apart.
This module reads metrics and draws; it computes no metric itself.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nl2sql_trl.runs import read_jsonl

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from transformers import TrainerCallback

BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"

Rows = Sequence[dict[str, Any]]


def reward_curve(run_dir: str | Path, title: str = "") -> Figure:
    """The figure of a run directory. Raises FileNotFoundError if it has no metrics yet."""
    rows = read_jsonl(Path(run_dir) / "metrics.jsonl")
    if not rows:
        raise FileNotFoundError(f"no metrics in {run_dir}: has the run logged a step yet?")
    return draw(rows, title or str(run_dir))


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
            # The summary at the end of training has no loss of its own.
            rows = [row for row in state.log_history if "loss" in row]
            if not state.is_world_process_zero or len(rows) - self.drawn < at_least:
                return
            self.drawn = len(rows)
            step = f"step {state.global_step} of {state.max_steps}"
            picture = Image(_png(draw(rows, f"{title} · {step}" if title else step)))
            if self.handle is None:
                self.handle = display(picture, display_id=True)
            else:
                self.handle.update(picture)

    return LiveCurve()


def picture(size: tuple[float, float]) -> Figure:
    """An empty figure of this size in inches, which a notebook shows without pyplot's help."""
    from matplotlib.figure import Figure

    class Picture(Figure):
        def _repr_png_(self) -> bytes:
            return _png(self)

    return Picture(figsize=size, layout="constrained", facecolor="white")


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=90)
    return buffer.getvalue()


def draw(rows: Rows, title: str) -> Figure:
    """Four panels over the training step: reward, groups, behaviour, length."""
    figure = picture((10, 6))
    (reward, groups), (behaviour, tokens) = figure.subplots(2, 2, sharex=True)
    figure.suptitle(title)
    _reward_panel(reward, rows)
    _lines(groups, rows, [("frac_reward_zero_std", "groups without variance", ORANGE)])
    groups.set(ylabel="share of groups", ylim=(-0.02, 1.02))
    shares = [
        ("rollout/executable", "executes", BLUE),
        ("rollout/ran_its_answer", "ran its answer", GREEN),
        ("rollout/calls", "calls per trajectory", ORANGE),
    ]
    _lines(behaviour, rows, shares)
    behaviour.set(ylabel="share, or count", xlabel="training step")
    _lines(tokens, rows, [("completions/mean_length", "sampled tokens per trajectory", PINK)])
    tokens.set(ylabel="tokens", xlabel="training step")
    entropy = tokens.twinx()
    _lines(entropy, rows, [("entropy", "entropy", GREY)])
    entropy.set(ylabel="entropy (nats per token)")
    _legend(tokens, entropy)
    for axis in (groups, behaviour):
        _legend(axis)
    return figure


def smooth(values: Sequence[float], weight: float = 0.8) -> list[float]:
    """Exponential moving average without the bias of its start (as in Adam)."""
    out, total, norm = [], 0.0, 0.0
    for value in values:
        total = weight * total + (1 - weight) * value
        norm = weight * norm + (1 - weight)
        out.append(total / norm)
    return out


def _reward_panel(axis: Any, rows: Rows) -> None:
    points = [(r["step"], r["reward"], r.get("reward_std")) for r in rows if "reward" in r]
    steps = [p[0] for p in points]
    values = [p[1] for p in points]
    axis.plot(steps, values, color=BLUE, alpha=0.35, linewidth=1, label="mean of the step")
    if len(values) > 2:
        line = smooth(values)
        axis.plot(steps, line, color=BLUE, linewidth=2, label="smoothed")
        spread = _spread(values, line)
        low = [v - s for v, s in zip(line, spread, strict=True)]
        high = [v + s for v, s in zip(line, spread, strict=True)]
        axis.fill_between(steps, low, high, color=BLUE, alpha=0.15, linewidth=0, label="±1 s.d.")
    axis.set(ylabel="training reward")
    _legend(axis)


def _spread(values: Sequence[float], line: Sequence[float]) -> list[float]:
    """Standard deviation of the steps around the smoothed line, smoothed the same way."""
    squares = smooth([(v - m) ** 2 for v, m in zip(values, line, strict=True)])
    return [math.sqrt(s) for s in squares]


def _lines(axis: Any, rows: Rows, series: Sequence[tuple[str, str, str]]) -> None:
    for key, label, colour in series:
        points = [(r["step"], r[key]) for r in rows if r.get(key) is not None]
        if points:
            axis.plot(*zip(*points, strict=True), color=colour, linewidth=1.6, label=label)
    axis.grid(alpha=0.25)


def _legend(axis: Any, twin: Any = None) -> None:
    handles, labels = axis.get_legend_handles_labels()
    if twin is not None:
        more, more_labels = twin.get_legend_handles_labels()
        handles, labels = handles + more, labels + more_labels
    axis.grid(alpha=0.25)
    if handles:
        # Above the axes: a legend inside would cover the lines sooner or later.
        axis.legend(
            handles,
            labels,
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=len(handles),
            frameon=False,
            fontsize="small",
            borderaxespad=0.1,
            handlelength=1.4,
            columnspacing=1.0,
        )
