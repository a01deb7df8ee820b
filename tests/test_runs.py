"""Files of a run directory: whole or not there, and readable after a crash."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nl2sql_trl import runs
from nl2sql_trl.records import (
    Call,
    ModelTurn,
    Prompt,
    QueryResult,
    Sample,
    ToolTurn,
    Trajectory,
    Verdict,
)
from nl2sql_trl.runs import append_jsonl, describe, drop_after, read_jsonl, write_json, write_text

# Whole files


def test_a_file_is_written_with_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c.txt"
    write_text(path, "Zoë\n")
    assert path.read_text(encoding="utf-8") == "Zoë\n"
    assert [p.name for p in path.parent.iterdir()] == ["c.txt"]


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    path = tmp_path / "a.json"
    write_text(path, "old")

    def broken(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, fails, broken)
    with pytest.raises(OSError, match="disk is full"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_text_that_cannot_be_encoded_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_is_on_disk_before_it_takes_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)

        def noted(*args: object, real: object = real, name: str = name) -> object:
            done.append(name)
            return real(*args)  # type: ignore[operator]

        monkeypatch.setattr(os, name, noted)
    write_text(tmp_path / "a", "x")
    assert done == ["fsync", "replace"]


@pytest.mark.parametrize("text", ["a\nb\n", "<1>\nb\n", "<2>\n<1>\n", "<1>\n<2>\n<2>\n"])
def test_a_block_goes_between_its_marks_alone(tmp_path: Path, text: str) -> None:
    file, marks = tmp_path / "page.md", ("<1>\n", "<2>\n")
    file.write_text("a\n<1>\nold\n<2>\nz\n")
    runs.write_between(file, marks, "new\n")
    assert file.read_text() == "a\n<1>\nnew\n<2>\nz\n"
    file.write_text(text)
    with pytest.raises(ValueError, match="must have <1> once, and <2> once after it"):
        runs.write_between(file, marks, "new\n")
    assert file.read_text() == text


def test_json_holds_paths_and_the_like_as_text(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"path": Path("x/y"), "accent": "é"})
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"path": "x/y", "accent": "é"}
    assert "é" in text


# Lines


def test_rows_come_back_in_the_order_they_were_appended(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    append_jsonl(path, [{"step": 1, "loss": 0.5}])
    append_jsonl(path, [{"step": 2}, {"step": 3, "text": "a\nb\u2028c"}])
    append_jsonl(path, [])
    assert read_jsonl(path) == [
        {"step": 1, "loss": 0.5},
        {"step": 2},
        {"step": 3, "text": "a\nb\u2028c"},
    ]
    assert path.read_bytes().count(b"\n") == 3


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text()))
def test_any_row_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, row: dict[str, object]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    append_jsonl(path, [row, row])
    assert read_jsonl(path) == [row, row]


def test_a_file_that_is_not_there_holds_no_rows(tmp_path: Path) -> None:
    assert read_jsonl(tmp_path / "nosuch.jsonl") == []


@pytest.mark.parametrize(
    "tail", ['{"step": 3, "lo', "{", '{"step": 3}garbage', '{"step": 3, "x": "caf\udcc3', "\n\n"]
)
def test_a_cut_last_line_is_left_out(tmp_path: Path, tail: str) -> None:
    path = tmp_path / "m.jsonl"
    append_jsonl(path, [{"step": 1}, {"step": 2}])
    with path.open("ab") as file:
        file.write(tail.encode("utf-8", "surrogateescape"))
    assert read_jsonl(path) == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("ending", ["", "\n", "\n\n", "\n  \n"])
def test_a_last_line_that_is_no_json_is_left_out_whatever_ends_it(
    tmp_path: Path, ending: str
) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"st' + ending)
    assert read_jsonl(path) == [{"step": 1}]


@pytest.mark.parametrize("damage", ["{broken", "\x00\x00\x00", "nan{}"])
def test_a_damaged_line_in_the_middle_is_an_error_that_names_it(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"step": 1}}\n{damage}\n{{"step": 3}}\n')
    with pytest.raises(ValueError, match=r"m\.jsonl, line 2"):
        read_jsonl(path)


def test_every_prefix_of_a_file_is_read_as_its_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    append_jsonl(path, [{"step": n, "text": "Zoë"} for n in range(3)])
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        whole = content[:length].count(b"\n")
        assert len(read_jsonl(path)) in (whole, whole + 1)


def test_rows_of_later_steps_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    append_jsonl(path, [{"step": n, "é": "Zoë"} for n in (1, 2, 2, 3, 4)] + [{"note": "no step"}])
    drop_after(path, 2)
    assert [row.get("step") for row in read_jsonl(path)] == [1, 2, 2, None]
    append_jsonl(path, [{"step": 3}])
    assert read_jsonl(path)[-1] == {"step": 3}


def test_dropping_mends_a_cut_line_so_that_appending_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    drop_after(path, 5)
    append_jsonl(path, [{"step": 2}])
    assert read_jsonl(path) == [{"step": 1}, {"step": 2}]


def test_dropping_everything_leaves_an_empty_file_and_no_file_stays_none(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    drop_after(path, 0)
    assert not path.exists()
    append_jsonl(path, [{"step": 1}])
    drop_after(path, 0)
    assert path.read_text() == ""


# A trajectory for people

HOSTILE = ["caf\udce9", "\ud800", "\x00", "</s>\u2028", 'quote " and \\', "Zoë 😀"]


def trajectory(text: str) -> Trajectory:
    result = QueryResult("ok", (text,), ((text, b"\xff", None, 1.5),))
    prompt = Prompt(
        ({"role": "system", "content": "s"}, {"role": "user", "content": text}),
        (1,),
        Path("x"),
        "k",
    )
    turns = (
        ModelTurn(Sample((1, 2), (-0.5, -1.5)), text),
        ToolTurn((3,), (Call(text, text, None, result), Call(None, text, "malformed"))),
        ModelTurn(Sample((4,), (0.0,)), text),
    )
    return Trajectory(prompt, turns, "answer", text)


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_a_described_trajectory_can_be_written_and_read(tmp_path: Path, text: str) -> None:
    verdict = Verdict(False, "wrong_rows", detail=text, rows_share=0.5)
    described = describe(trajectory(text), verdict)
    assert json.loads(json.dumps(described)) == described
    path = tmp_path / "t.jsonl"
    append_jsonl(path, [described])
    append_jsonl(path, [described])
    first, second = read_jsonl(path)
    assert first == second
    path.read_text(encoding="utf-8")
    if text.isprintable():
        assert first == described
    drop_after(path, 0)


def test_a_description_says_what_happened() -> None:
    described = describe(trajectory("q"), Verdict(True, "correct", empty_match=True))
    assert [turn["role"] for turn in described["turns"]] == ["assistant", "tool", "assistant"]
    assert [turn["tokens"] for turn in described["turns"]] == [2, 1, 1]
    assert described["turns"][1]["calls"] == [
        {"query": "q", "problem": None, "response": "q"},
        {"query": None, "problem": "malformed", "response": "q"},
    ]
    assert (described["key"], described["question"], described["answer"]) == ("k", "q", "q")
    assert described["ran_its_answer"]
    assert (described["correct"], described["reason"]) == (True, "correct")
    assert described["empty_match"]


# The manifest


def test_a_manifest_says_what_is_needed_to_repeat_the_run(tmp_path: Path) -> None:
    found = runs.manifest(3, {"name": "pocket"}, {"temperature": 1.0})
    write_json(tmp_path / "manifest.json", found)
    assert json.loads((tmp_path / "manifest.json").read_text()) == found
    assert found["seed"] == 3
    assert found["sampling"] == {"temperature": 1.0}
    assert all(found["packages"][name] for name in ("torch", "trl", "transformers"))
    assert found["git"].keys() == {"commit", "changed"}


def test_without_git_the_manifest_says_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert runs.git_state() == {"commit": None, "changed": None}
