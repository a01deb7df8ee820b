"""The SQL tool's engine: nothing but reads, within limits, on files that never change."""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hostile import SMALL as SCHEMA

from nl2sql_trl import sandbox
from nl2sql_trl.database import DatabaseError, Limits, connect, ddl, execute, table_counts

COUNT_UP = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "


def make(path: Path, script: str = SCHEMA) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript("PRAGMA synchronous = OFF;" + script)
    connection.close()
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Path]:
    """A small database; after every test its bytes and its folder must be as they were."""
    folder = tmp_path / "data"
    folder.mkdir()
    path = make(folder / "music.sqlite")
    before = digest(path)
    yield path
    assert digest(path) == before
    assert os.listdir(folder) == ["music.sqlite"]


def works(path: Path) -> bool:
    result = execute(path, "SELECT name FROM singer ORDER BY id")
    return result.outcome == "ok" and result.rows == (("Ann",), ("Bo",), ("Cy",))


# Reads


@pytest.mark.parametrize(
    ("query", "columns", "rows"),
    [
        ("SELECT name FROM singer WHERE age > 20", ("name",), (("Ann",),)),
        ("select count(*) from adult;", ("count(*)",), ((1,),)),
        ("SELECT 1; -- done", ("1",), ((1,),)),
        ("/* first */ SELECT 1", ("1",), ((1,),)),
        ("VALUES (1, 'a')", ("column1", "column2"), ((1, "a"),)),
        ("SELECT name FROM singer WHERE 0", ("name",), ()),
        ("SELECT id, id, name AS id FROM singer LIMIT 1", ("id", "id", "id"), ((1, 1, "Ann"),)),
        ("SELECT 1 AS ''", ("",), ((1,),)),
        ("SELECT 1 AS 'é ☃ 😀'", ("é ☃ 😀",), ((1,),)),
        ('SELECT "nosuch" FROM singer LIMIT 1', ('"nosuch"',), (("nosuch",),)),
        ("WITH a AS (SELECT 2 AS b) SELECT b FROM a", ("b",), ((2,),)),
        ("SELECT rank() OVER (ORDER BY id) AS r FROM singer LIMIT 1", ("r",), ((1,),)),
        ("SELECT ';' AS s", ("s",), ((";",),)),
        ("SELECT NULL, 1.5, x'00ff'", ("NULL", "1.5", "x'00ff'"), ((None, 1.5, b"\x00\xff"),)),
        ("SELECT 1e999 AS a, -1e999 AS b", ("a", "b"), ((float("inf"), float("-inf")),)),
        ("SELECT 9223372036854775807 AS a", ("a",), ((2**63 - 1,),)),
    ],
)
def test_a_read_returns_its_columns_and_rows(
    db: Path, query: str, columns: tuple[str, ...], rows: tuple[tuple[object, ...], ...]
) -> None:
    result = execute(db, query)
    assert (result.outcome, result.columns, result.rows) == ("ok", columns, rows)
    assert result.complete


def test_a_result_names_the_tables_and_columns_that_were_read(tmp_path: Path) -> None:
    path = make(tmp_path / "r.sqlite", "CREATE TABLE T (A, b); CREATE VIEW v AS SELECT A FROM T;")
    kept = [
        execute(path, query).reads
        for query in ("SELECT a FROM t", "SELECT 1", "SELECT b, A FROM T")
    ]
    assert kept == [{("t", ""), ("t", "a")}, set(), {("t", ""), ("t", "a"), ("t", "b")}]
    assert execute(path, "SELECT a FROM v").reads == {("v", ""), ("v", "a"), ("t", ""), ("t", "a")}
    assert execute(path, "SELECT c FROM t").reads == set()


def test_text_that_is_not_utf8_is_returned_without_loss(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.sqlite",
        "CREATE TABLE t(a); INSERT INTO t VALUES (CAST(x'6361e9ff' AS TEXT));",
    )
    ((text,),) = execute(path, "SELECT a FROM t").rows
    assert isinstance(text, str)
    assert text.encode("utf-8", "surrogateescape") == b"ca\xe9\xff"


