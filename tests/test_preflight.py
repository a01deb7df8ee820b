"""What preflight says of a run is true of the run, and says what to change."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from fakes import ROOT, chat_tokenizer, random_model, write_spider_folder

from nl2sql_trl.footprint import (
    Layout,
    Work,
    checkpoint_bytes,
    kv_bytes,
    memory,
    model_bytes,
    shape_of,
    vllm_least,
)
from nl2sql_trl.plan import GIB, Plan, Prompts, keeps_prefix, make_plan
from nl2sql_trl.preflight import describe
from nl2sql_trl.preflight_checks import bewares, impossible

WORK = Work(rows=8, group=8, rollouts=64, prompt=500, budget=192)


# The arithmetic against the truth


@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_exact(kind: str, tied: bool) -> None:
    model = random_model(kind, tie_word_embeddings=tied)
    shape = shape_of(model.config)
    assert shape.parameters == shape.trainable == sum(p.numel() for p in model.parameters())
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    assert model_bytes(shape, WORK) == size
    assert memory(shape, replace(WORK, autocast=False), Layout()).weights == size


def test_adapters_are_counted_as_peft_makes_them() -> None:
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    model = random_model()
    shape = shape_of(model.config, lora)
    trained, everything = get_peft_model(model, lora).get_nb_trainable_parameters()
    assert (shape.trainable, shape.parameters) == (trained, everything - trained)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_of_keys_and_values_are_exact(dtype: torch.dtype) -> None:
    model = random_model().to(dtype)
    cache = model(torch.arange(5, 42)[None], use_cache=True).past_key_values
    held = sum(t.nbytes for layer in cache.layers for t in (layer.keys, layer.values))
    assert kv_bytes(shape_of(model.config), 37, dtype.itemsize) == held


@pytest.mark.parametrize(("autocast", "width"), [(False, 4), (True, 2)])
def test_the_engines_prefix_takes_the_bytes_that_are_counted(autocast: bool, width: int) -> None:
    from nl2sql_trl.engine import TransformersPolicy
    from nl2sql_trl.kvcache import Prefix
    from nl2sql_trl.prompts import Codec

    model = random_model()
    policy = TransformersPolicy(model, Codec(chat_tokenizer()), autocast=autocast)
    prefix = Prefix(tuple(range(5, 55)))
    with policy.session():
        policy._prefill(prefix)
    held = sum(t.nbytes for t in (*prefix.keys, *prefix.values))
    assert kv_bytes(shape_of(model.config), 50, width) == held


def test_a_checkpoint_takes_the_disk_that_is_said(tmp_path: Path) -> None:
    model = random_model(hidden_size=128, intermediate_size=256, num_attention_heads=8)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.arange(5, 15)[None]).logits.sum().backward()
    optimizer.step()
    model.save_pretrained(tmp_path)
    states = io.BytesIO()
    torch.save(optimizer.state_dict(), states)
    found = (tmp_path / "model.safetensors").stat().st_size + states.tell()
    assert checkpoint_bytes(shape_of(model.config), WORK, Layout()) == pytest.approx(found, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        "tiny 32 600 224 0 1 0",
        "tiny 32 600 224 1 1 0",
        "tiny 32 600 224 1 0 1",
        "smollm2-135m 2 200 64 1 1 0",
    ],
)
def test_the_peak_of_a_training_step_is_within_a_factor_of_two(case: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "peak_of_step.py"), *case.split()],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    estimated, measured = map(int, done.stdout.split())
    assert 0.5 < estimated / measured < 2


@pytest.mark.parametrize("sharding", ["zero2", "zero3", "fsdp2"])
def test_more_processes_leave_less_on_each(sharding: Any) -> None:
    shape = shape_of(random_model().config)
    few, many = (memory(shape, WORK, Layout(n, sharding)) for n in (2, 8))
    assert many.gradients + many.optimizer < few.gradients + few.optimizer
    assert (many.weights < few.weights) == (sharding != "zero2")


def test_a_sleeping_engine_is_not_there_in_the_update() -> None:
    shape = shape_of(random_model().config)
    work = replace(WORK, vllm="colocate", vllm_share=0.5)
    awake, asleep = (memory(shape, replace(work, sleep=s), Layout(), GIB) for s in (False, True))
    assert awake.generation == asleep.generation == GIB // 2
    assert awake.fixed - asleep.fixed == GIB // 2
    assert memory(shape, replace(work, vllm="server"), Layout(), GIB).generation == 0
    assert 0 < vllm_least(shape, work) < GIB


# The checks


def settings(**changes: Any) -> Any:
    """The part of TRL's GRPOConfig that is looked at."""
    return SimpleNamespace(
        **{
            "per_device_train_batch_size": 8, "gradient_accumulation_steps": 8,
            "steps_per_generation": None, "generation_batch_size": None, "num_generations": 8,
            "max_completion_length": 192, "gradient_checkpointing": False, "bf16": True,
            "fp16": False, "optim": "adamw_torch_fused", "beta": 0.0, "temperature": 1.0,
            "top_p": 1.0, "top_k": 0, "min_p": None, "use_vllm": False, "vllm_mode": "colocate",
            "vllm_gpu_memory_utilization": 0.3, "vllm_max_model_length": None,
            "vllm_tensor_parallel_size": 1, "vllm_enable_sleep_mode": False,
            "save_strategy": "steps", "save_total_limit": 1, "output_dir": "runs/x",
        }
        | changes
    )  # fmt: skip


