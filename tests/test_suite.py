"""Test suites: what the random databases keep to, what they tell apart, and what they must not."""

from __future__ import annotations

import hashlib
import json
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nl2sql_trl.data import DataError
from nl2sql_trl.database import DatabaseError
from nl2sql_trl.spider import Evaluator
from nl2sql_trl.suite import build, build_suite, pocket_suite
from nl2sql_trl.suite.__main__ import main
from nl2sql_trl.suite.hints import hints
from nl2sql_trl.suite.infer import infer, parents_first
from nl2sql_trl.suite.neighbours import neighbours
from nl2sql_trl.suite.randomdb import Growing
from nl2sql_trl.suite.reading import read
from nl2sql_trl.suite.same import free_choices, rewrites, tie_breakers
from nl2sql_trl.suite.shape import Table, read_tables

MUSIC = """
CREATE TABLE singer (singer_id INTEGER PRIMARY KEY, name TEXT, country TEXT, age INTEGER,
                     worth REAL);
CREATE TABLE venue (venue_id INTEGER PRIMARY KEY, name TEXT NOT NULL, seats INTEGER);
CREATE TABLE concert (concert_id INTEGER PRIMARY KEY, title TEXT, year INTEGER,
                      venue_id INTEGER REFERENCES venue (venue_id));
CREATE TABLE appearance (concert_id INTEGER, singer_id INTEGER,
                         FOREIGN KEY (concert_id) REFERENCES concert (concert_id));
INSERT INTO singer VALUES (1, 'Ada', 'France', 30, 2.3), (2, 'Bo', 'Chile', 25, 1.1),
                          (3, 'Cy', 'Chile', 41, NULL), (4, 'Di', 'Peru', 52, 9.7);
INSERT INTO venue VALUES (1, 'Dome', 100), (2, 'Pit', 50), (3, 'Hall', 75);
INSERT INTO concert VALUES (1, 'One', 2014, 1), (2, 'Two', 2015, 2), (3, 'Six', 2014, 1);
INSERT INTO appearance VALUES (1, 1), (1, 2), (2, 3), (3, 1);
"""
BY_VENUE = (
    "SELECT T2.name FROM concert AS T1 JOIN venue AS T2 ON T1.venue_id = T2.venue_id "
    "GROUP BY T2.venue_id ORDER BY count(*) DESC LIMIT 1"
)
AT_DOME = (
    "SELECT T1.title FROM concert AS T1 JOIN venue AS T2 ON T1.venue_id = T2.venue_id "
    "WHERE T2.name = 'Dome'"
)
PLAYED = (
    "SELECT T1.name FROM singer AS T1 JOIN appearance AS T2 ON T1.singer_id = T2.singer_id "
    "GROUP BY T1.singer_id HAVING count(*) >= 2"
)
YOUNGEST = "SELECT name, country FROM singer ORDER BY age LIMIT 1"
SILENT = "SELECT name FROM singer WHERE singer_id NOT IN (SELECT singer_id FROM appearance)"
OLDER = "SELECT count(*) FROM singer WHERE age > 30 AND country = 'Chile'"
BOTH = (
    "SELECT country FROM singer WHERE age < 30 INTERSECT SELECT country FROM singer WHERE age > 40"
)
WORTH = "SELECT avg(worth), sum(worth) FROM singer"
GOLDS = [BY_VENUE, AT_DOME, PLAYED, YOUNGEST, SILENT, OLDER, BOTH, WORTH]


def make(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"BEGIN; {script} COMMIT;")
    return path


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        return connection.execute(sql).fetchall()


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.sqlite"))
    }


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that the golds above ask."""
    return make(tmp_path_factory.mktemp("music") / "music" / "music.sqlite", MUSIC)


@pytest.fixture(scope="module")
def suite(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its suite, not to be spoilt."""
    out = tmp_path_factory.mktemp("suite") / "out"
    build_suite({"music": base}, {"music": GOLDS}, out)
    return out


def generated(suite: Path) -> list[Path]:
    return sorted(suite.glob("*/*_suite_*.sqlite"))


def tables_of(script: str) -> dict[str, Table]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(script)
        return read_tables(connection)


# What is written


def test_the_layout_is_the_official_one(base: Path, suite: Path) -> None:
    assert (suite / "music" / "music.sqlite").read_bytes() == base.read_bytes()
    manifest = json.loads((suite / "suite.json").read_text())
    counts = manifest["databases"]["music"]
    assert counts["files"] == [path.name for path in generated(suite)] != []
    assert sorted(path.name for path in suite.iterdir()) == ["music", "suite.json"]


