"""Parity with the official scripts, on the verdicts that they gave.

Reads ``../shared`` beside the repository, or the folder in NL2SQL_SHARED.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nl2sql_trl.spider import (
    CaseScore,
    Schema,
    SqlParseError,
    result_eq,
    schema_from_sqlite,
    schemas_from_tables_json,
)
from nl2sql_trl.spider.cases import Case
from nl2sql_trl.spider.parser import parse
from nl2sql_trl.spider.scoring import Setup, score_all, summarize
from nl2sql_trl.spider.text import executed_text, suite_text
from nl2sql_trl.spider.tokenizer import tokenize
from nl2sql_trl.spider.tree import Query, Variant

Jsonl = Callable[[str], list[dict[str, Any]]]
FIELDS = ("hardness", "exact_match", "exact_match_legacy", "pred_parses", "pred_parses_legacy")
EXECUTIONS = ("legacy_exec", "testsuite_exec")

# By level: test suite, exact match, legacy execution; unparseable rows by the legacy parser.
OFFICIAL = {
    "c3_chatgpt": (
        (216,),
        (0.911, 0.753, 0.695, 0.386, 0.722),
        (0.802, 0.435, 0.356, 0.181, 0.469),
        (0.835, 0.574, 0.546, 0.470, 0.615),
    ),
    "codes_sft_3b": (
        (1,),
        (0.944, 0.830, 0.713, 0.500, 0.784),
        (0.944, 0.807, 0.684, 0.494, 0.769),
        (0.931, 0.836, 0.718, 0.602, 0.802),
    ),
    "codex_few_shot": (
        (142,),
        (0.847, 0.682, 0.483, 0.265, 0.621),
        (0.770, 0.538, 0.385, 0.127, 0.502),
        (0.831, 0.749, 0.563, 0.373, 0.677),
    ),
    "dail_sql_gpt4": (
        (70,),
        (0.903, 0.832, 0.701, 0.482, 0.771),
        (0.895, 0.742, 0.552, 0.452, 0.700),
        (0.887, 0.821, 0.707, 0.572, 0.778),
    ),
    "din_sql_gpt4": (
        (66,),
        (0.911, 0.809, 0.649, 0.434, 0.747),
        (0.827, 0.655, 0.420, 0.307, 0.601),
        (0.911, 0.729, 0.655, 0.476, 0.720),
    ),
    "gpt4_zero_shot": (
        (324,),
        (0.855, 0.724, 0.517, 0.349, 0.661),
        (0.702, 0.406, 0.247, 0.120, 0.404),
        (0.750, 0.489, 0.379, 0.361, 0.513),
    ),
}


@pytest.fixture(scope="session")
def schemas(shared: Path) -> dict[str, Schema]:
    """Spider's ``tables.json``."""
    return schemas_from_tables_json(shared / "spider" / "tables.json")


@pytest.fixture(scope="session")
def cases(jsonl: Jsonl) -> list[dict[str, Any]]:
    """The public cases that have one right verdict."""
    return [case for case in jsonl("public.jsonl") if "nondeterministic" not in case["flags"]]


def score(cases: list[dict[str, Any]], setup: Setup) -> list[CaseScore]:
    """Score parity cases in their order."""
    return score_all(
        [Case(case["id"], case["db_id"], case["gold"], case["pred"], "") for case in cases], setup
    ).scores


@pytest.fixture(scope="session")
def scores(
    shared: Path, schemas: dict[str, Schema], cases: list[dict[str, Any]]
) -> list[CaseScore]:
    """Our scores of the public cases on the synthetic databases."""
    return score(cases, Setup([shared / "parity" / "databases_synth"], schemas))


def disagreements(
    cases: list[dict[str, Any]], scores: list[CaseScore], field: str, expected: str
) -> Iterator[tuple[str, object, object]]:
    """Cases in which ``field`` differs; a verdict that does not exist is False with a reason."""
    for case, ours in zip(cases, scores, strict=True):
        verdict = getattr(ours, field)
        if case[expected] is not None:
            if verdict != case[expected]:
                yield case["id"], verdict, case[expected]
        elif verdict or not ours.reason:
            yield case["id"], verdict, "False with a reason"


@pytest.mark.parametrize("field", [*FIELDS, *EXECUTIONS])
def test_verdicts_agree_on_all_public_cases(
    field: str, cases: list[dict[str, Any]], scores: list[CaseScore]
) -> None:
    assert list(disagreements(cases, scores, field, field)) == []


def test_component_scores_agree_on_all_public_cases(
    cases: list[dict[str, Any]], scores: list[CaseScore]
) -> None:
    for case, ours in zip(cases, scores, strict=True):
        if ours.partial:
            assert [list(component) for component in ours.partial.values()] == case["partial"]


@pytest.mark.parametrize("option", ["plug_value", "keep_distinct"])
def test_options_of_the_suite_agree(
    option: str, shared: Path, schemas: dict[str, Schema], cases: list[dict[str, Any]]
) -> None:
    expected = f"testsuite_exec_{option}"
    chosen = [case for case in cases if expected in case]
    folder = shared / "parity" / "databases_synth"
    ours = score(chosen, Setup([folder], schemas, **{option: True}))  # type: ignore[arg-type]
    assert chosen
    assert list(disagreements(chosen, ours, "testsuite_exec", expected)) == []


