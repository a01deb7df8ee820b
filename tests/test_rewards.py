"""Verdicts: what counts as right, and the first thing that is wrong with what isn't."""

from __future__ import annotations

import math
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Context, Decimal
from itertools import permutations
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nl2sql_trl import rewards
from nl2sql_trl.data import load
from nl2sql_trl.database import GOLD_LIMITS, Limits, execute
from nl2sql_trl.gold import gate
from nl2sql_trl.records import QueryResult, Row, Verdict
from nl2sql_trl.rewards import (
    ANSWER_LIMITS,
    REWARDS,
    Comparison,
    compare,
    executable,
    execution_match,
    judge,
    judge_on_suite,
    ordered,
    reads_share,
    rows_share,
)

COUNT_UP = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c"


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rewards") / "t.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        """CREATE TABLE t (a INT, b TEXT);
        INSERT INTO t VALUES (1, 'x'), (2, 'y'), (2, 'y'), (3, NULL);
        CREATE TABLE big (n INT);
        WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 3000)
        INSERT INTO big SELECT x FROM c;"""
    )
    connection.close()
    return path


def verdict(
    db: Path, answer: str | None, gold: str, comparison: Comparison | None = None
) -> Verdict:
    return judge(answer, gold, execute(db, gold, GOLD_LIMITS), db, comparison)


def ok(*rows: Row, columns: int | None = None, complete: bool = True) -> QueryResult:
    width = columns if columns is not None else len(rows[0]) if rows else 1
    return QueryResult("ok", tuple(f"c{n}" for n in range(width)), rows, complete)


def equal(a: QueryResult, b: QueryResult, in_order: bool = False, **choices: str) -> bool:
    return compare(a, b, in_order, Comparison(**choices)).correct  # type: ignore[arg-type]


# Every reason


@pytest.mark.parametrize(
    ("answer", "gold", "reason"),
    [
        ("SELECT a FROM t", "SELECT a FROM t", "correct"),
        ("SELECT a AS other FROM t ORDER BY a DESC", "SELECT a FROM t", "correct"),
        (None, "SELECT a FROM t", "no_answer"),
        ("", "SELECT a FROM t", "not_executable"),
        ("SELEC a FROM t", "SELECT a FROM t", "not_executable"),
        ("SELECT nosuch FROM t", "SELECT a FROM t", "not_executable"),
        ("SELECT a FROM t; SELECT a FROM t", "SELECT a FROM t", "not_executable"),
        ("SELECT '\ud800'", "SELECT a FROM t", "not_executable"),
        ("DELETE FROM t", "SELECT a FROM t", "not_allowed"),
        ("PRAGMA table_info(t)", "SELECT a FROM t", "not_allowed"),
        ("ATTACH 'x.db' AS x", "SELECT a FROM t", "not_allowed"),
        ("SELECT zeroblob(9999999)", "SELECT a FROM t", "too_big"),
        ("SELECT a FROM t LIMIT 1", "SELECT a FROM t", "wrong_rows"),
        ("SELECT DISTINCT a FROM t", "SELECT a FROM t", "wrong_rows"),
        ("SELECT a FROM t", "SELECT DISTINCT a FROM t", "wrong_rows"),
        ("SELECT a FROM t ORDER BY a DESC", "SELECT a FROM t ORDER BY a", "wrong_order"),
        ("SELECT DISTINCT a FROM t ORDER BY a", "SELECT a FROM t ORDER BY a", "wrong_rows"),
        ("SELECT a, b FROM t", "SELECT a FROM t", "wrong_columns"),
        ("SELECT a FROM t", "SELECT a, b FROM t", "wrong_columns"),
        ("SELECT a FROM t WHERE 0", "SELECT a FROM t", "empty"),
        ("SELECT a FROM t", "SELECT a FROM t WHERE 0", "wrong_rows"),
        ("SELECT a FROM t WHERE 0", "SELECT a FROM t WHERE a > 9", "correct"),
        ("SELECT a, b FROM t WHERE 0", "SELECT a FROM t WHERE 0", "wrong_columns"),
    ],
)
def test_each_answer_gets_the_reason_that_fits(
    db: Path, answer: str | None, gold: str, reason: str
) -> None:
    found = verdict(db, answer, gold)
    assert found.reason == reason
    assert found.correct == (reason == "correct")
    assert execution_match(found) == float(reason == "correct")


