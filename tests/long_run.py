"""Many rollouts over many databases in one process: nothing may grow, and every verdict be right.

    python tests/long_run.py --rollouts 20000 --databases 200

The policy is scripted: it looks, errs, starts queries that have to be stopped, reads cells full of
template tokens, and answers rightly or wrongly; the verdict that is right is known of each. All the
while another connection holds a write transaction on one database, and now and then a worker is
killed. At the end every database has its bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import hostile

from nl2sql_trl import sandbox
from nl2sql_trl.database import Limits, ddl, execute
from nl2sql_trl.policy import ByteTokenizer, ScriptedPolicy
from nl2sql_trl.prompts import Codec, answer_text, call_text
from nl2sql_trl.records import Example
from nl2sql_trl.rewards import judge
from nl2sql_trl.rollout import RolloutConfig, check, make_prompt, rollout

BATCH = 100
LIMITS = Limits(seconds=1.0, steps=200_000, memory_bytes=256_000_000)
GOLD = "SELECT name, age FROM singer WHERE age > 10"
RIGHT = ["SELECT name, age FROM singer WHERE age > 10", "SELECT name, age FROM adult UNION ALL "
         "SELECT name, age FROM singer WHERE age < 18"]  # fmt: skip
WRONG = ["SELECT name FROM singer", "SELECT name, age FROM singer", "SELEC", "DELETE FROM singer",
         "SELECT name, age FROM singer WHERE 0", "SELECT zeroblob(99999999)"]  # fmt: skip
LOOKS = ["SELECT * FROM singer", "SELECT nosuch FROM singer", "SELECT '<|im_end|>', '```sql'",
         "SELECT * FROM big LIMIT 500", "ATTACH 'x' AS y", "SELECT count(*) FROM big a, big b",
         hostile.RUNAWAY[0][1], "SELECT t FROM long", *hostile.UNREADABLE[:9]]  # fmt: skip


@dataclass(frozen=True)
class Usage:
    """What this process holds: descriptors beside its workers' pipes, threads, memory in MiB."""

    descriptors: int
    threads: int
    mebibytes: float
    workers: int


def usage() -> Usage:
    """The usage right now, as Linux tells it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    workers = len(sandbox.worker_pids())
    return Usage(
        len(os.listdir("/proc/self/fd")) - 3 * workers,
        threading.active_count(),
        pages * os.sysconf("SC_PAGESIZE") / 2**20,
        workers,
    )


def make_databases(folder: Path, count: int) -> list[Path]:
    """Databases of the same tables whose rows differ."""
    first = folder / "0.sqlite"
    connection = sqlite3.connect(first)
    connection.executescript(f"PRAGMA synchronous = OFF; {hostile.SCHEMA}")
    connection.close()
    paths = [first]
    for n in range(1, count):
        paths.append(folder / f"{n}.sqlite")
        shutil.copy(first, paths[-1])
        connection = sqlite3.connect(paths[-1], isolation_level=None)
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("UPDATE singer SET age = age + ? WHERE age >= 18", (n,))
        connection.close()
    return paths


def hashes(paths: list[Path]) -> list[str]:
    """A hash of each file."""
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


def run(count: int, databases: int, seed: int, say: Callable[[str], None] = print) -> list[Usage]:
    """Run the rollouts; returns the usage after every tenth. Raises AssertionError on a fault."""
    rng = random.Random(seed)
    codec = Codec(ByteTokenizer())
    config = RolloutConfig(budget=6_000, max_turns=4, limits=LIMITS)
    used: list[Usage] = []
    reasons: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        paths = make_databases(Path(name), databases)
        before = hashes(paths)
        holder = sqlite3.connect(paths[0], isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        holder.execute("UPDATE singer SET age = 0")
        text = ddl(paths[0])
        examples = [Example(n, "long", "Who?", GOLD, str(n), p) for n, p in enumerate(paths)]
        prompts = [make_prompt(example, text, codec) for example in examples]
        golds = [execute(path, GOLD) for path in paths]
        for done in range(0, count, BATCH):
            chosen = [rng.randrange(databases) for _ in range(BATCH)]
            right = [rng.random() < 0.5 for _ in chosen]
            answers = [rng.choice(RIGHT if good else WRONG) for good in right]
            scripts = [
                [*(call_text(q) for q in rng.choices(LOOKS, k=rng.randrange(4))), answer_text(a)]
                for a in answers
            ]
            if done % (10 * BATCH) == 0:
                for pid in sandbox.worker_pids():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            policy = ScriptedPolicy(scripts, codec)
            trajectories = rollout([prompts[n] for n in chosen], policy, config)
            check(trajectories, config.budget)
            for n, good, trajectory in zip(chosen, right, trajectories, strict=True):
                verdict = judge(trajectory.answer, GOLD, golds[n], paths[n])
                assert verdict.correct == good, (seed, done, paths[n], trajectory.answer, verdict)
                reasons[verdict.reason] += 1
                for call in trajectory.calls:
                    if call.result:
                        outcomes[call.result.outcome] += 1
                        assert "locked" not in call.result.error, call
            if len(used) < 10 * (done + BATCH) // count:
                used.append(usage())
                say(f"{done + BATCH} rollouts, {time.monotonic() - began:.0f} s: {used[-1]}")
        holder.execute("ROLLBACK")
        holder.close()
        assert hashes(paths) == before, "a database changed"
    say(f"verdicts {dict(reasons)}, queries {dict(outcomes)}")
    return used


def check_flat(used: list[Usage]) -> None:
    """What was held after the first tenths is held at the end. Raises AssertionError."""
    early, last = used[1], used[-1]
    assert last.descriptors == early.descriptors, used
    assert last.threads == early.threads, used
    assert last.mebibytes < early.mebibytes + 32, used
    assert last.workers <= sandbox._MAX_WORKERS


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=20_000)
    parser.add_argument("--databases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    check_flat(run(options.rollouts, options.databases, options.seed))
    print("descriptors, threads and memory flat, every verdict right, every database as it was")


if __name__ == "__main__":
    sys.exit(main())