@pytest.mark.slow
def test_verdicts_agree_on_the_real_databases(
    shared: Path, schemas: dict[str, Schema], cases: list[dict[str, Any]]
) -> None:
    chosen = [case for case in cases if "wta_1_synthetic_only" not in case["flags"]]
    spider = shared / "spider"
    ours = score(chosen, Setup([spider / "test_suite_database", spider / "database"], schemas))
    for field in EXECUTIONS:
        assert list(disagreements(chosen, ours, field, f"{field}_real")) == []


def dev_scores(
    shared: Path, schemas: dict[str, Schema], predictions: list[str] | None
) -> list[CaseScore]:
    """Score the development set on the real test suite; by default its own golds."""
    spider = shared / "spider"
    rows = json.loads((spider / "dev.json").read_text(encoding="utf-8"))
    golds = [row["query"] for row in rows]
    preds = golds if predictions is None else predictions
    chosen = [
        {"id": index, "db_id": row["db_id"], "gold": gold, "pred": pred}
        for index, (row, gold, pred) in enumerate(zip(rows, golds, preds, strict=True))
    ]
    return score(chosen, Setup([spider / "test_suite_database", spider / "database"], schemas))


@pytest.mark.slow
def test_dev_golds_score_one_by_every_metric(shared: Path, schemas: dict[str, Schema]) -> None:
    summary = summarize(dev_scores(shared, schemas, None))
    assert [row.pop("count") for row in summary.values()] == [248, 446, 174, 166, 1034]
    assert {rate for row in summary.values() for rate in row.values()} == {1.0}


@pytest.mark.slow
@pytest.mark.parametrize("name", OFFICIAL)
def test_published_predictions_get_their_official_scores(
    name: str, shared: Path, schemas: dict[str, Schema]
) -> None:
    lines = (shared / "predictions" / f"{name}.sql").read_text(encoding="utf-8").splitlines()
    ours = dev_scores(shared, schemas, lines)
    summary = summarize(ours)
    measured = tuple(
        tuple(round(row[metric], 3) for row in summary.values())
        for metric in ("testsuite_exec", "exact_match", "legacy_exec")
    )
    unparseable = sum(not case.pred_parses_legacy for case in ours)
    assert ((unparseable,), *measured) == OFFICIAL[name]


def test_text_edits_agree(jsonl: Jsonl) -> None:
    edits = {"postprocess+remove_distinct": suite_text, "replace_cur_year": executed_text}
    for unit in jsonl("unit_text.jsonl"):
        assert edits[unit["fn"]](unit["in"]) == unit["out"]


def test_result_comparisons_agree(jsonl: Jsonl) -> None:
    def cell(value: Any) -> Any:
        if isinstance(value, dict):
            return float(value["f"]) if "f" in value else bytes.fromhex(value["b"])
        return value

    for unit in jsonl("unit_result_eq.jsonl"):
        gold, pred = ([tuple(map(cell, row)) for row in unit[side]] for side in "ab")
        assert result_eq(gold, pred, unit["order_matters"]) == unit["expected"]


def test_trees_agree_and_tokens_where_the_statement_can_be_parsed(
    jsonl: Jsonl, shared: Path
) -> None:
    folder = shared / "parity" / "databases_synth"
    schemas: dict[str, Schema] = {}
    for unit in jsonl("unit_parse.jsonl"):
        db_id, sql = unit["db_id"], unit["sql"]
        if db_id not in schemas:
            schemas[db_id] = schema_from_sqlite(folder / db_id / f"{db_id}.sqlite")
        legacy = official_form(sql, schemas[db_id], "legacy")
        suite = official_form(sql, schemas[db_id], "test_suite")
        expected = unit.get("tsse", unit["legacy"])
        assert legacy == in_order(None if unit["legacy_error"] else unit["legacy"]), sql
        assert suite == in_order(None if unit["tsse_error"] else expected), sql
        if suite != in_order(None):
            assert tokenize(sql) == unit["tokens"]


def official_form(sql: str, schema: Schema, variant: Variant) -> str:
    """The tree as the official parser would give it, in JSON; null for a failure."""
    try:
        return in_order(plain(parse(sql, schema, variant)))
    except SqlParseError:
        return in_order(None)


def in_order(tree: object) -> str:
    """JSON, in which a NaN equals itself."""
    return json.dumps(tree, sort_keys=True)


def plain(part: object) -> object:
    """Turn a part of a tree into lists and dicts."""
    if isinstance(part, Query):
        return {
            "select": [part.distinct, plain(part.select)],
            "from": {"table_units": plain(part.tables), "conds": plain(part.on)},
            "where": plain(part.where),
            "groupBy": plain(part.group_by),
            "having": plain(part.having),
            "orderBy": plain(part.order_by) or [],
            "limit": part.limit,
            "intersect": plain(part.intersect),
            "union": plain(part.union),
            "except": plain(part.except_),
        }
    return [plain(item) for item in part] if isinstance(part, tuple) else part
