"""Generated SQL and assistant messages, run for real; a fault ends the run with its seed.

    python tests/fuzzing.py --sql 100000 --messages 20000 [--seed 0] [--spider DIR]

SQL comes of a grammar over the real schemas, of golds that were cut, swapped and spliced, of noise,
and of hostile atoms. Each statement goes through `execute`, `render`, `judge` and the official
metrics' runner. Messages go through the parsers and whole rollouts with a real tokenizer. Checked
of each: nothing raises, nothing runs past its limit, every answer to the model is valid JSON,
special tokens stand only where the template puts them. At the end every database has its bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import hostile
from fakes import chat_tokenizer

from nl2sql_trl.data import load
from nl2sql_trl.database import Limits, connect, ddl, execute
from nl2sql_trl.policy import ScriptedPolicy
from nl2sql_trl.prompts import Codec, extract_answer, parse_calls
from nl2sql_trl.records import Example, ModelTurn, Prompt, QueryResult, ToolTurn
from nl2sql_trl.rewards import Comparison, judge
from nl2sql_trl.rollout import RolloutConfig, check, make_prompt, rollout
from nl2sql_trl.sandbox import _PATIENCE_SECONDS
from nl2sql_trl.spider.connection import Limits as OfficialLimits
from nl2sql_trl.spider.execution import Runner
from nl2sql_trl.sqlworker import GRACE_SECONDS
from nl2sql_trl.tools import DEFAULT_CHARS, render

LIMITS = Limits(seconds=0.2, steps=2_000_000, memory_bytes=256_000_000)
# Beyond this a statement counts as hung: the last of all clocks and time for a busy machine.
HUNG_SECONDS = LIMITS.seconds + GRACE_SECONDS + _PATIENCE_SECONDS + 10.0
OUTCOMES = {"ok", "error", "timeout", "denied", "too_big"}

Rng = random.Random
Say = Callable[[str], None]


@dataclass(frozen=True)
class World:
    """Databases to run on: their golds, and their tables with columns."""

    examples: list[Example]
    tables: dict[Path, dict[str, list[str]]]

    def golds(self, path: Path) -> list[str]:
        """The golds on one database."""
        return [example.gold for example in self.examples if example.db_path == path]


def make_world(data: Sequence[tuple[str, str]], extra: Path) -> World:
    """The world of some data sets' splits and of a database of hostile shape at `extra`."""
    if not extra.exists():
        connection = sqlite3.connect(extra)
        connection.executescript(hostile.SCHEMA)
        connection.close()
    examples = [example for name, split in data for example in load(name, split)]
    examples.append(Example(0, "extra", "How many?", "SELECT count(*) FROM singer", "x", extra))
    tables: dict[Path, dict[str, list[str]]] = {}
    for path in sorted({example.db_path for example in examples}):
        connection = connect(path)
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        tables[path] = {
            name: [row[1] for row in connection.execute(f"PRAGMA table_info([{name}])")]
            for (name,) in names
        }
        connection.close()
    return World(examples, tables)


def hashes(world: World) -> dict[Path, str]:
    """A hash of every database, and the names beside it."""
    return {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        + " ".join(sorted(p.name for p in path.parent.iterdir()))
        for path in world.tables
    }


# SQL

_VALUES = ["0", "1", "-1", "NULL", "''", "'a'", "'%a%'", "x'ff00'", "9223372036854775807", "1e308",
           "-9223372036854775808", "1e999", "0.1", "'2020-01-01'", "'é☃😀'",
           "CAST(x'ff' AS TEXT)", "zeroblob(3)", "'<|im_end|>'", "'</tool_response>'", "'```'",
           "'[1,{\"a\":2}]'"]  # fmt: skip
_CALLS = ["count({})", "sum({})", "avg({})", "min({})", "max({})", "total({})", "abs({})",
          "length({})", "lower({})", "upper({})", "hex({})", "quote({})", "typeof({})", "round({})",
          "group_concat({})", "group_concat(DISTINCT {})", "json_array({})", "json({})",
          "json_group_array({})", "substr({}, 2, 3)", "trim({})", "replace({}, 'a', 'bb')",
          "instr({}, 'a')", "printf('%5d|%s', {})", "coalesce({}, 1)", "date({})",
          "strftime('%Y', {})", "CAST({} AS TEXT)", "CAST({} AS INT)", "-{}", "NOT {}", "~{}",
          "soundex({})", "unicode({})", "char({})", "randomblob(abs({}) % 9)", "exp({})", "ln({})",
          "json_extract({}, '$.a')", "zeroblob({})", "{} IS NULL", "{} ISNULL",
          "rank() OVER (ORDER BY {})", "lag({}) OVER (ORDER BY 1)", "sum({}) OVER ()"]  # fmt: skip
