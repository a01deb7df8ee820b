"""What can be known of a statement from its text: whether it reads, and what it may do.

Nothing here parses SQL: patterns that miss a case miss it on the safe side.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

# What can make cells larger than any in the file: their rows are fetched with care.
_GROWS = re.compile(
    r"\|\||\b(?:zeroblob|randomblob|printf|format|hex|quote|replace|char|concat(?:_ws)?"
    r"|group_concat|string_agg|json\w*)\s*\(",
    re.IGNORECASE,
)
# SELECTs of plain words, in which only these stand before a parenthesis, raise no error at run
# time: sum() may overflow, a recursive query may not end.
_TAME = re.compile(r"\s*SELECT\b[^;{}\x00]*;?\s*", re.IGNORECASE)
# From the start of a word alone, and possessive: a long word is not looked at from each letter.
_BEFORE_PAREN = re.compile(r"(?<![\w\"'`\]])([\w\"'`\]]++)\s*+\(")
_TAME_WORDS = frozenset(
    """count min max avg total in and or not on where from select distinct by having union
    intersect except exists when then else case between like is join""".split()  # noqa: SIM905
)
_READ_ONLY = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*+(?:SELECT|WITH|VALUES)\b", re.IGNORECASE | re.DOTALL
)
_MAX_PLAIN_CHARS = 1_000
_MAX_PLAIN_SELECTS = 3

_PIECE = re.compile(
    r"(?P<kept>'(?:[^']|'')*'?|\"(?:[^\"]|\"\")*\"?|`[^`]*`?|\[[^\]]*\]?)"
    r"|\s*(?P<mark>[(),])\s*|(?P<space>\s+)"
)


class Statement(NamedTuple):
    """What is known of a statement from its text; looked at once, not once a file.

    ``spelling`` is the same for statements that differ in white space and case outside of quotes
    alone. ``grows`` says that cells may be larger than any in the file; ``tame`` that nothing in
    it can fail, or go on for ever, once it is compiled; ``plain`` that no single step of it, its
    compilation included, can take long on short cells.
    """

    spelling: str
    reads: bool
    grows: bool
    tame: bool
    plain: bool


@lru_cache(maxsize=4_096)
def read(sql: str) -> Statement:
    """Look a statement over."""
    grows = _GROWS.search(sql) is not None
    reads = _READ_ONLY.match(sql) is not None
    words = {word.lower() for word in _BEFORE_PAREN.findall(sql)}
    simple = not grows and _TAME.fullmatch(sql) is not None
    tame = simple and words <= _TAME_WORDS
    # Subqueries one in another may copy an expression as often as the product of their lengths.
    selects = len(re.findall("select", sql, re.IGNORECASE))
    plain = simple and len(sql) <= _MAX_PLAIN_CHARS and selects <= _MAX_PLAIN_SELECTS
    plain &= words <= _TAME_WORDS | {"sum"}
    if "--" in sql or "/*" in sql:
        return Statement(sql, reads, grows, tame, plain)
    parts, at = [], 0
    for found in _PIECE.finditer(sql):
        parts.append(sql[at : found.start()].lower())
        parts.append(found["kept"] or found["mark"] or " ")
        at = found.end()
    return Statement("".join(parts) + sql[at:].lower(), reads, grows, tame, plain)


def is_query(sql: str) -> bool:
    """Whether a statement begins as one that returns rows."""
    return read(sql).reads


def same_statement(one: str, two: str) -> bool:
    """Whether two statements are the same but for white space and case outside of quotes."""
    return read(one).spelling == read(two).spelling
