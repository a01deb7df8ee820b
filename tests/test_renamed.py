"""Copies under other names hold what their originals hold, and golds say the same on them."""

from __future__ import annotations

import hashlib
import json
import random
import re
import sqlite3
from pathlib import Path

import pytest
from fakes import write_spider_folder

from nl2sql_trl import renamed as command
from nl2sql_trl.data import load
from nl2sql_trl.database import ddl, execute
from nl2sql_trl.records import Example
from nl2sql_trl.renamed import chosen, main, read_tables, renamed
from nl2sql_trl.renaming import KEYWORDS, new_names, rewritten

NAMES = {"singer": "tbl_sngr", "name": "nm", "count": "cnt", "age": "yrs"}
CONCERTS = """
CREATE TABLE singer ("Singer_ID" INTEGER PRIMARY KEY, Name TEXT, `Age` INT, date TEXT);
CREATE TABLE "concert" (ID INT, Singer_ID INT, [Place Name] TEXT,
    FOREIGN KEY (Singer_ID) REFERENCES singer(Singer_ID));
INSERT INTO singer VALUES (1, 'name', 31, 'singer'), (2, 'Zoë', 47, NULL), (3, NULL, 31, '2001');
INSERT INTO concert VALUES (1, 1, 'Oslo'), (2, 1, 'singer'), (3, 2, 'Oslo');
"""
GOLDS = [
    "SELECT count(*) FROM singer",
    "SELECT NAME, Singer.age FROM singer WHERE name = 'name'",
    'SELECT T1.name FROM singer AS T1 JOIN concert AS T2 ON T1.singer_id = T2.Singer_ID '
    'WHERE T2."Place Name" = "Oslo"',
    "SELECT max(date), `age` FROM singer GROUP BY [Age] ORDER BY age",
    "SELECT name FROM singer WHERE singer_id NOT IN (SELECT singer_id FROM concert)",
    "SELECT * FROM concert ORDER BY id DESC LIMIT 1",
]  # fmt: skip


def examples(folder: Path, script: str, golds: list[str]) -> list[Example]:
    path = folder / "made" / "made.sqlite"
    path.parent.mkdir(parents=True)
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()
    return [Example(n, "train", f"Question {n}?", sql, "made", path) for n, sql in enumerate(golds)]


def placed(rows: list[dict[str, str]], out: Path) -> list[tuple[Path, str]]:
    return [((out / row["database"]).resolve(), row["query"]) for row in rows]


@pytest.mark.parametrize(
    ("query", "after"),
    [
        ("SELECT Name FROM singer", "SELECT nm FROM tbl_sngr"),
        ("SELECT T1.name FROM SINGER T1", "SELECT T1.nm FROM tbl_sngr T1"),
        ("SELECT 'name' FROM \"singer\"", "SELECT 'name' FROM \"tbl_sngr\""),
        ("SELECT `name`, [Age] FROM singer", "SELECT `nm`, [yrs] FROM tbl_sngr"),
        ("SELECT count(*), count FROM singer", "SELECT count(*), cnt FROM tbl_sngr"),
        ("SELECT names FROM singers -- name", "SELECT names FROM singers -- name"),
        ("SELECT 'it''s name', name", "SELECT 'it''s name', nm"),
        ('SELECT "name" FROM t WHERE x = "name"', 'SELECT "nm" FROM t WHERE x = "name"'),
        ('SELECT x LIKE "age" OR x IN ("name")', 'SELECT x LIKE "age" OR x IN ("name")'),
    ],
)
def test_names_are_replaced_and_nothing_else_is(query: str, after: str) -> None:
    assert rewritten(query, NAMES) == after


def test_in_a_schema_a_name_before_a_parenthesis_is_no_function() -> None:
    assert rewritten("CREATE TABLE singer(age INT)", NAMES, schema=True) == (
        "CREATE TABLE tbl_sngr(yrs INT)"
    )


