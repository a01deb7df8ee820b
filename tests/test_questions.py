"""Questions of your own: what a file gives, what is wrong with a bad one, the commands on it."""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from nl2sql_trl import questions
from nl2sql_trl.data import DataError, load
from nl2sql_trl.evaluation import evaluate, measure
from nl2sql_trl.gold import data_manifest, hash_file
from nl2sql_trl.launch import start_run
from nl2sql_trl.policy import ByteTokenizer, ScriptedPolicy
from nl2sql_trl.prepare import main as prepare
from nl2sql_trl.prompts import Codec, answer_text
from nl2sql_trl.results import setup_for
from nl2sql_trl.suite.__main__ import main as suite
from nl2sql_trl.task import make_task

TOYS = """CREATE TABLE maker (id INTEGER PRIMARY KEY, town TEXT);
CREATE TABLE toy (id INTEGER PRIMARY KEY, name TEXT, price REAL, maker_id INT REFERENCES maker(id));
INSERT INTO maker VALUES (1, 'Oslo'), (2, 'Bergen');
INSERT INTO toy VALUES (1, 'kite', 9.5, 1), (2, 'boat', 20, 1), (3, 'drum', 5, 2);"""
ROWS = [
    ("How many toys are there?", "SELECT count(*) FROM toy"),
    ("What do the toys cost?", "SELECT name, price FROM toy"),
    ("Which toys cost less than 10?", "SELECT name FROM toy WHERE price < 10"),
    ("Where are the makers?", "SELECT town FROM maker"),
    ("What is made in Oslo?", "SELECT name FROM toy JOIN maker ON maker_id = maker.id "
                              "WHERE town = 'Oslo'"),
    ("What is the dearest toy?", "SELECT name FROM toy ORDER BY price DESC LIMIT 1"),
]  # fmt: skip


