"""A task holds the rows that a run can learn from."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from nl2sql_trl.data import DataError
from nl2sql_trl.policy import ByteTokenizer
from nl2sql_trl.prompts import Codec
from nl2sql_trl.rewards import Comparison
from nl2sql_trl.task import make_task

CODEC = Codec(ByteTokenizer())


def folder_with(path: Path, *golds: str) -> str:
    file = path / "database" / "d" / "d.sqlite"
    file.parent.mkdir(parents=True)
    connection = sqlite3.connect(file)
    connection.executescript("CREATE TABLE t (a INTEGER); INSERT INTO t VALUES (1), (2);")
    connection.close()
    rows = [{"question": f"Question {n}?", "query": q, "db_id": "d"} for n, q in enumerate(golds)]
    (path / "train_spider.json").write_text(json.dumps(rows))
    return str(path)


def test_rows_with_an_empty_gold_are_left_out_where_no_answer_to_them_can_be_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = folder_with(tmp_path, "SELECT a FROM t", "SELECT a FROM t WHERE a > 5")
    assert list(make_task(data, "train", CODEC).examples) == ["train:0", "train:1"]
    strict = make_task(data, "train", CODEC, comparison=Comparison(empty="wrong"))
    assert list(strict.examples) == ["train:0"]
    assert "left out 1 rows whose gold returns no rows" in capsys.readouterr().out


def test_a_task_of_empty_golds_alone_is_refused_where_they_do_not_count(tmp_path: Path) -> None:
    data = folder_with(tmp_path, "SELECT a FROM t WHERE a > 5")
    with pytest.raises(DataError, match="no usable row is left"):
        make_task(data, "train", CODEC, comparison=Comparison(empty="wrong"))
