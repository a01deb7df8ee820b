"""What the rows of a database keep to: types, keys, foreign keys, columns without NULL.

`read_tables` takes what is declared; what is not, but plain in the data, see `infer.py`. Kept
neither way: triggers, and dependencies between columns or tables that are no keys.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

Value: TypeAlias = int | float | str | bytes | None
Place: TypeAlias = tuple[str, str]
"""A column: the lower-case names of its table and of itself."""
Kind = Literal["int", "real", "text", "blob"]

_MAX_ROWS = 20_000


@dataclass(frozen=True)
class Column:
    """A column as declared, and as its data show it.

    ``values`` are the different ones, without NULL; ``nulls`` is the share of NULLs; ``unique``
    says that no value repeats among two or more.
    """

    name: str
    type: str
    kind: Kind
    nulls: float
    values: tuple[Value, ...]
    unique: bool

    @cached_property
    def range(self) -> tuple[float, float]:
        """The smallest and largest number, without extremes; 1 and 1 where there is none."""
        numbers = [v for v in self.values if isinstance(v, (int, float)) and abs(v) < 2**62] or [1]
        return min(numbers), max(numbers)


@dataclass(frozen=True)
class Link:
    """A foreign key: positions of own columns, the lower-case parent, positions of its columns."""

    columns: tuple[int, ...]
    parent: str
    targets: tuple[int, ...]


@dataclass(frozen=True)
class Table:
    """A table with its keys (sets of columns whose values never repeat) and foreign keys."""

    name: str
    columns: tuple[Column, ...]
    keys: tuple[tuple[int, ...], ...]
    links: tuple[Link, ...]
    rows_differ: bool

    @cached_property
    def names(self) -> dict[str, int]:
        """The position of each column by its lower-case name."""
        return {column.name.lower(): index for index, column in enumerate(self.columns)}

    def column(self, name: str) -> Column:
        """The column with this lower-case name."""
        return self.columns[self.names[name]]


def quoted(name: str) -> str:
    """A name as SQL."""
    return '"' + name.replace('"', '""') + '"'


def schema_script(base: sqlite3.Connection) -> list[str]:
    """The statements that make the tables, indexes and views of a database, without triggers."""
    rows = base.execute(
        "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\\_%'"
        " ESCAPE '\\' AND type IN ('table', 'index', 'view')"
        " ORDER BY type = 'table' DESC, rowid"
    )
    return [sql for (sql,) in rows]


def plain_script(tables: Mapping[str, Table], script: Sequence[str]) -> list[str]:
    """The same tables without keys and indexes: other plans, and rows in the order inserted."""
    made = [
        f"CREATE TABLE {quoted(t.name)} "
        f"({', '.join(f'{quoted(c.name)} {c.type}' for c in t.columns)})"
        for t in tables.values()
    ]
    return made + [sql for sql in script if re.match(r"\s*CREATE\s+VIEW\b", sql, re.IGNORECASE)]


def read_tables(base: sqlite3.Connection) -> dict[str, Table]:
    """The tables of a database by lower-case name, with what they declare."""
    names = base.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%'"
        " ESCAPE '\\' ORDER BY rowid"
    ).fetchall()
    return {name.lower(): _read_table(base, name) for (name,) in names}


def _read_table(base: sqlite3.Connection, name: str) -> Table:
    described = _described(base, name)
    listed = ", ".join(quoted(row[1]) for row in described)
    rows = base.execute(f"SELECT {listed} FROM {quoted(name)} LIMIT {_MAX_ROWS}").fetchall()
    columns = tuple(
        _column(row[1], row[2], [cells[index] for cells in rows])
        for index, row in enumerate(described)
    )
    at = {column.name.lower(): index for index, column in enumerate(columns)}
    keys = [_primary(described)] if _primary(described) else []
    for _, index_name, unique, _, partial in base.execute(f"PRAGMA index_list({quoted(name)})"):
        parts = [row[2] for row in base.execute(f"PRAGMA index_info({quoted(index_name)})")]
        if unique and not partial and None not in parts:
            keys.append(tuple(at[part.lower()] for part in parts))
    return Table(
        name,
        columns,
        tuple(dict.fromkeys(keys)),
        tuple(_declared_links(base, name, at)),
        rows_differ=1 < len(rows) == len(set(rows)),
    )


def _described(base: sqlite3.Connection, name: str) -> list[tuple[int, str, str, int, str, int]]:
    """The rows of SQLite's table_xinfo, without generated columns."""
    rows = base.execute(f"PRAGMA table_xinfo({quoted(name)})")
    return [row[:6] for row in rows if row[6] == 0]


def _primary(described: Sequence[tuple[int, str, str, int, str, int]]) -> tuple[int, ...]:
    """The positions of the primary key's columns, in its order."""
    places = sorted((row[5], index) for index, row in enumerate(described) if row[5])
    return tuple(index for _, index in places)


def _column(name: str, declared: str, cells: Sequence[Value]) -> Column:
    values = [cell for cell in cells if cell is not None]
    different = tuple(dict.fromkeys(values))
    kinds: list[Kind] = [_kind(value) for value in values] or [_affinity(declared)]
    # The most frequent kind: a few words among numbers are only a few words.
    kind = max(dict.fromkeys(kinds), key=kinds.count)
    if kind == "int" and "real" in kinds:
        kind = "real"
    nulls = 1 - len(values) / len(cells) if cells else 0.0
    return Column(name, declared, kind, nulls, different, 1 < len(values) == len(different))


def _kind(value: Value) -> Kind:
    if isinstance(value, bytes):
        return "blob"
    return "int" if isinstance(value, int) else "real" if isinstance(value, float) else "text"


def _affinity(declared: str) -> Kind:
    upper = declared.upper()
    if "INT" in upper or "BOOL" in upper:
        return "int"
    if any(word in upper for word in ("REAL", "FLOA", "DOUB", "NUM", "DEC")):
        return "real"
    return "text"


def _declared_links(base: sqlite3.Connection, name: str, at: Mapping[str, int]) -> list[Link]:
    parts: dict[int, list[tuple[int, str, str, str | None]]] = {}
    for number, place, parent, own, target, *_ in base.execute(
        f"PRAGMA foreign_key_list({quoted(name)})"
    ):
        parts.setdefault(number, []).append((place, own, parent, target))
    links = []
    for number in sorted(parts, reverse=True):  # SQLite lists the last one first
        owns, parents, targets = zip(*(part[1:] for part in sorted(parts[number])), strict=True)
        described = _described(base, parents[0])
        positions = {row[1].lower(): index for index, row in enumerate(described)}
        found = _primary(described)
        if None not in targets:
            found = tuple(positions[t.lower()] for t in targets if t.lower() in positions)
        if len(found) == len(owns):  # a key may refer to what isn't there
            links.append(Link(tuple(at[own.lower()] for own in owns), parents[0].lower(), found))
    return links
