"""How a training of either kind runs to its end: progress, the resumed checkpoint, the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nl2sql_trl import runs
from nl2sql_trl.callbacks import short_progress
from nl2sql_trl.sharded import whole_model


def train_and_save(trainer: Any, run_dir: Path) -> None:
    """Train, from a checkpoint where the config names one, and save the final model.

    After Ctrl-C there is no final model: exits with 130, saying how to go on.
    """
    if trainer.not_shared and trainer.accelerator.is_main_process:
        print(f"beginnings are not shared in the update: {trainer.not_shared}")
    short_progress(trainer)
    trainer.train(resume_from_checkpoint=trainer.args.resume_from_checkpoint)
    if any(getattr(c, "interrupted", False) for c in trainer.callback_handler.callbacks):
        if trainer.accelerator.is_main_process:
            step = trainer.state.global_step
            print(f"stopped: checkpoint-{step} is saved; go on with --resume_from_checkpoint true")
        raise SystemExit(130)
    save_run_model(trainer, run_dir / "model")
    if trainer.accelerator.is_main_process:
        print(f"saved {run_dir / 'model'}")


def save_run_model(trainer: Any, folder: Path) -> None:
    """The final model as an ordinary folder; LoRA adapters are merged into it."""
    with whole_model(trainer) as model:
        if trainer.accelerator.is_main_process:
            if hasattr(model, "peft_config"):
                model = model.merge_and_unload()
            model.save_pretrained(folder)
            trainer.processing_class.save_pretrained(folder)
            marker = {"finished_step": trainer.state.global_step}
            runs.write_text(folder / "run.json", json.dumps(marker))
    trainer.accelerator.wait_for_everyone()
