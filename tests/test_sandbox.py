"""Processes that run SQL: what they end, who may kill them, and what they leave behind."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hostile
import pytest

from nl2sql_trl import sandbox
from nl2sql_trl.database import DatabaseError, Limits, execute
from nl2sql_trl.records import QueryResult
from nl2sql_trl.rewards import REWARDS, judge
from nl2sql_trl.spider.connection import Limits as OfficialLimits
from nl2sql_trl.spider.execution import TIMEOUT, Runner

PATIENT = Limits(seconds=60, steps=10**12)
SHORT = Limits(seconds=0.2, steps=3_000_000, memory_bytes=256_000_000)
COUNT = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT {}) "
SECONDS_LONG = COUNT.format(1_500_000) + "SELECT count(*) FROM c"
ENDLESS = COUNT.format(10**12) + "SELECT count(*) FROM c"
IN_PROC = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="reads /proc")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "music.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(hostile.SCHEMA)
    connection.close()
    return path


@pytest.fixture
def db(made: Path, tmp_path: Path) -> Iterator[Path]:
    """A database whose bytes and folder must be after every test as they were."""
    folder = tmp_path / "data"
    folder.mkdir()
    path = folder / "music.sqlite"
    shutil.copy(made, path)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    yield path
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert os.listdir(folder) == ["music.sqlite"]


def works(path: Path) -> bool:
    result = execute(path, "SELECT name FROM singer ORDER BY id")
    return result.outcome == "ok" and result.rows == (("Ann",), ("Bo",), ("Cy",))


def state(pid: int) -> str:
    """The letter of a process's state, "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def children(process: int | None = None) -> set[int]:
    """Process ids of the children of a process, the dead that were not waited for among them."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == (process or os.getpid()):
                found.add(int(entry.name))
    return found


def until(condition: Callable[[], bool]) -> bool:
    """Wait for it to be true, for a minute at most."""
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


# Every kind of hostile statement


HOSTILE = [*hostile.ONE_LONG_CALL, *hostile.RUNAWAY, *hostile.LARGE_TEXT]


@pytest.mark.parametrize(
    ("query", "outcomes"), [h[1:] for h in HOSTILE], ids=[h[0] for h in HOSTILE]
)
def test_a_statement_made_to_hang_or_to_swell_ends_and_the_next_one_works(
    db: Path, query: str, outcomes: tuple[str, ...] | None
) -> None:
    result = execute(db, query, SHORT)
    assert result.outcome in (outcomes or ("ok", "error", "timeout", "too_big"))
    assert len(result.rows) <= SHORT.rows
    assert (result.outcome == "ok") != bool(result.error)
    assert works(db)


@pytest.mark.parametrize("query", [*hostile.CLOSED, *hostile.SEVERAL, *hostile.UNREADABLE])
def test_what_is_no_single_read_is_refused_in_words_and_leaves_no_trace(
    db: Path, query: str
) -> None:
    result = execute(db, query)
    assert result.outcome in ("denied", "error") or query == "SELECT 1e"
    if result.outcome != "ok":
        assert result.rows == ()
        result.error.encode()
        assert result.error
        assert str(db.parent) not in result.error
    assert works(db)


def test_hostile_statements_in_parallel_threads_do_not_disturb_each_other(db: Path) -> None:
    def both(n: int) -> bool:
        _, query, outcomes = HOSTILE[n % len(HOSTILE)]
        found = execute(db, query, SHORT).outcome
        return found in (outcomes or ("ok", "error", "timeout", "too_big")) and works(db)

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(both, range(len(HOSTILE))))


@pytest.mark.parametrize(
    "query",
    [
        "EXPLAIN SELECT * FROM singer",
        "EXPLAIN QUERY PLAN SELECT 1",
        "SELECT name, sql FROM sqlite_master",
        "VALUES (1), (2)",
    ],
)
def test_reads_of_the_schema_and_of_plans_are_allowed(db: Path, query: str) -> None:
    assert execute(db, query).outcome == "ok"


@pytest.mark.parametrize(
    "query",
    [q for name, q, _ in hostile.ONE_LONG_CALL if name.startswith(("instr", "tables", "expr"))],
)
def test_the_official_metrics_end_such_a_statement_too(db: Path, query: str) -> None:
    with Runner(OfficialLimits(seconds=0.3)) as runner:
        found = runner.execute(db, query)
        assert found.error is not None
        assert found.rows == ()
        assert runner.execute(db, "SELECT count(*) FROM singer").rows == ((3,),)


def test_a_plain_statement_that_takes_long_is_ended_in_the_official_metrics(db: Path) -> None:
    with Runner(OfficialLimits(seconds=0.3)) as runner:
        found = runner.execute(db, "SELECT count(*) FROM big a, big b, big c, big d")
    assert found.error == TIMEOUT


@pytest.mark.parametrize("first", ["SELECT", "WITH w AS (SELECT 1) SELECT"])
def test_a_sort_larger_than_sqlites_cache_needs_no_temporary_file(db: Path, first: str) -> None:
    query = f"{first} DISTINCT a.b, b.n, a.n FROM big a, big b WHERE b.n <= 12 ORDER BY b.a, a.n"
    with Runner() as runner:
        found = runner.execute(db, query)
    assert found.error is None
    assert len(found.rows) == 60_000
    result = execute(db, query, Limits(rows=100_000, seconds=30))
    assert (result.outcome, result.rows) == ("ok", found.rows)


def test_a_plain_statement_on_long_cells_gives_them(db: Path) -> None:
    with Runner() as runner:
        assert len(runner.execute(db, "SELECT t FROM long").rows[0][0]) == 400_000


# Memory


def test_what_a_query_needs_beyond_its_memory_is_refused_to_it(db: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux holds a process to a limit on its memory")
    limits = Limits(seconds=30, steps=10**9, memory_bytes=64_000_000)
    query = COUNT.format(1_000_000) + "SELECT zeroblob(1000) FROM c ORDER BY random()"
    result = execute(db, query, limits)
    assert (result.outcome, result.error) == ("too_big", "the query needs too much memory")
    assert works(db)


@IN_PROC
def test_a_worker_is_small_however_large_its_parent_is(db: Path) -> None:
    ballast = bytearray(os.urandom(1)) * 400_000_000
    sandbox._pool.close()
    sandbox._pool = sandbox._Pool()
    assert works(db)
    (pid,) = sandbox.worker_pids()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    assert pages * os.sysconf("SC_PAGESIZE") < 100_000_000 < len(ballast)


def test_a_worker_that_returned_much_is_replaced(db: Path) -> None:
    assert works(db)
    before = sandbox.worker_pids()
    limits = Limits(result_bytes=100_000_000)
    assert execute(db, "SELECT t FROM long, big LIMIT 100", limits).complete
    assert works(db)
    assert sandbox.worker_pids() != before


# Killed from outside


def during(path: Path, query: str, act: Callable[[set[int]], None]) -> QueryResult:
    """The result of a query, with `act` called on the workers while it runs."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(execute, path, query, PATIENT)
        time.sleep(0.2)
        act(set(sandbox.worker_pids()))
        return running.result()


