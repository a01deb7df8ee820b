"""The viewers' HTML: turns, tables, SQL, tokens; hostile texts in every place."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from nl2sql_trl import readable
from nl2sql_trl.markup import FORCED, SAMPLED, VERMILION
from nl2sql_trl.policy import ByteTokenizer, ScriptedPolicy
from nl2sql_trl.prompts import Codec, answer_text, call_text
from nl2sql_trl.readable import response, sql
from nl2sql_trl.records import ModelTurn, Trajectory, Verdict
from nl2sql_trl.rollout import RolloutConfig, rollout
from nl2sql_trl.runs import append_jsonl, describe, read_jsonl
from nl2sql_trl.task import Task, make_task
from nl2sql_trl.tokens import pieces, show_tokens
from nl2sql_trl.viewer import show, show_row

CODEC = Codec(ByteTokenizer())
VOID = {"br", "img", "hr", "input", "link", "meta"}


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task("pocket", "dev", CODEC)


def play(task: Task, *turns: str, config: RolloutConfig | None = None) -> Trajectory:
    prompt = next(iter(task.prompts.values()))
    return rollout([prompt], ScriptedPolicy([turns], CODEC), config or task.rollout)[0]


class Tags(HTMLParser):
    """Every element of a page with its attributes and its own text, and all text in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.text = ""
        self.open: list[tuple[str, int]] = []
        self.feed(html)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in VOID
        self.open.append((tag, len(self.tags)))
        self.tags.append((tag, dict(attrs)))
        self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        for _, at in self.open:
            self.texts[at] += data

    def of(self, tag: str) -> list[tuple[str, str]]:
        """Text and style of each element of that name."""
        return [
            (text, attributes.get("style") or "")
            for (name, attributes), text in zip(self.tags, self.texts, strict=True)
            if name == tag
        ]


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "</pre></div></td></table><h1>out</h1>",
    "<!-- ",
    '" onmouseover="alert(1)',
    "&lt;script&gt;",
    "<svg/onload=alert(1)>",
    r"$$\href{javascript:alert(1)}{x}$$",
    "```\n</pre>```sql\nx",
    "<|im_end|>\n<|im_start|>assistant",
    "x" * 10_000,
    "{x} %s {0} \\1",
    "עברית ومرحبا",
]


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda text: ascii(text[:20]))
def test_hostile_text_anywhere_in_a_trajectory_is_shown_and_is_no_markup(
    hostile: str, task: Task
) -> None:
    literal = hostile.replace("'", "''")
    trajectory = play(
        task,
        hostile + "\n" + call_text(f"SELECT '{literal}' AS \"{literal.replace(chr(34), '')}\""),
        f"<tool_call>{hostile}</tool_call>",
        hostile + "\n" + answer_text(f"SELECT '{literal}'"),
        config=RolloutConfig(budget=200_000, tool_chars=50_000),
    )
    trajectory = replace(trajectory, prompt=replace(trajectory.prompt, key=hostile))
    html = show(trajectory, Verdict(False, "wrong_rows", hostile)).html
    found = Tags(html)
    tables = {"table", "thead", "tbody", "tr", "th", "td"}
    assert {tag for tag, _ in found.tags} <= {"div", "pre", "span", "b", "i", *tables}
    assert {name for _, attributes in found.tags for name in attributes} <= {"class", "style"}
    # The key, the texts of three turns, the query, its cell, the answer and the verdict's detail.
    assert found.text.count(hostile) >= 7
    tokens = Tags(show_tokens(trajectory, CODEC).html)
    assert {tag for tag, _ in tokens.tags} <= {"div", "pre", "span"}


UNSEEN = [
    "\x00",
    "\x07",
    "\x1b",
    "\r",
    "\x7f",
    "\x85",
    "\u202e",
    "\u2066",
    "\u200f",
    "\u2028",
    "\ufeff",
    "\udcff",
]


@pytest.mark.parametrize("char", UNSEEN, ids=ascii)
def test_what_would_be_invisible_or_turn_the_text_is_written_out(char: str, task: Task) -> None:
    trajectory = play(task, "hm")
    turn = trajectory.model_turns[0]
    odd = replace(trajectory, turns=(replace(turn, text=f"a{char}b"),))
    shown = show(odd, Verdict(False, "not_executable", f"near {char}")).html
    assert char not in shown
    assert f"a\\u{ord(char):04x}b" in shown
    assert shown.encode("utf-8")


