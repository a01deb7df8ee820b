"""The training's part of a model card: one column a stage, every cell from the run's files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nl2sql_trl.data import POCKET
from nl2sql_trl.lineage import Stage
from nl2sql_trl.report import markdown_table
from nl2sql_trl.report_tables import TIMES, Table

# SHA-256 of Spider's train_spider.json (7,000 rows), as it is downloaded
_SPIDER = "a273d9ed660ada641a515cf3c9ec4ef369e2a246142f93a874df6ddda7c9c6dd"
_MISSING = "not recorded"


def fingerprint(stage: Stage) -> str:
    """What a stage was trained on: "pocket", "spider" for Spider's own file, or "other"."""
    data = stage.manifest.get("data", {})
    if data.get("name") == POCKET:
        return POCKET
    file = data.get("files", {}).get("train_spider.json", {})
    return "spider" if file.get("sha256") == _SPIDER else "other"


def training_table(stages: Sequence[Stage]) -> str:
    """The stages side by side; what a run's files do not hold says so."""
    if not stages:
        return "The model was exported without its run directory: its training is not recorded."
    rows = [(label, *(_cell(read, stage) for stage in stages)) for label, read in _ROWS.items()]
    # A line that says nothing of any stage is no line.
    kept = tuple(row for row in rows if any(cell not in ("-", _MISSING) for cell in row[1:]))
    table = markdown_table(Table("", ("", *(stage.name for stage in stages)), kept)).strip()
    grpo = any(stage.name == "GRPO" for stage in stages)
    reward = (
        "\n\nThe reward looks at the final SQL alone: not at the number of turns, whether the "
        "tool was called, or style."
    )
    return table + (reward if grpo else "")


def _cell(read: Callable[[Stage], str], stage: Stage) -> str:
    try:
        return read(stage)
    except (LookupError, TypeError, ValueError, ZeroDivisionError):
        return _MISSING


def _grpo(read: Callable[[dict[str, Any]], str]) -> Callable[[Stage], str]:
    """A cell of GRPO runs alone."""
    return lambda stage: read(stage.config) if stage.name == "GRPO" else "-"


def _algorithm(stage: Stage) -> str:
    c = stage.config
    if stage.name != "GRPO":
        return "supervised, on the gold query played through the tool loop"
    return f"GRPO, loss {c['loss_type']}, rewards scaled by {c['scale_rewards']}, KL {c['beta']}"


def _batch(stage: Stage) -> str:
    c = stage.config
    if stage.name != "GRPO":
        each, steps = c["per_device_train_batch_size"], c["gradient_accumulation_steps"]
        return f"{each * steps} rows a device"
    total, n = c["generation_batch_size"], c["num_generations"]
    return f"{total // n} prompts {TIMES} {n} = {total} trajectories"


def _adapters(stage: Stage) -> str:
    c = stage.config
    if not c["use_peft"]:
        return "all weights"
    return f"LoRA, r {c['lora_r']}, alpha {c['lora_alpha']}, {c['lora_target_modules']}"


def _data(stage: Stage) -> str:
    data = stage.manifest["data"]
    name = {"spider": "Spider", POCKET: POCKET}.get(fingerprint(stage), "data of the user's own")
    return f"{data['rows']:,} rows of {name}, {data['split']} ({data['dropped']} set aside)"


def _rewards(c: dict[str, Any]) -> str:
    weights = c["reward_weights"] or [1.0] * len(c["rewards"])
    named = [
        name if len(c["rewards"]) == 1 else f"{weight:g} {TIMES} {name}"
        for name, weight in zip(c["rewards"], weights, strict=True)
    ]
    return " + ".join(named) + (", on a test suite" if c["suite"] else "")


def _progress(stage: Stage) -> str:
    """Mean training reward over the first and the last third of the logged steps."""
    values = [row["reward"] for row in stage.metrics if "reward" in row]
    if stage.name != "GRPO":
        return "-"
    third = max(1, len(values) // 3)
    first, last = sum(values[:third]) / third, sum(values[-third:]) / third
    return f"{first:.3f} in the first third of {len(values)} logged steps, {last:.3f} in the last"


def _minutes(stage: Stage) -> str:
    times = [row["time"] for row in stage.metrics]
    return f"{(times[-1] - times[0]) / 60:.1f} minutes"


def _machine(stage: Stage) -> str:
    system = str(stage.manifest["platform"]).split("-")[0]
    gpus = "no GPU" if stage.config["use_cpu"] else "GPUs not recorded"
    return f"{stage.manifest['cpus']} CPU cores, {gpus}, {system}"


def _software(stage: Stage) -> str:
    packages = stage.manifest["packages"]
    return ", ".join(f"{name} {version}" for name, version in packages.items() if version)


def _code(stage: Stage) -> str:
    git = stage.manifest["git"]
    changed = ", with uncommitted changes" if git["changed"] else ""
    return f"{git['commit'][:12]}{changed}"


_ROWS: dict[str, Callable[[Stage], str]] = {
    "algorithm": _algorithm,
    "training data": _data,
    "steps": lambda s: str(s.metrics[-1]["step"]),
    "batch a step": _batch,
    "completion budget": _grpo(lambda c: f"{c['max_completion_length']} tokens over all turns"),
    "model turns": _grpo(lambda c: f"at most {c['max_turns']}"),
    "tool responses": _grpo(
        lambda c: (
            f"at most {c['tool_chars']} characters, by whole rows"
            if c["truncation"] == "rows"
            else "at most 256 characters, the middle elided"
        )
    ),
    "reward": _grpo(_rewards),
    "sampling": _grpo(
        lambda c: f"temperature {c['temperature']}, top_p {c['top_p']}, top_k {c['top_k']}"
    ),
    "weights": _adapters,
    "learning rate": lambda s: f"{s.config['learning_rate']:g}, {s.config['lr_scheduler_type']}",
    "optimiser": lambda s: str(s.config["optim"]),
    "precision": lambda s: (
        f"weights {s.config['dtype']}" + (", bf16 autocast" if s.config["bf16"] else "")
    ),
    "training reward": _progress,
    "first to last logged step": _minutes,
    "seed": lambda s: str(s.manifest["seed"]),
    "machine": _machine,
    "software": _software,
    "code": _code,
}
