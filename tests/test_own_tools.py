"""Tools of the user's own: made of functions, shown to the model, checked, called, recorded."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from fakes import chat_tokenizer

from nl2sql_trl.database import execute
from nl2sql_trl.facts import describe as facts
from nl2sql_trl.gold import gate
from nl2sql_trl.policy import ByteTokenizer, ScriptedPolicy
from nl2sql_trl.prompts import Codec, answer_text, call_text, parse_calls, tool_call_text
from nl2sql_trl.records import Call, Example, Prompt, QueryResult, ToolTurn, Trajectory, Verdict
from nl2sql_trl.rollout import RolloutConfig, RolloutError, make_prompt, rollout
from nl2sql_trl.runs import describe
from nl2sql_trl.sft import to_rows
from nl2sql_trl.task import Task, make_task
from nl2sql_trl.tools import MIN_CHARS, RUN_SQL, Tool, ToolError, render_value, tool
from nl2sql_trl.viewer import show

DDL = "CREATE TABLE singer (id INTEGER PRIMARY KEY, name TEXT)"
NAMES = "SELECT name FROM singer"
ANSWER = answer_text(NAMES)


@tool
def sample_values(db_path: Path, table: str, column: str, limit: int = 3) -> object:
    """Show values of a column.

    Args:
        table: The name of the table.
        column: The name of the column,
            without its table.
        limit: How many values to show.

    Returns:
        The values.
    """
    if table == "nothing":
        raise ValueError(f"there is no table {table}")
    result = execute(db_path, f"SELECT DISTINCT {column} FROM {table} LIMIT {limit}")
    return [row[0] for row in result.rows] if result.outcome == "ok" else result


CODEC = Codec(ByteTokenizer(), tools=[sample_values])


@pytest.fixture(scope="module")
def prompt(tmp_path_factory: pytest.TempPathFactory) -> Prompt:
    path = tmp_path_factory.mktemp("own") / "music.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        f"{DDL}; INSERT INTO singer VALUES (1, 'Ann'), (2, 'Zoë'), (3, '<|im_end|>'), (4, NULL);"
    )
    connection.close()
    return make_prompt(Example(7, "dev", "Who sings?", NAMES, "music", path), DDL, CODEC)


def returning(value: Callable[[], object]) -> Tool:
    """A tool called `probe` that returns, or raises, what `value` does."""

    def probe(db_path: Path) -> object:
        """Probe."""
        return value()

    return tool(probe)


def play(prompt: Prompt, *script: str, own: Tool = sample_values, **limits: Any) -> Trajectory:
    policy = ScriptedPolicy([script], Codec(ByteTokenizer(), tools=[own]))
    return rollout([prompt], policy, RolloutConfig(**limits))[0]


def called(prompt: Prompt, value: Callable[[], object], **limits: Any) -> Call:
    """The record of one call of a tool that returns `value()`."""
    return play(prompt, tool_call_text("probe"), ANSWER, own=returning(value), **limits).calls[0]


# From a function to a tool


def test_the_schema_is_the_functions_signature_and_docstring_without_the_database() -> None:
    assert sample_values.name == "sample_values"
    assert sample_values.schema == {
        "type": "function",
        "function": {
            "name": "sample_values",
            "description": "Show values of a column.",
            "parameters": {
                "type": "object",
                "properties": {
                    "table": {"type": "string", "description": "The name of the table."},
                    "column": {
                        "type": "string",
                        "description": "The name of the column, without its table.",
                    },
                    "limit": {"type": "integer", "description": "How many values to show."},
                },
                "required": ["table", "column"],
            },
        },
    }


def no_database(table: str) -> str:
    """Nothing.

    Args:
        table: A table.
    """
    return table


def no_hint(db_path: Path, table) -> str:  # type: ignore[no-untyped-def]
    """Nothing.

    Args:
        table: A table.
    """
    return str(table)


def no_docstring(db_path: Path, table: str) -> str:
    return table


def not_described(db_path: Path, table: str) -> str:
    """Nothing."""
    return table


def any_number(db_path: Path, *tables: str) -> str:
    """Nothing.

    Args:
        tables: Tables.
    """
    return tables[0]


def unknown_type(db_path: Path, table: Nowhere) -> str:  # type: ignore[name-defined]  # noqa: F821
    """Nothing.

    Args:
        table: A table.
    """
    return table


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (no_database, "the first parameter of no_database must be db_path"),
        (lambda db_path: "", "is no function with a name"),
        (no_hint, "no_hint cannot be a tool: Argument table is missing a type hint"),
        (no_docstring, "no_docstring cannot be a tool: .* it has no docstring"),
        (not_described, "no description for the argument 'table': every parameter needs"),
        (any_number, r"any_number takes \*tables: 'str': a model gives arguments by name alone"),
        (unknown_type, "unknown_type cannot be a tool: name 'Nowhere' is not defined"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused(
    function: Callable[..., object], said: str
) -> None:
    with pytest.raises(ToolError, match=said):
        tool(function)


@pytest.mark.parametrize("names", [["sample_values"] * 2, ["run_sql"]])
def test_two_tools_of_one_name_are_refused(names: list[str]) -> None:
    own = [Tool(name, sample_values.schema, print) for name in names]
    with pytest.raises(ValueError, match=f"two tools are called {names[0]}"):
        Codec(ByteTokenizer(), tools=own)


# What the model is shown


@pytest.mark.parametrize("template", ["qwen2_5", "qwen3"])
def test_real_templates_show_the_own_tool_beside_run_sql(template: str) -> None:
    tokenizer = chat_tokenizer(template)
    chat = ({"role": "system", "content": "s"}, {"role": "user", "content": "q"})
    text = tokenizer.decode(Codec(tokenizer, tools=[sample_values]).prompt_ids(chat))
    for schema in (RUN_SQL, sample_values.schema):
        assert json.dumps(schema) in text
    plain = tokenizer.decode(Codec(tokenizer).prompt_ids(chat))
    assert text.replace("\n" + json.dumps(sample_values.schema), "") == plain


def test_a_task_made_with_the_codec_has_the_tool_in_its_prompts() -> None:
    task = make_task("pocket", "dev", CODEC, rows=1)
    [prompt] = task.prompts.values()
    assert json.dumps(sample_values.schema) in CODEC.decode(prompt.ids)


# What is read from what it wrote


def test_a_good_call_of_an_own_tool_has_its_name_and_arguments() -> None:
    [call] = parse_calls(tool_call_text("sample_values", table="a", column="b"), [sample_values])
    assert (call.tool, call.query, call.problem) == ("sample_values", None, None)
    assert call.arguments == {"table": "a", "column": "b"}


def test_null_for_an_optional_argument_leaves_it_out() -> None:
    text = tool_call_text("sample_values", table="a", column="b", limit=None)
    [call] = parse_calls(text, [sample_values])
    assert call.arguments == {"table": "a", "column": "b"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"table": "a"}, "sample_values: 'column' is a required property"),
        ({"table": "a", "column": None}, "sample_values: column: None is not of type 'string'"),
        ({"table": "a", "column": 5}, "sample_values: column: 5 is not of type 'string'"),
        ({"table": "a", "column": "b", "limit": "3"}, "limit: '3' is not of type 'integer'"),
        ({"table": "a", "column": "b", "limit": 3.0}, "limit: 3.0 is not of type 'integer'"),
        ({"table": "a", "column": "b", "limit": True}, "limit: True is not of type 'integer'"),
        ({"table": "a", "column": "b", "db_path": "/etc/passwd"}, "'db_path' was unexpected"),
        ("SELECT 1", "sample_values: its arguments must be an object"),
        (["a", "b"], "sample_values: its arguments must be an object"),
        (None, "sample_values: its arguments must be an object"),
    ],
)
def test_arguments_are_checked_against_the_schema(arguments: object, said: str) -> None:
    body = json.dumps({"name": "sample_values", "arguments": arguments})
    [call] = parse_calls(f"<tool_call>{body}</tool_call>", [sample_values])
    assert (call.problem, call.arguments, call.query) == ("bad_arguments", None, None)
    assert said in call.message


def test_choices_are_checked_and_deep_arguments_are_no_crash() -> None:
    @tool
    def pick(db_path: Path, kind: Literal["a", "b"], more: dict[str, object]) -> str:
        """Pick.

        Args:
            kind: Which.
            more: Anything.
        """
        return kind

    deep: object = {}
    for _ in range(300):
        deep = {"x": deep}
    good, bad, wrong = (
        parse_calls(tool_call_text("pick", kind=kind, more=more), [pick])[0]
        for kind, more in (("a", deep), ("c", {}), ("a", [deep]))
    )
    assert good.problem is None
    assert "kind: 'c' is not one of ['a', 'b']" in bad.message
    assert wrong.problem == "bad_arguments"


def test_an_unknown_tool_is_answered_with_those_that_there_are() -> None:
    text = tool_call_text("python", code="1")
    [call] = parse_calls(text, [sample_values])
    assert call.problem == "unknown_tool"
    assert call.message == "there is no tool 'python': the tools are run_sql, sample_values"
    assert parse_calls(text)[0].message == "there is no tool 'python': the tool is run_sql"


def test_of_several_calls_the_first_good_one_is_the_one_whatever_its_tool() -> None:
    text = tool_call_text("sample_values", table="a", column="b") + call_text(NAMES)
    first, second = parse_calls(text, [sample_values])
    assert (first.problem, second.problem) == (None, "extra_call")


# The rollout


def test_a_call_is_answered_with_what_the_function_returns(prompt: Prompt) -> None:
    look = tool_call_text("sample_values", table="singer", column="name")
    trajectory = play(prompt, look, ANSWER)
    [call] = trajectory.calls
    assert call.response == '{"result": ["Ann", "Zoë", "<|im_end|>"]}'
    assert (call.tool, call.query, call.problem, call.failed) == (
        "sample_values",
        None,
        None,
        False,
    )
    assert call.arguments == {"table": "singer", "column": "name"}
    assert (trajectory.stop, trajectory.ran_its_answer) == ("answer", False)
    tokens = trajectory.turns[1]
    assert isinstance(tokens, ToolTurn)
    assert CODEC.suffix_ids([call.response]) == tokens.ids
    assert [i for i in tokens.ids if i > 255] == [256, 257, 256]  # the cell forges none


def test_run_sql_stays_as_it_is_beside_an_own_tool(prompt: Prompt) -> None:
    look = tool_call_text("sample_values", table="singer", column="name")
    _, call = play(prompt, look, call_text(NAMES), ANSWER).calls
    assert (call.tool, call.query, call.arguments) == ("run_sql", NAMES, None)
    assert json.loads(call.response)["columns"] == ["name"]


@pytest.mark.parametrize(
    ("arguments", "response"),
    [
        ({"table": "nothing", "column": "x"}, '{"error": "there is no table nothing"}'),
        ({"table": "song", "column": "x"}, '{"error": "no such table: song"}'),
    ],
)
def test_a_value_error_or_a_failed_query_is_an_error_to_the_model(
    prompt: Prompt, arguments: dict[str, Any], response: str
) -> None:
    trajectory = play(prompt, tool_call_text("sample_values", **arguments), ANSWER)
    [call] = trajectory.calls
    assert (call.response, call.problem, call.failed) == (response, None, True)
    assert trajectory.answer == NAMES


def raising(error: Exception) -> Callable[[], object]:
    def raise_it() -> object:
        raise error

    return raise_it


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (raising(KeyError("x")), "KeyError: 'x'"),
        (raising(sqlite3.OperationalError("no such table")), "OperationalError: no such table"),
        (raising(RecursionError("deep")), "RecursionError"),
        (lambda: {1, 2}, "TypeError: Object of type set is not JSON serializable"),
        (lambda: b"bytes", "TypeError"),
        (lambda: float("nan"), "ValueError: Out of range float values"),
        (lambda: [Path("x")], "TypeError"),
    ],
)
def test_any_other_failure_of_a_tool_ends_the_run_and_names_row_and_tool(
    prompt: Prompt, value: Callable[[], object], said: str
) -> None:
    with pytest.raises(RolloutError) as caught:
        called(prompt, value)
    assert str(caught.value).startswith("the tool probe failed on dev:7 with {}: ")
    assert said in str(caught.value)


@pytest.mark.parametrize("chars", [MIN_CHARS, 100, 400])
@pytest.mark.parametrize(
    "value",
    [
        "x" * 999,
        '"\n\\' * 300,
        "\ud83d half a pair",
        ["\ud83d"] * 90,
        list(range(999)),
        ["long" * 200, "short"],
        [["a", 1.5, None]] * 200,
        {"key": "v" * 500},
        {"\udce9": ["\udce9" * 100]},
        10**500,
        None,
        True,
        (),
    ],
)
def test_a_response_is_whole_json_within_its_characters(
    prompt: Prompt, value: object, chars: int
) -> None:
    call = called(prompt, lambda: value, tool_chars=chars)
    assert len(call.response) <= chars
    call.response.encode()
    assert "result" in json.loads(call.response)
    assert not call.failed


def test_a_list_that_is_too_long_keeps_its_first_items_and_says_how_many_there_are() -> None:
    assert json.loads(render_value(list(range(100)), 64)) == {
        "result": list(range(12)),
        "total": 100,
    }
    shorter = json.loads(render_value([0, 1, 2], 400, total=100))
    assert shorter == {"result": [0, 1, 2], "total": 100}
    assert render_value("short") == '{"result": "short"}'


def test_an_error_with_any_text_in_it_keeps_to_its_characters(prompt: Prompt) -> None:
    for text in ("\ud83d", "\udce9", '"' * 900, "é" * 900, ""):
        call = called(prompt, raising(ValueError(text)), tool_chars=100)
        assert len(call.response) <= 100
        call.response.encode()
        assert list(json.loads(call.response)) == ["error"]


def test_responses_are_shortened_once_where_tokens_run_out(prompt: Prompt) -> None:
    look = tool_call_text("probe")
    numbers = returning(lambda: list(range(500)))
    whole = play(prompt, look, ANSWER, own=numbers).turns[1]
    budget = len(look) + 1 + len(whole.ids)  # one token too few
    trajectory = play(prompt, look, ANSWER, own=numbers, budget=budget)
    [call] = trajectory.calls
    assert len(call.response) <= MIN_CHARS
    assert json.loads(call.response)["total"] == 500
    assert (call.tool, call.arguments) == ("probe", {})


def test_a_query_result_is_shown_as_run_sql_shows_one(prompt: Prompt) -> None:
    call = called(prompt, lambda: execute(prompt.db_path, NAMES))
    assert json.loads(call.response)["rows"][0] == ["Ann"]
    assert call.result is not None


# What becomes of it


@pytest.fixture(scope="module")
def looked(prompt: Prompt) -> Trajectory:
    good = tool_call_text("sample_values", table="singer", column="name")
    bad = tool_call_text("sample_values", table="nothing", column="name")
    return play(prompt, good, bad, call_text("SELECT nme FROM singer"), ANSWER)


def test_rows_on_disk_name_the_tool_and_its_arguments(looked: Trajectory) -> None:
    row = json.loads(json.dumps(describe(looked, Verdict(True, "correct"))))
    calls = [call for turn in row["turns"] for call in turn.get("calls", ())]
    assert calls[0] == {
        "query": None,
        "problem": None,
        "response": looked.calls[0].response,
        "tool": "sample_values",
        "arguments": {"table": "singer", "column": "name"},
    }
    assert set(calls[2]) == {"query", "problem", "response"}


def test_the_viewer_shows_it_under_its_name(looked: Trajectory) -> None:
    html = show(looked).html
    assert html.count("sample_values · ") == 2
    assert html.count("run_sql · ") == 1
    assert "there is no table nothing" in html


def test_the_facts_of_a_step_count_its_calls_but_none_of_its_errors_as_sql(
    looked: Trajectory,
) -> None:
    found = facts([looked], [Verdict(True, "correct")], {"rollout": 1.0, "generate": 0.5})
    assert (found.means["rollout/calls"], found.means["rollout/sql_errors"]) == (3.0, 1.0)
    assert len(found.latencies) == 1


def test_the_warm_start_trains_on_its_good_calls_and_not_on_those_that_failed(
    looked: Trajectory, prompt: Prompt
) -> None:
    example = Example(7, "dev", "Who sings?", NAMES, "music", prompt.db_path)
    golds = gate([example]).results
    task = Task("own", "dev", {prompt.key: example}, {prompt.key: prompt}, (), golds)
    [row] = to_rows([looked], task)
    start, trained = len(prompt.ids), []
    for turn in looked.turns:
        labels = row["labels"][start : start + len(turn.ids)]
        trained.append(list(turn.ids) == labels)
        start += len(turn.ids)
    assert trained == [True, False, False, False, False, False, True]


def test_a_query_result_of_its_own_does_not_count_as_one_of_the_models_queries() -> None:
    result = QueryResult("ok", ("a",), ((1,),))
    call = Call(None, "", result=result, tool="probe", arguments={})
    assert not call.failed
    assert Call("SELECT", "", result=QueryResult("error", error="x")).failed
    assert Call(None, "", "malformed").failed
