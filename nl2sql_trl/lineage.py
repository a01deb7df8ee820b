"""Where a trained model comes from: the stages of its training and the evaluations of each.

A run's config.yaml names the model that it started from; where that is another run's, the chain
goes on, down to the base model. Evaluations are found by the model that their report.json names,
in the folders where `evaluate` and `demo` put them. Reads files only; computes no number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nl2sql_trl.models import ADAPTER
from nl2sql_trl.report_runs import Evaluated, check_same_questions, load
from nl2sql_trl.runs import read_jsonl

#: of our own names: the hub's name of the same model, and its licence
OWN = {
    "smollm2-135m": ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0"),
    "tiny": (None, "apache-2.0"),
}


@dataclass(frozen=True, slots=True)
class Stage:
    """One training run: its resolved arguments, its manifest and its logged steps."""

    folder: Path
    config: dict[str, Any]
    manifest: dict[str, Any]
    metrics: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """What kind of training it was."""
        return "GRPO" if "num_generations" in self.config else "warm start"


@dataclass(frozen=True, slots=True)
class Lineage:
    """Training stages of a model, the earliest first, and the name of the model before them.

    `base` is a hub name, a name of ours, or a folder's name, as the first stage was given it.
    """

    model: Path
    base: str
    stages: tuple[Stage, ...]

    @property
    def hub_base(self) -> str | None:
        """The hub's name of the base model; None if it is not known."""
        if self.base in OWN:
            return OWN[self.base][0]
        local = Path(self.base).expanduser().exists()
        return self.base if self.base.count("/") == 1 and not local else None

    @property
    def shown_base(self) -> str:
        """The base model's name without the folders of this machine."""
        return self.hub_base or (self.base if self.base in OWN else Path(self.base).name)


def lineage(model: Path) -> Lineage:
    """The lineage of a model folder, or of a checkpoint's, inside a run directory.

    A model that stands in no run directory is its own base.
    """
    base, stages = str(model), list[Stage]()
    folder = model
    while (stage := _stage(folder.parent)) and stage.folder not in [s.folder for s in stages]:
        stages.insert(0, stage)
        base = str(stage.config.get("model_name_or_path") or "")
        folder = Path(place(base))
    return Lineage(model, base, tuple(stages))


def place(name: str) -> str:
    """A model's name such that two names of one folder are equal."""
    path = Path(name).expanduser()
    for folder in (path, path / "model"):
        if any((folder / file).is_file() for file in ("config.json", ADAPTER)):
            return str(folder.resolve())
    return name


def _stage(folder: Path) -> Stage | None:
    """The run in a folder, None if there is none that can be read."""
    import yaml

    try:
        config = yaml.safe_load((folder / "config.yaml").read_bytes())
        manifest = json.loads((folder / "manifest.json").read_bytes())
        metrics = read_jsonl(folder / "metrics.jsonl")
    except (OSError, ValueError, yaml.YAMLError):
        return None
    whole = isinstance(config, dict) and isinstance(manifest, dict)
    return Stage(folder.resolve(), config, manifest, metrics) if whole else None


def evaluations(
    found: Lineage, given: Iterable[Path] = (), baseline: Path | None = None
) -> list[list[Evaluated]]:
    """Evaluations of the model, each after those of earlier stages on the same questions.

    given, baseline: folders to take instead of those that are found beside the run. Raises what
    `report_runs.load` raises, and ValueError for a baseline of other questions.
    """
    order = _order(found)
    known = _beside(found)
    own = list(given) or [folder for folder, name in known.items() if name == order[-1]]
    groups = []
    for folder in own:
        this = replace(load(folder), name="this model")
        if baseline is not None:
            before = [replace(load(baseline), name=_role(found, 0))]
            check_same_questions([*before, this])
        else:
            before = [
                replace(run, name=_role(found, order.index(name)))
                for name, run in _siblings(folder, known, order[:-1])
                if _same_questions(run, this)
            ]
        groups.append([*before, this])
    return groups


def _order(found: Lineage) -> list[str]:
    """Places of the base, of what each stage made, and of the model."""
    made = [place(str(stage.folder)) for stage in found.stages[:-1]]
    return [*([place(found.base)] if found.stages else []), *made, str(found.model.resolve())]


def _role(found: Lineage, position: int) -> str:
    """The name of a column: the base model's without its owner, or the kind of training."""
    return Path(found.shown_base).name if position == 0 else found.stages[position - 1].name


def _beside(found: Lineage) -> dict[Path, str]:
    """Evaluation folders in and beside the run, with the place of the model of each."""
    if not found.stages:
        return {}
    run = found.stages[-1].folder
    reports = {
        report
        for root in (run, run.parent)
        for pattern in ("*/report.json", "evaluation/*/report.json")
        for report in root.glob(pattern)
    }
    named = {}
    for report in sorted(reports):
        try:
            model = json.loads(report.read_bytes())["settings"]["model"]
        except (OSError, ValueError, LookupError, TypeError):
            continue  # not a report of `evaluate`
        named[report.parent] = place(str(model))
    return named


def _siblings(
    folder: Path, known: dict[Path, str], order: list[str]
) -> list[tuple[str, Evaluated]]:
    """Evaluations of earlier stages in the same place, in the order of the stages."""
    beside = {name: f for f, name in known.items() if f.parent == folder.resolve().parent}
    return [(name, load(beside[name])) for name in order if name in beside]


def _same_questions(run: Evaluated, other: Evaluated) -> bool:
    try:
        check_same_questions([run, other])
    except ValueError:
        return False
    return True
