"""Other names for the tables and columns of a schema, and statements rewritten with them.

Names stay readable: words are put in another style, shortened, replaced by what people also write,
and a prefix or suffix goes around them, as real schemas have it. Texts in, texts out: `renamed.py`
opens the databases and checks by execution that a rewritten gold is still the gold.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nl2sql_trl.demonstrations import KEYWORDS as SQL_KEYWORDS
from nl2sql_trl.goldtext import Token, tokens

# Words that mean something in SQL or in a column's type are no names to be changed.
KEYWORDS = SQL_KEYWORDS | frozenset(
    """is with case when then else end autoincrement without rowid update delete set exists left
    right inner outer natural cross tinyint double precision unsigned""".split()  # noqa: SIM905
)
# What people write for a word in a schema.
_SHORT = {
    word: others.split()
    for word, others in {
        "id": "id key code no ident", "name": "name title label nm", "number": "number num no nr",
        "code": "code cd key", "date": "date day dt", "description": "description descr details",
        "details": "details info descr", "address": "address addr", "department": "department dept",
        "amount": "amount amt total", "quantity": "quantity qty", "country": "country nation ctry",
        "first": "first fst given", "last": "last lst family", "type": "type kind category",
        "city": "city town", "state": "state province region", "phone": "phone tel telephone",
        "email": "email mail", "age": "age years", "student": "student stu pupil",
        "employee": "employee emp staff", "customer": "customer cust client", "year": "year yr",
        "product": "product prod item", "document": "document doc", "location": "location loc",
        "capacity": "capacity cap", "price": "price cost", "place": "place spot",
        "status": "status state", "title": "title caption", "course": "course class",
        "company": "company firm", "order": "order ord", "reference": "reference ref",
    }.items()
}  # fmt: skip
_STYLES: dict[str, Callable[[list[str]], str]] = {
    "snake": lambda words: "_".join(words).lower(),
    "Snake": lambda words: "_".join(word.capitalize() for word in words),
    "UPPER": lambda words: "_".join(words).upper(),
    "camel": lambda words: words[0].lower() + "".join(word.capitalize() for word in words[1:]),
    "Pascal": lambda words: "".join(word.capitalize() for word in words),
    "flat": lambda words: "".join(words).lower(),
}
_AROUND = {
    "table": [("", ""), ("", "s"), ("tbl", ""), ("t", ""), ("", "info"), ("", "data"),
              ("", "list"), ("", "records"), ("all", ""), ("", "table")],
    "column": [("", ""), ("", ""), ("", ""), ("", "value"), ("col", ""), ("the", ""), ("", "txt")],
}  # fmt: skip
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@dataclass(frozen=True, slots=True)
class Tables:
    """A database's user tables by name: their statement, columns and the tables they refer to."""

    sql: dict[str, str]
    columns: dict[str, list[str]]
    refers: dict[str, set[str]]


def mentioned(sql: str) -> set[str]:
    """What could be a name in a statement, in lower case."""
    return {token.text.strip('"`[]').lower() for token in tokens(sql)}


def as_written(tables: Tables) -> dict[str, str]:
    """Each name as the schema writes it, by its lower case: golds often write it otherwise."""
    every = [*tables.sql, *(column for columns in tables.columns.values() for column in columns)]
    return {name.lower(): name for name in every if name.lower() not in KEYWORDS}


def new_names(tables: Tables, rng: random.Random) -> dict[str, str]:
    """Another name for each table and column, by the lower-case old one; no two are alike.

    Columns of one name keep one name, so that what joined still joins.
    """
    style = rng.choice(list(_STYLES.values()))
    shown = {c.lower(): (c, "column") for columns in tables.columns.values() for c in columns}
    shown |= {t.lower(): (t, "table") for t in tables.sql}
    around = {kind: rng.choice(choices) for kind, choices in _AROUND.items()}
    found: dict[str, str] = {}
    taken = set(KEYWORDS)
    for old in sorted(shown):
        name, kind = shown[old]
        if old in KEYWORDS or not re.fullmatch(r"[A-Za-z_]\w*", name):
            taken.add(old)
            continue
        new = style(_changed(name, around[kind], rng))
        while new.lower() in taken or not re.fullmatch(r"[A-Za-z_]\w*", new):
            new = f"{new}{rng.randint(2, 9)}" if new[:1].isalpha() else f"x{new}"
        found[old] = new
        taken.add(new.lower())
    return found


def _changed(name: str, around: tuple[str, str], rng: random.Random) -> list[str]:
    """The words of a name, some of them written otherwise, with what stands around them."""
    words = [word.lower() for word in _WORD.findall(name)] or [name]
    words = [rng.choice(_SHORT.get(word, [word])) for word in words]
    if rng.random() < 0.2:
        at = rng.randrange(len(words))
        words[at] = _abbreviated(words[at])
    before, after = around
    if after == "s":
        words[-1] = words[-1][:-1] if re.fullmatch(r".+s", words[-1]) else f"{words[-1]}s"
        after = ""
    return [word for word in (before, *words, after) if word]


def _abbreviated(word: str) -> str:
    """A long word without the vowels inside it."""
    return word if len(word) < 5 else word[0] + re.sub("[aeiou]", "", word[1:])


def rewritten(sql: str, names: Mapping[str, str], *, schema: bool = False) -> str:
    """A statement with other names; strings stay, and so do functions but in a `schema`.

    What is in double quotes is taken for a string where it is compared with something: SQLite
    takes it for a name if there is one, golds nearly never do.
    """
    parts, end = [], 0
    found = tokens(sql)
    for n, token in enumerate(found):
        text = sql[token.start : token.end]
        called = n + 1 < len(found) and found[n + 1].text == "("
        if token.kind == "quoted" and len(text) > 1:
            value = not schema and text[0] == '"' and _is_compared(found, n)
            new = None if value else names.get(text[1:-1].lower())
            new = None if new is None else text[0] + new + text[-1]
        elif token.kind == "word" and (schema or not called):
            new = names.get(text.lower())
        else:
            new = None
        parts += [sql[end : token.start], text if new is None else new]
        end = token.end
    return "".join(parts) + sql[end:]


def _is_compared(found: list[Token], at: int) -> bool:
    """Whether a token stands after a comparison, or first in a list after IN."""
    before = [token.text for token in found[max(0, at - 2) : at]]
    return bool(before) and (
        before[-1] in ("=", "<", ">", "LIKE", "BETWEEN") or before == ["IN", "("]
    )
