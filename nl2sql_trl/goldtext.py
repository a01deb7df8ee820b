"""What a gold query's text and its ordered rows tell: missing ON, cut ties, quoted literals.

How a cut tie is found: the final LIMIT is taken off, the ORDER BY expressions are added to the
selected ones, and SQLite ranks the rows by them (so NULLs and collations compare as they sort).
A tie is cut if the first row left out has the rank of the last one kept. Not seen: whether the
tied rows would look the same, LIMITs inside subqueries. Undecided (and listed): a LIMIT that is
no plain number, ORDER BY numbers with `*` or in a compound query, SELECT DISTINCT ordered by
what it does not select.

A small tokenizer, no parser: strings, comments and quoted identifiers are told apart from the
rest, and that is all these questions need. The official grammar is in `spider/`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nl2sql_trl.database import GOLD_LIMITS, columns, execute

Cut = Literal["no_limit", "clean", "tie", "no_order", "undecided"]

_TOKEN = re.compile(
    r"(?P<space>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))"
    r"|(?P<string>'(?:[^']|'')*'?)"
    r'|(?P<quoted>"(?:[^"]|"")*"?|`(?:[^`]|``)*`?|\[[^\]]*\]?)'
    r"|(?P<number>\d\w*(?:\.\w*)?|\.\d\w*)"
    r"|(?P<word>[^\W\d][\w$]*)"
    r"|(?P<other>.)",
    re.DOTALL,
)
# What ends a FROM clause or one of its joins.
_AFTER_JOIN = {
    "JOIN", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "WINDOW", "UNION", "INTERSECT", "EXCEPT",
}  # fmt: skip
_COMPOUND = {"UNION", "INTERSECT", "EXCEPT"}


class Token(NamedTuple):
    """A piece of a query: `text` is upper case for words, `depth` counts open parentheses."""

    kind: str
    text: str
    start: int
    end: int
    depth: int


def tokens(query: str) -> list[Token]:
    """The query's tokens without white space and comments."""
    found, depth = [], 0
    for match in _TOKEN.finditer(query):
        kind, text = match.lastgroup or "", match[0]
        depth -= text == ")"
        if kind != "space":
            text = text.upper() if kind == "word" else text
            found.append(Token(kind, text, *match.span(), depth))
        depth += text == "("
    return found


def one_line(query: str) -> str:
    """The query without comments and line breaks: what stands between two tokens is one space.

    Line breaks and tabs inside a string or a quoted name, which a line cannot hold, are spaces.
    """
    parts: list[str] = []
    end = 0
    for token in tokens(query):
        gap = " " if parts and token.start > end else ""
        parts.append(gap + re.sub(r"[\t\n\r\f\v]", " ", query[token.start : token.end]))
        end = token.end
    return "".join(parts)


def joins_without_on(query: str) -> int:
    """How many JOINs have no ON or USING before the next JOIN or clause.

    A comma, CROSS JOIN and NATURAL JOIN say what they mean and do not count. The first JOIN of
    `a JOIN b JOIN c ON ...` does, even if that ON relates all three. Strings, quoted names and
    comments are not looked into.
    """
    found = tokens(query)
    return sum(
        token.kind == "word"
        and token.text == "JOIN"
        and not _says_how(found, n)
        and not _has_condition(found, n)
        for n, token in enumerate(found)
    )


def _says_how(found: list[Token], join: int) -> bool:
    words = {token.text for token in found[max(0, join - 3) : join] if token.kind == "word"}
    before = found[join - 1].text if join else ""
    outer = before in ("LEFT", "RIGHT", "FULL", "INNER", "OUTER") and "NATURAL" in words
    return before in ("CROSS", "NATURAL") or outer


def _has_condition(found: list[Token], join: int) -> bool:
    depth = found[join].depth
    for token in found[join + 1 :]:
        if token.depth < depth:
            return False
        if token.depth == depth and token.kind == "word":
            if token.text in ("ON", "USING"):
                return True
            if token.text in _AFTER_JOIN:
                return False
        elif token.depth == depth and token.text in (",", ";"):
            return False
    return False


def limit_cut(path: Path, query: str) -> Cut:
    """What the query's final LIMIT does: see this module's docstring.

    "no_order": there are more rows than the LIMIT and no ORDER BY chooses among them.
    """
    # Comments go first: pieces of the query are put together anew below.
    query = "".join(" " if m.lastgroup == "space" else m[0] for m in _TOKEN.finditer(query))
    top = [token for token in tokens(query) if token.depth == 0]
    while top and top[-1].text == ";":
        top.pop()
    limit = _last(top, "LIMIT")
    if limit is None:
        return "no_limit"
    kept = _rows_kept(top[limit + 1 :])
    if kept is None:
        return "undecided"
    order = _last(top[:limit], "ORDER")
    if order is None:
        more = execute(path, f"{query[: top[limit].start]}\nLIMIT 1 OFFSET {kept}", GOLD_LIMITS)
        if more.outcome != "ok":
            return "undecided"
        return "no_order" if more.rows else "clean"
    inner_and_keys = _with_sort_keys(path, query, top, order, limit)
    if inner_and_keys is None:
        return "undecided"
    inner, keys = inner_and_keys
    ranked = execute(
        path,
        f"SELECT rank() OVER (ORDER BY {keys}) FROM ({inner}\n) ORDER BY 1 LIMIT 1 OFFSET {kept}",
        GOLD_LIMITS,
    )
    if ranked.outcome != "ok":
        return "undecided"
    # A rank counts the rows before: that of the first row left out is kept + 1 without a tie.
    return "tie" if ranked.rows and ranked.rows[0][0] in range(1, kept + 1) else "clean"


