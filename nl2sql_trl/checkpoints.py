"""Checkpoints that are whole or not there.

`WholeCheckpoints` goes before a transformers Trainer among a class's bases. A checkpoint is written
into a folder of its own, flushed to the disk and renamed when all ranks are done; only then are old
ones deleted (the last `save_total_limit` and the best are kept). A full disk or a kill in between
leaves the last whole checkpoint as it was.

What is in a checkpoint, and when one is made, is the Trainer's affair.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import Trainer as _Trainer
else:
    _Trainer = object

UNFINISHED = ".unfinished"  # inside the run directory, so that renaming moves no data


class CheckpointError(Exception):
    """A checkpoint could not be written; the message says why and which one to go on from."""


def whole_checkpoints(run_dir: Path) -> list[Path]:
    """The whole checkpoints of a run, by step."""
    numbered = [
        (int(number), folder)
        for folder in run_dir.glob("checkpoint-*")
        # The trainer state is written last.
        if (number := folder.name.rsplit("-", 1)[1]).isdigit()
        and (folder / "trainer_state.json").is_file()
    ]
    return [folder for _, folder in sorted(numbered)]


class WholeCheckpoints(_Trainer):
    """Makes a Trainer's checkpoints appear whole or not at all."""

    _unfinished = False

    def _get_output_dir(self, trial: Any) -> str:
        folder = super()._get_output_dir(trial)
        return os.path.join(folder, UNFINISHED) if self._unfinished else folder

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        from transformers.trainer_utils import rotate_checkpoints

        run_dir = Path(self._get_output_dir(trial))
        name = f"checkpoint-{self.state.global_step}"
        written = run_dir / UNFINISHED / name
        try:
            if self.args.should_save:
                shutil.rmtree(run_dir / UNFINISHED, ignore_errors=True)
            self.accelerator.wait_for_everyone()
            self._unfinished = True
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._unfinished = False
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                if self.state.best_model_checkpoint == str(written):
                    self.state.best_model_checkpoint = str(run_dir / name)
                    self.state.save_to_json(str(written / "trainer_state.json"))
                _publish(written, run_dir / name)
                limit, best = self.args.save_total_limit, self.state.best_model_checkpoint
                rotate_checkpoints(str(run_dir), limit, best, use_mtime=False)
        # safetensors and torch have errors of their own for a full disk.
        except Exception as error:
            reason = _reason(run_dir, name, error)
            shutil.rmtree(run_dir / UNFINISHED, ignore_errors=True)
            raise CheckpointError(reason) from error
        self.accelerator.wait_for_everyone()


def _publish(written: Path, target: Path) -> None:
    """Flush every file of a folder and move it into place."""
    for path in written.rglob("*"):
        if path.is_file():
            _flush(path)
    _flush(written)
    shutil.rmtree(target, ignore_errors=True)  # a run may be started again without resuming
    os.replace(written, target)
    written.parent.rmdir()
    _flush(target.parent)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(run_dir: Path, name: str, error: Exception) -> str:
    kept = whole_checkpoints(run_dir)
    last = f"{kept[-1].name} is whole" if kept else "there is no earlier one"
    free = shutil.disk_usage(run_dir).free / 1e9 if run_dir.is_dir() else 0.0
    said = " ".join(str(error).split())
    return (
        f"{name} could not be written to {run_dir} ({free:.2f} GB free there; {said}): {last}. "
        "Make room, then go on with --resume_from_checkpoint true"
    )
