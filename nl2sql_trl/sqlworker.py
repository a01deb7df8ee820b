"""The process that runs SQL: it reads requests from standard input and answers on standard output.

`sandbox` starts it. Its own kernel limits end it where SQLite can't be stopped: a timer and a limit
on CPU time kill it, memory beyond a query's limit is refused to it, and it may not write a byte to
any file. It ends when its standard input does, so it does not outlive the process that started it
by more than the query in hand.

A message is eight bytes of length and a marshalled tuple. This module loads the standard library
and SQL alone, so that a process is ready in some hundredths of a second.
"""

from __future__ import annotations

import marshal
import os
import resource
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from nl2sql_trl.sqlengine import DatabaseError, Engine, Limits

GRACE_SECONDS = 0.5
"""What a query gets beyond its clock before its process is killed."""

_OWN_BYTES = 128_000_000  # address space of Python itself, with room for the answer's first steps
_SQLITE_HEAP_BYTES = 2_000_000_000
_UNLIMITED = resource.RLIM_INFINITY

Run = Callable[..., tuple[Any, ...]]


def main() -> None:
    """Serve requests until standard input ends."""
    _settle()
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # Whatever should print goes elsewhere: standard output carries messages.
    os.dup2(2, 1)
    engine = Engine()

    def query(path: str, text: str, *limits: Any) -> tuple[Any, ...]:
        r = engine.run(Path(path), text, Limits(*limits))
        return r.outcome, r.columns, r.rows, r.complete, r.error, r.reads

    _send(answers, ("ready",))
    while (head := requests.read(8)) and len(head) == 8:
        kind, seconds, memory, *arguments = marshal.loads(requests.read(int.from_bytes(head)))
        run = query if kind == "query" else _official()
        _send(answers, _bounded(run, seconds, memory, arguments))


def _bounded(run: Run, seconds: float, memory: int, arguments: list[Any]) -> tuple[Any, ...]:
    """The answer to one request; the process dies in here if its clock runs out."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = used.ru_utime + used.ru_stime + seconds + GRACE_SECONDS
    _limit(resource.RLIMIT_CPU, int(cpu) + 2)
    _limit(resource.RLIMIT_AS, memory + _OWN_BYTES)
    signal.setitimer(signal.ITIMER_REAL, seconds + GRACE_SECONDS)
    try:
        return "done", *run(*arguments)
    except MemoryError:
        return ("memory",)
    except DatabaseError as error:
        return "file", str(error)
    except Exception:
        return "fault", traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _limit(resource.RLIMIT_AS, _UNLIMITED)


def _official() -> Run:
    from nl2sql_trl.spider.connection import run_once

    return run_once


def _send(answers: BinaryIO, answer: tuple[Any, ...]) -> None:
    data = marshal.dumps(answer, 2)  # version 2 keeps no table of references: faster
    answers.write(len(data).to_bytes(8))
    answers.write(data)
    answers.flush()


def _settle() -> None:
    """Signals as we need them, whatever was inherited, and limits that never change."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    for name in (signal.SIGALRM, signal.SIGXCPU, signal.SIGTERM):
        signal.signal(name, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # One limit for all of SQLite in this process, for systems that don't hold to RLIMIT_AS.
    sqlite3.connect(":memory:").execute(f"PRAGMA hard_heap_limit = {_SQLITE_HEAP_BYTES}")


def _limit(which: int, value: int) -> None:
    """Set a soft limit, up to the hard one."""
    if which == resource.RLIMIT_AS and sys.platform != "linux":
        return  # macOS does not hold to it, and may refuse to set it
    hard = resource.getrlimit(which)[1]
    soft = value if hard == _UNLIMITED else hard if value == _UNLIMITED else min(value, hard)
    resource.setrlimit(which, (soft, hard))
