# Everything here works on a machine with Python 3.11, make and the package registries.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.installed-run
STAMP := $(VENV)/.installed-dev

.PHONY: demo test check soak bench format clean

demo: $(RUN)  ## size a welded beam with a scripted strategy, no key and no server needed
	@$(BIN)/python -m pursuit.demo.show

test: $(STAMP) check-static  ## everything CI runs
	$(BIN)/python -m pytest -n 2 --dist loadgroup tests

check: $(STAMP) check-static  ## the fast loop: format, lint, types, import rules, unit tests
	$(BIN)/python -m pytest -n 2 -m "not slow" tests/unit tests/property tests/meta

.PHONY: check-static
check-static: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright

soak: $(STAMP)  ## the fault and race runs at full length
	PURSUIT_SOAK=1 $(BIN)/python -m pytest -n 2 -m slow tests

bench: $(STAMP)  ## ratios against floors and peers, in one run
	$(BIN)/python benchmarks/run_all.py

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

$(RUN): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $(RUN)

$(STAMP): $(RUN)
	$(PIP) --editable ".[dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
