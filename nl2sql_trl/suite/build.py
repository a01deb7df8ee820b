"""Builds test suites: random databases that tell golds from near misses of theirs.

After Zhong, Yu and Klein 2020 (Semantic Evaluation for Text-to-SQL with Distilled Test Suites).
Of each few random databases the one is kept that tells most golds from neighbours that nothing
kept before told apart. The same input and seed give the same files, under one version of SQLite.

No database is kept on which the result of a gold depends on the order of rows, by a tie before
LIMIT, say: equal queries would differ there. A gold that leaves a choice on the given database
already (LIMIT without ORDER BY, say) must only return the same with its joins turned round.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from tqdm import tqdm

from nl2sql_trl.data import POCKET, SPLIT_FILES, DataError, load, pocket_dir
from nl2sql_trl.database import unreadable
from nl2sql_trl.models import cache_dir
from nl2sql_trl.suite.golds import Pair, draw, learn, pairs_of, told_apart
from nl2sql_trl.suite.reading import read

MANIFEST = "suite.json"
SIZE = 32
_FORMAT = 1
_DRAWS = 5  # random databases of which the best one is kept


def build_suite(
    databases: Mapping[str, Path],
    golds: Mapping[str, Sequence[str]],
    out: Path,
    seed: int = 0,
    size: int = SIZE,
    progress: bool = True,
) -> dict[str, Any]:
    """Write the suite of every database that has golds to ``out``; returns the manifest.

    At most ``size`` files are made beside each base. ``out`` appears whole or not at all; where
    it is already a finished suite of the same input, nothing is done. Raises DataError for any
    other ``out``, a missing database or a strange db_id, DatabaseError for a broken database.
    """
    settings = _settings(databases, golds, seed, size)
    if out.exists():
        return _finished(out, settings)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as work:
            made = Path(work) / out.name
            manifest = {
                "settings": settings,
                **_build(databases, golds, made, seed, size, progress),
            }
            text = json.dumps(manifest, indent=1) + "\n"
            (made / MANIFEST).write_text(text, encoding="utf-8")
            try:
                made.rename(out)
            except OSError:
                if not out.is_dir():
                    raise
                return _finished(out, settings)  # another process was faster
    except OSError as error:
        raise DataError(
            f"{out} cannot be written ({error.strerror}): name another folder"
        ) from error
    return manifest


def pocket_suite(db_id: str, progress: bool = False) -> Path:
    """The suite of one database of the embedded collection, built in the cache on the first call.

    The folder's name holds a hash of the collection, the code here and SQLite's version. Raises
    DataError when there is no such database or the cache cannot be written.
    """
    from filelock import FileLock

    examples = [e for split in SPLIT_FILES for e in load(POCKET, split) if e.db_id == db_id]
    if not examples:
        raise DataError(f"{POCKET} has no database {db_id!r}")
    code = resources.files("nl2sql_trl") / "suite"
    sources = sorted((f for f in code.iterdir() if f.name.endswith(".py")), key=lambda f: f.name)
    digest = hashlib.sha256(f"{pocket_dir().name} {sqlite3.sqlite_version}".encode())
    for source in sources:
        digest.update(source.read_bytes())
    target = cache_dir() / f"{POCKET}-suite-{digest.hexdigest()[:16]}" / db_id
    if target.is_dir():
        return target
    golds = [example.gold for example in examples]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            build_suite({db_id: examples[0].db_path}, {db_id: golds}, target, progress=progress)
    except OSError as error:
        raise DataError(
            f"the test suite of {db_id} cannot be written to {target.parent} ({error.strerror}): "
            "set NL2SQL_TRL_CACHE to a folder that can"
        ) from error
    return target


def _settings(
    databases: Mapping[str, Path], golds: Mapping[str, Sequence[str]], seed: int, size: int
) -> dict[str, Any]:
    digests = {}
    for db_id in sorted(golds):
        if not db_id or Path(db_id).name != db_id or db_id == "..":
            raise DataError(f"db_id {db_id!r} leads out of the folder: give a plain name")
        path = databases.get(db_id)
        if path is None or not path.is_file():
            raise DataError(f"there is no database {path or db_id}: check db_id and the folder")
        queries = json.dumps(list(golds[db_id])).encode()
        digests[db_id] = hashlib.sha256(path.read_bytes() + queries).hexdigest()
    return {"format": _FORMAT, "seed": seed, "size": size, "inputs": digests}


def _finished(out: Path, settings: dict[str, Any]) -> dict[str, Any]:
    try:
        manifest = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise DataError(f"{out} is there and is no finished suite: name another folder") from None
    if not isinstance(manifest, dict) or manifest.get("settings") != settings:
        raise DataError(f"{out} is a suite of other input or settings: name another folder")
    return manifest


def _build(
    databases: Mapping[str, Path],
    golds: Mapping[str, Sequence[str]],
    made: Path,
    seed: int,
    size: int,
    progress: bool,
) -> dict[str, Any]:
    report = {}
    shown = None if progress else True  # None: only on a terminal, not in a notebook
    with tqdm(sorted(golds), desc="test suites", unit="database", disable=shown) as bar:
        for db_id in bar:
            bar.set_postfix_str(db_id)
            folder = made / db_id
            folder.mkdir(parents=True)
            # By name: the order of databases, or which others there are, does not matter.
            rng = random.Random(f"{seed} {db_id}")
            report[db_id] = _build_one(databases[db_id], golds[db_id], folder, rng, size)
    return {"sqlite": sqlite3.sqlite_version, "databases": report}


def _build_one(
    path: Path, golds: Sequence[str], folder: Path, rng: random.Random, size: int
) -> dict[str, Any]:
    shutil.copyfile(path, folder / f"{folder.name}.sqlite")
    try:
        known = learn(path, golds)
    except sqlite3.Error as error:
        raise unreadable(path, error) from error
    pairs = list(pairs_of(known, rng))
    by_base = told_apart(known, pairs, known.base)
    missed, only_base = _without(pairs, by_base), by_base
    files: list[str] = []
    totals = Counter(pair.gold for pair in pairs)
    patience = tries = 4 + len(known.golds) // 8
    while missed and tries and len(files) < size:
        tries -= 1
        left = Counter(pair.gold for pair in missed)
        # Most golds keep some neighbours that mean the same; one that keeps most of all needs it.
        needs = {gold: (count / totals[gold]) ** 2 for gold, count in left.items()}
        drawn = [draw(known, needs, rng) for _ in range(_DRAWS)]
        found = [told_apart(known, missed, grown.keyed) for grown in drawn]
        best = max(range(_DRAWS), key=lambda index: len(found[index]))
        if found[best]:
            files.append(f"{folder.name}_suite_{len(files):03}.sqlite")
            drawn[best].write(folder / files[-1])
            tries = patience
            missed = _without(missed, found[best])
            only_base = _without(only_base, told_apart(known, only_base, drawn[best].keyed))
        for grown in drawn:
            grown.close()
    known.base.raw.close()
    return {
        "golds": len(known.golds),
        "golds_left_out": sorted(
            {read(gold, {}).text for gold in golds} - {gold.reading.text for gold in known.golds}
        ),
        "neighbours": len(pairs),
        "told_apart": len(pairs) - len(missed),
        "only_by_the_base": len(only_base),
        "never": len(missed),
        "files": files,
    }


def _without(pairs: Sequence[Pair], gone: Iterable[Pair]) -> list[Pair]:
    away = set(gone)
    return [pair for pair in pairs if pair not in away]
