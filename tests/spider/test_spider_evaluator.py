"""The evaluator: all metrics on one case, and the command line on files of cases."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nl2sql_trl.score import main
from nl2sql_trl.spider import CaseScore, Evaluator, UnknownDatabaseError
from nl2sql_trl.spider.execution import Limits

GOLD = "SELECT name FROM singer WHERE age = 41"


@pytest.fixture
def evaluator(databases: Path) -> Evaluator:
    """An evaluator with the database ``music``."""
    return Evaluator([databases], limits=Limits(seconds=0.2))


def test_the_gold_itself_is_right_by_every_metric(evaluator: Evaluator) -> None:
    score = evaluator.score("music", GOLD, GOLD)
    assert score.hardness == "easy"
    assert score.exact_match
    assert score.exact_match_legacy
    assert score.legacy_exec
    assert score.testsuite_exec
    assert score.reason is None
    assert score.flags == ()


def test_the_suite_finds_what_one_database_hides(evaluator: Evaluator) -> None:
    score = evaluator.score("music", GOLD, "SELECT name FROM singer WHERE singer_id = 3")
    assert score.legacy_exec
    assert not score.testsuite_exec
    assert score.reason == "wrong result"


@pytest.mark.parametrize(
    ("gold", "pred", "correct"),
    [
        ("SELECT name, age FROM singer", "SELECT age, name FROM singer", True),
        ("SELECT count(*) FROM singer", "SELECT count(singer_id) FROM singer", False),
        ("SELECT name FROM singer", "SELECT name FROM singer ORDER BY age", False),
        ("SELECT min(age), max(age) FROM singer", "SELECT max(age), min(age) FROM singer", False),
        ("SELECT avg(age), max(age) FROM singer", "SELECT min(age), max(age) FROM singer", True),
        ("SELECT * FROM singer", "SELECT singer_id FROM singer", False),
        ("SELECT name FROM singer", "SELECT name FROM singer; SELECT 1", False),
    ],
)
def test_legacy_execution_compares_columns_by_what_was_selected(
    gold: str, pred: str, correct: bool, evaluator: Evaluator
) -> None:
    assert evaluator.score("music", gold, pred).legacy_exec is correct


@pytest.mark.parametrize(
    ("gold", "pred", "correct"),
    [
        ("SELECT name, age FROM singer", "SELECT age, upper(name) FROM singer", False),
        ("SELECT name, age FROM singer", "SELECT age, name FROM singer ORDER BY age", True),
        ("SELECT name FROM singer ORDER BY age", "SELECT name FROM singer ORDER BY name", False),
        ("SELECT DISTINCT country FROM singer", "SELECT country FROM singer", True),
        ("SELECT name FROM singer", "SELECT name FROM singer; garbage", True),
        ("SELECT text FROM review", "SELECT name, age FROM singer WHERE age > 99", True),
        ("SELECT text FROM review", "DELETE FROM singer", True),
        ("SELECT text FROM review", "", False),
        (GOLD, "SELECT name FROM singer WHERE age = 'value'", False),
    ],
)
def test_the_suite_compares_results_only(
    gold: str, pred: str, correct: bool, evaluator: Evaluator
) -> None:
    assert evaluator.score("music", gold, pred).testsuite_exec is correct


def test_plugging_values_forgives_a_wrong_one(databases: Path) -> None:
    pred = "SELECT name FROM singer WHERE age = 'terminal'"
    assert Evaluator([databases], plug_value=True).score("music", GOLD, pred).testsuite_exec


def test_distinct_counts_when_it_is_kept(databases: Path) -> None:
    golds = ("SELECT DISTINCT country FROM singer", "SELECT country FROM singer")
    assert not Evaluator([databases], keep_distinct=True).score("music", *golds).testsuite_exec


@pytest.mark.parametrize(
    ("gold", "pred"),
    [
        (
            "SELECT name AS value FROM singer",
            "SELECT value FROM (SELECT name AS value FROM singer)",
        ),
        ("SELECT name FROM singer", "SELECT\tname FROM singer"),
        ("SELECT upper(name) FROM singer", "SELECT upper(name) FROM singer"),
        ("SELECT concert_id, 10 FROM concert", "SELECT concert_id * 1.0, 10 FROM concert"),
    ],
)
def test_the_fixed_mode_is_right_where_the_official_one_is_wrong(
    gold: str, pred: str, databases: Path, evaluator: Evaluator
) -> None:
    assert not evaluator.score("music", gold, pred).testsuite_exec
    assert Evaluator([databases], fixed=True).score("music", gold, pred).testsuite_exec


@pytest.mark.parametrize(
    ("pred", "flag"),
    [
        ("", "abort_testsuite_exec"),
        ("SELECT name age FROM singer", "abort_legacy_exec"),
        ("SELECT name FROM singer WHERE age > 1 age = 2 AND age = 3", "abort_exact_match"),
    ],
)
def test_where_the_official_scripts_abort_the_verdict_is_false(
    pred: str, flag: str, evaluator: Evaluator
) -> None:
    score = evaluator.score("music", "SELECT name FROM singer", pred)
    assert flag in score.flags
    assert not getattr(score, flag.removeprefix("abort_"))
    assert (score.reason or "").startswith("official script aborts")


@pytest.mark.parametrize("depth", [100, 300, 500, 900, 5000])
def test_a_very_deep_prediction_is_wrong_and_harms_nothing(
    depth: int, evaluator: Evaluator
) -> None:
    deep = "SELECT name FROM singer" + " UNION SELECT name FROM singer" * depth
    assert not evaluator.score("music", "SELECT name FROM singer", deep).exact_match
    assert evaluator.score("music", deep, "SELECT name FROM singer").reason


def test_a_gold_that_cannot_be_parsed_fails_every_metric(evaluator: Evaluator) -> None:
    score = evaluator.score("music", "SELECT upper(name) FROM singer", GOLD)
    assert score.hardness is None
    assert [score.exact_match, score.legacy_exec, score.testsuite_exec] == [False] * 3
    assert "gold unparseable" in (score.reason or "")


def test_a_gold_that_only_the_suite_can_parse_is_scored_by_the_suite(evaluator: Evaluator) -> None:
    gold = "SELECT name FROM singer ORDER BY age LIMIT (1)"
    score = evaluator.score("music", gold, gold)
    assert score.testsuite_exec
    assert score.exact_match
    assert not score.exact_match_legacy


def test_a_runaway_prediction_is_a_timeout(evaluator: Evaluator) -> None:
    pred = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"
    score = evaluator.score("music", GOLD, pred)
    assert score.reason == "timeout"
    assert not score.testsuite_exec
    assert "timeout" in score.flags


def test_an_unknown_database_is_an_error(evaluator: Evaluator) -> None:
    with pytest.raises(UnknownDatabaseError):
        evaluator.score("nowhere", GOLD, GOLD)


def run(*args: object) -> int:
    """Call the command line."""
    return main([str(arg) for arg in args])


def test_files_are_scored_line_by_line_and_a_blank_one_shifts_nothing(
    databases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gold, pred, report = tmp_path / "gold.sql", tmp_path / "pred.sql", tmp_path / "scores.json"
    gold.write_text(f"{GOLD}\tmusic\nSELECT name, age FROM singer\tmusic\n{GOLD}\tmusic\n\n")
    pred.write_text(f"{GOLD}\n\n{GOLD}\n")
    assert run("--gold", gold, "--pred", pred, "--db", databases, "--json", report) == 0
    scores = json.loads(report.read_text())
    assert [row["testsuite_exec"] for row in scores["rows"]] == [True, False, True]
    assert scores["summary"]["easy"]["testsuite_exec"] == 1
    assert scores["summary"]["medium"]["exact_match"] == 0
    assert scores["summary"]["all"]["count"] == 3
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["easy", "medium", "hard", "extra", "all"]
    assert printed[2].split() == ["test", "suite", "1.000", "0.000", "0.000", "0.000", "0.667"]


def test_cases_give_one_verdict_a_line_in_their_order(databases: Path, tmp_path: Path) -> None:
    cases, out = tmp_path / "cases.jsonl", tmp_path / "out.jsonl"
    entries = [{"id": name, "db_id": "music", "gold": GOLD, "pred": GOLD} for name in "ba"]
    cases.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    assert run("--cases", cases, "--db", databases, "--out", out) == 0
    verdicts = [json.loads(line) for line in out.read_text().splitlines()]
    assert [verdict["id"] for verdict in verdicts] == ["b", "a"]
    fields = set(CaseScore.__dataclass_fields__) - {"partial"}
    assert set(verdicts[0]) == {"id", *fields}


CASE = {"id": 1, "db_id": "music", "gold": GOLD, "pred": GOLD}


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("{", "cases.jsonl:1: no JSON object"),
        ("[]", "cases.jsonl:1: no JSON object"),
        (json.dumps({**CASE, "db_id": "nowhere"}), "cases.jsonl:1: unknown db_id 'nowhere'"),
        (json.dumps({**CASE, "pred": None}), "cases.jsonl:1: db_id, gold and pred must be strings"),
        (json.dumps({"id": 1}), "cases.jsonl:1: no field 'db_id'"),
    ],
)
def test_a_bad_case_is_one_line_with_its_place(
    case: str, message: str, databases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = tmp_path / "cases.jsonl"
    cases.write_text(case)
    assert run("--cases", cases, "--db", databases) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("gold", "pred", "message"),
    [
        (f"{GOLD}\tmusic\n", f"{GOLD}\n{GOLD}\n", "pred.sql:2: 2 predictions for 1 lines"),
        (f"{GOLD}\tmusic\n" * 2, f"{GOLD}\n", "pred.sql:2: 1 predictions for 2 lines"),
        (f"{GOLD}\n", f"{GOLD}\n", "gold.sql:1: expected SQL, one TAB and a db_id"),
        (f"{GOLD}\tnowhere\n", f"{GOLD}\n", "gold.sql:1: unknown db_id 'nowhere'"),
        (f"{GOLD}\tmusic\n", None, "pred.sql: No such file"),
        (f"{GOLD}\tmusic\n", b"\xff\n", "pred.sql: not UTF-8"),
    ],
)
def test_bad_files_are_one_line_with_the_place(
    gold: str,
    pred: Any,
    message: str,
    databases: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "gold.sql").write_text(gold)
    if pred is not None:
        data = pred if isinstance(pred, bytes) else pred.encode()
        (tmp_path / "pred.sql").write_bytes(data)
    args = ("--gold", tmp_path / "gold.sql", "--pred", tmp_path / "pred.sql", "--db", databases)
    assert run(*args) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "give either --gold and --pred, or --cases"),
        (["--gold", "g"], "give either --gold and --pred, or --cases"),
        (["--cases", "c.jsonl", "--tables", "t.json"], "t.json: not in the format"),
    ],
)
def test_bad_arguments_are_one_line(
    args: list[str],
    message: str,
    databases: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.jsonl").write_text("")
    Path("t.json").write_text("{")
    assert run(*args, "--db", databases) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("gold", "change"),
    [
        ("SELECT sum(age) FROM singer", "UPDATE singer SET age = 9223372036854775807"),
        ("SELECT name FROM stadium", "DROP TABLE stadium"),
    ],
)
def test_a_gold_that_fails_on_a_file_of_the_suite_fails_against_itself(
    gold: str, change: str, databases: Path
) -> None:
    with closing(sqlite3.connect(databases / "music" / "music_v1.sqlite")) as connection:
        connection.execute(change)
        connection.commit()
    score = Evaluator([databases]).score("music", gold, gold)
    assert not score.testsuite_exec
    assert score.legacy_exec
    assert "official script aborts: gold: " in (score.reason or "")
