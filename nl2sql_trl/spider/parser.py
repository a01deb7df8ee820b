"""Parse SQL the way Spider's two official ``process_sql.py`` files do.

The grammar is greedy and forgiving in odd places: commas in SELECT are optional, the rest of a
right-hand expression is dropped, and whatever follows a complete query is ignored. It knows no
CTEs, no CASE, no functions beyond five aggregates and no parentheses around conditions.
"""

from __future__ import annotations

from nl2sql_trl.spider.errors import SqlParseError
from nl2sql_trl.spider.expressions import (
    AGGREGATE_INDEX,
    CLAUSE_END,
    CLAUSES,
    SET_OPERATIONS,
    ExpressionParser,
)
from nl2sql_trl.spider.schema import Schema
from nl2sql_trl.spider.tokenizer import tokenize
from nl2sql_trl.spider.tree import (
    ColUnit,
    Conditions,
    CondUnit,
    OrderBy,
    Query,
    SelectItem,
    TableUnit,
    ValUnit,
    Variant,
)


def parse(sql: str, schema: Schema, variant: Variant) -> Query:
    """Return the tree of ``sql``; SqlParseError when the official parser would fail."""
    tokens = tokenize(sql)
    try:
        return _Parser(tokens, schema, variant, _aliases(tokens, schema)).query()
    except RecursionError:
        raise SqlParseError("nested too deeply") from None


def _aliases(tokens: list[str], schema: Schema) -> dict[str, str]:
    """One map for the whole statement: aliases and the tables themselves to table names."""
    aliases: dict[str, str] = {}
    for index, token in enumerate(tokens):
        if token == "as":
            if index + 1 == len(tokens):
                raise SqlParseError("'as' is the last token")
            aliases[tokens[index + 1]] = tokens[index - 1]
    for table in schema.tables:
        if table in aliases:
            raise SqlParseError(f"alias {table!r} is also a table of the database")
        aliases[table] = table
    return aliases


class _Parser(ExpressionParser):
    """The upper half of the grammar: clauses and queries."""

    def query(self) -> Query:
        """Read one SELECT and the set operation that may follow it."""
        opened = self.accept("(")
        start = self.position
        tables, on, names = self.from_clause()
        end, self.position = self.position, start
        distinct, select = self.select_clause(names)
        self.position = end
        where = self.conditions(names) if self.accept("where") else ()
        group_by = self.group_clause(names)
        having = self.conditions(names) if self.accept("having") else ()
        order_by = self.order_clause(names)
        limit = self.limit_clause()
        self.skip_semicolons()
        if opened:
            self.expect(")")
        self.skip_semicolons()
        others: dict[str, Query] = {}
        if self.token in SET_OPERATIONS:
            operation = self.token
            self.position += 1
            others[operation] = self.query()
        return Query(
            distinct,
            select,
            tables,
            on,
            where,
            group_by,
            having,
            order_by,
            limit,
            others.get("intersect"),
            others.get("union"),
            others.get("except"),
        )

    def skip_semicolons(self) -> None:
        while self.accept(";"):
            pass

    def from_clause(self) -> tuple[tuple[TableUnit, ...], Conditions, list[str]]:
        """Parse the first FROM after the cursor; also return its plain tables, in order."""
        try:
            self.position = self.tokens.index("from", self.position) + 1
        except ValueError:
            raise SqlParseError("no 'from'") from None
        tables: list[TableUnit] = []
        on: list[CondUnit | str] = []
        names: list[str] = []
        while self.position < len(self.tokens):
            opened = self.accept("(")
            if self.token == "select":
                tables.append(TableUnit("sql", self.query()))
            else:
                self.accept("join")
                table = self.aliases.get(self.token, "")
                if table not in self.schema.ids:
                    raise SqlParseError(f"unknown table {self.token!r}")
                self.position += 1
                if self.token == "as":
                    self.position += 2
                tables.append(TableUnit("table_unit", self.schema.ids[table]))
                names.append(table)
            if self.accept("on"):
                if on:
                    on.append("and")
                on.extend(self.conditions(names))
            if opened:
                self.expect(")")
            if self.token in CLAUSE_END:
                break
        return tuple(tables), tuple(on), names

    def select_clause(self, names: list[str]) -> tuple[bool, tuple[SelectItem, ...]]:
        """Read items up to the next clause; commas between them are optional."""
        self.expect("select")
        distinct = self.accept("distinct")
        items: list[SelectItem] = []
        while self.position < len(self.tokens) and self.token not in CLAUSES:
            agg = AGGREGATE_INDEX.get(self.token)
            if agg is not None:
                self.position += 1
            items.append(SelectItem(agg or 0, self.val_unit(names)))
            self.accept(",")
        return distinct, tuple(items)

    def group_clause(self, names: list[str]) -> tuple[ColUnit, ...]:
        if not self.accept("group"):
            return ()
        self.expect("by")
        columns: list[ColUnit] = []
        while self.position < len(self.tokens) and self.token not in CLAUSE_END:
            columns.append(self.col_unit(names))
            if not self.accept(","):
                break
        return tuple(columns)

    def order_clause(self, names: list[str]) -> OrderBy | None:
        """Read ORDER BY; the last direction written counts for all columns."""
        if not self.accept("order"):
            return None
        self.expect("by")
        direction = "asc"
        units: list[ValUnit] = []
        while self.position < len(self.tokens) and self.token not in CLAUSE_END:
            units.append(self.val_unit(names))
            if self.token in ("asc", "desc"):
                direction = self.token
                self.position += 1
            if not self.accept(","):
                break
        return OrderBy(direction, tuple(units))

    def limit_clause(self) -> int | None:
        """Read LIMIT; the test-suite script takes any token and stores 1."""
        if not self.accept("limit"):
            return None
        token = self.token
        if not token:
            raise SqlParseError("'limit' is the last token")
        self.position += 1
        if self.variant == "test_suite":
            return 1
        try:
            return int(token)
        except ValueError:
            raise SqlParseError(f"LIMIT {token!r} is no integer") from None
