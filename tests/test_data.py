"""The readers: what a Spider folder gives, what is wrong with a bad one, and pocket."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from nl2sql_trl.data import DataError, load, pocket_dir, row_key, to_dataset
from nl2sql_trl.database import execute, table_counts
from nl2sql_trl.gold import gate
from nl2sql_trl.records import Prompt
from nl2sql_trl.spider import hardness, schema_from_sqlite

ROW = {"question": "How many cats?", "query": "SELECT count(*) FROM cat", "db_id": "zoo"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound Spider folder with one database and one row a split."""
    folder = tmp_path / "data"
    path = folder / "database" / "zoo" / "zoo.sqlite"
    path.parent.mkdir(parents=True)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE cat (name TEXT)")
    connection.executemany("INSERT INTO cat VALUES (?)", [("x" * 500,)] * 50)
    connection.commit()
    connection.close()
    write(folder, [ROW])
    write(folder, [ROW], "dev.json")
    return folder


def write(folder: Path, rows: Any, name: str = "train_spider.json") -> None:
    (folder / name).write_text(json.dumps(rows), encoding="utf-8")


def complaint(data: Path | str, split: str = "train") -> str:
    with pytest.raises(DataError) as caught:
        load(data, split)
    return str(caught.value)


def test_a_row_becomes_an_example_with_its_position_and_database(folder: Path) -> None:
    write(folder, [ROW, {**ROW, "question": "Count them."}])
    second = load(folder, "train")[1]
    assert (second.row, second.split, second.question) == (1, "train", "Count them.")
    assert (second.gold, second.db_id) == (ROW["query"], "zoo")
    assert second.db_path == folder / "database" / "zoo" / "zoo.sqlite"
    assert row_key(second) == "train:1"


def test_the_full_form_of_a_row_reads_like_the_reduced_one(folder: Path) -> None:
    reduced = load(folder, "train")
    write(folder, [{**ROW, "query_toks": ["SELECT"], "sql": {"from": []}, "question_toks": []}])
    assert load(str(folder), "train") == reduced


def test_a_byte_order_mark_is_accepted(folder: Path) -> None:
    (folder / "dev.json").write_text(json.dumps([ROW]), encoding="utf-8-sig")
    assert len(load(folder, "dev")) == 1


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert f"no data folder {tmp_path / 'nowhere'}" in complaint(tmp_path / "nowhere")


def test_a_file_of_a_folder_in_the_place_of_the_folder_is_told_of(folder: Path) -> None:
    assert "to read a Spider folder, give the folder" in complaint(folder / "dev.json")


def test_fit_and_holdout_are_train_parted_by_database() -> None:
    train, fit, holdout = (load("pocket", split) for split in ("train", "fit", "holdout"))
    assert sorted(fit + holdout, key=lambda e: e.row) == train
    assert {e.db_id for e in holdout} == {"farm_machines"}
    assert not {e.db_id for e in fit} & {e.db_id for e in holdout}


def test_a_part_of_train_without_a_database_is_refused(folder: Path) -> None:
    parts = [complaint(folder, part) for part in ("fit", "holdout") if not has_rows(folder, part)]
    assert len(parts) == 1  # one database is in one of them
    assert "too few train databases" in parts[0]


def has_rows(folder: Path, split: str) -> bool:
    try:
        return bool(load(folder, split))
    except DataError:
        return False


def test_an_unknown_split_is_refused_with_the_known_ones(folder: Path) -> None:
    assert "no split 'test': give one of train, dev" in complaint(folder, "test")


def test_a_missing_json_file_is_named(folder: Path) -> None:
    (folder / "dev.json").unlink()
    assert "dev.json is missing" in complaint(folder, "dev")


