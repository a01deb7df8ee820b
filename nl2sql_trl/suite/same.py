"""Other words for a query that return the same, as long as the query leaves no choice.

They show whether a database settles a query's result: where rows tie, they differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nl2sql_trl.suite.edits import Tokens, edit, reference, select_spans
from nl2sql_trl.suite.reading import AFTER_FROM, JOINS, SETS, Reading


def rewrites(reading: Reading) -> list[str]:
    """The query with the first two tables of a join in either order, which SQLite has to keep to.

    Other words, same meaning: CROSS JOIN forbids SQLite to choose which table comes first.
    """
    made = []
    for start in reading.find("from"):
        join, on = reading.until(start, *JOINS), reading.until(start, "on")
        plain_join = reading.low[join : join + 1] == ("join",) and join < on
        known = on < reading.until(start, *AFTER_FROM) and "(" not in reading.tokens[start:on]
        if plain_join and known:
            one, two = reading.tokens[start + 1 : join], reading.tokens[join + 1 : on]
            for first, second in ((one, two), (two, one)):
                made.append(" ".join(edit(reading, start + 1, on, *first, "CROSS JOIN", *second)))
    return made


def tie_breakers(reading: Reading) -> list[str]:
    """The query with what sorts alike sorted by the selected items too, upwards and downwards.

    Where nothing ties, each returns what the query does.
    """
    made = []
    for order in reading.find("order"):
        selects = [i for i in reading.find("select") if reading.scope[i] == reading.scope[order]]
        at = reading.until(order, *SETS, "limit")
        made += [edit(reading, at, at, ",", *keys) for keys in _item_keys(reading, selects)]
    return [" ".join(tokens) for tokens in made]


def free_choices(reading: Reading) -> list[str]:
    """The query with a definite choice where it leaves one, once the first and once the last.

    That is a LIMIT without ORDER BY, and a column that is neither grouped by nor aggregated.
    Where all that could be chosen is the same, each returns what the query does.
    """
    made = []
    for select in reading.find("select"):
        limit = reading.until(select, *SETS, "order", "limit")
        if reading.low[limit : limit + 1] == ("limit",):
            for keys in _item_keys(reading, [select]):
                made.append(edit(reading, limit, limit, "ORDER", "BY", *keys))
        group = reading.until(select, *SETS, "group")
        if reading.low[group : group + 1] == ("group",):
            end = reading.until(group, *SETS, "having", "order", "limit")
            keyed = {place for index, place in reading.columns.items() if group < index < end}
            bare = [i for i in reading.bare_columns(select) if reading.columns[i] not in keyed]
            for best in ("min", "max") if bare else ():
                tokens = list(reading.tokens)
                for index in reversed(bare):
                    column = slice(reference(reading, index), index + 1)
                    tokens[column] = [best, "(", *tokens[column], ")"]
                made.append(tokens)
    return [" ".join(tokens) for tokens in made]


def _item_keys(reading: Reading, selects: Sequence[int]) -> Iterator[Tokens]:
    """The items of a SELECT as keys to sort by, upwards and downwards."""
    count = len(select_spans(reading, selects[0])) if selects else 1
    for direction in ("ASC", "DESC"):
        yield ", ".join(f"{number} {direction}" for number in range(1, count + 1)).split(" ")
