"""Names that a model may have meant, beside SQLite's error."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import make_database

from nl2sql_trl.database import ddl, execute
from nl2sql_trl.hints import helped
from nl2sql_trl.policy import ByteTokenizer, ScriptedPolicy
from nl2sql_trl.prompts import Codec, answer_text, call_text
from nl2sql_trl.records import Example, ToolTurn
from nl2sql_trl.rollout import RolloutConfig, make_prompt, rollout

SCHEMA = """
    CREATE TABLE singer (singer_id INTEGER PRIMARY KEY, name TEXT, country TEXT, song_name TEXT);
    CREATE TABLE concert (concert_id INTEGER PRIMARY KEY, theme TEXT, stadium_id INTEGER);
    CREATE TABLE stadium (stadium_id INTEGER PRIMARY KEY, name TEXT, capacity INTEGER);
    CREATE TABLE "odd ""table" ("a column" TEXT, 'Größe' TEXT);
    CREATE VIEW big AS SELECT name, capacity FROM stadium WHERE capacity > 1000;
"""


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_database(tmp_path_factory.mktemp("hints") / "music.sqlite", SCHEMA)


def told(db: Path, query: str) -> str:
    return helped(execute(db, query).error, query, db)


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("SELECT nmae FROM singer", "singer.name"),
        ("SELECT singer_name FROM singer", "singer.name"),
        ("SELECT T1.stadium_name FROM concert AS T1", "stadium.name"),
        ("SELECT capcity FROM big", "big.capacity"),
        ("SELECT NAMES FROM STADIUM", "stadium.name"),
        ("SELECT T1.theme FROM singer AS T1", "concert.theme"),
        ("SELECT grosse FROM concert", 'odd "table.Größe'),
        ("SELECT * FROM singers", "singer"),
        ("SELECT * FROM singer JOIN the_concerts", "concert"),
        ("SELECT * FROM main.stadia", "stadium"),
    ],
)
def test_the_nearest_name_is_named_first_after_sqlites_own_words(
    db: Path, query: str, first: str
) -> None:
    error = execute(db, query).error
    said = told(db, query)
    assert said.startswith(f"{error}. Did you mean {first}, ")
    assert said.endswith("?")


def test_of_an_endless_name_the_beginning_is_compared(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[str] = []
    monkeypatch.setattr("nl2sql_trl.hints._alike", lambda a, b: compared.append(a) or 0.0)
    assert "Did you mean" in told(db, f"SELECT {'name' * 5000} FROM singer")
    assert {len(name) for name in compared} == {64}


def test_an_ambiguous_column_comes_with_the_tables_of_the_query_that_have_it(db: Path) -> None:
    query = "SELECT name FROM singer JOIN stadium"
    assert told(db, query) == "ambiguous column name: name. It is in singer and stadium"
    renamed = "SELECT name FROM stadium AS a JOIN stadium AS b"
    assert told(db, renamed) == "ambiguous column name: name"


@pytest.mark.parametrize(
    "query",
    ["SELEC name FROM singer", "SELECT nosuch(1)", "SELECT 'a", "", "SELECT sum(count(*))"],
)
def test_an_error_that_is_about_no_name_stays_as_it_is(db: Path, query: str) -> None:
    assert told(db, query) == execute(db, query).error


def test_a_database_without_tables_has_nothing_to_offer(tmp_path: Path) -> None:
    path = make_database(tmp_path / "bare.sqlite", "PRAGMA user_version = 1")
    assert told(path, "SELECT a FROM t") == "no such table: t"


def test_a_view_of_a_table_that_is_gone_is_passed_over(tmp_path: Path) -> None:
    path = make_database(
        tmp_path / "gone.sqlite",
        "CREATE TABLE a (x); CREATE TABLE b (y); CREATE VIEW v AS SELECT y FROM b;"
        "PRAGMA writable_schema = ON; DELETE FROM sqlite_master WHERE name = 'b';",
    )
    assert told(path, "SELECT z FROM a") == "no such column: z. Did you mean a.x?"


@pytest.mark.parametrize(("truncation", "helps"), [("rows", True), ("seed", False)])
def test_the_tool_tells_them_but_not_where_it_answers_as_the_references(
    db: Path, truncation: str, helps: bool
) -> None:
    codec = Codec(ByteTokenizer())
    query = "SELECT nmae FROM singer"
    example = Example(0, "dev", "Names?", "SELECT name FROM singer", "music", db)
    (trajectory,) = rollout(
        [make_prompt(example, ddl(db), codec)],
        ScriptedPolicy([[call_text(query), answer_text("SELECT name FROM singer")]], codec),
        RolloutConfig(truncation=truncation),  # type: ignore[arg-type]
    )
    (turn,) = [turn for turn in trajectory.turns if isinstance(turn, ToolTurn)]
    assert turn.calls[0].response.startswith('{"error": "no such column: nmae')
    assert ("singer.name" in turn.calls[0].response) is helps
    assert turn.calls[0].failed
