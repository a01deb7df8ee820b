"""Faults that users of other text-to-SQL trainers and scorers reported, as small inputs.

Each goes the whole way here: a scripted rollout, a verdict, or a score by the official metrics.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nl2sql_trl.database import GOLD_LIMITS, Limits, execute
from nl2sql_trl.gold import gate
from nl2sql_trl.policy import ByteTokenizer, ScriptedPolicy
from nl2sql_trl.prompts import Codec, answer_text, call_text
from nl2sql_trl.records import Example, ToolTurn, Trajectory, Verdict
from nl2sql_trl.rewards import REWARDS, Comparison, judge
from nl2sql_trl.rollout import RolloutConfig, check, make_prompt, rollout
from nl2sql_trl.spider.evaluator import Evaluator

CODEC = Codec(ByteTokenizer())
DDL = "CREATE TABLE t (a INT, b TEXT, kind TEXT, y TEXT)"
COUNT_UP = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT {}) "


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults") / "t"
    folder.mkdir()
    connection = sqlite3.connect(folder / "t.sqlite")
    connection.executescript(
        f"""{DDL}; CREATE TABLE u (a INT, n INT);
        INSERT INTO t VALUES (1, 'x', 'value', '2013'), (2, 'y', 'other', '2014'),
                             (2, 'y', 'other', '2014'), (1, 'z', '1', '2015');
        INSERT INTO u VALUES (1, 10), (2, 20);"""
    )
    connection.close()
    return folder / "t.sqlite"


def verdict(db: Path, answer: str, gold: str, **choices: Any) -> Verdict:
    return judge(answer, gold, execute(db, gold, GOLD_LIMITS), db, Comparison(**choices))


def play(db: Path, *messages: str, config: RolloutConfig | None = None) -> Trajectory:
    prompt = make_prompt(Example(0, "dev", "What?", "SELECT 1", "t", db), DDL, CODEC)
    (trajectory,) = rollout([prompt], ScriptedPolicy([messages], CODEC), config)
    check([trajectory], (config or RolloutConfig()).budget)
    return trajectory


def responses(trajectory: Trajectory) -> list[dict[str, Any]]:
    return [json.loads(call.response) for call in trajectory.calls]


# Rewards


def test_a_query_with_the_word_value_in_it_equals_itself(db: Path) -> None:
    gold = 'SELECT b FROM t WHERE kind = "value"'
    assert verdict(db, gold, gold).correct
    official = Evaluator([db.parent.parent], fixed=True)
    assert official.score("t", gold, gold).testsuite_exec
    official.close()


@pytest.mark.parametrize(
    ("gold", "answer", "right", "any_order"),
    [
        ("SELECT a, b FROM t", "SELECT b, a FROM t", False, True),
        ("SELECT a, b FROM t", "SELECT a, a FROM t", False, False),
        ("SELECT a, a FROM t", "SELECT a, b AS a FROM t", False, False),
        ("SELECT a, a FROM t", "SELECT a, a + 0 FROM t", True, True),
        ("SELECT DISTINCT a FROM t", "SELECT a FROM t", False, False),
        ("SELECT n FROM t JOIN u", "SELECT n FROM t JOIN u ON t.a = u.a", False, False),
        ("SELECT 2013.0", "SELECT y FROM t LIMIT 1", False, False),
        ("SELECT 2013", "SELECT CAST(y AS REAL) FROM t LIMIT 1", True, True),
    ],
)
def test_columns_duplicates_joins_and_types_count_as_documented(
    db: Path, gold: str, answer: str, right: bool, any_order: bool
) -> None:
    assert verdict(db, answer, gold).correct == right
    assert verdict(db, answer, gold, column_order="any").correct == any_order


@pytest.mark.parametrize("answer", ["SELECT nope FROM t", "SELECT 1", "", "SELECT a FROM t"])
@pytest.mark.parametrize(
    ("gold", "limits"),
    [
        ("SELECT nope FROM t", GOLD_LIMITS),
        ("PRAGMA table_info(t)", GOLD_LIMITS),
        (COUNT_UP.format(10**9) + "SELECT count(*) FROM c", Limits(steps=100_000)),
        (COUNT_UP.format(10**9) + "SELECT count(*) FROM c", Limits(seconds=0.01)),
        ("SELECT a FROM t", Limits(rows=2)),
        ("SELECT b FROM t", Limits(value_bytes=0)),
        ("SELECT hex(zeroblob(99))", Limits(value_bytes=50)),
    ],
)
def test_a_gold_that_fails_or_runs_out_of_a_limit_credits_nothing(
    db: Path, gold: str, limits: Limits, answer: str
) -> None:
    gold_result = execute(db, gold, limits)
    for text in (answer, gold):
        found = judge(text, gold, gold_result, db)
        assert found.reason == "gold_unusable" or gold_result.complete is True
        assert [reward(found) for reward in REWARDS.values()] == [0.0] * len(REWARDS)


def test_a_gold_slower_than_an_answer_may_be_has_its_own_limits(db: Path) -> None:
    gold = COUNT_UP.format(100_000) + "SELECT count(*) FROM c"
    short = Limits(steps=100_000)
    assert execute(db, gold, short).outcome == "timeout"
    found = judge("SELECT 100000", gold, execute(db, gold, GOLD_LIMITS), db, limits=short)
    assert found.correct


def test_a_gold_that_names_a_missing_column_is_set_aside_and_the_rest_goes_on(db: Path) -> None:
    golds = ["SELECT a FROM t", "SELECT nope FROM t", "SELECT b FROM t"]
    checked = gate([Example(n, "train", "?", gold, "t", db) for n, gold in enumerate(golds)])
    assert [example.row for example in checked.kept] == [0, 2]
    (dropped,) = checked.dropped
    assert (dropped.example.row, dropped.reason) == (1, "not_executable")
    assert "nope" in dropped.detail


def test_two_empty_results_are_marked_and_credited_only_where_that_is_chosen(db: Path) -> None:
    gold, answer = "SELECT a FROM t WHERE a > 9", "SELECT n FROM u WHERE 0"
    found = verdict(db, answer, gold)
    assert (found.correct, found.empty_match) == (True, True)
    assert not verdict(db, answer, gold, empty="wrong").correct


@pytest.mark.parametrize(
    "gold",
    [
        "SELECT a FROM (SELECT a FROM t ORDER BY a LIMIT 4)",
        "SELECT rank() OVER (ORDER BY a) FROM t",
        "SELECT a FROM t WHERE b <> 'order by'",
    ],
)
def test_an_order_by_inside_asks_for_no_order(db: Path, gold: str) -> None:
    rows = execute(db, gold).rows
    turned = " UNION ALL ".join(f"SELECT {row[0]}" for row in reversed(rows))
    assert verdict(db, turned, gold).correct


# Tools


@pytest.mark.parametrize(
    "message",
    [
        '<tool_call>{"name":"run_sql","arguments":{"query":"SELECT \'it\'s\'"}',
        "<tool_call>{'name': 'run_sql', 'arguments': {'query': 'SELECT 1'}}</tool_call>",
        '<tool_call>{"name":"run_sql","arguments":"SELECT 1"}</tool_call>',
        '<tool_call>{"name":"run_sql","arguments":{"query":"SELECT 1"}',
        "<tool_call>run_sql(SELECT 1)</tool_call>",
        "<tool_call></tool_call>",
        '<tools>{"name":"run_sql","arguments":{"query":"SELECT 1"}}</tools>',
    ],
)
def test_a_broken_call_is_told_and_counted_and_the_loop_goes_on(db: Path, message: str) -> None:
    trajectory = play(db, message, call_text("SELECT 1"), answer_text("SELECT 1"))
    first, *_ = responses(trajectory)
    parsed = trajectory.calls[0].problem is None  # an unclosed call may yet be whole JSON
    assert ("error" in first) != parsed
    assert trajectory.answer == "SELECT 1"
    assert trajectory.calls[1].result is not None


def test_of_two_calls_in_a_message_the_second_is_refused_in_words(db: Path) -> None:
    both = call_text("SELECT 1") + call_text("SELECT 2")
    first, second = responses(play(db, both, answer_text("SELECT 1")))
    assert first["rows"] == [[1]]
    assert "one call" in second["error"]


@pytest.mark.parametrize(
    ("query", "columns", "rows"),
    [
        ("SELECT b, a FROM t ORDER BY a DESC, b DESC LIMIT 2", ["b", "a"], [["y", 2], ["y", 2]]),
        ("SELECT a FROM t WHERE 0", ["a"], []),
        ("SELECT NULL", ["NULL"], [[None]]),
        ("SELECT a, a AS a FROM u", ["a", "a"], [[1, 1], [2, 2]]),
    ],
)
def test_order_names_and_nothing_reach_the_model(
    db: Path, query: str, columns: Sequence[str], rows: Sequence[Any]
) -> None:
    (told,) = responses(play(db, call_text(query), answer_text("SELECT 1")))
    assert told == {"columns": columns, "rows": rows}


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("SELECT nope FROM t", "no such column: nope. Did you mean t."),
        ("SELECT a FROM t JOIN u", "ambiguous column name: a. It is in t and u"),
    ],
)
def test_the_error_of_a_bad_column_begins_as_sqlites_own_and_names_no_path(
    db: Path, query: str, error: str
) -> None:
    (told,) = responses(play(db, call_text(query), answer_text("SELECT 1")))
    assert told["error"].startswith(error)
    assert str(db.parent) not in told["error"]


def test_a_result_larger_than_what_is_left_is_cut_to_fit_or_ends_the_row(db: Path) -> None:
    query = COUNT_UP.format(500) + "SELECT x, 'some text' FROM c"
    for budget in range(200, 900, 50):
        trajectory = play(
            db, call_text(query), answer_text("SELECT 1"), config=RolloutConfig(budget=budget)
        )
        tool = [turn for turn in trajectory.turns if isinstance(turn, ToolTurn)]
        assert bool(tool) or trajectory.stop == "budget"


def test_the_same_call_for_ever_ends_at_the_turn_limit(db: Path) -> None:
    trajectory = play(db, *[call_text("SELECT 1")] * 50)
    assert trajectory.stop == "turn_limit"
    assert len(trajectory.model_turns) == RolloutConfig().max_turns


@pytest.mark.parametrize(
    ("messages", "answer"),
    [
        ([call_text("SELECT '```sql' || char(10) || 'SELECT 6'"), "done"], None),
        ([f"```sql\nSELECT 5\n```\n{call_text('SELECT 1')}", "SELECT 1"], None),
        ([answer_text("SELECT '```'")], "SELECT '```'"),
        ([answer_text("SELECT 1") + "\n" + answer_text("SELECT 2")], "SELECT 2"),
    ],
)  # fmt: skip
def test_the_answer_is_the_last_fence_of_the_last_message_alone(
    db: Path, messages: list[str], answer: str | None
) -> None:
    assert play(db, *messages).answer == answer


# Databases


def test_two_thousand_queries_on_one_database_meet_no_lock_though_another_writes(db: Path) -> None:
    writer = sqlite3.connect(db, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    outcomes = {execute(db, "SELECT count(*) FROM t").rows for _ in range(2_000)}
    writer.execute("ROLLBACK")
    writer.close()
    assert outcomes == {((4,),)}


def test_attaching_another_database_is_refused_before_anything_is_written(
    db: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.sqlite"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE o (a)")
    connection.commit()
    connection.close()
    before = other.read_bytes()
    queries = [f"ATTACH '{other}' AS o", "INSERT INTO o.o VALUES (1)", "SELECT * FROM o.o",
               f"ATTACH '{tmp_path / 'new.sqlite'}' AS n"]  # fmt: skip
    outcomes = [execute(db, query).outcome for query in queries]
    assert outcomes == ["denied", "error", "error", "denied"]
    assert other.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["other.sqlite"]


def test_three_million_rows_are_not_fetched_beyond_the_cap_and_the_model_is_told(db: Path) -> None:
    query = COUNT_UP.format(3_000_000) + "SELECT x FROM c"
    (told,) = responses(play(db, call_text(query), answer_text("SELECT 1")))
    assert told["total_rows"] == "more than 1000"
    result = execute(db, query)
    assert (len(result.rows), result.complete) == (1_000, False)


def test_a_name_in_double_quotes_that_is_no_column_is_a_string_as_golds_need(db: Path) -> None:
    assert execute(db, 'SELECT "nosuch" FROM u').rows == (("nosuch",), ("nosuch",))
