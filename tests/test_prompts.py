"""The text protocol: what counts as a call, what counts as an answer, for any text at all."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nl2sql_trl.prompts import answer_text, call_text, extract_answer, messages, parse_calls

GOOD = '<tool_call>\n{"name": "run_sql", "arguments": {"query": "SELECT 1"}}\n</tool_call>'


def call(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


# Calls


@pytest.mark.parametrize(
    ("text", "query"),
    [
        (GOOD, "SELECT 1"),
        (f"I will look.\n{GOOD}\nThen decide.", "SELECT 1"),
        ('<tool_call>{"name":"run_sql","arguments":{"query":"SELECT 1"}}</tool_call>', "SELECT 1"),
        ('<tool_call>{"arguments": {"query": "a"}, "name": "run_sql"}</tool_call>', "a"),
        (
            '<tool_call>{"name": "run_sql", "arguments": {"query": "SELECT \'it\'\'s\'"}}',
            "SELECT 'it''s'",
        ),
        (call('{"name": "run_sql", "arguments": {"query": ""}}'), ""),
        (call('{"name": "run_sql", "arguments": {"query": "a\nb\tc"}}'), "a\nb\tc"),
        (
            call('{"name": "run_sql", "arguments": {"query": "a\\nb \\"c\\" \\u00e9"}}'),
            'a\nb "c" é',
        ),
        (call('{"name": "run_sql", "arguments": {"query": "x"}, "id": 7}'), "x"),
        (GOOD.removesuffix("\n</tool_call>"), "SELECT 1"),
        (f"<think>hm</think>\n\n{GOOD}", "SELECT 1"),
        (GOOD.replace("\n", "\r\n"), "SELECT 1"),
    ],
)
def test_a_well_formed_call_gives_its_query(text: str, query: str) -> None:
    (parsed,) = parse_calls(text)
    assert (parsed.query, parsed.problem, parsed.message) == (query, None, "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SELECT 1",
        answer_text("SELECT 1"),
        "I could make a tool_call here.",
        "</tool_call>",
        f"<think>{GOOD}</think>",
        f"<think>still thinking {GOOD}",
        '{"name": "run_sql", "arguments": {"query": "SELECT 1"}}',
        "the <tools> block is above",
        "<TOOL_CALL>x</TOOL_CALL>",
    ],
)
def test_text_without_a_call_outside_its_thoughts_has_none(text: str) -> None:
    assert parse_calls(text) == []


MALFORMED = [
    "",
    "SELECT 1",
    "{'name': 'run_sql', 'arguments': {'query': 'SELECT 1'}}",
    '{"name": "run_sql", "arguments": {"query": "SELECT 1"}',
    '{"name": "run_sql", "arguments": {"query": "SELECT 1"}}}',
    '{"name": "run_sql", "arguments": {"query": "SELECT "x""}}',
    '{"name": "run_sql", "arguments": {"query": "SELECT 1"}} SELECT 2',
    '{"name": "run_sql", "arguments": {"query": "SELECT 1"},}',
    '{"name": "run_sql", "arguments": {"query": "a"}}\n{"name": "run_sql", "arguments": {}}',
    '```json\n{"name": "run_sql", "arguments": {"query": "SELECT 1"}}\n```',
    '{"name": run_sql, "arguments": {}}',
    '"run_sql"',
    "[]",
    '[{"name": "run_sql", "arguments": {"query": "SELECT 1"}}]',
    "7",
    "null",
    "true",
    "NaN",
    "{}",
    '{"arguments": {"query": "SELECT 1"}}',
    '{"name": null, "arguments": {"query": "SELECT 1"}}',
    '{"name": 5, "arguments": {"query": "SELECT 1"}}',
    '{"function": {"name": "run_sql", "arguments": {"query": "SELECT 1"}}}',
    "[" * 100_000,
    '{"a":' * 100_000,
    "[" * 100_000 + "]" * 100_000,
    "1" * 10_000,
    '{"name": "run_sql", "arguments": {"query": ' + "9" * 10_000 + "}}",
    '"' + "x" * 1_000_000,
    "<tool_call>",
    "\ud800",
]


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
def test_a_call_that_is_no_call_object_is_malformed_and_told_the_form(body: str) -> None:
    parsed = parse_calls(call(body))[0]
    assert (parsed.query, parsed.problem) == (None, "malformed")
    assert "could not parse the call" in parsed.message
    assert '{"name": "run_sql", "arguments": {"query": "..."}}' in parsed.message
    assert len(parsed.message) < 200


@pytest.mark.parametrize("name", ["run_SQL", "execute", "", "run_sql ", "x" * 100_000, "é\n\ud800"])
def test_another_tool_is_named_and_refused(name: str) -> None:
    body = json.dumps({"name": name, "arguments": {"query": "SELECT 1"}})
    (parsed,) = parse_calls(call(body))
    assert (parsed.query, parsed.problem) == (None, "unknown_tool")
    assert "run_sql" in parsed.message
    assert len(parsed.message) < 200
    parsed.message.encode()


@pytest.mark.parametrize(
    "arguments",
    [
        '"SELECT 1"',
        '"{\\"query\\": \\"SELECT 1\\"}"',
        "{}",
        "[]",
        "null",
        "7",
        '["SELECT 1"]',
        '{"sql": "SELECT 1"}',
        '{"Query": "SELECT 1"}',
        '{"query": null}',
        '{"query": 1}',
        '{"query": ["SELECT 1"]}',
        '{"query": {"query": "SELECT 1"}}',
        '{"query": "SELECT 1", "limit": 5}',
        '{"query": "SELECT 1", "": 1, "z": 2}',
        '{"query": "SELECT 1", "' + "k" * 100_000 + '": 1}',
        '{"query": "SELECT 1", "\\ud800": 1}',
    ],
    ids=range(17),
)
def test_wrong_arguments_are_told_what_the_tool_takes(arguments: str) -> None:
    (parsed,) = parse_calls(call(f'{{"name": "run_sql", "arguments": {arguments}}}'))
    assert (parsed.query, parsed.problem) == (None, "bad_arguments")
    assert "query" in parsed.message
    assert len(parsed.message) < 200
    parsed.message.encode()


def test_a_call_without_arguments_is_told_what_the_tool_takes() -> None:
    (parsed,) = parse_calls(call('{"name": "run_sql"}'))
    assert parsed.problem == "bad_arguments"


def test_of_several_calls_the_first_good_one_runs_and_the_rest_are_refused_in_words() -> None:
    parsed = parse_calls(call("nonsense") + GOOD + call('{"name": "x"}') + GOOD)
    assert [p.problem for p in parsed] == ["malformed", None, "extra_call", "extra_call"]
    assert [p.query for p in parsed] == [None, "SELECT 1", None, None]
    assert all("only one call a turn" in p.message for p in parsed[2:])


def test_an_unclosed_call_before_another_swallows_it_and_is_malformed() -> None:
    (parsed,) = parse_calls("<tool_call>\n{\n" + GOOD)
    assert parsed.problem == "malformed"


@pytest.mark.parametrize("end", ["</tools>", ""])
def test_a_call_in_a_tools_block_is_told_the_right_tag(end: str) -> None:
    text = '<tools>\n{"name": "run_sql", "arguments": {"query": "SELECT 1"}}\n' + end
    (parsed,) = parse_calls(text)
    assert parsed.problem == "malformed"
    assert "<tool_call>" in parsed.message


def test_a_tools_block_beside_a_real_call_is_passed_over() -> None:
    assert [p.problem for p in parse_calls('<tools>{"a": 1}</tools>' + GOOD)] == [None]


@settings(deadline=None)
@given(st.text(max_size=300))
def test_a_call_we_write_is_the_call_we_read(query: str) -> None:
    text = call_text(query)
    if "</tool_call>" not in query and "<think>" not in query:
        assert [p.query for p in parse_calls(text)] == [query]


_PIECES = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "<think>", "</think>", "<tools>", "</tools>", "```",
        "```sql", "```SQL\n", "``` ", "\n", "\r\n", "\r", " ", "\t", "{", "}", '"', "'", "`",
        "SELECT 1", "é",
        '{"name": "run_sql", "arguments": {"query": "SELECT 1"}}', "<|im_end|>", "\x00", "\u2028",
    ]
)  # fmt: skip
_messages = st.one_of(
    st.text(st.characters(), max_size=200), st.lists(_PIECES, max_size=25).map("".join)
)


@settings(deadline=None)
@given(_messages)
def test_no_text_makes_the_parsers_raise(text: str) -> None:
    good = [p for p in parse_calls(text) if p.problem is None]
    assert len(good) <= 1
    for parsed in parse_calls(text):
        assert (parsed.query is None) == (parsed.problem is not None)
        assert bool(parsed.message) == (parsed.problem is not None)
    answer = extract_answer(text)
    assert answer is None or (answer and answer == answer.strip())


# Answers


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("```sql\nSELECT 1\n```", "SELECT 1"),
        ("```SQL\nSELECT 1\n```", "SELECT 1"),
        ("```Sql\nSELECT 1\n```", "SELECT 1"),
        ("```sqlite\nSELECT 1\n```", "SELECT 1"),
        ("```SQLite\nSELECT 1\n```", "SELECT 1"),
        ("``` sql \nSELECT 1\n```", "SELECT 1"),
        ("```\nSELECT 1\n```", "SELECT 1"),
        ("```sql\n\n  SELECT 1\n\n```", "SELECT 1"),
        ("```sql\nSELECT a,\n  b\nFROM t\n```", "SELECT a,\n  b\nFROM t"),
        # unclosed: to the end of the message
        ("```sql\nSELECT 1", "SELECT 1"),
        ("```sql\nSELECT 1\n``", "SELECT 1\n``"),
        ("Here:\n```\nSELECT 1\n", "SELECT 1"),
        # one line
        ("```sql SELECT 1```", "SELECT 1"),
        ("```sql SELECT 1 ``` ", "SELECT 1"),
        ("```SELECT 1```", "SELECT 1"),
        ("```SELECT*FROM t```", "SELECT *FROM t"),
        ("```with a as (select 1) select * from a```", "with a as (select 1) select * from a"),
        ("```sql SELECT 1```\n```sql SELECT 2```", "SELECT 2"),
        # line ends
        ("```sql\r\nSELECT 1\r\n```\r\n", "SELECT 1"),
        ("```sql\rSELECT a\rFROM t\r```", "SELECT a\nFROM t"),
        ("text\r\n```SQL\r\nSELECT a\r\nFROM t\r\n```", "SELECT a\nFROM t"),
        # several: the last labelled one, else the last plain one
        ("```sql\nSELECT 1\n```\nor\n```sql\nSELECT 2\n```", "SELECT 2"),
        ("```\nSELECT 1\n```\nor\n```\nSELECT 2\n```", "SELECT 2"),
        ("```sql\nSELECT 1\n```\nwhich gives\n```\na | b\n```", "SELECT 1"),
        ("```\nSELECT 1\n```\n```sqlite\nSELECT 2\n```\n```\nx\n```", "SELECT 2"),
        ("```sql\nSELECT 1\n```\n```sql\nSELECT 2", "SELECT 2"),
        ("```sql\nSELECT 1\n```sql\nSELECT 2\n```", "SELECT 1"),
        # other languages
        ("```python\nprint(1)\n```", None),
        ("```python\nprint(1)\n```\n```sql\nSELECT 1\n```", "SELECT 1"),
        ("```sql\nSELECT 1\n```\n```python\nprint(1)\n```", "SELECT 1"),
        ("```json\n{}\n```\n```\nSELECT 1\n```", "SELECT 1"),
        ("```mysql\nSELECT 1\n```", None),
        ("```sql-server\nSELECT 1\n```", None),
        ("```c++\nx\n```", None),
        ("```python```", None),
        ("```sqlx SELECT 1```", None),
        # backticks inside a line
        ("```sql\nSELECT '```' AS a\n```", "SELECT '```' AS a"),
        ("```sql\nSELECT `a` FROM `t`\n```", "SELECT `a` FROM `t`"),
        ("```sql SELECT '```' AS a```", "SELECT '```' AS a"),
        # indented
        ("  ```sql\n  SELECT 1\n  ```", "SELECT 1"),
        ("1. So:\n\t```sql\n\tSELECT 1\n\t```\n", "SELECT 1"),
        # not at the start of a line
        ("the answer is ```sql SELECT 1```", None),
        ("SELECT 1", None),
        ("`SELECT 1`", None),
        ("``sql\nSELECT 1\n``", None),
        # nothing inside
        ("", None),
        ("```", None),
        ("```sql", None),
        ("```sql\n", None),
        ("```sql\n```", None),
        ("```sql\n  \n\n```", None),
        ("```sql```", None),
        ("```sql   ```", None),
        ("```sql\nSELECT 1\n```\nno, wait\n```sql\n```", None),
        ("```\nSELECT 1\n```\n```sql\n```", None),
        # text after
        ("```sql\nSELECT 1\n```\nThis counts the rows.", "SELECT 1"),
        ("```sql\nSELECT 1\n``` is the answer", "SELECT 1"),
        # thoughts and calls are no answer
        ("<think>\n```sql\nSELECT 1\n```\n</think>\n", None),
        ("<think>\n```sql\nSELECT 1\n```\n</think>\n```sql\nSELECT 2\n```", "SELECT 2"),
        ("```sql\nSELECT 2\n```\n<think>\n```sql\nSELECT 1\n```\n</think>", "SELECT 2"),
        ("<think>\n```sql\nSELECT 1\n```", None),
        ("<think></think><think>\n```sql\nSELECT 1\n```\n</think>\n```\nSELECT 2\n```", "SELECT 2"),
        ("<tool_call>\n```sql\nSELECT 1\n```\n</tool_call>", None),
        ("<tool_call>\n```sql\nSELECT 1\n```", None),
        ("<tool_call>\nx\n</tool_call>\n```sql\nSELECT 2\n```", "SELECT 2"),
        ("```sql\nSELECT 2\n```\n<tool_call>\n```sql\nSELECT 1\n```\n</tool_call>", "SELECT 2"),
    ],
)  # fmt: skip
def test_the_answer_is_taken_by_the_documented_rule(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


@settings(deadline=None)
@given(st.lists(st.text("abc 'é;,()*<>=\t", min_size=1), min_size=1).map("\n".join))
def test_an_answer_we_write_is_the_answer_we_read(query: str) -> None:
    assert extract_answer(answer_text(query)) == (query.strip() or None)
    assert extract_answer(answer_text(query).replace("\n", "\r\n")) == (query.strip() or None)


@pytest.mark.parametrize(
    "text",
    [
        "```" + "a" * 30_000,
        "```" + "a" * 30_000 + "`",
        "```sql " + "a " * 30_000,
        "```" + " " * 30_000 + "x",
        "```sql " + " " * 30_000 + "``",
        "\t" * 30_000 + "`",
        "```a\n" * 30_000,
        "`" * 30_000,
        "``` " * 30_000,
        "<think>" * 30_000,
        "<tool_call>" * 30_000,
        "<tools>{" * 30_000,
        "```sql\n" + (" " * 300 + "\n") * 300,
    ],
    ids=range(13),
)
def test_a_model_that_repeats_itself_does_not_stall_the_parsers(text: str) -> None:
    extract_answer(text)  # with a backtracking pattern, some of these take hours
    parse_calls(text)


# The opening


@pytest.mark.parametrize("ddl", ["CREATE TABLE t(a)", "{}", "{ddl}", "{0}", "%s", "", "a\\b", "$x"])
def test_the_schema_and_the_question_stand_in_the_prompt_as_they_are(ddl: str) -> None:
    system, user = messages("How many {ddl} %s?", ddl)
    assert (system["role"], user["role"]) == ("system", "user")
    assert f"with this schema:\n{ddl}\nYou may call" in system["content"]
    assert user["content"] == "How many {ddl} %s?"