def test_different_broken_bytes_stay_different(db: Path) -> None:
    result = execute(db, "SELECT CAST(x'ff' AS TEXT), CAST(x'fe' AS TEXT)")
    assert result.rows[0][0] != result.rows[0][1]


def test_text_with_a_nul_character_in_a_cell_is_returned_whole(db: Path) -> None:
    assert execute(db, "SELECT CAST(x'610062' AS TEXT)").rows == (("a\x00b",),)


# Everything else is closed

CLOSED = [
    "ATTACH '{other}' AS o",
    "ATTACH '{new}' AS o",
    "ATTACH 'file:{new}?mode=rwc' AS o",
    "ATTACH ':memory:' AS o",
    "DETACH main",
    "PRAGMA table_info(singer)",
    "PRAGMA user_version",
    "PRAGMA user_version = 7",
    "PRAGMA database_list",
    "PRAGMA writable_schema = 1",
    "PRAGMA journal_mode = WAL",
    "PRAGMA query_only = 0",
    "PRAGMA nosuch_pragma",
    "SELECT * FROM pragma_table_info('singer')",
    "SELECT * FROM pragma_database_list",
    "SELECT * FROM pragma_database_list()",
    "SELECT (SELECT file FROM pragma_database_list)",
    "VACUUM",
    "VACUUM INTO '{new}'",
    "SELECT load_extension('{other}')",
    "SELECT Load_Extension('x', 'y')",
    "SELECT fts3_tokenizer('simple')",
    "SELECT readfile('/etc/hostname')",
    "SELECT writefile('{new}', 'x')",
    "SELECT edit('x')",
    "CREATE TABLE n (a)",
    "CREATE TEMP TABLE n (a)",
    "CREATE TEMP VIEW n AS SELECT 1",
    "CREATE TABLE n AS SELECT * FROM singer",
    "CREATE VIRTUAL TABLE n USING fts5(a)",
    "CREATE TRIGGER n AFTER INSERT ON singer BEGIN SELECT 1; END",
    "CREATE INDEX n ON singer(name)",
    "DROP TABLE singer",
    "DROP VIEW adult",
    "ALTER TABLE singer RENAME TO s",
    "ALTER TABLE singer ADD COLUMN x",
    "INSERT INTO singer VALUES (9, 'x', 1)",
    "INSERT INTO singer SELECT * FROM singer RETURNING id",
    "WITH a AS (SELECT 1) INSERT INTO singer(id) SELECT 9",
    "REPLACE INTO singer VALUES (1, 'x', 1)",
    "UPDATE singer SET age = 1",
    "UPDATE sqlite_master SET sql = ''",
    "INSERT INTO sqlite_master VALUES ('table', 'x', 'x', 0, '')",
    "DELETE FROM singer",
    "DELETE FROM singer WHERE 0",
    "EXPLAIN DELETE FROM singer",
    "BEGIN",
    "BEGIN EXCLUSIVE",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT s",
    "RELEASE s",
    "ANALYZE",
    "REINDEX",
]


@pytest.mark.parametrize("query", CLOSED)
def test_anything_but_a_read_is_refused_and_leaves_no_trace(
    db: Path, tmp_path: Path, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    other = make(
        tmp_path / "other.sqlite", "CREATE TABLE secret(a); INSERT INTO secret VALUES (42);"
    )
    before = digest(other)
    result = execute(db, query.format(other=other, new=tmp_path / "new.sqlite"))
    assert result.outcome in ("denied", "error")
    assert result.rows == ()
    assert result.error
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "here", "other.sqlite"]
    assert not list(here.iterdir())
    assert digest(other) == before
    assert works(db)


