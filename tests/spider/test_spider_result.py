"""Comparing result tables and editing statements before they run."""

from __future__ import annotations

import random
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nl2sql_trl.spider import OfficialAbort, result_eq
from nl2sql_trl.spider.plug import plugged
from nl2sql_trl.spider.result import Rows
from nl2sql_trl.spider.text import executed_text, order_matters, prediction_text, suite_text

CELLS = st.none() | st.integers(0, 2) | st.sampled_from(["a", "b", "1"])
TABLES = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.tuples(*[CELLS] * width), min_size=1, max_size=5)
)


@given(TABLES, st.randoms(use_true_random=False))
def test_shuffled_rows_and_columns_change_nothing(rows: Rows, rng: random.Random) -> None:
    columns = rng.sample(range(len(rows[0])), len(rows[0]))
    shuffled = [tuple(row[column] for column in columns) for row in rows]
    assert result_eq(rows, shuffled, order_matters=True)
    rng.shuffle(shuffled)
    assert result_eq(rows, shuffled, order_matters=False)


@given(TABLES, TABLES)
def test_the_search_agrees_with_trying_every_permutation(gold: Rows, pred: Rows) -> None:
    width = len(gold[0])
    expected = len(pred[0]) == width and any(
        sorted(map(repr, gold)) == sorted(repr(tuple(row[i] for i in order)) for row in pred)
        for order in permutations(range(width))
    )
    assert result_eq(gold, pred, order_matters=False) == expected


@pytest.mark.parametrize(
    ("gold", "pred", "equal"),
    [
        ([], [], True),
        ([], [(1,)], False),
        ([(1,)], [(1,), (1,)], False),
        ([(1, 2)], [(1,)], False),
        ([(1,)], [(1.0,)], True),
        ([(1,)], [("1",)], False),
        ([(None,)], [(0,)], False),
        ([(0.3,)], [(0.1 + 0.2,)], False),
        ([(b"a",)], [("a",)], False),
        ([(1, 10)], [(1.0, 10)], False),
        ([(2, 10)], [(2.0, 10.0)], True),
        ([(1, 2), (2, 1)], [(1, 2), (1, 2)], False),
    ],
)
def test_cells_compare_as_in_python(gold: Rows, pred: Rows, equal: bool) -> None:
    assert result_eq(gold, pred, order_matters=False) is equal


def test_fixed_comparison_takes_1_for_1_0_in_every_row() -> None:
    assert result_eq([(1, 10)], [(1.0, 10)], order_matters=False, fixed=True)
    assert result_eq([(1, 10)], [(1.0, 10)], order_matters=True, fixed=True)


@pytest.mark.parametrize("fixed", [False, True])
def test_tables_without_a_distinguishing_column_come_to_an_end(fixed: bool) -> None:
    rows = list(product((0, 1), repeat=10))
    even, odd = ([row for row in rows if sum(row) % 2 == parity] for parity in (0, 1))
    assert not result_eq(even, odd, order_matters=False, fixed=fixed)


def test_the_order_of_rows_matters_only_when_asked() -> None:
    assert result_eq([(1,), (2,)], [(2,), (1,)], order_matters=False)
    assert not result_eq([(1,), (2,)], [(2,), (1,)], order_matters=True)


@pytest.mark.parametrize(
    ("sql", "edited"),
    [
        ("SELECT count(DISTINCT a) FROM t", "SELECT count( a) FROM t"),
        ("SELECT a FROM t WHERE b = 'distinct'", "SELECT a FROM t WHERE b = 'distinct'"),
        ("SELECT a FROM t WHERE b > = 1", "SELECT a FROM t WHERE b >= 1"),
        ("SELECT 1; DROP TABLE t", "SELECT 1; "),
        ("SELECT ';' FROM t; x", "SELECT ';' FROM t; "),
        ("SELECT 1 -- a; b", "SELECT 1 -- a; b"),
        ("SELECT 'it''s; distinct'", "SELECT 'it''s; distinct'"),
        ("SELECT 'open distinct", "SELECT 'open "),
    ],
)
def test_the_suite_keeps_the_first_statement_without_distinct(sql: str, edited: str) -> None:
    assert suite_text(sql) == edited


def test_distinct_and_later_statements_are_kept_on_request() -> None:
    sql = "SELECT DISTINCT a FROM t; SELECT 1"
    assert suite_text(sql, keep_distinct=True) == sql


@pytest.mark.parametrize("keep_distinct", [False, True])
def test_a_blank_statement_is_an_abort(keep_distinct: bool) -> None:
    with pytest.raises(OfficialAbort):
        suite_text("  ", keep_distinct=keep_distinct)


def test_the_current_year_of_mysql_swallows_the_space_after_it() -> None:
    assert executed_text("SELECT YEAR(CURDATE()) FROM t") == "SELECT 2020FROM t"


def test_predictions_are_cut_at_a_tab_and_lose_the_word_value() -> None:
    assert prediction_text(" SELECT value\tx ", "legacy") == "SELECT value"
    assert prediction_text("SELECT avg_value, VALUE", "test_suite") == "SELECT avg_1, VALUE"


def test_plugging_tries_each_gold_value_in_each_slot() -> None:
    texts = list(plugged("a = 'X' AND b = 2", "A = 'terminal' AND t1.B > 7;"))
    assert texts == [
        "a = 'X' and t1 . b > 'X'",
        "a = 'X' and t1 . b > 2",
        "a = 2 and t1 . b > 'X'",
        "a = 2 and t1 . b > 2",
    ]


@pytest.mark.parametrize(
    ("gold", "official", "fixed"),
    [
        ("SELECT a FROM t ORDER BY a", True, True),
        ("SELECT a FROM t ORDER  BY a", False, True),
        ("SELECT a FROM t ORDER /* x */ BY a", False, True),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a LIMIT 1)", True, False),
        ("SELECT a FROM t WHERE b = 'order by'", True, False),
        ("SELECT a FROM t", False, False),
    ],
)
def test_the_official_order_rule_looks_at_text(gold: str, official: bool, fixed: bool) -> None:
    assert order_matters(gold) is official
    assert order_matters(gold, fixed=True) is fixed
