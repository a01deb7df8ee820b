"""The errors of the Spider metrics."""


class SqlParseError(ValueError):
    """The statement lies outside the SQL subset of Spider's official parser."""


class OfficialAbort(Exception):
    """The official scorer would die on this row; the message says why."""
