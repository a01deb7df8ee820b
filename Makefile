# make setup | demo | test | test-slow | lint | clean
PYTHON ?= python3
BIN := .venv/bin
# More threads than free cores slow torch down by far more than their number.
export OMP_NUM_THREADS ?= $(shell nproc)
export TOKENIZERS_PARALLELISM = false

.PHONY: setup demo test test-slow lint clean

setup: .venv/.done

.venv/.done: requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -r requirements.txt
	$(BIN)/pip install --quiet -e '.[dev]'
	touch $@

demo: setup
	$(BIN)/python -m nl2sql_trl.demo

test: setup
	$(BIN)/python -m pytest -q -m "not slow"

test-slow: setup
	$(BIN)/python -m pytest -q -m slow

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv runs .pytest_cache .mypy_cache .ruff_cache
