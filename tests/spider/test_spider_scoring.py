"""Scoring many cases: modes, processes, golds against themselves, and what the command writes."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nl2sql_trl.score import main
from nl2sql_trl.spider.cases import Case, InputError, read_golds
from nl2sql_trl.spider.scoring import METRICS, Setup, gold_line, score_all

GOLD = "SELECT name FROM singer"


def cases(*pairs: tuple[str, str], db_id: str = "music") -> list[Case]:
    """Cases of gold and prediction."""
    return [Case(n, db_id, gold, pred, f"case {n}") for n, (gold, pred) in enumerate(pairs)]


def test_scores_come_in_the_order_of_the_cases_and_golds_are_counted_once(databases: Path) -> None:
    chosen = cases((GOLD, "SELECT age FROM singer"), ("SELECT age FROM singer", GOLD), (GOLD, GOLD))
    scored = score_all(chosen, Setup([databases]))
    assert [score.testsuite_exec for score in scored.scores] == [False, False, True]
    assert (scored.golds, scored.gold_failures) == (2, [])
    assert gold_line(scored).startswith("gold against gold: all 2 distinct golds are right")


def test_a_gold_that_fails_against_itself_is_named_with_metric_and_reason(databases: Path) -> None:
    broken = "SELECT upper(name) FROM singer"
    scored = score_all(cases((broken, GOLD), (GOLD, GOLD)), Setup([databases]))
    (failure,) = scored.gold_failures
    assert (failure.db_id, failure.gold) == ("music", broken)
    assert set(failure.metrics) == set(METRICS)
    assert "gold unparseable" in (failure.reason or "")
    assert "1 of 2 distinct golds fail" in gold_line(scored)
    assert broken in gold_line(scored)


def test_what_the_official_scripts_damage_is_whole_again_in_the_fixed_mode(databases: Path) -> None:
    named = "SELECT value FROM (SELECT name AS value FROM singer)"
    official = score_all(cases((named, named)), Setup([databases]))
    assert not official.scores[0].testsuite_exec
    assert "testsuite_exec" in official.gold_failures[0].metrics
    fixed = score_all(cases((named, named)), Setup([databases]), "fixed")
    assert fixed.scores[0].testsuite_exec
    assert "testsuite_exec" not in fixed.gold_failures[0].metrics


@pytest.mark.parametrize(
    ("gold", "pred", "official", "fixed"),
    [
        ("SELECT count(*) FROM singer", "SELECT count(singer_id) FROM singer", False, True),
        ("SELECT max(age), min(age) FROM singer", "SELECT sum(age), min(age) FROM singer",
         True, False),
        (GOLD, "SELECT name FROM singer ORDER BY age", False, True),
        ("SELECT name FROM singer ORDER BY age", GOLD, False, False),
        ("SELECT country FROM singer", "SELECT DISTINCT country FROM singer", False, False),
        (GOLD, "SELECT upper(name) FROM singer", False, False),
        (GOLD, "SELECT trim(name) FROM singer", False, True),
    ],
)  # fmt: skip
def test_the_fixed_legacy_execution_compares_rows(
    gold: str, pred: str, official: bool, fixed: bool, databases: Path
) -> None:
    for mode, expected in (("official", official), ("fixed", fixed)):
        scored = score_all(cases((gold, pred)), Setup([databases]), mode)  # type: ignore[arg-type]
        assert scored.scores[0].legacy_exec is expected, mode


def several_databases(databases: Path) -> list[Case]:
    """Right and wrong cases on three copies of the database."""
    for name in ("a", "b"):
        (databases / name).mkdir()
        (databases / name / f"{name}.sqlite").write_bytes(
            (databases / "music" / "music.sqlite").read_bytes()
        )
    pairs = [(GOLD, GOLD), (GOLD, "SELECT 1"), (GOLD, ""), ("SELECT age FROM singer", GOLD)]
    found = [c for name in ("b", "music", "a") for c in cases(*pairs, db_id=name)]
    return [Case(n, c.db_id, c.gold, c.pred, c.place) for n, c in enumerate(found)]


def test_several_processes_give_the_verdicts_of_one(databases: Path) -> None:
    chosen = several_databases(databases)
    one = score_all(chosen, Setup([databases]))
    two = score_all(chosen, Setup([databases]), processes=2)
    assert two == one
    assert [score.testsuite_exec for score in one.scores] == [True, False, False, False] * 3


def test_an_unknown_database_stops_several_processes_with_its_place(databases: Path) -> None:
    chosen = [*several_databases(databases), Case(99, "nowhere", GOLD, GOLD, "case 99")]
    with pytest.raises(InputError, match="case 99: unknown db_id 'nowhere'"):
        score_all(chosen, Setup([databases]), processes=2)


def run(folder: Path, *args: object, gold: str = GOLD, pred: str = GOLD) -> dict[str, Any]:
    """Score one line through the command and read what it wrote."""
    (folder / "gold.sql").write_text(f"{gold}\tmusic\n")
    (folder / "pred.sql").write_text(f"{pred}\n")
    files = ["--gold", folder / "gold.sql", "--pred", folder / "pred.sql"]
    out = folder / "out.json"
    assert main([str(a) for a in (*files, "--db", folder / "databases", "--json", out, *args)]) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_both_modes_stand_side_by_side(databases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold, pred = "SELECT concert_id, 10 FROM concert", "SELECT concert_id * 1.0, 10 FROM concert"
    found = run(databases.parent, "--mode", "both", gold=gold, pred=pred)
    (row,) = found["rows"]
    assert (row["testsuite_exec"], row["fixed"]["testsuite_exec"]) == (False, True)
    assert found["summary"]["all"]["testsuite_exec"] == 0
    assert found["summary_fixed"]["all"]["testsuite_exec"] == 1
    printed = capsys.readouterr().out
    assert printed.index("official:") < printed.index("fixed:")


@pytest.mark.parametrize("mode", ["official", "fixed"])
def test_one_mode_alone_has_the_plain_fields(mode: str, databases: Path) -> None:
    found = run(databases.parent, "--mode", mode)
    assert found["mode"] == mode
    assert "fixed" not in found["rows"][0]
    assert found["distinct_golds"] == 1
    assert found["gold_failures"] == []


def test_no_metric_changes_a_byte_of_the_databases(databases: Path) -> None:
    files = sorted(databases.rglob("*.sqlite"))
    before = [file.read_bytes() for file in files]
    spoil = [
        "DROP TABLE singer",
        "DELETE FROM singer",
        "INSERT INTO singer VALUES (9, 'x', 'y', 1)",
        "PRAGMA user_version = 7",
        "VACUUM",
        "ATTACH 'new.sqlite' AS n",
    ]
    for mode in ("official", "fixed"):
        score_all(cases(*((GOLD, sql) for sql in spoil)), Setup([databases]), mode)  # type: ignore[arg-type]
    assert [file.read_bytes() for file in files] == before
    assert sorted(databases.rglob("*")) == sorted({*files, *(file.parent for file in files)})


def test_a_result_folder_that_is_not_there_is_found_before_scoring(
    databases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cases.jsonl").write_text("")
    args = ["--cases", tmp_path / "cases.jsonl", "--db", databases, "--json", tmp_path / "no" / "x"]
    assert main([str(a) for a in args]) == 2
    assert "its folder does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["0", "-1"])
def test_no_process_is_too_few(
    number: str, databases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cases.jsonl").write_text("")
    args = ["--cases", tmp_path / "cases.jsonl", "--db", databases, "--processes", number]
    assert main([str(a) for a in args]) == 2
    assert "--processes must be at least 1" in capsys.readouterr().err


def test_a_cross_join_of_a_hundred_million_rows_ends_as_a_timeout(databases: Path) -> None:
    with closing(sqlite3.connect(databases / "music" / "music.sqlite")) as connection:
        connection.executemany("INSERT INTO review VALUES (?)", [(str(n),) for n in range(10_000)])
        connection.commit()
    pred = "SELECT * FROM review AS a JOIN review AS b"
    (score,) = score_all(cases((GOLD, pred)), Setup([databases])).scores
    assert (score.reason, score.testsuite_exec) == ("timeout", False)


def test_golds_are_read_with_their_databases(tmp_path: Path) -> None:
    file = tmp_path / "gold.sql"
    file.write_text("SELECT 1\ta\nSELECT 2\tb\n\n\n")
    assert read_golds(file) == [("SELECT 1", "a"), ("SELECT 2", "b")]


def run_files(folder: Path, gold: str, pred: str, *args: object) -> int:
    """The exit status of scoring these texts."""
    (folder / "gold.sql").write_text(gold, encoding="utf-8")
    (folder / "pred.sql").write_text(pred, encoding="utf-8")
    files = ["--gold", folder / "gold.sql", "--pred", folder / "pred.sql"]
    return main([str(a) for a in (*files, "--db", folder / "databases", *args)])


def test_a_byte_order_mark_is_no_part_of_the_first_query(databases: Path) -> None:
    folder = databases.parent
    bom = "\ufeff"
    out = folder / "out.json"
    gold = "SELECT age FROM singer"
    assert run_files(folder, f"{bom}{gold}\tmusic\n", f"{bom}{gold}\n", "--json", out) == 0
    found = json.loads(out.read_text())
    assert all(found["rows"][0][metric] for metric in METRICS)
    assert found["gold_failures"] == []


@pytest.mark.parametrize(
    ("gold", "args", "message"),
    [
        ("", [], "holds nothing to score"),
        (f"{GOLD}\tmusic\n", ["--out", "pred.sql"], "read or written already"),
        (f"{GOLD}\tmusic\n", ["--out", "x", "--json", "x"], "read or written already"),
        (f"{GOLD}\tmusic\n", ["--json", "."], "is a folder"),
        (f"{GOLD}\tempty\n", [], "empty.sqlite cannot be read as a database (it holds no table)"),
        (f"{GOLD}\tjunk\n", [], "junk.sqlite cannot be read as a database (file is not"),
    ],
)
def test_what_cannot_be_scored_is_one_line_that_names_it(
    gold: str,
    args: list[str],
    message: str,
    databases: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, content in (("empty", b""), ("junk", b"no database" * 99)):
        (databases / name).mkdir()
        (databases / name / f"{name}.sqlite").write_bytes(content)
    monkeypatch.chdir(databases.parent)
    assert run_files(databases.parent, gold, f"{GOLD}\n" if gold else "", *args) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_damaged_file_of_the_suite_is_named_where_the_golds_fail(databases: Path) -> None:
    (databases / "music" / "music_v1.sqlite").write_bytes(b"no database" * 99)
    scored = score_all(cases((GOLD, GOLD)), Setup([databases]))
    assert not scored.scores[0].testsuite_exec
    assert "music_v1.sqlite" in (scored.gold_failures[0].reason or "")


@pytest.mark.parametrize("pred", [GOLD + ";" * 1_000_000, "SELECT '" + "a" * 1_000_000 + "'"])
def test_a_statement_beyond_all_reason_is_wrong_at_once(pred: str, databases: Path) -> None:
    (score,) = score_all(cases((GOLD, pred)), Setup([databases])).scores
    assert (score.reason, score.testsuite_exec, score.hardness) == (
        "statement too long", False, "easy",
    )  # fmt: skip


def test_the_fixed_mode_credits_no_gold_that_returns_no_rows(databases: Path) -> None:
    scored = score_all(
        cases(("DELETE FROM singer", "DROP TABLE stadium")), Setup([databases]), "fixed"
    )
    assert not scored.scores[0].testsuite_exec
    assert not scored.scores[0].legacy_exec
    assert len(scored.gold_failures) == 1
    assert scored.gold_failures[0].reason == "cannot be judged: gold: it is no query"


@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"id": 1, "db_id": "music", "gold": ' + "[" * 9**5]
)
def test_json_that_is_nested_too_deeply_is_one_line(
    line: str, databases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cases.jsonl").write_text(line)
    assert main(["--cases", str(tmp_path / "cases.jsonl"), "--db", str(databases)]) == 2
    error = capsys.readouterr().err
    assert "cases.jsonl:1: no JSON object" in error
    assert error.count("\n") == 1
