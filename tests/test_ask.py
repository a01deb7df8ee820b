"""Asking a model: the training's tool loop, shown as it goes, on a database that stays as it is."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes import make_database

from nl2sql_trl import ask
from nl2sql_trl.asker import Asker, trained_limits
from nl2sql_trl.database import DatabaseError, ddl
from nl2sql_trl.datafiles import DataError
from nl2sql_trl.policy import ByteTokenizer, ScriptedPolicy
from nl2sql_trl.prompts import Codec, answer_text, call_text, messages
from nl2sql_trl.records import ModelTurn, QueryResult
from nl2sql_trl.rollout import RolloutConfig
from nl2sql_trl.textrows import cell, columns_of, text_table

COUNT = "SELECT count(*) FROM singer"


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return make_database(tmp_path / "music.sqlite")


def asker(*scripts: Sequence[str], **limits: Any) -> Asker:
    """An asker whose model plays these messages, one script a sample."""
    codec = Codec(ByteTokenizer())
    config = replace(RolloutConfig(), **limits)
    return Asker(codec, lambda sampling, seed: ScriptedPolicy(scripts, codec), config)


def careful(sql: str) -> list[str]:
    return [call_text(sql), answer_text(sql)]


# Answers


def test_the_answer_comes_with_its_rows_and_steps(db: Path) -> None:
    asked = asker(careful(COUNT)).ask("How many?", db)
    assert (asked.sql, asked.problem) == (COUNT, "")
    assert asked.result is not None
    assert asked.result.rows == ((4,),)
    assert [call.query for call in asked.trajectory.calls] == [COUNT]


def test_the_prompt_is_that_of_training(db: Path) -> None:
    codec = Codec(ByteTokenizer())
    policy = ScriptedPolicy([careful(COUNT)], codec)
    Asker(codec, lambda *_: policy, RolloutConfig(budget=777)).ask("How many?", db)
    _, ids, room = policy.contexts[0]
    assert ids == codec.prompt_ids(messages("How many?", ddl(db)))
    assert room == 777


def test_turns_are_told_while_the_model_goes_on(db: Path) -> None:
    seen: list[str] = []
    script = [call_text("SELECT nosuch FROM singer"), *careful(COUNT)]

    def playing(_key: int, turn: int) -> str:
        seen.append(f"asked for turn {turn}")
        return script[turn]

    codec = Codec(ByteTokenizer())
    patient = Asker(codec, lambda *_: ScriptedPolicy(playing, codec), RolloutConfig())
    patient.ask("How many?", db, on_turn=lambda _, turn: seen.append(type(turn).__name__))
    assert seen == [
        "asked for turn 0",
        "ModelTurn",
        "ToolTurn",
        "asked for turn 1",
        "ModelTurn",
        "ToolTurn",
        "asked for turn 2",
        "ModelTurn",
    ]


def test_samples_vote_by_the_rows_that_they_return(db: Path) -> None:
    queries = ["SELECT 5", COUNT, "SELECT 4", "SELECT count(id) FROM singer", "SELECT nosuch"]
    asked = asker(*map(careful, queries)).ask("How many?", db, samples=5)
    assert asked.result is not None
    assert asked.result.rows == ((4,),)
    assert [vote.count for vote in asked.votes] == [3, 1]
    assert asked.voted == "; 3 of 5 samples return these"


def test_several_samples_are_drawn_and_one_is_greedy(db: Path) -> None:
    drawn: list[tuple[float, int]] = []
    codec = Codec(ByteTokenizer())

    def policy(sampling: Any, seed: int) -> ScriptedPolicy:
        drawn.append((sampling.temperature, seed))
        return ScriptedPolicy([careful(COUNT)] * 3, codec)

    loaded = Asker(codec, policy, RolloutConfig())
    loaded.ask("How many?", db)
    loaded.ask("How many?", db, samples=3, temperature=0.7, seed=5)
    assert drawn == [(0.0, 0), (0.7, 5)]


@pytest.mark.parametrize(
    ("script", "limits", "part"),
    [
        (["I do not know."], {}, "no answer: its last message holds no SQL"),
        ([call_text(COUNT)], {"max_turns": 1}, "the turn limit"),
        (["word " * 99], {"budget": 20}, "the token budget"),
        ([answer_text("SELECT nosuch FROM singer")], {}, "does not run: no such column: nosuch"),
        ([answer_text("DROP TABLE singer")], {}, "does not run: not authorized"),
    ],
)
def test_what_is_no_executable_answer_says_why(
    script: list[str], limits: dict[str, Any], part: str, db: Path
) -> None:
    asked = asker(script, **limits).ask("How many?", db)
    assert part in asked.problem
    assert part in ask.outcome_text(asked, 100)
    assert json.loads(ask.outcome_json(asked))["rows"] == []
    assert part in asked._repr_html_()


def test_no_trajectory_changes_a_byte_of_the_database_or_its_folder(db: Path) -> None:
    before = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in db.parent.iterdir()}
    for sql in (
        "DELETE FROM singer",
        "CREATE TABLE t (x)",
        "INSERT INTO singer VALUES (9, 'x', 1)",
        "PRAGMA journal_mode=WAL",
        "VACUUM INTO 'copy.sqlite'",
        "ATTACH 'other.sqlite' AS o",
        COUNT,
    ):
        asker(careful(sql)).ask("How many?", db)
    after = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in db.parent.iterdir()}
    assert after == before


def test_a_prompt_that_leaves_little_room_cuts_the_budget_and_one_that_leaves_none_is_told(
    db: Path,
) -> None:
    codec = Codec(ByteTokenizer())
    policy = ScriptedPolicy([careful(COUNT)], codec)
    prompt = len(codec.prompt_ids(messages("How many?", ddl(db))))
    roomy = Asker(codec, lambda *_: policy, RolloutConfig(), room=prompt + 500)
    roomy.ask("How many?", db)
    assert policy.contexts[0][2] == 500
    with pytest.raises(DataError, match="fewer tables"):
        replace(roomy, room=prompt + 10).ask("How many?", db)


@pytest.mark.parametrize("question", ["", "  \n"])
def test_an_empty_question_is_refused(question: str, db: Path) -> None:
    with pytest.raises(DataError, match="empty"):
        asker().ask(question, db)


def test_a_question_that_is_no_unicode_is_asked_as_far_as_it_is(db: Path) -> None:
    asked = asker(careful(COUNT)).ask("caf\udce9?", db)
    assert asked.question == "caf??"


# Databases that cannot be used


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3000])


@pytest.mark.parametrize(
    ("spoil", "part"),
    [
        (lambda path: path.unlink(), "no database file"),
        (lambda path: path.write_bytes(b""), "music.sqlite"),
        (lambda path: path.write_text("<html>" * 999), "not a SQLite database"),
        (cut, "music.sqlite"),
        (lambda path: (path.unlink(), path.mkdir()), "no database file"),
        (lambda path: (path.unlink(), make_database(path, "CREATE TABLE t (x); DROP TABLE t")),
         "has no tables"),
    ],
    ids=["missing", "empty", "web page", "cut short", "folder", "no tables"],
)  # fmt: skip
def test_a_database_that_cannot_be_used_is_named(
    spoil: Callable[[Path], object], part: str, db: Path
) -> None:
    spoil(db)
    with pytest.raises((DatabaseError, DataError), match=part):
        asker(careful(COUNT)).ask("How many?", db)


# Limits


def test_limits_are_those_of_the_run_where_it_says_so(tmp_path: Path) -> None:
    model = tmp_path / "run" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    assert trained_limits(str(model)) == RolloutConfig()
    config = {"max_completion_length": 99, "max_turns": 2, "truncation": "seed",
              "tool_chars": 64, "reserve_tokens": 3}  # fmt: skip
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    assert trained_limits(str(model)) == RolloutConfig(), "no run without its manifest"
    (tmp_path / "run" / "manifest.json").write_text("{}")
    trained = RolloutConfig(99, 2, "seed", 64, reserve_tokens=3)
    assert trained_limits(str(model)) == trained
    assert trained_limits(str(tmp_path / "run")) == trained
    (model / "run.json").write_text(json.dumps({"finished_step": 1, "rollout": {"budget": 7}}))
    assert trained_limits(str(model)) == RolloutConfig(budget=7)


@pytest.mark.parametrize("text", ["", "max_turns: 2", "[1]", "max_turns: [", "\x00"])
def test_a_config_that_names_no_limits_gives_the_packages_own(text: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "config.yaml").write_text(text)
    (tmp_path / "manifest.json").write_text("{}")
    assert trained_limits(str(tmp_path)) == RolloutConfig()


# The table


def result(columns: Sequence[str], rows: Sequence[Sequence[Any]], **changes: Any) -> QueryResult:
    return QueryResult("ok", tuple(columns), tuple(map(tuple, rows)), **changes)


HOSTILE = [
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "bell\x07 back\x08\x08 \x7f",
    "carriage\rreturn",
    "\x9b2J",
    "right\u202eleft\u2066",
    "two\nlines\tand a tab",
    "caf\udce9",
    "zero\u200bwidth",
]


@pytest.mark.parametrize("value", HOSTILE, ids=ascii)
def test_no_control_character_of_data_reaches_the_terminal(value: str, db: Path) -> None:
    for shown in (
        cell(value),
        text_table(result([value, "b"], [[value, 1]]), 100),
        text_table(result([value] * 40, [[value] * 40]), 100),
    ):
        assert all(c.isprintable() or c == "\n" for c in shown)
        shown.encode("utf-8")
    assert "\n" not in cell(value)
    sql = "SELECT '" + value.encode("utf-8", "replace").decode() + '\' AS "a\x1bb"'
    asked = asker(careful(sql)).ask(f"{value}?", db)
    turns = [ask.step_text(turn) for turn in asked.trajectory.turns]
    for shown in (*turns, ask.outcome_text(asked, 100), repr(asked)):
        assert all(c.isprintable() or c in "\n\t" for c in shown)
    assert ask.outcome_json(asked).isascii()
    assert all(c.isprintable() for c in ask.outcome_json(asked))


def test_values_are_told_apart() -> None:
    shown = [cell(v) for v in (None, "", 0, 1.5, float("inf"), b"\x00\xff", "NULL\n")]
    assert shown == ["NULL", "", "0", "1.5", "inf", "x'00ff'", "NULL\\n"]


def test_a_small_result_is_an_aligned_table() -> None:
    found = result(["name", "age"], [["Ann", 31], ["Zoë", 7], ["東京", None]])
    assert text_table(found, 80).splitlines() == [
        "name   age",
        "----  ----",
        "Ann     31",
        "Zoë      7",
        "東京  NULL",
        "3 rows",
    ]


@pytest.mark.parametrize("count", [0, 1, 20, 21, 5000])
def test_a_long_result_is_cut_and_says_how_many_rows_there_are(count: int) -> None:
    lines = text_table(result(["a"], [[n] for n in range(count)]), 80).splitlines()
    assert len(lines) == min(count, 20) + 3
    expected = {0: "0 rows", 1: "1 row", 20: "20 rows", 21: "(20 shown) 21 rows in all",
                5000: "(20 shown) 5,000 rows in all"}  # fmt: skip
    assert lines[-1] == expected[count]


def test_a_result_that_was_cut_by_its_limit_says_more_than() -> None:
    assert "more than 3 rows" in text_table(result(["a"], [[1], [2], [3]], complete=False), 80)


@pytest.mark.parametrize(("columns", "length"), [(1, 5000), (3, 500), (8, 40), (30, 3), (999, 9)])
def test_wide_results_stay_readable(columns: int, length: int) -> None:
    found = result([f"column_{n}" for n in range(columns)], [["x" * length] * columns] * 7)
    lines = text_table(found, 80).splitlines()
    assert len(lines) < 300
    assert max(map(columns_of, lines)) <= 340
    table = lines[1].startswith("---")
    assert not table or max(map(columns_of, lines)) <= 80
    assert "7 rows" in lines[-1]


def test_html_is_escaped_in_a_notebook(db: Path) -> None:
    sql = "SELECT '<script>alert(1)</script>' AS \"<b>x</b>\", NULL"
    html = asker(careful(sql)).ask("<i>?</i>", db)._repr_html_()
    for text in ("<script", "<b>x", "<i>?"):
        assert text not in html
    assert "<td>NULL</td>" in html


# JSON


def test_json_is_one_object_that_any_parser_reads(db: Path) -> None:
    sql = "SELECT 9e999, -9e999, x'00ff', CAST(x'e9' AS TEXT), NULL, 9223372036854775807, 'é'"
    text = ask.outcome_json(asker(careful(sql)).ask("q", db))

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    found = json.loads(text, parse_constant=refuse)
    assert found["rows"] == [["inf", "-inf", "00ff", "\\xe9", None, 9223372036854775807, "é"]]
    assert found["sql"] == sql
    assert found["complete"] is True
    assert [step["role"] for step in found["steps"]] == ["assistant", "tool", "assistant"]
    assert found["votes"] == [{"sql": sql, "count": 1}]
    assert set(found) == {"question", "sql", "columns", "rows", "complete", "problem", "steps",
                          "stop", "votes"}  # fmt: skip


# The command


@pytest.fixture
def call(
    db: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Any]:
    """Runs the command in this process with a scripted model: status, stdout, stderr."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")

    def run(scripts: Sequence[Sequence[str]] | Asker, *arguments: object) -> tuple[Any, str, str]:
        played = scripts if isinstance(scripts, Asker) else asker(*scripts)
        if "--model" not in arguments:
            monkeypatch.setattr(Asker, "load", lambda *_: played)
        try:
            status: Any = ask.main(["--model", str(model), "--db", str(db), *map(str, arguments)])
        except SystemExit as stop:
            status = stop.code
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return status, captured.out, captured.err

    return run


