"""Score predictions by all the official Spider metrics at once.

The verdicts are those of the unmodified official scripts, unless ``fixed`` is asked for. Where a
script would die, and take the whole run with it, the verdict is False and the reason says so.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nl2sql_trl.spider.accuracy import Verdict, legacy_accuracy, suite_accuracy
from nl2sql_trl.spider.canonical import canonical
from nl2sql_trl.spider.errors import OfficialAbort, SqlParseError
from nl2sql_trl.spider.execution import TIMEOUT, Limits, Runner
from nl2sql_trl.spider.hardness import hardness_of
from nl2sql_trl.spider.match import ComponentScore, Match, match
from nl2sql_trl.spider.parser import parse
from nl2sql_trl.spider.schema import Schema, schema_from_sqlite
from nl2sql_trl.spider.text import prediction_text
from nl2sql_trl.spider.tree import EMPTY_QUERY, Query, Variant

ABORT = "official script aborts"


@dataclass(frozen=True)
class CaseScore:
    """All verdicts on one prediction.

    ``exact_match``, ``partial`` and ``pred_parses`` follow the test-suite repository, the
    ``_legacy`` fields and ``legacy_exec`` taoyds/spider. ``hardness`` is None when the gold cannot
    be parsed, ``partial`` empty when there was no comparison. ``reason`` belongs to the first
    metric that failed, with limits and aborts before anything else.
    """

    hardness: str | None = None
    exact_match: bool = False
    exact_match_legacy: bool = False
    legacy_exec: bool = False
    testsuite_exec: bool = False
    pred_parses: bool = False
    pred_parses_legacy: bool = False
    reason: str | None = None
    flags: tuple[str, ...] = ()
    partial: dict[str, ComponentScore] = field(default_factory=dict)


class UnknownDatabaseError(LookupError):
    """There is no usable database file for this db_id."""


class _Parsed(NamedTuple):
    """Gold and prediction as one of the scripts sees them."""

    gold_text: str
    gold: Query
    gold_error: str | None
    pred_text: str
    pred: Query
    pred_error: str | None

    def require_gold(self) -> None:
        """Raise OfficialAbort when the gold cannot be parsed."""
        if self.gold_error:
            raise OfficialAbort(f"gold {self.gold_error}")


class Evaluator:
    """Scores cases against ``<folder>/<db_id>/<db_id>.sqlite`` in the first folder that has it.

    All files beside it with ``.sqlite`` in their names are the test suite of that database.
    ``schemas`` (from ``tables.json``) supplies foreign keys; a database missing there uses those
    that its file declares. Score the cases of one database in a row: connections and results are
    kept until another database comes.

    ``fixed`` repairs the test-suite metrics: predictions keep the word ``value`` and their TABs,
    only an outer ORDER BY asks for order, 1 equals 1.0 in every row, and execution needs no gold
    that Spider's parser can read.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        schemas: dict[str, Schema] | None = None,
        limits: Limits | None = None,
        *,
        plug_value: bool = False,
        keep_distinct: bool = False,
        fixed: bool = False,
    ) -> None:
        """Remember where to look; nothing is opened yet."""
        self.folders = folders
        self.schemas = schemas or {}
        self.plug_value = plug_value
        self.keep_distinct = keep_distinct
        self.fixed = fixed
        self.runner = Runner(limits)
        self._db_id: str | None = None
        self._paths: list[Path] = []
        self._schema = Schema({})

    def score(self, db_id: str, gold: str, pred: str) -> CaseScore:
        """Score one raw prediction; UnknownDatabaseError when its database cannot be read."""
        self._select(db_id)
        suite = self._parse(gold, pred, "test_suite")
        legacy = self._parse(gold, pred, "legacy")
        partial: dict[str, ComponentScore] = {}
        exact = _unless_abort(lambda: self._exact_match(suite, partial))
        verdicts = {
            "testsuite_exec": _unless_abort(lambda: self._suite_exec(suite)),
            "exact_match": exact,
            "exact_match_legacy": _unless_abort(
                lambda: exact if legacy == suite else self._exact_match(legacy, {})
            ),
            "legacy_exec": _unless_abort(lambda: self._legacy_exec(legacy)),
        }
        return CaseScore(
            hardness=None if suite.gold_error else hardness_of(suite.gold),
            exact_match=verdicts["exact_match"].correct,
            exact_match_legacy=verdicts["exact_match_legacy"].correct,
            legacy_exec=verdicts["legacy_exec"].correct,
            testsuite_exec=verdicts["testsuite_exec"].correct,
            pred_parses=suite.pred_error is None,
            pred_parses_legacy=legacy.pred_error is None,
            reason=_first_reason(verdicts),
            flags=_text_flags(pred)
            + ("unparseable_testsuite",) * (suite.pred_error is not None)
            + ("unparseable_legacy",) * (legacy.pred_error is not None)
            + _verdict_flags(verdicts),
            partial=partial,
        )

    def close(self) -> None:
        """Close the database files and drop the results kept."""
        self.runner.forget()
        self._db_id = None

    def _select(self, db_id: str) -> None:
        if db_id == self._db_id:
            return
        self.close()
        bases = [folder / db_id / f"{db_id}.sqlite" for folder in self.folders]
        base = next((path for path in bases if path.is_file()), None)
        if base is None:
            raise UnknownDatabaseError(f"no file {' or '.join(map(str, bases))}")
        known = self.schemas.get(db_id)
        try:
            self._schema = schema_from_sqlite(base, known.foreign_keys if known else None)
        except sqlite3.Error as error:
            raise UnknownDatabaseError(f"{base}: {error}") from error
        suite = sorted(path for path in base.parent.iterdir() if ".sqlite" in path.name)
        self._paths = [base, *(path for path in suite if path != base)]
        self._db_id = db_id

    def _parse(self, gold: str, pred: str, variant: Variant) -> _Parsed:
        text = prediction_text(pred, variant, fixed=self.fixed and variant == "test_suite")
        gold_query, gold_error = self._parse_one(gold, variant)
        pred_query, pred_error = self._parse_one(text, variant)
        return _Parsed(gold, gold_query, gold_error, text, pred_query, pred_error)

    def _parse_one(self, text: str, variant: Variant) -> tuple[Query, str | None]:
        try:
            return parse(text, self._schema, variant), None
        except SqlParseError as error:
            return EMPTY_QUERY, f"unparseable: {error}"

    def _exact_match(self, parsed: _Parsed, partial: dict[str, ComponentScore]) -> Verdict:
        compared = match(*self._canonical(parsed))
        partial.update(compared.partial)
        if compared.exact:
            return Verdict(True)
        return Verdict(False, parsed.pred_error or _difference(compared))

    def _legacy_exec(self, parsed: _Parsed) -> Verdict:
        trees = self._canonical(parsed)
        base = self._paths[0]
        return legacy_accuracy(self.runner, base, parsed.gold_text, parsed.pred_text, *trees)

    def _suite_exec(self, parsed: _Parsed) -> Verdict:
        if not self.fixed:
            parsed.require_gold()
        return suite_accuracy(
            self.runner,
            self._paths,
            parsed.gold_text,
            parsed.pred_text,
            plug_value=self.plug_value,
            keep_distinct=self.keep_distinct,
            fixed=self.fixed,
        )

    def _canonical(self, parsed: _Parsed) -> tuple[Query, Query]:
        parsed.require_gold()
        return canonical(parsed.gold, self._schema), canonical(parsed.pred, self._schema)


