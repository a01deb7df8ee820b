"""The gold gate: what passes, what is set aside and why, and what the cache may say."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import threading
from pathlib import Path

import pytest

from nl2sql_trl import gold
from nl2sql_trl.data import load
from nl2sql_trl.database import GOLD_LIMITS, Limits, execute
from nl2sql_trl.gold import GoldError, GoldResults, data_manifest, gate, hash_file
from nl2sql_trl.records import Example, QueryResult

LOOP = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
SMALL = Limits(seconds=20, steps=1_000_000, rows=3, value_bytes=1_000, result_bytes=2_500)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with a table of five rows."""
    path = tmp_path / "zoo.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE cat (name TEXT, age INT);"
        "INSERT INTO cat VALUES ('a', 1), ('b', 2), ('c', 3), (CAST(x'ff' AS TEXT), 4), (NULL, 5);"
    )
    connection.close()
    return path


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries that the gate and its results really run, as they come."""
    queries: list[str] = []

    def counting(path: Path, query: str, limits: Limits) -> QueryResult:
        queries.append(query)
        return execute(path, query, limits)

    monkeypatch.setattr(gold, "execute", counting)
    return queries


def examples(path: Path, *golds: str) -> list[Example]:
    return [Example(n, "train", "q", text, "zoo", path) for n, text in enumerate(golds)]


def change(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("query", "reason", "detail"),
    [
        ("SELECT nope FROM cat", "not_executable", "no such column: nope"),
        ("SELEC 1", "not_executable", 'near "SELEC": syntax error'),
        ("SELECT 1; SELECT 2", "not_executable", "one statement"),
        ("SELECT 'half \ud800'", "not_executable", "not valid Unicode"),
        ("-- nothing", "not_executable", "empty"),
        ("DELETE FROM cat", "not_allowed", "not authorized"),
        ("PRAGMA user_version = 3", "not_allowed", "not authorized"),
        (LOOP, "timeout", "too much work"),
        ("SELECT hex(zeroblob(900))", "too_big", "too big"),
        ("SELECT zeroblob(900) FROM cat", "too_big", "too large"),
        ("SELECT age FROM cat", "too_many_rows", "more than 3 rows"),
    ],
)
def test_an_unusable_gold_is_dropped_with_its_reason(
    path: Path, query: str, reason: str, detail: str
) -> None:
    good, bad = examples(path, "SELECT 1", query)
    before = hash_file(path)
    checked = gate([good, bad], limits=SMALL)
    assert checked.kept == [good]
    (dropped,) = checked.dropped
    assert (dropped.example, dropped.reason) == (bad, reason)
    assert detail in dropped.detail
    with pytest.raises(GoldError, match="passed the gate"):
        checked.results[path, query]
    assert hash_file(path) == before


def test_a_result_of_exactly_the_row_limit_is_complete_and_kept(path: Path) -> None:
    assert gate(examples(path, "SELECT age FROM cat LIMIT 3"), limits=SMALL).dropped == []


def test_a_gold_that_returns_nothing_is_kept_and_known_to_be_empty(path: Path) -> None:
    query = "SELECT name FROM cat WHERE age > 99"
    checked = gate(examples(path, query))
    assert len(checked.kept) == 1
    assert checked.results.row_count((path, query)) == 0
    assert checked.results[path, query].rows == ()


def test_rows_with_the_same_gold_run_it_once(path: Path, executed: list[str]) -> None:
    checked = gate(examples(path, "SELECT 1", "SELECT 2", "SELECT 1"))
    assert executed == ["SELECT 1", "SELECT 2"]
    assert [e.row for e in checked.kept] == [0, 1, 2]


def test_results_keep_types_nulls_and_stray_bytes_apart(path: Path, tmp_path: Path) -> None:
    query = "SELECT name, age, 1.5, x'00' FROM cat WHERE age > 3"
    gate(examples(path, query), tmp_path / "cache")
    again = gate(examples(path, query), tmp_path / "cache")
    expected = (("\udcff", 4, 1.5, b"\x00"), (None, 5, 1.5, b"\x00"))
    assert again.results[path, query].rows == expected


def test_a_second_start_runs_nothing_until_a_result_is_asked_for(
    path: Path, tmp_path: Path, executed: list[str]
) -> None:
    rows = examples(path, "SELECT 1", "SELECT nope", "SELECT age FROM cat", "SELECT '\ud800'")
    first = gate(rows, tmp_path / "run" / "cache")
    executed.clear()
    second = gate(rows, tmp_path / "run" / "cache")
    assert executed == []
    assert (second.kept, second.dropped) == (first.kept, first.dropped)
    assert second.results.row_count((path, "SELECT age FROM cat")) == 5
    result = second.results[path, "SELECT age FROM cat"]
    assert result == first.results[path, "SELECT age FROM cat"]
    assert second.results[path, "SELECT age FROM cat"] is result
    assert executed == ["SELECT age FROM cat"]


def test_two_splits_share_a_cache(path: Path, tmp_path: Path, executed: list[str]) -> None:
    gate(examples(path, "SELECT 1"), tmp_path / "cache")
    gate(examples(path, "SELECT 2"), tmp_path / "cache")
    gate(examples(path, "SELECT 1", "SELECT 2"), tmp_path / "cache")
    assert executed == ["SELECT 1", "SELECT 2"]


def test_a_changed_database_makes_its_stored_outcomes_void(path: Path, tmp_path: Path) -> None:
    rows = examples(path, "SELECT name FROM cat")
    assert gate(rows, tmp_path / "cache").dropped == []
    change(path, "ALTER TABLE cat RENAME COLUMN name TO title")
    (dropped,) = gate(rows, tmp_path / "cache").dropped
    assert dropped.detail == "no such column: name"


def test_other_limits_make_stored_outcomes_void(path: Path, tmp_path: Path) -> None:
    rows = examples(path, "SELECT name FROM cat")
    assert gate(rows, tmp_path / "cache").dropped == []
    assert len(gate(rows, tmp_path / "cache", SMALL).dropped) == 1
    assert gate(rows, tmp_path / "cache").dropped == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:40],
        lambda content: content[:-1],
        lambda content: content[:-20],
        lambda content: content.replace(b'"rows": 5', b'"rows": 4'),
        lambda content: content + b"{}\n",
        lambda content: b"\xff\xfe" + content,
        lambda content: b"[" * 100_000,
        lambda content: b"null\nnull\n",
    ],
)
def test_a_damaged_cache_is_warned_of_and_built_anew(
    path: Path, tmp_path: Path, executed: list[str], damage: object
) -> None:
    cache, rows = tmp_path / "cache", examples(path, "SELECT age FROM cat")
    gate(rows, cache)
    whole = cache.read_bytes()
    assert callable(damage)
    cache.write_bytes(damage(whole))
    executed.clear()
    with pytest.warns(UserWarning, match=r"gold cache .* is not used"):
        assert gate(rows, cache).kept == rows
    assert executed == ["SELECT age FROM cat"]
    assert cache.read_bytes() == whole


def test_every_line_of_the_cache_is_json(path: Path, tmp_path: Path) -> None:
    gate(examples(path, "SELECT 'a\u2028b'", "SELECT 1\n"), tmp_path / "cache")
    lines = (tmp_path / "cache").read_bytes().splitlines()
    assert len([json.loads(line) for line in lines]) == 4


def test_an_interrupted_gate_keeps_what_it_has_done(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopping(path: Path, query: str, limits: Limits) -> QueryResult:
        if query == "SELECT 2":
            raise KeyboardInterrupt
        return execute(path, query, limits)

    rows = examples(path, "SELECT 1", "SELECT 2")
    monkeypatch.setattr(gold, "execute", stopping)
    with pytest.raises(KeyboardInterrupt):
        gate(rows, tmp_path / "cache")
    ran: list[str] = []

    def recording(path: Path, query: str, limits: Limits) -> QueryResult:
        ran.append(query)
        return execute(path, query, limits)

    monkeypatch.setattr(gold, "execute", recording)
    gate(rows, tmp_path / "cache")
    assert ran == ["SELECT 2"]
    assert [p.name for p in tmp_path.iterdir() if "cache" in p.name] == ["cache"]


def from_cache(path: Path, tmp_path: Path, query: str) -> GoldResults:
    """The results of a gate that ran nothing itself, so that asking runs the query."""
    gate(examples(path, query), tmp_path / "cache")
    return gate(examples(path, query), tmp_path / "cache").results


def test_a_gold_that_no_longer_runs_is_an_error_that_names_the_row(
    path: Path, tmp_path: Path
) -> None:
    results = from_cache(path, tmp_path, "SELECT name FROM cat")
    change(path, "DROP TABLE cat")
    with pytest.raises(GoldError, match=r"train:0 .*no such table: cat"):
        results[path, "SELECT name FROM cat"]


def test_a_gold_that_gives_other_rows_now_is_an_error_that_names_the_row(
    path: Path, tmp_path: Path
) -> None:
    results = from_cache(path, tmp_path, "SELECT name FROM cat")
    change(path, "UPDATE cat SET name = 'z' WHERE age = 1")
    with pytest.raises(GoldError, match=r"train:0 .*other rows"):
        results[path, "SELECT name FROM cat"]


def test_a_database_that_is_gone_is_an_error_that_names_the_row(path: Path, tmp_path: Path) -> None:
    results = from_cache(path, tmp_path, "SELECT name FROM cat")
    path.unlink()
    with pytest.raises(GoldError, match=r"train:0 .*no database file"):
        results[path, "SELECT name FROM cat"]


def test_memory_is_bounded_and_what_was_asked_for_last_stays(
    path: Path, executed: list[str]
) -> None:
    golds = [f"SELECT '{n}' || hex(zeroblob(5000))" for n in range(4)]
    rows = examples(path, *golds)
    results = GoldResults(GOLD_LIMITS, memory_bytes=25_000)
    passed = gold._check(execute(path, golds[0], GOLD_LIMITS))
    for row in rows:
        digest = gold._check(execute(path, row.gold, GOLD_LIMITS)).digest
        results.add(row, dataclasses.replace(passed, digest=digest))
    for n in (0, 1, 0, 2, 0, 1):
        results[path, golds[n]]
    assert executed == [golds[0], golds[1], golds[2], golds[1]]


def test_a_result_larger_than_the_memory_is_given_but_not_kept(
    path: Path, executed: list[str]
) -> None:
    small, large = examples(path, "SELECT 1", "SELECT hex(zeroblob(5000))")
    results = GoldResults(GOLD_LIMITS, memory_bytes=1_000)
    for row in (small, large):
        results.add(row, gold._check(execute(path, row.gold, GOLD_LIMITS)))
    for row in (small, large, large, small):
        assert len(results[path, row.gold].rows) == 1
    assert executed == [small.gold, large.gold, large.gold]


def test_several_threads_may_ask_at_once(path: Path, tmp_path: Path) -> None:
    results = from_cache(path, tmp_path, "SELECT age FROM cat")
    seen: list[int] = []
    threads = [
        threading.Thread(target=lambda: seen.append(len(results[path, "SELECT age FROM cat"].rows)))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [5] * 16


def test_the_manifest_has_bytes_and_hash_of_every_file_in_use(tmp_path: Path) -> None:
    (tmp_path / "database" / "zoo").mkdir(parents=True)
    for name in ("dev.json", "notes.txt", "database/zoo/zoo.sqlite", "database/zoo/schema.sql"):
        (tmp_path / name).write_text("abc")
    sha = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    entry = {"bytes": 3, "sha256": sha}
    assert data_manifest(tmp_path) == {"database/zoo/zoo.sqlite": entry, "dev.json": entry}


def test_the_manifest_of_real_spider_is_the_one_that_came_with_it(shared: Path) -> None:
    manifest = data_manifest(shared / "spider")
    known = json.loads((shared / "spider" / "manifest.json").read_text(encoding="utf-8"))
    for entry in known:
        ours = manifest[f"database/{entry['db_id']}/{entry['db_id']}.sqlite"]
        assert ours == {"bytes": entry["bytes"], "sha256": entry["sha256"]}


def test_all_golds_of_real_spider_dev_pass(shared: Path) -> None:
    rows = load(shared / "spider", "dev")
    assert gate(rows).kept == rows
