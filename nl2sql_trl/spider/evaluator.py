"""Score predictions by all the official Spider metrics at once.

The verdicts are those of the unmodified official scripts, unless ``fixed`` is asked for. Where a
script would die, and take the whole run with it, the verdict is False and the reason says so.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
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
UNDECIDED = "cannot be judged"
"""How the reason begins where a verdict is False for want of one, in official and fixed mode."""
TOO_LONG = "statement too long"
MAX_STATEMENT = 1_000_000
"""Characters of a prediction beyond which it is wrong without being looked at."""
_MAX_TREES = 10_000


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
    """There is no database file for this db_id."""


class DamagedDatabaseError(Exception):
    """The file of a database cannot be read; the message names it."""


@dataclass(eq=False)
class _Tree:
    """A statement as one of the scripts parses it: the empty query where it cannot."""

    query: Query
    error: str | None
    _canonical: Query | None = None

    def canonical(self, schema: Schema) -> Query:
        """The tree that is compared; OfficialAbort where the script dies on it."""
        if self._canonical is None:
            self._canonical = canonical(self.query, schema)
        return self._canonical


class _Pair(NamedTuple):
    """Gold and prediction as one of the scripts sees them."""

    gold_text: str
    gold: _Tree
    pred_text: str
    pred: _Tree

    def require_gold(self) -> None:
        """Raise OfficialAbort when the gold cannot be parsed."""
        if self.gold.error:
            raise OfficialAbort(f"gold {self.gold.error}")

    def same_trees(self, other: _Pair) -> bool:
        """Whether both scripts read the same, so that they compare the same."""
        return (self.gold.query, self.pred.query, self.pred.error) == (
            other.gold.query,
            other.pred.query,
            other.pred.error,
        )


class Evaluator:
    """Scores cases against ``<folder>/<db_id>/<db_id>.sqlite`` in the first folder that has it.

    All files beside it with ``.sqlite`` in their names are the test suite of that database. Where
    no folder has it, ``databases`` names the file, which then stands alone.
    ``schemas`` (from ``tables.json``) supplies foreign keys; a database missing there uses those
    that its file declares. Score the cases of one database in a row: connections and results are
    kept until another database comes.

    ``fixed`` repairs what the scripts get wrong: predictions keep the word ``value`` and their
    TABs, only an outer ORDER BY asks for order, 1 equals 1.0 in every row, execution needs nothing
    that Spider's parser can read, and ``legacy_exec`` compares rows, with their duplicates, and
    not columns under the names of what was parsed. The grammar itself stays Spider's.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        schemas: dict[str, Schema] | None = None,
        databases: Mapping[str, Path] | None = None,
        limits: Limits | None = None,
        *,
        plug_value: bool = False,
        keep_distinct: bool = False,
        fixed: bool = False,
    ) -> None:
        """Remember where to look; nothing is opened yet."""
        self.folders = folders
        self.schemas = schemas or {}
        self.databases = databases or {}
        self.plug_value = plug_value
        self.keep_distinct = keep_distinct
        self.fixed = fixed
        self._abort = UNDECIDED if fixed else ABORT
        self.runner = Runner(limits)
        self._db_id: str | None = None
        self._paths: list[Path] = []
        self._schema = Schema({})
        self._trees: dict[tuple[str, Variant], _Tree] = {}

    def score(self, db_id: str, gold: str, pred: str) -> CaseScore:
        """Score one raw prediction.

        Raises UnknownDatabaseError or DamagedDatabaseError for its database.
        """
        self._select(db_id)
        if len(pred) > MAX_STATEMENT:
            tree = self._tree(gold, "test_suite")
            level = None if tree.error else hardness_of(tree.query)
            return CaseScore(hardness=level, reason=TOO_LONG, flags=("too_long",))
        suite = self._parse(gold, pred, "test_suite")
        legacy = self._parse(gold, pred, "legacy")
        partial: dict[str, ComponentScore] = {}
        exact = self._unless_abort(lambda: self._exact_match(suite, partial))
        verdicts = {
            "testsuite_exec": self._unless_abort(lambda: self._suite_exec(suite)),
            "exact_match": exact,
            "exact_match_legacy": self._unless_abort(
                lambda: exact if legacy.same_trees(suite) else self._exact_match(legacy, {})
            ),
            "legacy_exec": self._unless_abort(lambda: self._legacy_exec(legacy)),
        }
        return CaseScore(
            hardness=None if suite.gold.error else hardness_of(suite.gold.query),
            exact_match=verdicts["exact_match"].correct,
            exact_match_legacy=verdicts["exact_match_legacy"].correct,
            legacy_exec=verdicts["legacy_exec"].correct,
            testsuite_exec=verdicts["testsuite_exec"].correct,
            pred_parses=suite.pred.error is None,
            pred_parses_legacy=legacy.pred.error is None,
            reason=_first_reason(verdicts),
            flags=_text_flags(pred)
            + ("unparseable_testsuite",) * (suite.pred.error is not None)
            + ("unparseable_legacy",) * (legacy.pred.error is not None)
            + _verdict_flags(verdicts),
            partial=partial,
        )

    def schema(self, db_id: str) -> Schema:
        """The schema of a database. Raises UnknownDatabaseError."""
        self._select(db_id)
        return self._schema

    def files(self, db_id: str) -> list[Path]:
        """The files that stand behind a database: the base, then its test suite.

        Raises UnknownDatabaseError.
        """
        bases = [folder / db_id / f"{db_id}.sqlite" for folder in self.folders]
        if base := next((path for path in bases if path.is_file()), None):
            beside = sorted(path for path in base.parent.iterdir() if ".sqlite" in path.name)
            return [base, *(path for path in beside if path != base)]
        if db_id in self.databases:
            return [self.databases[db_id]]
        raise UnknownDatabaseError(f"no file {' or '.join(map(str, bases))[:400]}")

    def tree(self, db_id: str, sql: str) -> Query | None:
        """The parse tree of a statement, with its LIMIT where that is a number; None if rejected.

        Raises UnknownDatabaseError.
        """
        self._select(db_id)
        found = [self._tree(sql.strip(), variant) for variant in ("legacy", "test_suite")]
        return next((tree.query for tree in found if tree.error is None), None)

    def close(self) -> None:
        """Close the database files and drop the results kept."""
        self.runner.forget()
        self._trees.clear()
        self._db_id = None

    def _select(self, db_id: str) -> None:
        if db_id == self._db_id:
            return
        self.close()
        base, *suite = self.files(db_id)
        known = self.schemas.get(db_id)
        try:
            self._schema = schema_from_sqlite(base, known.foreign_keys if known else None)
        except sqlite3.Error as error:
            raise _damaged(base, str(error)) from error
        if not self._schema.tables:
            raise _damaged(base, "it holds no table")
        self._paths = [base, *suite]
        self._db_id = db_id

    def _unless_abort(self, judge: Callable[[], Verdict]) -> Verdict:
        try:
            return judge()
        except OfficialAbort as abort:
            return Verdict(False, f"{self._abort}: {abort}")
        except RecursionError:
            return Verdict(False, f"{self._abort}: nested too deeply")

    def _parse(self, gold: str, pred: str, variant: Variant) -> _Pair:
        text = prediction_text(pred, variant, fixed=self.fixed)
        return _Pair(gold, self._tree(gold, variant), text, self._tree(text, variant))

    def _tree(self, text: str, variant: Variant) -> _Tree:
        # Most golds stand behind several questions, and every one is scored against itself too.
        tree = self._trees.get((text, variant))
        if tree is None:
            try:
                tree = _Tree(parse(text, self._schema, variant), None)
            except SqlParseError as error:
                tree = _Tree(EMPTY_QUERY, f"unparseable: {error}")
            if len(self._trees) >= _MAX_TREES:
                self._trees.clear()
            self._trees[text, variant] = tree
        return tree

    def _exact_match(self, pair: _Pair, partial: dict[str, ComponentScore]) -> Verdict:
        compared = match(*self._canonical(pair))
        partial.update(compared.partial)
        if compared.exact:
            return Verdict(True)
        return Verdict(False, pair.pred.error or _difference(compared))

    def _legacy_exec(self, pair: _Pair) -> Verdict:
        base = self._paths[0]
        if self.fixed:
            return suite_accuracy(
                self.runner, [base], pair.gold_text, pair.pred_text, keep_distinct=True, fixed=True
            )
        trees = self._canonical(pair)
        return legacy_accuracy(self.runner, base, pair.gold_text, pair.pred_text, *trees)

    def _suite_exec(self, pair: _Pair) -> Verdict:
        if not self.fixed:
            pair.require_gold()
        return suite_accuracy(
            self.runner,
            self._paths,
            pair.gold_text,
            pair.pred_text,
            plug_value=self.plug_value,
            keep_distinct=self.keep_distinct,
            fixed=self.fixed,
        )

    def _canonical(self, pair: _Pair) -> tuple[Query, Query]:
        pair.require_gold()
        return pair.gold.canonical(self._schema), pair.pred.canonical(self._schema)


def _damaged(path: Path, why: str) -> DamagedDatabaseError:
    return DamagedDatabaseError(
        f"{path} cannot be read as a database ({why}): it is damaged, or only partly downloaded"
    )


def _difference(compared: Match) -> str:
    names = [name for name, component in compared.partial.items() if not component.score]
    return f"differs in {', '.join(names) or 'tables'}"


def _first_reason(verdicts: dict[str, Verdict]) -> str | None:
    reasons = [verdict.reason for verdict in verdicts.values() if verdict.reason]
    stops = [reason for reason in reasons if reason == TIMEOUT]
    aborts = [reason for reason in reasons if reason.startswith((ABORT, UNDECIDED))]
    return next(iter(stops + aborts + reasons), None)


def _verdict_flags(verdicts: dict[str, Verdict]) -> tuple[str, ...]:
    reasons = {metric: verdict.reason or "" for metric, verdict in verdicts.items()}
    aborted = tuple(
        f"abort_{name}" for name, text in reasons.items() if text.startswith((ABORT, UNDECIDED))
    )
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
