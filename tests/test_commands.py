"""Bad input to a command gives one line that names it, exit status 2 and no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes import ROOT

Spoil = Callable[[Path], object]


def settings(model: Path, data: Path, out: Path, **changes: Any) -> dict[str, Any]:
    return {
        "model_name_or_path": str(model),
        "output_dir": str(out),
        "data": str(data),
        "per_device_train_batch_size": 4,
        "max_steps": 1,
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "report_to": "none",
        **changes,
    }


def train_settings(model: Path, data: Path, out: Path, **changes: Any) -> dict[str, Any]:
    return settings(model, data, out, num_generations=4, max_completion_length=16, **changes)


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., str]:
    """Runs a command in this process; returns its error line, having checked its form."""

    def run(command: str, *arguments: object) -> str:
        from importlib import import_module

        # Nothing that is tried here may reach a network.
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        main = import_module(f"nl2sql_trl.{command}").main
        monkeypatch.setattr(sys, "argv", [f"{command}.py", *map(str, arguments)])
        try:
            status = main()
        except SystemExit as stop:
            status = stop.code
        captured = capsys.readouterr()
        lines = captured.err.strip().splitlines()
        told = [line for line in lines if line.startswith("error: ")]
        assert status == 2, captured
        assert len(told) == 1, captured.err
        assert lines[-1] == told[0], captured.err
        assert "Traceback" not in captured.err + captured.out
        return told[0]

    return run


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[..., Path]:
    """Writes a recipe: a dictionary, or a text as it stands."""

    def write(content: object) -> Path:
        path = tmp_path / "recipe.yaml"
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return write


# Data that cannot be used, the same for every command


def drop_database(folder: Path) -> None:
    (folder / "database" / "shops" / "shops.sqlite").unlink()


def drop_all_databases(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder / "database")


def cut_database(folder: Path) -> None:
    path = folder / "database" / "music" / "music.sqlite"
    path.write_bytes(path.read_bytes()[:-1000])


def empty_database(folder: Path) -> None:
    (folder / "database" / "music" / "music.sqlite").write_bytes(b"")


def no_database(folder: Path) -> None:
    (folder / "database" / "music" / "music.sqlite").write_text("<html>404 not found</html>" * 99)


def split_files(folder: Path) -> list[Path]:
    return [folder / name for name in ("train_spider.json", "dev.json")]


def cut_json(folder: Path) -> None:
    for file in split_files(folder):
        text = file.read_text()
        file.write_text(text[: text.index("Which ages") + 5])


def edited(change: Callable[[list[Any]], object]) -> Spoil:
    def spoil(folder: Path) -> None:
        for file in split_files(folder):
            rows = json.loads(file.read_text())
            change(rows)
            file.write_text(json.dumps(rows))

    return spoil


def remove_folder(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def remove_split(folder: Path) -> None:
    for file in split_files(folder):
        file.unlink()


DATA: dict[str, tuple[Spoil, list[str]]] = {
    "a missing folder": (remove_folder, ["no data folder", "spider"]),
    "a folder without the split": (remove_split, [".json is missing", "download"]),
    "no databases": (drop_all_databases, ["no database/ folder", "download it again"]),
    "a missing database": (drop_database, ["1 of 2 databases", "'shops'"]),
    "a truncated database": (cut_database, ["music.sqlite", "cut short"]),
    "an empty database": (empty_database, ["music.sqlite", "empty"]),
    "a web page for a database": (no_database, ["music.sqlite", "not a SQLite database"]),
    "malformed JSON": (cut_json, [".json", "malformed JSON in row 3"]),
    "a row without a query": (edited(lambda rows: rows[5].pop("query")), ["row 5", "'query'"]),
    "a row that is no object": (edited(lambda rows: rows.insert(2, "x")), ["row 2", "a string"]),
    "an unknown db_id": (edited(lambda rows: rows[6].update(db_id="nosuch")), ["'nosuch'"]),
    "a db_id that climbs": (edited(lambda rows: rows[1].update(db_id="../x")), ["row 1", "'../x'"]),
    "no rows": (edited(lambda rows: rows.clear()), ["no rows"]),
    "no gold that runs": (
        edited(lambda rows: [row.update(query="SELEC") for row in rows]),
        ["no usable row"],
    ),
}


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (command, name)
        for command in ("train", "sft", "evaluate", "prepare")
        for name in DATA
        # For prepare that is a finding.
        if (command, name) != ("prepare", "no gold that runs")
    ],
)
def test_data_that_cannot_be_used_is_named(
    command: str,
    name: str,
    call: Callable[..., str],
    recipe: Callable[..., Path],
    spider_folder: Path,
    model_folder: Path,
    tmp_path: Path,
) -> None:
    spoil, parts = DATA[name]
    spoil(spider_folder)
    out = tmp_path / "out"
    if command == "train":
        line = call("train", "--config", recipe(train_settings(model_folder, spider_folder, out)))
    elif command == "sft":
        line = call("sft", "--config", recipe(settings(model_folder, spider_folder, out)))
    elif command == "evaluate":
        line = call("evaluate", "--model", model_folder, "--data", spider_folder, "--out", out)
    else:
        line = call("prepare", "--data", spider_folder, "--out", tmp_path / "report.json")
    for part in parts:
        assert part in line


# Models


@pytest.mark.parametrize("command", ["train", "sft", "evaluate"])
@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("smollm3", ["no model 'smollm3'", "smollm2-135m"]),
        ("./nosuch/folder", ["no model './nosuch/folder'"]),
        ("nobody/nosuch-model", ["'nobody/nosuch-model'", "could not be loaded"]),
        (".", ["without config.json"]),
        ("a b/c d", ["'a b/c d'"]),
        ("runs/nosuch", ["'runs/nosuch'", "finished"]),
        ("", ["no model is named"]),
    ],
)
def test_a_model_that_cannot_be_had_is_named(
    command: str,
    model: str,
    parts: list[str],
    call: Callable[..., str],
    recipe: Callable[..., Path],
    spider_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    make = train_settings if command == "train" else settings
    if command == "evaluate":
        line = call("evaluate", "--model", model, "--data", spider_folder, "--out", tmp_path / "o")
    else:
        made = make(Path(), spider_folder, tmp_path / "o", model_name_or_path=model)
        line = call(command, "--config", recipe(made))
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    ("flag", "near"), [("--max_stepz", "--max_steps"), ("--dta", "--data"), ("--xyzzy", "")]
)
def test_a_misspelt_flag_is_told_with_the_one_that_is_near(
    flag: str, near: str, call: Callable[..., str]
) -> None:
    line = call("sft", flag, "3")
    assert f"no flag {flag}" in line
    assert near in line


def test_a_finished_run_is_not_written_over(
    call: Callable[..., str], recipe: Callable[..., Path], model_folder: Path,
    spider_folder: Path, tmp_path: Path,
) -> None:  # fmt: skip
    (tmp_path / "o" / "model").mkdir(parents=True)
    (tmp_path / "o" / "model" / "run.json").write_text("{}")
    for command, make in (("train", train_settings), ("sft", settings)):
        line = call(command, "--config", recipe(make(model_folder, spider_folder, tmp_path / "o")))
        assert "finished run" in line


def test_an_output_folder_that_cannot_be_made_is_told_before_anything_else(
    call: Callable[..., str], recipe: Callable[..., Path], model_folder: Path,
    spider_folder: Path, tmp_path: Path,
) -> None:  # fmt: skip
    (tmp_path / "file").write_text("")
    made = settings(model_folder, spider_folder, tmp_path / "file" / "o")
    assert "cannot be made" in call("sft", "--config", recipe(made))


def test_an_evaluation_is_not_written_over_by_one_of_another_model(
    call: Callable[..., str], model_folder: Path, spider_folder: Path, tmp_path: Path
) -> None:
    old = {"settings": {"model": "other", "data": str(spider_folder), "split": "dev"}}
    (tmp_path / "report.json").write_text(json.dumps(old))
    line = call("evaluate", "--model", model_folder, "--data", spider_folder, "--out", tmp_path)
    assert "another model (other)" in line
    assert json.loads((tmp_path / "report.json").read_text()) == old


def break_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:2000])


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def without_tokenizer(folder: Path) -> None:
    for path in folder.glob("token*"):
        path.unlink()


def without_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()


@pytest.mark.parametrize(
    "spoil",
    [break_weights, break_config, without_weights, without_tokenizer,
     without_template],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_a_damaged_model_folder_is_told_in_one_line(
    spoil: Spoil, call: Callable[..., str], model_folder: Path, spider_folder: Path, tmp_path: Path
) -> None:
    import shutil

    folder = tmp_path / "spoilt"
    shutil.copytree(model_folder, folder)
    spoil(folder)
    line = call("evaluate", "--model", folder, "--data", spider_folder, "--out", tmp_path / "o")
    assert "spoilt" in line or "chat template" in line


# Recipes and flags


@pytest.mark.parametrize("command", ["train", "sft"])
@pytest.mark.parametrize(
    ("content", "parts"),
    [
        ({"learning_rte": 1e-5}, ["'learning_rte'", "did you mean learning_rate?"]),
        ({"max_step": 5}, ["'max_step'", "did you mean max_steps?"]),
        ({"zzzzqqqq": 1}, ["no setting 'zzzzqqqq'"]),
        ({5: 1}, ["no setting 5"]),
        ("a: [1, 2", ["recipe.yaml", "line 1", "not valid YAML"]),
        ("output_dir: x\n\tdata: y\n", ["recipe.yaml", "line 2", "not valid YAML"]),
        ("just words", ["recipe.yaml", "key: value"]),
        ("- a\n- b\n", ["recipe.yaml", "key: value"]),
        ("", ["recipe.yaml", "key: value"]),
        ({"learning_rate": "fast"}, ["learning_rate", "fast"]),
        ({"max_steps": "many"}, ["max_steps", "many"]),
        ({"save_strategy": "sometimes"}, ["sometimes"]),
        ({"env": "x"}, ["env"]),
    ],
    ids=str,
)
def test_a_recipe_that_is_wrong_is_told_what_and_where(
    command: str,
    content: object,
    parts: list[str],
    call: Callable[..., str],
    recipe: Callable[..., Path],
    spider_folder: Path,
    model_folder: Path,
    tmp_path: Path,
) -> None:
    if isinstance(content, dict):
        make = train_settings if command == "train" else settings
        content = make(model_folder, spider_folder, tmp_path / "out") | content
        content = "".join(f"{k}: {json.dumps(v)}\n" for k, v in content.items())
    line = call(command, "--config", recipe(content))
    for part in parts:
        assert part in line


def test_a_recipe_that_is_no_text_is_told(call: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "recipe.yaml" in call("train", "--config", path)


@pytest.mark.parametrize("command", ["train", "sft"])
def test_a_recipe_that_is_not_there_is_named(
    command: str, call: Callable[..., str], tmp_path: Path
) -> None:
    assert "no recipe" in call(command, "--config", tmp_path / "nosuch.yaml")
    assert "no recipe" in call(command, f"--config={tmp_path / 'nosuch.yaml'}")
    assert "no recipe" in call(command, "--config", tmp_path)
    assert "--config needs" in call(command, "--config")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"num_generations": 3}, ["num_generations", "divi"]),
        ({"per_device_train_batch_size": 6}, ["num_generations", "divi"]),
        ({"num_generations": 1}, ["at least 2 generations"]),
        ({"rewards": ["execution_match", "nosuch"]}, ["no reward 'nosuch'", "execution_match"]),
        ({"rewards": []}, ["reward"]),
        ({"reward_weights": [1.0, 2.0]}, ["reward"]),
        ({"max_turns": 0}, ["max_turns"]),
        ({"tool_chars": 5}, ["tool_chars"]),
        ({"reserve_tokens": 99}, ["reserve_tokens"]),
        ({"truncation": "head"}, ["truncation", "head"]),
        ({"column_order": "some"}, ["column_order", "some"]),
        ({"empty_results": "maybe"}, ["empty_results", "maybe"]),
        ({"temperature": -1.0}, ["temperature"]),
        ({"temperature": 0.0}, ["temperature"]),
        ({"top_p": 1.5}, ["top_p"]),
        ({"max_prompt_tokens": 1}, ["max_prompt_tokens", "leaves no row"]),
        ({"rows": 0}, ["rows"]),
        ({"use_vllm": True}, ["vllm"]),
        ({"model_name_or_path": None}, ["no model is named"]),
    ],
    ids=str,
)
def test_a_setting_that_cannot_be_is_named(
    changes: dict[str, Any],
    parts: list[str],
    call: Callable[..., str],
    recipe: Callable[..., Path],
    spider_folder: Path,
    model_folder: Path,
    tmp_path: Path,
) -> None:
    made = train_settings(model_folder, spider_folder, tmp_path / "out") | changes
    line = call("train", "--config", recipe(made))
    for part in parts:
        assert part.lower() in line.lower()


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--no_such_flag", "1"], ["--no_such_flag"]),
        (["--learning_rate", "fast"], ["learning_rate", "fast"]),
        (["--max_steps"], ["max_steps"]),
        (["--resume_from_checkpoint", "nosuch/checkpoint-5"], ["nosuch/checkpoint-5"]),
    ],
    ids=str,
)
def test_a_flag_that_is_wrong_is_named(
    flags: list[str],
    parts: list[str],
    call: Callable[..., str],
    recipe: Callable[..., Path],
    spider_folder: Path,
    model_folder: Path,
    tmp_path: Path,
) -> None:
    made = recipe(train_settings(model_folder, spider_folder, tmp_path / "out"))
    line = call("train", "--config", made, *flags)
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--samples", "4"], "temperature"),
        (["--budget", "0"], "budget"),
        (["--max_turns", "0"], "max_turns"),
        (["--tool_chars", "3"], "tool_chars"),
        (["--temperature", "-1"], "temperature"),
        (["--limit", "0"], "limit"),
        (["--limit", "-3"], "limit"),
        (["--samples", "0"], "samples"),
        (["--samples", "2", "--temperature", "nan"], "must be a number"),
        (["--suite", "nowhere"], "no such folder"),
        (["--suite", "."], "no files for music"),
    ],
    ids=str,
)
def test_a_flag_of_evaluate_that_cannot_be_is_named(
    flags: list[str],
    part: str,
    call: Callable[..., str],
    spider_folder: Path,
    model_folder: Path,
    tmp_path: Path,
) -> None:
    line = call("evaluate", "--model", model_folder, "--data", spider_folder,
                "--out", tmp_path / "out", *flags)  # fmt: skip
    assert part in line


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_for_results_that_cannot_be_made_is_found_before_the_rollouts(
    place: str, call: Callable[..., str], spider_folder: Path, model_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    line = call("evaluate", "--model", model_folder, "--data", spider_folder,
                "--out", tmp_path / place)  # fmt: skip
    assert "cannot be made" in line


def test_a_damaged_test_suite_is_found_before_the_rollouts(
    call: Callable[..., str],
    spider_folder: Path,
    model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("music", "shops"):
        folder = spider_folder / "test_suite_database" / name
        folder.mkdir(parents=True)
        (folder / f"{name}.sqlite").write_bytes(b"half a database" * 99)
    monkeypatch.setattr("nl2sql_trl.evaluate.evaluate", None)
    line = call("evaluate", "--model", model_folder, "--data", spider_folder,
                "--out", tmp_path / "out")  # fmt: skip
    assert "cannot be read as a database" in line
    assert "music.sqlite" in line


# As users run them


@pytest.mark.parametrize(
    "arguments",
    [
        ["nl2sql_trl/train.py", "--config", "recipes/nosuch.yaml"],
        ["-m", "nl2sql_trl.prepare", "--data", "nosuch"],
    ],
    ids=lambda a: a[0] if a[0] != "-m" else a[1],
)
def test_a_process_ends_with_status_two_and_one_line(arguments: list[str], tmp_path: Path) -> None:
    arguments = [str(ROOT / a) if a.endswith("train.py") else a for a in arguments]
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: ")
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
