"""The stricter reward: an answer must be right on every file of a test suite."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from nl2sql_trl.data import DataError
from nl2sql_trl.database import execute
from nl2sql_trl.policy import ByteTokenizer, ScriptedPolicy
from nl2sql_trl.prompts import Codec
from nl2sql_trl.records import Verdict
from nl2sql_trl.rewards import Comparison, judge, judge_on_suite
from nl2sql_trl.rollout import rollout
from nl2sql_trl.task import make_task, suite_files

CODEC = Codec(ByteTokenizer())
GOLD = "SELECT count(*) FROM singer"
BY_ACCIDENT = "SELECT max(id) FROM singer"


@pytest.fixture
def suite(spider_folder: Path, tmp_path: Path) -> Path:
    """Two databases in the official layout, with one further file each and a gap in the ids."""
    for name, table in (("music", "singer"), ("shops", "shop")):
        folder = tmp_path / "suite" / name
        folder.mkdir(parents=True)
        base = spider_folder / "database" / name / f"{name}.sqlite"
        for file in (f"{name}.sqlite", f"{name}_suite_000.sqlite"):
            shutil.copy(base, folder / file)
        with closing(sqlite3.connect(folder / f"{name}_suite_000.sqlite")) as connection:
            connection.execute(f"UPDATE {table} SET id = 90 WHERE id = 2")
            connection.commit()
    return tmp_path / "suite"


def verdict(answer: str, gold: str, base: Path, files: tuple[Path, ...]) -> Verdict:
    """The verdict of base and suite."""
    first = judge(answer, gold, execute(base, gold), base)
    return judge_on_suite(first, answer, gold, files, Comparison())


def test_an_answer_that_is_right_by_accident_on_the_base_is_wrong_on_the_suite(
    spider_folder: Path, suite: Path
) -> None:
    base = spider_folder / "database" / "music" / "music.sqlite"
    files = suite_files(suite, ["music"])["music"]
    assert [file.name for file in files] == ["music_suite_000.sqlite"]
    found = verdict(BY_ACCIDENT, GOLD, base, files)
    assert (found.correct, found.reason) == (False, "wrong_on_suite")
    assert found.detail.startswith("music_suite_000.sqlite: wrong_rows")
    assert found.executable
    assert found.rows_share == 0, "an accident earns nothing by its share of rows either"
    assert verdict("SELECT count(id) FROM singer", GOLD, base, files).correct


def test_a_file_on_which_the_gold_fails_decides_nothing(spider_folder: Path, suite: Path) -> None:
    base = spider_folder / "database" / "music" / "music.sqlite"
    other = suite / "shops" / "shops.sqlite"  # it has no table of singers
    assert verdict(GOLD, GOLD, base, (other,)).correct


def test_a_task_with_a_suite_rewards_what_is_right_everywhere(
    spider_folder: Path, suite: Path
) -> None:
    answers = [[f"```sql\n{sql}\n```"] for sql in (GOLD, BY_ACCIDENT)]
    for folder, expected in ((None, [True, True]), (suite, [True, False])):
        task = make_task(str(spider_folder), "train", CODEC, suite=folder)
        prompt = task.prompts["train:0"]
        done = rollout([prompt, prompt], ScriptedPolicy(answers, CODEC), task.rollout)
        assert [task.verdict(t).correct for t in done] == expected


def test_a_suite_that_lacks_a_database_is_refused_with_the_remedy(
    spider_folder: Path, suite: Path
) -> None:
    shutil.rmtree(suite / "shops")
    with pytest.raises(DataError, match=r"no files for shops: build it with python -m"):
        make_task(str(spider_folder), "train", CODEC, suite=suite)


@pytest.mark.slow
def test_pockets_own_suite_goes_by_its_name() -> None:
    files = suite_files("pocket", ["pet_clinic"])["pet_clinic"]
    assert len(files) > 4
    assert all(file.stem.startswith("pet_clinic_suite_") for file in files)