def test_the_manifest_counts_golds_and_neighbours(suite: Path) -> None:
    counts = json.loads((suite / "suite.json").read_text())["databases"]["music"]
    assert (counts["golds"], counts["golds_left_out"]) == (len(GOLDS), [])
    assert counts["told_apart"] + counts["never"] == counts["neighbours"] > 100
    assert counts["told_apart"] > counts["only_by_the_base"]


def test_the_same_seed_gives_the_same_files_whatever_the_order_of_databases(
    base: Path, tmp_path: Path
) -> None:
    other = make(tmp_path / "other.sqlite", MUSIC)
    paths = {"music": base, "other": other}
    golds = {"music": GOLDS[:3], "other": GOLDS[3:5]}
    build_suite(paths, golds, tmp_path / "a", size=3)
    turned = {db_id: golds[db_id] for db_id in reversed(golds)}
    build_suite(paths, turned, tmp_path / "b", size=3)
    build_suite(paths, golds, tmp_path / "c", size=3, seed=1)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert digests(tmp_path / "a") != digests(tmp_path / "c")


def test_the_files_do_not_depend_on_the_hashes_of_the_process(base: Path, tmp_path: Path) -> None:
    golds = tmp_path / "gold.sql"
    golds.write_text("".join(f"{gold}\tmusic\n" for gold in GOLDS[:4]), encoding="utf-8")
    for number in ("1", "2"):
        command = [sys.executable, "-m", "nl2sql_trl.suite", "--db", str(base.parents[1])]
        command += ["--gold", str(golds), "--out", str(tmp_path / number), "--size", "3"]
        environment = {**os.environ, "PYTHONHASHSEED": number}
        subprocess.run(command, env=environment, check=True, capture_output=True)
    assert digests(tmp_path / "1") == digests(tmp_path / "2") != {}


def test_there_are_no_more_files_than_asked_for(base: Path, tmp_path: Path) -> None:
    build_suite({"music": base}, {"music": GOLDS}, tmp_path / "out", size=2)
    assert len(generated(tmp_path / "out")) == 2