def test_a_folder_in_the_place_of_the_json_file_is_an_error(folder: Path) -> None:
    (folder / "dev.json").unlink()
    (folder / "dev.json").mkdir()
    assert "dev.json cannot be read" in complaint(folder, "dev")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "row 0, line 1, column 1"),
        ('[\n{"question": 1},\n{"question": }\n]', "row 1, line 3, column 14"),
        ('[{"a": 1}, {"a": 2}', "row 1, line 1, column 20"),
        ('[{"a": 1}\n{"a": 2}]', "row 0, line 2, column 1"),
        ('[{"a": 1},', "row 1"),
        ('{"a": ', "row 0"),
        ("not json", "row 0, line 1, column 1"),
    ],
)
def test_malformed_json_is_located(folder: Path, text: str, where: str) -> None:
    (folder / "train_spider.json").write_text(text, encoding="utf-8")
    message = complaint(folder)
    assert f"{folder / 'train_spider.json'}: malformed JSON" in message
    assert where in message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[" * 100_000, "cannot be read as JSON"),
        (b"[" + b"9" * 5_000 + b"]", "cannot be read as JSON"),
        (b'[{"question": "caf\xe9"}]', "not UTF-8 (byte 18)"),
        (json.dumps([ROW]).encode("utf-16"), "not UTF-8 (byte 0)"),
    ],
)
def test_a_file_that_no_parser_can_take_is_an_error(
    folder: Path, content: bytes, said: str
) -> None:
    (folder / "train_spider.json").write_bytes(content)
    assert said in complaint(folder)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"rows": []}, "must be a list of rows, not an object"),
        ("rows", "not a string"),
        (None, "not null"),
        (3, "not a number"),
        (True, "not true or false"),
        ([], "holds no rows"),
        ([ROW, "text"], "row 1: a row must be an object, not a string"),
        ([ROW, [ROW]], "row 1: a row must be an object, not a list"),
        ([{"query": "SELECT 1", "db_id": "zoo"}], "row 0: no 'question'"),
        ([ROW, {**ROW, "query": ""}], "row 1: 'query' is empty"),
        ([{**ROW, "question": " \n"}], "row 0: 'question' is empty"),
        ([{**ROW, "query": None}], "row 0: 'query' must be a string, not null"),
        ([{**ROW, "query": ["SELECT"]}], "row 0: 'query' must be a string, not a list"),
        ([{**ROW, "db_id": 7}], "row 0: 'db_id' must be a string, not a number"),
        ([{**ROW, "db_id": ""}], "row 0: 'db_id' is empty"),
        ([{**ROW, "question": "half \ud83d"}], "row 0: 'question' holds half a surrogate"),
    ],
)
def test_a_bad_row_is_named_with_its_fault(folder: Path, rows: Any, said: str) -> None:
    write(folder, rows)
    message = complaint(folder)
    assert said in message
    assert str(folder / "train_spider.json") in message


@pytest.mark.parametrize(
    "db_id", ["../../secret", "..", ".", "/etc/passwd", "a/b", "a\\b", "..\\x", "zoo\0"]
)
def test_a_db_id_cannot_lead_out_of_the_folder(folder: Path, db_id: str) -> None:
    write(folder, [ROW, {**ROW, "db_id": db_id}])
    assert "row 1: db_id" in complaint(folder)


def test_without_database_folder_the_download_is_said_to_be_partial(folder: Path) -> None:
    shutil.rmtree(folder / "database")
    assert "has no database/ folder" in complaint(folder)
    assert "partly downloaded" in complaint(folder)


@pytest.mark.parametrize("db_id", ["nowhere", "n" * 300, "\ud800", "Zo\u00f6"])
def test_an_unknown_db_id_is_named(folder: Path, db_id: str) -> None:
    write(folder, [ROW, {**ROW, "db_id": db_id}])
    message = complaint(folder)
    assert "1 of 2 databases" in message
    assert repr(db_id) in message


def test_of_many_missing_databases_a_few_are_named_and_all_counted(folder: Path) -> None:
    write(folder, [ROW, *({**ROW, "db_id": f"db{n}"} for n in range(40))])
    message = complaint(folder)
    assert "40 of 41 databases" in message
    assert "'db4', ..." in message
    assert "db5" not in message


@pytest.mark.parametrize(
    ("keep", "said"),
    [(0, "is an empty file"), (50, "is not a SQLite database"), (100, "is cut short at 100 of"),
     (4_096, "is cut short at 4,096 of"), (-1, "is cut short at")],
)  # fmt: skip
def test_a_truncated_database_is_named(folder: Path, keep: int, said: str) -> None:
    path = folder / "database" / "zoo" / "zoo.sqlite"
    path.write_bytes(path.read_bytes()[:keep])
    message = complaint(folder)
    assert message.startswith(f"{path} {said}")
    assert "fetch it again" in message


@pytest.mark.parametrize(
    "content", [b"version https://git-lfs.github.com/spec/v1\n" * 4, b"<html>" * 50, bytes(4096)]
)
def test_a_file_that_is_not_sqlite_is_named(folder: Path, content: bytes) -> None:
    path = folder / "database" / "zoo" / "zoo.sqlite"
    path.write_bytes(content)
    assert complaint(folder).startswith(f"{path} is not a SQLite database")


def test_a_page_size_that_cannot_be_is_a_broken_header(folder: Path) -> None:
    path = folder / "database" / "zoo" / "zoo.sqlite"
    content = bytearray(path.read_bytes())
    content[16:18] = (1_000).to_bytes(2, "big")
    path.write_bytes(content)
    assert "broken SQLite header" in complaint(folder)


