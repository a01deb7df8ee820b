"""Random databases that the owner of a given one would take for another state of the same.

Rows come one by one and keep to the shape of the base. Those that break a condition of the
caller's go again, so that what is left meets it. A foreign key that closes a cycle of tables is
kept only where its column may be NULL or the other row is already there.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from nl2sql_trl.spider.result import Row
from nl2sql_trl.suite.hints import Hints, vary
from nl2sql_trl.suite.infer import parents_first, reaches
from nl2sql_trl.suite.reader import insertion, memory
from nl2sql_trl.suite.shape import Column, Link, Place, Table, Value, plain_script

_ATTEMPTS = 6  # rows tried for one that stays
_RUNS = (1, 1, 3, 6)  # rows that may be needed before a result is settled again
_MOST_NULLS = 0.3


@dataclass(frozen=True)
class Style:
    """How one random database is made.

    ``sizes`` are rows a table. A share ``aimed`` of the rows takes most of its values from one of
    ``aims`` (values by column) and refers to rows of the same aim; a share ``clones`` repeats
    another row but for its keys.
    """

    sizes: Mapping[str, int]
    aims: Sequence[Mapping[Place, Sequence[Value]]]
    aimed: float
    clones: float


class Growing:
    """A random database in the making, in memory, with two twins that have no keys or indexes.

    The twins hold the rows in opposite order. A query whose result is not the same on all three
    depends on the order in which SQLite visits rows.
    """

    def __init__(
        self,
        tables: Mapping[str, Table],
        script: Sequence[str],
        hints: Hints,
        style: Style,
        rng: random.Random,
        steps: int,
    ) -> None:
        """Start with empty tables; ``script`` makes them."""
        self.tables, self.script, self.hints = tables, script, hints
        self.style, self.rng = style, rng
        self.keyed = memory(script, steps)
        plain = plain_script(tables, script)
        self.forward, self.backward = memory(plain, steps), memory(plain, steps)
        self._insertions = {name: insertion(table) for name, table in tables.items()}
        self._rows: dict[str, list[Row]] = {name: [] for name in tables}
        self._order: list[tuple[str, Row]] = []
        self._used: dict[tuple[str, tuple[int, ...]], set[Row]] = {}
        self._aimed: dict[tuple[str, int], list[Row]] = {}
        self._pools: dict[Place, list[Value]] = {}
        self._matched: dict[Place, list[tuple[str, int]]] = {}
        for one, two in [*hints.matched, *((b, a) for a, b in hints.matched)]:
            if tables[one[0]].column(one[1]).kind == tables[two[0]].column(two[1]).kind:
                self._matched.setdefault(one, []).append((two[0], tables[two[0]].names[two[1]]))
        # Columns to sort by need many values, or few rows find a place among them.
        self._wide = {place for place in sorted(hints.sorted) if rng.random() < 0.7}

    def grow(self, stable: Callable[[str], bool]) -> None:
        """Fill all tables, parents first.

        Rows after which ``stable(table)`` fails go again, unless a few more make up for them: two
        groups of one row tie, and only a third row settles which is larger.
        """
        for name in parents_first(self.tables):
            left = _ATTEMPTS * self.style.sizes[name]
            while left > 0 and len(self._rows[name]) < self.style.sizes[name]:
                left -= self._add_run(name, min(left, self.rng.choice(_RUNS)), stable)

    def write(self, path: Path) -> None:
        """Save the rows in a new file with the schema of the base."""
        with closing(sqlite3.connect(path, isolation_level=None)) as raw:
            raw.execute("PRAGMA journal_mode = OFF")
            raw.execute("BEGIN")
            for statement in self.script:
                raw.execute(statement)
            for name, row in self._order:
                raw.execute(self._insertions[name], row)
            raw.execute("COMMIT")

    def close(self) -> None:
        """Drop the databases in memory."""
        for reader in (self.keyed, self.forward, self.backward):
            reader.raw.close()

    def _add_run(self, name: str, tries: int, stable: Callable[[str], bool]) -> int:
        """Add rows until they are stable together, or none; returns how many were tried."""
        start = len(self._order)
        aimed = []
        self._all("SAVEPOINT run")
        for tried in range(1, tries + 1):
            aim = self.rng.randrange(max(len(self.style.aims), 1))
            strength = 0.8 if self.rng.random() < self.style.aimed else 0.2
            row = self._row(name, aim, strength)
            if row is None or not self._insert(name, row):
                continue
            if strength > 0.5:
                aimed.append((aim, row))
            if stable(name):
                self._all("RELEASE run")
                for aim, row in aimed:
                    self._aimed.setdefault((name, aim), []).append(row)
                return tried
        self._all("ROLLBACK TO run")
        self._all("RELEASE run")
        for _, row in self._order[start:]:
            self._rows[name].pop()
            for key in self.tables[name].keys:
                self._used[name, key].discard(tuple(row[i] for i in key))
        del self._order[start:]
        return tries

    def _all(self, statement: str) -> None:
        for reader in (self.keyed, self.forward, self.backward):
            reader.raw.execute(statement)

    def _insert(self, name: str, row: Row) -> bool:
        """Add a row everywhere; False where a key or a constraint forbids it."""
        table = self.tables[name]
        cells = {key: tuple(row[i] for i in key) for key in table.keys}
        if any(c in self._used.get((name, key), ()) for key, c in cells.items() if None not in c):
            return False
        try:
            self.keyed.raw.execute(self._insertions[name], row)
        except sqlite3.Error:
            return False
        self.forward.raw.execute(self._insertions[name], row)
        # A rowid below all others: rows are visited backwards.
        free = [word for word in ("rowid", "_rowid_", "oid") if word not in table.names][:1]
        below = [-len(self._rows[name]) - 1 for _ in free]
        self.backward.raw.execute(insertion(table, *free), (*below, *row))
        self._rows[name].append(row)
        self._order.append((name, row))
        for key, values in cells.items():
            self._used.setdefault((name, key), set()).add(values)
        return True

    def _row(self, name: str, aim: int, strength: float) -> Row | None:
        """A new row, or a repeated one with other keys; None where a parent is missing."""
        table, rng = self.tables[name], self.rng
        cells: list[Value] = [None] * len(table.columns)
        redrawn = set(range(len(cells)))
        if self._rows[name] and rng.random() < self.style.clones:
            cells = list(rng.choice(self._rows[name]))
            redrawn = {rng.choice(key) for key in table.keys}
            if rng.random() < 0.5:
                redrawn.add(rng.randrange(len(cells)))
        for link in table.links:
            if redrawn.isdisjoint(link.columns):
                continue
            values = self._reference(table, link, aim, strength)
            if values is not None:
                redrawn -= set(link.columns)
                for own, value in zip(link.columns, values, strict=True):
                    cells[own] = value
            elif link.parent in self._rows and not self._in_cycle(name, link):
                return None
        for index in sorted(redrawn):
            cells[index] = self._cell(name, index, aim, strength)
        for link in table.links:
            if link.parent == name and not self._rows[name]:  # the first row refers to itself
                for own, target in zip(link.columns, link.targets, strict=True):
                    cells[own] = cells[target]
        return tuple(cells)

    def _reference(
        self, table: Table, link: Link, aim: int, strength: float
    ) -> Sequence[Value] | None:
        """The values of a foreign key; None where there is nothing to refer to."""
        rng = self.rng
        parents = self._rows.get(link.parent, [])
        if rng.random() < strength:
            parents = self._aimed.get((link.parent, aim)) or parents
        nulls = min(_MOST_NULLS, max(table.columns[index].nulls for index in link.columns))
        if parents and rng.random() >= nulls:
            # Some parents have many children.
            chosen = parents[int(len(parents) * rng.random() ** rng.choice((1, 1, 2)))]
            return [chosen[target] for target in link.targets]
        return [None] * len(link.columns) if nulls else None

    def _in_cycle(self, name: str, link: Link) -> bool:
        return link.parent == name or reaches(self.tables, link.parent, name)

    def _cell(self, name: str, index: int, aim: int, strength: float) -> Value:
        column, rng = self.tables[name].columns[index], self.rng
        place = (name, column.name.lower())
        if rng.random() < min(column.nulls, _MOST_NULLS):
            return None
        preferred = self.style.aims[aim].get(place) if self.style.aims else None
        if preferred and rng.random() < strength:
            return self._exact(place, rng.choice(preferred))
        if place in self._matched and rng.random() < 0.4:
            other, at = rng.choice(self._matched[place])
            met = [row[at] for row in self._rows[other] if row[at] is not None]
            if met:
                return self._exact(place, rng.choice(met))
        if (index,) in self.tables[name].keys or place in self._wide:
            return self._exact(place, _fresh(column, rng, len(self._rows[name])))
        if place not in self._pools:
            self._pools[place] = self._pool(place, column)
        return self._exact(place, rng.choice(self._pools[place]))

    def _pool(self, place: Place, column: Column) -> list[Value]:
        """The few values that a column has in this database."""
        rng = self.rng
        own, base = self.hints.literals.get(place, ()), column.values
        chosen = rng.sample(own, min(len(own), rng.choice((0, 1, 2, 4))))
        chosen += rng.sample(base, min(len(base), rng.choice((1, 2, 3, 8))))
        if rng.random() < 0.3 or not chosen:
            chosen += [_fresh(column, rng, 0), _fresh(column, rng, 0)]
        return chosen

    def _exact(self, place: Place, value: Value) -> Value:
        """Fractions that are summed become eighths: their sum is the same in any order."""
        if place not in self.hints.summed or not isinstance(value, (float, str)):
            return value
        try:
            number = float(value)
        except ValueError:
            return value
        if number.is_integer() or not abs(number) < 2**40:
            return value
        eighths = round(number * 8) / 8
        return str(eighths) if isinstance(value, str) else eighths


def _fresh(column: Column, rng: random.Random, count: int) -> Value:
    """A value of the column, or another of its kind and range."""
    values = column.values
    if values and rng.random() < 0.5:
        return rng.choice(values)
    if column.kind in ("int", "real"):
        low, high = column.range
        if column.kind == "int":
            return rng.randint(int(low), max(int(high), int(low) + 2 * count + 8))
        return round(rng.uniform(low, max(high, low + count + 8)), 1)
    if column.kind == "blob":
        return rng.randbytes(4)
    return vary(str(rng.choice(values or ("Ab cde",))), rng)