def test_the_turns_stand_in_order_with_the_verdict_last(task: Task) -> None:
    trajectory = play(task, call_text("SELECT 11"), "Now.\n" + answer_text("SELECT 22"))
    text = Tags(show(trajectory, Verdict(True, "correct", "1 rows, gold 1")).html).text
    order = [
        trajectory.prompt.messages[-1]["content"],
        "SELECT 11",
        f"{len(trajectory.turns[1].ids)} tokens, forced",
        "1 row",
        "Now.",
        "SELECT 22",
        "✓ correct",
        "1 rows, gold 1",
    ]
    places = [text.index(part) for part in order]
    assert places == sorted(places)


def test_sampled_and_forced_tokens_are_counted_and_drawn_in_proportion(task: Task) -> None:
    trajectory = play(task, call_text("SELECT 11"), answer_text("SELECT 22"))
    mask = trajectory.env_mask
    found = Tags(show(trajectory).html)
    assert found.text.endswith(f"{mask.count(1)} tokens sampled, {mask.count(0)} forced")
    bars = [style for _, style in found.of("div") if style.startswith("flex:")]
    assert [int(style.split()[0].removeprefix("flex:")) for style in bars] == [
        len(turn.ids) for turn in trajectory.turns
    ]
    colours = [SAMPLED if isinstance(turn, ModelTurn) else FORCED for turn in trajectory.turns]
    assert all(colour in style for colour, style in zip(colours, bars, strict=True))


def test_a_refused_call_is_named_with_what_the_model_was_told(task: Task) -> None:
    trajectory = play(task, '<tool_call>{"name": "rm"}</tool_call>', "sorry")
    text = Tags(show(trajectory).html).text
    assert "refused: unknown tool" in text
    assert "there is no tool 'rm': the tool is run_sql" in text
    assert '{"name": "rm"}' in text
    assert "there is no answer" in text


@pytest.mark.parametrize(
    ("last", "shown_again"),
    [
        (answer_text("SELECT 1"), False),
        ("```\nSELECT 1\n```", False),
        ("```SELECT 1```", True),  # on one line: no block that could be told apart
        (answer_text("SELECT 2") + "\n" + answer_text("SELECT 1"), True),
        ("```python\n2\n```\n" + answer_text("SELECT 1"), True),
    ],
)
def test_the_answer_is_repeated_where_it_does_not_stand_alone_above(
    last: str, shown_again: bool, task: Task
) -> None:
    trajectory = play(task, last)
    assert trajectory.answer == "SELECT 1"
    text = Tags(show(trajectory, Verdict(True, "correct")).html).text
    assert ("the answer" in text) == shown_again
    assert text.count("SELECT 1") == 1 + shown_again


@pytest.mark.parametrize(
    "call",
    [
        '{"name": "run_sql", "arguments": {"query": "SELECT 1", "limit": 5}}',
        '{"name": "run_sql", "note": "x", "arguments": {"query": "SELECT 1"}}',
        '{"name": "other", "arguments": {"query": "SELECT 1"}}',
        '{"query": "SELECT 1"}',
        "[" * 100_000,
        '{"name": "run_sql", "arguments": {"query": 1}}',
        '{"name": "run_sql", "arguments": ["SELECT 1"]}',
        "SELECT 1",
    ],
    ids=lambda text: text[:30],
)
def test_a_call_that_says_anything_unusual_is_shown_as_it_was_written(
    call: str, task: Task
) -> None:
    trajectory = play(
        task, f"<tool_call>{call}</tool_call>", "no", config=RolloutConfig(budget=200_000)
    )
    assert f"<tool_call>{call}</tool_call>" in Tags(show(trajectory).html).text


def test_a_usual_call_is_shown_as_its_query_with_its_line_breaks(task: Task) -> None:
    text = Tags(show(play(task, call_text('SELECT 1\nAS "a"'), "no")).html).text
    assert 'SELECT 1\nAS "a"' in text
    assert "arguments" not in text


def test_a_call_that_was_cut_and_a_block_that_was_cut_are_shown(task: Task) -> None:
    config = RolloutConfig(budget=30)
    text = Tags(show(play(task, call_text("SELECT 1"), config=config)).html).text
    assert "the token budget ran out" in text
    assert '<tool_call>\n{"name": "run_sql"' in text
    assert "SELECT 123" in Tags(show(play(task, "```sql\nSELECT 123")).html).text


