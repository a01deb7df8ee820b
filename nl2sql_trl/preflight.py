"""Looks at a GRPO run before it starts: does it fit, and what would go wrong in silence?

    python -m nl2sql_trl.preflight --config recipes/spider_qwen2.5_3b.yaml --data DIR \\
        --accelerate_config accelerate_configs/zero2.yaml --device_gib 80

`train.py` looks at every start as well. Memory and disk come from the model's config by arithmetic
(`footprint.py`), prompt lengths from a sample of the data and the model's tokenizer. What may go
wrong is a line that begins with `beware:` and says what to change (`preflight_checks.py`); a run
that cannot work at all ends with one line and exit code 2.

Not looked at: the warm start (`sft.py`), and the machine of a vLLM server.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nl2sql_trl.arguments import TrainArguments
from nl2sql_trl.footprint import Layout, checkpoint_bytes, model_bytes
from nl2sql_trl.launch import ConfigError, guarded, parse
from nl2sql_trl.models import load_tokenizer
from nl2sql_trl.plan import (
    GIB,
    Plan,
    Prompts,
    gib,
    keeps_prefix,
    layout_here,
    layout_of,
    make_plan,
    measure_prompts,
)
from nl2sql_trl.preflight_checks import bewares, impossible
from nl2sql_trl.prompts import Codec


@dataclass
class PreflightArguments:
    """Where the run will be, if not here."""

    accelerate_config: str | None = field(
        default=None,
        metadata={"help": "the file that accelerate launch will get (default: one process)"},
    )
    processes: int | None = field(
        default=None, metadata={"help": "processes on all machines, if not the file's"}
    )
    device_gib: float | None = field(
        default=None,
        metadata={"help": "memory of one device in GiB, on another machine (default: this one's)"},
    )


def describe(plan: Plan) -> str:
    """What was found, a line each; the last ones begin with `beware:` or `impossible:`."""
    lines = [_head(plan), _memory_line(plan), _disk_line(plan)]
    if plan.prompts:
        lines.append(_prompt_line(plan, plan.prompts))
    lines += [f"beware: {text}" for text in bewares(plan)]
    return "\n".join([*lines, *(f"impossible: {text}" for text in impossible(plan))])


def _head(plan: Plan) -> str:
    shape, n = plan.shape, plan.layout.processes
    name = plan.model_config.model_name_or_path or "a model"
    full = shape.trainable == shape.parameters
    trained = "" if full else f" and {shape.trainable:,} of adapters"
    spread = {"none": "", "zero2": ", ZeRO-2", "zero3": ", ZeRO-3", "fsdp2": ", FSDP2"}
    source = {"": "transformers", "server": "a vLLM server", "colocate": "colocated vLLM"}
    return (
        f"preflight: {Path(name).name if Path(name).is_absolute() else name}, "
        f"{shape.parameters:,} parameters{trained}; {n} process{'es' if n > 1 else ''}"
        f"{spread[plan.layout.sharding]}; sampling by {source[plan.work.vllm]}"
    )


def memory_parts(plan: Plan) -> dict[str, int]:
    """Bytes of one device by what they are for."""
    needed = plan.memory
    return {
        "weights": needed.weights,
        "gradients": needed.gradients,
        "optimiser": needed.optimizer,
        "sampling": needed.generation,
        "activations": needed.activations,
        "logits": needed.logits,
    }


def _memory_line(plan: Plan) -> str:
    told = ", ".join(f"{name} {gib(size)}" for name, size in memory_parts(plan).items())
    of = f" of {gib(plan.device)}" if plan.device else ""
    return f"memory: about {gib(plan.memory.peak)}{of} GiB a device at full budgets ({told})"


def _disk_line(plan: Plan) -> str:
    each = gib(checkpoint_bytes(plan.shape, plan.work, plan.layout))
    kept = f"{plan.saves} x {each} GiB of checkpoints, " if plan.saves else ""
    model = gib(model_bytes(plan.shape, plan.work))
    free = "" if plan.disk is None else f"; {gib(plan.disk)} GiB free"
    return f"disk: {kept}{model} GiB of model{free}"


def _prompt_line(plan: Plan, prompts: Prompts) -> str:
    lengths = prompts.lengths
    half, most, nearly = (lengths[int(q * (len(lengths) - 1))] for q in (0.5, 0.95, 0.99))
    return (
        f"prompts: median {half}, 95% {most}, 99% {nearly}, longest {lengths[-1]} tokens "
        f"({len(lengths):,} of {prompts.rows:,} rows); {plan.work.budget} for the answer; "
        f"{plan.shape.positions:,} positions"
    )


def check_start(arguments: TrainArguments, config: Any, model_config: Any, codec: Codec) -> None:
    """What `train.py` calls: prints on the first process. Raises ConfigError if it cannot work."""
    plan = make_plan(
        config,
        model_config,
        layout_here(config.world_size),
        prompts=measure_prompts(arguments, codec, config.seed),
        device=_device_bytes(config),
    )
    _show(plan, codec, quiet=config.process_index != 0)


def _show(plan: Plan, codec: Codec, quiet: bool = False) -> None:
    plan = replace(plan, keeps_prefix=keeps_prefix(codec.tokenizer))
    if found := impossible(plan):
        raise ConfigError(found[0])
    if not quiet:
        print(describe(plan), flush=True)


def _device_bytes(config: Any) -> int | None:
    """Bytes of this machine's device; on a CPU each process's part of the machine's memory."""
    import torch

    if config.use_cpu:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return whole // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None


def parsed(flags: Sequence[str] | None = None) -> tuple[Any, ...]:
    """PreflightArguments, TrainArguments, TRL's GRPOConfig and ModelConfig, from flags as on the
    command line. The config is not checked against this machine, which need not be the run's.
    """
    from trl import GRPOConfig, ModelConfig

    @dataclass
    class Planned(GRPOConfig):
        """The settings without what TRL and transformers do with them at a start."""

        def __post_init__(self) -> None:
            pass

    return parse((PreflightArguments, TrainArguments, Planned, ModelConfig), flags)


def recipe_plan(
    recipe: Path,
    accelerate_config: Path,
    device_gib: float,
    model: Any,
    processes: int | None = None,
) -> Plan:
    """The plan of a recipe for another machine, where only the model's config is at hand.

    model: a transformers config. processes: if not the accelerate file's. Prompts are not
    measured: the longest is taken to have the recipe's max_prompt_tokens.
    """
    _, arguments, config, model_config = parsed(["--config", str(recipe)])
    return make_plan(
        config,
        model_config,
        layout_of(accelerate_config, processes),
        model=model,
        prompt=arguments.max_prompt_tokens or 0,
        device=int(device_gib * GIB),
        here=False,
    )


def main() -> int:
    """Look at the run that a recipe and flags describe."""
    with guarded():
        place, arguments, config, model_config = parsed()
        layout = Layout(place.processes or 1)
        if place.accelerate_config:
            layout = layout_of(place.accelerate_config, place.processes)
        device = int(place.device_gib * GIB) if place.device_gib else _device_bytes(config)
        codec = Codec(load_tokenizer(model_config.model_name_or_path))
        plan = make_plan(
            config,
            model_config,
            layout,
            prompts=measure_prompts(arguments, codec, config.seed),
            device=device,
            here=not place.device_gib,
        )
        _show(plan, codec)
    return 0


if __name__ == "__main__":
    sys.exit(main())
