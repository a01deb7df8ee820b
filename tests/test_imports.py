"""What importing costs and which way imports point."""

from __future__ import annotations

import ast
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import nl2sql_trl

PACKAGE = Path(nl2sql_trl.__file__).parent
MODULES = {
    ".".join(("nl2sql_trl", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
_LIGHT = [
    "records",
    "database",
    "sandbox",
    "sqlengine",
    "sqlworker",
    "tools",
    "prompts",
    "policy",
    "rollout",
    "data",
    "questions",
    "gold",
    "rewards",
    "facts",
    "served",
    "vllm_policy",
    "viewer",
    "tokens",
]
LIGHT = ["nl2sql_trl", *(f"nl2sql_trl.{m}" for m in _LIGHT if f"nl2sql_trl.{m}" in MODULES)]
HEAVY = ["torch", "transformers", "trl", "datasets", "pandas", "matplotlib", "jinja2"]


def imported(path: Path) -> set[str]:
    """Modules of this project that a file imports, anywhere in it, functions included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: write absolute imports"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names & MODULES.keys()


@pytest.mark.parametrize("module", LIGHT)
def test_importing_it_loads_no_torch_and_nothing_else_heavy(module: str) -> None:
    script = f"import sys, {module}; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_records_import_nothing_of_the_project() -> None:
    assert imported(MODULES["nl2sql_trl.records"]) == set()


@pytest.mark.parametrize("module", MODULES)
def test_nothing_imports_the_training_script(module: str) -> None:
    assert "nl2sql_trl.train" not in imported(MODULES[module])


def test_no_two_modules_import_each_other_however_far_round() -> None:
    graph = {name: imported(path) - {name} for name, path in MODULES.items()}

    def reach(name: str, seen: frozenset[str]) -> None:
        assert name not in seen, f"{name} imports itself by way of {sorted(seen)}"
        for other in graph[name]:
            reach(other, seen | {name})

    for name in graph:
        reach(name, frozenset())


# `accelerate launch nl2sql_trl/train.py` puts the package's own folder first on the path, so a
# module there shadows a top-level package of the same name for every library that train.py loads.
# `evaluate` is allowed: the style guide and the README's commands name it, nothing that we depend
# on imports the Hugging Face library of that name, and that library isn't a dependency.
ALLOWED = {"evaluate"}
INSTALLED = importlib.metadata.packages_distributions()


@pytest.mark.parametrize(
    "stem", sorted({p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or p.is_dir()})
)
def test_no_module_is_named_like_a_module_of_the_library_or_an_installed_package(stem: str) -> None:
    if stem in ALLOWED or stem.startswith("__"):
        return
    assert stem not in sys.stdlib_module_names
    assert stem not in INSTALLED
