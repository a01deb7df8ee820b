"""Fixtures for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    config.addinivalue_line("markers", "slow: takes more than five seconds")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real Spider: NL2SQL_SHARED, or ../shared; the test is skipped without it."""
    folder = Path(os.environ.get("NL2SQL_SHARED", ROOT.parent / "shared"))
    if not (folder / "spider").is_dir():
        pytest.skip(f"no Spider in {folder}: set NL2SQL_SHARED to the folder that holds spider/")
    return folder