def plan(
    lengths: tuple[int, ...] = (100, 300),
    most: int | None = None,
    device: int | None = 8 * GIB,
    processes: int = 1,
    dtype: str = "float32",
    **changes: Any,
) -> Plan:
    from trl import ModelConfig

    return make_plan(
        settings(**changes),
        ModelConfig(model_name_or_path="m", dtype=dtype),
        Layout(processes),
        model=random_model().config,
        prompts=Prompts(lengths, len(lengths), most),
        device=device,
    )


def test_a_sound_run_has_nothing_to_beware_of() -> None:
    assert impossible(plan()) == bewares(plan()) == []


@pytest.mark.parametrize(
    ("found", "parts"),
    [
        (plan(num_generations=7), ["64 rollouts", "num_generations (7)"]),
        (plan(processes=3, gradient_accumulation_steps=1, num_generations=16), ["3 processes x 8"]),
        (plan(num_generations=1), ["below 2"]),
        (plan(device=2**20), ["weights, gradients and optimiser", "use_peft"]),
        (plan(device=2**20, processes=4), ["zero2.yaml"]),
        (plan(most=50), ["max_prompt_tokens 50 leaves no row", "100 tokens"]),
        (plan(lengths=(5000, 6000)), ["5000 tokens", "4096 positions", "longer context"]),
        (plan(use_vllm=True, vllm_tensor_parallel_size=3), ["must divide", "heads (4)"]),
        (plan(use_vllm=True, vllm_max_model_length=400), ["context of 400", "max_prompt_tokens"]),
        (plan(use_vllm=True, vllm_gpu_memory_utilization=0.0001), ["vLLM needs"]),
        (replace(plan(), disk=1000), ["to be saved", "output_dir"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_run_that_cannot_work_is_told_why_and_what_to_change(
    found: Plan, parts: list[str]
) -> None:
    said = impossible(found)
    assert said
    for part in parts:
        assert part in said[0]


def own(**values: Any) -> Any:
    return SimpleNamespace(**values)


@pytest.mark.parametrize(
    ("found", "parts"),
    [
        (plan(lengths=(100,) * 3 + (900,), most=800), ["25.0% of the rows", "(800)", "raise it"]),
        (plan(lengths=(100, 4000)), ["50.0% of the rows", "max_prompt_tokens to 3904"]),
        (plan(device=GIB // 32), ["halve per_device_train_batch_size"]),
        (plan(device=GIB // 32, gradient_accumulation_steps=64, per_device_train_batch_size=1,
              max_completion_length=3500, gradient_checkpointing=True), ["max_completion_length"]),
        (plan(save_total_limit=None), ["every checkpoint", "save_total_limit to 2"]),
        (replace(plan(), disk=5_000_000, saves=9), ["lower save_total_limit"]),
        (plan(temperature=0.1), ["near greedy", "set it to 1"]),
        (plan(top_k=20), ["top_k: 0"]),
        (plan(dtype="bfloat16"), ["dtype: float32"]),
        (plan(beta=0.04), ["reference model"]),
        (replace(plan(), keeps_prefix=False), ["not prefix-preserving"]),
        (replace(plan(), generation=own(temperature=0.7, top_p=0.8, top_k=20,
                                        repetition_penalty=1.05)),
         ["temperature 0.7, top_p 0.8, top_k 20, repetition_penalty 1.05", "nearer to greedy"]),
        (replace(plan(use_vllm=True, vllm_mode="server"), generation=own(top_k=1)),
         ["--generation-config vllm"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)  # fmt: skip
def test_what_may_go_wrong_is_marked_and_says_what_to_change(found: Plan, parts: list[str]) -> None:
    assert impossible(found) == []
    said = [line for line in describe(found).splitlines() if line.startswith("beware: ")]
    assert [line for line in said if all(part in line for part in parts)], said


@pytest.mark.parametrize("config", [None, own(), own(temperature=1.0, top_k=50, top_p=1.0)])
def test_a_model_that_samples_as_it_is_gives_no_cause(config: Any) -> None:
    assert bewares(replace(plan(), generation=config)) == []


@pytest.mark.parametrize(
    ("template", "kept"), [("qwen2_5", True), ("qwen3_training", True), ("qwen3", False)]
)
def test_a_template_that_renders_earlier_turns_anew_is_found(template: str, kept: bool) -> None:
    tokenizer = chat_tokenizer(template)
    assert keeps_prefix(tokenizer) is kept


# The command


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Any:
    """Runs `preflight` (or `train`) on a recipe of these settings; returns status, out, err."""

    def run(command: str, model: Path, *flags: str, **changes: Any) -> tuple[Any, str, str]:
        from importlib import import_module

        recipe = tmp_path / "recipe.yaml"
        data = tmp_path / "spider"
        if not data.exists():
            write_spider_folder(data)
        content = {
            "model_name_or_path": str(model), "data": str(data), "num_generations": 4,
            "output_dir": str(tmp_path / "out"), "per_device_train_batch_size": 4,
            "max_completion_length": 16, "max_steps": 1, "bf16": False, "use_cpu": True,
            "gradient_checkpointing": False, "report_to": "none", "save_strategy": "no",
        } | changes  # fmt: skip
        recipe.write_text(yaml.safe_dump(content))
        monkeypatch.setattr(sys, "argv", ["x.py", "--config", str(recipe), *flags])
        try:
            status = import_module(f"nl2sql_trl.{command}").main()
        except SystemExit as stop:
            status = stop.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_the_command_says_memory_disk_and_prompts_in_four_lines(
    call: Any, model_folder: Path
) -> None:
    status, out, err = call("preflight", model_folder)
    assert status == 0, err
    starts = [line.split(":")[0] for line in out.splitlines()]
    assert starts == ["preflight", "memory", "disk", "prompts"]
    assert "8 of 8 rows" in out
    assert str(model_folder.parent) not in out


def test_a_run_for_other_machines_is_looked_at_from_here(call: Any, model_folder: Path) -> None:
    config = ROOT / "accelerate_configs" / "zero2.yaml"
    flags = ("--accelerate_config", str(config), "--device_gib", "80")
    # On this machine TRL's config itself would refuse bf16 without a GPU.
    status, out, _ = call("preflight", model_folder, *flags, bf16=True, use_cpu=False)
    assert status == 0
    assert "8 processes, ZeRO-2" in out
    assert "of 80.0 GiB a device" in out
    assert "free" not in out


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--device_gib", "0.0001"], "weights, gradients and optimiser"),
        (["--max_prompt_tokens", "3"], "leaves no row"),
        (["--accelerate_config", "nosuch.yaml"], "nosuch.yaml"),
        (["--processes", "3", "--num_generations", "8"], "do not divide"),
        (["--data", "nosuch"], "no data folder nosuch"),
    ],
)
def test_an_impossible_run_ends_the_command_with_one_line(
    flags: list[str], part: str, call: Any, model_folder: Path
) -> None:
    status, out, err = call("preflight", model_folder, *flags)
    assert status == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert part in err


def test_training_looks_first_and_loads_no_model_if_it_cannot_work(
    call: Any, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("nl2sql_trl.models.load_model", load)
    status, _, err = call("train", model_folder, "--max_prompt_tokens", "3")
    assert status == 2
    assert "leaves no row" in err
    with pytest.raises(AssertionError, match="was loaded"):
        call("train", model_folder)
