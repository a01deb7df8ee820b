"""Causes of failures and detectors, on trajectories that are really rolled out and judged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes import write_spider_folder

from nl2sql_trl import analysis
from nl2sql_trl.evaluation import evaluate, measure, printed, write
from nl2sql_trl.policy import ByteTokenizer, ScriptedPolicy
from nl2sql_trl.prompts import Codec
from nl2sql_trl.results import Row, judged_rows, report, self_consistent, setup_for
from nl2sql_trl.rollout import RolloutConfig
from nl2sql_trl.task import Task, make_task

CODEC = Codec(ByteTokenizer())


def call(query: str) -> str:
    """A tool call as a model writes it."""
    arguments = {"name": "run_sql", "arguments": {"query": query}}
    return f"<tool_call>\n{json.dumps(arguments)}\n</tool_call>"


def answer(query: str) -> str:
    """An answer as a model writes it."""
    return f"```sql\n{query}\n```"


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """The eight questions of the small Spider folder; dev:0 counts the singers."""
    folder = write_spider_folder(tmp_path_factory.mktemp("data") / "spider")
    return make_task(str(folder), "dev", CODEC, rollout=RolloutConfig(budget=600, max_turns=3))


def rows_of(task: Task, scripts: Sequence[Sequence[str]], samples: int = 1) -> list[Row]:
    """Judged rows of scripted trajectories, the last turn of a script repeated to the end."""

    def script(key: int, turn: int) -> str:
        turns = scripts[key % len(scripts)]
        return turns[min(turn, len(turns) - 1)]

    done = evaluate(task, ScriptedPolicy(script, CODEC), samples, progress=False)
    return judged_rows(task, done.trajectories, done.verdicts, setup_for(task))


def failure_of(task: Task, key: str, *turns: str) -> Any:
    """The failure of one row whose model says these turns."""
    from dataclasses import replace

    one = replace(task, examples={key: task.examples[key]}, prompts={key: task.prompts[key]})
    return rows_of(one, [turns])[0]["failure"]


NAMES, OLDEST = "dev:1", "dev:2"


@pytest.mark.parametrize(
    ("key", "turns", "cause", "part"),
    [
        ("dev:0", ["I do not know."], "no answer", "ran no query"),
        ("dev:0", [call("SELECT nmae FROM singer")], "turn limit reached",
         "ran the same query again"),
        ("dev:0", [call("SELECT 1"), call("SELECT 2"), call("SELECT 3")], "turn limit reached",
         "ran other queries"),
        ("dev:0", ["x" * 700], "budget exhausted", "ran no query"),
        ("dev:0", ["<tool_call>\n{\n</tool_call>"], "malformed tool call to the end", "malformed"),
        ("dev:0", [answer("SELECT count(*) FROM singers")], "not executable", "no such table"),
        ("dev:0", [answer("SELECT nmae FROM singer")], "not executable", "no such column"),
        ("dev:0", [answer("SELECT id FROM singer AS a JOIN singer AS b")], "not executable",
         "ambiguous column"),
        ("dev:0", [answer("SELECT FROM singer")], "not executable", "syntax"),
        ("dev:0", [answer("SELECT 'x")], "not executable", "syntax"),
        ("dev:0", [answer("DROP TABLE singer")], "not executable", "not allowed"),
        ("dev:0", [answer("SELECT nofunction(id) FROM singer")], "not executable",
         "no such function"),
        ("dev:0", [answer("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
                          "SELECT max(x) FROM c")], "timeout", "timeout"),
        ("dev:0", [answer("SELECT count(age) FROM singer")], "saw no rows, wrong",
         "columns selected"),
        ("dev:0", [call("SELECT count(*) FROM singer WHERE age > 99"),
                   answer("SELECT count(*) FROM singer WHERE age > 99")],
         "ran a query, saw rows, still wrong", "condition"),
        ("dev:0", [call("SELECT id FROM singer WHERE age > 99"), answer("SELECT 3")],
         "saw no rows, wrong", "tables"),
        (OLDEST, [answer("SELECT name FROM singer ORDER BY age LIMIT 1")], "saw no rows, wrong",
         "order"),
    ],
)  # fmt: skip
def test_a_wrong_row_has_one_cause(
    key: str, turns: list[str], cause: str, part: str, task: Task
) -> None:
    failure = failure_of(task, key, *turns)
    assert (failure["cause"], failure["part"]) == (cause, part)
    assert failure["cause"] in analysis.CAUSES


def test_a_right_row_has_no_failure(task: Task) -> None:
    assert failure_of(task, NAMES, answer("SELECT name FROM singer")) is None


def test_a_wrong_row_that_ran_tells_how_its_rows_and_tables_differ(task: Task) -> None:
    failure = failure_of(task, "dev:4", answer("SELECT count(*) FROM shop"))
    assert failure["sql_differs"] == ("condition",)
    assert failure["result_differs"] == "another value"
    assert (failure["tables_missing"], failure["tables_extra"]) == ((), ())


def test_rows_carry_the_official_verdicts_and_the_hardness_of_their_gold(task: Task) -> None:
    rows = rows_of(task, [[answer(e.gold)] for e in task.examples.values()])
    assert all(row["scores"]["testsuite_exec"] and row["scores"]["exact_match"] for row in rows)
    assert [row["key"] for row in rows] == list(task.examples)
    assert {row["hardness"] for row in rows} <= {"easy", "medium", "hard", "extra"}


@pytest.mark.parametrize(
    ("key", "turns", "fired"),
    [
        ("dev:0", [answer("SELECT 4")], ["answer never executed", "constant answer"]),
        ("dev:0", [call("SELECT count(*) FROM singer"), answer("SELECT count(*) FROM singer")], []),
        ("dev:1", [answer('SELECT "nmae" FROM singer')],
         ["answer never executed", "quoted name became a literal"]),
        ("dev:1", ["no idea"], []),
    ],
)  # fmt: skip
def test_detectors_fire_on_facts(key: str, turns: list[str], fired: list[str], task: Task) -> None:
    from dataclasses import replace

    one = replace(task, examples={key: task.examples[key]}, prompts={key: task.prompts[key]})
    (row,) = rows_of(one, [turns])
    assert row["detectors"] == fired


def test_the_report_counts_causes_with_their_parts_and_gives_intervals(task: Task) -> None:
    golds = [e.gold for e in task.examples.values()]
    scripts = [[answer(sql)] for sql in golds[:5]] + [["?"]] * 2 + [[answer("SELECT x FROM y")]]
    found = report(rows_of(task, scripts))
    assert found["failures"] == [
        {"cause": "no answer", "count": 2, "parts": {"ran no query": 2}},
        {"cause": "not executable", "count": 1, "parts": {"no such table": 1}},
    ]
    everything = found["metrics"]["testsuite_exec"]["all"]
    assert everything["mean"] == 5 / 8
    assert everything["low"] <= 5 / 8 <= everything["high"]
    assert everything["wilson_low"] < 5 / 8 < everything["wilson_high"]
    assert found["by_database"]["music"] == {
        "rows": 4, "execution_accuracy": 1.0, "testsuite_exec": 1.0,
    }  # fmt: skip
    assert found["profile"]["answered"] == 6 / 8
    assert found["profile"]["executable"] == 5 / 8
    levels = found["metrics"]["exact_match"]
    assert sum(levels[level]["rows"] for level in levels if level != "all") == 8


def test_several_samples_of_a_question_count_as_their_mean(task: Task) -> None:
    golds = [e.gold for e in task.examples.values()]
    # Of each question's two samples the first is right.
    scripts = [turns for sql in golds for turns in ([answer(sql)], ["?"])]
    found = report(rows_of(task, scripts, samples=2), samples=2)
    assert found["rows"] == 8
    assert found["metrics"]["testsuite_exec"]["all"]["mean"] == 0.5
    assert found["metrics"]["testsuite_exec"]["all"]["wilson_low"] is None
    assert found["failures"][0]["count"] == 8


def sampled_rows(task: Task, answers: Sequence[tuple[str | None, float]]) -> list[Row]:
    """Rows of dev:0 with these answers and mean log-probabilities."""
    return [
        {"key": "dev:0", "answer": sql, "executable": sql is not None, "logprob": logprob}
        for sql, logprob in answers
    ]


@pytest.mark.parametrize(
    ("answers", "chosen"),
    [
        ([("SELECT 1", -0.1), ("SELECT count(*) FROM singer", -9), ("SELECT 4", -8)], 2),
        ([("SELECT 1", -0.3), ("SELECT 2", -0.2), ("SELECT 3", -0.4)], 1),
        ([(None, -0.1), (None, -0.1), ("SELECT 2", -5)], 2),
        ([("SELECT id FROM singer", -1), ("SELECT id FROM singer ORDER BY id DESC", -0.5),
          ("SELECT 1", -0.1)], 1),
    ],
)  # fmt: skip
def test_self_consistency_takes_the_result_with_most_votes_then_the_likeliest(
    answers: list[tuple[str | None, float]], chosen: int, task: Task
) -> None:
    rows = sampled_rows(task, answers)
    assert self_consistent(task, rows) is rows[chosen]


def test_self_consistency_of_nothing_that_runs_is_nothing(task: Task) -> None:
    assert self_consistent(task, sampled_rows(task, [(None, -1.0)])) is None


def test_a_sampled_pass_gives_pass_at_k_and_self_consistency_beside_greedy(
    task: Task, tmp_path: Path
) -> None:
    golds = [e.gold for e in task.examples.values()]
    greedy = evaluate(task, ScriptedPolicy(lambda k, _: answer(golds[k]), CODEC), progress=False)
    one_of_four = ScriptedPolicy(
        lambda k, _: answer(golds[k // 4] if k % 4 == 0 else "SELECT -1"), CODEC
    )
    found, rows, more = measure(greedy, evaluate(task, one_of_four, 4, progress=False))
    assert found["metrics"]["testsuite_exec"]["all"]["mean"] == 1
    assert found["more"]["pass_at_k"] == {"1": 0.25, "2": 0.5, "4": 1.0}
    assert found["more"]["mean"]["testsuite_exec"]["mean"] == 0.25
    # Three equal wrong answers outvote the right one.
    assert found["more"]["self_consistency"]["mean"] == 0
    write({"name": "scripted", "settings": {}, **found}, rows, more, tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "predictions.sql", "report.html", "report.json", "report.md", "samples.jsonl",
        "trajectories.jsonl",
    ]  # fmt: skip
    text = printed(found, "scripted")
    assert "pass@1 0.250, pass@2 0.500, pass@4 1.000" in text
    assert "test-suite accuracy         1.000" in text


def test_predictions_are_one_line_each_in_the_order_of_the_split(
    task: Task, tmp_path: Path
) -> None:
    scripts = [[answer("SELECT 1,\n\t2")], ["no answer"]]
    found, rows, more = measure(
        evaluate(task, ScriptedPolicy(lambda k, _: scripts[k % 2][0], CODEC), progress=False)
    )
    write({"name": "scripted", "settings": {}, **found}, rows, more, tmp_path)
    lines = (tmp_path / "predictions.sql").read_text().splitlines()
    assert lines == ["SELECT 1, 2", "SELECT"] * 4
