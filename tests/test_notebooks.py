"""Notebooks run from top to bottom, and what is committed of them is fit to be read."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def outputs(notebook: Any) -> list[Any]:
    return [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]


def texts(notebook: Any) -> str:
    """All that the outputs say, pictures left out."""
    parts = []
    for output in outputs(notebook):
        parts.append(output.get("text", ""))
        data = output.get("data", {})
        parts += [data[kind] for kind in ("text/plain", "text/html") if kind in data]
    return "\n".join(parts)


def kinds(notebook: Any) -> set[str]:
    return {kind for output in outputs(notebook) for kind in output.get("data", {})}


def run(notebook: Any, folder: Path) -> None:
    """Execute it with a real kernel. Raises with the failing cell and its traceback."""
    where = {"metadata": {"path": folder}}
    NotebookClient(notebook, timeout=900, kernel_name="python3", resources=where).execute()


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_from_top_to_bottom(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NL2SQL_NOTEBOOK_STEPS", "2")
    path = tmp_path / name
    shutil.copy(FOLDER / name, path)
    notebook = nbformat.read(path, 4)
    committed = kinds(notebook)
    run(notebook, tmp_path)
    assert kinds(notebook) == committed
    assert [p.name for p in tmp_path.iterdir()] == [name], "it leaves files behind"


def test_a_broken_cell_fails_the_run_and_is_named(tmp_path: Path) -> None:
    notebook = nbformat.read(FOLDER / "01_one_question.ipynb", 4)
    broken = next(cell for cell in notebook.cells if cell.cell_type == "code")
    broken.source += "\nno_such_name"
    with pytest.raises(CellExecutionError, match="no_such_name"):
        run(notebook, tmp_path)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_committed_notebook_was_run_in_order_and_shows_something(name: str) -> None:
    notebook = nbformat.read(FOLDER / name, 4)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert kinds(notebook) & {"text/html", "image/png"}
    assert not [o for o in outputs(notebook) if o.output_type == "error"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_committed_notebook_is_small_and_holds_no_machine_path_or_warning(name: str) -> None:
    path = FOLDER / name
    assert path.stat().st_size < 300_000
    notebook = nbformat.read(path, 4)
    said = texts(notebook)
    places = ["/work", "/root", "/tmp", "/home/", "/Users/", os.path.expanduser("~/")]
    assert [place for place in places if place in said] == []
    assert re.findall(r"(?i)\w*warning\b|deprecated|it/s\]", said) == []
    assert not [o for o in outputs(notebook) if o.get("name") == "stderr"]


def test_all_seven_notebooks_are_there() -> None:
    assert [name[:3] for name in NOTEBOOKS] == [f"{n:02}_" for n in range(1, 8)]


def test_the_first_notebook_shows_a_trajectory_and_the_live_one_a_curve() -> None:
    assert "text/html" in kinds(nbformat.read(FOLDER / "01_one_question.ipynb", 4))
    live = nbformat.read(FOLDER / "04_train_live.ipynb", 4)
    assert {"text/html", "image/png"} <= kinds(live)


def test_the_first_notebook_asserts_itself_that_it_needs_no_torch() -> None:
    last = nbformat.read(FOLDER / "01_one_question.ipynb", 4).cells[-1]
    assert 'assert "torch" not in sys.modules' in last.source