@pytest.mark.parametrize("seed", range(12))
def test_every_gold_returns_the_same_rows_on_the_copy(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "AS_IT_IS", 0)
    given = examples(tmp_path, CONCERTS, GOLDS)
    rows, counts = renamed(given, tmp_path, seed=seed, progress=False)
    assert counts == {"copies": 1, "on copies": len(GOLDS), "on originals": 0}
    golds = {e.question: e.gold for e in given}
    for row, (path, gold) in zip(rows, placed(rows, tmp_path), strict=True):
        assert path != given[0].db_path
        before = execute(given[0].db_path, golds[row["question"]])
        assert execute(path, gold).rows == before.rows
    assert ddl(path) != ddl(given[0].db_path)
    # Words of SQL, and names that are no plain words, stay.
    assert {"date", "place"} <= set(re.findall(r"\w+", ddl(path).lower()))


def test_columns_of_one_name_keep_one_name_and_no_two_names_are_alike(tmp_path: Path) -> None:
    (given, *_) = examples(tmp_path, CONCERTS, GOLDS)
    tables = read_tables(given.db_path)
    for seed in range(50):
        names = new_names(tables, random.Random(seed))
        assert set(names) == {"singer", "concert", "singer_id", "name", "age", "id"}
        assert len({n.lower() for n in names.values()}) == len(names)
        assert not {n.lower() for n in names.values()} & KEYWORDS


def test_the_shortest_names_get_others_too(tmp_path: Path) -> None:
    script = "CREATE TABLE S (s INT, a INT, _ INT); CREATE TABLE ss (id INT);"
    (given,) = examples(tmp_path, script, ["SELECT 1"])
    tables = read_tables(given.db_path)
    for seed in range(400):
        names = new_names(tables, random.Random(seed))
        assert set(names) == {"s", "a", "_", "ss", "id"}
        assert all(re.fullmatch(r"[A-Za-z_]\w*", name) for name in names.values())


def test_a_copy_that_keeps_its_names_has_golds_that_write_them_as_the_schema_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "AS_IT_IS", 1)
    given = examples(tmp_path, CONCERTS, ["SELECT NAME FROM Singer WHERE name = 'NAME'"])
    rows, _ = renamed(given, tmp_path, progress=False)
    assert rows[0]["query"] == "SELECT Name FROM singer WHERE Name = 'NAME'"


def test_the_originals_are_not_touched(tmp_path: Path) -> None:
    given = examples(tmp_path, CONCERTS, GOLDS)
    before = hashlib.sha256(given[0].db_path.read_bytes()).digest()
    renamed(given, tmp_path, progress=False)
    assert hashlib.sha256(given[0].db_path.read_bytes()).digest() == before
    assert sorted(p.name for p in given[0].db_path.parent.iterdir()) == ["made.sqlite"]


@pytest.mark.parametrize(
    "gold",
    [
        "SELECT sql FROM sqlite_master WHERE name = 'singer'",  # tells the names themselves
        "SELECT broken FROM nowhere",
        "SELECT name FROM view_of_it",
    ],
)
def test_a_gold_that_says_something_else_on_the_copy_stays_on_the_original(
    gold: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "AS_IT_IS", 0)
    script = CONCERTS + "CREATE VIEW view_of_it AS SELECT name FROM singer;"
    given = examples(tmp_path, script, [gold, "SELECT name FROM singer"])
    rows, counts = renamed(given, tmp_path, progress=False)
    assert (counts["on copies"], counts["on originals"]) == (1, 1)
    found = {row["question"]: row for row in rows}
    assert found["Question 0?"]["query"] == gold
    assert (tmp_path / found["Question 0?"]["database"]).resolve() == given[0].db_path


