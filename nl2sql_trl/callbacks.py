"""What a run writes and shows while it trains: the run directory's metrics, the bar, step times.

Works with any transformers trainer; `StepClock` alone wants ours. Nothing here trains.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from transformers import ProgressCallback, TrainerCallback

from nl2sql_trl import runs


class RunCallback(TrainerCallback):
    """Keeps a run directory's metrics.jsonl and evaluations.jsonl, and stops cleanly on Ctrl-C.

    Beside what the trainer logs, a line of metrics has `seconds/steps`, what the steps since the
    line before took, and `memory/peak_bytes` of the process. After a resume, lines of steps that
    are done again are dropped first.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.interrupted = False
        self._begun = self._seconds = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Forget what a killed run logged after the checkpoint that we resume from."""
        if state.is_world_process_zero:
            for name in ("metrics.jsonl", "trajectories.jsonl", "evaluations.jsonl"):
                runs.drop_after(self.run_dir / name, state.global_step)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Append the step's metrics. TRL logs a summary without a loss at the end: left out."""
        if not state.is_world_process_zero or not logs:
            return
        row = {"step": state.global_step, "time": time.time(), **logs}
        if "loss" in logs:
            row |= {"seconds/steps": self._seconds, "memory/peak_bytes": runs.peak_memory()}
            self._seconds = 0.0
            runs.append_jsonl(self.run_dir / "metrics.jsonl", [row])
        if "eval_loss" in logs:
            runs.append_jsonl(self.run_dir / "evaluations.jsonl", [row])

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start counting."""
        self._begun = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop after this step, with a checkpoint, if Ctrl-C was pressed during it."""
        self._seconds += time.monotonic() - self._begun
        if self.interrupted:
            control.should_save = control.should_training_stop = True


class StepClock(TrainerCallback):
    """Logs `seconds/update`: what an optimiser step took beside its rollout and rewards.

    That is: weights to vLLM, TRL's own scoring, loss, gradients, optimiser; of the process that
    logs. `rollout_seconds` of the trainer grows by what its rollouts take.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._started = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start counting."""
        self._started = time.monotonic() - self._trainer.rollout_seconds

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Log the rest of the step among the trainer's metrics."""
        seconds = time.monotonic() - self._trainer.rollout_seconds - self._started
        self._trainer._metrics["train"]["seconds/update"].append(seconds)


class Progress(ProgressCallback):
    """The trainer's bar with the few numbers that tell how it goes, not a dictionary a step."""

    shown = ("reward", "rollout/executable", "frac_reward_zero_std", "loss", "mean_token_accuracy")

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Put the numbers behind the bar."""
        if state.is_world_process_zero and self.training_bar is not None and logs:
            found = {k.split("/")[-1]: f"{float(logs[k]):.3f}" for k in self.shown if k in logs}
            self.training_bar.set_postfix(found, refresh=True)


def short_progress(trainer: Any) -> None:
    """Give a trainer our progress bar in place of its own."""
    if any(isinstance(c, ProgressCallback) for c in trainer.callback_handler.callbacks):
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(Progress)
