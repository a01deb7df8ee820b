"""The tables and columns that Spider's parser knows, and the foreign keys that its match uses.

Sources are a SQLite file (what the official scorers parse with) and ``tables.json`` (where they
take foreign keys from). Types, primary keys and views play no part.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

ALL = "__all__"


@dataclass(frozen=True)
class Schema:
    """Lower-case table names with their lower-case columns, in the order of the database.

    ``ids`` maps ``*``, ``table`` and ``table.column`` to the identifiers used in parse trees.
    ``foreign_keys`` maps a column id to the id that represents its group of linked columns.
    """

    tables: dict[str, tuple[str, ...]]
    foreign_keys: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Derive the identifiers."""
        ids = {"*": ALL}
        for table, columns in self.tables.items():
            ids[table] = f"__{table}__"
            for column in columns:
                ids[f"{table}.{column}"] = f"__{table}.{column}__"
        object.__setattr__(self, "ids", ids)

    def column_ids(self, table_id: str) -> set[str]:
        """The ids of all columns of the table with this id."""
        table = table_id[2:-2]
        return {f"__{table}.{column}__" for column in self.tables.get(table, ())}


def schema_from_sqlite(path: str | Path, foreign_keys: dict[str, str] | None = None) -> Schema:
    """Read the schema out of a database file; sqlite3.Error when it is none.

    Without ``foreign_keys`` the file's own declarations are grouped the same way.
    """
    uri = f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        names = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        tables = {
            name.lower(): tuple(
                str(column[1]).lower()
                for column in connection.execute(f"PRAGMA table_info({_quoted(name)})")
            )
            for name in names
        }
        if foreign_keys is None:
            foreign_keys = _declared_keys(connection, names, tables)
    return Schema(tables, foreign_keys)


def schemas_from_tables_json(path: str | Path) -> dict[str, Schema]:
    """Read every database's schema and foreign keys from Spider's ``tables.json``."""
    return {entry["db_id"]: _schema_from_entry(entry) for entry in json.loads(_read(path))}


def group_foreign_keys(columns: list[str], pairs: Iterable[tuple[int, int]]) -> dict[str, str]:
    """Map each linked column id to the one of its group that comes first in ``columns``.

    Groups grow in the order of ``pairs`` and are never merged, as in the official scorers: a
    column that ends up in two groups is represented by the later one.
    """
    groups: list[set[int]] = []
    for pair in pairs:
        for group in groups:
            if not group.isdisjoint(pair):
                group.update(pair)
                break
        else:
            groups.append(set(pair))
    return {columns[index]: columns[min(group)] for group in groups for index in sorted(group)}


def _schema_from_entry(entry: dict[str, list[list[int | str]]]) -> Schema:
    names = [str(name).lower() for name in entry["table_names_original"]]
    columns: dict[str, list[str]] = {name: [] for name in names}
    ids = []
    for table_index, column in entry["column_names_original"]:
        if int(table_index) < 0:
            ids.append(ALL)
            continue
        table = names[int(table_index)]
        columns[table].append(str(column).lower())
        ids.append(f"__{table}.{str(column).lower()}__")
    pairs = [(int(left), int(right)) for left, right in entry["foreign_keys"]]
    tables = {table: tuple(names) for table, names in columns.items()}
    return Schema(tables, group_foreign_keys(ids, pairs))


def _declared_keys(
    connection: sqlite3.Connection, names: list[str], tables: dict[str, tuple[str, ...]]
) -> dict[str, str]:
    ids = [f"__{table}.{column}__" for table, columns in tables.items() for column in columns]
    position = {column_id: index for index, column_id in enumerate(ids)}
    pairs = []
    for name in names:
        for row in connection.execute(f"PRAGMA foreign_key_list({_quoted(name)})"):
            left = position.get(f"__{name}.{row[3]}__".lower())
            right = position.get(f"__{row[2]}.{row[4]}__".lower())
            if left is not None and right is not None:
                pairs.append((left, right))
    return group_foreign_keys(ids, pairs)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _read(path: str | Path) -> str:
    return Path(path).read_text(encoding="utf-8")