@pytest.mark.parametrize(
    ("answer", "runs"),
    [
        ("SELECT a FROM t", 1.0),
        ("SELECT 0", 1.0),
        ("SELECT a, b FROM t", 1.0),
        ("SELECT a FROM t WHERE 0", 1.0),
        (None, 0.0),
        ("SELEC", 0.0),
        ("DROP TABLE t", 0.0),
        ("SELECT zeroblob(9999999)", 0.0),
    ],
)
def test_an_answer_is_executable_if_it_ran_whatever_it_gave(
    db: Path, answer: str | None, runs: float
) -> None:
    assert executable(verdict(db, answer, "SELECT a FROM t")) == runs


def test_a_runaway_answer_is_a_timeout_and_earns_nothing(db: Path) -> None:
    gold = "SELECT count(*) FROM t"
    limits = replace(ANSWER_LIMITS, steps=100_000)
    counted = COUNT_UP.replace("SELECT x FROM c", "SELECT count(*) FROM c")
    found = judge(counted, gold, execute(db, gold), db, limits=limits)
    assert (found.reason, found.correct, found.executable) == ("timeout", False, False)


def test_an_answer_without_end_is_not_fetched_beyond_what_decides(db: Path) -> None:
    gold = "SELECT a FROM t"
    found = verdict(db, COUNT_UP, gold)
    assert (found.reason, found.detail) == ("wrong_rows", "1000 or more rows, gold 4")


def test_an_answer_that_repeats_a_long_gold_is_right(db: Path) -> None:
    assert verdict(db, "SELECT n FROM big ORDER BY n", "SELECT n FROM big ORDER BY n").correct


def test_an_answer_with_twice_the_rows_of_a_long_gold_is_wrong(db: Path) -> None:
    twice = "SELECT n FROM big UNION ALL SELECT n FROM big"
    found = verdict(db, twice, "SELECT n FROM big")
    assert (found.reason, found.rows_share) == ("wrong_rows", 0.5)


# A gold that is no use is never credited


@pytest.mark.parametrize(
    "gold_result",
    [
        QueryResult("error", error="no such column: x"),
        QueryResult("timeout", error="the query ran too long and was stopped"),
        QueryResult("denied", error="not authorized"),
        QueryResult("too_big", error="string or blob too big"),
        QueryResult("ok", ("a",), ((1,), (2,), (2,), (3,)), complete=False),
    ],
    ids=lambda r: r.outcome,
)
@pytest.mark.parametrize("answer", ["SELECT a FROM t", "SELECT nosuch FROM t", None])
def test_a_gold_that_failed_or_was_cut_credits_no_answer(
    db: Path, gold_result: QueryResult, answer: str | None
) -> None:
    found = judge(answer, "SELECT a FROM t", gold_result, db)
    assert found.reason == "gold_unusable"
    assert found.detail
    assert [reward(found) for reward in REWARDS.values()] == [0.0] * len(REWARDS)