def test_a_denied_action_is_told_apart_from_a_mistake(db: Path) -> None:
    assert execute(db, "ATTACH 'x' AS y").outcome == "denied"
    assert execute(db, "PRAGMA table_info(singer)").outcome == "denied"
    assert execute(db, "DELETE FROM singer").outcome == "denied"
    assert execute(db, "SELECT nosuch FROM singer").outcome == "error"


@pytest.mark.parametrize("name", ["not authorized", "too big", "string or blob too big"])
def test_a_name_that_reads_like_another_error_is_a_mistake_all_the_same(
    db: Path, name: str
) -> None:
    assert execute(db, f"SELECT singer.[{name}] FROM singer").outcome == "error"


def test_sqlite_speaks_for_itself_in_an_error(db: Path) -> None:
    assert execute(db, "SELECT nosuch FROM singer").error == "no such column: nosuch"
    assert execute(db, "SELEC 1").error == 'near "SELEC": syntax error'


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE singer",
        "SELECT 1;; SELECT 2",
        "; SELECT 1; SELECT",
    ],
)
def test_a_second_statement_is_refused(db: Path, query: str) -> None:
    result = execute(db, query)
    assert result.outcome == "error"
    assert works(db)


@pytest.mark.parametrize(
    "query", ["", "   ", "\n", ";", "-- nothing", "/* nothing */", "/*", "\ufeff"]
)
def test_a_query_with_no_statement_is_an_error_and_not_an_empty_result(
    db: Path, query: str
) -> None:
    result = execute(db, query)
    assert result.outcome == "error"
    assert result.error


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1\x00",
        "\x00",
        "SELECT '\ud800'",
        "\udfff",
        "SELECT 1 -- \x00 ; DROP",
    ],
)
def test_text_that_sqlite_cannot_be_given_is_an_error(db: Path, query: str) -> None:
    result = execute(db, query)
    assert result.outcome == "error"
    result.error.encode()  # the model is shown it


@pytest.mark.parametrize("query", ["SELECT ?", "SELECT :a", "SELECT @a, $b", "SELECT ?1"])
def test_a_query_with_parameters_is_an_error(db: Path, query: str) -> None:
    assert execute(db, query).outcome == "error"


# Limits

SMALL = Limits(seconds=30.0, steps=200_000, rows=50, value_bytes=10_000, result_bytes=40_000)

HEAVY = [
    (COUNT_UP + "SELECT count(*) FROM c", "timeout"),
    (COUNT_UP + "SELECT max(x) FROM c WHERE x < 0", "timeout"),
    (COUNT_UP + "SELECT x FROM c WHERE x < 0", "timeout"),
    (COUNT_UP + "SELECT x FROM c ORDER BY x DESC LIMIT 1", "timeout"),
    ("SELECT count(*) FROM " + ", ".join(f"singer s{i}" for i in range(20)), "timeout"),
    ("SELECT zeroblob(10001)", "too_big"),
    ("SELECT hex(zeroblob(200000000))", "too_big"),
    ("SELECT length(hex(zeroblob(9000)))", "too_big"),
    ("SELECT replace(hex(zeroblob(4000)), '0', 'xxxxx')", "too_big"),
    ("SELECT hex(zeroblob(4000)) || hex(zeroblob(4000))", "too_big"),
    (COUNT_UP + "SELECT group_concat(x) FROM (SELECT x FROM c LIMIT 5000)", "too_big"),
    (COUNT_UP + "SELECT hex(zeroblob(2000)) FROM c", "too_big"),
    ("SELECT " + "(" * 3000 + "1" + ")" * 3000, "error"),
    ("SELECT " + "(SELECT " * 300 + "1" + ")" * 300, "error"),
    ("SELECT " + "+".join("1" * 5000), "error"),
    ("SELECT " + "NOT " * 5000 + "1", "error"),
    ("SELECT " + ", ".join("1" * 3000), "error"),
    (" UNION ALL ".join(["SELECT 1"] * 1000), "error"),
    ("SELECT * FROM " + ", ".join(f"singer s{i}" for i in range(70)), "error"),
    ("SELECT 1 -- " + "x" * 200_000, "error"),
    ("SELECT '" + "x" * 200_000 + "'", "error"),
    ("SELECT '" + "é" * 60_000 + "'", "error"),
    ("SELECT max(" + ", ".join("1" * 500) + ")", "error"),
    ("SELECT abs(-9223372036854775808)", "error"),
    ("SELECT 'a' LIKE '" + "%a" * 1000 + "'", "error"),
]


