"""Split SQL text into the tokens that Spider's official parser sees.

The official one hides string literals, runs NLTK's ``word_tokenize`` and puts the literals back.
This is the part of ``word_tokenize`` that matters for SQL; its sentence splitting is left out,
which changes the tokens of some statements, but none that can be parsed.
"""

from __future__ import annotations

import re

from nl2sql_trl.spider.errors import SqlParseError

_PADDED = r" \g<0> "
_REWRITES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"`+|[\u201c\u201d\u2018\u2019\u00ab\u00bb\u201e\u2013\u2014]"), _PADDED),
    # The character after a comma is consumed, so the second of two commas stays glued.
    (re.compile(r"([,:])(\D)"), r" \1 \2"),
    (re.compile(r"[,:]$"), _PADDED),
    (re.compile(r"\.{2,}"), _PADDED),
    (re.compile(r"[;@#$%&]"), _PADDED),
    (re.compile(r"(?<=[^.])(\.)([\])}>\u00bb\u201d\s]*)$"), r" \1 \2"),
    (re.compile(r"[?!*()\[\]{}<>]"), _PADDED),
    (re.compile(r"--"), _PADDED),
)
_SPLIT_WORDS = re.compile(r"cannot|wanna|gonna|gotta|gimme|lemme", re.IGNORECASE)
_SPLITS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b(can)(not)\b", re.IGNORECASE), r"\1 \2"),
    (re.compile(r"\b(wan)(na)(?=\s|$)", re.IGNORECASE), r"\1 \2"),
    (re.compile(r"\b(gon)(na)\b", re.IGNORECASE), r"\1 \2"),
    (re.compile(r"\b(got)(ta)\b", re.IGNORECASE), r"\1 \2"),
    (re.compile(r"\b(gim|lem)(me)\b", re.IGNORECASE), r"\1 \2"),
)
_LITERAL = re.compile(r'"[^"]*"')
_COMPARISON_STARTS = ("!", ">", "<")


def tokenize(sql: str) -> list[str]:
    """Return the lower-case tokens; string literals keep their case, in double quotes.

    Raises SqlParseError when a quotation mark is left open.
    """
    text = sql.replace("'", '"')
    if text.count('"') % 2:
        raise SqlParseError("unbalanced quotation marks")
    literals: dict[str, str] = {}

    def hide(match: re.Match[str]) -> str:
        placeholder = f"__val_{match.start()}_{match.end() - 1}__"
        literals[placeholder] = match.group()
        return placeholder

    text = _LITERAL.sub(hide, text)
    rewrites = _REWRITES + _SPLITS if _SPLIT_WORDS.search(text) else _REWRITES
    for pattern, replacement in rewrites:
        text = pattern.sub(replacement, text)
    tokens = [literals.get(token, token) for token in map(str.lower, text.split())]
    return _merge_comparisons(tokens)


def _merge_comparisons(tokens: list[str]) -> list[str]:
    merged: list[str] = []
    for token in tokens:
        if token == "=" and merged and merged[-1] in _COMPARISON_STARTS:
            merged[-1] += "="
        else:
            merged.append(token)
    return merged