@pytest.mark.parametrize("outcome", ["timeout", "crashed"])
def test_a_gold_that_was_ended_on_the_suite_credits_nothing_and_is_tried_again(
    db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    gold = "SELECT a FROM t"
    right = verdict(db, gold, gold)
    file = shutil.copy(db, tmp_path / "other.sqlite")

    def ended(path: Path, query: str, limits: Limits) -> QueryResult:
        return QueryResult(outcome, error="it was ended")  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(rewards, "execute", ended)
        found = judge_on_suite(right, gold, gold, [file], Comparison())
    assert (found.correct, found.reason) == (False, "gold_unusable")
    assert found.detail == "other.sqlite: it was ended"
    assert [reward(found) for reward in REWARDS.values()] == [0.0] * len(REWARDS)
    assert judge_on_suite(right, gold, gold, [file], Comparison()).correct


# Order counts only where the gold orders its result

ORDERED = [
    "SELECT a FROM t ORDER BY a",
    "select a from t order\n\tby a",
    "SELECT a FROM t ORDER /* so */ BY a",
    "SELECT a FROM t ORDER -- so\nBY a",
    "SELECT a FROM t UNION SELECT b FROM t ORDER BY 1",
    "SELECT a FROM (SELECT a FROM t ORDER BY b) ORDER BY a",
    "WITH x AS (SELECT a FROM t) SELECT a FROM x ORDER BY a",
    "SELECT a FROM t WHERE b = ')' ORDER BY a",
    "SELECT a FROM t WHERE b = '(' ORDER BY a",
    "SELECT a AS \"(\" FROM t ORDER BY a",
    "SELECT a AS `)` FROM t ORDER BY a",
    "SELECT a AS [(] FROM t ORDER BY a",
    "SELECT a FROM t -- ( what\nORDER BY a",
    "SELECT a FROM t /* ( */ ORDER BY a;",
    "SELECT a FROM t WHERE b = 'it''s (' ORDER BY a",
    "SELECT count(*)FROM t GROUP BY(a)ORDER BY(count(*))",
    "SELECT a FROM t ORDER BY a LIMIT 3 -- unclosed (",
]  # fmt: skip
UNORDERED = [
    "SELECT a FROM t",
    "SELECT a FROM (SELECT a FROM t ORDER BY a LIMIT 3)",
    "SELECT a FROM t WHERE a IN (SELECT a FROM t ORDER BY a LIMIT 1)",
    "SELECT rank() OVER (ORDER BY a) FROM t",
    "SELECT rank() OVER w FROM t WINDOW w AS (ORDER BY a)",
    "WITH x AS (SELECT a FROM t ORDER BY a) SELECT a FROM x",
    "SELECT 'order by' FROM t",
    "SELECT a FROM t WHERE b = 'it''s ORDER BY a'",
    'SELECT "order by" FROM t',
    'SELECT a AS "x "" order by y" FROM t',
    "SELECT a AS `order by` FROM t",
    "SELECT a AS [order by] FROM t",
    "SELECT a FROM t -- ORDER BY a",
    "SELECT a FROM t /* ORDER BY a */",
    "SELECT a FROM t /* ORDER BY a",
    "SELECT a FROM t WHERE border BY",
    "SELECT reorder, by_a FROM t",
    "SELECT group_concat(a ORDER BY a) FROM t",
    "SELECT 1 UNION SELECT a FROM (SELECT a FROM t ORDER BY a)",
    "",
]


@pytest.mark.parametrize("gold", ORDERED)
def test_a_gold_with_a_top_level_order_by_is_ordered(gold: str) -> None:
    assert ordered(gold)


@pytest.mark.parametrize("gold", UNORDERED)
def test_an_order_by_anywhere_else_orders_nothing(gold: str) -> None:
    assert not ordered(gold)


@pytest.mark.parametrize("piece", ["[", "'", '"', "`", "(", "/*", "--", "order ", "a", " "])
def test_no_text_makes_the_search_for_an_order_by_stall(piece: str) -> None:
    assert not ordered(f"SELECT a FROM t WHERE {piece * 200_000}")


def test_rows_in_another_order_are_right_where_only_a_subquery_orders(db: Path) -> None:
    gold = "SELECT a FROM (SELECT a FROM t ORDER BY a LIMIT 3)"
    answer = "SELECT a FROM (SELECT a FROM t ORDER BY a LIMIT 3) ORDER BY a DESC"
    assert verdict(db, answer, gold).correct


def test_the_answer_need_not_order_as_long_as_its_rows_come_in_order(db: Path) -> None:
    assert verdict(db, "SELECT n FROM big", "SELECT n FROM big ORDER BY n").correct


# Values


@pytest.mark.parametrize(
    ("a", "b"),
    [(2, 2.0), (0, -0.0), (None, None), ("x", "x"), (b"x", b"x"), (2**53, float(2**53)), ("", "")],
)
def test_values_that_python_holds_equal_are_equal(a: object, b: object) -> None:
    for in_order in (False, True):
        assert equal(ok((a,)), ok((b,)), in_order)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("1", 1),
        (1, "1"),
        ("2013", 2013.0),
        ("", None),
        (0, None),
        ("NULL", None),
        (b"x", "x"),
        ("x", "X"),
        ("x", "x "),
        ("é", "e\u0301"),
        (2**53 + 1, float(2**53)),
        ("caf\udce9", "caf\udce8"),
        ("caf\udce9", "café"),
        (1.1 + 2.2, 3.3),
    ],
)
def test_values_that_differ_are_told_apart(a: object, b: object) -> None:
    for in_order in (False, True):
        for order in ("strict", "any"):
            assert not equal(ok((a,)), ok((b,)), in_order, column_order=order)  # type: ignore[arg-type]