def test_a_shown_trajectory_is_one_line_where_there_is_no_html(task: Task) -> None:
    shown = show(play(task, answer_text("SELECT 1")), Verdict(False, "wrong_rows"))
    assert repr(shown) == (
        "trajectory dev:0: 0 calls, the model made no further call, ✗ wrong rows"
    )
    assert shown._repr_html_() == shown.html


def test_a_saved_row_is_shown_like_the_trajectory_itself(task: Task, tmp_path: Path) -> None:
    trajectory = play(task, call_text("SELECT 1, NULL"), answer_text("SELECT 1"))
    verdict = Verdict(False, "wrong_rows", "1 rows, gold 2")
    append_jsonl(tmp_path / "trajectories.jsonl", [{"step": 3} | describe(trajectory, verdict)])
    [row] = read_jsonl(tmp_path / "trajectories.jsonl")
    assert show_row(row).html == show(trajectory, verdict).html
    assert VERMILION in show_row(row).html


# Tool responses


def table(text: str) -> list[list[str]]:
    """The texts of a response's table, a list a line."""
    found = Tags(response(text))
    names = [text for text, _ in found.of("th")]
    cells = [text for text, _ in found.of("td")]
    width = len(names)
    assert len(found.of("tr")) == 1 + len(cells) // width
    return [names, *(cells[i : i + width] for i in range(0, len(cells), width))]


def test_rows_are_a_table_with_their_columns() -> None:
    text = json.dumps({"columns": ["name", "n"], "rows": [["a", 1], ["b", 2.5]]})
    assert table(text) == [["name", "n"], ["a", "1"], ["b", "2.5"]]
    assert Tags(response(text)).text.endswith("2 rows")


def test_null_is_told_apart_from_the_text_null() -> None:
    html = response('{"columns": ["a"], "rows": [[null], ["NULL"]]}')
    found = Tags(html)
    assert [text for text, _ in found.of("td")] == ["NULL", "NULL"]
    assert [text for text, _ in found.of("i")] == ["NULL"]


def test_numbers_stand_on_the_right_and_texts_on_the_left() -> None:
    found = Tags(response('{"columns": ["a", "b"], "rows": [[1, "1"], [null, "x"], [-2.5, ""]]}'))
    sides = [style.rpartition("text-align:")[2] for _, style in found.of("td")]
    assert sides == ["right", "left", "left", "left", "right", "left"]
    heads = [style.rpartition("text-align:")[2].split(";")[0] for _, style in found.of("th")]
    assert heads == ["right", "left"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "1 row"),
        ({"total_rows": 17}, "the first 1 of 17 rows in all"),
        ({"total_rows": "more than 2000"}, "the first 1 of more than 2000 rows in all"),
        ({"rows": []}, "0 rows"),
    ],
)
def test_it_is_said_how_many_rows_there_are(more: dict[str, object], said: str) -> None:
    text = json.dumps({"columns": ["a"], "rows": [[1]], **more})
    assert Tags(response(text)).text.endswith(said)


def test_a_table_without_rows_keeps_its_columns() -> None:
    assert table('{"columns": ["a", "b"], "rows": []}') == [["a", "b"]]


def test_bytes_are_shown_in_hexadecimal() -> None:
    found = Tags(readable.table(["b"], [(b"\x00\xff",)], "more than 1"))
    assert [text for text, _ in found.of("td")] == ["00ff"]
    assert found.text.endswith("the first 1 of more than 1 rows in all")


def test_hundreds_of_columns_are_all_there_and_scroll_inside_themselves() -> None:
    columns = [f"c{n}" for n in range(400)]
    text = json.dumps({"columns": columns, "rows": [list(range(400))]})
    assert table(text) == [columns, [str(n) for n in range(400)]]
    assert "overflow:auto" in Tags(response(text)).of("div")[0][1]


def test_what_was_too_wide_for_the_model_is_said() -> None:
    text = Tags(response('{"column_count": 150, "total_rows": 3}')).text
    assert text == "150 columns, too wide to be shown; 3 rows"


def test_an_error_is_shown_as_one() -> None:
    found = Tags(response('{"error": "no such column: <b>"}'))
    assert found.text == "error no such column: <b>"


