"""Test suites for any database: files on which wrong queries give themselves away.

Queries: ``reading`` reads them as far as needed, ``hints`` collects what they say about columns,
``neighbours`` makes near misses of them (``mistakes``, ``restructured``), ``same`` equal forms.
Databases: ``shape`` and ``infer`` learn what rows keep to, ``randomdb`` makes random ones.
``golds`` brings both together, and ``build`` keeps the databases that tell golds from near misses.
`python -m nl2sql_trl.suite` is the command.
"""

from nl2sql_trl.suite.build import SIZE, build_suite, pocket_suite

__all__ = ["SIZE", "build_suite", "pocket_suite"]
