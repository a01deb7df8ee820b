"""What is known of a GRPO run before it starts: its settings, its model's shape, its prompts.

`make_plan` gathers it; `preflight_checks.py` judges it. Only configs, a tokenizer and the data's
questions and schemas are read: no weight is loaded and no query runs.
"""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nl2sql_trl.arguments import TrainArguments
from nl2sql_trl.data import load
from nl2sql_trl.database import ddl
from nl2sql_trl.footprint import Layout, Memory, Shape, Work, memory, shape_of
from nl2sql_trl.launch import ConfigError
from nl2sql_trl.models import ModelError, resolve
from nl2sql_trl.prompts import Codec, answer_text, call_text
from nl2sql_trl.rollout import make_prompt
from nl2sql_trl.tools import RUN_SQL

GIB = 2**30
SAMPLE = 500  # prompts that are measured
_STATES = {"sgd": 0, "adafactor": 0}  # bytes a parameter; the Adam family keeps two fp32 moments


@dataclass(frozen=True, slots=True)
class Prompts:
    """Lengths in tokens of a sample of the data's prompts, ascending, and how many rows there are.

    most: longer prompts are left out (None: none are).
    """

    lengths: tuple[int, ...]
    rows: int
    most: int | None = None

    @property
    def kept(self) -> tuple[int, ...]:
        """The lengths that are not left out."""
        return tuple(n for n in self.lengths if self.most is None or n <= self.most)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is known of a run before it starts. config: TRL's GRPOConfig.

    device: bytes of one device, None if not known. disk: free bytes where the run is written, None
    if that is another machine. saves: checkpoints that lie there at once. generation: the model's
    own generation config.
    """

    config: Any
    model_config: Any
    layout: Layout
    shape: Shape
    work: Work
    memory: Memory
    prompts: Prompts | None
    device: int | None
    disk: int | None
    saves: int
    generation: Any = None
    keeps_prefix: bool = True


def gib(count: float) -> str:
    """Bytes in GiB, with as many digits as one wants to read."""
    size = count / GIB
    return f"{size:.1f}" if size >= 1 else f"{size:.2f}"


def measure_prompts(arguments: TrainArguments, codec: Codec, seed: int) -> Prompts:
    """Up to SAMPLE prompts of the split, drawn by `seed`. Raises DataError for unusable data."""
    examples = load(arguments.data, arguments.split)
    drawn = random.Random(seed).sample(examples, min(SAMPLE, len(examples)))
    schemas = {path: ddl(path) for path in {e.db_path for e in drawn}}
    lengths = sorted(len(make_prompt(e, schemas[e.db_path], codec).ids) for e in drawn)
    return Prompts(tuple(lengths), len(examples), arguments.max_prompt_tokens)


def layout_of(path: str | Path, processes: int | None = None) -> Layout:
    """The layout that an accelerate config file asks for. Raises ConfigError."""
    import yaml
    from accelerate.commands.config.config_args import load_config_from_file

    try:
        file = load_config_from_file(str(path))
        kind = file.distributed_type.value
        stage = int((file.deepspeed_config or {}).get("zero_stage", 0))
    except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} is not a config file of accelerate: {error}") from error
    sharding = {"DEEPSPEED": f"zero{stage}", "FSDP": "fsdp2"}.get(kind)
    return Layout(processes or file.num_processes, _known(sharding))


def layout_here(processes: int) -> Layout:
    """The layout of a process that accelerate has launched, from what it set."""
    sharding = None
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        sharding = "zero" + os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
    elif os.environ.get("ACCELERATE_USE_FSDP") == "true":
        sharding = "fsdp2"
    return Layout(processes, _known(sharding))


def _known(sharding: str | None) -> Any:
    return sharding if sharding in ("zero2", "zero3", "fsdp2") else "none"


def make_plan(
    config: Any,
    model_config: Any,
    layout: Layout,
    *,
    model: Any = None,
    prompts: Prompts | None = None,
    prompt: int = 0,
    device: int | None = None,
    here: bool = True,
) -> Plan:
    """All that is known of a run. config: TRL's GRPOConfig; model: a transformers config (default:
    that of the named model); prompt: the longest prompt in tokens, where there are no `prompts`;
    device: bytes of one device; here: whether it will run on this machine, with its disk. Raises
    ModelError if the model cannot be had."""
    from trl import get_peft_config

    name = model_config.model_name_or_path
    generation = None
    if model is None:
        model, generation = _configs(name)
    shape = shape_of(model, get_peft_config(model_config))
    longest = max(prompts.kept, default=prompt) if prompts else prompt
    work = _work(config, model_config, layout, longest, _shares(model, config, layout))
    saves = 0 if _plain(config.save_strategy) == "no" else (config.save_total_limit or 0) + 1
    return Plan(
        config,
        model_config,
        layout,
        shape,
        work,
        memory(shape, work, layout, device),
        prompts,
        device,
        shutil.disk_usage(_existing(Path(config.output_dir))).free if here else None,
        saves,
        generation,
    )


def _configs(name: str) -> tuple[Any, Any]:
    """The model's config and its generation config, None where it has none."""
    from transformers import AutoConfig, GenerationConfig

    resolved = resolve(name)
    try:
        model = AutoConfig.from_pretrained(resolved)
    except (OSError, ValueError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"the config of {name!r} could not be loaded: {first}") from error
    try:
        return model, GenerationConfig.from_pretrained(resolved)
    except OSError:
        return model, None


def _shares(model: Any, config: Any, layout: Layout) -> bool:
    """Whether the update runs a group's prompt once, as `sharing.py` does where it can."""
    from nl2sql_trl.engine import supports

    whole = layout.sharding in ("none", "zero2")
    return whole and not config.gradient_checkpointing and supports(SimpleNamespace(config=model))


def _work(config: Any, model_config: Any, layout: Layout, prompt: int, shared: bool) -> Work:
    rows = config.per_device_train_batch_size
    rollouts = rows * (config.steps_per_generation or config.gradient_accumulation_steps)
    if config.generation_batch_size:
        rollouts = config.generation_batch_size // layout.processes
    optimizer = str(_plain(config.optim))
    return Work(
        rows=rows,
        group=config.num_generations,
        rollouts=rollouts,
        prompt=prompt,
        budget=config.max_completion_length,
        weight_bytes=2 if model_config.dtype in ("bfloat16", "float16") else 4,
        optimizer_bytes=2 if "8bit" in optimizer else _STATES.get(optimizer, 8),
        autocast=bool(config.fp16 or config.bf16 is not False),
        checkpointing=config.gradient_checkpointing,
        shared=shared,
        vllm=config.vllm_mode if config.use_vllm else "",
        vllm_share=config.vllm_gpu_memory_utilization,
        vllm_length=config.vllm_max_model_length or 0,
        tensor_parallel=config.vllm_tensor_parallel_size,
        sleep=config.vllm_enable_sleep_mode,
    )


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    folder = folder.absolute()
    return next(f for f in (folder, *folder.parents) if f.exists())


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)


def keeps_prefix(tokenizer: Any) -> bool:
    """Whether the chat template renders a turn the same way when further turns follow."""
    chat = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": call_text("SELECT 1")},
        {"role": "tool", "content": "{}"},
        {"role": "assistant", "content": answer_text("SELECT 1")},
    ]
    short, long = (
        tokenizer.apply_chat_template(chat[:n], tools=[RUN_SQL], tokenize=False) for n in (2, 4)
    )
    return long.startswith(short)
