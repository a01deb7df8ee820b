"""Fixtures of the tests that run a real vLLM: `make test-vllm`. Without vLLM none is collected."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    sys.path.insert(0, str(HERE))
    import cpu_vllm

    cpu_vllm.prepare()


@pytest.fixture(scope="session")
def vllm_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cpu_vllm.save_model(tmp_path_factory.mktemp("vllm") / "model")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from fakes import write_spider_folder

    return write_spider_folder(tmp_path_factory.mktemp("data") / "spider")