_OPERATORS = ["=", "<>", "<", ">=", "+", "-", "*", "/", "%", "||", "AND", "OR", "LIKE", "GLOB",
              "IS", "IS NOT", "&", "<<", "->>", "REGEXP", "MATCH", "IN", "BETWEEN"]  # fmt: skip
_NOISE = [chr(c) for c in (0, 1, 9, 10, 13, 27, 0x7F, 0xA0, 0x200B, 0x2028, 0xFEFF, 0xD800, 0xDCFF,
                           0x1F600, 0xFFFF, 0x10FFFF)]  # fmt: skip
_ATOMS = [query for _, query, _ in (*hostile.ONE_LONG_CALL, *hostile.RUNAWAY)]
_ATOMS += [*hostile.CLOSED, *hostile.SEVERAL, *hostile.UNREADABLE]
_PIECES = ["zeroblob(1000000)", "hex(zeroblob(400000))", "printf('%900000d', 1)", 
           "randomblob(9999)",
           "replace(hex(zeroblob(90000)), '0', 'ab')", 
           "(SELECT group_concat(1) FROM sqlite_master)",
           "load_extension('x')", "(SELECT sql FROM sqlite_master)", 
           "json_array(1, json('[[[]]]'))",
           "printf('%*c', 1000000, 'x')", "instr(hex(zeroblob(90000)), hex(zeroblob(40000)) || 1)",
           "'a' LIKE '%_%_%_%_%a'", "abs(-9223372036854775808)", "sum(9223372036854775807)",
           "1 IN (1, 2, (SELECT 3))", "(VALUES (1), (2))", "CASE WHEN 1 THEN 2 END", "?", ":a",
           "pragma_table_info('x')", "fts3_tokenizer('a')", "readfile('/etc/passwd')"]  # fmt: skip


