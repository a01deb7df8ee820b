"""A recipe, the command in its head comment and the accelerate config that it names agree."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes import ROOT

from nl2sql_trl.footprint import Layout
from nl2sql_trl.plan import GIB, Plan, layout_of, make_plan
from nl2sql_trl.preflight_checks import bewares, impossible

FOLDER = ROOT / "recipes"
GRPO = sorted(p.stem for p in FOLDER.glob("*.yaml") if not p.stem.endswith("_sft"))
BIG = [name for name in GRPO if "qwen" in name]
# Prompts a step, the devices and their GiB, the batch that the training processes share.
DEVICES = {
    "spider_qwen2.5_3b": (64, 8, 79.0),
    "spider_qwen2.5_3b_server": (64, 4, 79.0),
    "spider_qwen2.5_3b_lora": (8, 1, 23.5),
}


def commands(path: Path) -> list[list[str]]:
    """The commands in a file's comments, each as its words."""
    lines = [line.removeprefix("#").strip() for line in path.read_text().splitlines()]
    text = re.sub(r"\\\n", " ", "\n".join(lines))
    starts = r"^(?:[A-Z_]+=\S+ )*(?:accelerate launch|python -m|vllm serve) .*$"
    return [shlex.split(line) for line in re.findall(starts, text, re.MULTILINE)]


def flag(words: list[str], name: str) -> str | None:
    return words[words.index(name) + 1] if name in words else None


def recipe(name: str) -> dict[str, Any]:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text())


def launch(name: str) -> list[str]:
    [found] = [c for c in commands(FOLDER / f"{name}.yaml") if "accelerate" in c]
    return found


def layout(name: str) -> Layout:
    """What the recipe's launch command starts."""
    words = launch(name)
    file, processes = flag(words, "--config_file"), flag(words, "--num_processes")
    if file is None:
        return Layout(1)
    return layout_of(ROOT / file, int(processes) if processes else None)


def qwen() -> Any:
    """The published config of Qwen2.5-3B-Instruct, as far as sizes go."""
    from transformers import Qwen2Config

    return Qwen2Config(
        vocab_size=151_936,
        hidden_size=2048,
        intermediate_size=11_008,
        num_hidden_layers=36,
        num_attention_heads=16,
        num_key_value_heads=2,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
    )


def plan(name: str, gib: float | None = None, **changes: Any) -> Plan:
    """The plan of a recipe for Qwen2.5-3B, its longest prompt as long as it may be."""
    from trl import GRPOConfig, ModelConfig

    from nl2sql_trl.arguments import TrainArguments

    settings = recipe(name) | changes
    known: dict[type, dict[str, Any]] = {}
    for kind in (TrainArguments, ModelConfig, GRPOConfig):
        names = set(kind.__dataclass_fields__)
        known[kind] = {k: settings.pop(k) for k in list(settings) if k in names}
    assert not settings, f"{name} has settings that nothing takes: {list(settings)}"
    # This machine has no GPU, and one process.
    on_cpu = {"use_cpu": True} | known[GRPOConfig]
    config = GRPOConfig(**on_cpu)
    assert config.gradient_accumulation_steps == on_cpu["gradient_accumulation_steps"]
    return make_plan(
        config,
        ModelConfig(**known[ModelConfig]),
        layout(name),
        model=qwen(),
        prompt=known[TrainArguments]["max_prompt_tokens"],
        device=int(gib * GIB) if gib else None,
        here=False,
    )


@pytest.mark.parametrize("name", GRPO)
def test_the_command_in_the_comment_names_the_recipe_and_files_that_are_there(name: str) -> None:
    words = launch(name)
    assert flag(words, "--config") == f"recipes/{name}.yaml"
    assert (ROOT / words[words.index("--config") - 1]).is_file()
    file = flag(words, "--config_file")
    assert file is None or (ROOT / file).is_file()