@pytest.mark.parametrize(("query", "outcome"), HEAVY, ids=range(len(HEAVY)))
def test_a_query_beyond_a_limit_ends_and_the_next_one_works(
    db: Path, query: str, outcome: str
) -> None:
    result = execute(db, query, SMALL)
    assert (result.outcome, result.rows) == (outcome, ())
    assert result.error
    assert works(db)


def test_limits_hold_in_parallel_threads_and_each_thread_goes_on(db: Path) -> None:
    def both(n: int) -> bool:
        query, outcome = HEAVY[n % len(HEAVY)]
        return execute(db, query, SMALL).outcome == outcome and works(db)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(both, range(4 * len(HEAVY))))


def test_the_clock_stops_a_query_that_its_steps_would_allow(db: Path) -> None:
    limits = Limits(seconds=0.02, steps=10**12)
    result = execute(db, COUNT_UP + "SELECT count(*) FROM c", limits)
    assert (result.outcome, result.error) == ("timeout", "the query ran too long and was stopped")


def test_the_same_heavy_query_is_stopped_by_its_steps_every_time(db: Path) -> None:
    results = {execute(db, COUNT_UP + "SELECT count(*) FROM c", SMALL) for _ in range(5)}
    assert {r.error for r in results} == {"the query did too much work and was stopped"}


@pytest.mark.parametrize(
    "query",
    [
        "SELECT printf('%2000000d', 1)",
        "SELECT printf('%.2000000f', 1.5)",
        "SELECT printf('%.*c', 20000, 'x')",
        "SELECT printf('%s%s', hex(zeroblob(4000)), hex(zeroblob(4000)))",
    ],
)
def test_printf_cannot_make_a_value_beyond_the_limit(db: Path, query: str) -> None:
    result = execute(db, query, SMALL)  # this SQLite gives NULL, others an error
    assert result.outcome == "too_big" or result.rows == ((None,),)


def test_a_stored_value_beyond_the_limit_is_too_big_and_others_can_be_read(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.sqlite",
        "CREATE TABLE t(a, b); INSERT INTO t VALUES (1, hex(zeroblob(50000))), (2, 'short');",
    )
    assert execute(path, "SELECT b FROM t", SMALL).outcome == "too_big"
    assert execute(path, "SELECT b FROM t WHERE a = 2", SMALL).rows == (("short",),)


@pytest.mark.parametrize(
    ("there", "returned", "complete"),
    [(0, 0, True), (49, 49, True), (50, 50, True), (51, 50, False), (10**9, 50, False)],
)
def test_the_row_cap_keeps_the_first_rows_and_says_so(
    db: Path, there: int, returned: int, complete: bool
) -> None:
    result = execute(db, COUNT_UP + f"SELECT x FROM c LIMIT {there}", SMALL)
    assert result.outcome == "ok"
    assert result.rows == tuple((n + 1,) for n in range(returned))
    assert result.complete is complete


def test_the_bytes_of_all_rows_together_are_limited(db: Path) -> None:
    def of(count: int) -> str:
        return execute(db, COUNT_UP + f"SELECT zeroblob(8000) FROM c LIMIT {count}", SMALL).outcome

    assert (of(5), of(6)) == ("ok", "too_big")


def test_json_and_full_text_functions_do_not_raise(db: Path) -> None:
    for query in ("SELECT * FROM json_each('[1]')", "SELECT json('{')", "SELECT * FROM dbstat"):
        assert execute(db, query).outcome in ("ok", "error", "denied")
    assert works(db)