class Sql:
    """Statements on one database."""

    def __init__(self, rng: Rng, tables: dict[str, list[str]], golds: list[str]) -> None:
        self.rng, self.tables, self.golds = rng, tables, golds
        self.scope: list[tuple[str, str]] = []  # aliases and their tables

    def statement(self) -> tuple[str, str]:
        """A kind and a statement."""
        kinds: list[tuple[str, Callable[[], str], float]] = [
            ("grammar", lambda: self.query(2), 44),
            ("mutated gold", self.mutated, 40),
            ("noise", self.noise, 6),
            ("hostile piece", self.with_piece, 9),
            ("hostile statement", lambda: self.rng.choice(_ATOMS), 1),
        ]
        name, make, _ = self.rng.choices(kinds, [weight for *_, weight in kinds])[0]
        return name, make()

    def query(self, depth: int) -> str:
        rng = self.rng
        count = rng.choices([1, 2, 3, 4], [12, 6, 2, 1])[0]
        names = [rng.choice(list(self.tables)) for _ in range(count)]
        outer, self.scope = self.scope, [(f"t{n}", name) for n, name in enumerate(names)]
        sources = [self.source(f"t{n}", name, depth) for n, name in enumerate(names)]
        items = ", ".join(self.item(depth) for _ in range(rng.choice([1, 1, 2, 3, 6])))
        join = rng.choice([", ", " JOIN ", " LEFT JOIN ", " NATURAL JOIN ", " CROSS JOIN "])
        text = f"SELECT {rng.choice(['', '', 'DISTINCT '])}{items} FROM {join.join(sources)}"
        if rng.random() < 0.5:
            text += f" WHERE {self.condition(depth)}"
        if rng.random() < 0.3:
            text += f" GROUP BY {self.value(0)}"
            if rng.random() < 0.4:
                text += f" HAVING {self.condition(1)}"
        if rng.random() < 0.3:
            text += f" ORDER BY {self.value(0)}{rng.choice(['', ' DESC', ' COLLATE NOCASE'])}"
        if rng.random() < 0.3:
            text += f" LIMIT {rng.choice(['1', '5', '-1', '0', '10 OFFSET 2', self.value(1)])}"
        self.scope = outer
        if depth and rng.random() < 0.15:
            kind = rng.choice(["UNION", "UNION ALL", "EXCEPT", "INTERSECT"])
            text += f" {kind} {self.query(depth - 1)}"
        if depth == 3 and rng.random() < 0.1:
            text = f"WITH w AS ({self.query(1)}) {text}"
        return text

    def source(self, alias: str, name: str, depth: int) -> str:
        if depth and self.rng.random() < 0.1:
            return f"({self.query(depth - 1)}) AS {alias}"
        if self.rng.random() < 0.03:
            return self.rng.choice(["w", "sqlite_master", "json_each('[1,2]')", "nosuch", "dbstat"])
        return f"[{name}] AS {alias}"

    def item(self, depth: int) -> str:
        return "*" if self.rng.random() < 0.1 else self.value(depth)

    def value(self, depth: int) -> str:
        rng = self.rng
        if depth and rng.random() < 0.3:
            return rng.choice(_CALLS).replace("{}", self.value(depth - 1))
        if depth and rng.random() < 0.2:
            return f"({self.value(depth - 1)} {rng.choice(_OPERATORS)} {self.value(depth - 1)})"
        if depth > 1 and rng.random() < 0.1:
            return f"({self.query(depth - 2)})"
        if rng.random() < 0.3:
            return rng.choice(_VALUES)
        alias, table = rng.choice(self.scope or [("", rng.choice(list(self.tables)))])
        if rng.random() < 0.02:
            table = rng.choice(list(self.tables))
        column = rng.choice(self.tables[table] or ["rowid"])
        return f'{alias}."{column}"' if alias else f'"{column}"'

    def condition(self, depth: int) -> str:
        rng = self.rng
        if depth and rng.random() < 0.2:
            return f"{self.condition(depth - 1)} AND {self.condition(depth - 1)}"
        if depth and rng.random() < 0.15:
            kind = rng.choice(["IN", "NOT IN", "=", ">"])
            return f"{self.value(0)} {kind} ({self.query(depth - 1)})"
        return f"{self.value(1)} {rng.choice(_OPERATORS)} {self.value(1)}"

    def mutated(self) -> str:
        rng = self.rng
        words = rng.choice(self.golds).split(" ")
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            at = rng.randrange(len(words))
            act = rng.randrange(7)
            if act == 0 and len(words) > 1:
                del words[at]
            elif act == 1:
                words.insert(at, rng.choice(words))
            elif act == 2:
                other = rng.randrange(len(words))
                words[at], words[other] = words[other], words[at]
            elif act == 3:
                words[at] = rng.choice(rng.choice(self.golds).split(" "))
            elif act == 4:
                other = rng.choice(self.golds).split(" ")
                words = words[:at] + other[rng.randrange(len(other)) :] or words
            elif act == 5:
                words[at] = self.value(1)
            else:
                word = words[at]
                cut = rng.randrange(len(word) + 1)
                extra = rng.choice(["'", '"', "(", ")", ";", ",", *_NOISE])
                words[at] = word[:cut] + extra + word[cut:]
        return " ".join(words)

    def noise(self) -> str:
        rng = self.rng
        if rng.random() < 0.5:
            return bytes(rng.randrange(256) for _ in range(rng.randrange(80))).decode(
                "utf-8", rng.choice(["surrogateescape", "replace", "ignore"])
            )
        return "".join(rng.choice([*"SELECT FROM()'\"`;,*-/[]", *_NOISE]) for _ in range(60))

    def with_piece(self) -> str:
        rng = self.rng
        words = (rng.choice(self.golds) if rng.random() < 0.5 else self.query(2)).split(" ")
        words[rng.randrange(len(words))] = rng.choice(_PIECES)
        return " ".join(words)


