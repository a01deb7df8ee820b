"""Rewrite a parse tree the way the official scorers do before they compare it.

Values go, DISTINCT goes, and linked columns get the name of their group's first column. Sub-queries
in FROM stay as they are; nested queries in conditions lose their values only.
"""

from __future__ import annotations

from dataclasses import replace

from nl2sql_trl.spider.errors import OfficialAbort
from nl2sql_trl.spider.schema import Schema
from nl2sql_trl.spider.tree import ColUnit, Conditions, CondUnit, Query, Value, ValUnit


def canonical(query: Query, schema: Schema) -> Query:
    """Return the tree that the scorers compare; OfficialAbort where they die on it."""
    own_columns: set[str] = set()
    for table in query.tables:
        if isinstance(table.source, str):
            own_columns |= schema.column_ids(table.source)
    names = {
        column: target for column, target in schema.foreign_keys.items() if column in own_columns
    }
    return _rename(_drop_values(query), names)


def _drop_values(query: Query) -> Query:
    return replace(
        query,
        on=_without_values(query.on),
        where=_without_values(query.where),
        having=_without_values(query.having),
        intersect=query.intersect and _drop_values(query.intersect),
        union=query.union and _drop_values(query.union),
        except_=query.except_ and _drop_values(query.except_),
    )


def _without_values(conditions: Conditions) -> Conditions:
    parts = list(conditions)
    for index in range(0, len(parts), 2):
        unit = parts[index]
        if isinstance(unit, str):
            raise OfficialAbort(f"a connector is missing before {unit!r}")
        parts[index] = unit._replace(value=_shape(unit.value), upper=_shape(unit.upper))
    return tuple(parts)


def _shape(value: Value) -> Query | None:
    return _drop_values(value) if isinstance(value, Query) else None


def _rename(query: Query, names: dict[str, str]) -> Query:
    def column(unit: ColUnit) -> ColUnit:
        return ColUnit(unit.agg, names.get(unit.column, unit.column), None)

    def value(unit: ValUnit) -> ValUnit:
        return ValUnit(unit.op, column(unit.left), unit.right and column(unit.right))

    def conditions(parts: Conditions) -> Conditions:
        return tuple(
            part._replace(left=value(part.left))
            if index % 2 == 0 and isinstance(part, CondUnit)
            else part
            for index, part in enumerate(parts)
        )

    return replace(
        query,
        distinct=None,
        select=tuple(item._replace(value=value(item.value)) for item in query.select),
        on=conditions(query.on),
        where=conditions(query.where),
        group_by=tuple(column(unit) for unit in query.group_by),
        having=conditions(query.having),
        order_by=query.order_by
        and query.order_by._replace(units=tuple(value(unit) for unit in query.order_by.units)),
        intersect=query.intersect and _rename(query.intersect, names),
        union=query.union and _rename(query.union, names),
        except_=query.except_ and _rename(query.except_, names),
    )