def _last(top: list[Token], word: str) -> int | None:
    places = [n for n, token in enumerate(top) if (token.kind, token.text) == ("word", word)]
    return places[-1] if places else None


def _rows_kept(after: list[Token]) -> int | None:
    """The position of the first row that is cut off, for `k`, `k OFFSET m` and `m, k`."""
    numbers = [int(token.text) for token in after if token.text.isdecimal()]
    glue = [token.text for token in after if not token.text.isdecimal()]
    return sum(numbers) if (len(numbers), glue) in ((1, []), (2, ["OFFSET"]), (2, [","])) else None


def _with_sort_keys(
    path: Path, query: str, top: list[Token], order: int, limit: int
) -> tuple[str, str] | None:
    """The query without ORDER BY and LIMIT but with its sort keys, and the terms to rank by."""
    bare = query[: top[order].start]
    terms = _pieces(query, top[order + 2 : limit], top[order + 1].end, top[limit].start)
    if any(token.text in _COMPOUND and token.kind == "word" for token in top):
        # Here a term must name a selected column, so the query is ranked as it is.
        plain = not any(part[0].isdecimal() for part in map(_direction, terms))
        return (bare, ", ".join(terms)) if plain else None
    select = _last(top[:order], "SELECT")
    if select is None:
        return None
    distinct = top[select + 1].text == "DISTINCT"
    first = select + 1 + (top[select + 1].text in ("DISTINCT", "ALL"))
    clauses = (n for n in range(first, order) if top[n].text in {"FROM", *_AFTER_JOIN})
    end = next(clauses, order)
    items = _pieces(query, top[first:end], top[first].start, top[end].start)
    keys, ranks = [], []
    for number, term in enumerate(terms):
        expression, direction = _direction(term)
        resolved = _resolved(expression, items)
        if resolved is None:
            return None
        keys.append(f'{resolved} AS "sort key {number}"')
        ranks.append(f'"sort key {number}" {direction}')
    cut = top[end].start
    inner = f"{query[:cut]}\n, {', '.join(keys)} {bare[cut:]}"
    # With keys of its own, DISTINCT may tell rows apart that it folded before.
    if distinct and _count(path, inner) != _count(path, bare):
        return None
    return inner, ", ".join(ranks)


def _pieces(query: str, top: list[Token], start: int, end: int) -> list[str]:
    """The text from start to end, cut at the top-level commas."""
    commas = [token.start for token in top if token.text == ","]
    starts = [start, *(comma + 1 for comma in commas)]
    return [query[a:b].strip() for a, b in zip(starts, [*commas, end], strict=True)]


def _direction(term: str) -> tuple[str, str]:
    """An ORDER BY term as its expression and what follows it (ASC, DESC, NULLS ...)."""
    match = re.search(r"(?:\s*\b(?:ASC|DESC))?(?:\s*\bNULLS\s+(?:FIRST|LAST))?\s*\Z", term, re.I)
    cut = match.start() if match else len(term)
    return term[:cut], term[cut:]


def _resolved(expression: str, items: list[str]) -> str | None:
    """The expression that a term stands for: an alias or a number means a selected item."""
    split = [_without_alias(item) for item in items]
    if re.fullmatch(r"\d{1,9}", expression):
        number = int(expression)
        starred = any(item.endswith("*") for item in items)
        return split[number - 1][0] if not starred and 1 <= number <= len(split) else None
    named = [text for text, alias in split if alias and alias == _name(expression)]
    return named[0] if named else expression


def _without_alias(item: str) -> tuple[str, str]:
    parts = tokens(item)
    if len(parts) < 2 or parts[-1].kind not in ("word", "quoted") or parts[-1].depth:
        return item, ""
    before = parts[-2]
    if (before.kind, before.text) == ("word", "AS"):
        return item[: before.start], _name(parts[-1].text)
    if before.text == ")" or before.kind in ("word", "quoted", "number", "string"):
        return item[: parts[-1].start], _name(parts[-1].text)
    return item, ""


def _name(text: str) -> str:
    return text.strip('"`[]').lower()


def _count(path: Path, query: str) -> Any:
    result = execute(path, f"SELECT count(*) FROM ({query}\n)", GOLD_LIMITS)
    return result.rows or result.error


def quoted_literals(query: str, names: set[str]) -> list[str]:
    """Double-quoted texts that name nothing, which SQLite silently takes for strings.

    `names` are the lower-case tables and columns of the database; aliases are found here.
    """
    found = tokens(query)
    return [
        token.text
        for n, token in enumerate(found)
        if token.text.startswith('"')
        and token.text.strip('"').lower() not in names
        and not (n and found[n - 1].text in ("AS", "."))
        and not (found[n + 1 : n + 2] and found[n + 1].text == ".")
    ]


def names(path: Path) -> set[str]:
    """Lower-case names of the tables, views and columns of a database."""
    found = columns(path)
    return {name.lower() for name in (*found, *(c for held in found.values() for c in held))}
