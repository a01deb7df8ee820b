"""What the official scorers do to the text of a statement before they run it.

These are text edits with known damage (``value`` inside a name, DISTINCT in ``IS DISTINCT FROM``),
kept because they decide verdicts; ``fixed`` avoids some of it. The lexer knows literals, comments
and words, no grammar.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nl2sql_trl.spider.errors import OfficialAbort
from nl2sql_trl.spider.tree import Variant

_TOKEN = re.compile(
    r"""(?P<comment>(?:--|\#\ )[^\r\n]*(?:\r\n|\r|\n)?)
    | /\*[\s\S]*?\*/
    | '(?:''|\\'|[^'])*'
    | "(?:""|\\"|[^"])*"
    | `(?:``|[^`])*`
    | (?P<space>\s+)
    | [@:$]?\w[\w$\#]*
    | [\s\S]""",
    re.VERBOSE,
)
_CURRENT_YEAR = re.compile(r"YEAR\s*\(\s*CURDATE\s*\(\s*\)\s*\)\s*", re.IGNORECASE)


def prediction_text(raw: str, variant: Variant, *, fixed: bool = False) -> str:
    """The statement a scorer reads from a line; the test-suite one rewrites ``value`` to ``1``.

    ``fixed`` neither rewrites nor cuts the line at a TAB.
    """
    if fixed:
        return raw.strip()
    text = raw.strip().split("\t")[0]
    return text.replace("value", "1") if variant == "test_suite" else text


def suite_text(sql: str, *, keep_distinct: bool = False) -> str:
    """The statement that the test-suite scorer compares and executes.

    Joins split comparison operators; unless ``keep_distinct``, drops DISTINCT and everything after
    the first statement. Raises OfficialAbort when there is no statement.
    """
    if not sql.strip():
        raise OfficialAbort("blank statement")
    text = sql.replace("> =", ">=").replace("< =", "<=").replace("! =", "!=")
    if keep_distinct:
        return text
    tokens = [token for token in _first_statement(text) if token.lower() != "distinct"]
    return "".join(tokens)


def executed_text(sql: str) -> str:
    """Replace MySQL's current year by 2020, as the test-suite scorer does before it executes."""
    return _CURRENT_YEAR.sub("2020", sql)


def order_matters(gold: str, *, fixed: bool = False) -> bool:
    """Whether the test-suite scorer compares rows in order: ``order by`` stands anywhere.

    With ``fixed`` it must stand outside parentheses, literals and comments.
    """
    if not fixed:
        return "order by" in gold.lower()
    depth = 0
    last = ""
    for found in _TOKEN.finditer(gold.lower()):
        token = found.group()
        depth += (token == "(") - (token == ")")
        if depth == 0 and (last, token) == ("order", "by"):
            return True
        if not (found.lastgroup or token.startswith("/*")):
            last = token
    return False


def _first_statement(text: str) -> Iterator[str]:
    depth = 0
    ended = False
    for found in _TOKEN.finditer(text):
        token = found.group()
        if ended and found.lastgroup not in ("comment", "space"):
            return
        depth += (token == "(") - (token == ")")
        ended = ended or (token == ";" and depth <= 0)
        yield token
