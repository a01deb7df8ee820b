"""Bounded, read-only execution."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from nl2sql_trl.spider.execution import TIMEOUT, Limits, Runner

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE singer",
        "DELETE FROM singer",
        "WITH c AS (SELECT 1) DELETE FROM singer",
        "UPDATE singer SET age = 0",
        "CREATE TABLE t (a)",
        "PRAGMA user_version = 7",
        "ALTER TABLE singer RENAME TO other",
        "PRAGMA journal_mode = WAL",
        "BEGIN",
        "VACUUM",
        "VACUUM INTO 'copy.db'",
        "ATTACH 'other.db' AS other",
        "PRAGMA hard_heap_limit = 100",
    ],
)
def test_no_statement_changes_files_or_the_next_result(
    sql: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before, files = base.read_bytes(), sorted(tmp_path.rglob("*"))
    with Runner() as runner:
        runner.execute(base, sql)
        assert runner.execute(base, "SELECT max(age) FROM singer").rows == ((41,),)
    assert base.read_bytes() == before
    assert sorted(tmp_path.rglob("*")) == files


def test_a_statement_that_writes_returns_no_rows_and_no_error(base: Path) -> None:
    with Runner() as runner:
        assert runner.execute(base, "DELETE FROM singer").error is None
        assert runner.execute(base, "WITH c AS (SELECT 1) DELETE FROM singer").error is None


@pytest.mark.parametrize(
    "sql",
    [
        f"{ENDLESS} SELECT count(*) FROM c",
        f"{ENDLESS} SELECT x FROM c",
        f"{ENDLESS} SELECT zeroblob(1000000) FROM c",
        f"CREATE TABLE t AS {ENDLESS} SELECT count(*) FROM c",
    ],
)
def test_a_runaway_statement_ends_at_a_limit(sql: str, base: Path) -> None:
    with Runner(Limits(seconds=0.2, rows=1000, size=8_000_000)) as runner:
        execution = runner.execute(base, sql)
    assert execution.error == TIMEOUT
    assert execution.rows == ()


@pytest.mark.parametrize(
    "sql",
    ["nonsense", "SELECT 1; SELECT 2", "SELECT '\0'", "SELECT '\ud800'", "SELECT zeroblob(9e9)"],
)
def test_errors_are_reported_and_not_raised(sql: str, base: Path) -> None:
    with Runner() as runner:
        execution = runner.execute(base, sql)
    assert execution.error
    assert execution.error != TIMEOUT


@pytest.mark.parametrize("sql", ["", ";", "-- nothing"])
def test_nothing_to_execute_gives_no_rows(sql: str, base: Path) -> None:
    with Runner() as runner:
        assert runner.execute(base, sql).error is None


def test_bad_bytes_in_text_are_left_out_and_told(base: Path) -> None:
    with Runner() as runner:
        execution = runner.execute(base, "SELECT CAST(x'41ff42' AS TEXT)")
        assert execution.rows == (("AB",),)
        assert execution.undecodable
        assert not runner.execute(base, "SELECT 'AB'").undecodable


def test_a_file_that_is_no_database_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.sqlite"
    path.write_bytes(b"no database" * 100)
    with Runner() as runner:
        assert runner.execute(path, "SELECT * FROM t").error
        assert runner.execute(path, "DROP TABLE t").error
        assert runner.execute(tmp_path / "missing.sqlite", "SELECT 1").error


def test_a_statement_is_executed_once_a_file(base: Path) -> None:
    with Runner() as runner:
        assert runner.execute(base, "SELECT 1") is runner.execute(base, "SELECT 1")


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ("SELECT name FROM singer", "select  NAME\nfrom Singer", True),
        ("SELECT count(*) FROM singer", "SELECT COUNT ( * ) FROM singer", True),
        ("SELECT name , age FROM singer", "SELECT name,age FROM singer", True),
        ("SELECT 'A' FROM singer", "SELECT 'a' FROM singer", False),
        ('SELECT "A  B" FROM singer', 'SELECT "A B" FROM singer', False),
        ("SELECT name FROM singer WHERE age > = 30", "SELECT name FROM singer WHERE age >= 30",
         False),
        ("SELECT 1 -- A\n, 2", "SELECT 1 -- a , 2", False),
        ("SELECT 1 /* ( */ , 2", "SELECT 1 /*(*/,2", False),
        ("SELECT 'it''s ( A'", "SELECT 'it''s (a'", False),
        ("SELECT 'open", "SELECT 'OPEN", False),
    ],
)  # fmt: skip
def test_statements_that_differ_in_spelling_alone_run_once(
    one: str, two: str, same: bool, base: Path
) -> None:
    with Runner() as runner:
        assert (runner.execute(base, one) is runner.execute(base, two)) is same


def test_a_spelling_that_runs_once_gives_what_each_would_give_alone(base: Path) -> None:
    texts = ["SELECT [name] , `age` FROM Singer WHERE country = 'Chile'",
             "select [name],`age` from singer where COUNTRY = 'Chile'"]  # fmt: skip
    alone = []
    for text in texts:
        with Runner() as runner:
            alone.append(runner.execute(base, text))
    assert alone[0] == alone[1]
    assert len(alone[0].rows) == 2
    assert alone[0].digest == alone[1].digest


@pytest.mark.parametrize("piece", ["a", " ", "[", "]", "'", '"', "json", "hex ", "(", "a(", "/*"])
def test_looking_a_long_statement_over_takes_one_pass(piece: str, base: Path) -> None:
    with Runner() as runner:
        assert runner.execute(base, f"SELECT {piece * 199_999}").error


def test_digests_tell_cells_that_are_equal_but_of_other_types(base: Path) -> None:
    with Runner() as runner:
        results = [
            runner.execute(base, f"SELECT {v}") for v in ("1", "1.0", "'1'", "x'31'", "NULL")
        ]
    assert len({result.digest for result in results}) == 5


@pytest.mark.parametrize(
    ("sql", "sure"),
    [
        ("SELECT name FROM singer WHERE age > 20 AND name LIKE '%a' ORDER BY age LIMIT 3;", True),
        ("SELECT count(*), avg(age) FROM singer GROUP BY country HAVING max(age) > 1", True),
        ("SELECT name FROM singer WHERE singer_id IN (SELECT singer_id FROM appearance)", True),
        ("SELECT sum(age) FROM singer", False),  # may overflow
        ("SELECT abs(age) FROM singer", False),
        ("SELECT name || country FROM singer", False),
        ("SELECT json(name) FROM singer", False),
        ("SELECT name FROM singer LIMIT (SELECT name FROM stadium)", False),
        ("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x FROM c) SELECT x FROM c LIMIT 1",
         False),
        ("SELECT nothing FROM singer", False),
        ("SELECT name FROM singer; DROP TABLE singer", False),
        ("DELETE FROM singer", False),
    ],
)  # fmt: skip
def test_what_ran_on_the_base_is_sure_to_run_elsewhere_only_if_nothing_in_it_can_fail(
    sql: str, sure: bool, base: Path
) -> None:
    with Runner() as runner:
        assert runner.cannot_fail(sql, base.with_name("music_v1.sqlite"), base) is sure
        assert not runner.cannot_fail(sql, base, base)


@pytest.mark.parametrize(
    "change",
    ["ALTER TABLE singer RENAME COLUMN age TO years", "CREATE VIEW v AS SELECT 1",
     "CREATE TABLE extra (a)"],
)  # fmt: skip
def test_another_schema_makes_nothing_sure(change: str, base: Path) -> None:
    other = base.with_name("music_v1.sqlite")
    with closing(sqlite3.connect(other)) as connection:
        connection.execute(change)
        connection.commit()
    with Runner() as runner:
        assert not runner.cannot_fail("SELECT name FROM singer", other, base)