def test_the_steps_then_the_sql_and_its_rows_are_printed(call: Callable[..., Any]) -> None:
    wrong = call_text("SELECT nosuch FROM singer")
    status, out, _ = call([[wrong, *careful(COUNT)]], "How many singers?")
    assert status == 0
    assert out.splitlines() == [
        "run_sql  SELECT nosuch FROM singer",
        'error    {"error": "no such column: nosuch. Did you mean singer.name, singer.id or '
        'singer.age?"}',
        f"run_sql  {COUNT}",
        'rows     {"columns": ["count(*)"], "rows": [[4]]}',
        f"answer   {COUNT}",
        "",
        COUNT,
        "",
        "count(*)",
        "--------",
        "       4",
        "1 row",
    ]


@pytest.mark.parametrize("script", [["I do not know."], [answer_text("SELECT nosuch")]])
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_no_executable_answer_is_exit_code_one(
    script: list[str], flags: list[str], call: Callable[..., Any]
) -> None:
    assert call([script], "How many?", *flags)[0] == 1


def test_json_stands_alone_on_stdout(call: Callable[..., Any]) -> None:
    status, out, _ = call([careful(COUNT)], "How many?", "--json")
    assert status == 0
    assert len(out.splitlines()) == 1
    assert json.loads(out)["rows"] == [[4]]


