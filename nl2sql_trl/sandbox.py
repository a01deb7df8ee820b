"""A pool of worker processes that run SQL and can be killed.

`call` hands one request to a free worker (see `sqlworker`) and waits. A query that its worker can't
stop ends with the worker, a worker that dies of anything else is replaced and its request sent
once more: requests only read, so they may run twice. Any thread may call.

Workers are started on demand and kept; there is one pool a process. A forked child starts a pool of
its own, and workers end with the process that started them, however that ends.

What it does not do: it is no defence against code inside SQLite that was taken over by an attacker.
"""

from __future__ import annotations

import atexit
import contextlib
import marshal
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from nl2sql_trl.sqlworker import GRACE_SECONDS

Status = str
"""done: the rest is the answer. memory, file, fault: as the worker says. late: the clock ended it.
died: two workers in a row died of the request, the rest says how."""

_START = "import sys; sys.path.append(sys.argv[1]); from nl2sql_trl.sqlworker import main; main()"
_ROOT = str(Path(__file__).resolve().parents[1])
_START_SECONDS = 60.0
_TRANSFER_SECONDS = 60.0  # without a byte
# The worker's own timer ends it; this is for one that is stopped or stuck in the kernel.
_PATIENCE_SECONDS = GRACE_SECONDS + 2.0
_CLOCK_SIGNALS = {signal.SIGALRM, signal.SIGXCPU}
# After much work or many queries a worker's memory lies in pieces: a new one is cheaper.
_LONG_SECONDS = 1.0
_LARGE_BYTES = 16_000_000
_MAX_CALLS = 20_000
_MAX_STARTS = 5
_MAX_WORKERS = max(4, min(16, os.cpu_count() or 1))


class SandboxError(RuntimeError):
    """The processes that run SQL cannot be started, or have a fault of their own."""


class _Died(Exception):
    """The worker ended; the message says how."""


class _NotStarted(Exception):
    """The worker ended, or said nothing, before it took a request; the message says how."""


class _Late(Exception):
    """The worker was ended by a clock."""


class _Worker:
    """One process with its two pipes. Used by one thread at a time."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", "-B", "-c", _START, _ROOT]
        self.calls = 0
        self.worn = False
        # A session of its own: Ctrl-C in the terminal does not reach it.
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd="/",
            start_new_session=True,
        )
        assert self.process.stdin
        assert self.process.stdout
        assert self.process.stderr
        self.pipes = (self.process.stdin, self.process.stdout, self.process.stderr)
        self.to, self.back, _ = (pipe.fileno() for pipe in self.pipes)
        os.set_blocking(self.to, False)
        os.set_blocking(self.back, False)
        self._ready = False

    def call(self, request: bytes, seconds: float) -> tuple[Any, ...]:
        """Send a request, return the answer.

        Raises _NotStarted, _Died or _Late; then end() must follow.
        """
        if not self._ready:
            try:
                self._receive(time.monotonic() + _START_SECONDS)
            except (_Died, _Late) as error:
                raise _NotStarted(str(error)) from error
            self._ready = True
        self.calls += 1
        start = time.monotonic()
        deadline = start + seconds + _PATIENCE_SECONDS
        self._send(len(request).to_bytes(8) + request, deadline)
        answer = self._receive(deadline)
        took = time.monotonic() - start
        self.worn |= took > _LONG_SECONDS or len(answer) > _LARGE_BYTES or self.calls >= _MAX_CALLS
        return marshal.loads(answer)

    def end(self) -> int:
        """Kill it, reap it and close its pipes; returns how it ended as Popen does."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        code = self.process.wait()
        for pipe in self.pipes:
            pipe.close()
        return code

    def forget(self) -> None:
        """In a forked child: let go of the pipes; the process is the parent's."""
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.close()
        self.process.returncode = 0  # or it would be waited for

    def _send(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.to, view) :]
            except BlockingIOError:
                self._wait(self.to, select.POLLOUT, deadline)
            except BrokenPipeError:
                raise self._death() from None

    def _receive(self, deadline: float) -> bytes:
        size = int.from_bytes(self._read(8, deadline))
        return self._read(size, None)

    def _read(self, size: int, deadline: float | None) -> bytes:
        """Exactly `size` bytes; without a deadline, as long as bytes keep coming."""
        parts: list[bytes] = []
        while size:
            try:
                part = os.read(self.back, min(size, 1 << 20))
            except BlockingIOError:
                until = deadline or time.monotonic() + _TRANSFER_SECONDS
                self._wait(self.back, select.POLLIN, until)
                continue
            if not part:
                raise self._death()
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _wait(self, descriptor: int, event: int, deadline: float) -> None:
        poller = select.poll()
        poller.register(descriptor, event)
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1_000):
            raise _Late("it did not answer")

    def _death(self) -> _Died | _Late:
        """How it ended. It closed its pipes, so it has ended or is about to."""
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if -code in _CLOCK_SIGNALS:
            return _Late("its clock ended it")
        if code < 0:
            return _Died(f"signal {-code}")
        said = (self.pipes[2].read(10_000) or b"").decode(errors="replace").strip()
        return _Died(" ".join([f"exit status {code}", *said.splitlines()[-1:]]))


