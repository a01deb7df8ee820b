"""The lower half of the grammar: columns, values and conditions, read from a cursor.

Clauses and whole queries are the business of ``parser``, which builds on this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from nl2sql_trl.spider.errors import SqlParseError
from nl2sql_trl.spider.schema import Schema
from nl2sql_trl.spider.tree import (
    AGGREGATES,
    ARITHMETIC,
    OPERATORS,
    ColUnit,
    Conditions,
    CondUnit,
    Query,
    Value,
    ValUnit,
    Variant,
)

SET_OPERATIONS = frozenset({"intersect", "union", "except"})
CLAUSES = frozenset({"select", "from", "where", "group", "order", "limit"}) | SET_OPERATIONS
CLAUSE_END = CLAUSES | {")", ";"}
AGGREGATE_INDEX = {name: index for index, name in enumerate(AGGREGATES)}
_JOINS = frozenset({"join", "on", "as"})
_CONDITIONS_END = CLAUSE_END | _JOINS
_SLICE_END = CLAUSES | _JOINS | {",", ")", "and"}
_ARITHMETIC_INDEX = {name: index for index, name in enumerate(ARITHMETIC)}
_OPERATOR_INDEX = {name: index for index, name in enumerate(OPERATORS)}


class ExpressionParser(ABC):
    """A cursor over tokens; every method consumes what it returns.

    ``names`` are the plain tables of the query at hand, in which bare columns are looked up.
    """

    def __init__(
        self, tokens: list[str], schema: Schema, variant: Variant, aliases: dict[str, str]
    ) -> None:
        """Start at the first token."""
        self.tokens = tokens
        self.schema = schema
        self.variant = variant
        self.aliases = aliases
        self.position = 0

    @property
    def token(self) -> str:
        """The token at the cursor; empty at the end, which no rule accepts."""
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def accept(self, token: str) -> bool:
        """Step over ``token`` if it comes next; tell whether it did."""
        if self.token == token:
            self.position += 1
            return True
        return False

    def expect(self, token: str) -> None:
        """Step over ``token``; SqlParseError if something else comes next."""
        if not self.accept(token):
            raise SqlParseError(f"expected {token!r}, found {self.token!r}")

    @abstractmethod
    def query(self) -> Query:
        """Read a whole query."""

    def conditions(self, names: list[str]) -> Conditions:
        """Read conditions and connectors; a missing connector is tolerated."""
        parts: list[CondUnit | str] = []
        while self.position < len(self.tokens):
            left = self.val_unit(names)
            negated = self.accept("not")
            operator = self.token
            if operator not in _OPERATOR_INDEX:
                raise SqlParseError(f"expected an operator, found {operator!r}")
            self.position += 1
            value = self.value(names)
            upper: Value = None
            if operator == "between":
                self.expect("and")
                upper = self.value(names)
            parts.append(CondUnit(negated, _OPERATOR_INDEX[operator], left, value, upper))
            if self.token in _CONDITIONS_END:
                break
            if self.token in ("and", "or"):
                parts.append(self.token)
                self.position += 1
        return tuple(parts)

    def value(self, names: list[str]) -> Value:
        """Read a right-hand side: a query, a literal, a number or a column."""
        start = self.position
        opened = self.accept("(")
        value: Value
        if self.token == "select":
            value = self.query()
        elif '"' in self.token:
            value = self.token
            self.position += 1
        else:
            try:
                value = float(self.token)
                self.position += 1
            except ValueError:
                value = self.column_slice(start, names)
        if opened:
            self.expect(")")
        return value

    def column_slice(self, start: int, names: list[str]) -> ColUnit:
        """Read a column off the front of a right-hand expression and drop the rest of it."""
        end = self.position
        while end < len(self.tokens) and self.tokens[end] not in _SLICE_END:
            end += 1
        self.position = end
        part = type(self)(self.tokens[start:end], self.schema, self.variant, self.aliases)
        return part.col_unit(names)

    def val_unit(self, names: list[str]) -> ValUnit:
        """Read one column or two joined by an arithmetic operator."""
        opened = self.accept("(")
        left = self.col_unit(names)
        operator = _ARITHMETIC_INDEX.get(self.token)
        right = None
        if operator is not None:
            self.position += 1
            right = self.col_unit(names)
        if opened:
            self.expect(")")
        return ValUnit(operator or 0, left, right)

    def col_unit(self, names: list[str]) -> ColUnit:
        """Read a column with its aggregate and DISTINCT."""
        opened = self.accept("(")
        agg = AGGREGATE_INDEX.get(self.token)
        if agg is not None:
            self.position += 1
            self.expect("(")
        distinct = self.accept("distinct")
        column = self.column(names)
        # One parenthesis only: one before an aggregate is never closed, as in the original.
        if agg is not None or opened:
            self.expect(")")
        return ColUnit(agg or 0, column, distinct)

    def column(self, names: list[str]) -> str:
        """Read a column and return its id; bare names belong to the first table with them."""
        token = self.token
        self.position += 1
        if token == "*":
            return self.schema.ids["*"]
        if "." in token:
            prefix, _, name = token.partition(".")
            column_id = self.schema.ids.get(f"{self.aliases.get(prefix, '')}.{name}")
            if column_id is None or "." in name:
                raise SqlParseError(f"unknown column {token!r}")
            return column_id
        for table in names:
            if table not in self.schema.tables:
                break
            if token in self.schema.tables[table]:
                return self.schema.ids[f"{table}.{token}"]
        raise SqlParseError(f"unknown column {token!r}")