def test_a_page_count_that_an_old_sqlite_did_not_keep_is_not_trusted(folder: Path) -> None:
    path = folder / "database" / "zoo" / "zoo.sqlite"
    content = bytearray(path.read_bytes())
    content[28:32], content[92:96] = (10_000).to_bytes(4, "big"), bytes(4)
    path.write_bytes(content)
    assert load(folder, "train")
    path.write_bytes(content[:-10])
    assert "inside a page" in complaint(folder)


def test_a_dataset_carries_the_key_on_the_last_user_message_alone(folder: Path) -> None:
    chat = (
        {"role": "system", "content": "schema"},
        {"role": "user", "content": "first"},
        {"role": "user", "content": "second"},
    )
    dataset = to_dataset(load(folder, "dev"), [Prompt(chat, (1, 2), folder)])
    assert dataset.column_names == ["prompt", "row_key", "db_id"]
    assert dataset[0]["row_key"] == "dev:0"
    assert dataset[0]["db_id"] == "zoo"
    assert [m["content"] for m in dataset[0]["prompt"]] == ["schema", "first", "second"]
    assert [m["row_key"] for m in dataset[0]["prompt"]] == ["", "", "dev:0"]


def test_a_dataset_wants_one_prompt_an_example(folder: Path) -> None:
    with pytest.raises(ValueError, match="shorter"):
        to_dataset(load(folder, "dev"), [])


def test_reading_data_loads_neither_torch_nor_datasets() -> None:
    program = (
        "import sys, nl2sql_trl.data, nl2sql_trl.gold, nl2sql_trl.prepare;"
        "print({'torch', 'datasets', 'tqdm'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


def test_pocket_is_built_once_and_whole_by_several_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NL2SQL_TRL_CACHE", str(tmp_path / "cache"))
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(lambda _: pocket_dir(), range(8)))
    (folder,) = folders
    assert list((tmp_path / "cache").iterdir()) == [folder]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert pocket_dir() == folder
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_cache_that_cannot_be_written_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NL2SQL_TRL_CACHE", str(tmp_path / "file" / "cache"))
    assert "set NL2SQL_TRL_CACHE" in complaint("pocket")


def test_pocket_has_enough_databases_and_questions_and_shares_none() -> None:
    train, dev = load("pocket", "train"), load("pocket", "dev")
    train_ids, dev_ids = {e.db_id for e in train}, {e.db_id for e in dev}
    assert len(train_ids) >= 8
    assert len(dev_ids) >= 4
    assert not train_ids & dev_ids
    assert len(train) >= 1_000
    assert len(dev) >= 200


@pytest.mark.parametrize("split", ["train", "dev"])
def test_every_gold_of_pocket_passes_the_gate(split: str) -> None:
    examples = load("pocket", split)
    checked = gate(examples)
    assert checked.kept == examples
    empty = [e for e in examples if not checked.results.row_count((e.db_path, e.gold))]
    assert len(empty) <= 0.03 * len(examples)


@pytest.mark.parametrize("split", ["train", "dev"])
def test_pockets_hardness_is_about_spiders(split: str) -> None:
    examples = load("pocket", split)
    schemas = {e.db_path: schema_from_sqlite(e.db_path) for e in examples}
    levels = Counter(hardness(e.gold, schemas[e.db_path]) for e in examples)
    # Spider dev: https://github.com/taoyds/spider, 248, 446, 174 and 166 of 1,034.
    for level, share in {"easy": 0.24, "medium": 0.43, "hard": 0.17, "extra": 0.16}.items():
        assert levels[level] / len(examples) == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize("split", ["train", "dev"])
def test_pockets_databases_are_small_and_their_foreign_keys_hold(split: str) -> None:
    for path in {e.db_path for e in load("pocket", split)}:
        counts = table_counts(path)
        assert 2 <= len(counts) <= 5
        assert all(counts.values())
        keys = "SELECT count(*) FROM sqlite_master AS m JOIN pragma_foreign_key_list(m.name)"
        connection = sqlite3.connect(path)
        assert connection.execute(keys).fetchone()[0] >= 1
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        connection.close()


def test_pockets_questions_are_what_its_script_writes() -> None:
    script = Path(__file__).resolve().parents[1] / "scripts" / "make_pocket.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("split", "rows"), [("train", 7_000), ("dev", 1_034)])
def test_real_spider_loads(shared: Path, split: str, rows: int) -> None:
    examples = load(shared / "spider", split)
    assert [e.row for e in examples] == list(range(rows))
    assert execute(examples[0].db_path, examples[0].gold).outcome == "ok"
