"""What the training commands share: arguments, seeds, errors in one line, the run's first files.

Nothing here trains; `sft.py` and `train.py` do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, NoReturn

from nl2sql_trl import runs
from nl2sql_trl.checkpoints import CheckpointError, whole_checkpoints
from nl2sql_trl.data import DataError, data_folder
from nl2sql_trl.database import DatabaseError
from nl2sql_trl.gold import GoldError, data_manifest
from nl2sql_trl.models import ModelError
from nl2sql_trl.prompts import TemplateError
from nl2sql_trl.rollout import RolloutError
from nl2sql_trl.sandbox import SandboxError
from nl2sql_trl.spider.cases import InputError
from nl2sql_trl.task import Task


class ConfigError(Exception):
    """A recipe or flag is wrong; the message names it."""


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Turn what a user can mend into one line on stderr and exit code 2."""
    known = (CheckpointError, ConfigError, DataError, DatabaseError, GoldError, InputError,
             ModelError, RolloutError, SandboxError, TemplateError)  # fmt: skip
    try:
        yield
    except known as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        raise SystemExit(2) from None


def parse(kinds: tuple[type, ...], flags: Sequence[str] | None = None) -> tuple[Any, ...]:
    """The dataclasses filled from `--config FILE` and flags. Raises ConfigError for unknown keys.

    Flags win over the recipe. A recipe key that no dataclass has is an error that names near ones.
    flags: default the command line's.
    """
    from trl import TrlParser

    words = sys.argv[1:] if flags is None else flags
    given = [part for flag in words for part in _without_equals(flag)]
    _check_recipe(kinds, given)
    parser = TrlParser(kinds)
    parser.error = _refuse  # its own prints a usage of some hundred lines
    _check_flags(kinds, given)
    try:
        return tuple(parser.parse_args_and_config(given))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _without_equals(flag: str) -> list[str]:
    """TrlParser knows `--config FILE` alone."""
    return flag.split("=", 1) if flag.startswith("--config=") else [flag]


def _refuse(message: str) -> NoReturn:
    raise ConfigError(message)


def _check_recipe(kinds: Sequence[type], given: Sequence[str]) -> None:
    import difflib

    import yaml

    if "--config" not in given:
        return
    after = given[given.index("--config") + 1 :]
    if not after:
        raise ConfigError("--config needs a recipe: a YAML file")
    path = Path(after[0])
    if not path.is_file():
        raise ConfigError(f"there is no recipe {path}")
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise ConfigError(f"{path}{line} is not valid YAML") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text") from error
    if not isinstance(recipe, Mapping):
        raise ConfigError(f"{path} should hold `key: value` lines")
    names = {f.name for kind in kinds for f in fields(kind)} | {"env"}
    for key in recipe:
        if key not in names:
            near = difflib.get_close_matches(str(key), names, 1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{path}: there is no setting {key!r}{hint}")


def _check_flags(kinds: Sequence[type], given: Sequence[str]) -> None:
    """Name the flag that is near to a misspelt one."""
    import difflib

    known = {f"--{f.name}" for kind in kinds for f in fields(kind)} | {"--config", "--help"}
    known |= {flag.replace("_", "-") for flag in known}
    for flag in (part.split("=")[0] for part in given if part.startswith("--")):
        # argparse takes a beginning, and `no_` before a switch.
        if any(k.startswith(flag) for k in known) or flag.startswith(("--no_", "--no-")):
            continue
        near = difflib.get_close_matches(flag, known, 1)
        hint = f": did you mean {near[0]}?" if near else ""
        raise ConfigError(f"there is no flag {flag}{hint}")


# glibc gives big blocks back to the system and takes them again at every step: let it keep them.
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "1000000000", "MALLOC_MMAP_THRESHOLD_": "33554432"}


def settle(config: Any) -> None:
    """Seed everything, and turn `--resume_from_checkpoint true` into the newest whole one.

    Raises ConfigError for an output folder that cannot be written or holds a finished run.
    """
    import transformers

    transformers.set_seed(config.seed)
    run_dir = Path(config.output_dir)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output_dir {run_dir} cannot be made: {error.strerror}") from error
    if not os.access(run_dir, os.W_OK):
        raise ConfigError(f"output_dir {run_dir} cannot be written: check its permissions")
    if config.resume_from_checkpoint is None and (run_dir / "model" / "run.json").is_file():
        raise ConfigError(
            f"output_dir {run_dir} holds a finished run: give another --output_dir, or delete it"
        )
    if config.resume_from_checkpoint in ("True", "true", "1"):
        config.resume_from_checkpoint = last_checkpoint(Path(config.output_dir))
    checkpoint = config.resume_from_checkpoint
    if checkpoint is not None and not Path(checkpoint).is_dir():
        raise ConfigError(f"there is no checkpoint {checkpoint}")


def last_checkpoint(run_dir: Path) -> str | None:
    """The newest whole checkpoint of a run, None if there is none (then it starts afresh)."""
    whole = whole_checkpoints(run_dir)
    if not whole:
        print(f"no checkpoint in {run_dir}: starting from the beginning", flush=True)
        return None
    return str(whole[-1])


def start_run(
    run_dir: Path, config: Any, task: Task, settings: Sequence[Any], sampling: Mapping[str, Any]
) -> None:
    """Write config.yaml and manifest.json. Only the main process does."""
    import yaml

    if config.process_index != 0:
        return
    resolved: dict[str, Any] = {}
    for part in settings:
        values = part.to_dict() if hasattr(part, "to_dict") else asdict(part)
        assert is_dataclass(part)
        resolved |= {k: v for k, v in values.items() if not k.startswith("_")}
    plain = {k: _plain(v) for k, v in sorted(resolved.items())}
    runs.write_text(run_dir / "config.yaml", yaml.safe_dump(plain, sort_keys=True))
    data = {
        "name": task.data,
        "split": task.split,
        "rows": len(task.examples),
        "dropped": len(task.dropped),
        "files": data_manifest(data_folder(task.data)),
    }
    runs.write_json(run_dir / "manifest.json", runs.manifest(config.seed, data, sampling))


def _plain(value: Any) -> Any:
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return str(value)


def stop_on_interrupt(callback: Any) -> None:
    """First Ctrl-C: stop after this step, with a checkpoint. Second: at once."""

    def first(_signal: int, _frame: object) -> None:
        callback.interrupted = True
        print("\nstopping after this step (Ctrl-C again to stop at once)", file=sys.stderr)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, first)