def kill(pids: set[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_an_idle_worker_that_was_killed_is_replaced(db: Path) -> None:
    assert works(db)
    kill(set(sandbox.worker_pids()))
    assert works(db)


def test_a_query_whose_worker_is_killed_is_run_once_more(db: Path) -> None:
    assert during(db, SECONDS_LONG, kill).rows == ((1_500_000,),)
    assert works(db)


@pytest.fixture
def killer() -> Iterator[None]:
    """Kills every worker half a second after it was first seen."""
    done = threading.Event()

    def work() -> None:
        seen: dict[int, float] = {}
        while not done.wait(0.02):
            for pid in sandbox.worker_pids():
                if time.monotonic() - seen.setdefault(pid, time.monotonic()) > 0.5:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    done.set()
    thread.join()


@pytest.mark.usefixtures("killer")
def test_a_query_that_ends_two_workers_is_told_apart_from_a_wrong_one(db: Path) -> None:
    result = execute(db, ENDLESS, PATIENT)
    assert result.outcome == "crashed"
    assert result.error == "the query ended the process that ran it (signal 9)"


def test_an_answer_that_ends_its_workers_is_crashed_and_not_wrong(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gold = "SELECT name FROM singer"
    gold_result = execute(db, gold)
    monkeypatch.setattr(sandbox, "call", lambda *_: ("died", "signal 11"))
    found = judge(gold, gold, gold_result, db)
    assert (found.correct, found.reason, found.executable) == (False, "crashed", False)
    assert "signal 11" in found.detail
    assert [reward(found) for reward in REWARDS.values()] == [0.0] * len(REWARDS)


def test_a_gold_that_ends_its_workers_credits_nothing(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sandbox, "call", lambda *_: ("died", "signal 11"))
        gold_result = execute(db, "SELECT name FROM singer")
    assert judge("SELECT name FROM singer", "SELECT name FROM singer", gold_result, db).reason == (
        "gold_unusable"
    )


def test_a_worker_that_was_stopped_is_ended_after_the_clock(db: Path) -> None:
    assert works(db)
    for pid in sandbox.worker_pids():
        os.kill(pid, signal.SIGSTOP)
    assert execute(db, "SELECT 1", Limits(seconds=0.1)).outcome == "timeout"
    assert works(db)


@IN_PROC
def test_nothing_is_left_of_workers_that_ended(db: Path) -> None:
    assert works(db)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        kill(set(sandbox.worker_pids()))
        assert works(db)
        execute(db, hostile.ONE_LONG_CALL[0][1], Limits(seconds=0.05))
    assert works(db)
    dead = [pid for pid in children() if state(pid) == "Z"]
    assert dead == []
    assert len(os.listdir("/proc/self/fd")) <= before + 3  # one worker's pipes
    assert set(sandbox.worker_pids()) <= children()


def test_a_worker_that_cannot_start_says_how_to_see_why(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "_pool", sandbox._Pool())
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(sandbox.SandboxError, match=r"did not start, 5 times \(exit status 1"):
        execute(db, "SELECT 1")


# Forks, other processes, ends


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_process_runs_sql_on_workers_of_its_own(db: Path, method: str) -> None:
    assert works(db)
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        assert pool.map(works, [db] * 8) == [True] * 8
    assert works(db)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_while_queries_run_leaves_both_sides_working(db: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(execute, db, SECONDS_LONG, PATIENT) for _ in range(4)]
        time.sleep(0.1)
        child = os.fork()
        if child == 0:
            os._exit(0 if works(db) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert {r.result().outcome for r in running} == {"ok"}
    assert works(db)


SCRIPT = """
import sys, threading, time
from pathlib import Path
from nl2sql_trl import sandbox
from nl2sql_trl.database import Limits, execute
path = Path(sys.argv[1])
execute(path, "SELECT 1")
long = threading.Thread(target=execute, args=(path, sys.argv[2], Limits(seconds=0.8, steps=10**12)),
                        daemon=True)
long.start()
time.sleep(0.3)
print(*sandbox.worker_pids(), flush=True)
{end}
"""


@IN_PROC
@pytest.mark.parametrize("query", [ENDLESS, hostile.ONE_LONG_CALL[0][1]], ids=["steps", "call"])
@pytest.mark.parametrize(
    "end", ["", "1 / 0", "import os; os._exit(0)", "import os; os.kill(os.getpid(), 9)"]
)
def test_workers_end_with_the_process_that_started_them(db: Path, query: str, end: str) -> None:
    script = SCRIPT.format(end=end)
    done = subprocess.run([sys.executable, "-c", script, db, query], capture_output=True, text=True)
    pids = [int(pid) for pid in done.stdout.split()]
    assert pids
    assert until(lambda: not any(state(pid) not in ("", "Z") for pid in pids))


INTERRUPTED = """
import os, signal, sys, threading
from pathlib import Path
from nl2sql_trl.database import Limits, execute
path = Path(sys.argv[1])
execute(path, "SELECT 1")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    execute(path, sys.argv[2], Limits(seconds=30, steps=10**12))
except KeyboardInterrupt:
    print(execute(path, "SELECT 7").rows[0][0])
"""


def test_ctrl_c_amid_a_query_is_heard_and_the_next_query_gets_its_own_rows(db: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, db, ENDLESS], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("7\n", "")


# Connections that are kept


def old(path: Path, age: int = 100) -> None:
    """Let a file look as if it had last changed a while ago."""
    then = time.time_ns() - age * 10**9
    os.utime(path, ns=(then, then))


def scalar(path: Path) -> object:
    return execute(path, "SELECT a FROM t").rows[0][0]


def write(path: Path, value: int) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    script = "PRAGMA synchronous = OFF; CREATE TABLE IF NOT EXISTS t(a); DELETE FROM t;"
    connection.executescript(f"{script} INSERT INTO t VALUES ({value});")
    connection.close()


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("way", ["in place", "renamed over", "deleted and made"])
def test_a_file_that_changes_between_queries_is_read_anew(
    tmp_path: Path, way: str, settled: bool
) -> None:
    path, other = tmp_path / "a.sqlite", tmp_path / "b.sqlite"
    for value in range(6):
        if way == "in place":
            write(path, value)
        elif way == "renamed over":
            write(other, value)
            other.replace(path)
        else:
            path.unlink(missing_ok=True)
            write(path, value)
        if settled:
            old(path)
        assert scalar(path) == value
        assert scalar(path) == value


def test_a_file_that_is_gone_is_missed_though_it_was_read_before(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    write(path, 1)
    old(path)
    assert scalar(path) == scalar(path) == 1
    path.unlink()
    with pytest.raises(DatabaseError, match="no database file at"):
        scalar(path)


def test_queries_under_other_limits_on_a_kept_connection_keep_to_theirs(db: Path) -> None:
    old(db)
    small, large = Limits(value_bytes=1_000), Limits(value_bytes=10_000)
    for query in ("SELECT hex(zeroblob(1000))", "SELECT printf('%2000d', 1)"):
        for _ in range(2):
            assert execute(db, query, small).outcome == "too_big"
            assert execute(db, query, large).outcome == "ok"


def test_many_databases_are_open_one_after_the_other(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.sqlite" for n in range(40)]
    for n, path in enumerate(paths):
        write(path, n)
        old(path)
    for _ in range(3):
        assert [scalar(path) for path in paths] == list(range(40))
