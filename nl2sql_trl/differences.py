"""What tells two queries apart: in their parsed SQL, in the tables they read, and in their rows.

Names only, no judgement: `analysis.py` decides which difference is the cause of a failure. Parse
trees are those of Spider's grammar; for what it rejects, words and literals are compared, and the
tables come from SQLite itself, which tells at compile time what a statement reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from nl2sql_trl.database import reads
from nl2sql_trl.goldtext import limit_cut, names, quoted_literals, tokens
from nl2sql_trl.records import QueryResult
from nl2sql_trl.rewards import ordered
from nl2sql_trl.spider.canonical import canonical
from nl2sql_trl.spider.errors import OfficialAbort
from nl2sql_trl.spider.result import result_eq
from nl2sql_trl.spider.schema import Schema
from nl2sql_trl.spider.tree import ColUnit, Conditions, Query, units

_AGGREGATES = {"COUNT", "SUM", "AVG", "MIN", "MAX"}
_SETS = {"UNION", "INTERSECT", "EXCEPT"}


def tree_differences(gold: Query, pred: Query, schema: Schema) -> list[str]:
    """The clauses in which two parsed queries differ, most basic first."""
    try:
        ours, theirs = canonical(pred, schema), canonical(gold, schema)
    except OfficialAbort:
        return ["not comparable"]
    found = {
        "tables": _tables(ours) != _tables(theirs),
        "join path": _tables(ours) == _tables(theirs) and join_keys(pred) != join_keys(gold),
        "columns selected": _columns(ours) != _columns(theirs),
        "aggregation": _aggregates(ours) != _aggregates(theirs),
        "grouping": Counter(ours.group_by) != Counter(theirs.group_by)
        or _shape(ours.having) != _shape(theirs.having),
        "condition": _shape(ours.where) != _shape(theirs.where),
        "literal value": _literals(pred) != _literals(gold)
        and (_shape(ours.where), _shape(ours.having))
        == (_shape(theirs.where), _shape(theirs.having)),
        "DISTINCT": _distincts(pred) != _distincts(gold),
        "order": ours.order_by != theirs.order_by,
        "limit": pred.limit != gold.limit,
        "set operation": _set_operations(ours) != _set_operations(theirs),
        "nesting": _nested(ours) != _nested(theirs),
    }
    names = [name for name, differs in found.items() if differs]
    if not names and ours.select != theirs.select:
        return ["column order"]
    return names


def _tables(query: Query) -> Counter[str]:
    return Counter(t.source for t in query.tables if isinstance(t.source, str))


def _columns(query: Query) -> Counter[object]:
    return Counter(
        (item.value.op, item.value.left.column, item.value.right and item.value.right.column)
        for item in query.select
    )


def _aggregates(query: Query) -> Counter[int]:
    return Counter(agg for item in query.select if (agg := item.agg or item.value.left.agg))


def _shape(conditions: Conditions) -> tuple[Counter[object], Counter[object]]:
    """Conditions without their right-hand sides, and the connectors between them."""
    shape: Counter[object] = Counter(
        (unit.negated, unit.op, unit.left, isinstance(unit.value, Query))
        for unit in units(conditions)
    )
    return shape, Counter(part for part in conditions[1::2] if isinstance(part, str))


def _literals(query: Query) -> Counter[object]:
    values = [
        value
        for conditions in (query.where, query.having)
        for unit in units(conditions)
        for value in (unit.value, unit.upper)
        if isinstance(value, (str, float))
    ]
    return Counter(value.strip("\"'") if isinstance(value, str) else value for value in values)


def _distincts(query: Query) -> tuple[bool, int]:
    columns = sum(bool(item.value.left.distinct) for item in query.select)
    return bool(query.distinct), columns


def _set_operations(query: Query) -> tuple[Query | None, ...]:
    return query.intersect, query.union, query.except_


def _nested(query: Query) -> Counter[object]:
    """The queries inside conditions and FROM."""
    inside = [
        value
        for conditions in (query.on, query.where, query.having)
        for unit in units(conditions)
        for value in (unit.value, unit.upper)
    ]
    inside += [table.source for table in query.tables]
    return Counter(value for value in inside if isinstance(value, Query))


def join_keys(query: Query) -> set[frozenset[str]]:
    """The pairs of columns that joins equate, in ON and in WHERE, of the outermost query."""
    return {
        frozenset((unit.left.left.column, unit.value.column))
        for conditions in (query.on, query.where)
        for unit in units(conditions)
        if isinstance(unit.value, ColUnit)
    }


def wrong_join_keys(gold: Query, pred: Query, schema: Schema) -> list[str]:
    """Joins of the prediction on columns that no foreign key links and the gold doesn't join on."""
    wrong = []
    for pair in join_keys(pred) - join_keys(gold):
        groups = {schema.foreign_keys.get(column, column) for column in pair}
        if len(pair) == 2 and len(groups) == 2:
            wrong.append(" = ".join(sorted(column.strip("_") for column in pair)))
    return sorted(wrong)