def run_sql(world: World, count: int, seed: int, say: Say = print) -> Counter[str]:
    """Run statements in four threads; returns how often each outcome came.

    Raises AssertionError on a fault.
    """
    rng = random.Random(seed)
    before = hashes(world)
    makers = {path: Sql(rng, tables, world.golds(path)) for path, tables in world.tables.items()}
    chosen = rng.sample(world.examples, min(300, len(world.examples)))
    gold_results = [execute(example.db_path, example.gold, LIMITS) for example in chosen]
    found: Counter[str] = Counter()
    slowest, began = (0.0, ""), time.monotonic()

    def one(number: int, kind: str, query: str, pick: int) -> tuple[float, str, list[str]]:
        where = f"statement {number} ({kind}) on {chosen[pick].db_path.name}: {query[:2000]!r}"
        try:
            took, labels = try_statement(number, query, chosen[pick], gold_results[pick])
        except BaseException as error:
            raise AssertionError(f"{error!r}; seed {seed}, {where}") from error
        return took, where, [kind, *labels]

    with ThreadPoolExecutor(4) as pool:
        for first in range(0, count, 1_000):
            jobs = []
            for number in range(first, min(count, first + 1_000)):
                pick = rng.randrange(len(chosen))
                kind, query = makers[chosen[pick].db_path].statement()
                jobs.append(pool.submit(one, number, kind, query, pick))
            for job in jobs:
                took, where, labels = job.result()
                slowest = max(slowest, (took, where))
                found.update(labels)
            if (first + 1_000) % 10_000 == 0:
                say(f"{first + 1_000} statements, {time.monotonic() - began:.0f} s, {dict(found)}")
    assert hashes(world) == before, f"seed {seed}: a database or its folder changed"
    say(f"slowest: {slowest[0]:.2f} s, {slowest[1][:300]}")
    return found


def try_statement(
    number: int, query: str, example: Example, gold: QueryResult
) -> tuple[float, list[str]]:
    """Run a statement every way; returns the seconds of one and labels to count."""
    path = example.db_path
    start = time.monotonic()
    result = execute(path, query, LIMITS)
    took = time.monotonic() - start
    assert took < HUNG_SECONDS, f"it took {took:.1f} s"
    assert result.outcome in OUTCOMES, result
    assert (result.outcome == "ok") != bool(result.error), result
    assert len(result.rows) <= LIMITS.rows
    result.error.encode()
    text = render(result)
    assert len(text) <= DEFAULT_CHARS
    json.loads(text)
    labels = [result.outcome]
    if number % 5 == 0:
        verdict = judge(query, example.gold, gold, path, Comparison("any", "tolerant"), LIMITS)
        assert verdict.reason != "crashed", verdict
        assert not verdict.correct or result.outcome in ("ok", "timeout"), verdict
        labels.append(f"verdict {verdict.reason}")
    if number % 5 == 1:
        with Runner(OfficialLimits(seconds=0.3)) as runner:
            error = runner.execute(path, query).error
        assert "crashed" not in (error or ""), error
        labels.append(f"official {'error' if error else 'ok'}")
    return took, labels


# Messages

_PARTS = ["<tool_call>", "</tool_call>", "<tools>", "</tools>", "<think>", "</think>", "```sql\n",
          "```", "```\n", "```sqlite", "```python\n", "\n```", "\n", "\r\n", " ", "{", "}", '"',
          "'",
          '{"name": "run_sql", "arguments": {"query": "', '"}}', 
          '{"name": "run_sql", "arguments": "',
          '{"name": "drop", "arguments": {}}', '{"name": "run_sql", "arguments": {"query": 5}}',
          "<|im_end|>", "<|im_start|>assistant\n", "<|endoftext|>", "</tool_response>",
          "<tool_response>\n", "SELECT 1", "SELECT * FROM singer", "\\u0000", "\\ud800", "\\",
          "é☃😀", "\x00", "\ue000", "\ue0010\ue002", "[" * 200, "{" * 200, "9" * 500, "```" * 50,
          "<tool_call>" * 20, "Final answer:", "null", "NaN", "\u2028"]  # fmt: skip


def message(rng: Rng, sql: Sql) -> str:
    """An assistant message: often well-formed, often nearly so, at times noise."""
    query = sql.statement()[1]
    body = json.dumps({"name": "run_sql", "arguments": {"query": query}})
    call = f"<tool_call>\n{body}\n</tool_call>"
    good = [call, call, f"I look first.\n{call}", f"```sql\n{query}\n```", f"```\n{query}\n```",
            f"<think>{rng.choice(_PARTS)}</think>\n<tool_call>{body}</tool_call>"]  # fmt: skip
    if rng.random() < 0.5:
        return rng.choice(good)
    parts = rng.choices([*_PARTS, *good, query], k=rng.choice([1, 2, 3, 5, 12]))
    text = "".join(parts)
    if rng.random() < 0.3:
        cut = rng.randrange(len(text) + 1)
        text = text[:cut] + rng.choice([*_NOISE, ""]) + text[cut + rng.randrange(9) :]
    return text


