"""The tokenizer, the parser and the hardness that is counted on its trees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nl2sql_trl.spider import Schema, SqlParseError, hardness, schemas_from_tables_json
from nl2sql_trl.spider.parser import parse
from nl2sql_trl.spider.schema import group_foreign_keys
from nl2sql_trl.spider.tokenizer import tokenize
from nl2sql_trl.spider.tree import OPERATORS, ColUnit, CondUnit, Query


@pytest.mark.parametrize(
    ("sql", "tokens"),
    [
        ("SELECT Name FROM T", ["select", "name", "from", "t"]),
        ("a = 'It Is'", ["a", "=", '"It Is"']),
        ("a='x'", ["a=__val_2_4__"]),
        ("a >= 1", ["a", ">=", "1"]),
        ("a > = 1", ["a", ">=", "1"]),
        ("a>=1", ["a", ">", "=1"]),
        ("a=1", ["a=1"]),
        ("a!= 1", ["a", "!=", "1"]),
        ("count(*)", ["count", "(", "*", ")"]),
        ("a,b", ["a", ",", "b"]),
        ("5,10", ["5,10"]),
        ("a,,b", ["a", ",", ",b"]),
        ("a,", ["a", ","]),
        ("a--b", ["a", "--", "b"]),
        ("t1.id", ["t1.id"]),
        ("end.", ["end", "."]),
        ("cannot", ["can", "not"]),
        ("`a`", ["`", "a", "`"]),
        ("", []),
    ],
)
def test_text_is_split_where_nltk_would_split_it(sql: str, tokens: list[str]) -> None:
    assert tokenize(sql) == tokens


def test_an_open_quotation_mark_cannot_be_tokenized() -> None:
    with pytest.raises(SqlParseError, match="quotation"):
        tokenize('name = "O\'Brien"')


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT name age FROM singer",
        "SELECT name, FROM singer",
        "SELECT count(DISTINCT name) FROM singer",
        "SELECT DISTINCT(name) FROM singer",
        "SELECT max(age - singer_id) FROM singer",
        "SELECT count(*) FROM (SELECT name FROM singer)",
        "(SELECT name FROM singer)",
        "SELECT name FROM singer WHERE age > 3 country = 'x'",
        "SELECT name FROM singer WHERE age BETWEEN 1 AND 2 OR",
        "SELECT name FROM singer WHERE age NOT IN (SELECT age FROM singer)",
        "SELECT name FROM singer WHERE age = age * 2 + 1",
        "SELECT name FROM singer LIMIT 3 OFFSET whatever it takes",
        "SELECT concert.title FROM singer",
        "SELECT name FROM singer UNION SELECT name FROM stadium;",
    ],
)
def test_odd_statements_that_the_official_parser_takes(sql: str, schema: Schema) -> None:
    assert isinstance(parse(sql, schema, "legacy"), Query)


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "SELECT",
        "SELECT name",
        "SELECT name FROM nowhere",
        "SELECT nothing FROM singer",
        "SELECT name,, age FROM singer",
        "SELECT name FROM singer, stadium",
        "SELECT name FROM singer LEFT JOIN stadium",
        "SELECT name FROM singer AS singer",
        "SELECT name FROM singer AS",
        "SELECT name FROM singer s",
        "SELECT name FROM (SELECT name FROM singer)",
        "SELECT name FROM (SELECT name FROM singer",
        "SELECT name FROM singer WHERE age=3",
        "SELECT name FROM singer WHERE (age > 3)",
        "SELECT name FROM singer WHERE name IS NULL",
        "SELECT name FROM singer WHERE 3 < age",
        "SELECT name FROM singer WHERE age IN (1, 2)",
        "SELECT name FROM singer HAVING count(*) > 1",
        "SELECT name FROM singer ORDER BY 1",
        "SELECT name FROM singer LIMIT",
        "SELECT a.b.c FROM singer",
        "SELECT upper(name) FROM singer",
        "SELECT name FROM singer UNION ALL SELECT name FROM stadium",
        "WITH s AS (SELECT name FROM singer) SELECT name FROM s",
        "SELECT name FROM " + "(SELECT * FROM " * 2000 + "singer",
    ],
)
def test_statements_outside_the_grammar_are_refused(sql: str, schema: Schema) -> None:
    with pytest.raises(SqlParseError):
        parse(sql, schema, "legacy")


def test_only_the_legacy_parser_minds_what_limit_says(schema: Schema) -> None:
    sql = "SELECT name FROM singer LIMIT value"
    assert parse(sql, schema, "test_suite").limit == 1
    with pytest.raises(SqlParseError, match="LIMIT"):
        parse(sql, schema, "legacy")
    assert parse("SELECT name FROM singer LIMIT 7", schema, "legacy").limit == 7


def test_the_rest_of_a_right_hand_expression_is_dropped(schema: Schema) -> None:
    query = parse("SELECT name FROM singer WHERE age > age OR country = 'x'", schema, "legacy")
    (unit,) = query.where
    assert isinstance(unit, CondUnit)
    assert OPERATORS[unit.op] == ">"
    assert unit.value == ColUnit(0, "__singer.age__", False)


def test_a_bare_column_belongs_to_the_first_table_that_has_it(schema: Schema) -> None:
    query = parse("SELECT name FROM stadium JOIN singer", schema, "legacy")
    assert query.select[0].value.left.column == "__stadium.name__"


def test_the_last_sort_direction_counts_for_all_columns(schema: Schema) -> None:
    query = parse("SELECT name FROM singer ORDER BY age DESC, name ASC", schema, "legacy")
    assert query.order_by is not None
    assert query.order_by.direction == "asc"


@pytest.mark.parametrize(
    ("sql", "level"),
    [
        ("SELECT name FROM singer", "easy"),
        ("SELECT name FROM singer WHERE age > 3", "easy"),
        (
            "SELECT country FROM singer GROUP BY country HAVING count(*) > 1 AND max(age) > 2",
            "easy",
        ),
        ("SELECT name, age FROM singer", "medium"),
        ("SELECT name FROM singer WHERE age > 3 ORDER BY age", "medium"),
        ("SELECT name FROM singer WHERE name LIKE 'a' ORDER BY age", "hard"),
        ("SELECT max(age), min(age) FROM singer WHERE age > 3 GROUP BY age", "extra"),
        ("SELECT max(age), min(age) FROM singer WHERE age > 3 AND age > 4 GROUP BY age", "hard"),
        ("SELECT name FROM singer WHERE age = (SELECT max(age) FROM singer)", "hard"),
        ("SELECT name FROM singer UNION SELECT name FROM stadium", "hard"),
        ("SELECT name, age FROM singer WHERE age = (SELECT max(age) FROM singer)", "extra"),
        ("SELECT count(*) FROM (SELECT name FROM singer UNION SELECT name FROM stadium)", "easy"),
        ("SELECT name FROM singer WHERE age > 1 ORDER BY age LIMIT 1", "hard"),
    ],
)
def test_hardness_counts_the_outermost_query(sql: str, level: str, schema: Schema) -> None:
    assert hardness(sql, schema) == level


def test_hardness_of_an_unparseable_query_is_an_error(schema: Schema) -> None:
    with pytest.raises(SqlParseError):
        hardness("SELECT upper(name) FROM singer", schema)


def test_both_sources_of_a_schema_agree(tmp_path: Path, schema: Schema) -> None:
    names = [(-1, "*")] + [
        (index, column.upper())
        for index, columns in enumerate(schema.tables.values())
        for column in columns
    ]
    position = {name: index for index, name in enumerate(names)}
    entry = {
        "db_id": "music",
        "table_names_original": [table.capitalize() for table in schema.tables],
        "column_names_original": names,
        "foreign_keys": [
            [position[(2, "STADIUM_ID")], position[(1, "STADIUM_ID")]],
            [position[(3, "CONCERT_ID")], position[(2, "CONCERT_ID")]],
            [position[(3, "SINGER_ID")], position[(0, "SINGER_ID")]],
        ],
    }
    path = tmp_path / "tables.json"
    path.write_text(json.dumps([entry]))
    assert schemas_from_tables_json(path) == {"music": schema}


def test_groups_of_foreign_keys_are_never_merged() -> None:
    columns = ["a", "b", "c", "d"]
    assert group_foreign_keys(columns, [(0, 1), (2, 3), (1, 2)]) == {
        "a": "a",
        "b": "a",
        "c": "c",
        "d": "c",
    }