def text_differences(gold: str, pred: str) -> list[str]:
    """Like `tree_differences` for what cannot be parsed: by words and literals."""
    ours, theirs = _words(pred), _words(gold)
    return [name for name in ours if ours[name] != theirs[name]]


def _words(query: str) -> dict[str, object]:
    found = tokens(query)
    words = Counter(token.text for token in found if token.kind == "word")
    after = [*found[1:], None]
    calls = Counter(
        token.text
        for token, following in zip(found, after, strict=True)
        if token.text in _AGGREGATES and following is not None and following.text == "("
    )
    limits = [
        following.text
        for token, following in zip(found, after, strict=True)
        if token.text == "LIMIT" and following is not None
    ]
    literals = Counter(
        token.text.strip("'\"") for token in found if token.kind in ("string", "number", "quoted")
    )
    return {
        "aggregation": calls,
        "grouping": (words["GROUP"], words["HAVING"]),
        "condition": (words["WHERE"], words["AND"], words["OR"], words["NOT"], words["LIKE"]),
        "literal value": literals - Counter(limits),
        "DISTINCT": words["DISTINCT"],
        "order": (words["ORDER"], words["DESC"]),
        "limit": limits,
        "set operation": Counter({name: words[name] for name in _SETS}),
        "nesting": words["SELECT"],
    }


def tables_read(path: Path, query: str) -> set[str] | None:
    """Lower-case names of the tables that a statement reads; None if it does not compile."""
    read = reads(path, query)
    if read is None:
        return None
    return {table for table, _ in read if table and not table.startswith("sqlite_")}


def quoted_as_literal(path: Path, query: str) -> Iterator[str]:
    """Names in double quotes that SQLite, finding no such column, took for strings.

    Where a value belongs (after a comparison, inside IN), such a string is most likely meant, as in
    Spider's golds; elsewhere, and when it spells a column or table, a name was meant.
    """
    known = names(path)
    suspects = set(quoted_literals(query, known))
    if not suspects:
        return
    squeezed = {name.replace("_", "").replace(" ", "") for name in known}
    found = tokens(query)
    for n, token in enumerate(found):
        if token.text not in suspects:
            continue
        name = token.text.strip('"')
        before = found[n - 1].text if n else ""
        following = found[n + 1].text if n + 1 < len(found) else ""
        listed = any(t.text == "IN" and t.depth < token.depth for t in found[:n])
        value = before in ("=", ">", "<", "LIKE", "GLOB", "BETWEEN", "IS", "NOT", "AND") or listed
        alike = name.lower().replace("_", "").replace(" ", "") in squeezed
        if alike or not value or following in ("=", "<", ">", "!"):
            yield name


def result_difference(path: Path, gold_sql: str, gold: QueryResult, pred: QueryResult) -> str:
    """How the rows differ, in a word or two; column names do not count."""
    in_order = ordered(gold_sql)
    if len(gold.columns) != len(pred.columns):
        return "number of columns"
    if not pred.rows or not gold.rows:
        if not pred.rows and not gold.rows:
            return "equal on the base database"
        return "gold is empty, answer is not" if pred.rows else "answer is empty, gold is not"
    if result_eq(gold.rows, pred.rows, in_order, fixed=True):
        same = gold.rows if in_order else Counter(gold.rows)
        equal = same == (pred.rows if in_order else Counter(pred.rows))
        return "equal on the base database" if equal else "column order"
    if len(gold.rows) == len(pred.rows) and limit_cut(path, gold_sql) == "tie":
        return "ties"
    if in_order and result_eq(gold.rows, pred.rows, False, fixed=True):
        return "row order"
    ours, theirs = Counter(pred.rows), Counter(gold.rows)
    if set(ours) == set(theirs):
        return "duplicates"
    if not theirs - ours:
        return "extra rows"
    if not ours - theirs:
        return "missing rows"
    if len(gold.rows) == len(pred.rows) == 1:
        return "another value"
    return "other rows"
