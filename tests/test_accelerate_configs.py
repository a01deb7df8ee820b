"""Each accelerate config is loaded as `accelerate launch` does, and starts what its name says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from fakes import ROOT

from nl2sql_trl.footprint import Layout
from nl2sql_trl.launch import ConfigError
from nl2sql_trl.plan import layout_here, layout_of

FOLDER = ROOT / "accelerate_configs"
FILES = {
    "cpu": Layout(1),
    "cpu_2_ranks": Layout(2),
    "single_gpu": Layout(1),
    "multi_gpu": Layout(8),
    "zero2": Layout(8, "zero2"),
    "zero3": Layout(8, "zero3"),
    "fsdp2": Layout(8, "fsdp2"),
    "multi_node": Layout(16, "zero2"),
}


def launched(*flags: str) -> Any:
    """The arguments that `accelerate launch FLAGS train.py` ends up with."""
    return _validate_launch_command(launch_command_parser().parse_args([*flags, "train.py"]))[0]


def test_the_configs_are_those_that_are_tested() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_config_starts_its_processes_by_its_kind_of_launcher(name: str) -> None:
    layout = FILES[name]
    found = launched("--config_file", str(FOLDER / f"{name}.yaml"))
    assert found.num_processes == layout.processes
    assert found.num_processes % found.num_machines == 0
    assert bool(found.use_deepspeed) == layout.sharding.startswith("zero")
    assert bool(found.use_fsdp) == (layout.sharding == "fsdp2")
    alone = layout == Layout(1)
    assert bool(found.multi_gpu) == (not alone and layout.sharding == "none")
    assert bool(found.use_cpu) == (name == "cpu")
    assert layout_of(FOLDER / f"{name}.yaml") == layout


@pytest.mark.parametrize("name", FILES)
def test_a_config_says_when_to_take_it(name: str) -> None:
    text = (FOLDER / f"{name}.yaml").read_text()
    assert text.startswith("# ")


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_gets_the_stage_of_the_file_and_no_second_launcher(stage: int) -> None:
    found = launched("--config_file", str(FOLDER / f"zero{stage}.yaml"))
    assert (found.zero_stage, found.deepspeed_multinode_launcher) == (stage, "standard")
    assert found.mixed_precision == "bf16"


def test_fsdp_is_the_second_version() -> None:
    found = launched("--config_file", str(FOLDER / "fsdp2.yaml"))
    assert found.fsdp_version == 2


def test_several_nodes_take_their_differences_from_flags() -> None:
    flags = ["--num_machines", "4", "--num_processes", "32", "--machine_rank", "3"]
    file = str(FOLDER / "multi_node.yaml")
    found = launched("--config_file", file, *flags, "--main_process_ip", "node-0")
    assert (found.num_machines, found.num_processes, found.machine_rank) == (4, 32, 3)
    assert (found.main_process_ip, found.main_process_port) == ("node-0", 29500)


def test_the_number_of_processes_can_be_another_than_the_files() -> None:
    assert layout_of(FOLDER / "zero2.yaml", 4) == Layout(4, "zero2")


@pytest.mark.parametrize(
    ("set_by_accelerate", "layout"),
    [
        ({}, Layout(2)),
        ({"ACCELERATE_USE_FSDP": "true"}, Layout(2, "fsdp2")),
        (
            {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"},
            Layout(2, "zero3"),
        ),
    ],
)
def test_a_launched_process_knows_its_layout(
    set_by_accelerate: dict[str, str], layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"):
        monkeypatch.delenv(name, raising=False)
    for name, value in set_by_accelerate.items():
        monkeypatch.setenv(name, value)
    assert layout_here(2) == layout


@pytest.mark.parametrize("content", ["num_processes: 2\n", "a: [\n", "just words", None])
def test_what_is_no_config_of_accelerate_is_refused_by_name(
    content: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "mine.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"mine\.yaml"):
        layout_of(path)
