"""Fixtures for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fakes import ROOT, chat_tokenizer, random_model, write_spider_folder


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real Spider: NL2SQL_SHARED, or ../shared; the test is skipped without it."""
    folder = Path(os.environ.get("NL2SQL_SHARED", ROOT.parent / "shared"))
    if not (folder / "spider").is_dir():
        pytest.skip(f"no Spider in {folder}: set NL2SQL_SHARED to the folder that holds spider/")
    return folder


# A tokenizer and models of the real kinds, small enough to make for a test


@pytest.fixture
def spider_folder(tmp_path: Path) -> Path:
    """A fresh folder of `write_spider_folder`, to be spoiled at will."""
    return write_spider_folder(tmp_path / "spider")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved random model with its tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    random_model().save_pretrained(folder)
    chat_tokenizer().save_pretrained(folder)
    return folder
