"""Tables for notebooks: those of a report, and the questions that two evaluations differ on.

    show_table(headline(runs)[0])        # a table of report_tables or report_sections
    compare(before, after)               # frames.compare makes a Comparison; it shows itself

Questions, golds and answers were written by others, so all of them are escaped (`markup.py`).
Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nl2sql_trl import stats
from nl2sql_trl.markup import GREEN, VERMILION, Shown, label, line, page, pre, safe
from nl2sql_trl.readable import sql
from nl2sql_trl.report_tables import Cell, Link, Table, signed

if TYPE_CHECKING:
    from pandas import DataFrame

_LABEL = (
    "padding:4px 16px 4px 0;border:0;border-top:1px solid rgba(128,128,128,0.35);text-align:left"
)
_VALUE = _LABEL.replace("left", "right") + ";white-space:nowrap"
Pair = tuple[dict[str, Any], dict[str, Any]]
_TABLE = "border-collapse:collapse;width:100%;min-width:44em;table-layout:fixed;color:inherit"
_CELL = (
    "padding:6px 12px 6px 0;border:0;border-top:1px solid rgba(128,128,128,0.35);"
    "vertical-align:top;text-align:left;background:transparent;font-size:13px"
)


def show_table(table: Table) -> Shown:
    """A table of a report, with its note. Texts keep to the left, all else to the right."""
    rows = []
    for number, row in enumerate((table.head, *table.rows)):
        cells = "".join(
            f'<{"td" if number else "th"} style="{_LABEL if n == 0 else _VALUE}">'
            f"{safe(_text(cell))}</{'td' if number else 'th'}>"
            for n, cell in enumerate(row)
        )
        rows.append(f'<tr style="background:transparent">{cells}</tr>')
    grid = (
        '<table style="border-collapse:collapse;margin:0;color:inherit;font-size:13px;'
        f'font-variant-numeric:tabular-nums">{"".join(rows)}</table>'
    )
    title = line(safe(table.title), strong=True) if table.title else ""
    note = label(table.note) if table.note else ""
    html = page(title, f'<div style="overflow:auto">{grid}</div>', note)
    return Shown(html, f"{table.title or table.head[0]}: {len(table.rows)} rows")


def _text(cell: Cell) -> str:
    if isinstance(cell, tuple):
        return ", ".join(link.text for link in cell)
    return cell.text if isinstance(cell, Link) else cell


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Two evaluations of the same questions by one metric, and the rows that flipped.

    `gained` and `lost` hold the stored rows before and after. `difference` is paired by question,
    its interval clustered by database. `mcnemar` is None where questions have several samples:
    then a question flips if its share of right ones moves.
    """

    before: str
    after: str
    metric: str
    questions: int
    gained: tuple[Pair, ...]
    lost: tuple[Pair, ...]
    difference: stats.Estimate
    mcnemar: stats.McNemar | None

    @property
    def frame(self) -> DataFrame:
        """One row a question that flipped, those that became right first."""
        from pandas import DataFrame

        same = ("key", "db_id", "hardness", "question", "gold")
        found = [
            (flip, *(old[n] for n in same), *(row[n] for n in ("answer", "reason") for row in pair))
            for flip, pairs in (("gained", self.gained), ("lost", self.lost))
            for pair in pairs
            for old in pair[:1]
        ]
        both = ("answer_before", "answer_after", "reason_before", "reason_after")
        return DataFrame(found, columns=["flip", *same, *both])

    def __repr__(self) -> str:
        told = (
            f"{self.after} against {self.before}, {self.metric}, {self.questions} questions: "
            f"{len(self.gained)} gained, {len(self.lost)} lost, difference "
            f"{signed(self.difference)}"
        )
        return told + (f", McNemar's exact p {self.mcnemar.p:.3g}" if self.mcnemar else "")

    def _repr_html_(self) -> str:
        if not self.gained and not self.lost:
            return page(line(safe(repr(self)), strong=True))
        head = "".join(
            f'<th style="{_CELL};border-top:0;font-weight:600{width}">{safe(text)}</th>'
            for text, width in (
                ("", ";width:5em"),
                ("question and gold", ""),
                (self.before, ""),
                (self.after, ""),
            )
        )
        body = "".join(
            _row(mark, colour, *pair)
            for mark, colour, pairs in (
                ("✓ gained", GREEN, self.gained),
                ("✗ lost", VERMILION, self.lost),
            )
            for pair in pairs
        )
        table = (
            f'<table style="{_TABLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        )
        return page(
            line(safe(repr(self)), strong=True),
            f'<div style="overflow:auto;max-height:40em">{table}</div>',
        )


def _row(mark: str, colour: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """A question with its gold, and both answers with the training's verdict on them."""
    about = " · ".join(str(old[name]) for name in ("key", "db_id", "hardness") if old[name])
    cells = (
        f'<span style="color:{colour};font-weight:600;white-space:nowrap">{mark}</span>',
        line(safe(old["question"])) + pre(sql(old["gold"])) + label(about),
        _answer(old),
        _answer(new),
    )
    inner = "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells)
    return f'<tr style="background:transparent">{inner}</tr>'


def _answer(row: Mapping[str, Any]) -> str:
    text = "" if row["answer"] is None else pre(sql(row["answer"]))
    return text + label(row["reason"].replace("_", " "))