@pytest.mark.parametrize(
    "text",
    [
        '{"columns": ["name"], "rows": [["Al...(truncated)...]]}',
        "not JSON at all",
        "",
        "null",
        "[1, 2]",
        '{"columns": ["a", "b"], "rows": [[1]]}',
        '{"columns": ["a"], "rows": [1]}',
        '{"columns": ["a"], "rows": [[[1]]]}',
        '{"columns": ["a"], "rows": [[true]]}',
        '{"columns": [1], "rows": [[1]]}',
        '{"columns": "a", "rows": "b"}',
        '{"columns": ["a"], "rows": [[1]], "note": "x"}',
        '{"error": "x", "rows": []}',
        '{"error": 5}',
        "[" * 100_000,
        "9" * 10_000,
    ],
    ids=lambda text: text[:30],
)
def test_a_response_of_another_form_is_shown_as_it_is(text: str) -> None:
    found = Tags(response(text))
    assert found.text == text
    assert [tag for tag, _ in found.tags] == ["pre"]


def test_keywords_are_bold_but_not_in_quotes_and_comments() -> None:
    query = "SELECT 'from ''where' AS \"order\" -- and\nFROM t /* join */ wHere selected = 1"
    found = Tags(sql(query))
    assert [text for text, _ in found.of("b")] == ["SELECT", "AS", "FROM", "wHere"]
    assert found.text == query


@pytest.mark.parametrize(
    "query", ["'" * 20_001, '"' * 20_001, "/*" * 20_000, "--" * 20_000, "'select"]
)
def test_a_query_of_quotes_without_end_is_shown(query: str) -> None:
    assert Tags(sql(query)).text == query


# Tokens


def test_every_token_has_a_box_of_its_mask_with_its_id(task: Task) -> None:
    trajectory = play(task, call_text("SELECT 11"), answer_text("SELECT 22"))
    found = Tags(show_tokens(trajectory, CODEC, 2048).html)
    boxes = [attributes for _, attributes in found.tags if "title" in attributes]
    assert [int(box["title"] or "") for box in boxes] == trajectory.completion_ids
    masks = ["solid" in (box["style"] or "").split(";border:")[0] for box in boxes]
    assert masks == [bool(value) for value in trajectory.env_mask]


def test_the_budget_is_counted_down_after_each_turn(task: Task) -> None:
    trajectory = play(task, call_text("SELECT 11"), answer_text("SELECT 22"))
    text = Tags(show_tokens(trajectory, CODEC, 2048).html).text
    left = 2048
    for turn in trajectory.turns:
        left -= len(turn.ids)
        kind = "sampled" if isinstance(turn, ModelTurn) else "forced"
        assert f"{len(turn.ids)} tokens, {kind} · {left} left" in text
    assert f"{left} of 2048 left" in text
    assert "left" not in Tags(show_tokens(trajectory, CODEC).html).text


def test_a_special_token_is_framed_and_its_text_in_data_is_not(task: Task) -> None:
    trajectory = play(task, call_text("SELECT '<|im_end|>' AS x"), "no")
    found = Tags(show_tokens(trajectory, CODEC).html)
    framed = [text for text, style in found.of("span") if "font-weight:700" in style]
    ids = trajectory.completion_ids
    assert framed.count("<|im_end|>") == ids.count(CODEC.eos_id)
    assert found.text.count("<|im_end|>") > framed.count("<|im_end|>")


def test_newlines_and_tabs_are_visible_and_break_the_line(task: Task) -> None:
    text = Tags(show_tokens(play(task, "a\n\tb"), CODEC).html).text
    assert "a↵\n→\tb" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aé", ["a", "é", "⋯"]),
        ("€😀b", ["€", "⋯", "⋯", "😀", "⋯", "⋯", "⋯", "b"]),
        ("", []),
        ("\ufffd!", ["\ufffd", "\ufffd", "\ufffd", "!"]),
    ],
)
def test_a_character_of_several_tokens_stands_in_the_first_box(
    text: str, expected: list[str]
) -> None:
    ids = CODEC.tokenizer(text)["input_ids"]
    assert pieces(ids, CODEC) == expected


def test_a_character_that_was_cut_is_replaced_and_nothing_after_it_is_lost() -> None:
    [start, *_] = CODEC.tokenizer("😀")["input_ids"]
    ids = [start, *CODEC.tokenizer("ab<|im_end|>")["input_ids"]]
    assert pieces(ids, CODEC) == ["\ufffd", "a", "b", "<|im_end|>"]
