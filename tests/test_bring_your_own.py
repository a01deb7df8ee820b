"""What notebook 06 tells to do outside of it: its script and its shell commands, on its files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = nbformat.read(ROOT / "notebooks" / "06_bring_your_own.ipynb", 4)
CELLS = [cell.source for cell in NOTEBOOK.cells if cell.cell_type == "code"]
LAST = next(cell.source for cell in NOTEBOOK.cells if "train_shop.py" in cell.source)


def cell(words: str) -> str:
    [found] = [source for source in CELLS if words in source]
    return found


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the notebook's database, questions, reward and tool."""
    folder = tmp_path_factory.mktemp("shop")
    files = [cell("CREATE TABLE customer"), cell("QUESTIONS = "), cell("mended = ")]
    files[2] = files[2].partition("for split")[0]
    own = [cell("@tool").partition("print(")[0], cell("def climbing").partition("prompt = ")[0]]
    (folder / "shop.py").write_text("\n".join(["from pathlib import Path", *own]))
    (folder / "make.py").write_text("\n".join(files))
    subprocess.run([sys.executable, "make.py"], cwd=folder, check=True, timeout=60)
    return folder


def block(kind: str) -> str:
    return LAST.partition(f"```{kind}\n")[2].partition("```")[0]


@pytest.mark.slow
def test_the_script_with_an_own_reward_and_tool_trains(shop: Path) -> None:
    script = block("python")
    small = {
        '"runs/shop/sft/model"': '"tiny"',
        "max_steps=100": "max_steps=1, use_cpu=True, bf16=False, gradient_checkpointing=False",
        "gradient_accumulation_steps=8": "gradient_accumulation_steps=1",
        "max_completion_length=512": "max_completion_length=160",
    }
    for old, new in small.items():
        assert script.count(old) == 1
        script = script.replace(old, new)
    (shop / "train_shop.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "train_shop.py"], cwd=shop, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-2000:]
    run = shop / "runs" / "shop" / "grpo"
    assert (run / "model" / "model.safetensors").is_file()
    assert '"rollout/calls"' in (run / "metrics.jsonl").read_text()


@pytest.mark.slow
def test_the_shell_commands_warm_start_train_and_evaluate(shop: Path) -> None:
    commands = [line for line in block("bash").replace("\\\n", "").splitlines() if line]
    assert len(commands) == 4
    less = " --max_steps 1 --per_device_train_batch_size 8 --gradient_accumulation_steps 1"
    more = ["", f" --model_name_or_path tiny --bf16 false{less}", f" --bf16 false{less}", ""]
    for command, extra in zip(commands, more, strict=True):
        words = [
            str(ROOT / word) if word.startswith(("recipes/", "accelerate_configs/", "nl2sql_trl/"))
            else word
            for word in (command + extra).split()
        ]  # fmt: skip
        words[:1] = [sys.executable] if words[0] == "python" else [
            sys.executable, "-m", "accelerate.commands.accelerate_cli",
        ]  # fmt: skip
        done = subprocess.run(words, cwd=shop, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
    assert (shop / "runs" / "shop" / "dev" / "report.html").is_file()
    assert "shop.sqlite" in (shop / "runs" / "shop" / "sft" / "manifest.json").read_text()
