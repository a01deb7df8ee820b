"""What the model reads after a call: short, valid JSON that tells the truth."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nl2sql_trl.records import QueryResult
from nl2sql_trl.tools import (
    DEFAULT_CHARS,
    MIN_CHARS,
    RUN_SQL,
    SEED_CHARS,
    elide_middle,
    error,
    render,
)

MARK = "...(truncated)..."


def ok(rows: list[tuple], columns: tuple[str, ...] | None = None, complete: bool = True):
    columns = columns or tuple(f"c{n}" for n in range(len(rows[0]) if rows else 1))
    return QueryResult("ok", columns, tuple(rows), complete)


# Strategies: whatever `database.execute` can return

_text = st.text(
    st.one_of(
        st.characters(codec="utf-8"),
        st.sampled_from('"\\\n\t\x00\x1f\x7f<|>\u2028…é😀\ue000\ue001'),
        st.integers(0xDC80, 0xDCFF).map(chr),  # bytes that were not UTF-8
    ),
    max_size=120,
)
_value = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    _text,
    st.binary(max_size=120),
)
_columns = st.lists(st.text(st.characters(codec="utf-8"), max_size=60), min_size=1, max_size=12)


@st.composite
def results(draw: st.DrawFn) -> QueryResult:
    columns = tuple(draw(_columns))
    row = st.tuples(*[_value] * len(columns))
    rows = draw(st.lists(row, max_size=8)) * draw(st.sampled_from([1, 1, 3, 100]))
    return QueryResult("ok", columns, tuple(rows), draw(st.booleans()))


def shown_is(shown: object, value: object) -> bool:
    """Whether a cell of the JSON is `value`, whole or clipped at its end."""
    if isinstance(value, float) and not math.isfinite(value):
        return shown == str(value)
    if isinstance(value, bytes):
        value = value.hex()
    elif isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    else:
        return type(shown) is type(value) and shown == value
    if not isinstance(shown, str):
        return False
    return shown == value or (shown[-1] == "…" and value.startswith(shown[:-1]))


@settings(deadline=None)
@given(results(), st.integers(MIN_CHARS, 1500))
def test_any_result_is_valid_json_within_the_limit_with_true_rows_and_total(
    result: QueryResult, limit: int
) -> None:
    text = render(result, "rows", limit)
    assert len(text) <= limit
    text.encode()
    body = json.loads(text)
    total = len(result.rows) if result.complete else f"more than {len(result.rows)}"
    if "column_count" in body:
        assert body == {"column_count": len(result.columns), "total_rows": total}
        return
    assert len(body["columns"]) == len(result.columns)
    assert all(map(shown_is, body["columns"], result.columns))
    assert len(body["rows"]) <= len(result.rows)
    for shown, row in zip(body["rows"], result.rows, strict=False):
        assert len(shown) == len(row)
        assert all(map(shown_is, shown, row))
    if "total_rows" in body:
        assert body["total_rows"] == total
    else:
        assert result.complete
        assert len(body["rows"]) == len(result.rows)


@settings(deadline=None)
@given(results(), st.integers(MIN_CHARS, 1500))
def test_a_larger_limit_never_shows_fewer_rows(result: QueryResult, limit: int) -> None:
    def rows(limit: int) -> int:
        return len(json.loads(render(result, "rows", limit)).get("rows", ()))

    cells_are_short = all(len(str(v)) < 8 for row in result.rows for v in row)
    if cells_are_short:  # otherwise a larger limit may show longer cells instead
        assert rows(limit) <= rows(limit + 50)


@settings(deadline=None)
@given(results())
def test_the_seed_mode_is_the_full_json_with_its_middle_elided(result: QueryResult) -> None:
    rows = [
        [
            v.hex()
            if isinstance(v, bytes)
            else str(v)
            if isinstance(v, float) and not math.isfinite(v)
            else v.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            if isinstance(v, str)
            else v
            for v in row
        ]
        for row in result.rows
    ]
    text = json.dumps({"columns": list(result.columns), "rows": rows})
    if len(text) > 256:
        text = text[:128] + MARK + text[-128:]
    assert render(result, "seed") == text
    assert len(text) <= 273


@settings(deadline=None)
@given(st.text(max_size=700), st.integers(1, 300).map(lambda n: 2 * n))
def test_eliding_keeps_both_halves(text: str, length: int) -> None:
    short = elide_middle(text, length)
    if len(text) <= length:
        assert short == text
    else:
        assert short == text[: length // 2] + MARK + text[-(length // 2) :]


@settings(deadline=None)
@given(_text.map(lambda t: t * 8), st.integers(MIN_CHARS, 500))
def test_an_error_is_valid_json_within_the_limit_and_starts_as_the_message_does(
    message: str, limit: int
) -> None:
    text = error(message, limit)
    assert len(text) <= limit
    text.encode()
    assert shown_is(json.loads(text)["error"], message)


@pytest.mark.parametrize("character", ['"', "\\", "\n", "\x00", "\x1f", "é", "😀", "x", "\udcff"])
@pytest.mark.parametrize("limit", [MIN_CHARS, 65, 100, 101, DEFAULT_CHARS])
def test_a_long_error_fills_its_limit_however_json_writes_its_characters(
    character: str, limit: int
) -> None:
    text = error(character * 2000, limit)
    assert limit - 6 < len(text) <= limit  # one character takes up to six
    assert json.loads(text)["error"].endswith("…")


def test_a_short_error_is_kept_whole() -> None:
    result = QueryResult("error", error='near "FROM": syntax error')
    assert json.loads(render(result)) == {"error": 'near "FROM": syntax error'}
    assert json.loads(render(result, "seed")) == {"error": 'near "FROM": syntax error'}
    assert json.loads(error("")) == {"error": ""}


@pytest.mark.parametrize("outcome", ["error", "timeout", "denied", "too_big"])
@pytest.mark.parametrize("truncation", ["rows", "seed"])
def test_every_failed_outcome_is_told_as_an_error(outcome: str, truncation: str) -> None:
    result = QueryResult(outcome, error="it went wrong")  # type: ignore[arg-type]
    assert json.loads(render(result, truncation)) == {"error": "it went wrong"}  # type: ignore[arg-type]


def test_a_long_error_in_seed_mode_is_elided_like_a_result() -> None:
    text = json.dumps({"error": "x" * 500})
    assert render(QueryResult("error", error="x" * 500), "seed") == text[:128] + MARK + text[-128:]


def test_a_small_result_is_shown_whole_without_a_total() -> None:
    result = ok([("Ann", 3), ("Bo", None)], ("name", "n"))
    assert render(result) == '{"columns": ["name", "n"], "rows": [["Ann", 3], ["Bo", null]]}'


@pytest.mark.parametrize("truncation", ["rows", "seed"])
def test_a_result_without_rows_still_gives_text(truncation: str) -> None:
    text = render(ok([], ("a",)), truncation)  # type: ignore[arg-type]
    assert json.loads(text) == {"columns": ["a"], "rows": []}


def test_a_result_without_rows_keeps_its_column_names_if_they_fit_clipped() -> None:
    result = ok([], tuple(f"a rather long column name, number {n}" for n in range(12)))
    body = json.loads(render(result))
    assert len(body["columns"]) == 12
    assert (body["rows"], body["total_rows"]) == ([], 0)


def test_a_result_cut_by_the_row_cap_never_states_a_total_it_does_not_know() -> None:
    assert json.loads(render(ok([(1,)], complete=False)))["total_rows"] == "more than 1"
    many = json.loads(render(ok([(n,) for n in range(1000)], complete=False)))
    assert many["total_rows"] == "more than 1000"


def test_rows_that_do_not_fit_are_dropped_whole_and_counted() -> None:
    body = json.loads(render(ok([(n, "x" * 20) for n in range(1000)])))
    assert body["total_rows"] == 1000
    assert body["rows"] == [[n, "x" * 20] for n in range(len(body["rows"]))]
    assert 5 < len(body["rows"]) < 30


def test_one_row_too_long_for_the_limit_is_shown_with_clipped_cells() -> None:
    body = json.loads(render(ok([("x" * 10_000, 5)]), limit=200))
    ((text, number),) = body["rows"]
    assert text.strip("x") == "…"
    assert number == 5


def test_more_columns_than_the_limit_holds_are_counted() -> None:
    result = ok([tuple(range(2000))] * 3)
    assert json.loads(render(result, limit=64)) == {"column_count": 2000, "total_rows": 3}


@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
@pytest.mark.parametrize("truncation", ["rows", "seed"])
def test_infinity_is_text_because_json_has_none(value: float, truncation: str) -> None:
    body = json.loads(render(ok([(value,)]), truncation), parse_constant=pytest.fail)  # type: ignore[arg-type]
    assert body["rows"] == [[str(value)]]


def test_bytes_that_are_no_text_are_hexadecimal() -> None:
    assert json.loads(render(ok([(b"\x00\xff",)])))["rows"] == [["00ff"]]


def test_text_that_is_not_utf8_can_be_encoded_again() -> None:
    text = render(ok([("caf\udce9",)]))
    text.encode()
    assert json.loads(text)["rows"] == [["caf\\xe9"]]


def test_letters_of_any_script_are_shown_as_they_are() -> None:
    assert "Zoë 😀" in render(ok([("Zoë 😀",)]))


def test_the_seed_mode_escapes_them_as_the_reference_does() -> None:
    assert "Zo\\u00eb" in render(ok([("Zoë",)]), "seed")


def test_the_seed_mode_is_not_bound_by_the_other_limit() -> None:
    assert len(render(ok([("x" * 999,)]), "seed", limit=1)) == SEED_CHARS + len(MARK)


@pytest.mark.parametrize("limit", [MIN_CHARS - 1, 0, -5])
def test_a_limit_too_small_for_json_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="at least 64 characters"):
        render(ok([(1,)]), limit=limit)


def test_the_tool_takes_one_required_string() -> None:
    parameters = RUN_SQL["function"]["parameters"]  # type: ignore[index]
    assert parameters == {
        "type": "object",
        "properties": {"query": {"type": "string"}},
        "required": ["query"],
    }
