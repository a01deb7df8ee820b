"""The parse tree of Spider's SQL subset, as plain immutable values.

Two trees compare with ``==`` the way the official scorers compare theirs: field by field, with
Python's equality of numbers and strings. Nothing here knows how a tree is made or scored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

Variant: TypeAlias = Literal["legacy", "test_suite"]
"""Which of the two official ``process_sql.py`` files is meant; they treat LIMIT differently."""

AGGREGATES = ("none", "max", "min", "count", "sum", "avg")
ARITHMETIC = ("none", "-", "+", "*", "/")
OPERATORS = (
    *("not", "between", "=", ">", "<", ">=", "<=", "!="),
    *("in", "like", "is", "exists"),
)
IN = OPERATORS.index("in")
LIKE = OPERATORS.index("like")


class ColUnit(NamedTuple):
    """A column with an optional aggregate; ``distinct`` is None once it no longer counts."""

    agg: int
    column: str
    distinct: bool | None


class ValUnit(NamedTuple):
    """One column, or two joined by an arithmetic operator."""

    op: int
    left: ColUnit
    right: ColUnit | None


class SelectItem(NamedTuple):
    """One item of the SELECT list with its outer aggregate."""

    agg: int
    value: ValUnit


class CondUnit(NamedTuple):
    """One comparison; ``upper`` is the second bound of BETWEEN."""

    negated: bool
    op: int
    left: ValUnit
    value: Value
    upper: Value


class TableUnit(NamedTuple):
    """One source of FROM: the id of a table, or a sub-query."""

    kind: Literal["table_unit", "sql"]
    source: str | Query


class OrderBy(NamedTuple):
    """ORDER BY with its single direction (the last one written)."""

    direction: str
    units: tuple[ValUnit, ...]


Value: TypeAlias = "Query | ColUnit | str | float | None"
Conditions: TypeAlias = "tuple[CondUnit | str, ...]"
"""Conditions and connectors as written. They alternate unless the statement left one out."""


@dataclass(frozen=True)
class Query:
    """One SELECT with at most one set operation to its right."""

    distinct: bool | None = False
    select: tuple[SelectItem, ...] = ()
    tables: tuple[TableUnit, ...] = ()
    on: Conditions = ()
    where: Conditions = ()
    group_by: tuple[ColUnit, ...] = ()
    having: Conditions = ()
    order_by: OrderBy | None = None
    limit: int | None = None
    intersect: Query | None = None
    union: Query | None = None
    except_: Query | None = None


EMPTY_QUERY = Query()
"""What the official scorers use in place of a prediction that they cannot parse."""


def units(conditions: Conditions) -> tuple[CondUnit, ...]:
    """The conditions at the even positions, where the official scorers look for them."""
    return tuple(unit for unit in conditions[::2] if not isinstance(unit, str))
