"""Exact set match: do two queries consist of the same clauses, whatever the order and values?

Follows both official scorers with value and DISTINCT checking switched off. It compares trees; it
executes nothing. Known oddities are kept: ON conditions are ignored, ``a = 5`` equals ``a = b``,
and what stands in a FROM sub-query is compared literally.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from nl2sql_trl.spider.canonical import canonical
from nl2sql_trl.spider.errors import OfficialAbort, SqlParseError
from nl2sql_trl.spider.parser import parse
from nl2sql_trl.spider.schema import Schema
from nl2sql_trl.spider.tree import EMPTY_QUERY, IN, LIKE, OPERATORS, CondUnit, Query, Variant, units


class ComponentScore(NamedTuple):
    """How many elements gold and prediction have in a component, and whether they agree (0/1)."""

    gold: int
    pred: int
    score: int


@dataclass(frozen=True)
class Match:
    """The verdict and the ten component scores by name, in the official order."""

    exact: bool
    partial: dict[str, ComponentScore]


def exact_match(gold: str, pred: str, schema: Schema, variant: Variant) -> Match:
    """Compare two statements.

    A prediction that cannot be parsed counts as the empty query. Raises SqlParseError for such a
    gold and OfficialAbort where the official scorer dies. The test-suite scorer also replaces
    ``value`` by ``1`` in predictions; that is the caller's business (see ``text``).
    """
    gold_query = parse(gold, schema, variant)
    try:
        pred_query = parse(pred, schema, variant)
    except SqlParseError:
        pred_query = EMPTY_QUERY
    return match(canonical(gold_query, schema), canonical(pred_query, schema))


def match(gold: Query, pred: Query) -> Match:
    """Compare two canonical trees; OfficialAbort where the official scorer dies."""
    partial = {
        "select": _multiset(gold.select, pred.select),
        "select_no_agg": _multiset(
            [item.value for item in gold.select], [item.value for item in pred.select]
        ),
        "where": _multiset(units(gold.where), units(pred.where)),
        "where_no_op": _multiset(
            [unit.left for unit in units(gold.where)], [unit.left for unit in units(pred.where)]
        ),
        "group_no_having": _multiset(_group_names(gold), _group_names(pred)),
        "group": _group(gold, pred),
        "order": _order(gold, pred),
        "and_or": _connectors(gold, pred),
        "iuen": _set_operations(gold, pred),
        "keywords": _keywords(gold, pred),
    }
    exact = all(component.score for component in partial.values())
    return Match(exact and _same_tables(gold, pred), partial)


def _component(gold: int, pred: int, hits: int) -> ComponentScore:
    return ComponentScore(gold, pred, int(gold == pred == hits))


def _multiset(gold: Iterable[Hashable], pred: Iterable[Hashable]) -> ComponentScore:
    gold_counts, pred_counts = Counter(gold), Counter(pred)
    hits = (gold_counts & pred_counts).total()
    return _component(gold_counts.total(), pred_counts.total(), hits)


def _group_names(query: Query) -> list[str]:
    return [column.column.partition(".")[2] or column.column for column in query.group_by]


def _group(gold: Query, pred: Query) -> ComponentScore:
    same = [column.column for column in gold.group_by] == [
        column.column for column in pred.group_by
    ] and gold.having == pred.having
    present = bool(gold.group_by)
    return _component(int(present), int(bool(pred.group_by)), int(present and same))


def _order(gold: Query, pred: Query) -> ComponentScore:
    present = gold.order_by is not None
    same = gold.order_by == pred.order_by and (gold.limit is None) == (pred.limit is None)
    return _component(int(present), int(pred.order_by is not None), int(present and same))


def _connectors(gold: Query, pred: Query) -> ComponentScore:
    gold_set, pred_set = _connector_set(gold), _connector_set(pred)
    if gold_set == pred_set:
        return ComponentScore(1, 1, 1)
    # The official script hands the two sizes over in the wrong order.
    return ComponentScore(len(pred_set), len(gold_set), 0)


def _connector_set(query: Query) -> set[CondUnit | str]:
    connectors = query.where[1::2]
    for part in connectors:
        if not isinstance(part, str) and (
            isinstance(part.value, Query) or isinstance(part.upper, Query)
        ):
            raise OfficialAbort("a nested query stands where a connector belongs")
    return set(connectors)


def _set_operations(gold: Query, pred: Query) -> ComponentScore:
    pairs = [
        (gold.intersect, pred.intersect),
        (gold.except_, pred.except_),
        (gold.union, pred.union),
    ]
    hits = sum(
        match(gold_side, pred_side).exact
        for gold_side, pred_side in pairs
        if gold_side is not None and pred_side is not None
    )
    gold_total = sum(gold_side is not None for gold_side, _ in pairs)
    pred_total = sum(pred_side is not None for _, pred_side in pairs)
    return _component(gold_total, pred_total, hits)


def _keywords(gold: Query, pred: Query) -> ComponentScore:
    gold_set, pred_set = _keyword_set(gold), _keyword_set(pred)
    return _component(len(gold_set), len(pred_set), len(gold_set & pred_set))


def _keyword_set(query: Query) -> set[str]:
    clauses = {
        "where": query.where,
        "group": query.group_by,
        "having": query.having,
        "order": query.order_by,
        "intersect": query.intersect,
        "union": query.union,
        "except": query.except_,
    }
    found = {name for name, clause in clauses.items() if clause}
    if query.order_by is not None:
        found.add(query.order_by.direction)
    if query.limit is not None:
        found.add("limit")
    for conditions in (query.on, query.where, query.having):
        if "or" in conditions[1::2]:
            found.add("or")
        for unit in units(conditions):
            if unit.negated:
                found.add("not")
            if unit.op in (IN, LIKE):
                found.add(OPERATORS[unit.op])
    return found


def _same_tables(gold: Query, pred: Query) -> bool:
    if not gold.tables:
        return True
    for query in (gold, pred):
        nested = [table.source for table in query.tables if table.kind == "sql"]
        # The official script sorts the tables, and two different trees have no order.
        if any(source != nested[0] for source in nested):
            raise OfficialAbort("two different sub-queries side by side in FROM")
    return Counter(gold.tables) == Counter(pred.tables)
