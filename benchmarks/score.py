"""CPU seconds of scoring Spider's development set, against the official test-suite script.

    python benchmarks/score.py --spider DIR [--pred FILE ...] [--official CLONE]

DIR is a Spider folder with `database`, `test_suite_database`, `tables.json` and `dev.json`. The
golds are scored against themselves and then every prediction file, each in a process of its own.
CLONE is a clone of taoyds/test-suite-sql-eval: with it the official script is measured in the same
run (it needs nltk and sqlparse), `--etype all`. Without it only our seconds are printed.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spider", type=Path, required=True)
    parser.add_argument("--pred", type=Path, nargs="*", default=[])
    parser.add_argument("--official", type=Path)
    options = parser.parse_args()
    rows = json.loads((options.spider / "dev.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        gold, own = Path(folder, "gold.sql"), Path(folder, "gold_as_pred.sql")
        gold.write_text("".join(f"{row['query']}\t{row['db_id']}\n" for row in rows))
        own.write_text("".join(f"{row['query']}\n" for row in rows))
        databases = [options.spider / name for name in ("test_suite_database", "database")]
        print(f"{'predictions':24}{'ours, CPU s':>14}{'peak MiB':>10}{'official':>10}{'ratio':>8}")
        for pred in (own, *options.pred):
            files = ["--gold", gold, "--pred", pred, "--db"]
            tables = options.spider / "tables.json"
            ours, memory = seconds(
                ["-m", "nl2sql_trl.score", *files, *databases, "--tables", tables]
            )
            line = f"{pred.stem:24}{ours:14.1f}{memory:10.0f}"
            if options.official:
                script = options.official / "evaluation.py"
                # One folder for all: the official script takes a single one.
                merged = merge(databases, Path(folder, "databases"))
                theirs, _ = seconds([script, *files, merged, "--table", tables, "--etype", "all"])
                line += f"{theirs:10.1f}{theirs / ours:7.1f}x"
            print(line, flush=True)
    return 0


def seconds(arguments: list[object]) -> tuple[float, float]:
    """CPU seconds (user and system) and peak memory in MiB of a Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    # The largest child so far: ours never shrinks it, so read it as "at most".
    return spent, after.ru_maxrss / 1024


def merge(folders: list[Path], into: Path) -> Path:
    """One folder with a link to each database, the first folder that has one winning."""
    into.mkdir(exist_ok=True)
    for folder in folders:
        for database in folder.iterdir():
            link = into / database.name
            if not link.exists():
                link.symlink_to(database.resolve(), target_is_directory=True)
    return into


if __name__ == "__main__":
    sys.exit(main())
