"""What tells two queries apart, on a small music database with foreign keys."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from nl2sql_trl.database import execute
from nl2sql_trl.differences import (
    quoted_as_literal,
    result_difference,
    tables_read,
    text_differences,
    tree_differences,
    wrong_join_keys,
)
from nl2sql_trl.spider.evaluator import Evaluator

SCRIPT = """
CREATE TABLE singer (id INTEGER PRIMARY KEY, name TEXT, country TEXT, age INTEGER);
CREATE TABLE song (
    id INTEGER PRIMARY KEY, title TEXT, singer_id INTEGER REFERENCES singer (id), seconds INTEGER
);
CREATE VIEW elders AS SELECT name FROM singer WHERE age > 40;
INSERT INTO singer VALUES (1, 'Ada', 'France', 30), (2, 'Bo', 'Chile', 25), (3, 'Cy', 'Chile', 30);
INSERT INTO song VALUES (1, 'Dawn', 1, 200), (2, 'Dusk', 1, 180), (3, 'Noon', 3, 200);
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database file."""
    file = tmp_path_factory.mktemp("databases") / "music" / "music.sqlite"
    file.parent.mkdir()
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(SCRIPT)
    return file


@pytest.fixture(scope="module")
def evaluator(path: Path) -> Evaluator:
    """Parses on that database."""
    return Evaluator([path.parents[1]])


JOINED = "SELECT T1.name FROM singer AS T1 JOIN song AS T2 ON T1.id = T2.singer_id"


@pytest.mark.parametrize(
    ("gold", "pred", "first"),
    [
        ("SELECT name FROM singer", "SELECT title FROM song", "tables"),
        (JOINED, JOINED.replace("T2.singer_id", "T2.id"), "join path"),
        ("SELECT name FROM singer", "SELECT age FROM singer", "columns selected"),
        ("SELECT name FROM singer", "SELECT name , age FROM singer", "columns selected"),
        ("SELECT avg(age) FROM singer", "SELECT max(age) FROM singer", "aggregation"),
        ("SELECT count(*) FROM singer GROUP BY country", "SELECT count(*) FROM singer GROUP BY age",
         "grouping"),
        ("SELECT country FROM singer GROUP BY country HAVING count(*) > 1",
         "SELECT country FROM singer GROUP BY country", "grouping"),
        ("SELECT name FROM singer WHERE age > 20", "SELECT name FROM singer WHERE age < 20",
         "condition"),
        ("SELECT name FROM singer WHERE age > 20", "SELECT name FROM singer", "condition"),
        ("SELECT name FROM singer WHERE age > 1 AND id > 1",
         "SELECT name FROM singer WHERE age > 1 OR id > 1", "condition"),
        ("SELECT name FROM singer WHERE age > 20", "SELECT name FROM singer WHERE age > 21",
         "literal value"),
        ("SELECT DISTINCT country FROM singer", "SELECT country FROM singer", "DISTINCT"),
        ("SELECT count(DISTINCT country) FROM singer", "SELECT count(country) FROM singer",
         "DISTINCT"),
        ("SELECT name FROM singer ORDER BY age", "SELECT name FROM singer ORDER BY age DESC",
         "order"),
        ("SELECT name FROM singer ORDER BY age LIMIT 1",
         "SELECT name FROM singer ORDER BY age LIMIT 2", "limit"),
        ("SELECT name FROM singer UNION SELECT title FROM song", "SELECT name FROM singer",
         "set operation"),
        ("SELECT name FROM singer WHERE id IN (SELECT singer_id FROM song)",
         "SELECT name FROM singer WHERE id IN (SELECT id FROM song)", "nesting"),
        ("SELECT name , age FROM singer", "SELECT age , name FROM singer", "column order"),
    ],
)  # fmt: skip
def test_the_most_basic_difference_of_parsed_queries_comes_first(
    gold: str, pred: str, first: str, evaluator: Evaluator
) -> None:
    trees = [evaluator.tree("music", sql) for sql in (gold, pred)]
    assert trees[0] is not None
    assert trees[1] is not None
    assert tree_differences(trees[0], trees[1], evaluator.schema("music"))[0] == first
    assert tree_differences(trees[0], trees[0], evaluator.schema("music")) == []


def test_the_side_of_a_foreign_key_makes_no_difference(evaluator: Evaluator) -> None:
    left, right = JOINED.replace("T1.name", "T1.id"), JOINED.replace("T1.name", "T2.singer_id")
    trees = [evaluator.tree("music", sql) for sql in (left, right)]
    assert tree_differences(trees[0], trees[1], evaluator.schema("music")) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keys", "wrong"),
    [
        ("T1.id = T2.singer_id", []),
        ("T2.singer_id = T1.id", []),
        ("T1.id = T2.id", ["singer.id = song.id"]),
        ("T1.age = T2.seconds", ["singer.age = song.seconds"]),
    ],
)
def test_joins_that_no_foreign_key_links_are_named(
    keys: str, wrong: list[str], evaluator: Evaluator
) -> None:
    pred = JOINED.replace("T1.id = T2.singer_id", keys)
    gold, tree = (evaluator.tree("music", sql) for sql in (JOINED, pred))
    assert gold is not None
    assert tree is not None
    assert wrong_join_keys(gold, tree, evaluator.schema("music")) == wrong
    assert wrong_join_keys(tree, tree, evaluator.schema("music")) == []


@pytest.mark.parametrize(
    ("gold", "pred", "first"),
    [
        ("SELECT upper(name) FROM singer", "SELECT upper(name) FROM singer LIMIT 1", "limit"),
        ("SELECT lower(a) FROM t WHERE b = 'x'", "SELECT lower(a) FROM t WHERE b = 'y'",
         "literal value"),
        ("SELECT sum(a) + 1 FROM t", "SELECT avg(a) + 1 FROM t", "aggregation"),
        ("SELECT a || b FROM t", "SELECT a || b FROM t GROUP BY a", "grouping"),
        ("SELECT a || b FROM t ORDER BY a", "SELECT a || b FROM t ORDER BY a DESC", "order"),
        ("SELECT a FROM t UNION ALL SELECT b FROM t", "SELECT a FROM t", "set operation"),
    ],
)  # fmt: skip
def test_what_cannot_be_parsed_is_compared_by_words(gold: str, pred: str, first: str) -> None:
    assert text_differences(gold, pred)[0] == first
    assert text_differences(gold, gold) == []


@pytest.mark.parametrize(
    ("query", "tables"),
    [
        ("SELECT count(*) FROM singer", {"singer"}),
        ("SELECT 1", set()),
        ("SELECT name FROM SINGER WHERE id IN (SELECT singer_id FROM Song)", {"singer", "song"}),
        ("WITH s AS (SELECT * FROM song) SELECT title FROM s", {"song"}),
        ("SELECT nothing FROM singer", None),
        ("SELECT name FROM singer; SELECT 1", None),
        ("DELETE FROM singer", None),
        ("", None),
        ("\x00", None),
        ("SELECT '\ud800'", None),
    ],
)
def test_sqlite_says_which_tables_a_statement_reads(
    query: str, tables: set[str] | None, path: Path
) -> None:
    assert tables_read(path, query) == tables


@pytest.mark.parametrize(
    ("query", "literals"),
    [
        ('SELECT name FROM singer WHERE country = "Chile"', []),
        ('SELECT name FROM singer WHERE country IN ("Chile", "Peru")', []),
        ('SELECT "name" FROM singer', []),
        ('SELECT "nmae" FROM singer', ["nmae"]),
        ('SELECT name FROM singer ORDER BY "years"', ["years"]),
        ('SELECT name FROM singer WHERE "agee" > 3', ["agee"]),
        ('SELECT name FROM singer WHERE country = "singer id"', ["singer id"]),
        ('SELECT name AS "who" FROM singer', []),
    ],
)
def test_a_quoted_name_that_became_a_string_is_found(
    query: str, literals: list[str], path: Path
) -> None:
    assert list(quoted_as_literal(path, query)) == literals


@pytest.mark.parametrize(
    ("gold", "pred", "difference"),
    [
        ("SELECT name FROM singer", "SELECT name, age FROM singer", "number of columns"),
        ("SELECT name FROM singer", "SELECT name FROM singer WHERE age > 99",
         "answer is empty, gold is not"),
        ("SELECT name FROM singer WHERE age > 99", "SELECT name FROM singer",
         "gold is empty, answer is not"),
        ("SELECT name FROM singer WHERE age > 99", "SELECT title FROM song WHERE id > 99",
         "equal on the base database"),
        ("SELECT name FROM singer", "SELECT name FROM singer WHERE age > 1",
         "equal on the base database"),
        ("SELECT name, age FROM singer", "SELECT age, name FROM singer", "column order"),
        ("SELECT name FROM singer ORDER BY id", "SELECT name FROM singer ORDER BY id DESC",
         "row order"),
        ("SELECT name FROM singer ORDER BY age DESC LIMIT 1",
         "SELECT name FROM singer ORDER BY age DESC, id DESC LIMIT 1", "ties"),
        ("SELECT DISTINCT country FROM singer", "SELECT country FROM singer", "duplicates"),
        ("SELECT name FROM singer WHERE age > 26", "SELECT name FROM singer", "extra rows"),
        ("SELECT name FROM singer", "SELECT name FROM singer WHERE age > 26", "missing rows"),
        ("SELECT max(age) FROM singer", "SELECT min(age) FROM singer", "another value"),
        ("SELECT name FROM singer", "SELECT title FROM song", "other rows"),
    ],
)  # fmt: skip
def test_rows_differ_in_a_way_that_has_a_name(
    gold: str, pred: str, difference: str, path: Path
) -> None:
    results = [execute(path, sql) for sql in (gold, pred)]
    assert result_difference(path, gold, *results) == difference