def test_samples_print_an_answer_each_and_the_vote(call: Callable[..., Any]) -> None:
    scripts = [careful("SELECT 5"), careful(COUNT), careful("SELECT 4"), ["no idea"]]
    status, out, _ = call(scripts, "How many?", "--samples", 4)
    assert status == 0
    assert "1 row; 2 of 4 samples return these" in out
    assert sum(f" of 4   {text}" in out for text in ("SELECT 5", COUNT, "no answer")) == 3


def test_interactive_keeps_asking_until_an_empty_line(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["How many?", "And now?", "", "never asked"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    status, out, _ = call([careful(COUNT)], "--interactive", "First of all?")
    assert status == 0
    assert out.count("1 row") == 3
    assert next(lines) == "never asked"


@pytest.mark.parametrize("end", [EOFError, KeyboardInterrupt])
def test_the_end_of_the_input_ends_an_interactive_session(
    end: type[BaseException], call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(_: str) -> str:
        raise end

    monkeypatch.setattr("builtins.input", closed)
    assert call([careful(COUNT)], "--interactive")[0] == 0


class Stopped(ScriptedPolicy):
    """Is interrupted in its first rollout, as by Ctrl-C."""

    interrupted = False

    def step(self) -> Any:
        if not Stopped.interrupted:
            Stopped.interrupted = True
            raise KeyboardInterrupt
        return super().step()


@pytest.fixture
def stopped() -> Asker:
    Stopped.interrupted = False
    codec = Codec(ByteTokenizer())
    return Asker(codec, lambda *_: Stopped([careful(COUNT)], codec), RolloutConfig())


def test_ctrl_c_stops_one_answer_of_an_interactive_session(
    stopped: Asker, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = iter(["First?", "Second?", ""])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    status, out, _ = call(stopped, "--interactive")
    assert status == 0
    assert out.index("stopped") < out.index("1 row")


def test_ctrl_c_ends_a_single_question_without_a_traceback(
    stopped: Asker, call: Callable[..., Any]
) -> None:
    status, _, error = call(stopped, "How many?")
    assert status == 130
    assert "stopped" in error


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ([], "no question"),
        (["q", "--json", "--interactive"], "--interactive"),
        (["q", "--samples", "0"], "--samples"),
        (["q", "--samples", "2", "--temperature", "0"], "--temperature"),
        (["q", "--temperature", "nan"], "--temperature"),
        (["q", "--budget", "0"], "budget"),
        (["q", "--max_turns", "0"], "max_turns"),
        (["q", "--tool_chars", "3"], "tool_chars"),
        (["   "], "the question is empty"),
        (["q", "--db", "nosuch.sqlite"], "no database file nosuch.sqlite"),
        (["q", "--model", "nosuch"], "no model 'nosuch'"),
    ],
    ids=str,
)
def test_input_that_cannot_be_used_is_one_line_and_exit_code_two(
    flags: list[str], part: str, call: Callable[..., Any]
) -> None:
    status, out, error = call([careful(COUNT)], *flags)
    assert status == 2
    assert out == ""
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
    assert part in error


def test_changes_that_are_not_yet_in_the_file_are_told(db: Path, call: Callable[..., Any]) -> None:
    db.with_name(db.name + "-wal").write_bytes(b"not merged")
    status, _, error = call([careful(COUNT)], "How many?")
    assert status == 0
    assert "music.sqlite-wal are not seen" in error


# A real model, as users run it


def tiny(*arguments: object, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nl2sql_trl.ask", "--model", "tiny", *map(str, arguments)],
        capture_output=True,
        text=True,
        **kwargs,
    )


@pytest.fixture(scope="module")
def clinic() -> Path:
    from nl2sql_trl.data import load

    return next(e.db_path for e in load("pocket", "train") if e.db_id == "pet_clinic")


def test_tiny_answers_by_the_trainings_loop_and_reads_alone(clinic: Path) -> None:
    from nl2sql_trl.models import load_tokenizer
    from nl2sql_trl.tiny import tiny_task

    task = tiny_task(Codec(load_tokenizer("tiny")))
    question = next(iter(task.examples.values())).question
    before = hashlib.sha256(clinic.read_bytes()).hexdigest()
    done = tiny("--db", clinic, "--json", question, "--budget", 224, "--tool_chars", 96)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["sql"].startswith("SELECT")
    assert hashlib.sha256(clinic.read_bytes()).hexdigest() == before
    assert sorted(p.name for p in clinic.parent.iterdir()) == [clinic.name]

    asked = Asker.load("tiny", RolloutConfig(budget=224, tool_chars=96)).ask(question, clinic)
    assert asked.sql == found["sql"]
    assert isinstance(asked.trajectory.turns[0], ModelTurn)


def test_a_pipe_of_questions_is_answered_by_one_loaded_model(clinic: Path) -> None:
    done = tiny("--db", clinic, "--interactive", "--budget", 96,
                input="How many pets?\nHow many owners?\n")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("question> ") == 3


# The real command in a process that gets a real signal; its model thinks until it is stopped.
SLOW = """
import signal, sys, time
from nl2sql_trl import ask
from nl2sql_trl.asker import Asker
from nl2sql_trl.policy import ByteTokenizer, ScriptedPolicy
from nl2sql_trl.prompts import Codec, answer_text
from nl2sql_trl.rollout import RolloutConfig

# A shell's background jobs ignore it, and their children with them.
signal.signal(signal.SIGINT, signal.default_int_handler)
codec = Codec(ByteTokenizer())
asked = []

class Slow(ScriptedPolicy):
    def step(self):
        asked.append(1)
        if len(asked) == 1:
            print("thinking", flush=True)
            time.sleep(600)
        return super().step()

answer = [answer_text("SELECT count(*) FROM singer")]
Asker.load = lambda *_: Asker(codec, lambda *_: Slow([answer], codec), RolloutConfig())
sys.exit(ask.main(sys.argv[1:]))
"""


def test_ctrl_c_of_a_terminal_stops_an_answer_and_the_next_question_is_answered(
    db: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, "--model", str(tmp_path), "--db", str(db), "--interactive"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    process.stdin.write("First?\n")
    process.stdin.flush()
    while "thinking" not in (line := process.stdout.readline()):
        assert line
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate("Second?\n\n")
    assert process.returncode == 0
    assert out.index("stopped") < out.index("1 row")
