"""Score text-to-SQL predictions by the official Spider metrics.

Spider's file formats, one line a question::

    python -m nl2sql_trl.score --gold dev_gold.sql --pred pred.sql --db database \\
        --tables tables.json --json scores.json

or one JSON object a line with ``id``, ``db_id``, ``gold`` and ``pred``::

    python -m nl2sql_trl.score --cases cases.jsonl --db database --out verdicts.jsonl

The files beside ``<db_id>.sqlite`` are its test suite. ``official`` gives what the official scripts
give, with their quirks; ``fixed`` what they should (docs/metrics.md lists each difference);
``both`` one beside the other. Each gold is scored against itself, and what fails there is named.

Bad input ends with one line on standard error and exit status 2. Interactions (SParC, CoSQL) are
not scored as such.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nl2sql_trl.sandbox import SandboxError
from nl2sql_trl.spider.cases import (
    Case,
    InputError,
    read_cases,
    read_schemas,
    read_spider_files,
)
from nl2sql_trl.spider.evaluator import CaseScore
from nl2sql_trl.spider.scoring import (
    Mode,
    Scored,
    Setup,
    gold_line,
    score_all,
    summarize,
    table,
    verdict,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    args = _parser().parse_args(argv)
    # Rows come by the hundred thousand and none refers to another: look for cycles rarely.
    gc.set_threshold(200_000, 50, 50)
    try:
        _run(args)
    except (InputError, SandboxError) as error:
        print("error:", " ".join(str(error).split()), file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def _run(args: argparse.Namespace) -> None:
    if args.cases is not None and args.gold is None and args.pred is None:
        cases = read_cases(args.cases)
    elif args.gold is not None and args.pred is not None and args.cases is None:
        cases = read_spider_files(args.gold, args.pred)
    else:
        raise InputError("give either --gold and --pred, or --cases")
    if args.processes < 1:
        raise InputError(f"--processes must be at least 1, not {args.processes}")
    for folder in args.db:
        if folder.is_file():
            raise InputError(f"{folder} is a file: give the folder of <db_id>/<db_id>.sqlite")
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder")
    # Found out now, not after minutes of scoring.
    taken = [file.resolve() for file in (args.gold, args.pred, args.cases, args.tables) if file]
    for file in (args.json, args.out):
        if file is None:
            continue
        if file.resolve() in taken:
            raise InputError(f"{file} is read or written already: give another file")
        taken.append(file.resolve())
        if file.is_dir():
            raise InputError(f"{file} is a folder: give a file")
        if not (file.parent.is_dir() and os.access(file.parent, os.W_OK)):
            raise InputError(f"{file}: its folder does not exist or cannot be written to")
    setup = Setup(args.db, read_schemas(args.tables), args.plug_value, args.keep_distinct)
    if not cases:
        raise InputError(f"{args.cases or args.gold} holds nothing to score")
    modes: tuple[Mode, ...] = ("official", "fixed") if args.mode == "both" else (args.mode,)
    done = {
        mode: score_all(cases, setup, mode, processes=args.processes, progress=sys.stderr.isatty())
        for mode in modes
    }
    if args.out is not None or args.json is not None:
        rows = [
            _row(case, dict(zip(modes, scores, strict=True)))
            for case, *scores in zip(cases, *(done[mode].scores for mode in modes), strict=True)
        ]
        _write(args, rows, done)
    for mode, scored in done.items():
        if len(done) > 1:
            print(f"{mode}:")
        print(table(summarize(scored.scores)))
        print(gold_line(scored).encode("utf-8", "backslashreplace").decode())


def _write(args: argparse.Namespace, rows: list[dict[str, Any]], done: dict[Mode, Scored]) -> None:
    if args.out is not None:
        texts = {"db_id", "gold", "pred", "partial"}
        lines = ({k: v for k, v in row.items() if k not in texts} for row in rows)
        args.out.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    if args.json is not None:
        args.json.write_text(f"{json.dumps(_report(rows, done), indent=1)}\n", encoding="utf-8")


def _row(case: Case, scores: dict[Mode, CaseScore]) -> dict[str, Any]:
    """One case with its verdicts; with both modes, the fixed ones stand under `fixed`."""
    first = next(iter(scores))
    partial = {name: component._asdict() for name, component in scores[first].partial.items()}
    texts = {"db_id": case.db_id, "gold": case.gold, "pred": case.pred}
    row = {**verdict(case, scores[first]), **texts, "partial": partial}
    if len(scores) > 1:
        row["fixed"] = {k: v for k, v in verdict(case, scores["fixed"]).items() if k != "id"}
    return row


def _report(rows: list[dict[str, Any]], done: dict[Mode, Scored]) -> dict[str, Any]:
    first = next(iter(done.values()))
    report = {
        "mode": "both" if len(done) > 1 else next(iter(done)),
        "summary": summarize(first.scores),
        "gold_failures": [asdict(failure) for failure in first.gold_failures],
        "distinct_golds": first.golds,
        "rows": rows,
    }
    if len(done) > 1:
        report["summary_fixed"] = summarize(done["fixed"].scores)
        report["gold_failures_fixed"] = [asdict(f) for f in done["fixed"].gold_failures]
    return report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m nl2sql_trl.score",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--gold", type=Path, help="file with one SQL<TAB>db_id a line")
    add("--pred", type=Path, help="file with one SQL statement a line; a blank one is wrong")
    add("--cases", type=Path, help="JSONL file with id, db_id, gold and pred")
    add("--db", type=Path, nargs="+", required=True, help="folders of databases, first one first")
    add("--tables", type=Path, help="tables.json, for foreign keys; default: as declared in files")
    add("--mode", choices=["official", "fixed", "both"], default="official")
    add("--json", type=Path, help="write rows and summary here")
    add("--out", type=Path, help="write one verdict a line here, as JSONL")
    add("--processes", type=int, default=1, help="databases scored at the same time (default 1)")
    add("--plug_value", action="store_true", help="test suite: also try the gold's values")
    add("--keep_distinct", action="store_true", help="test suite: leave DISTINCT in")
    return parser


if __name__ == "__main__":
    sys.exit(main())
