"""Evaluations as report.md and one self-contained report.html, of one run or several compared.

    python -m nl2sql_trl.report runs/demo/evaluation/base runs/demo/evaluation/grpo
    python -m nl2sql_trl.report RUN [RUN ...] --out FOLDER     # default: the last RUN
    python -m nl2sql_trl.report BASE SEED0,SEED1,SEED2 --out FOLDER

A RUN is a folder that `evaluate` wrote, or several with commas between them, which are seeds of
one recipe and count as their mean. The first run is the base, the last the trained one, and all
must hold the same questions in the same order. Prints the headline table.

Nothing is evaluated here: what a folder does not hold is not in the report.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nl2sql_trl.page import html
from nl2sql_trl.report_runs import Evaluated, check_same_questions, load, together
from nl2sql_trl.report_sections import tables
from nl2sql_trl.report_tables import Cell, Link, Table, about, readable, roles, unlike
from nl2sql_trl.runs import write_text

__all__ = ["Evaluated", "load", "main", "markdown", "page", "write_report"]

_CELL = 200  # characters of a text in Markdown


def markdown(runs: Sequence[Evaluated]) -> str:
    """The report as Markdown. Raises ValueError if the runs are not of the same questions."""
    check_same_questions(runs)
    return _markdown(runs, tables(runs))


def page(runs: Sequence[Evaluated]) -> str:
    """The report as one HTML page. Raises ValueError if the runs are not of the same questions."""
    check_same_questions(runs)
    return html(runs, tables(runs))


def write_report(folders: Sequence[str | Path], out: str | Path) -> str:
    """Write report.md and report.html into `out`; returns the headline tables, for printing.

    Raises what `load` raises, and ValueError if the runs are not of the same questions.
    """
    runs = _told_apart([_run(folder) for folder in folders])
    check_same_questions(runs)
    found = tables(runs)
    write_text(Path(out) / "report.md", _markdown(runs, found))
    write_text(Path(out) / "report.html", html(runs, found))
    # The headline: the first title and what goes on below it.
    end = next((at for at, table in enumerate(found) if at and table.title), len(found))
    headline = "\n".join(map(markdown_table, found[:end]))
    return "\n\n".join(filter(None, (unlike(runs), headline)))


def _run(folder: str | Path) -> Evaluated:
    """The run of a folder, or of several with commas between them."""
    names = str(folder).split(",")
    if len(names) == 1 or Path(folder).is_dir():
        return load(folder)
    if not all(names):
        raise ValueError(f"there is an empty name among the seeds {folder}")
    if len({Path(name).resolve() for name in names}) < len(names):
        raise ValueError(f"a folder stands twice among the seeds {folder}")
    return together([load(name) for name in names])


def _told_apart(runs: Sequence[Evaluated]) -> list[Evaluated]:
    """The runs, with a number behind the names that several of them have."""
    names = [run.name for run in runs]
    return [
        replace(run, name=f"{run.name} ({number})") if names.count(run.name) > 1 else run
        for number, run in enumerate(runs, start=1)
    ]


def _markdown(runs: Sequence[Evaluated], found: Sequence[Table]) -> str:
    named = [_escaped(run.name) for run in runs]
    title = named[0] if len(runs) == 1 else f"{named[-1]} against {named[0]}"
    lines = [f"# Evaluation of {title}", ""]
    lines += [
        f"- Evaluated {_escaped(role)}: {about(run)}."
        for role, run in zip(roles(runs), runs, strict=True)
    ]
    if difference := unlike(runs):
        lines.append(f"- {_escaped(difference)}")
    for table in found:
        lines += ["", *([f"## {table.title}", ""] if table.title else [])]
        lines += [table.note, ""] if table.note else []
        lines.append(markdown_table(table).rstrip("\n"))
    lines += ["", "Every row with its whole trajectory is in report.html.", ""]
    return "\n".join(lines)


def markdown_table(table: Table) -> str:
    """A table in Markdown, its columns as wide as their widest cell."""
    cells = [[_escaped(_text(cell)) for cell in row] for row in (table.head, *table.rows)]
    widths = [max(3, *map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    padded = ([c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in cells)
    return "".join(f"| {' | '.join(row)} |\n" for row in padded)


def _text(cell: Cell) -> str:
    if isinstance(cell, tuple):
        return ", ".join(link.text for link in cell)
    return cell.text if isinstance(cell, Link) else cell


def _escaped(text: str) -> str:
    """One line that Markdown shows as it stands: no markup, no HTML, no link, no new cell."""
    line = " ".join(readable(text, _CELL).split())
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # Brackets stay as they are, for intervals have them; a link needs its `](`.
    return re.sub(r"[\\`*|~$]|(?<!\w)_|_(?!\w)|(?<=\])\(", lambda mark: "\\" + mark[0], line)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m nl2sql_trl.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="evaluation folder, or A,B,C")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: the last RUN")
    options = parser.parse_args(argv)
    out = options.out or Path(options.runs[-1])
    if options.out is None and "," in options.runs[-1]:
        parser.error("give --out FOLDER when the last run is several seeds")
    try:
        print(write_report(options.runs, out))
    except (OSError, ValueError) as error:
        print("error:", readable(" ".join(str(error).split()), 500), file=sys.stderr)
        return 2
    except (LookupError, TypeError, AttributeError) as error:
        # What `load` checks is whole; deeper down only another version writes other things.
        print(
            f"error: a run is not as this version writes it ({error!r}): evaluate again",
            file=sys.stderr,
        )
        return 2
    print(f"written to {out / 'report.md'} and {out / 'report.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
