"""Reads queries as far as a test suite needs: tokens with scopes, clauses, aliases and columns.

No grammar: whatever is no SQL just reads badly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nl2sql_trl.suite.shape import Place, Table

_TOKEN = re.compile(
    r"""--[^\n]* | /\*.*?\*/ | \s+
    | ('(?:''|[^'])*' | "(?:""|[^"])*" | `[^`]*` | \[[^\]]*\]
      | \d+(?:\.\d+)?(?!\w) | \w+ | [<>!=]\s*= | <> | \|\| | \S)""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?$")
COMPARISONS = ("=", "!=", "<", ">", "<=", ">=")
AGGREGATES = ("count", "sum", "avg", "min", "max")
SETS = ("union", "intersect", "except")
CLAUSES = ("select", "from", "where", "group", "having", "order", "limit", "on")
JOINS = ("join", "left", "right", "full", "inner", "outer", "cross", "natural")
AFTER_FROM = (*SETS, "where", "group", "having", "order", "limit", ";")
WORDS = frozenset(
    {*SETS, *CLAUSES, *JOINS, *AGGREGATES, "as", "by", "and", "or", "not", "in", "like", "is"}
    | {"between", "exists", "null", "asc", "desc", "distinct", "all", "using", "offset", "case"}
    | {"when", "then", "else", "end", "with", "cast", "glob", "collate", "values"}
)


@dataclass(frozen=True)
class Reading:
    """The tokens of a query and, for each, its depth in parentheses, its scope and its clause.

    ``low`` are the tokens in lower case. A scope is one SELECT; ``outer`` names the one around
    it, ``sources`` its tables by alias. ``columns`` says which tokens are columns of which table.
    """

    tokens: tuple[str, ...]
    low: tuple[str, ...]
    depth: tuple[int, ...]
    scope: tuple[int, ...]
    clause: tuple[str, ...]
    outer: tuple[int, ...]
    sources: tuple[dict[str, str], ...]
    columns: dict[int, Place]

    @property
    def text(self) -> str:
        """The query with one space between its tokens."""
        return " ".join(self.tokens)

    def find(self, *words: str) -> list[int]:
        """The positions of these lower-case words."""
        return [index for index, token in enumerate(self.low) if token in words]

    def until(self, start: int, *words: str) -> int:
        """The first position behind ``start`` that closes its scope or holds one of ``words``."""
        for index in range(start + 1, len(self.tokens)):
            level = self.depth[index] - self.depth[start]
            if level < 0 or (level == 0 and self.low[index] in words):
                return index
        return len(self.tokens)

    def start_of_side(self, index: int) -> int:
        """Where the SELECT before a set operation starts."""
        while index and self.depth[index - 1] >= self.depth[index]:
            index -= 1
        return index

    def bare_columns(self, select: int) -> list[int]:
        """The positions of the columns of a SELECT list that stand in no parentheses."""
        behind = range(select, self.until(select, "from", *AFTER_FROM))
        return [i for i in behind if i in self.columns and self.depth[i] == self.depth[select]]

    def visible(self, scope: int) -> dict[str, str]:
        """Alias and table of every source that a scope sees, its own first."""
        seen: dict[str, str] = {}
        while scope >= 0:
            seen |= {a: t for a, t in self.sources[scope].items() if a not in seen}
            scope = self.outer[scope]
        return seen

    def is_literal(self, index: int) -> bool:
        """Whether a token is a string or a number."""
        token = self.tokens[index]
        return index not in self.columns and (token[0] in "'\"" or bool(_NUMBER.match(token)))

    def literal_column(self, index: int) -> Place | None:
        """The column that a literal is compared with: the nearest before it, else behind it."""
        for step in (-1, 1):
            at = index + step
            while 0 <= at < len(self.tokens) and self.clause[at] == self.clause[index]:
                if at in self.columns:
                    return self.columns[at]
                at += step
        return None

    def inside_between(self, index: int) -> bool:
        """Whether an AND belongs to BETWEEN."""
        for at in range(index - 1, -1, -1):
            if self.depth[at] == self.depth[index] and self.low[at] in ("between", "and"):
                return self.low[at] == "between"
            if self.depth[at] < self.depth[index] or self.low[at] in ("or", "where"):
                return False
        return False

    def conditions(self, start: int) -> list[tuple[int, int]]:
        """The spans of the conditions behind a WHERE, HAVING or ON, split at AND and OR."""
        end = self.until(start, *AFTER_FROM, *JOINS)
        spans, begin = [], start + 1
        for index in range(start + 1, end):
            here = self.depth[index] == self.depth[start] and self.low[index] in ("and", "or")
            if here and not self.inside_between(index):
                spans.append((begin, index))
                begin = index + 1
        return [*spans, (begin, end)]


def read(sql: str, tables: Mapping[str, Table]) -> Reading:
    """Read a query on these tables (by lower-case name)."""
    tokens = ["".join(t.split()) if t[0] in "<>!=" else t for t in _TOKEN.findall(sql) if t]
    while tokens and tokens[-1] == ";":
        tokens.pop()
    low = [token.lower() for token in tokens]
    depth, scope, clause, outer = _layout(low)
    sources: list[dict[str, str]] = [{} for _ in outer]
    names: set[int] = set()
    for index in range(1, len(tokens)):
        table = plain(tokens[index])
        named = clause[index] == "from" and low[index - 1] in ("from", "join", ",", "(")
        if not named or table not in tables:
            continue
        alias = index + 1 + (low[index + 1 : index + 2] == ["as"])
        if alias >= len(tokens) or low[alias] in WORDS or tokens[alias][0] in "(),;":
            alias = index
        sources[scope[index]][plain(tokens[alias])] = table
        names |= {index, alias}
    columns: dict[int, Place] = {}
    made = Reading(
        tuple(tokens),
        tuple(low),
        tuple(depth),
        tuple(scope),
        tuple(clause),
        tuple(outer),
        tuple(sources),
        columns,
    )
    for index in range(len(tokens)):
        place = None if index in names else _column(made, index, tables)
        if place is not None:
            columns[index] = place
    return made


def _layout(low: Sequence[str]) -> tuple[list[int], list[int], list[str], list[int]]:
    depth, scope, clause = [], [], []
    outer, current, stack = [-1], [""], [0]
    for index, token in enumerate(low):
        if token == ")" and len(stack) > 1:
            stack.pop()
        depth.append(len(stack) - 1)
        if token in SETS:
            outer.append(outer[stack[-1]])
            current.append("")
            stack[-1] = len(outer) - 1
        here = stack[-1]
        if token in CLAUSES or token in JOINS:
            current[here] = token if token in CLAUSES else "from"
        scope.append(here)
        clause.append(current[here])
        if token == "(":
            if low[index + 1 : index + 2] == ["select"]:
                outer.append(here)
                current.append("")
                here = len(outer) - 1
            stack.append(here)
    return depth, scope, clause, outer


def _column(reading: Reading, index: int, tables: Mapping[str, Table]) -> Place | None:
    token = reading.tokens[index]
    following = reading.tokens[index + 1 : index + 2]
    if reading.low[index] in WORDS or token[0] in "'(),;" or following in (("(",), (".",)):
        return None
    visible = reading.visible(reading.scope[index])
    if index >= 2 and reading.tokens[index - 1] == ".":
        alias = plain(reading.tokens[index - 2])
        visible = {alias: visible[alias]} if alias in visible else {}
    name = plain(token)
    return next(((t, name) for t in visible.values() if name in tables[t].names), None)


def plain(token: str) -> str:
    """A name without its quotes, in lower case."""
    return token.strip("`\"'[]").lower()
