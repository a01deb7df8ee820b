"""Near misses of a query: the mistakes that a model could make in it, one at a time, as SQL text.

A neighbour may be no SQL at all or mean the same as its query: whoever uses them executes them
and sees.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from nl2sql_trl.suite.mistakes import CLAUSE_MISTAKES
from nl2sql_trl.suite.reading import Reading
from nl2sql_trl.suite.restructured import STRUCTURE_MISTAKES
from nl2sql_trl.suite.shape import Table

_A_KIND = 24  # neighbours of one kind, at most


def neighbours(
    reading: Reading, tables: Mapping[str, Table], rng: random.Random, most: int
) -> list[str]:
    """Up to ``most`` different neighbours of a query, of all kinds alike."""
    kinds = []
    for kind in (*CLAUSE_MISTAKES, *STRUCTURE_MISTAKES):
        made = {_key(tokens): " ".join(tokens) for tokens in kind(reading, tables, rng)}
        made.pop(_key(reading.tokens), None)
        kinds.append(rng.sample(list(made.items()), min(len(made), _A_KIND)))
    # In turns, so that no kind is lost when there are too many.
    turns = [pair for turn in range(_A_KIND) for kind in kinds for pair in kind[turn : turn + 1]]
    return list(dict(turns).values())[:most]


def _key(tokens: Sequence[str]) -> str:
    """A text that is the same for queries that differ in the case of names only."""
    return " ".join(token if token[0] in "'\"" else token.lower() for token in tokens)
