"""printf() and format() in SQL with widths that a result can have.

SQLite's own spend seconds on a width of a billion before they find the text too long, in one call
that no limit on steps or time interrupts.
"""

from __future__ import annotations

import re
import sqlite3
from typing import Any

_WIDTHS = re.compile(r"%[-+ 0#!,]*(\*|\d+)?(?:\.(\*|\d+))?")


def bound_widths(connection: sqlite3.Connection, largest: int) -> None:
    """Let widths and precisions beyond `largest` end as SQLite's "too big" at once.

    `largest` is the connection's limit on the length of a value. All else is SQLite's own work.
    """
    plain: list[sqlite3.Connection] = []

    def printf(*arguments: Any) -> Any:
        text = arguments[0] if arguments else None
        if isinstance(text, str):
            widths = [w for found in _WIDTHS.findall(text.replace("%%", "")) for w in found if w]
            sizes = [int(w) for w in widths if w != "*"]
            if "*" in widths:
                # Which argument a star takes depends on those before it: any may be meant.
                sizes += [abs(n) for n in arguments[1:] if isinstance(n, int)]
            if sizes and max(sizes) > largest:
                return " " * (largest + 1)  # more than the connection allows
        if not plain:
            plain.append(sqlite3.connect(":memory:", check_same_thread=False))
            plain[0].setlimit(sqlite3.SQLITE_LIMIT_LENGTH, largest + 1)
        marks = ", ".join("?" * len(arguments))
        try:
            return plain[0].execute(f"SELECT printf({marks})", arguments).fetchone()[0]
        except sqlite3.DataError:
            return " " * (largest + 1)

    for name in ("printf", "format"):
        connection.create_function(name, -1, printf, deterministic=True)