def _unless_abort(judge: Callable[[], Verdict]) -> Verdict:
    try:
        return judge()
    except OfficialAbort as abort:
        return Verdict(False, f"{ABORT}: {abort}")
    except RecursionError:
        return Verdict(False, f"{ABORT}: nested too deeply")


def _difference(compared: Match) -> str:
    names = [name for name, component in compared.partial.items() if not component.score]
    return f"differs in {', '.join(names) or 'tables'}"


def _first_reason(verdicts: dict[str, Verdict]) -> str | None:
    reasons = [verdict.reason for verdict in verdicts.values() if verdict.reason]
    stops = [reason for reason in reasons if reason == TIMEOUT]
    aborts = [reason for reason in reasons if reason.startswith(ABORT)]
    return next(iter(stops + aborts + reasons), None)


def _verdict_flags(verdicts: dict[str, Verdict]) -> tuple[str, ...]:
    reasons = {metric: verdict.reason or "" for metric, verdict in verdicts.items()}
    aborted = tuple(f"abort_{name}" for name, text in reasons.items() if text.startswith(ABORT))
    return (TIMEOUT, *aborted) if TIMEOUT in reasons.values() else aborted


def _text_flags(pred: str) -> tuple[str, ...]:
    stripped = pred.strip()
    found = {
        "blank_pred": not stripped,
        "has_tab": "\t" in stripped,
        "has_value_substring": "value" in stripped,
        "inner_semicolon": ";" in stripped.rstrip(";"),
    }
    return tuple(name for name, present in found.items() if present)
