"""Mistakes within the clauses of a query: another operator, value, column, aggregate and so on.

Each function yields the tokens of queries with one mistake of its kind. They may be no SQL.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping

from nl2sql_trl.suite.edits import (
    Tokens,
    columns_in_sight,
    edit,
    name_text,
    quoted_text,
    reference,
    select_spans,
    value_text,
)
from nl2sql_trl.suite.reading import AFTER_FROM, AGGREGATES, COMPARISONS, SETS, Reading, plain
from nl2sql_trl.suite.shape import Table


def _operators(reading: Reading, *_: object) -> Iterator[Tokens]:
    for index, token in enumerate(reading.low):
        before = reading.low[index - 1] if index else ""
        if token in COMPARISONS and reading.clause[index] != "on":
            yield from (edit(reading, index, index + 1, o) for o in COMPARISONS if o != token)
        if token in ("in", "like", "between", "exists"):
            negated = before == "not"
            yield edit(reading, index - negated, index, *(() if negated else ("NOT",)))
        if token == "is":
            negated = reading.low[index + 1 : index + 2] == ("not",)
            yield edit(reading, index, index + 1 + negated, *(("IS",) if negated else ("IS NOT",)))
        if token in ("in", "like") and before != "not":
            yield edit(reading, index, index + 1, "=")
        if token == "=" and reading.low[index + 1 : index + 3] == ("(", "select"):
            yield edit(reading, index, index + 1, "IN")
        if token in ("and", "or") and not reading.inside_between(index):
            yield edit(reading, index, index + 1, "OR" if token == "and" else "AND")


def _literals(
    reading: Reading, tables: Mapping[str, Table], rng: random.Random
) -> Iterator[Tokens]:
    for index, token in enumerate(reading.tokens):
        if not reading.is_literal(index) or reading.clause[index] == "select":
            continue
        other: list[str] = []
        is_text = token[0] in "'\""
        if is_text:
            text = token[1:-1].replace("''", "'")
            if reading.low[index - 1] == "like":
                other += [text.lstrip("%"), text.rstrip("%"), text.strip("%"), f"%{text}%"]
            other.append("no such text")
        elif "." in token:
            other += [f"{float(token) + 1}", f"{float(token) - 1}", f"{float(token) + 0.5}"]
        else:
            other += [f"{int(token) + step}" for step in (-1, 1, 2, 10)]
        place = reading.literal_column(index)
        if place is not None and reading.clause[index] != "limit":
            values = [v for v in tables[place[0]].column(place[1]).values if v is not None]
            other += [str(value) for value in rng.sample(values, min(3, len(values)))]
        for text in other:
            if is_text:
                text = quoted_text(text)
            elif not re.fullmatch(r"-?\d+(\.\d+)?", text):
                continue
            yield edit(reading, index, index + 1, text)


def _conditions(reading: Reading, *_: object) -> Iterator[Tokens]:
    for start in reading.find("where", "having"):
        spans = reading.conditions(start)
        yield edit(reading, start, spans[-1][1])
        if len(spans) > 1:
            yield edit(reading, spans[0][0], spans[1][0])
            yield from (edit(reading, begin - 1, end) for begin, end in spans[1:])


def _more_conditions(
    reading: Reading, tables: Mapping[str, Table], rng: random.Random
) -> Iterator[Tokens]:
    for start in reading.find("from"):
        end = reading.until(start, *AFTER_FROM)
        where = reading.low[end : end + 1] == ("where",)
        at = reading.conditions(end)[-1][1] if where else end
        columns = columns_in_sight(reading, reading.scope[start], tables)
        for alias, dot, name in rng.sample(columns, min(4, len(columns))):
            table = reading.sources[reading.scope[start]][alias]
            values = tables[table].column(plain(name)).values
            if values:
                value = value_text(rng.choice(values))
                for operator in ("=", ">"):
                    more = (alias, dot, name, operator, value)
                    yield edit(reading, at, at, "AND" if where else "WHERE", *more)


def _aggregates(
    reading: Reading, tables: Mapping[str, Table], rng: random.Random
) -> Iterator[Tokens]:
    for index in reading.find(*AGGREGATES):
        if reading.tokens[index + 1 : index + 2] != ("(",):
            continue
        close = reading.until(index + 1, ")")
        inner = reading.tokens[index + 2 : close]
        if inner == ("*",):
            places = columns_in_sight(reading, reading.scope[index], tables)
            for column in rng.sample(places, min(6, len(places))):
                yield edit(reading, index + 2, close, *column)
                yield edit(reading, index + 2, close, "DISTINCT", *column)
            continue
        yield from (edit(reading, index, index + 1, a) for a in AGGREGATES)
        yield edit(reading, index, close + 1, *(t for t in inner if t.lower() != "distinct"))
        if reading.low[index] == "count":
            yield edit(reading, index + 2, close, "*")


def _distinct(reading: Reading, *_: object) -> Iterator[Tokens]:
    for index in reading.find("distinct"):
        yield edit(reading, index, index + 1)
    for index in reading.find("select", *AGGREGATES):
        behind = index + 1 + (reading.low[index] != "select")
        if reading.low[behind : behind + 1] not in (("distinct",), ("*",)):
            yield edit(reading, behind, behind, "DISTINCT")


def _columns(reading: Reading, tables: Mapping[str, Table], rng: random.Random) -> Iterator[Tokens]:
    for index, (table, name) in reading.columns.items():
        start = reference(reading, index)
        kind = None if reading.clause[index] == "group" else tables[table].column(name).kind
        own = tables[table].columns
        same = [c for c in own if c.name.lower() != name and kind in (None, c.kind)]
        for column in rng.sample(same, min(4, len(same))):
            yield edit(reading, index, index + 1, name_text(column.name))
        if len(reading.sources[reading.scope[index]]) > 1:
            others = columns_in_sight(reading, reading.scope[index], tables, kind)
            for other in rng.sample(others, min(4, len(others))):
                yield edit(reading, start, index + 1, *other)
            twins = [other for other in others if plain(other[2]) == name]
            yield from (edit(reading, start, index + 1, *other) for other in twins)


def _select_items(reading: Reading, *_: object) -> Iterator[Tokens]:
    for select in reading.find("select"):
        items = select_spans(reading, select)
        end = items[-1][1]
        yield edit(reading, end, end, ",", *reading.tokens[slice(*items[0])])
        if len(items) > 1:
            yield edit(reading, items[0][0], items[1][0])
            yield from (edit(reading, begin - 1, stop) for begin, stop in items[1:])


def _tables(reading: Reading, tables: Mapping[str, Table], rng: random.Random) -> Iterator[Tokens]:
    for index in range(1, len(reading.tokens)):
        table = tables.get(plain(reading.tokens[index]))
        follows = reading.low[index - 1] in ("from", "join", ",")
        if table is None or not follows or reading.clause[index] != "from":
            continue
        for other in tables.values():
            if other.names.keys() & table.names.keys() or "*" in reading.tokens:
                yield edit(reading, index, index + 1, name_text(other.name))


def _order_and_limit(reading: Reading, *_: object) -> Iterator[Tokens]:
    for order in reading.find("order"):
        limit = reading.until(order, *SETS, "limit")
        end = reading.until(limit, *SETS) if reading.low[limit : limit + 1] == ("limit",) else limit
        yield edit(reading, order, limit)
        yield edit(reading, order, end)
        yield edit(reading, limit, end)
        if reading.low[limit - 1] not in ("asc", "desc"):
            yield edit(reading, limit, limit, "DESC")
        for index in range(order, limit):
            if reading.low[index] in ("asc", "desc"):
                yield edit(reading, index, index + 1, *(["DESC"] * (reading.low[index] == "asc")))
    rows = "group" in reading.low or (reading.low[:1] == ("select",) and reading.bare_columns(0))
    if "limit" not in reading.low and rows:
        yield [*reading.tokens, "LIMIT", "1"]
        yield [*reading.tokens, "LIMIT", "3"]


def _groups(reading: Reading, tables: Mapping[str, Table], rng: random.Random) -> Iterator[Tokens]:
    for group in reading.find("group"):
        end = reading.until(group, *SETS, "having", "order", "limit")
        yield edit(reading, group, reading.until(group, *SETS, "order", "limit"))
        columns = columns_in_sight(reading, reading.scope[group], tables)
        for column in rng.sample(columns, min(8, len(columns))):
            yield edit(reading, group + 2, end, *column)
            yield edit(reading, end, end, ",", *column)
        commas = [i for i in range(group, end) if reading.tokens[i] == ","]
        yield from (edit(reading, comma, end) for comma in commas)
    for select in reading.find("select"):
        end = reading.until(select, *SETS, "group", "order", "limit")
        if reading.low[end : end + 1] == ("group",):
            continue
        stop = reading.until(select, "from")
        for index in reading.columns:
            if select < index < stop and reading.depth[index] == reading.depth[select]:
                named = reading.tokens[reference(reading, index) : index + 1]
                yield edit(reading, end, end, "GROUP", "BY", *named)


CLAUSE_MISTAKES = (
    *(_operators, _literals, _conditions, _more_conditions, _aggregates, _distinct, _columns),
    *(_select_items, _tables, _order_and_limit, _groups),
)
