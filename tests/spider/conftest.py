"""A small music database for the Spider metrics, and the folder of parity data if there is one."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nl2sql_trl.spider import Schema, schema_from_sqlite

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("NL2SQL_SHARED", ROOT.parent / "shared"))

SCRIPT = """
CREATE TABLE singer (singer_id INTEGER PRIMARY KEY, name TEXT, country TEXT, age INTEGER);
CREATE TABLE stadium (stadium_id INTEGER PRIMARY KEY, name TEXT, capacity INTEGER);
CREATE TABLE concert (
    concert_id INTEGER PRIMARY KEY, title TEXT, year INTEGER, rating REAL,
    stadium_id INTEGER REFERENCES stadium (stadium_id)
);
CREATE TABLE appearance (
    concert_id INTEGER REFERENCES concert (concert_id),
    singer_id INTEGER REFERENCES singer (singer_id)
);
CREATE TABLE review (text TEXT);
INSERT INTO singer VALUES (1, 'Ada', 'France', 30), (2, 'Bo', 'Chile', 25), (3, 'Cy', 'Chile', 41);
INSERT INTO stadium VALUES (1, 'Dome', 100), (2, 'Pit', 50);
INSERT INTO concert VALUES (1, 'One', 2014, 4.0, 1), (2, 'Two', 2015, 3.5, 2);
INSERT INTO concert VALUES (3, 'Six', 2014, 1, 1);
INSERT INTO appearance VALUES (1, 1), (1, 2), (2, 3), (3, 1);
"""


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker of tests that take more than a few seconds."""
    config.addinivalue_line("markers", "slow: takes more than a few seconds")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the database ``music`` and a second file of its test suite; not to be used."""
    folder = tmp_path_factory.mktemp("databases")
    (folder / "music").mkdir()
    for name in ("music.sqlite", "music_v1.sqlite"):
        with closing(sqlite3.connect(folder / "music" / name)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            connection.executescript(f"BEGIN; {SCRIPT} COMMIT;")
            if name == "music_v1.sqlite":
                connection.execute("INSERT INTO singer VALUES (4, 'Di', 'Chile', 41)")
            connection.commit()
    return folder


@pytest.fixture
def databases(template: Path, tmp_path: Path) -> Path:
    """A folder with the database ``music``, free to be spoilt."""
    return shutil.copytree(template, tmp_path / "databases")


@pytest.fixture
def base(databases: Path) -> Path:
    """The base file of the database ``music``."""
    return databases / "music" / "music.sqlite"


@pytest.fixture(scope="session")
def schema(template: Path) -> Schema:
    """The schema of ``music``, with the foreign keys that it declares."""
    return schema_from_sqlite(template / "music" / "music.sqlite")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared data; tests that need it are skipped without."""
    if not (SHARED / "parity").is_dir():
        pytest.skip(f"no parity data in {SHARED} (set NL2SQL_SHARED)")
    return SHARED


@pytest.fixture(scope="session")
def jsonl(shared: Path) -> Callable[[str], list[dict[str, Any]]]:
    """Read one of the parity files by name."""

    def read(name: str) -> list[dict[str, Any]]:
        with (shared / "parity" / name).open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    return read
