"""What README and docs name is there: files, commands, flags, recipes, notebooks."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from nl2sql_trl.arguments import TrainArguments
from nl2sql_trl.sft import SftArguments

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(page: Path) -> list[list[str]]:
    """The shell commands of a page's bash blocks, continuation lines joined, comments dropped."""
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


ALL = [
    pytest.param(words, id=f"{page.name}: {' '.join(words)[:60]}")
    for page in PAGES
    for words in commands(page)
]


def module_of(words: list[str]) -> str | None:
    """The module of ours that a command runs, however it is launched."""
    for word in words:
        if re.fullmatch(r"nl2sql_trl\.\w+", word):
            return word.removeprefix("nl2sql_trl.")
        if match := re.fullmatch(r"nl2sql_trl/(\w+)\.py", word):
            return match[1]
    return None


@cache
def flags(module: str) -> str:
    """What a command says of its flags. The two trainings take TRL's as well."""
    if module in ("train", "sft", "preflight"):
        from trl import GRPOConfig, ModelConfig, SFTConfig

        from nl2sql_trl.preflight import PreflightArguments

        kinds = (TrainArguments, SftArguments, PreflightArguments)
        kinds += (GRPOConfig, ModelConfig, SFTConfig)
        return " ".join(f"--{f.name}" for kind in kinds for f in fields(kind)) + " --config"
    command = [sys.executable, "-m", f"nl2sql_trl.{module}", "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout


@pytest.mark.parametrize("words", ALL)
def test_a_command_of_the_docs_is_there_with_its_flags(words: list[str]) -> None:
    module = module_of(words)
    if module is None:
        return
    ours = words[[module in word for word in words].index(True) + 1 :]
    named = [word.split("=")[0] for word in ours if word.startswith("--")]
    known = set(re.findall(r"--[\w-]+", flags(module)))
    assert [flag for flag in named if flag not in known] == []


@pytest.mark.parametrize("words", ALL)
def test_a_file_of_the_repository_that_a_command_names_is_there(words: list[str]) -> None:
    ours = ("recipes/", "accelerate_configs/", "nl2sql_trl/", "scripts/", "benchmarks/", "tests/")
    named = [word for word in words if word.startswith(ours)]
    assert [word for word in named if not (ROOT / word).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    here = [t for t in targets if "://" not in t]
    assert [t for t in here if not (page.parent / t).exists()] == []


def test_every_command_is_in_the_readme() -> None:
    paths = [*(ROOT / "nl2sql_trl").glob("*.py"), *(ROOT / "nl2sql_trl").glob("*/__main__.py")]
    runnable = {
        path.parent.name if path.stem == "__main__" else path.stem
        for path in paths
        if path.stem == "__main__" or '__name__ == "__main__":\n    sys.exit' in path.read_text()
    }
    assert {"train", "evaluate", "ask", "export", "suite"} <= runnable
    assert sorted(n for n in runnable if not re.search(rf"nl2sql_trl[./]{n}\b", README)) == []


@pytest.mark.parametrize("folder", ["notebooks", "recipes"])
def test_every_notebook_and_recipe_is_in_the_readme(folder: str) -> None:
    names = [p.stem for p in (ROOT / folder).iterdir() if not p.name.startswith(".")]
    assert sorted(name for name in names if name not in README) == []


def test_every_module_is_in_the_readmes_table_of_modules() -> None:
    table = README.split("## How it works")[1].split("## ")[0]
    named = re.findall(r"`([\w*/]+)`", table)
    modules = [p.stem for p in (ROOT / "nl2sql_trl").glob("*.py") if not p.stem.startswith("_")]
    # A few helpers stand beside the module that they serve and are not named.
    patterns = [n.replace("*", "") for n in named if n.endswith("*")]
    missing = [m for m in modules if m not in named and not any(m.startswith(p) for p in patterns)]
    assert sorted(missing) == []


def test_every_make_target_that_the_docs_name_is_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = set(re.findall(r"^make ([\w-]+)", text, re.MULTILINE))
    named |= set(re.findall(r"`make ([\w-]+)", text))
    assert {"demo", "test"} <= named
    assert sorted(t for t in named if not re.search(rf"^{t}:", makefile, re.MULTILINE)) == []
