"""Ask a model questions on a SQLite file from the command line.

    python -m nl2sql_trl.ask --model runs/demo/grpo --db my.sqlite "How many hotels are there?"
    python -m nl2sql_trl.ask --model MODEL --db my.sqlite --interactive
    python -m nl2sql_trl.ask --model MODEL --db my.sqlite --samples 8 "..."   # votes by the rows
    python -m nl2sql_trl.ask --model MODEL --db my.sqlite --json "..."        # for scripts

It is the training's own tool loop: the steps are printed as they happen, then the final SQL and
its rows. MODEL is a run directory, a folder of a model or of LoRA adapters, a hub name,
smollm2-135m or tiny. The limits of a trajectory are those that it was trained with, where its
files say so. The database cannot be changed.

Exit code: 0 with SQL that ran, 1 without, 2 for input that cannot be used. `asker.py` is the same
for notebooks.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nl2sql_trl import runs
from nl2sql_trl.asker import Asked, Asker, schema, trained_limits
from nl2sql_trl.database import DatabaseError
from nl2sql_trl.datafiles import DataError
from nl2sql_trl.prompts import extract_answer, parse_calls
from nl2sql_trl.records import ModelTurn, QueryResult, SqlValue, Trajectory, Turn
from nl2sql_trl.rollout import RolloutConfig
from nl2sql_trl.textrows import plain, text_table

_TURN = 2_000  # characters of a step


def step_text(turn: Turn) -> str:
    """A turn for the terminal: what the model did, or what it was told."""
    if not isinstance(turn, ModelTurn):
        return "\n".join(
            _labelled("rows" if c.result and c.result.outcome == "ok" else "error", c.response)
            for c in turn.calls
        )
    calls = parse_calls(turn.text)
    if queries := [call.query for call in calls if call.query is not None]:
        return "\n".join(_labelled("run_sql", query) for query in queries)
    answer = None if calls else extract_answer(turn.text)
    return _labelled("model", turn.text) if answer is None else _labelled("answer", answer)


def _labelled(label: str, text: str) -> str:
    cut = text[:_TURN] + ("…" if len(text) > _TURN else "")
    return f"{label:8} " + plain(cut).replace("\n", "\n" + " " * 9)


def outcome_text(asked: Asked, width: int) -> str:
    """The final SQL with the table of its rows, or why there is none."""
    if asked.result is None or asked.problem:
        sql = f"{plain(asked.sql)}\n" if asked.sql else ""
        return f"\n{sql}{plain(asked.problem)}"
    return f"\n{plain(asked.sql or '')}\n\n{text_table(asked.result, width)}{asked.voted}"


def outcome_json(asked: Asked) -> str:
    """One line of ASCII JSON. BLOBs are hex, infinities words, bytes that are no UTF-8 `\\xNN`."""
    result = asked.result if asked.result and asked.result.outcome == "ok" else QueryResult("ok")
    found = {
        "question": asked.question,
        "sql": asked.sql,
        "columns": list(result.columns),
        "rows": [[_json_value(value) for value in row] for row in result.rows],
        "complete": result.complete,
        "problem": asked.problem,
        "steps": runs.turns(asked.trajectory),
        "stop": asked.trajectory.stop,
        "votes": [{"sql": vote.sql, "count": vote.count} for vote in asked.votes],
    }
    return json.dumps(found, allow_nan=False)


def _json_value(value: SqlValue) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    from nl2sql_trl.launch import guarded

    parser = argparse.ArgumentParser(
        prog="python -m nl2sql_trl.ask",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    trained = "default: as trained"
    parser.add_argument("question", nargs="?", help="what to ask")
    parser.add_argument("--model", required=True, help="run, folder, hub name, or name of ours")
    parser.add_argument("--db", required=True, type=Path, help="SQLite file")
    parser.add_argument("--interactive", action="store_true", help="keep asking for questions")
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--samples", type=int, default=1, help="sample N, vote by their rows")
    parser.add_argument("--temperature", type=float, default=1.0, help="of several samples")
    parser.add_argument("--seed", type=int, default=0, help="of several samples")
    parser.add_argument("--budget", type=int, help=f"tokens over all turns ({trained})")
    parser.add_argument("--max_turns", type=int, help=trained)
    parser.add_argument("--truncation", choices=["rows", "seed"], help=trained)
    parser.add_argument("--tool_chars", type=int, help=trained)
    options = parser.parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # whatever the terminal can encode
    with guarded():
        _check(options)
        schema(options.db)  # before the model is loaded
        _note_unmerged(options.db)
        from transformers.utils import logging

        logging.disable_progress_bar()
        asker = Asker.load(options.model, _limits(options))
        try:
            if options.interactive:
                return _interactive(asker, options)
            return int(bool(_answer(asker, options.question, options).problem))
        except KeyboardInterrupt:
            print("\nstopped", file=sys.stderr)
            return 130


def _check(options: argparse.Namespace) -> None:
    """Raise ConfigError for options that cannot be."""
    from nl2sql_trl.launch import ConfigError

    if options.question is None and not options.interactive:
        raise ConfigError("no question is asked: write one in quotes, or use --interactive")
    if options.json and options.interactive:
        raise ConfigError("--json answers one question: leave --interactive out")
    if options.samples < 1:
        raise ConfigError(f"--samples must be at least 1, not {options.samples}")
    if not 0 < options.temperature < math.inf:
        raise ConfigError(f"--temperature must be above 0, not {options.temperature}")


def _limits(options: argparse.Namespace) -> RolloutConfig:
    """The limits that the model was trained with, but for those that flags give."""
    from nl2sql_trl.launch import ConfigError

    names = ("budget", "max_turns", "truncation", "tool_chars")
    given = {n: getattr(options, n) for n in names if getattr(options, n) is not None}
    try:
        return replace(trained_limits(options.model), **given)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _note_unmerged(db: Path) -> None:
    for kind in ("-wal", "-journal"):
        beside = db.with_name(db.name + kind)
        if beside.is_file() and beside.stat().st_size:
            print(f"note: changes that are still in {beside} are not seen", file=sys.stderr)


def _answer(asker: Asker, question: str, options: argparse.Namespace) -> Asked:
    """Ask and print: the steps (of several samples, their answers) as they come, then the rows."""
    done = 0

    def on_turn(_key: int, turn: Turn) -> None:
        if options.samples == 1 and not options.json:
            print(step_text(turn), flush=True)

    def on_done(_key: int, trajectory: Trajectory) -> None:
        nonlocal done
        done += 1
        if options.samples > 1 and not options.json:
            text = trajectory.answer or "no answer"
            print(_labelled(f"{done} of {options.samples}", text), flush=True)

    asked = asker.ask(
        question,
        options.db,
        samples=options.samples,
        temperature=options.temperature,
        seed=options.seed,
        on_turn=on_turn,
        on_done=on_done,
    )
    width = shutil.get_terminal_size((100, 24)).columns
    print(outcome_json(asked) if options.json else outcome_text(asked, width), flush=True)
    return asked


def _interactive(asker: Asker, options: argparse.Namespace) -> int:
    """Answer questions until an empty line or the end of the input. Ctrl-C stops one answer."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # gives `input` its line editing
    question = options.question
    if sys.stdin.isatty():
        print("An empty line or Ctrl-D ends, Ctrl-C stops an answer.", file=sys.stderr)
    while True:
        try:
            question = question or input("question> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return 0
        if not question.strip():
            return 0
        try:
            _answer(asker, question, options)
        except KeyboardInterrupt:
            print("\nstopped", flush=True)
        except (DataError, DatabaseError) as error:
            print(f"error: {plain(str(error))}", file=sys.stderr)
        print()
        question = None


if __name__ == "__main__":
    sys.exit(main())
