"""Mistakes in the structure of a query: its joins, its set operations, the form of its nesting.

Each function yields the tokens of queries with one mistake of its kind. They may be no SQL, or
mean the same where the data are as they should be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nl2sql_trl.suite.edits import Tokens, edit, name_text
from nl2sql_trl.suite.infer import key_pairs
from nl2sql_trl.suite.reading import AFTER_FROM, JOINS, SETS, Reading
from nl2sql_trl.suite.shape import Table


def _joins(reading: Reading, tables: Mapping[str, Table], _: object) -> Iterator[Tokens]:
    for start in reading.find("from"):
        scope = reading.scope[start]
        end = reading.until(start, *AFTER_FROM)
        for alias, table in reading.sources[scope].items():
            for here, there, far in _links(table, tables):
                on = ("ON", alias, ".", here, "=", "X9", ".", far)
                other = name_text(tables[there].name)
                yield edit(reading, end, end, "JOIN", other, "AS", "X9", *on)
        for join in reading.find("join"):
            if reading.scope[join] == scope and start < join < end:
                yield from _without_join(reading, start, join)


def _links(table: str, tables: Mapping[str, Table]) -> list[tuple[str, str, str]]:
    """(own column, other table, its column) of each key that joins a table with another one."""
    pairs = [
        (
            child,
            name_text(tables[child].column(own).name),
            up,
            name_text(tables[up].column(far).name),
        )
        for child, own, up, far in key_pairs(tables)
    ]
    out = [(own, up, far) for child, own, up, far in pairs if child == table]
    return out + [(far, child, own) for child, own, up, far in pairs if up == table]


def _without_join(reading: Reading, start: int, join: int) -> Iterator[Tokens]:
    begin = join
    while reading.low[begin - 1] in JOINS:
        begin -= 1
    end = reading.until(join, *AFTER_FROM, *JOINS)
    on = reading.until(join, "on", *AFTER_FROM, *JOINS)
    if begin == join:
        yield edit(reading, join, join, "LEFT")
    if reading.low[on : on + 1] != ("on",):
        return
    yield edit(reading, on, end)
    key = reading.tokens[on + 1 : end]
    for gone in (edit(reading, begin, end), edit(reading, start + 1, join + 1)):
        yield gone
        if len(key) == 7 and key[3] == "=":
            yield _renamed(gone, key[:3], key[4:])
            yield _renamed(gone, key[4:], key[:3])


def _renamed(tokens: Tokens, old: Sequence[str], new: Sequence[str]) -> Tokens:
    """Replace one column reference by another; an ON with itself disappears."""
    made: Tokens = []
    index = 0
    while index < len(tokens):
        hit = [t.lower() for t in tokens[index : index + 3]] == [t.lower() for t in old]
        made += new if hit else tokens[index : index + 1]
        index += 3 if hit else 1
    own = ["on", *new, "=", *new]
    for index in range(len(made) - len(own) + 1):
        if [t.lower() for t in made[index : index + len(own)]] == [t.lower() for t in own]:
            return [*made[:index], *made[index + len(own) :]]
    return made


def _semi_joins(reading: Reading, *_: object) -> Iterator[Tokens]:
    """`a JOIN b ON a.x = b.y WHERE ...` as `a WHERE a.x IN (SELECT b.y FROM b WHERE ...)`."""
    for start in reading.find("from"):
        end = reading.until(start, *AFTER_FROM)
        join, on = reading.until(start, "join"), reading.until(start, "on")
        key = reading.tokens[on + 1 : end]
        if not start < join < on < end or len(key) != 7 or key[3] != "=":
            continue
        one, two = reading.tokens[start + 1 : join], reading.tokens[join + 1 : on]
        spans = reading.conditions(end) if reading.low[end : end + 1] == ("where",) else []
        stop = spans[-1][1] if spans else end
        if any(reading.low[begin - 1] == "or" for begin, _ in spans):
            continue
        for near, far in ((key[:3], key[4:]), (key[4:], key[:3])):
            kept, folded = (one, two) if near[0].lower() == one[-1].lower() else (two, one)
            inner = [s for s in spans if far[0].lower() in reading.low[slice(*s)]]
            where = _all(["WHERE"], [reading.tokens[slice(*s)] for s in inner])
            outer = [reading.tokens[slice(*s)] for s in spans if s not in inner]
            for operator in ("IN", "="):
                sub = (*near, operator, "(", "SELECT", *far, "FROM", *folded, *where, ")")
                new = [*kept, *_all(["WHERE"], [*outer, sub])]
                yield edit(reading, start + 1, stop, *new)


def _all(head: Tokens, parts: Sequence[Sequence[str]]) -> Tokens:
    """The conditions joined by AND behind ``head``; nothing without conditions."""
    made: Tokens = []
    for part in parts:
        made += [*(["AND"] if made else head), *part]
    return made


def _superlatives(reading: Reading, *_: object) -> Iterator[Tokens]:
    """`ORDER BY x DESC LIMIT 1` as `WHERE x = (SELECT max(x) ...)`."""
    for order in reading.find("order"):
        limit = reading.until(order, *SETS, "limit")
        end = reading.until(limit, *SETS)
        key = [t for t in reading.tokens[order + 2 : limit] if t.lower() not in ("asc", "desc")]
        starts = [i for i in reading.find("from") if reading.scope[i] == reading.scope[order]]
        if reading.tokens[limit + 1 : limit + 2] != ("1",) or len(key) not in (1, 3) or not starts:
            continue
        stop = reading.until(starts[0], *AFTER_FROM)
        source = reading.tokens[starts[0] : stop]
        where = reading.tokens[stop:order]
        if "group" in reading.low[stop:order]:
            continue
        best = "max" if reading.low[limit - 1] == "desc" else "min"
        link = "AND" if where else "WHERE"
        for inner in (where, ()) if where else ((),):
            sub = ("(", "SELECT", best, "(", *key, ")", *source, *inner, ")")
            yield edit(reading, order, end, link, *key, "=", *sub)


def _sets(reading: Reading, *_: object) -> Iterator[Tokens]:
    for index in reading.find(*SETS):
        end = reading.until(index, *SETS)
        start = reading.start_of_side(index)
        yield edit(reading, index, end)
        yield edit(reading, start, index + 1)
        yield from (edit(reading, index, index + 1, other) for other in (*SETS, "union all"))
        left, right = reading.tokens[start:index], reading.tokens[index + 1 : end]
        yield edit(reading, start, end, *right, reading.tokens[index], *left)


STRUCTURE_MISTAKES = (_joins, _semi_joins, _superlatives, _sets)
