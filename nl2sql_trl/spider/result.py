"""Do two result tables say the same, up to the order of columns and, unless asked, of rows?

The rules are those of the test-suite scorer, including a quick rejection that tells integers from
floats in some rows. Cells compare as in Python: 1 == 1.0, '1' != 1, None == None.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeAlias

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = Sequence[Row]

_MAX_ROWS_PLACED = 1_000_000
_MIN_PLACEMENTS = 1_000
_PLAIN = {int, str, bytes, type(None)}


def result_eq(gold: Rows, pred: Rows, order_matters: bool, *, fixed: bool = False) -> bool:
    """Whether some permutation of the columns of ``pred`` gives the rows of ``gold``.

    ``fixed`` leaves out the official quick rejection, by which (1, 10) differs from (1.0, 10).
    """
    if not gold and not pred:
        return True
    if len(gold) != len(pred) or len(gold[0]) != len(pred[0]):
        return False
    columns = list(zip(*gold, strict=True)), list(zip(*pred, strict=True))
    if order_matters:
        equal = Counter(columns[0]) == Counter(columns[1])
    else:
        equal = Counter(gold) == Counter(pred)
    if equal:
        return fixed or _plain(gold, pred) or _same_sorted_rows(gold, pred, order_matters)
    if order_matters:
        return False
    choices = _choices(*columns)
    return (
        all(choices)
        and (fixed or _same_sorted_rows(gold, pred, order_matters))
        and _permutation_exists(columns[0], choices, Counter(columns[1]))
    )


def _plain(gold: Rows, pred: Rows) -> bool:
    """Whether equal cells are sure to look the same, unlike 1 and 1.0 or 0.0 and -0.0."""
    return _PLAIN.issuperset(map(type, chain.from_iterable(chain(gold, pred))))


def _same_sorted_rows(gold: Rows, pred: Rows, order_matters: bool) -> bool:
    """The official quick rejection: cells sorted by their text, so 10 and 1.0 change places."""
    gold_rows = [_sorted_cells(row) for row in gold]
    pred_rows = [_sorted_cells(row) for row in pred]
    if order_matters:
        return gold_rows == pred_rows
    return set(gold_rows) == set(pred_rows)


def _sorted_cells(row: Row) -> Row:
    return row if len(row) == 1 else tuple(sorted(row, key=_cell_key))


def _cell_key(cell: object) -> str:
    return f"{cell}{type(cell)}"


def _choices(gold: list[Row], pred: list[Row]) -> list[list[Row]]:
    """For each gold column the different columns of ``pred`` with the same cells in any order."""
    by_cells: dict[frozenset[tuple[Any, int]], list[Row]] = defaultdict(list)
    for column in dict.fromkeys(pred):
        by_cells[frozenset(Counter(column).items())].append(column)
    return [by_cells[frozenset(Counter(column).items())] for column in gold]


def _permutation_exists(gold: list[Row], choices: list[list[Row]], left: Counter[Row]) -> bool:
    """Backtrack over columns, comparing the multisets of the row prefixes fixed so far.

    ``left`` counts the columns not yet used. Gives up, with False, on tables so symmetric that
    the official script would not end either.
    """
    height = len(gold[0])
    budget = iter(range(max(_MAX_ROWS_PLACED // height, _MIN_PLACEMENTS)))
    # Columns with the fewest candidates first.
    order = sorted(range(len(choices)), key=lambda index: len(choices[index]))

    def extend(depth: int, gold_prefix: list[Row], pred_prefix: list[Row]) -> bool:
        if depth == len(order):
            return True
        index = order[depth]
        longer_gold = _append(gold_prefix, gold[index])
        counts = Counter(longer_gold)
        for column in choices[index]:
            if not left[column]:
                continue
            if next(budget, None) is None:
                return False
            longer_pred = _append(pred_prefix, column)
            if Counter(longer_pred) == counts:
                left[column] -= 1
                if extend(depth + 1, longer_gold, longer_pred):
                    return True
                left[column] += 1
        return False

    return extend(0, [()] * height, [()] * height)


def _append(prefixes: list[Row], column: Row) -> list[Row]:
    return [(*prefix, cell) for prefix, cell in zip(prefixes, column, strict=True)]
