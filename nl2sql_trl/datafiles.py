"""What the readers of questions share: JSON and CSV with errors that say where, whole SQLite files.

Nothing here knows a layout: `data.py` reads Spider's, `questions.py` files of your own. No query
is run here either.
"""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any


class DataError(Exception):
    """The data cannot be used; the message says what is wrong, where, and what to do."""


def read_text(file: Path) -> str:
    """A UTF-8 file with its line ends as they are; a byte order mark is skipped."""
    try:
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file} is not UTF-8 (byte {error.start}): save it as UTF-8 or download it again"
        ) from error


def read_json_rows(file: Path) -> list[Any]:
    """The rows of a JSON file whose top level is a list."""
    text = read_text(file)
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{file}: malformed JSON in row {_broken_row(text)}, line {error.lineno}, column "
            f"{error.colno} ({error.msg}): mend it or download the file again"
        ) from error
    # Deep nesting, and integers of thousands of digits.
    except (RecursionError, ValueError) as error:
        raise DataError(f"{file} cannot be read as JSON ({error}): download it again") from error
    if not isinstance(rows, list):
        raise DataError(
            f"{file}: the top level must be a list of rows, not {kind(rows)}: "
            "see whether it is the right file"
        )
    return rows


def _broken_row(text: str) -> int:
    """The row, from 0, in which a list of rows stops being JSON."""
    decoder, row = json.JSONDecoder(), 0
    position = text.find("[") + 1
    while True:
        try:
            _, end = decoder.raw_decode(text, _skip_space(text, position))
        except json.JSONDecodeError:
            return row
        position = _skip_space(text, end)
        # Without a comma after it, this row is the one that does not end well.
        if text[position : position + 1] != ",":
            return row
        position += 1
        row += 1


def _skip_space(text: str, position: int) -> int:
    while text[position : position + 1].isspace():
        position += 1
    return position


def read_csv(file: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """The header of a CSV file, and its rows, each with the line that it begins on.

    Fields are separated by commas and quoted as in RFC 4180; lines of empty fields are skipped.
    """
    # Spaces after a comma are no part of a field: a quote after them opens one.
    reader = csv.reader(
        io.StringIO(read_text(file), newline=""), strict=True, skipinitialspace=True
    )
    header: list[str] = []
    rows = []
    line = 1
    try:
        for fields in reader:
            begun, line = line, reader.line_num + 1
            if not any(field.strip() for field in fields):
                continue
            if header:
                _check_width(fields, header, f"{file}, line {begun}")
                rows.append((begun, dict(zip(header, fields, strict=True))))
            else:
                header = [field.strip() for field in fields]
                _check_header(header, f"{file}, line {begun}")
    except csv.Error as error:
        raise DataError(
            f"{file}, line {line}: the row that begins here is not CSV ({error}): "
            "see whether every quote is closed, and doubled inside a field"
        ) from error
    return header, rows


def _check_header(header: list[str], place: str) -> None:
    if len(header) == 1 and (mark := next((m for m in ";\t|" if m in header[0]), "")):
        raise DataError(
            f"{place}, column 1: one column, {header[0]!r}: columns must be separated by commas, "
            f"not by {mark!r}: save the file as comma-separated CSV"
        )
    for column, name in enumerate(header, 1):
        if name and name in header[: column - 1]:
            raise DataError(f"{place}, column {column}: a second column {name!r}: rename one")


def _check_width(fields: list[str], header: list[str], place: str) -> None:
    if len(fields) > len(header):
        raise DataError(
            f"{place}, column {len(header) + 1}: {len(fields)} fields, but the header has "
            f"{len(header)}: put a field that holds a comma between double quotes"
        )
    if len(fields) < len(header):
        raise DataError(
            f"{place}, column {len(fields) + 1}: no {header[len(fields)]!r}: {len(fields)} fields, "
            f"but the header has {len(header)}"
        )


def checked_object(record: Any, place: str) -> dict[str, Any]:
    """The row itself, if it is an object. `place` names it in the error."""
    if not isinstance(record, dict):
        raise DataError(f"{place}: a row must be an object, not {kind(record)}: mend this row")
    return record


def checked_text(record: dict[str, Any], name: str, place: str) -> str:
    """A field of a row, if it is text with something in it."""
    value = record[name]
    if not isinstance(value, str):
        raise DataError(f"{place}: {name!r} must be a string, not {kind(value)}")
    if not value.strip():
        raise DataError(f"{place}: {name!r} is empty: fill it in or remove the row")
    # A lone surrogate, which JSON can spell, would stop the tokenizer far from here.
    if name == "question" and any("\ud800" <= character <= "\udfff" for character in value):
        raise DataError(f"{place}: 'question' holds half a surrogate pair: mend its text")
    return value


def kind(value: Any) -> str:
    """What JSON calls a value."""
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return "null" if value is None else kinds.get(type(value), "a number")


def check_database(path: Path) -> None:
    """Raise DataError for a file that is no whole SQLite database, by its header and size."""
    try:
        damage = _damage(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if damage:
        raise DataError(f"{path} {damage}: it is damaged or partly downloaded; fetch it again")


def is_file(path: Path) -> bool:
    """Whether there is such a file. Unlike Path's, it is False for a name that no file can have."""
    return os.path.isfile(path)


def _damage(path: Path) -> str:
    """What a SQLite file's header and size say is wrong with it, or nothing.

    Format: https://www.sqlite.org/fileformat.html#the_database_header. A file that is longer
    than its header says is sound.
    """
    size = path.stat().st_size
    if not size:
        return "is an empty file"
    with path.open("rb") as file:
        header = file.read(100)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        return "is not a SQLite database"
    page = int.from_bytes(header[16:18], "big")
    page = 65_536 if page == 1 else page
    if page < 512 or page & (page - 1):
        return "has a broken SQLite header"
    pages = int.from_bytes(header[28:32], "big")
    # The page count holds only if the file was last written by a SQLite that keeps it.
    counted = pages and header[24:28] == header[92:96]
    if counted and size < page * pages:
        return f"is cut short at {size:,} of {page * pages:,} bytes"
    if not counted and size % page:
        return f"is cut short at {size:,} bytes, inside a page"
    return ""
