"""For notebooks: start a run with `accelerate launch`, and find the files that go with the package.

The run is a process (or several) of its own, exactly as from a shell. Nothing here trains, and
nothing is for use inside a run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nl2sql_trl.task import Task


def accelerate_launch(
    flags: Sequence[str], *, cwd: Path, environment: Mapping[str, str] | None = None
) -> str:
    """`accelerate launch FLAGS` in the folder `cwd`; returns what the run printed.

    Progress bars and library chatter go to stderr, which is shown only if the run fails: then a
    RuntimeError has its last lines.
    """
    # With it set to `error`, transformers prints a dictionary a step instead of a progress bar.
    inherited = {k: v for k, v in os.environ.items() if k != "TRANSFORMERS_VERBOSITY"}
    done = subprocess.run(
        [sys.executable, "-m", "accelerate.commands.launch", *flags],
        cwd=cwd,
        env=inherited | dict(environment or {}),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-12:])
        raise RuntimeError(f"the run ended with exit code {done.returncode}:\n{last}")
    return done.stdout.strip()


def write_rows(task: Task, folder: Path) -> Path:
    """A task's rows and databases as a Spider-layout folder of their own, for `--data`."""
    folder.mkdir(parents=True)
    rows = [
        {"db_id": e.db_id, "question": e.question, "query": e.gold} for e in task.examples.values()
    ]
    for path in {e.db_path for e in task.examples.values()}:
        (folder / "database" / path.stem).mkdir(parents=True)
        shutil.copy(path, folder / "database" / path.stem / path.name)
    (folder / "train_spider.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return folder


def repository() -> Path:
    """The checkout that this package runs from, with recipes/, accelerate_configs/ and scripts/.

    Raises FileNotFoundError where the package was installed without one.
    """
    folder = Path(__file__).resolve().parents[1]
    if not (folder / "recipes").is_dir():
        raise FileNotFoundError("the recipes are in the repository: install it with pip -e")
    return folder


def head_comment(path: Path) -> str:
    """The comment that a recipe or script begins with: what it is for, and how it is launched."""
    lines = path.read_text(encoding="utf-8").splitlines()
    if lines[0].startswith("#!"):
        del lines[0]
    end = next(n for n, line in enumerate(lines) if not line.startswith("#") or "#SBATCH" in line)
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[:end])
