# Everything here works on a machine with Python 3.11 or later, make and the package registries.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.installed-run
STAMP := $(VENV)/.installed-dev
TRACKERS := $(VENV)/.installed-trackers
SUITE := $(VENV)/conformance/.installed
REAL := $(VENV)/real-servers/.installed
TYPESCRIPT := $(VENV)/typescript-clients/.installed
BROWSER := $(VENV)/browser/.installed
AGENTS := $(VENV)/real-agents/.installed
MCP1 := .venv-mcp1/.installed
FASTMCP := .venv-fastmcp/.installed

# With it, each of the many processes of a run would compile the same modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-cluster test check conformance soak bench format clean

demo: $(RUN)  ## size a welded beam with a scripted strategy, no key and no server needed
	@$(BIN)/pursuit demo

demo-cluster: $(STAMP)  ## missions on three workers and a PostgreSQL from a wheel; one worker is killed before your eyes
	@$(BIN)/python demo/cluster.py

test: $(STAMP) $(SUITE) $(REAL) $(TYPESCRIPT) $(BROWSER) $(MCP1) $(FASTMCP)  ## everything CI runs
	@$(MAKE) --no-print-directory -j 2 check-static check-tests

# Four workers for two cores, since many tests wait for processes. A worker takes a file at a time, since the tests of a
# file share servers, in the files' order: the long ones are first. A worker that dies ends the run: a restarted one takes its
# file again and again, without end.
.PHONY: check-tests
check-tests: $(STAMP)
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder --max-worker-restart=0 -m "not soak" tests

check: $(STAMP)  ## the fast loop: format, lint, types, import rules, unit tests
	@$(MAKE) --no-print-directory -j 2 check-static check-unit

.PHONY: check-unit
check-unit: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "not slow and not soak" tests/unit tests/meta

.PHONY: check-static
check-static: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/zizmor --offline --no-progress --quiet .
	$(BIN)/pyright

conformance: $(STAMP) $(SUITE)  ## the official suite against `pursuit serve`
	$(BIN)/python -m pytest tests/conformance

soak: $(STAMP) $(TRACKERS) $(SUITE) $(REAL) $(TYPESCRIPT) $(BROWSER) $(AGENTS) $(MCP1) $(FASTMCP)  ## the fault and race runs at full length, and all combinations
	PURSUIT_SOAK=1 $(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder --max-worker-restart=0 -m "slow or soak" tests

bench: $(STAMP)  ## ratios against floors and peers, in one run
	$(BIN)/python benchmarks/run_all.py

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

define new_venv
@test -x $(1)/bin/python || $(PYTHON) -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo "make: '$(PYTHON)' is not Python 3.11 or later with the modules venv and ensurepip." \
	"On Debian and Ubuntu the package python3-venv has them. To use another Python: make PYTHON=/path/to/python" >&2; \
	exit 1; }
test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
endef

$(RUN): pyproject.toml constraints.txt
	$(call new_venv,$(VENV))
	$(PIP) --editable .
	touch $(RUN)

$(STAMP): $(RUN)
	$(PIP) --editable ".[dev]"
	touch $(STAMP)

$(TRACKERS): $(STAMP)
	$(PIP) --editable ".[tables,mlflow,tensorboard]"
	touch $(TRACKERS)

NPM = $(BIN)/npm install --ignore-scripts --no-package-lock --no-audit --no-fund --loglevel=error

# Node comes from a wheel; the suite's version stands in its package.json, its scenarios beside it.
$(SUITE): tests/conformance/package.json | $(STAMP)
	mkdir -p $(@D)
	cp $< $(@D)
	$(NPM) --prefix $(@D) >/dev/null
	touch $(SUITE)

# Public servers that the tests run as they are, about 50 MB: MCP servers, those in Python on our own SDK's line, and an
# authorization server.
$(REAL): tests/real_servers/package.json constraints.txt | $(STAMP)
	mkdir -p $(@D)
	cp $< $(@D)
	$(NPM) --prefix $(@D) >/dev/null
	$(PIP) mcp-server-git
	touch $(REAL)

# The TypeScript SDK of both generations and the Inspector, about 130 MB.
$(TYPESCRIPT): tests/clients/typescript/package.json | $(STAMP)
	mkdir -p $(@D)
	cp $< $(@D)
	$(NPM) --prefix $(@D) >/dev/null
	touch $(TYPESCRIPT)

# What drives the page in the tests, about 100 MB and 210 MB unpacked: Chromium with the libraries and fonts that a small
# machine lacks (Debian's `chromium` is used where it is installed), axe-core, and a host of MCP Apps. The package
# unpacks its libraries only where it believes that it runs in a Lambda.
$(BROWSER): tests/page/package.json | $(STAMP)
	mkdir -p $(@D)/unpacked
	cp $< $(@D)
	$(NPM) --prefix $(@D) >/dev/null
	cd $(@D) && TMPDIR=$(CURDIR)/$(@D)/unpacked AWS_LAMBDA_JS_RUNTIME=nodejs22.x $(CURDIR)/$(BIN)/node --input-type=module \
		--eval "import chromium from '@sparticuz/chromium'; await chromium.executablePath()"
	touch $(BROWSER)

# A coding agent as it is, about 150 MB; where it cannot be installed, its test is skipped.
$(AGENTS): tests/real_agents/package.json | $(STAMP)
	mkdir -p $(@D)
	cp $< $(@D)
	-$(NPM) --prefix $(@D) >/dev/null && touch $(AGENTS)

# A client and a server of the SDK's 1.x line, which cannot live beside ours in one environment.
$(MCP1): constraints-mcp1.txt
	$(call new_venv,$(@D))
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $< "mcp==1.30.*" mcp-server-sqlite
	touch $(MCP1)

# A client of the second generation of MCP tasks, in an environment of its own: it brings a server stack that we do not use.
$(FASTMCP): constraints-fastmcp.txt
	$(call new_venv,$(@D))
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $< "fastmcp==4.1.*" fastmcp-tasks
	touch $(FASTMCP)

clean:
	rm -rf $(VENV) $(dir $(MCP1)) $(dir $(FASTMCP)) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