class _Pool:
    """Workers of this process, free and busy."""

    def __init__(self) -> None:
        self.workers: set[_Worker] = set()
        self._free: list[_Worker] = []
        self._starting = 0
        self._changed = threading.Condition()
        self._closed = False

    def take(self) -> _Worker:
        """A worker that lives: a free one, a new one, or the first to become free."""
        with self._changed:
            while True:
                if self._closed:
                    raise SandboxError("this process is ending: no more SQL is run")
                if self._free:
                    worker = self._free.pop()
                    if worker.process.poll() is None:
                        return worker
                    self.workers.discard(worker)
                    worker.end()
                    continue
                if len(self.workers) + self._starting < _MAX_WORKERS:
                    self._starting += 1
                    break
                self._changed.wait()
        try:
            worker = _start()
        except BaseException:
            with self._changed:
                self._starting -= 1
                self._changed.notify()
            raise
        with self._changed:
            self._starting -= 1
            self.workers.add(worker)
            self._changed.notify()
        return worker

    def give_back(self, worker: _Worker) -> None:
        """After an answer: keep the worker, unless it is worn."""
        if worker.worn:
            self.drop(worker)
            return
        with self._changed:
            self._free.append(worker)
            self._changed.notify()

    def drop(self, worker: _Worker) -> None:
        """End a worker; the next call starts another."""
        worker.end()
        with self._changed:
            self.workers.discard(worker)
            self._changed.notify()

    def close(self) -> None:
        """End every worker, the busy ones too."""
        with self._changed:
            self._closed = True
            workers, self.workers = self.workers, set()
            self._free.clear()
            self._changed.notify_all()
        for worker in workers:
            with contextlib.suppress(OSError):
                worker.end()


def _start() -> _Worker:
    """A new worker. A machine that is short of processes or memory gets some time."""
    for pause in (0.1, 0.5, 2.0):
        try:
            return _Worker()
        except OSError:
            time.sleep(pause)
    try:
        return _Worker()
    except OSError as error:
        raise SandboxError(
            f"the process that runs SQL cannot be started ({error}): free memory, or raise the "
            "limits on processes and open files (ulimit -u, ulimit -n)"
        ) from error


_pool = _Pool()


def call(kind: str, seconds: float, memory: int, *arguments: Any) -> tuple[Any, ...]:
    """Run one request in a worker: (status, *what it says). `kind` is "query" or "official".

    seconds: wall clock; the worker is killed GRACE_SECONDS later. memory: bytes that the request
    may allocate. Never raises for what a request does. Raises SandboxError if no worker starts.
    """
    request = marshal.dumps((kind, seconds, memory, *arguments), 2)
    deaths: list[str] = []
    starts: list[str] = []
    while len(deaths) < 2 and len(starts) < _MAX_STARTS:
        pool = _pool
        worker = pool.take()
        try:
            answer = worker.call(request, seconds)
        except _Late:
            pool.drop(worker)
            return ("late",)
        except _Died as death:
            pool.drop(worker)
            deaths.append(str(death))
        except _NotStarted as failure:
            pool.drop(worker)
            starts.append(str(failure))
        except BaseException:  # Ctrl-C amid an exchange: what is on the pipes is of no more use
            pool.drop(worker)
            raise
        else:
            pool.give_back(worker)
            return answer
    if starts[_MAX_STARTS - 1 :]:
        raise SandboxError(
            f"the process that runs SQL did not start, {_MAX_STARTS} times ({starts[-1]}): see "
            f"whether `{sys.executable} -I -S -c 'import sqlite3'` works, and memory is free"
        )
    return "died", deaths[-1]


def worker_pids() -> list[int]:
    """Process ids of this process's workers."""
    return sorted(worker.process.pid for worker in list(_pool.workers))


def _in_child() -> None:
    """After a fork: the workers are the parent's, and a lock may be held by a thread long gone."""
    global _pool
    for worker in list(_pool.workers):
        worker.forget()
    _pool = _Pool()


def _at_exit() -> None:
    _pool.close()


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
