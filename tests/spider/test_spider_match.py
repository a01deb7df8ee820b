"""Exact set match: what it sees, what it overlooks, and where the official scripts die."""

from __future__ import annotations

import pytest

from nl2sql_trl.spider import OfficialAbort, Schema, SqlParseError, exact_match


@pytest.mark.parametrize(
    ("gold", "pred"),
    [
        ("SELECT name, age FROM singer", "SELECT age, name FROM singer"),
        ("SELECT name FROM singer", "select DISTINCT Name from Singer;"),
        ("SELECT name FROM singer WHERE age > 1", "SELECT name FROM singer WHERE age > 99"),
        ("SELECT name FROM singer WHERE age = 5", "SELECT name FROM singer WHERE age = singer_id"),
        (
            "SELECT name FROM singer WHERE age > 1 AND name = 'a' OR country = 'b'",
            "SELECT name FROM singer WHERE age > 1 OR name = 'a' AND country = 'b'",
        ),
        ("SELECT name FROM singer LIMIT 1", "SELECT name FROM singer LIMIT 2"),
        ("SELECT a.age FROM singer AS a", "SELECT singer.age FROM singer"),
        (
            "SELECT a.singer_id FROM singer AS a JOIN appearance AS b ON a.singer_id = b.singer_id",
            "SELECT b.singer_id FROM appearance AS b JOIN singer AS a ON a.name = b.concert_id",
        ),
    ],
)
def test_these_count_as_the_same_query(gold: str, pred: str, schema: Schema) -> None:
    assert exact_match(gold, pred, schema, "legacy").exact
    assert exact_match(gold, pred, schema, "test_suite").exact


@pytest.mark.parametrize(
    ("gold", "pred", "component"),
    [
        ("SELECT name FROM singer", "SELECT age FROM singer", "select"),
        ("SELECT max(age) FROM singer", "SELECT min(age) FROM singer", "select"),
        ("SELECT count(*) FROM singer", "SELECT count(age) FROM singer", "select"),
        ("SELECT age FROM singer WHERE age > 1", "SELECT age FROM singer WHERE age < 1", "where"),
        ("SELECT name FROM singer GROUP BY name", "SELECT name FROM singer", "group_no_having"),
        (
            "SELECT age FROM singer GROUP BY age, name",
            "SELECT age FROM singer GROUP BY name, age",
            "group",
        ),
        ("SELECT age FROM singer ORDER BY age", "SELECT age FROM singer ORDER BY name", "order"),
        (
            "SELECT name FROM singer UNION SELECT name FROM stadium",
            "SELECT name FROM singer EXCEPT SELECT name FROM stadium",
            "keywords",
        ),
        (
            "SELECT name FROM singer UNION SELECT name FROM stadium",
            "SELECT name FROM singer UNION SELECT title FROM concert",
            "iuen",
        ),
        (
            "SELECT age FROM singer WHERE age > 1 AND age > 2",
            "SELECT age FROM singer WHERE age > 1 OR age > 2",
            "and_or",
        ),
    ],
)
def test_a_difference_shows_in_its_component(
    gold: str, pred: str, component: str, schema: Schema
) -> None:
    match = exact_match(gold, pred, schema, "legacy")
    assert not match.exact
    assert match.partial[component].score == 0


def test_other_tables_make_another_query(schema: Schema) -> None:
    match = exact_match(
        "SELECT count(*) FROM singer", "SELECT count(*) FROM concert", schema, "legacy"
    )
    assert all(component.score for component in match.partial.values())
    assert not match.exact


def test_limits_in_from_are_compared_by_the_legacy_script_only(schema: Schema) -> None:
    gold, pred = (f"SELECT count(*) FROM (SELECT age FROM singer LIMIT {n})" for n in (1, 2))
    assert not exact_match(gold, pred, schema, "legacy").exact
    assert exact_match(gold, pred, schema, "test_suite").exact


def test_nested_conditions_are_compared_with_their_distinct(schema: Schema) -> None:
    gold = "SELECT name FROM singer WHERE age IN (SELECT age FROM singer WHERE age > 1)"
    assert exact_match(gold, gold.replace("> 1", "> 2"), schema, "legacy").exact
    assert not exact_match(
        gold, gold.replace("(SELECT", "(SELECT DISTINCT"), schema, "legacy"
    ).exact


def test_a_prediction_that_cannot_be_parsed_never_matches(schema: Schema) -> None:
    assert not exact_match("SELECT name FROM singer", "nonsense", schema, "legacy").exact


def test_a_gold_that_cannot_be_parsed_is_an_error(schema: Schema) -> None:
    with pytest.raises(SqlParseError):
        exact_match("nonsense", "SELECT name FROM singer", schema, "legacy")


@pytest.mark.parametrize(
    ("gold", "pred"),
    [
        (
            "SELECT name FROM singer",
            "SELECT name FROM singer WHERE age > 1 age = 2 AND age = 3",
        ),
        (
            "SELECT name FROM singer",
            "SELECT name FROM singer WHERE age > 1 age = (SELECT max(age) FROM singer)",
        ),
        (
            "SELECT count(*) FROM (SELECT name FROM singer)",
            "SELECT count(*) FROM (SELECT name FROM singer) (SELECT age FROM singer)",
        ),
    ],
)
def test_what_kills_the_official_script_is_an_abort(gold: str, pred: str, schema: Schema) -> None:
    with pytest.raises(OfficialAbort):
        exact_match(gold, pred, schema, "legacy")