def database(path: Path, script: str = TOYS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one database and nothing else."""
    database(tmp_path / "toys.sqlite")
    return tmp_path


def rows(**more: str) -> list[dict[str, str]]:
    return [{"question": question, "query": query, **more} for question, query in ROWS]


def write(folder: Path, records: list[Any], name: str = "own.csv") -> Path:
    """The records as the kind of file that the name says."""
    file = folder / name
    if file.suffix == ".csv":
        with file.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, list(records[0]), restval="")
            writer.writeheader()
            writer.writerows(records)
    elif file.suffix == ".json":
        file.write_text(json.dumps(records), encoding="utf-8")
    else:
        file.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return file


def complaint(file: Path, split: str = "train") -> str:
    with pytest.raises(DataError) as caught:
        load(file, split)
    return str(caught.value)


@pytest.mark.parametrize("name", ["own.csv", "own.json", "own.jsonl", "OWN.CSV"])
def test_each_kind_of_file_gives_the_same_examples(folder: Path, name: str) -> None:
    records = rows(database="toys.sqlite", note="ignored")
    if name == "OWN.CSV":
        file = write(folder, records, "own.csv").rename(folder / name)
    else:
        file = write(folder, records, name)
    train, dev = load(file, "train"), load(str(file), "dev")
    assert [(e.row, e.question, e.gold) for e in train] == [
        (n, *ROWS[n]) for n in range(len(ROWS)) if n != 4
    ]
    assert [(e.row, e.split, e.question) for e in dev] == [(4, "dev", ROWS[4][0])]
    assert {(e.db_id, e.db_path) for e in train + dev} == {("toys", folder / "toys.sqlite")}


def test_a_split_column_decides_and_a_file_without_one_says_its_rule_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(folder, rows())
    for split in ("train", "dev", "train"):
        load(file, split)
    said = capsys.readouterr()
    assert said.out == "own.csv has no split column: every 5th row is dev (5 train, 1 dev)\n"
    assert said.err == ""
    file = write(
        folder, [{**r, "split": "dev" if n < 2 else "train"} for n, r in enumerate(rows())]
    )
    assert [e.row for e in load(file, "dev")] == [0, 1]
    assert [e.row for e in load(file, "train")] == [2, 3, 4, 5]
    assert capsys.readouterr().out == ""


def test_holdout_and_fit_part_the_train_rows_by_database(folder: Path) -> None:
    for n in range(20):
        database(folder / f"d{n}.db")
    file = write(
        folder, [{**rows()[0], "database": f"d{n}.db", "split": "train"} for n in range(20)]
    )
    fit, holdout = load(file, "fit"), load(file, "holdout")
    assert fit
    assert holdout
    assert sorted(e.row for e in fit + holdout) == list(range(20))
    assert "too few train databases" in complaint(write(folder, rows(database="d0.db")), "holdout")


def test_a_csv_file_keeps_commas_quotes_and_line_ends_of_its_fields(folder: Path) -> None:
    question, query = 'Say "both",\r\nplease', "SELECT 'a, \"b\"',\n 1"
    text = '\ufeffquery, question\r\n\r\n"{}", "{}"\r\n,\r\n'
    body = text.format(*(field.replace('"', '""') for field in (query, question)))
    file = folder / "own.csv"
    file.write_bytes((body + '"SELECT 2",Two?').encode())
    first, second = questions.read(file)
    assert (first.question, first.gold) == (question, query)
    assert (second.row, second.question, second.gold) == (1, "Two?", "SELECT 2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("question;query\nHow many?;SELECT 1\n", "line 1, column 1: one column, 'question;query': "
         "columns must be separated by commas, not by ';'"),
        ("question\tquery\n", "not by '\\t'"),
        ("question,query\nHow many?,SELECT a, b\n", "line 2, column 3: 3 fields, but the header "
         "has 2: put a field that holds a comma between double quotes"),
        ("question,query\n\nHow many?\n", "line 3, column 2: no 'query': 1 fields"),
        ('question,query\na,"SELECT 1"\nb,"SELECT 2\nc,d\n', "line 3: the row that begins here is "
         "not CSV (unexpected end of data)"),
        ('question,query\na,"SELECT "x" FROM y"\n', "line 2: the row that begins here is not CSV"),
        ("question,query,query\n", "line 1, column 3: a second column 'query'"),
        ("Question,sql\na,b\n", "header: no 'question' (is it 'Question'?): a row needs question "
         "and query, and may have database and split; here is 'Question', 'sql'"),
        ("question,gold\na,b\n", "header: no 'query': "),
        ("", "header: no 'question': a row needs question and query, and may have database and "
         "split; here is nothing"),
        ("question,query\n", "holds no rows"),
        ("question,query\n,SELECT 1\n", "line 2: 'question' is empty"),
        ('question,query\na,"SELECT\n1"\nb,""\n', "line 4: 'query' is empty"),
        ("question,query,split\na,b,test\n", "line 2: split 'test': give train or dev in every "
         "row, or in none"),
        ("question,query,split\na,b,dev\nc,d,\n", "line 3: no split: give train or dev"),
    ],
)  # fmt: skip
def test_a_bad_csv_file_is_located(folder: Path, text: str, said: str) -> None:
    (folder / "own.csv").write_text(text, encoding="utf-8", newline="")
    message = complaint(folder / "own.csv")
    assert message.startswith(str(folder / "own.csv"))
    assert said in message


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("own.json", '[{"question": "a", "query": "b"}, {"question": ]', "malformed JSON in row 1"),
        ("own.json", '{"question": "a", "query": "b"}', "must be a list of rows, not an object"),
        ("own.json", '[{"question": "a", "sql": "b"}]', "row 0: no 'query'"),
        ("own.json", '[{"question": "a", "query": 7}]', "row 0: 'query' must be a string"),
        ("own.json", '[{"question": "a", "query": null}]', "row 0: 'query' must be a string"),
        ("own.json", '[{"question": "a", "query": "b", "database": 1}]', "'database' must be a"),
        ("own.json", '[{"question": "a", "query": "b", "split": 1}]', "row 0: split 1: give train"),
        ("own.json", '[{"question": "\\ud83d", "query": "b"}]', "half a surrogate pair"),
        ("own.json", "[]", "holds no rows"),
        (
            "own.jsonl",
            '{"question": "a", "query": "b"}\n\n{"question": }\n',
            "line 3, column 14: no",
        ),
        ("own.jsonl", "[1]\n", "line 1: a row must be an object, not a list"),
        ("own.jsonl", "[" * 100_000, "line 1 cannot be read as JSON"),
        ("own.jsonl", '{"question": "", "query": "b"}', "line 1: 'question' is empty"),
    ],
)
def test_a_bad_json_file_is_located(folder: Path, name: str, text: str, said: str) -> None:
    (folder / name).write_text(text, encoding="utf-8")
    assert said in complaint(folder / name)


@pytest.mark.parametrize("name", ["own.csv", "own.jsonl"])
def test_a_file_that_is_not_utf_8_or_not_there_is_named(folder: Path, name: str) -> None:
    assert f"no questions file {folder / name}" in complaint(folder / name)
    (folder / name).write_bytes("question,query\ncafé,1\n".encode("utf-16"))
    assert f"{folder / name} is not UTF-8 (byte 0)" in complaint(folder / name)


def test_without_a_database_column_the_file_of_the_same_name_is_meant_else_the_only_one(
    folder: Path,
) -> None:
    file = write(folder, rows())
    assert load(file, "train")[0].db_path == folder / "toys.sqlite"
    database(folder / "own.db")
    assert load(file, "train")[0].db_path == folder / "own.db"
    other = write(folder, rows(), "other.csv")
    assert (
        "line 2: no database, and not one SQLite file beside other.csv but there are own.db, "
        "toys.sqlite: name one in a database column"
    ) in complaint(other)
    (folder / "empty").mkdir()
    assert "but there is none" in complaint(write(folder / "empty", rows()))


def test_a_row_may_leave_its_database_out_where_others_name_one(folder: Path) -> None:
    database(folder / "more" / "deep.sqlite3")
    records = [{**r, "database": "more/deep.sqlite3" if n else ""} for n, r in enumerate(rows())]
    assert [e.db_id for e in questions.read(write(folder, records))] == ["toys"] + ["deep"] * 5
    absolute = rows(database=str(folder / "toys.sqlite"))
    assert questions.read(write(folder, absolute))[0].db_path == folder / "toys.sqlite"


def test_a_database_that_is_not_there_is_named_with_its_row_and_a_near_name(folder: Path) -> None:
    records = [{**r, "database": "toy.sqlite" if n == 3 else ""} for n, r in enumerate(rows())]
    assert (
        "own.csv, line 5: there is no database 'toy.sqlite': did you mean 'toys.sqlite'?"
    ) in complaint(write(folder, records))
    assert "its path is relative to this file" in complaint(write(folder, rows(database="a/b.db")))
    assert "no database 'x\\x00y'" in complaint(write(folder, rows(database="x\0y"), "own.json"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is an empty file"),
        (b"name,price\nkite,9.5\n" * 100, "is not a SQLite database"),
        (None, "is cut short at 6,000 of"),
    ],
)
def test_a_damaged_database_is_an_error(folder: Path, content: bytes | None, said: str) -> None:
    path = folder / "toys.sqlite"
    path.write_bytes(path.read_bytes()[:6000] if content is None else content)
    message = complaint(write(folder, rows()))
    assert f"{path} {said}" in message


def test_a_database_with_changes_that_are_not_in_its_file_yet_is_refused(folder: Path) -> None:
    writer = sqlite3.connect(folder / "toys.sqlite", isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("INSERT INTO toy VALUES (4, 'ball', 3, 2)")
    file = write(folder, rows())
    assert "toys.sqlite-wal beside" in complaint(file)
    writer.close()  # SQLite writes the log back
    assert len(load(file, "train")) == 5


def test_files_of_one_name_in_two_folders_get_names_of_their_own(tmp_path: Path) -> None:
    for place in ("north", "south", "east/south"):
        database(tmp_path / place / "shop.db")
    database(tmp_path / "pets.db")
    named = ["north/shop.db", "south/shop.db", "east/south/shop.db", "pets.db", "./north/shop.db"]
    records = [{**rows()[0], "database": name} for name in named]
    read = questions.read(write(tmp_path, records))
    assert [e.db_id for e in read] == [
        "north-shop", f"{tmp_path.name}-south-shop", "east-south-shop", "pets", "north-shop",
    ]  # fmt: skip
    assert read[4].db_path == read[0].db_path
    database(tmp_path / "pets.sqlite")
    records.append({**rows()[0], "database": "pets.sqlite"})
    assert "cannot be told apart by name: rename one" in complaint(write(tmp_path, records))


def test_a_question_on_both_sides_of_the_split_is_a_warning_on_standard_error(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [{**r, "split": "dev" if n > 3 else "train"} for n, r in enumerate(rows())]
    records[5]["question"] = "how many  TOYS are there?"
    file = write(folder, records)
    assert len(load(file, "train")) == 4
    assert len(load(file, "dev")) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "train and in dev (1), 'How many toys are there?' for one (rows 0 and 5)" in said.err


def test_a_split_without_rows_is_an_error(folder: Path) -> None:
    assert "own.csv has no dev rows: give some rows 'dev'" in complaint(
        write(folder, rows()[:4]), "dev"
    )
    assert "has no train rows" in complaint(write(folder, rows(split="dev")))


def test_the_manifest_hashes_the_questions_and_the_databases(folder: Path) -> None:
    database(folder / "else" / "more.db")
    database(folder / "unused.db")
    records = [
        {**r, "database": "../else/more.db" if n else "../toys.sqlite"}
        for n, r in enumerate(rows())
    ]
    (folder / "sub").mkdir()
    found = data_manifest(write(folder / "sub", records))
    assert set(found) == {"own.csv", "../toys.sqlite", "../else/more.db"}
    assert found["../toys.sqlite"]["sha256"] == hash_file(folder / "toys.sqlite")


def test_a_run_on_own_questions_writes_their_hashes(folder: Path) -> None:
    from trl import GRPOConfig

    file = write(folder, rows())
    task = make_task(file, "train", Codec(ByteTokenizer()))
    config = GRPOConfig(output_dir=str(folder / "run"), use_cpu=True, report_to="none", bf16=False)
    start_run(folder / "run", config, task, (), {})
    data = json.loads((folder / "run" / "manifest.json").read_text())["data"]
    assert (data["name"], data["rows"]) == (str(file), 5)
    assert set(data["files"]) == {"own.csv", "toys.sqlite"}


def test_the_gold_report_names_a_broken_gold(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = rows()
    records[1]["query"] = "SELECT nme FROM toy"
    file = write(folder, records)
    assert prepare(["--data", str(file), "--out", str(folder / "report.json")]) == 0
    said = capsys.readouterr().out
    assert "train: 4 of 5 golds run" in said
    assert "dropped row 1 (toys): not_executable: no such column: nme" in said
    assert "dev: 1 of 1 golds run" in said
    assert said.count("no split column") == 1


def test_golds_are_right_by_every_official_metric_and_there_is_no_test_suite(folder: Path) -> None:
    codec = Codec(ByteTokenizer())
    task = make_task(write(folder, rows()), "train", codec)
    database(folder / "neighbour.sqlite")  # beside it, and no part of a suite
    scripts = [[answer_text(e.gold)] for e in task.examples.values()]
    found, read, _ = measure(evaluate(task, ScriptedPolicy(scripts, codec), progress=False))
    assert {m: e["all"]["mean"] for m, e in found["metrics"].items()} == dict.fromkeys(
        found["metrics"], 1.0
    )
    assert found["suite"] == {"files": 1}
    assert {row["hardness"] for row in read} == {"easy", "medium"}
    schema = setup_for(task).evaluator("official").schema("toys")
    assert schema.tables["maker"] == ("id", "town")
    assert schema.foreign_keys == {
        "__maker.id__": "__maker.id__",
        "__toy.maker_id__": "__maker.id__",
    }


def test_a_suite_built_for_own_questions_is_scored_on_and_rewarded_on(folder: Path) -> None:
    file = write(folder, rows())
    shutil.move(folder / "toys.sqlite", folder / "toys.db")
    suite(["--data", str(file), "--out", str(folder / "suite"), "--size", "4"])
    made = sorted(path.name for path in (folder / "suite" / "toys").iterdir())
    assert made[:2] == ["toys.sqlite", "toys_suite_000.sqlite"]
    codec = Codec(ByteTokenizer())
    task = make_task(file, "train", codec, suite=folder / "suite")
    # Right on the base alone, where three toys are counted.
    scripts = [[answer_text(e.gold)] for e in task.examples.values()]
    scripts[0] = [answer_text("SELECT 3")]
    done = evaluate(task, ScriptedPolicy(scripts, codec), progress=False)
    assert [v.reason for v in done.verdicts[:2]] == ["wrong_on_suite", "correct"]
    found, _, _ = measure(done, setup=setup_for(task, folder / "suite"))
    assert found["suite"]["files"] == len(made)
    assert found["metrics"]["testsuite_exec"]["all"]["mean"] == 0.8


@pytest.mark.parametrize(
    "flags", [[], ["--db", "d"], ["--gold", "g"], ["--db", "d", "--gold", "g", "--data", "x.csv"]]
)
def test_the_suite_takes_a_questions_file_or_a_folder_with_golds(flags: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        suite([*flags, "--out", "nowhere"])
    assert caught.value.code == 2
