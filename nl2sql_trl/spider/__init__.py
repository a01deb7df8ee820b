"""The official Spider metrics, written anew from a description of their behaviour.

``hardness`` and ``exact_match`` read queries; ``result_eq`` compares result tables; ``Evaluator``
does it all on database files. Nothing here needs more than the standard library.
"""

from nl2sql_trl.spider.errors import OfficialAbort, SqlParseError
from nl2sql_trl.spider.evaluator import CaseScore, Evaluator, UnknownDatabaseError
from nl2sql_trl.spider.hardness import LEVELS, hardness
from nl2sql_trl.spider.match import exact_match
from nl2sql_trl.spider.result import result_eq
from nl2sql_trl.spider.schema import Schema, schema_from_sqlite, schemas_from_tables_json

__all__ = [
    "LEVELS",
    "CaseScore",
    "Evaluator",
    "OfficialAbort",
    "Schema",
    "SqlParseError",
    "UnknownDatabaseError",
    "exact_match",
    "hardness",
    "result_eq",
    "schema_from_sqlite",
    "schemas_from_tables_json",
]
