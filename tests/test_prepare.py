"""The gold report: each finding on small queries, the command line, and real Spider."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nl2sql_trl.goldtext import joins_without_on, limit_cut, one_line, quoted_literals
from nl2sql_trl.prepare import main


def database(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()
    return path


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Points 9, 7, 7, 5, NULL, NULL; teams of 3, 2 and 1; names that differ in case."""
    return database(
        tmp_path_factory.mktemp("db") / "scores.sqlite",
        "CREATE TABLE p (name TEXT, team TEXT, points INT, year INT);"
        "INSERT INTO p VALUES ('ann', 'x', 9, 1), ('Bob', 'x', 7, 1), ('bob', 'x', 7, 2),"
        " ('cat', 'y', 5, 1), ('dan', 'y', NULL, 3), ('eve', 'z', NULL, 4);",
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Spider folder with something of everything that a report names."""
    folder = tmp_path / "data"
    for name in ("zoo", "shop"):
        database(
            folder / "database" / name / f"{name}.sqlite",
            "CREATE TABLE cat (name TEXT, age INT); INSERT INTO cat VALUES ('a', 1), ('b', 1);"
            "CREATE TABLE dog (name TEXT); CREATE TABLE emu (name TEXT);"
            "CREATE TABLE gone (x INT); CREATE VIEW broken AS SELECT x FROM gone; DROP TABLE gone;",
        )
    golds = [
        "SELECT name FROM cat",
        "SELECT name FROM fox",
        "SELECT name FROM dog",
        "SELECT name FROM cat ORDER BY age LIMIT 1",
        "SELECT name FROM cat LIMIT 1",
        "SELECT cat.name FROM cat JOIN dog",
        'SELECT name FROM cat WHERE name = "a"',
        "SELECT age FROM cat",
    ]
    questions = ["Name the cats."] + [f"Question {n}?" for n in range(1, 7)] + ["name  the cats."]
    rows = [
        {"question": question, "query": query, "db_id": "zoo"}
        for question, query in zip(questions, golds, strict=True)
    ]
    (folder / "train_spider.json").write_text(json.dumps(rows), encoding="utf-8")
    more = [{"question": "Count.", "query": "SELECT count(*) FROM cat", "db_id": "shop"}]
    (folder / "dev.json").write_text(json.dumps([*more, rows[0]]), encoding="utf-8")
    return folder


def run(folder: Path | str, out: Path, *flags: str) -> Any:
    assert main(["--data", str(folder), "--out", str(out), *flags]) == 0
    return json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("query", "cut"),
    [
        ("SELECT name FROM p", "no_limit"),
        ("SELECT name FROM p WHERE points = (SELECT points FROM p LIMIT 1)", "no_limit"),
        ("SELECT name FROM p WHERE name = ' limit 1'", "no_limit"),
        ("SELECT name FROM p ORDER BY points DESC LIMIT 1", "clean"),
        ("SELECT name FROM p ORDER BY points DESC LIMIT 2;", "tie"),
        ("select name from p order by points desc limit 3", "clean"),
        ("SELECT name FROM p ORDER BY points DESC LIMIT 1 OFFSET 1", "tie"),
        ("SELECT name FROM p ORDER BY points DESC LIMIT 1, 1", "tie"),
        ("SELECT name FROM p ORDER BY points DESC LIMIT 1, 2", "clean"),
        ("SELECT name FROM p ORDER BY points DESC LIMIT 6", "clean"),
        ("SELECT name FROM p ORDER BY points DESC LIMIT 60", "clean"),
        ("SELECT name FROM p ORDER BY points DESC LIMIT 0", "clean"),
        ("SELECT name FROM p ORDER BY points LIMIT 1", "tie"),  # two NULLs come first
        ("SELECT name FROM p ORDER BY points NULLS LAST LIMIT 1", "clean"),
        ("SELECT name FROM p ORDER BY points DESC, year LIMIT 2", "clean"),
        ("SELECT name FROM p ORDER BY points DESC, team LIMIT 2", "tie"),
        ("SELECT name FROM p ORDER BY name LIMIT 2", "clean"),
        ("SELECT name FROM p ORDER BY name COLLATE NOCASE LIMIT 2", "tie"),
        ("SELECT team FROM p GROUP BY team ORDER BY count(*)DESC LIMIT 1", "clean"),
        ("SELECT name FROM p GROUP BY year ORDER BY count(*) LIMIT 1", "tie"),
        ("SELECT team, count(*) AS n FROM p GROUP BY team ORDER BY n DESC LIMIT 1", "clean"),
        ("SELECT year, count(*) n FROM p GROUP BY year ORDER BY n LIMIT 2", "tie"),
        ("SELECT year, count(*) AS year FROM p GROUP BY 1 ORDER BY 2 LIMIT 2", "tie"),
        ("SELECT name, points FROM p ORDER BY 2 DESC LIMIT 2", "tie"),
        ("SELECT name FROM p ORDER BY 1 LIMIT 2", "clean"),
        ("SELECT name, -points AS points FROM p ORDER BY points LIMIT 3", "clean"),
        ("SELECT DISTINCT points FROM p ORDER BY points DESC LIMIT 2", "clean"),
        ("SELECT DISTINCT team FROM p ORDER BY points DESC LIMIT 1", "undecided"),
        ("SELECT max(points) FROM p LIMIT 1", "clean"),
        ("SELECT max(points) FROM p ORDER BY count(*) LIMIT 1", "clean"),
        ("SELECT name FROM p LIMIT 1", "no_order"),
        ("SELECT name FROM p LIMIT 6", "clean"),
        ("SELECT name FROM (SELECT name FROM p ORDER BY points) LIMIT 1", "no_order"),
        ("SELECT 1 LIMIT 1", "clean"),
        ("SELECT 1 ORDER BY 1 LIMIT 1", "clean"),
        ("SELECT * FROM p ORDER BY points DESC LIMIT 2", "tie"),
        ("SELECT * FROM p ORDER BY 3 DESC LIMIT 2", "undecided"),
        ("SELECT name FROM p ORDER BY points DESC LIMIT 1 + 1", "undecided"),
        ("SELECT name FROM p ORDER BY points DESC LIMIT -1", "undecided"),
        ("SELECT points FROM p UNION ALL SELECT 9 ORDER BY points DESC LIMIT 1", "tie"),
        ("SELECT points FROM p UNION SELECT 9 ORDER BY points DESC LIMIT 1", "clean"),
        ("SELECT points FROM p UNION SELECT 9 ORDER BY 1 DESC LIMIT 1", "undecided"),
        ("WITH q AS (SELECT * FROM p) SELECT name FROM q ORDER BY points DESC LIMIT 2", "tie"),
        ("SELECT name -- who, from\nFROM p ORDER BY points DESC -- best, first\nLIMIT 2", "tie"),
        ("SELECT /* , */ name FROM p ORDER BY points /* x */ DESC LIMIT 1", "clean"),
        ("SELECT name FROM p ORDER BY CASE WHEN points > 6 THEN 1 ELSE 2 END LIMIT 2", "tie"),
        ("SELECT name FROM p ORDER BY (SELECT max(year) FROM p) LIMIT 2", "tie"),
        ("SELECT name || ', from ' FROM p ORDER BY max(points, 6) DESC LIMIT 2", "tie"),
        ("SELECT nope FROM p ORDER BY points LIMIT 1", "undecided"),
        (f"SELECT name FROM p ORDER BY {'9' * 5_000} LIMIT 1", "tie"),  # a constant, no column
        ("LIMIT 1", "undecided"),
        ("ORDER LIMIT 1", "undecided"),
        ("SELECT ORDER BY LIMIT 1", "undecided"),
    ],
)
def test_what_a_final_limit_cuts(scores: Path, query: str, cut: str) -> None:
    assert limit_cut(scores, query) == cut


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("SELECT * FROM a JOIN b ON a.id = b.id", 0),
        ("SELECT * FROM a JOIN b USING (id)", 0),
        ("SELECT * FROM a JOIN b", 1),
        ("SELECT * FROM a join b WHERE a.id = b.id", 1),
        ("SELECT * FROM a JOIN b JOIN c", 2),
        ("SELECT * FROM a JOIN b JOIN c ON a.id = b.id AND b.id = c.id", 1),
        ("SELECT * FROM a JOIN b ON 1 JOIN c", 1),
        ("SELECT * FROM a JOIN b, c WHERE a.on = 1", 1),
        ("SELECT * FROM a, b", 0),
        ("SELECT * FROM a CROSS JOIN b", 0),
        ("SELECT * FROM a NATURAL JOIN b", 0),
        ("SELECT * FROM a NATURAL LEFT OUTER JOIN b", 0),
        ("SELECT * FROM a LEFT OUTER JOIN b", 1),
        ("SELECT * FROM a LEFT JOIN b ON a.id = b.id", 0),
        ("SELECT * FROM a JOIN (SELECT * FROM b JOIN c) AS d ON a.id = d.id", 1),
        ("SELECT * FROM a JOIN (SELECT * FROM b JOIN c ON 1) AS d", 1),
        ("SELECT * FROM a WHERE x IN (SELECT 1 FROM a JOIN b) AND y ON", 1),
        ("SELECT * FROM a WHERE x IN (SELECT 1 FROM a JOIN b) AND (y ON z)", 1),
        ("SELECT * FROM a JOIN b UNION SELECT * FROM a JOIN b ON 1", 1),
        ("SELECT 'x JOIN y' FROM a", 0),
        ("SELECT 'it''s JOIN' FROM a", 0),
        ("SELECT * FROM a JOIN b WHERE x = ' ON '", 1),
        ('SELECT "JOIN", `join`, [JOIN] FROM a', 0),
        ('SELECT * FROM a JOIN "ON" WHERE 1', 1),
        ("SELECT * FROM a -- JOIN b\n", 0),
        ("SELECT * FROM a JOIN b /* ON a.id = b.id */", 1),
        ("SELECT joined, on_time FROM a JOIN b", 1),
        ("SELECT 'never closed JOIN", 0),
        (")))) JOIN", 1),
        ("", 0),
    ],
)
def test_joins_without_on_are_counted(query: str, count: int) -> None:
    assert joins_without_on(query) == count


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ("SELECT a -- the name\nFROM t -- end", "SELECT a FROM t"),
        ("/* first */ SELECT\n\ta,\n\tb FROM t\n", "SELECT a, b FROM t"),
        ("SELECT count(*)FROM t WHERE a='New  York'", "SELECT count(*)FROM t WHERE a='New  York'"),
        ("SELECT 'a\n-- b' FROM t", "SELECT 'a -- b' FROM t"),
        ("SELECT a/**/FROM t", "SELECT a FROM t"),
        ("SELECT 'never closed\nFROM", "SELECT 'never closed FROM"),
        ("\n-- nothing\n", ""),
    ],
)
def test_a_query_on_one_line_is_still_that_query(query: str, line: str) -> None:
    assert one_line(query) == line


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ('SELECT name FROM cat WHERE name = "Tom"', ['"Tom"']),
        ('SELECT "name" FROM "cat"', []),
        ('SELECT "NAME" FROM cat', []),
        ('SELECT name AS "who" FROM cat', []),
        ('SELECT "T1".name FROM cat AS T1', []),
        ("SELECT name FROM cat WHERE name = 'say \"Tom\"'", []),
        ('SELECT name FROM cat WHERE name LIKE "%a%" OR name = ""', ['"%a%"', '""']),
    ],
)
def test_double_quoted_texts_that_name_nothing_are_found(query: str, found: list[str]) -> None:
    assert quoted_literals(query, {"cat", "name"}) == found


def test_the_report_names_the_rows_of_every_finding(folder: Path, tmp_path: Path) -> None:
    train = run(folder, tmp_path / "out.json")["splits"]["train"]
    assert (train["rows"], train["kept"]) == (8, 7)
    (dropped,) = train["dropped"]
    assert (dropped["row"], dropped["db_id"]) == (1, "zoo")
    assert (dropped["reason"], dropped["message"]) == ("not_executable", "no such table: fox")
    assert train["zero_rows"] == [2, 5]
    assert train["limit_cuts_tie"] == [3]
    assert train["limit_without_order"] == [4]
    assert train["limit_undecided"] == []
    assert train["joins_without_on"] == [5]
    assert train["quoted_literals"] == [6]
    (several,) = train["question_with_several_golds"]
    assert several["rows"] == [0, 7]


def test_the_report_names_empty_tables_shared_databases_and_files(
    folder: Path, tmp_path: Path
) -> None:
    found = run(folder, tmp_path / "out.json")
    assert found["databases"] == 2
    assert found["empty_tables"] == {"shop": ["dog", "emu"], "zoo": ["dog", "emu"]}
    assert found["shared_databases"] == ["zoo"]
    assert sorted(found["files"]) == [
        "database/shop/shop.sqlite", "database/zoo/zoo.sqlite", "dev.json", "train_spider.json",
    ]  # fmt: skip


def test_what_is_printed_says_what_is_written(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(folder, tmp_path / "out.json")
    printed = capsys.readouterr().out
    assert "train: 7 of 8 golds run" in printed
    assert "dropped row 1 (zoo): not_executable: no such table: fox" in printed
    assert "golds whose final LIMIT cuts a tie: 1 (3)" in printed
    assert "shared by train and dev: 1 (zoo)" in printed


def test_one_split_can_be_checked_without_the_other(folder: Path, tmp_path: Path) -> None:
    (folder / "train_spider.json").unlink()
    found = run(folder, tmp_path / "out.json", "--split", "dev")
    assert list(found["splits"]) == ["dev"]
    assert found["shared_databases"] is None


def test_pocket_is_without_findings_but_for_its_meant_empty_results(tmp_path: Path) -> None:
    found = run("pocket", tmp_path / "out.json")
    assert found["shared_databases"] == []
    assert found["empty_tables"] == {}
    for part in found["splits"].values():
        assert part["kept"] == part["rows"]
        findings = {name for name, value in part.items() if isinstance(value, list) and value}
        assert findings <= {"zero_rows"}


def broken_database(folder: Path) -> None:
    path = folder / "database" / "zoo" / "zoo.sqlite"
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"\xff" * (len(content) - 100))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / "dev.json").unlink(), "dev.json is missing"),
        (lambda folder: (folder / "dev.json").write_text("[{]"), "malformed JSON in row 0"),
        (lambda folder: (folder / "database").rename(folder / "db"), "no database/ folder"),
        (broken_database, "zoo.sqlite cannot be read as a SQLite database"),
    ],
)
def test_bad_data_is_one_line_and_status_2(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Any, said: str
) -> None:
    spoil(folder)
    assert main(["--data", str(folder), "--out", str(tmp_path / "out.json")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("out", ["", "nowhere/out.json", "data/dev.json/out.json"])
def test_an_out_file_that_cannot_be_is_said_before_the_work(
    folder: Path, capsys: pytest.CaptureFixture[str], out: str
) -> None:
    assert main(["--data", "nowhere", "--out", str(folder.parent / out)]) == 2
    assert capsys.readouterr().err.startswith("error: the report cannot be written")


def test_the_module_runs_as_a_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nl2sql_trl.prepare", "--data", str(tmp_path / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: there is no data folder {tmp_path / 'nowhere'}")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_the_report_on_real_spider_finds_what_is_known_of_it(shared: Path, tmp_path: Path) -> None:
    found = run(shared / "spider", tmp_path / "out.json")
    train, dev = found["splits"]["train"], found["splits"]["dev"]
    notes = json.loads((shared / "spider" / "row_notes.json").read_text(encoding="utf-8"))
    assert (train["kept"], train["rows"]) == (6_997, 7_000)
    assert (dev["kept"], dev["rows"]) == (1_034, 1_034)
    order = "ORDER BY clause should come after INTERSECT not before"
    assert [(d["row"], d["reason"], d["message"]) for d in train["dropped"]] == [
        (3153, "not_executable", "no such table: Ref_Company_Types"),
        (4513, "not_executable", order),
        (4514, "not_executable", order),
    ]
    assert train["zero_rows"] == notes["train_zero_row"]
    assert dev["zero_rows"] == notes["dev_zero_row"]
    assert (len(train["limit_cuts_tie"]), len(dev["limit_cuts_tie"])) == (247, 44)
    assert dev["joins_without_on"] == [944, 945]
    assert len(dev["quoted_literals"]) == 213
    assert found["shared_databases"] == []
    manifest = json.loads((shared / "spider" / "manifest.json").read_text(encoding="utf-8"))
    for entry in manifest:
        if entry["db_id"] in found["empty_tables"]:
            assert found["empty_tables"][entry["db_id"]] == sorted(entry["empty_tables"])
    assert {"wta_1", "soccer_1", "baseball_1", "music_2"} <= set(found["empty_tables"])
