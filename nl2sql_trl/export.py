"""Hand a trained model on: one folder that plain transformers loads, with a card that says what
it is.

    python -m nl2sql_trl.export runs/demo/grpo --to exported
    python -m nl2sql_trl.export RUN --to DIR --evaluation OUT --baseline BASE_OUT
    python -m nl2sql_trl.export RUN --to DIR --push NAME/MODEL

RUN is a run directory, one of its checkpoints, or a folder of a model or of LoRA adapters, which
are merged. The folder gets safetensors in the dtype that the weights have, the tokenizer with its
chat template, a generation config that decodes greedily, run.json with the limits of the tool
loop, and README.md (`card.py`). Evaluations are found beside the run, or named. The weights are
not changed here, but for the merge.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nl2sql_trl import lineage, runs
from nl2sql_trl.asker import known_limits, loop_limits
from nl2sql_trl.card import Exported, card, licence
from nl2sql_trl.models import ModelError, adapted_model, load_model, load_tokenizer, resolve
from nl2sql_trl.prompts import Codec
from nl2sql_trl.report_runs import Evaluated
from nl2sql_trl.rollout import RolloutConfig


@dataclass(frozen=True, slots=True)
class Source:
    """What is exported: the name it was given, its folder, lineage and evaluations."""

    name: str
    found: lineage.Lineage
    evaluations: list[list[Evaluated]]


def source(name: str, evaluations: Sequence[Path] = (), baseline: Path | None = None) -> Source:
    """Look up everything that the card needs. Raises ModelError, OSError or ValueError."""
    folder = Path(resolve(name))
    if not folder.is_dir():
        raise ModelError(f"{name} is a hub name: export takes a run or a folder")
    found = lineage.lineage(folder)
    return Source(name, found, lineage.evaluations(found, evaluations, baseline))


def export(what: Source, target: Path, hub_name: str | None = None) -> Exported:
    """Write the folder whole. Raises FileExistsError if the target is there and not empty."""
    from transformers import GenerationConfig

    check_target(target)
    codec = Codec(load_tokenizer(what.name))
    model = load_model(what.name, dtype=_dtype(what.found))
    model.generation_config = GenerationConfig(
        do_sample=False,
        # Greedy and nothing else: a base model's own settings often sample, or punish repetition.
        eos_token_id=sorted(codec.stop_ids),
        pad_token_id=codec.tokenizer.pad_token_id,
        bos_token_id=getattr(model.generation_config, "bos_token_id", None),
    )
    limits = known_limits(what.name) or _evaluated_limits(what) or RolloutConfig()
    exported = Exported(
        name=hub_name or target.name,
        found=what.found,
        evaluations=what.evaluations,
        codec=codec,
        limits=limits,
        dtype=str(model.dtype).removeprefix("torch."),
        parameters=sum(weight.numel() for weight in model.parameters()),
        step=_step(what.found),
        licence=licence(what.found),
        merged=adapted_model(resolve(what.name)) is not None,
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export-") as work:
        made = Path(work) / "model"
        model.save_pretrained(made)
        codec.tokenizer.save_pretrained(made)
        runs.write_json(
            made / "run.json", {"finished_step": exported.step, "rollout": loop_limits(limits)}
        )
        runs.write_text(made / "README.md", card(exported))
        for file in made.iterdir():
            file.chmod(0o644)
        made.replace(target)
    return exported


def check_target(target: Path) -> None:
    """Raise FileExistsError for a target that is a file, or a folder that holds something."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target} is there already: name a new or an empty folder")


def _evaluated_limits(what: Source) -> RolloutConfig | None:
    """Those of the first evaluation: a warm start has none of its own."""
    names = ("budget", "max_turns", "truncation", "tool_chars")
    for group in what.evaluations[:1]:
        settings = group[-1].report["settings"]
        if all(name in settings for name in names):
            return RolloutConfig(**{name: settings[name] for name in names})
    return None


def _dtype(found: lineage.Lineage) -> str:
    """That of the saved weights; adapters are merged in the dtype that they were trained in."""
    if not (found.model / "config.json").is_file():
        dtype = found.stages[-1].config.get("dtype") if found.stages else None
        return str(dtype or "float32")
    return "auto"


def _step(found: lineage.Lineage) -> int | None:
    for file, key in (("run.json", "finished_step"), ("trainer_state.json", "global_step")):
        if (found.model / file).is_file():
            step: Any = json.loads((found.model / file).read_bytes()).get(key)
            return step
    return None


def push(folder: Path, name: str) -> str:
    """Upload an exported folder to the hub; returns its place. Raises the hub library's errors."""
    from huggingface_hub import HfApi

    api = HfApi()
    api.create_repo(name, exist_ok=True)
    done = api.upload_folder(
        repo_id=name, folder_path=folder, commit_message="Upload a model trained with nl2sql_trl"
    )
    return str(done.commit_url)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]
    from transformers.utils import logging

    from nl2sql_trl.launch import ConfigError, guarded

    parser = argparse.ArgumentParser(
        prog="python -m nl2sql_trl.export",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", metavar="RUN", help="run directory, checkpoint or model folder")
    parser.add_argument("--to", required=True, type=Path, metavar="DIR", help="a new folder")
    beside = "(default: found beside the run)"
    parser.add_argument(
        "--evaluation", type=Path, nargs="+", default=[], metavar="OUT",
        help=f"folders that evaluate wrote {beside}",
    )  # fmt: skip
    parser.add_argument(
        "--baseline", type=Path, metavar="OUT", help=f"evaluation to compare with {beside}"
    )
    parser.add_argument("--push", metavar="HUB_NAME", help="upload the folder to the hub")
    options = parser.parse_args(argv)
    logging.disable_progress_bar()
    with guarded():
        try:
            if options.push:
                validate_repo_id(options.push)
            check_target(options.to)
            what = source(options.run, options.evaluation, options.baseline)
            made = export(what, options.to, options.push)
        except (OSError, ValueError, HFValidationError) as error:
            raise ConfigError(str(error)) from error
        print(made.told(options.to))
        if options.push:
            try:
                print(f"uploaded: {push(options.to, options.push)}")
            except Exception as error:  # whatever of the network, the hub or its login failed
                first = " ".join(str(error).split())[:300] or type(error).__name__
                raise ConfigError(
                    f"{options.to} is written, but was not uploaded: {first}"
                ) from error
    return 0


if __name__ == "__main__":
    sys.exit(main())
