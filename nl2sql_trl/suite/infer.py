"""Keys and foreign keys: those that a database does not declare but shows, and where they lead."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nl2sql_trl.suite.shape import Link, Place, Table, Value

_KEY_NAME = re.compile(r"(id|ids|code|key|ssn)$")


def infer(tables: Mapping[str, Table], joined: Sequence[tuple[Place, Place]]) -> dict[str, Table]:
    """Add foreign keys and keys that are plain though not declared.

    A foreign key is assumed between columns that queries join, or that are named for each other,
    where all values of the one are among those of the other, which never repeats. A key is
    assumed where a column named like an identifier never repeats, or else no whole row does.
    """
    linked = dict(tables)
    places = [(name, column) for name, table in tables.items() for column in table.names]
    named = [(a, b) for a in places for b in places if _named_for(a, b)]
    for one, two in [*joined, *named]:
        for child, parent in ((one, two), (two, one)):
            if _could_refer(linked, child, parent):
                table = linked[child[0]]
                target = linked[parent[0]].names[parent[1]]
                link = Link((table.names[child[1]],), parent[0], (target,))
                linked[child[0]] = replace(table, links=(*table.links, link))
                break
    targets = {(link.parent, link.targets) for table in linked.values() for link in table.links}
    return {name: _with_keys(name, table, targets) for name, table in linked.items()}


def _named_for(child: Place, parent: Place) -> bool:
    """Whether `orders.customer_id` seems to mean `customers.id` or `customers.customer_id`."""
    if child[0] == parent[0] or not _KEY_NAME.search(parent[1]):
        return False
    own, table, target = (re.sub(r"[\W_]", "", text) for text in (child[1], *parent))
    alike = own == target and target not in ("id", "code", "key")
    return alike or own in (table + target, table.removesuffix("s") + target)


def _could_refer(tables: Mapping[str, Table], child: Place, parent: Place) -> bool:
    table, other = tables[child[0]], tables[parent[0]]
    own, target = table.names[child[1]], other.names[parent[1]]
    if child == parent or any(own in link.columns for link in table.links):
        return False
    known = {_comparable(value) for value in other.columns[target].values}
    values = {_comparable(value) for value in table.columns[own].values}
    unique = other.columns[target].unique or (target,) in other.keys
    return unique and bool(values) and values <= known and not reaches(tables, parent[0], child[0])


def _comparable(value: Value) -> Value:
    """Texts that are numbers count as the numbers, as in a join."""
    try:
        return float(value) if value is not None else None
    except ValueError:
        return value


def _with_keys(name: str, table: Table, targets: set[tuple[str, tuple[int, ...]]]) -> Table:
    children = {index for link in table.links for index in link.columns}
    keys = list(table.keys)
    for index, column in enumerate(table.columns):
        looks = _KEY_NAME.search(column.name.strip().lower()) and index not in children
        if column.unique and (looks or (name, (index,)) in targets):
            keys.append((index,))
    if not keys and table.rows_differ:
        keys.append(tuple(range(len(table.columns))))
    return replace(table, keys=tuple(dict.fromkeys(keys)))


def reaches(tables: Mapping[str, Table], start: str, goal: str) -> bool:
    """Whether foreign keys lead from one table to another, however far round."""
    return start != goal and goal in with_parents(tables, [start])


def with_parents(tables: Mapping[str, Table], names: Sequence[str]) -> set[str]:
    """These tables and all that their foreign keys lead to."""
    found, todo = set(names), list(names)
    while todo:
        for link in tables[todo.pop()].links:
            if link.parent in tables and link.parent not in found:
                found.add(link.parent)
                todo.append(link.parent)
    return found


def parents_first(tables: Mapping[str, Table]) -> list[str]:
    """The names of all tables, each behind those that it refers to, as far as that can be."""
    done: dict[str, None] = {}

    def visit(name: str, above: tuple[str, ...]) -> None:
        for link in tables[name].links:
            if link.parent in tables and link.parent not in (*above, name, *done):
                visit(link.parent, (*above, name))
        done.setdefault(name)

    for name in tables:
        visit(name, ())
    return list(done)


def key_pairs(tables: Mapping[str, Table]) -> list[tuple[str, str, str, str]]:
    """(table, column, other table, its column) of all foreign keys, in lower case."""
    return [
        (name, list(table.names)[own], link.parent, list(tables[link.parent].names)[target])
        for name, table in tables.items()
        for link in table.links
        if link.parent in tables
        for own, target in zip(link.columns, link.targets, strict=True)
    ]
