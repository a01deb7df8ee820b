"""What queries say about columns: the values, orders and matches that a database should have."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from nl2sql_trl.suite.infer import key_pairs
from nl2sql_trl.suite.reading import SETS, Reading
from nl2sql_trl.suite.shape import Kind, Place, Table, Value

_EXACT = 2.0**53  # whole numbers up to here are exact as float


@dataclass(frozen=True)
class Hints:
    """What queries say about columns.

    ``literals`` holds values that a column is compared with and some just off them, ``sorted``
    and ``summed`` columns of an ORDER BY without groups and of sum and avg, ``joined`` pairs of
    columns compared with each other, ``matched`` pairs that meet in a set operation or IN.
    """

    literals: Mapping[Place, Sequence[Value]] = field(default_factory=dict)
    sorted: frozenset[Place] = frozenset()
    summed: frozenset[Place] = frozenset()
    joined: Sequence[tuple[Place, Place]] = ()
    matched: Sequence[tuple[Place, Place]] = ()


def hints(readings: Sequence[Reading], tables: Mapping[str, Table]) -> Hints:
    """What all these queries say."""
    literals: dict[Place, list[Value]] = {}
    ordered: set[Place] = set()
    summed: set[Place] = set()
    joined: dict[tuple[Place, Place], None] = {}
    matched: dict[tuple[Place, Place], None] = {}
    for reading in readings:
        for index in range(len(reading.tokens)):
            place = reading.literal_column(index) if reading.is_literal(index) else None
            if place is not None and reading.clause[index] not in ("select", "limit"):
                kind = tables[place[0]].column(place[1]).kind
                like = reading.low[index - 1] == "like"
                literals.setdefault(place, []).extend(_near(reading.tokens[index], kind, like))
        grouped = {reading.scope[index] for index in reading.find("group")}
        for index, place in reading.columns.items():
            if reading.clause[index] == "order" and reading.scope[index] not in grouped:
                ordered.add(place)
        for index in reading.find("sum", "avg"):
            inside = range(index, reading.until(index + 1, ")"))
            summed |= {reading.columns[at] for at in inside if at in reading.columns}
        for index in reading.find("="):
            behind = [at for at in (index + 1, index + 3) if at in reading.columns]
            if index - 1 in reading.columns and behind:
                joined[reading.columns[index - 1], reading.columns[behind[0]]] = None
        for index in reading.find(*SETS, "in"):
            matched |= dict.fromkeys(_meeting(reading, index))
    return Hints(
        _along_links(literals, tables),
        frozenset(ordered),
        frozenset(summed),
        list(joined),
        [pair for pair in matched if pair[0] != pair[1]],
    )


def _meeting(reading: Reading, index: int) -> Iterator[tuple[Place, Place]]:
    """The columns on both sides of a set operation or IN, in order."""

    def places(start: int, end: int) -> list[Place]:
        return [reading.columns[at] for at in range(start, end) if at in reading.columns]

    def selected(start: int) -> list[Place]:
        select = next((i for i in reading.find("select") if i >= start), start)
        return places(select, reading.until(select, "from"))

    if reading.low[index] == "in":
        before = places(max(index - 2, 0), index)
    else:
        before = selected(reading.start_of_side(index))
    yield from zip(before, selected(index), strict=False)


def _along_links(
    literals: dict[Place, list[Value]], tables: Mapping[str, Table]
) -> dict[Place, list[Value]]:
    """A value that a foreign key is compared with must be there in the column it refers to."""
    pairs = key_pairs(tables)
    for _ in tables:  # as far as keys of keys go
        for name, own, parent, target in pairs:
            found = literals.get((name, own), [])
            known = literals.setdefault((parent, target), [])
            known += [value for value in found if value not in known]
    return {place: values for place, values in literals.items() if values}


def _near(token: str, kind: Kind, like: bool) -> Sequence[Value]:
    """Values at a literal (more of these) and beside it, of the kind of its column."""
    text = token[1:-1].replace("''", "'") if token[0] in "'\"" else token
    if kind in ("int", "real"):
        try:
            number = float(text)
        except ValueError:
            return []
        if not abs(number) < _EXACT:
            return []
        near = [number] * 3 + [number - 1, number + 1]
        return [int(value) for value in near] if kind == "int" else near
    rng = random.Random(text)
    if like:
        core = text.strip("%").replace("%", " ").replace("_", "e")
        return [core, core, f"{core}s", f"Un{core}", f"Un{core}s", vary(core, rng)]
    if re.fullmatch(r"\d+", text):
        return [text] * 4 + [str(int(text) - 1), str(int(text) + 1)]
    # The same but for case is another text, except to LIKE.
    return [text] * 4 + [vary(text, rng), text.lower() if text != text.lower() else text.upper()]


def vary(text: str, rng: random.Random) -> str:
    """Change one letter or digit to another of its sort; of a date, the last digit."""
    places = [index for index, character in enumerate(text) if character.isalnum()]
    if not places:
        return text + rng.choice("abc")
    at = places[-1] if re.match(r"\d+[-/]\d", text) else rng.choice(places)
    sorts = ("123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
    sort = sorts[0] if text[at].isdigit() else sorts[1] if text[at].isupper() else sorts[2]
    return text[:at] + rng.choice(sort) + text[at + 1 :]
