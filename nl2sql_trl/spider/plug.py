"""The test-suite scorer's option to try the gold's values in a prediction.

Literals and numbers of the prediction become slots, and every combination of the gold's distinct
values is put into them. The rest of the prediction is lower-cased, quoted names included: a name
in quotes counts as a literal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

_TOKEN = re.compile(
    r"""--[^\r\n]* | /\*[\s\S]*?\*/
    | (?P<value>'(?:''|[^'])*' | "(?:""|[^"])*" | (?<![\w.])-?(?:\d*\.\d+|\d+(?![\w.])))
    | `(?:``|[^`])*`
    | \w[\w$\#]*
    | [<>=!|]+
    | \S""",
    re.VERBOSE,
)
_ALIAS_STAR = re.compile(r"\bt[123]\s*\.\s*\*", re.IGNORECASE)


def plugged(gold: str, pred: str) -> Iterator[str]:
    """Yield the prediction with its slots filled in each possible way: v ** n texts."""
    values = sorted({token for token, is_value in _tokens(gold) if is_value})
    tokens = [token if is_value else token.lower() for token, is_value in _tokens(pred)]
    slots = [index for index, (_, is_value) in enumerate(_tokens(pred)) if is_value]
    for choice in product(values, repeat=len(slots)):
        for index, value in zip(slots, choice, strict=True):
            tokens[index] = value
        yield " ".join(tokens)


def _tokens(sql: str) -> Iterator[tuple[str, bool]]:
    text = _ALIAS_STAR.sub("*", sql.strip().replace(";", "").replace("\t", ""))
    for found in _TOKEN.finditer(text):
        yield found.group(), found.lastgroup == "value"
