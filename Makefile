# `make demo` and `make test` set up everything they need in $(VENV) from pinned versions.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.fusegen-ready
SPEC := specs/conv_transpose_mean_logsumexp.py
DEMO := build/demo/conv_transpose_mean_logsumexp.py
JOBS ?= auto

.PHONY: demo test lint types unit golden clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/fusegen doctor || true
	$(BIN)/fusegen compile $(SPEC) -o $(DEMO)
	$(BIN)/fusegen check $(SPEC) --generated $(DEMO)
	@if $(BIN)/python -W ignore -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; \
	then $(BIN)/fusegen bench $(SPEC); \
	else echo 'No GPU here: $(DEMO) is compiled and its rewrite proven, not run.'; fi

test: lint types unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# Includes the golden comparison of generated/ and, where nvcc is on the PATH, its compilation.
unit: $(READY)
	$(BIN)/pytest -n $(JOBS)

# Rewrites generated/ where specs compile to something else, and fails: review, then run `make test`.
golden: $(READY)
	$(BIN)/pytest -n $(JOBS) tests/test_golden.py::test_golden --update-golden

clean:
	rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