def test_text_that_is_no_utf8_differs_by_its_bytes(db: Path) -> None:
    gold = "SELECT CAST(x'636166e9' AS TEXT)"
    assert verdict(db, gold, gold).correct
    assert verdict(db, "SELECT CAST(x'636166e8' AS TEXT)", gold).reason == "wrong_rows"


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (1.1 + 2.2, 3.3, True),
        (1 / 3, 0.333333333, True),
        (1e300 * (1 + 1e-12), 1e300, True),
        (2, 2.0, True),
        (float("inf"), float("inf"), True),
        (float("inf"), 1e308, False),
        (0.1, 0.1001, False),
        (1.00000001, 1.0, False),
        (100_000_000, 100_000_001, False),  # integers are never rounded
        ("1.0", 1.0, False),
    ],
)
def test_tolerant_numbers_compare_to_nine_digits(a: object, b: object, same: bool) -> None:
    assert equal(ok((a,)), ok((b,)), numbers="tolerant") is same  # type: ignore[arg-type]


# Duplicates, columns, empties


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [([1, 1, 2], [1, 2, 2]), ([1, 1], [1]), ([1], [1, 1]), ([None, None], [None])],
)
def test_how_often_a_row_comes_counts(ours: list[int], theirs: list[int]) -> None:
    a, b = (ok(*((v,) for v in values)) for values in (ours, theirs))
    assert not equal(a, b)
    assert not equal(a, b, column_order="any")


def test_columns_in_another_order_are_right_only_where_any_order_is() -> None:
    ours, theirs = ok((1, "a"), (2, "b")), ok(("a", 1), ("b", 2))
    assert not equal(ours, theirs)
    assert equal(ours, theirs, column_order="any")
    assert equal(ours, theirs, True, column_order="any")
    assert not equal(ok((2, "b"), (1, "a")), theirs, True, column_order="any")


def test_columns_may_change_places_as_a_whole_but_not_row_by_row() -> None:
    assert not equal(ok((1, 2), (4, 3)), ok((1, 2), (3, 4)), column_order="any")


def test_equal_columns_do_not_make_the_search_for_an_order_explode() -> None:
    rows = [tuple(int(c == r) for c in range(12)) for r in range(12)]
    ours = ok(*(row[::-1] for row in rows), (1, *[0] * 11))
    theirs = ok(*rows, (0, 1, *[0] * 10))
    assert equal(ours, theirs, column_order="any")


def test_an_empty_result_where_the_gold_is_empty_is_right_or_not_as_chosen() -> None:
    none = ok(columns=2)
    found = compare(none, none, False, Comparison())
    assert (found.correct, found.empty_match, found.rows_share) == (True, True, 1.0)
    found = compare(none, none, False, Comparison(empty="wrong"))
    assert (found.correct, found.reason, found.empty_match) == (False, "empty", True)


def test_a_gold_with_rows_is_credited_under_either_policy_for_empties() -> None:
    found = compare(ok((1,)), ok((1,)), False, Comparison(empty="wrong"))
    assert (found.correct, found.empty_match) == (True, False)


# The shaped reward


@pytest.mark.parametrize(
    ("ours", "theirs", "share"),
    [
        ([1, 2, 3], [1, 2, 3, 4], 3 / 4),
        ([1, 2, 3, 4], [1, 2], 2 / 4),
        ([1] * 100, [1], 1 / 100),
        ([5], [1], 0.0),
        ([], [1], 0.0),
        ([1], [], 0.0),
        ([], [], 1.0),
        ([2, 1], [1, 2], 1.0),
    ],
)
def test_the_share_of_rows_is_the_overlap_over_the_larger_result(
    ours: list[int], theirs: list[int], share: float
) -> None:
    a, b = (ok(*((v,) for v in values), columns=1) for values in (ours, theirs))
    assert rows_share(compare(a, b, False, Comparison())) == share


def test_rewards_are_known_by_the_names_of_their_functions() -> None:
    assert {name: f.__name__ for name, f in REWARDS.items()} == {n: n for n in REWARDS}


# Against a slow, obvious reference

_value = st.sampled_from([None, 0, 1, 1.0, "1", "", b"1", 0.5, "\udce9"])


@st.composite
def _pair(draw: st.DrawFn) -> tuple[list[Row], list[Row]]:
    """Two results of a few rows: unrelated, or one made from the other."""
    width = draw(st.integers(1, 3))
    rows = st.lists(st.tuples(*[_value] * width), max_size=4)
    a = draw(rows)
    b = draw(st.one_of(rows, st.permutations(a)))
    if draw(st.booleans()):
        columns = draw(st.permutations(range(width)))
        b = [tuple(row[c] for c in columns) for row in b]
    return a, b