@pytest.mark.parametrize("name", GRPO)
def test_a_steps_rollouts_divide_into_whole_groups(name: str) -> None:
    settings, found = recipe(name), layout(name)
    each = settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"]
    rollouts = each * found.processes
    assert rollouts % settings["num_generations"] == 0
    if name in DEVICES:
        prompts, processes, _ = DEVICES[name]
        assert rollouts == prompts * settings["num_generations"]
        assert found.processes == processes


@pytest.mark.parametrize("name", GRPO)
def test_precision_is_the_recipes_or_the_same(name: str) -> None:
    file = flag(launch(name), "--config_file")
    if file is None:
        return
    precision = yaml.safe_load((ROOT / file).read_text())["mixed_precision"]
    assert precision == "no" or (precision == "bf16" and recipe(name)["bf16"])


@pytest.mark.parametrize("name", BIG)
def test_a_recipe_that_we_have_not_run_says_so(name: str) -> None:
    assert name in DEVICES
    assert "NOT RUN BY US" in (FOLDER / f"{name}.yaml").read_text()


@pytest.mark.parametrize("name", BIG)
def test_a_recipe_for_3b_fits_its_devices_and_has_only_known_settings(name: str) -> None:
    found = plan(name, DEVICES[name][2])
    assert impossible(found) == []
    assert bewares(found) == []
    assert found.memory.peak < 0.9 * DEVICES[name][2] * GIB


def test_the_reference_run_does_not_fit_without_sharing_its_states_out() -> None:
    unshared = plan("spider_qwen2.5_3b", 79.0)
    whole = make_plan(
        unshared.config, unshared.model_config, Layout(8), model=qwen(), prompt=4096,
        device=79 * GIB, here=False,
    )  # fmt: skip
    assert any("zero2.yaml" in text for text in impossible(whole))


def test_the_server_recipe_differs_from_the_colocated_one_in_nothing_but_where_it_samples() -> None:
    one, two = recipe("spider_qwen2.5_3b"), recipe("spider_qwen2.5_3b_server")
    differ = {key for key in one.keys() | two.keys() if one.get(key) != two.get(key)}
    assert differ == {
        "output_dir", "gradient_accumulation_steps", "vllm_mode", "vllm_server_base_url",
        "vllm_server_timeout", "vllm_tensor_parallel_size", "vllm_gpu_memory_utilization",
        "vllm_enable_sleep_mode", "vllm_max_model_length",
    }  # fmt: skip


def test_vllm_holds_the_longest_prompt_and_the_whole_budget() -> None:
    settings = recipe("spider_qwen2.5_3b")
    longest = settings["max_prompt_tokens"] + settings["max_completion_length"]
    assert settings["vllm_max_model_length"] == longest
    [server] = [c for c in commands(FOLDER / "spider_qwen2.5_3b_server.yaml") if "vllm" in c]
    assert flag(server, "--max-model-len") == str(longest)


def test_the_server_and_the_trainer_have_gpus_of_their_own() -> None:
    path = FOLDER / "spider_qwen2.5_3b_server.yaml"
    visible = [w.split("=")[1].split(",") for c in commands(path) for w in c if "CUDA_VIS" in w]
    server, trainer = map(set, visible)
    assert not server & trainer
    [serve] = [c for c in commands(path) if "vllm" in c]
    assert flag(serve, "--tensor-parallel-size") == str(len(server))
    assert len(trainer) == layout("spider_qwen2.5_3b_server").processes


@pytest.mark.parametrize(
    "file", ["recipes/spider_qwen2.5_3b_server.yaml", "scripts/slurm/train.sbatch"]
)
def test_a_server_is_started_with_the_flags_that_trl_gives_one(file: str) -> None:
    from trl.scripts.vllm_serve import ScriptArguments, build_command

    built = build_command(ScriptArguments(model="m"))
    text = re.sub(r"\\\n#?\s*", " ", (ROOT / file).read_text())
    said = shlex.split(next(line for line in text.splitlines() if "serve" in line and "nccl" in line
                            ).removeprefix("#"))  # fmt: skip
    for name in ("--weight-transfer-config", "--logprobs-mode", "--max-logprobs"):
        assert flag(said, name) == flag(built, name)
    assert "VLLM_SERVER_DEV_MODE=1" in said