def test_a_finished_suite_of_the_same_input_is_left_as_it_is(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = build_suite({"music": base}, {"music": GOLDS[:2]}, out, size=1)
    stamps = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert build_suite({"music": base}, {"music": GOLDS[:2]}, out, size=1) == first
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == stamps


@pytest.mark.parametrize("change", ["seed", "golds", "database", "size"])
def test_a_suite_of_anything_else_is_refused(change: str, base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build_suite({"music": base}, {"music": GOLDS[:2]}, out, size=1)
    other = make(tmp_path / "music.sqlite", MUSIC + "DELETE FROM appearance;")
    with pytest.raises(DataError, match="other input or settings"):
        build_suite(
            {"music": other if change == "database" else base},
            {"music": GOLDS[:3] if change == "golds" else GOLDS[:2]},
            out,
            seed=int(change == "seed"),
            size=1 + (change == "size"),
        )


def test_a_folder_that_is_no_suite_is_refused_and_kept(base: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(DataError, match="no finished suite"):
        build_suite({"music": base}, {"music": GOLDS[:1]}, tmp_path / "out")
    assert (tmp_path / "out" / "thesis.txt").read_text() == "mine"


def test_a_build_that_is_stopped_leaves_nothing(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Growing, "write", stop)
    with pytest.raises(KeyboardInterrupt):
        build_suite({"music": base}, {"music": GOLDS[:1]}, tmp_path / "new" / "out")
    assert list((tmp_path / "new").iterdir()) == []


# What the databases keep to


def test_declared_keys_hold(suite: Path) -> None:
    for path in generated(suite):
        assert rows(path, "PRAGMA foreign_key_check") == []
        assert rows(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_foreign_key_that_only_the_golds_show_holds_too(suite: Path) -> None:
    orphans = "SELECT singer_id FROM appearance EXCEPT SELECT singer_id FROM singer"
    assert all(rows(path, orphans) == [] for path in generated(suite))


def test_only_columns_with_null_in_the_base_get_null(suite: Path) -> None:
    nulls = "SELECT count(*) - count({}) FROM {}"
    counts = [
        [rows(path, nulls.format(column, table))[0][0] for path in generated(suite)]
        for table, column in [("singer", "age"), ("concert", "venue_id"), ("singer", "worth")]
    ]
    assert set(counts[0]) == set(counts[1]) == {0}
    assert any(counts[2])


def test_names_repeat_though_they_do_not_in_the_base(suite: Path) -> None:
    repeats = "SELECT count(*) - count(DISTINCT name) FROM singer"
    assert any(rows(path, repeats)[0][0] for path in generated(suite))


def test_an_identifier_that_is_not_declared_a_key_never_repeats(tmp_path: Path) -> None:
    script = "CREATE TABLE t (t_id INT, a TEXT); INSERT INTO t VALUES (1, 'x'), (2, 'x'), (3, 'y');"
    base = make(tmp_path / "d.sqlite", script)
    build_suite({"d": base}, {"d": ["SELECT a FROM t WHERE t_id > 1"]}, tmp_path / "out")
    repeats = "SELECT count(*) - count(DISTINCT t_id) FROM t"
    assert generated(tmp_path / "out")
    assert all(rows(path, repeats) == [(0,)] for path in generated(tmp_path / "out"))


def test_types_stay_as_in_the_base(suite: Path) -> None:
    kinds = {"singer_id": {"integer"}, "name": {"text"}, "age": {"integer"}}
    for path in generated(suite):
        for column, allowed in kinds.items():
            found = rows(path, f"SELECT DISTINCT typeof({column}) FROM singer")
            assert {kind for (kind,) in found} <= allowed


def test_literals_of_the_golds_appear(suite: Path) -> None:
    found = [rows(path, "SELECT 1 FROM venue WHERE name = 'Dome'") for path in generated(suite)]
    assert any(found)
    near = "SELECT 1 FROM singer WHERE age = 30 AND country = 'Chile'"
    assert any(rows(path, near) for path in generated(suite))


def test_sums_are_the_same_in_any_order(suite: Path) -> None:
    total = "SELECT sum(worth) FROM (SELECT worth FROM singer ORDER BY singer_id {})"
    for path in generated(suite):
        assert rows(path, total.format("ASC")) == rows(path, total.format("DESC"))


@pytest.mark.parametrize(
    ("script", "gold"),
    [
        ("CREATE TABLE t (a INT);", "SELECT a FROM t WHERE a > 3"),
        ("CREATE TABLE t (a TEXT); INSERT INTO t VALUES (NULL), (NULL);", "SELECT a FROM t"),
        ("CREATE TABLE t (a TEXT PRIMARY KEY, b) WITHOUT ROWID;", "SELECT b FROM t WHERE a = 'q'"),
        ('CREATE TABLE "my t" ("a b" INT, "group" TEXT);', "SELECT \"a b\" FROM 'my t'"),
        ("CREATE TABLE t (rowid INT, _rowid_ INT, oid INT);", "SELECT oid FROM t WHERE rowid = 1"),
        (
            "CREATE TABLE t (id INTEGER PRIMARY KEY, boss INT REFERENCES t);"
            "INSERT INTO t VALUES (1, 1), (2, 1);",
            "SELECT T2.id FROM t AS T1 JOIN t AS T2 ON T1.boss = T2.id",
        ),
        (
            "CREATE TABLE a (id INTEGER PRIMARY KEY, b_id INT REFERENCES b (id));"
            "CREATE TABLE b (id INTEGER PRIMARY KEY, a_id INT REFERENCES a (id));"
            "INSERT INTO a VALUES (1, NULL), (2, 1); INSERT INTO b VALUES (1, NULL), (2, 2);",
            "SELECT count(*) FROM a JOIN b ON a.b_id = b.id",
        ),
        (
            "CREATE TABLE p (x INT, y INT, PRIMARY KEY (x, y));"
            "CREATE TABLE c (x INT, y INT, z INT, FOREIGN KEY (x, y) REFERENCES p);"
            "INSERT INTO p VALUES (1, 2), (2, 1); INSERT INTO c VALUES (1, 2, 7), (2, 1, 8);",
            "SELECT z FROM c JOIN p ON c.x = p.x AND c.y = p.y WHERE p.x = 1",
        ),
        (
            "CREATE TABLE t (a INT CHECK (a < 9), b BLOB, c INT GENERATED ALWAYS AS (a + 1));"
            "CREATE VIEW v AS SELECT a FROM t; CREATE INDEX i ON t (a);"
            "CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM t; END;"
            "INSERT INTO t (a, b) VALUES (1, x'00ff'), (2, x'01');",
            "SELECT b FROM t WHERE a = 1",
        ),
        ("CREATE TABLE t (a REFERENCES gone (x), b INT);", "SELECT b FROM t WHERE b = 2"),
        ("CREATE TABLE t (a INT); INSERT INTO t VALUES ('word'), (1e300), (9e18), (x'00');",
         "SELECT a FROM t WHERE a = 99999999999999999999"),
    ],
)  # fmt: skip
def test_a_strange_schema_gets_a_suite(script: str, gold: str, tmp_path: Path) -> None:
    base = make(tmp_path / "d.sqlite", script)
    manifest = build_suite({"d": base}, {"d": [gold]}, tmp_path / "out", size=4)
    assert manifest["databases"]["d"]["golds"] == 1
    assert generated(tmp_path / "out")
    for path in generated(tmp_path / "out"):
        if "gone" not in script:
            assert rows(path, "PRAGMA foreign_key_check") == []


def test_a_schema_that_cannot_be_made_anew_is_named(tmp_path: Path) -> None:
    base = make(tmp_path / "d.sqlite", "CREATE VIRTUAL TABLE t USING fts5(a);")
    with pytest.raises(DataError, match="leave this database out"):
        build_suite({"d": base}, {"d": ["SELECT a FROM t"]}, tmp_path / "out")


# What the databases tell apart


def accepts(folder: Path, gold: str, pred: str) -> bool:
    return Evaluator([folder], fixed=True).score("music", gold, pred).testsuite_exec


@pytest.mark.parametrize(
    ("gold", "pred"),
    [
        (BY_VENUE, BY_VENUE.replace("GROUP BY T2.venue_id", "GROUP BY T2.name")),
        (PLAYED, PLAYED.replace("GROUP BY T1.singer_id", "GROUP BY T1.name")),
        (PLAYED, PLAYED.replace(">= 2", "= 2")),
        (AT_DOME, AT_DOME.replace("'Dome'", "'Dome' AND T2.seats > 60")),
        (AT_DOME, "SELECT title FROM concert WHERE venue_id = "
                  "(SELECT venue_id FROM venue WHERE name = 'Dome')"),
        (AT_DOME, "SELECT title FROM concert WHERE year = 2014"),
        (YOUNGEST, "SELECT name, country FROM singer WHERE age = (SELECT min(age) FROM singer)"),
        (YOUNGEST, "SELECT name, country FROM singer ORDER BY name DESC LIMIT 1 OFFSET 2"),
        (OLDER, OLDER.replace("> 30", ">= 30")),
        (OLDER, OLDER.replace("> 30", "> 31")),
        (OLDER, "SELECT count(*) FROM singer WHERE age > 30 AND name = 'Cy'"),
        (BOTH, "SELECT country FROM singer WHERE age < 30 AND age > 40"),
        (BOTH, "SELECT country FROM singer WHERE age < 30"),
        (SILENT, "SELECT name FROM singer WHERE country = 'Peru'"),
        (SILENT, "SELECT name FROM singer EXCEPT SELECT T1.name FROM singer AS T1 "
                 "JOIN appearance AS T2 ON T1.singer_id = T2.singer_id"),
        (WORTH, "SELECT sum(worth) / count(*), sum(worth) FROM singer"),
    ],
)  # fmt: skip
def test_a_wrong_query_is_rejected(gold: str, pred: str, suite: Path) -> None:
    assert not accepts(suite, gold, pred)


@pytest.mark.parametrize(
    ("gold", "pred"),
    [
        *((gold, gold) for gold in GOLDS),
        (BY_VENUE, "SELECT v.name FROM venue v, concert c WHERE v.venue_id = c.venue_id "
                   "GROUP BY c.venue_id ORDER BY count(c.concert_id) DESC LIMIT 1"),
        (BY_VENUE, "SELECT T2.name FROM venue AS T2 JOIN concert AS T1 ON T2.venue_id = "
                   "T1.venue_id GROUP BY T2.venue_id, T2.name ORDER BY count(*) DESC LIMIT 1"),
        (AT_DOME, "SELECT title FROM venue INNER JOIN concert USING (venue_id) "
                  "WHERE 'Dome' = venue.name"),
        (AT_DOME, "SELECT title FROM concert WHERE venue_id IN "
                  "(SELECT venue_id FROM venue WHERE name = 'Dome')"),
        (AT_DOME, AT_DOME.replace("JOIN", "LEFT JOIN")),
        (PLAYED, "SELECT (SELECT name FROM singer AS s WHERE s.singer_id = a.singer_id) "
                 "FROM appearance AS a GROUP BY singer_id HAVING NOT count(*) < 2"),
        (YOUNGEST, "WITH s AS (SELECT * FROM singer) SELECT country, name FROM s "
                   "ORDER BY s.age ASC LIMIT 1"),
        (SILENT, "SELECT name FROM singer AS s WHERE NOT EXISTS "
                 "(SELECT 1 FROM appearance AS a WHERE a.singer_id = s.singer_id)"),
        (SILENT, "SELECT s.name FROM singer AS s LEFT JOIN appearance AS a "
                 "ON s.singer_id = a.singer_id WHERE a.singer_id IS NULL"),
        (OLDER, "SELECT count(singer_id) FROM singer WHERE country IN ('Chile') AND NOT age <= 30"),
        (OLDER, "SELECT count(*) FROM singer WHERE age BETWEEN 31 AND 1000 AND country = 'Chile'"),
        (BOTH, "SELECT country FROM singer WHERE age > 40 INTERSECT "
               "SELECT country FROM singer WHERE age < 30"),
        (BOTH, "SELECT country FROM singer GROUP BY country "
               "HAVING min(age) < 30 AND max(age) > 40"),
        (WORTH, "SELECT sum(worth) / count(worth), sum(worth) FROM singer"),
        (WORTH, "SELECT avg(worth), sum(worth) FROM (SELECT * FROM singer ORDER BY name)"),
    ],
)  # fmt: skip
def test_an_equal_query_is_accepted(gold: str, pred: str, suite: Path) -> None:
    assert accepts(suite, gold, pred)


def test_wrong_queries_were_not_rejected_by_the_base_alone(base: Path) -> None:
    folder = base.parents[1]
    assert accepts(folder, BY_VENUE, BY_VENUE.replace("GROUP BY T2.venue_id", "GROUP BY T2.name"))
    assert accepts(folder, OLDER, OLDER.replace("> 30", ">= 30"))


def test_no_gold_ties_on_a_generated_database(suite: Path) -> None:
    counts = "SELECT count(*) FROM concert GROUP BY venue_id ORDER BY 1 DESC LIMIT 2"
    for path in generated(suite):
        found = rows(path, counts)
        assert len(found) < 2 or found[0] != found[1] or len(set(rows(path, BY_VENUE))) == 1
        ages = "SELECT DISTINCT name, country FROM singer WHERE age = (SELECT min(age) FROM singer)"
        assert len(rows(path, ages)) <= 1


def test_a_gold_that_ties_on_the_base_hinders_no_other(tmp_path: Path) -> None:
    script = "CREATE TABLE t (a TEXT, n INT); INSERT INTO t VALUES ('x', 1), ('y', 1), ('z', 0);"
    base = make(tmp_path / "d.sqlite", script)
    golds = ["SELECT a FROM t LIMIT 1", "SELECT a FROM t WHERE n >= 1"]
    build_suite({"d": base}, {"d": golds}, tmp_path / "out")
    assert any(len(rows(p, "SELECT a FROM t")) > 1 for p in generated(tmp_path / "out"))


@pytest.mark.parametrize(
    "gold",
    ["SELECT nothing FROM singer", "not SQL", "DROP TABLE singer", "DELETE FROM singer", "", ";",
     "PRAGMA user_version = 7", "ATTACH 'x.sqlite' AS x", "SELECT 1; SELECT 2 FROM gone",
     "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"],
)  # fmt: skip
def test_a_gold_that_does_not_run_is_left_out(gold: str, base: Path, tmp_path: Path) -> None:
    before = base.read_bytes()
    golds = {"music": [gold, "SELECT name FROM singer WHERE age = 30"]}
    manifest = build_suite({"music": base}, golds, tmp_path / "out", size=1)
    counts = manifest["databases"]["music"]
    assert (counts["golds"], len(counts["golds_left_out"])) == (1, 1)
    assert base.read_bytes() == before
    assert not Path("x.sqlite").exists()


def test_without_a_gold_that_runs_the_suite_is_the_base(base: Path, tmp_path: Path) -> None:
    build_suite({"music": base}, {"music": ["SELECT x"]}, tmp_path / "out")
    assert generated(tmp_path / "out") == []
    assert (tmp_path / "out" / "music" / "music.sqlite").is_file()


# Wrong input


@pytest.mark.parametrize("db_id", ["..", "../music", "a/b", ".", ""])
def test_a_db_id_that_leads_elsewhere_is_refused(db_id: str, base: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="leads out of the folder"):
        build_suite({db_id: base}, {db_id: GOLDS[:1]}, tmp_path / "out")


def test_a_place_where_nothing_can_be_made_is_named(base: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        build_suite({"music": base}, {"music": GOLDS[:1]}, tmp_path / "file" / "out")


def test_a_missing_database_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no database .*gone\.sqlite"):
        build_suite({"d": tmp_path / "gone.sqlite"}, {"d": ["SELECT 1"]}, tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"not a database" * 100])
def test_a_broken_database_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "d.sqlite"
    path.write_bytes(content)
    with pytest.raises(DatabaseError, match=r"d\.sqlite"):
        build_suite({"d": path}, {"d": ["SELECT 1"]}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("SELECT 1\n", "expected SQL, one TAB and a db_id"), ("", "holds no golds"),
     ("SELECT 1\tgone\n", "there is no database"), (None, "No such file")],
)  # fmt: skip
def test_the_command_complains_in_one_line(
    text: str | None, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gold = tmp_path / "gold.sql"
    if text is not None:
        gold.write_text(text)
    with pytest.raises(SystemExit) as caught:
        main(["--db", str(tmp_path), "--gold", str(gold), "--out", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert complaint in error
    assert error.count("\n") == 1


def test_a_folder_in_spiders_layout_gives_its_databases_and_one_splits_golds(
    spider_folder: Path, tmp_path: Path
) -> None:
    file = spider_folder / "dev.json"
    rows = [row for row in json.loads(file.read_text()) if row["db_id"] == "music"]
    file.write_text(json.dumps(rows))
    flags = ["--data", str(spider_folder), "--size", "2"]
    main([*flags, "--split", "dev", "--out", str(tmp_path / "dev")])
    main([*flags, "--out", str(tmp_path / "all")])
    assert [path.name for path in sorted((tmp_path / "dev").glob("*/"))] == ["music"]
    assert [path.name for path in sorted((tmp_path / "all").glob("*/"))] == ["music", "shops"]
    manifest = json.loads((tmp_path / "dev" / "suite.json").read_text())
    assert manifest["databases"]["music"]["golds"] == len({row["query"] for row in rows})


# Reading and neighbours


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT age FROM singer", [("singer", "age")]),
        ("SELECT T1.Name FROM Singer AS T1", [("singer", "name")]),
        ("SELECT s.name FROM singer s WHERE AGE > 3", [("singer", "name"), ("singer", "age")]),
        ("SELECT `age` FROM `singer`", [("singer", "age")]),
        ('SELECT "age" FROM singer WHERE name = "Ada"', [("singer", "age"), ("singer", "name")]),
        ("SELECT a.age FROM singer AS b", []),
        ("SELECT 'age' FROM singer -- age", []),
        (
            "SELECT name FROM venue WHERE seats > (SELECT max(age) FROM singer AS T1)",
            [("venue", "name"), ("venue", "seats"), ("singer", "age")],
        ),
        (
            "SELECT T1.name FROM singer AS T1 UNION SELECT T1.name FROM venue AS T1",
            [("singer", "name"), ("venue", "name")],
        ),
        (
            "SELECT name FROM venue AS v WHERE EXISTS (SELECT 1 FROM concert WHERE v.seats > year)",
            [("venue", "name"), ("venue", "seats"), ("concert", "year")],
        ),
    ],
)
def test_columns_are_found_with_their_tables(sql: str, expected: list[tuple[str, str]]) -> None:
    assert list(read(sql, tables_of(MUSIC)).columns.values()) == expected


def near_misses(sql: str) -> list[str]:
    tables = tables_of(MUSIC)
    tables = infer(tables, hints([read(PLAYED, tables)], tables).joined)
    made = neighbours(read(sql, tables), tables, random.Random(0), 10_000)
    return [" ".join(text.replace(" . ", ".").lower().split()) for text in made]


@pytest.mark.parametrize(
    ("sql", "miss"),
    [
        ("SELECT name FROM singer WHERE age > 3", "select name from singer where age >= 3"),
        ("SELECT name FROM singer WHERE age > 3", "select name from singer where age > 4"),
        ("SELECT name FROM singer WHERE age > 3", "select name from singer"),
        (
            "SELECT name FROM singer WHERE age BETWEEN 3 AND 5 AND country = 'x'",
            "select name from singer where age between 3 and 5",
        ),
        (
            "SELECT name FROM singer WHERE age BETWEEN 3 AND 5 AND country = 'x'",
            "select name from singer where age between 3 and 5 or country = 'x'",
        ),
        ("SELECT max(age) FROM singer", "select min ( age ) from singer"),
        ("SELECT max(age) FROM singer", "select age from singer"),
        ("SELECT count(*) FROM singer", "select count ( singer.worth ) from singer"),
        ("SELECT count(age) FROM singer", "select count ( * ) from singer"),
        ("SELECT count(age) FROM singer", "select count ( distinct age ) from singer"),
        ("SELECT DISTINCT name FROM singer", "select name from singer"),
        ("SELECT name FROM singer", "select country from singer"),
        ("SELECT name FROM singer", "select name from venue"),
        ("SELECT name FROM singer ORDER BY age LIMIT 1",
         "select name from singer order by age desc limit 1"),
        ("SELECT name FROM singer ORDER BY age LIMIT 1",
         "select name from singer order by age limit 2"),
        ("SELECT name FROM singer ORDER BY age LIMIT 1", "select name from singer limit 1"),
        ("SELECT name FROM singer ORDER BY age LIMIT 1",
         "select name from singer where age = ( select min ( age ) from singer )"),
        ("SELECT country FROM singer GROUP BY country HAVING count(*) > 1",
         "select country from singer group by country"),
        ("SELECT country FROM singer GROUP BY country HAVING count(*) > 1",
         "select country from singer group by singer.name having count ( * ) > 1"),
        (AT_DOME, "select t1.title from concert as t1 left join venue as t2 on t1.venue_id = "
                  "t2.venue_id where t2.name = 'dome'"),
        (AT_DOME, "select t1.title from concert as t1 join venue as t2 where t2.name = 'dome'"),
        (AT_DOME, "select t1.title from concert as t1 where t1.venue_id in ( select t2.venue_id "
                  "from venue as t2 where t2.name = 'dome' )"),
        ("SELECT title FROM concert", "select title from concert join venue as x9 on "
                                      "concert.venue_id = x9.venue_id"),
        (BOTH, BOTH.lower().replace("intersect", "union")),
        (BOTH, "select country from singer where age < 30"),
        ("SELECT name FROM singer WHERE country NOT LIKE '%x%'",
         "select name from singer where country like '%x%'"),
        ("SELECT name FROM singer WHERE country LIKE '%x%'",
         "select name from singer where country like 'x%'"),
    ],
)  # fmt: skip
def test_a_likely_mistake_is_among_the_neighbours(sql: str, miss: str) -> None:
    assert miss in near_misses(sql)


def test_a_query_is_no_neighbour_of_its_own() -> None:
    own = " ".join(AT_DOME.lower().split())
    assert own not in near_misses(AT_DOME)


HOSTILE = [
    *("", ";", "(", ")", "))((", "SELECT", "select from where", "FROM FROM FROM", "'", '"', "`"),
    *("SELECT (((", "UNION", "UNION SELECT", "a UNION", "GROUP", "ORDER", "LIMIT", "ON", "JOIN"),
    *("WHERE AND", "BETWEEN AND", "x IS", "NOT", "SELECT count(", "SELECT count()", "sum(avg("),
    *("ORDER BY LIMIT 1", "FROM a JOIN", "FROM singer AS", "FROM singer JOIN venue ON", "-- all"),
    *("/* open", "SELECT 18_49 FROM singer WHERE age = 18_49", "SELECT ٣ FROM singer", "\ud800"),
    *("SELECT age FROM singer WHERE age > '", "IN (", "LIKE", "SELECT ,,, FROM singer", "=", "= ="),
    *("SELECT name FROM singer WHERE age = 1e999", "SELECT \x00", "INTERSECT " * 50, "(" * 500),
]


@pytest.mark.parametrize("sql", HOSTILE)
def test_what_is_no_sql_has_neighbours_or_none_but_raises_nothing(sql: str) -> None:
    tables = tables_of(MUSIC)
    reading = read(sql, tables)
    hints([reading], tables)
    neighbours(reading, tables, random.Random(0), 100)
    rewrites(reading)
    tie_breakers(reading)
    free_choices(reading)


def cuts(sql: str) -> Iterator[str]:
    tokens = sql.split()
    for index in range(len(tokens)):
        yield " ".join(tokens[:index])
        yield " ".join(tokens[index:])
        yield " ".join(tokens[:index] + tokens[index + 1 :])


@pytest.mark.parametrize("gold", GOLDS)
def test_no_piece_of_a_query_raises_anything(gold: str) -> None:
    tables = tables_of(MUSIC)
    for sql in cuts(gold.replace("(", " ( ").replace(")", " ) ").replace(".", " . ")):
        neighbours(read(sql, tables), tables, random.Random(0), 100)
        hints([read(sql, tables)], tables)


def test_parents_come_before_children_and_cycles_end() -> None:
    tables = tables_of(
        "CREATE TABLE a (b_id REFERENCES b (id), id PRIMARY KEY);"
        "CREATE TABLE b (id PRIMARY KEY, c_id REFERENCES c (id));"
        "CREATE TABLE c (id PRIMARY KEY, a_id REFERENCES a (id)); CREATE TABLE d (x);"
    )
    order = parents_first(tables)
    assert sorted(order) == ["a", "b", "c", "d"]
    assert order.index("c") < order.index("b") < order.index("a")


# The collections


@pytest.mark.slow
def test_pocket_has_a_suite_that_is_built_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NL2SQL_TRL_CACHE", str(tmp_path))
    folder = pocket_suite("fitness_club")
    manifest = json.loads((folder / "suite.json").read_text())
    assert folder.is_relative_to(tmp_path)
    assert list(manifest["databases"]) == ["fitness_club"]
    assert all(entry["files"] for entry in manifest["databases"].values())
    assert all(entry["golds_left_out"] == [] for entry in manifest["databases"].values())
    monkeypatch.setattr(build, "build_suite", None)
    assert pocket_suite("fitness_club") == folder


def test_a_database_that_pocket_has_not_is_refused() -> None:
    with pytest.raises(DataError, match="no database 'nowhere'"):
        pocket_suite("nowhere")


# Kinds of parity cases whose prediction says the same as its gold by construction.
_EQUAL = {
    *("agg_space", "agg_upper", "alias_add", "alias_drop_as", "alias_rename", "alias_self"),
    *("alias_to_table", "avg_ratio", "col_alias", "col_alias_noas", "col_swap", "comment", "cte"),
    *("eq_in", "fence", "from_sub", "gold_self", "join_comma", "join_swap", "lower_all"),
    *("ne_form", "not_prefix", "num_float", "on_flip", "on_paren", "on_tight", "op_tight"),
    *("op_tight_left", "op_tight_right", "order_explicit", "quote_flip", "quote_ident"),
    *("sel_paren", "semicolon", "spaces", "upper_all", "where_dup", "where_paren", "where_swap"),
}


@pytest.mark.slow
def test_spiders_dev_databases_get_a_suite_nearly_as_strict_as_the_official_one(
    shared: Path, tmp_path: Path
) -> None:
    golds: dict[str, list[str]] = {}
    for entry in json.loads((shared / "spider" / "dev.json").read_text(encoding="utf-8")):
        golds.setdefault(entry["db_id"], []).append(entry["query"])
    databases = shared / "spider" / "database"
    paths = {db_id: databases / db_id / f"{db_id}.sqlite" for db_id in golds}
    build_suite(paths, golds, tmp_path / "suite")
    with (shared / "parity" / "public.jsonl").open(encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    cases.sort(key=lambda case: case["db_id"])
    base, ours = Evaluator([databases]), Evaluator([tmp_path / "suite"])

    def verdict(evaluator: Evaluator, case: Mapping[str, Any]) -> bool:
        return evaluator.score(case["db_id"], case["gold"], case["pred"]).testsuite_exec

    known = [c for c in cases if "nondeterministic" not in c["flags"] and c["db_id"] in golds]
    missed = [
        case["id"]
        for case in known
        if case["testsuite_exec_real"]
        and set(case["kind"].split("+")) <= _EQUAL
        and not verdict(ours, case)
    ]
    assert missed == []
    hard = [c for c in known if c["testsuite_exec_real"] is False and verdict(base, c)]
    rejected = [case for case in hard if not verdict(ours, case)]
    assert len(hard) > 500
    assert len(rejected) >= 0.9 * len(hard)