def _same(a: Sequence[Row], b: Sequence[Row], in_order: bool) -> bool:
    orders = [tuple(b)] if in_order else permutations(b)
    return any(tuple(a) == tuple(order) for order in orders)


def _reference(a: list[Row], b: list[Row], in_order: bool, any_columns: bool) -> bool:
    width = len((a or b or [()])[0])
    columns = permutations(range(width)) if any_columns else [tuple(range(width))]
    return any(_same([tuple(row[c] for c in order) for row in a], b, in_order) for order in columns)


@settings(deadline=None, max_examples=400)
@given(_pair(), st.booleans(), st.booleans())
def test_the_comparison_is_that_of_a_slow_reference(
    pair: tuple[list[Row], list[Row]], in_order: bool, any_columns: bool
) -> None:
    a, b = pair
    width = len((a or b or [(0,)])[0])
    choice = Comparison("any" if any_columns else "strict")
    found = compare(ok(*a, columns=width), ok(*b, columns=width), in_order, choice)
    assert found.correct == _reference(a, b, in_order, any_columns)
    assert found.executable
    assert 0 <= found.rows_share <= 1
    if found.correct:
        assert found.rows_share == 1


# Numbers of every size, against cell by cell comparison in decimals

_number = st.one_of(
    st.sampled_from([0, 1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 10**9, 12_345_678_901]),
    st.sampled_from([0.0, -0.0, 1.0, 0.1 + 0.2, 0.3, 1 / 3, 1e308, -1e-308, 5e-324]),
    st.sampled_from([float("inf"), float("-inf"), 2.0**53, 12_345_678_901.0, 1e15 + 0.5]),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.sampled_from([None, "1", "1.0", "", b"", b"1", "\udcff", "\udcfe", "inf", "NULL"]),
)


def _decimal(value: object) -> object:
    """A float to nine significant digits, by decimal arithmetic; all else as it is."""
    if isinstance(value, float) and math.isfinite(value):
        return Context(prec=9, Emin=-999, Emax=999).create_decimal(Decimal(value))
    return value


def _close(a: Row, b: Row) -> bool:
    cells = zip(map(_decimal, a), map(_decimal, b), strict=True)
    return all(x == y and type(x) in _kin(y) for x, y in cells)


def _kin(value: object) -> tuple[type, ...]:
    """Types whose values may be equal to this one."""
    numbers = (int, float, Decimal)
    return numbers if isinstance(value, numbers) else (type(value),)


def _matched(a: list[Row], b: list[Row], in_order: bool, alike: Callable[[Row, Row], bool]) -> bool:
    orders = [tuple(b)] if in_order else permutations(b)
    return len(a) == len(b) and any(
        all(alike(x, y) for x, y in zip(a, order, strict=True)) for order in orders
    )


@st.composite
def _numeric_pair(draw: st.DrawFn) -> tuple[list[Row], list[Row]]:
    """Two results of up to four rows; the second often the first, shuffled, as floats, or off."""
    width = draw(st.integers(1, 2))
    rows = st.lists(st.tuples(*[_number] * width), max_size=4)
    a = draw(rows)
    changes = [lambda v: v, lambda v: float(v) if isinstance(v, int) else v,
               lambda v: v * (1 + 1e-12) if isinstance(v, float) else v,
               lambda v: v + 1 if isinstance(v, int) else v]  # fmt: skip
    change = draw(st.sampled_from(changes))
    b = [tuple(change(v) for v in row) for row in draw(st.permutations(a))]
    return a, draw(st.one_of(rows, st.just(b)))


@settings(deadline=None, max_examples=600)
@given(_numeric_pair(), st.booleans(), st.sampled_from(["exact", "tolerant"]))
def test_numbers_compare_as_a_slow_reference_in_decimals(
    pair: tuple[list[Row], list[Row]], in_order: bool, numbers: Literal["exact", "tolerant"]
) -> None:
    a, b = pair
    width = len((a or b or [(0,)])[0])
    if len((b or a or [(0,)])[0]) != width:
        return
    expected = _matched(a, b, in_order, lambda x, y: x == y)
    if numbers == "tolerant":
        expected |= _matched(a, b, in_order, _close)
    choice = Comparison(numbers=numbers)
    found = compare(ok(*a, columns=width), ok(*b, columns=width), in_order, choice)
    assert found.correct == expected


# Whatever the rows, what is done to both sides alike changes nothing