def test_a_database_that_cannot_be_copied_keeps_its_questions_and_leaves_no_file(
    tmp_path: Path,
) -> None:
    script = "CREATE VIRTUAL TABLE t USING fts5(a); INSERT INTO t VALUES ('x');"
    given = examples(tmp_path, script, ["SELECT a FROM t"])
    rows, counts = renamed(given, tmp_path, progress=False)
    assert counts == {"copies": 0, "on copies": 0, "on originals": 1}
    assert placed(rows, tmp_path) == [(given[0].db_path, "SELECT a FROM t")]
    assert not list(tmp_path.glob("databases/*"))


def test_a_large_database_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "LARGEST", 1_000)
    _, counts = renamed(examples(tmp_path, CONCERTS, GOLDS), tmp_path, progress=False)
    assert counts["on originals"] == len(GOLDS)


def test_a_long_schema_loses_tables_that_no_question_needs_and_none_that_one_does(
    tmp_path: Path,
) -> None:
    many = "".join(f"CREATE TABLE other_{n} (a_column_{n} TEXT, b TEXT);" for n in range(60))
    given = examples(tmp_path, CONCERTS + many, ["SELECT place FROM concert"])
    tables = read_tables(given[0].db_path)
    for seed in range(20):
        kept = chosen(tables, [given[0].gold], random.Random(seed))
        assert {"concert", "singer"} <= set(kept)  # one is named, the other referred to
        assert len(kept) < len(tables.sql)


@pytest.fixture
def spider_folder(tmp_path: Path) -> Path:
    return write_spider_folder(tmp_path / "spi der")


def test_the_command_writes_a_questions_file_that_is_the_same_for_the_same_seed(
    spider_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        out = tmp_path / name
        arguments = ["--data", str(spider_folder), "--split", "train", "--size", "2"]
        assert main([*arguments, "--seed", seed, "--out", str(out)]) == 0
        texts.append((out / "questions.jsonl").read_text(encoding="utf-8"))
    assert texts[0] == texts[1] != texts[2]
    assert "8 rows on 4 copies, 0 on their originals, 8 dev rows" in capsys.readouterr().out
    train, dev = (load(tmp_path / "a" / "questions.jsonl", split) for split in ("train", "dev"))
    assert len({e.db_id for e in train}) == 4
    assert sorted(e.question for e in train) == sorted(e.question for e in dev)
    assert {e.db_path.resolve().parents[1] for e in dev} == {(spider_folder / "database").resolve()}
    assert all(json.loads(line)["split"] in ("train", "dev") for line in texts[0].splitlines())


def test_some_of_the_copies_hold_their_questions_alone(
    spider_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data", str(spider_folder), "--split", "train", "--size", "2", "--copies", "3"]
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 0
    assert "6 rows on 3 copies, 0 on their originals, 8 dev rows" in capsys.readouterr().out
    train = load(tmp_path / "out" / "questions.jsonl", "train")
    copies = {path.resolve() for path in (tmp_path / "out" / "databases").iterdir()}
    assert {e.db_path.resolve() for e in train} == copies


def test_the_questions_that_are_read_are_not_written_over(
    spider_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["--data", str(spider_folder), "--split", "train", "--out", str(out)]) == 0
    file = out / "questions.jsonl"
    before = file.read_bytes()
    assert main(["--data", str(file), "--split", "train", "--out", str(out)]) == 2
    assert "would write over" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_a_damaged_database_is_one_line(
    spider_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = spider_folder / "database" / "music" / "music.sqlite"
    content = path.read_bytes()
    path.write_bytes(content[:100] + b"\xee" * (len(content) - 100))
    arguments = ["--data", str(spider_folder), "--split", "train", "--out", str(tmp_path / "out")]
    assert main(arguments) == 2
    (line,) = [n for n in capsys.readouterr().err.splitlines() if n.startswith("error")]
    assert "music.sqlite" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--data", "nosuch"], "nosuch"),
        (["--data", "pocket", "--split", "train", "--size", "0"], "--size"),
        (["--data", "pocket", "--split", "train", "--copies", "0"], "--copies"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert said in line
