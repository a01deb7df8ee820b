"""Spider's hardness of a query: easy, medium, hard or extra.

Counted on the outermost query only, with the quirks of the official scorers (negated conditions
and connectors of HAVING count as aggregates, and one combination falls through to extra).
"""

from __future__ import annotations

from nl2sql_trl.spider.parser import parse
from nl2sql_trl.spider.schema import Schema
from nl2sql_trl.spider.tree import LIKE, Conditions, Query, units

LEVELS = ("easy", "medium", "hard", "extra")


def hardness(query: str, schema: Schema) -> str:
    """Return the level of a query; SqlParseError when Spider's parser cannot read it."""
    return hardness_of(parse(query, schema, "test_suite"))


def hardness_of(query: Query) -> str:
    """Return the level of a parsed query, as it was parsed: before any rewriting."""
    components = _components(query)
    nested = _nested(query)
    others = _others(query)
    if nested == 0:
        if components <= 1:
            return "easy" if others == 0 else "medium" if others <= 2 else "hard"
        if components == 2:
            return "medium" if others <= 1 else "extra" if others == 2 else "hard"
        return "hard" if components == 3 and others <= 2 else "extra"
    return "hard" if nested == 1 and components <= 1 and others == 0 else "extra"


def _condition_lists(query: Query) -> tuple[Conditions, Conditions, Conditions]:
    return query.on, query.where, query.having


def _components(query: Query) -> int:
    count = bool(query.where) + bool(query.group_by)
    count += (query.order_by is not None) + (query.limit is not None)
    count += max(len(query.tables) - 1, 0)
    for conditions in _condition_lists(query):
        count += conditions[1::2].count("or")
        count += sum(unit.op == LIKE for unit in units(conditions))
    return count


def _nested(query: Query) -> int:
    count = sum(other is not None for other in (query.intersect, query.union, query.except_))
    for conditions in _condition_lists(query):
        for unit in units(conditions):
            count += isinstance(unit.value, Query) + isinstance(unit.upper, Query)
    return count


def _others(query: Query) -> int:
    aggregates = sum(item.agg != 0 for item in query.select)
    aggregates += sum(unit.negated for unit in units(query.where))
    aggregates += sum(column.agg != 0 for column in query.group_by)
    if query.order_by is not None:
        for unit in query.order_by.units:
            aggregates += unit.left.agg != 0
            aggregates += unit.right is not None and unit.right.agg != 0
    aggregates += sum(isinstance(part, str) or part.negated for part in query.having)
    return (
        (aggregates > 1)
        + (len(query.select) > 1)
        + (len(query.where) > 1)
        + (len(query.group_by) > 1)
    )