@settings(deadline=None, max_examples=200)
@given(_pair(), st.booleans(), st.sampled_from(["strict", "any"]), st.data())
def test_verdicts_follow_from_what_is_done_to_the_rows(
    pair: tuple[list[Row], list[Row]],
    in_order: bool,
    column_order: Literal["strict", "any"],
    data: st.DataObject,
) -> None:
    a, b = pair
    width = len((a or b or [(0,)])[0])
    choice = Comparison(column_order=column_order)

    def right(one: list[Row], other: list[Row], in_order: bool = in_order) -> bool:
        results = (ok(*rows, columns=width) for rows in (one, other))
        return compare(*results, in_order, choice).correct

    assert right(a, a)
    assert right(a, data.draw(st.permutations(a)), in_order=False)
    if right(a, b):
        assert right(a, b, in_order=False)
        assert right([*a, *a], [*b, *b])
        if a:
            # A row more is a row too many, wherever it stands.
            at = data.draw(st.integers(0, len(a)))
            assert not right([*a[:at], a[0], *a[at:]], b)
            assert not right(a[1:], b)
    if width > 1:
        order = data.draw(st.permutations(range(width)))
        turned = [[tuple(row[c] for c in order) for row in rows] for rows in pair]
        assert right(*turned) == right(a, b)


def test_columns_that_are_alike_in_every_way_but_row_by_row_are_told_apart_at_once() -> None:
    # Every column holds the same values, and none of the 12! orders fits.
    rows = [[(7 * r + c * c) % 24 for c in range(12)] for r in range(24)]
    other = [row[::-1] for row in rows]
    other[0][0], other[1][0] = other[1][0], other[0][0]
    assert not equal(ok(*map(tuple, other)), ok(*map(tuple, rows)), column_order="any")


@settings(deadline=None)
@given(_pair(), st.booleans())
def test_being_right_is_mutual(pair: tuple[list[Row], list[Row]], in_order: bool) -> None:
    a, b = (ok(*rows, columns=len((pair[0] or pair[1] or [(0,)])[0])) for rows in pair)
    assert equal(a, b, in_order) == equal(b, a, in_order)


# Gold


@pytest.mark.parametrize("split", ["train", "dev"])
def test_gold_scores_one_on_every_example_of_pocket(split: str) -> None:
    checked = gate(load("pocket", split))
    assert checked.kept
    wrong = [
        e.row
        for e in checked.kept
        if execution_match(judge(e.gold, e.gold, checked.results[e.db_path, e.gold], e.db_path))
        != 1
    ]
    assert not wrong
    assert not checked.dropped


def test_limits_of_an_answer_are_kept_but_for_the_rows(db: Path) -> None:
    gold = "SELECT 'x'"
    found = judge("SELECT hex(zeroblob(600))", gold, execute(db, gold), db,
                  limits=Limits(value_bytes=1000))  # fmt: skip
    assert found.reason == "too_big"


# What is read


@pytest.mark.parametrize(
    ("answer", "gold", "share"),
    [
        ("SELECT b FROM t WHERE a = 1", "SELECT b FROM t WHERE a = 2", 1.0),
        ("SELECT B FROM T AS x WHERE x.A = 1", "SELECT b FROM t WHERE a = 2", 1.0),
        ("SELECT b FROM t", "SELECT b FROM t WHERE a = 2", 2 / 3),  # t and b, of t, a and b
        ("SELECT b FROM t, big", "SELECT b FROM t", 2 / 3),
        ("SELECT count(*) FROM t", "SELECT a FROM t", 0.5),
        ("SELECT n FROM big", "SELECT a FROM t", 0.0),
        ("SELECT 1", "SELECT a FROM t", 0.0),
        ("SELECT 1", "SELECT 1", 0.0),
        ("SELECT c FROM t", "SELECT a FROM t", 0.0),
        (None, "SELECT a FROM t", 0.0),
        ("WITH w AS (SELECT a FROM t) SELECT a FROM w", "SELECT a FROM t", 1.0),
        ("SELECT n FROM big WHERE n IN (SELECT a FROM t)", "SELECT n FROM big", 0.5),
        ("SELECT a FROM t", "SELECT a FROM t; -- done", 1.0),
    ],
)
def test_an_answer_earns_the_share_of_tables_and_columns_that_it_and_the_gold_read(
    db: Path, answer: str | None, gold: str, share: float
) -> None:
    assert reads_share(verdict(db, answer, gold)) == pytest.approx(share)