# Files


@pytest.mark.parametrize(
    "folder",
    [
        "two words",
        "it's",
        'a"b',
        "what?",
        "a?mode=rw",
        "#1",
        "100%",
        "%41",
        "a&b=c",
        "é☃😀",
        "a;b",
        "...",
    ],
)
def test_any_folder_name_can_hold_a_database(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    path = make(tmp_path / folder / "music.sqlite")
    before = digest(path)
    assert works(path)
    assert execute(path, "DELETE FROM singer").outcome == "denied"
    assert list(table_counts(path)) == ["concert", "singer"]
    assert digest(path) == before
    assert sorted(p.name for p in tmp_path.rglob("*")) == sorted([folder, "music.sqlite"])


def test_a_relative_path_works(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(db.parent)
    assert works(Path(db.name))


def test_a_read_only_file_in_a_read_only_folder_works(db: Path) -> None:
    db.chmod(0o444)
    db.parent.chmod(0o555)
    try:
        assert works(db)
    finally:
        db.parent.chmod(0o755)


def test_a_database_in_write_ahead_mode_is_read_without_files_beside_it(tmp_path: Path) -> None:
    path = make(tmp_path / "music.sqlite", "PRAGMA journal_mode = WAL;" + SCHEMA)
    assert works(path)
    assert list(table_counts(path)) == ["concert", "singer"]
    connection = connect(path)
    assert connection.execute("SELECT count(*) FROM singer").fetchone() == (3,)
    assert os.listdir(tmp_path) == ["music.sqlite"]
    connection.close()


def test_another_process_that_locks_the_file_holds_up_nobody(db: Path) -> None:
    other = sqlite3.connect(db, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        assert works(db)
    finally:
        other.close()


def test_even_without_the_authorizer_a_connection_cannot_write(db: Path) -> None:
    connection = connect(db)
    try:
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            connection.execute("DELETE FROM singer")
    finally:
        connection.close()


@pytest.mark.parametrize("query", [*CLOSED, *(q for q, _ in HEAVY), "SELECT nosuch", "SELEC", "'"])
def test_no_error_shows_where_the_file_is(tmp_path: Path, query: str) -> None:
    folder = tmp_path / "hidden_place"
    folder.mkdir()
    path = make(folder / "music.sqlite")
    error = execute(path, query.replace("{new}", "n").replace("{other}", "o"), SMALL).error
    assert error
    assert "hidden_place" not in error
    assert str(tmp_path) not in error


def test_no_error_about_a_broken_file_shows_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "music.sqlite"
    path.write_bytes(b"garbage " * 1000)
    result = execute(path, "SELECT 1 FROM singer")
    assert result.outcome == "error"
    assert str(tmp_path) not in result.error


@pytest.mark.parametrize("call", [ddl, table_counts, connect, lambda p: execute(p, "SELECT 1")])
@pytest.mark.parametrize("name", ["nosuch.sqlite", "nosuch/music.sqlite", "."])
def test_a_missing_file_raises_an_error_that_names_it_and_creates_nothing(
    tmp_path: Path, call: object, name: str
) -> None:
    assert callable(call)
    with pytest.raises(DatabaseError, match="no database file at") as caught:
        call(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("call", [ddl, table_counts, connect, lambda p: execute(p, "SELECT 1")])
def test_a_file_that_cannot_be_opened_raises_an_error_that_names_it(db: Path, call: object) -> None:
    assert callable(call)
    folder = db.parent.parent / "/".join(["deep" * 40] * 4)  # SQLite's paths end at 512 bytes
    folder.mkdir(parents=True)
    shutil.copy(db, folder / "music.sqlite")
    with pytest.raises(DatabaseError, match=r"music\.sqlite cannot be opened"):
        call(folder / "music.sqlite")


def _big(path: Path) -> bytes:
    rows = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c LIMIT 3000)"
    make(path, f"CREATE TABLE t(a, b); INSERT INTO t {rows} SELECT x, hex(x) || 'padding' FROM c;")
    return path.read_bytes()


@pytest.mark.parametrize("size", [0, 1, 16, 100, 511, 512, 4095, 4096, 5000, -30_000, -4096])
def test_a_file_cut_short_is_named(tmp_path: Path, size: int) -> None:
    whole = _big(tmp_path / "whole.sqlite")
    path = tmp_path / "cut.sqlite"
    path.write_bytes(whole[:size])
    for call in (ddl, table_counts):
        with pytest.raises(DatabaseError, match=r"cut\.sqlite.*fetch it again"):
            call(path)


@pytest.mark.parametrize(
    "data",
    [b"garbage", b"\x00" * 8192, b"<html>not found</html>" * 100, b"SQLite format 3\x00" * 300],
)
def test_a_file_that_is_no_database_is_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "wrong.sqlite"
    path.write_bytes(data)
    for call in (ddl, table_counts):
        with pytest.raises(DatabaseError, match=r"wrong\.sqlite"):
            call(path)


def test_damage_inside_a_table_is_found_by_counting(tmp_path: Path) -> None:
    path = tmp_path / "hurt.sqlite"
    data = bytearray(_big(path))
    data[8192:12288] = b"\xff" * 4096
    path.write_bytes(data)
    with pytest.raises(DatabaseError, match=r"hurt\.sqlite"):
        table_counts(path)


def test_a_query_on_a_damaged_file_never_raises(tmp_path: Path) -> None:
    path = tmp_path / "hurt.sqlite"
    data = bytearray(_big(path))
    data[8192:12288] = b"\xff" * 4096
    path.write_bytes(data)
    assert execute(path, "SELECT sum(length(b)) FROM t").outcome == "error"


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors through /proc")
def test_file_descriptors_return_to_the_start_after_2000_queries(db: Path) -> None:
    queries = ["SELECT * FROM singer", "SELEC", "ATTACH 'x' AS y", "SELECT hex(zeroblob(9999999))"]
    queries.append(COUNT_UP + "SELECT x FROM c")

    def own() -> int:
        """Descriptors beside the three pipes of each worker, and beside what other tests left."""
        gc.collect()
        return len(os.listdir("/proc/self/fd")) - 3 * len(sandbox.worker_pids())

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: execute(db, queries[n % 5]), range(40)))  # starts workers
        start = own()
        list(pool.map(lambda n: execute(db, queries[n % 5]), range(2000)))
    assert own() <= start
    assert len(sandbox.worker_pids()) <= sandbox._MAX_WORKERS


# Schema


def test_the_ddl_is_the_create_statement_of_each_table_by_name(db: Path) -> None:
    first, second = ddl(db).split("\n\n")
    assert first.startswith("CREATE TABLE concert (")
    assert second.startswith("CREATE TABLE singer (")


def test_the_ddl_leaves_out_views_indexes_and_tables_of_sqlite_itself(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.sqlite",
        "CREATE TABLE sqlitex(a INTEGER PRIMARY KEY AUTOINCREMENT); CREATE VIEW v AS SELECT 1;"
        "CREATE INDEX i ON sqlitex(a);",
    )
    assert ddl(path) == "CREATE TABLE sqlitex(a INTEGER PRIMARY KEY AUTOINCREMENT)"


def test_rows_are_counted_in_tables_of_any_name(tmp_path: Path) -> None:
    names = ['a"b', "two words", "it's", "select", "é", "100%"]
    quoted = ['"' + n.replace('"', '""') + '"' for n in names]
    path = make(
        tmp_path / "a.sqlite",
        "".join(f"CREATE TABLE {q}(a); INSERT INTO {q} VALUES (1), (2);" for q in quoted),
    )
    assert table_counts(path) == dict.fromkeys(sorted(names), 2)
