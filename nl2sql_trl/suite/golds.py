"""Golds and their neighbours on one database, and random databases on which golds are settled."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from nl2sql_trl.data import DataError
from nl2sql_trl.database import connect
from nl2sql_trl.spider.errors import OfficialAbort
from nl2sql_trl.spider.result import Rows, result_eq
from nl2sql_trl.spider.text import executed_text, order_matters, suite_text
from nl2sql_trl.suite.hints import Hints, hints
from nl2sql_trl.suite.infer import infer, with_parents
from nl2sql_trl.suite.neighbours import neighbours
from nl2sql_trl.suite.randomdb import Growing, Style
from nl2sql_trl.suite.reader import Reader, insertion, memory
from nl2sql_trl.suite.reading import AGGREGATES, COMPARISONS, Reading, read
from nl2sql_trl.suite.same import free_choices, rewrites, tie_breakers
from nl2sql_trl.suite.shape import Table, plain_script, quoted, read_tables, schema_script

_GOLD_STEPS = 50_000_000
_NEIGHBOUR_STEPS = 400_000
_STEPS = 200_000
_NEIGHBOURS = 160
_DENY = sqlite3.SQLITE_DENY
_READS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


@dataclass(frozen=True)
class Gold:
    """A gold query as it is executed, with and without its DISTINCT.

    ``forms`` are other words for the first of ``texts``, which return the same where nothing ties.
    ``settled`` says that its results need not depend on the order of rows, ``wavers`` that they
    can: a filter or sum cannot do that.
    """

    reading: Reading
    texts: tuple[str, ...]
    ordered: bool
    tables: frozenset[str]
    forms: tuple[str, ...]
    settled: bool
    wavers: bool


@dataclass(frozen=True)
class Pair:
    """A gold (by position) and a neighbour of its own, as texts to execute."""

    gold: int
    text: str
    neighbour: str


@dataclass(frozen=True)
class Known:
    """What is known of one database while its suite is built."""

    script: list[str]
    tables: dict[str, Table]
    hints: Hints
    golds: list[Gold]
    base: Reader


def learn(path: Path, golds: Sequence[str]) -> Known:
    """Read a database and the golds on it.

    Raises DataError where its schema cannot be made anew, DatabaseError or sqlite3.Error where it
    cannot be read.
    """
    raw = sqlite3.connect(":memory:", isolation_level=None, cached_statements=1_000)
    with closing(connect(path)) as source:
        source.backup(raw)
    raw.text_factory = _decode
    base = Reader(raw, _GOLD_STEPS)
    tables, script = read_tables(raw), schema_script(raw)
    try:
        memory(script, 0).raw.close()
    except sqlite3.Error as error:
        raise DataError(
            f"the schema of {path} cannot be made anew ({error}): leave this database out"
        ) from error
    readings = list({r.text: r for r in (read(gold, tables) for gold in golds)}.values())
    tables = infer(tables, hints(readings, tables).joined)
    plain = plain_script(tables, script)
    twins = memory(plain, _GOLD_STEPS), memory(plain, _GOLD_STEPS)
    for table in tables.values():
        listed = ", ".join(quoted(column.name) for column in table.columns)
        rows = raw.execute(f"SELECT {listed} FROM {quoted(table.name)}").fetchall()
        twins[0].raw.executemany(insertion(table), rows)
        twins[1].raw.executemany(insertion(table), reversed(rows))
    # From here on nothing but reads: what runs here runs on the random databases too.
    raw.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READS else _DENY)
    known = [gold for reading in readings if (gold := _gold(reading, base, twins)) is not None]
    for twin in twins:
        twin.raw.close()
    base.steps = _NEIGHBOUR_STEPS
    return Known(script, tables, hints([g.reading for g in known], tables), known, base)


def _decode(data: bytes) -> str:
    """Leave out bytes that are no UTF-8, as the official metric does."""
    return data.decode(errors="ignore")


def _gold(reading: Reading, base: Reader, twins: Iterable[Reader]) -> Gold | None:
    """The gold with what the base says about it; None if it does not run there."""
    try:
        official = executed_text(suite_text(reading.text))
    except OfficialAbort:
        return None
    texts = tuple(dict.fromkeys((official, executed_text(reading.text))))
    results = [base.rows(text) for text in texts]
    if None in results:
        return None
    ordered = order_matters(official)

    def same(form: str) -> bool:
        return _same(base.rows(form), results[0], ordered)

    ties = [form for form in map(_executed, tie_breakers(reading)) if base.rows(form) is not None]
    choices = [_executed(text) for text in free_choices(reading)]
    forms = [*ties, *filter(same, choices)]
    # Ties can be avoided; what a query leaves open, and rows compared in no order, cannot.
    avoidable = bool(ties) and not choices and ordered == order_matters(official, fixed=True)
    settled = avoidable or _agree(twins, texts, results, ordered)
    if not settled:
        forms += filter(same, map(_executed, rewrites(reading)))
    return Gold(
        reading,
        texts,
        ordered,
        frozenset(table for source in reading.sources for table in source.values()),
        tuple(forms),
        settled,
        wavers=bool(choices or reading.find("order", "limit") or _takes_any_row(reading)),
    )


def _takes_any_row(reading: Reading) -> bool:
    """Whether a column stands beside an aggregate, or a comparison takes a row of a sub-query."""
    grouped = {reading.scope[index] for index in reading.find("group")}
    aggregated = {reading.scope[index] for index in reading.find(*AGGREGATES)} - grouped
    selects = [index for index in reading.find("select") if reading.scope[index] in aggregated]
    compared = any(
        reading.tokens[index - 2] in COMPARISONS and reading.tokens[index - 1] == "("
        for index in reading.find("select")
        if index >= 2
    )
    return compared or any(map(reading.bare_columns, selects))


def _agree(
    twins: Iterable[Reader], texts: Sequence[str], results: Sequence[Rows | None], ordered: bool
) -> bool:
    """Whether the texts return these results on the twins."""
    return all(
        _same(twin.rows(text), rows, ordered)
        for twin in twins
        for text, rows in zip(texts, results, strict=True)
    )


def _executed(text: str) -> str:
    """What the official metric executes."""
    return executed_text(suite_text(text))


def pairs_of(known: Known, rng: random.Random) -> Iterator[Pair]:
    """The neighbours that run on the base, each once a gold."""
    for index, gold in enumerate(known.golds):
        seen = set(gold.texts)
        for neighbour in neighbours(gold.reading, known.tables, rng, _NEIGHBOURS):
            own, text = gold.texts[0], _executed(neighbour)
            if text == own:  # DISTINCT is all that differs: the official metric drops it
                own, text = gold.texts[-1], executed_text(neighbour)
            key = " ".join(text.split())
            if key not in seen and known.base.rows(text) is not None:
                seen.add(key)
                yield Pair(index, own, text)


def told_apart(known: Known, pairs: Iterable[Pair], reader: Reader) -> list[Pair]:
    """The pairs whose results differ on this database."""
    golds: dict[str, Rows | None] = {}
    told = []
    for pair in pairs:
        if pair.text not in golds:
            golds[pair.text] = reader.rows(pair.text)
        rows, ordered = golds[pair.text], known.golds[pair.gold].ordered
        if rows is not None and not _same(rows, reader.rows(pair.neighbour), ordered):
            told.append(pair)
    return told


def _same(one: Rows | None, two: Rows | None, ordered: bool) -> bool:
    if one is None or two is None:
        return False
    return one == two or result_eq(one, two, ordered)


def draw(known: Known, needs: Mapping[int, float], rng: random.Random) -> Growing:
    """A random database, mostly made for some golds (by position), picked by their needs."""
    picked = rng.choices(list(needs), list(needs.values()), k=rng.choice((0, 1, 3, 6)))
    focus = [known.golds[index] for index in dict.fromkeys(picked)]
    size = rng.choice((4, 8, 16, 32))
    used = [table for gold in focus for table in gold.tables]
    near = with_parents(known.tables, used) if focus else set(known.tables)
    style = Style(
        sizes={
            name: rng.randint(2, size) if name in near else rng.randint(1, 3)
            for name in known.tables
        },
        aims=[hints([gold.reading], known.tables).literals for gold in focus],
        aimed=rng.choice((0.3, 0.6, 0.9)),
        clones=rng.choice((0.0, 0.1, 0.3)),
    )
    grown = Growing(known.tables, known.script, known.hints, style, rng, _STEPS)
    checked = {
        name: [gold for gold in known.golds if name in gold.tables and gold.wavers]
        for name in known.tables
    }
    grown.grow(lambda table: all(_stands(gold, grown) for gold in checked[table]))
    return grown


def _stands(gold: Gold, grown: Growing) -> bool:
    """Whether the gold's result does not depend on the order in which rows are visited."""
    results = [grown.keyed.rows(text) for text in gold.texts]
    if not all(_same(results[0], grown.keyed.rows(f), gold.ordered) for f in gold.forms):
        return False
    twins = (grown.forward, grown.backward)
    return not gold.settled or _agree(twins, gold.texts, results, gold.ordered)