def run_messages(world: World, count: int, seed: int, say: Say = print) -> Counter[str]:
    """Run messages, four to a trajectory; returns how trajectories ended and what calls got."""
    rng = random.Random(seed)
    before = hashes(world)
    found: Counter[str] = Counter()
    codecs = [Codec(chat_tokenizer(name)) for name in ("qwen2_5", "qwen3")]
    done, began = 0, time.monotonic()
    schemas = {path: ddl(path) for path in world.tables}
    some = rng.sample(world.examples, min(200, len(world.examples)))
    prompts: dict[tuple[Codec, Example], Prompt] = {}
    while done < count:
        codec, reserve = rng.choice(codecs), rng.choice([0, 0, 60])
        config = RolloutConfig(
            budget=rng.choice([64, 800, 3_000, 3_000]), max_turns=rng.choice([1, 3, 4]),
            truncation=rng.choice(["rows", "rows", "seed"]), tool_chars=rng.choice([64, 400]),
            reserve_tokens=min(reserve, 63), limits=LIMITS,
        )  # fmt: skip
        chosen = rng.sample(some, 8)
        for example in chosen:
            if (codec, example) not in prompts:
                ddl_text = schemas[example.db_path]
                prompts[codec, example] = make_prompt(example, ddl_text, codec)
        scripts = []
        for example in chosen:
            sql = Sql(rng, world.tables[example.db_path], world.golds(example.db_path))
            # What a tokenizer cannot encode no model can write.
            texts = [message(rng, sql).encode("utf-8", "replace").decode() for _ in range(5)]
            scripts.append([text[:6_000] for text in texts])
        where = f"seed {seed}, message {done}"
        try:
            for text in (text for script in scripts for text in script):
                parsed = parse_calls(text)
                assert all((call.query is None) == bool(call.problem) for call in parsed)
                assert sum(call.problem is None for call in parsed) <= 1
                answer = extract_answer(text)
                assert answer is None or answer.strip() == answer != ""
            asked = [prompts[codec, example] for example in chosen]
            trajectories = rollout(asked, ScriptedPolicy(scripts, codec), config)
            check(trajectories, config.budget)
            for trajectory in trajectories:
                check_structure(trajectory.turns, codec)
                found[f"stop {trajectory.stop}"] += 1
                for call in trajectory.calls:
                    found[f"call {call.problem or (call.result and call.result.outcome)}"] += 1
                    assert call.result is None or call.result.outcome in OUTCOMES, call
                    if config.truncation == "rows":
                        json.loads(call.response)
        except BaseException as error:
            raise AssertionError(f"{error!r}; {where}: {scripts!r}"[:20_000]) from error
        done += sum(len(script) for script in scripts)
        if done % 4_000 < 40:
            say(f"{done} messages, {time.monotonic() - began:.0f} s, {dict(found)}")
    assert hashes(world) == before, f"seed {seed}: a database or its folder changed"
    return found


def check_structure(turns: Sequence[ModelTurn | ToolTurn], codec: Codec) -> None:
    """A tool turn has the special tokens of one with harmless responses, whatever cells hold."""
    added = set(codec.tokenizer.get_added_vocab().values())
    for last, turn in pairwise(turns):
        if isinstance(turn, ToolTurn):
            assert isinstance(last, ModelTurn)
            ended = last.ids[-1] == codec.eos_id
            special = [i for i in turn.ids if i in added]
            plain = [
                [i for i in codec.suffix_ids(["x"] * len(turn.calls), ended, final) if i in added]
                for final in (False, True)
            ]
            assert special in plain, (special, plain)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sql", type=int, default=100_000)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spider", help="a Spider folder, for its databases and golds")
    parser.add_argument("--work", type=Path, default=Path("runs/fuzz"))
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    data = [("pocket", "train"), ("pocket", "dev")]
    data += [(options.spider, "dev")] * bool(options.spider)
    world = make_world(data, options.work / "extra.sqlite")
    print(f"seed {options.seed}, {len(world.tables)} databases, {len(world.examples)} golds")
    start = time.monotonic()
    found = run_sql(world, options.sql, options.seed)
    print(f"{options.sql} statements in {time.monotonic() - start:.0f} s: {dict(found)}")
    start = time.monotonic()
    found = run_messages(world, options.messages, options.seed)
    print(f"{options.messages} messages in {time.monotonic() - start:.0f} s: {dict(found)}")
    print("no fault, no hang, every database as it was")


if __name__ == "__main__":
    sys.exit(main())
