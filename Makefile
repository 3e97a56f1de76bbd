# Every target does its own set-up: an empty clone and Python 3.11 or newer are enough.
#   make PYTHON=/path/to/python3.12 test      another Python
#   make test TESTS=tests/wire ARGS="-k frames"
#   make bench BENCH=bench/client             our client beside others, on stock Pulsar
#   make demo FLIGHTS=small                   2,000 flights; also jan (default)
#   make demo PULSAR_URL=pulsar://host:6650   on a cluster of your own

VENV    ?= .venv
EXTRAS  := dev,demo,docs
BIN     := $(VENV)/bin
PY      := $(BIN)/python
READY   := $(VENV)/.ready
FLIGHTS ?= jan
TESTS   ?= tests
WORKERS ?= 3
ARGS    ?=
BENCH   ?= bench

PYTHON  ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
             "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)

# Tests start hundreds of Pythons: none of them compiles again what another one has, whatever the caller's environment says.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX ?= $(CURDIR)/.cache/pycache

.DEFAULT_GOAL := help
.PHONY: help setup quick demo test mutants conformance coverage lint soak bench docs image clean constraints

help: ## what there is to make
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## the virtual environment with everything in it

# Machines, wire and the client without servers. Its environment has neither Spark nor the broker's libraries, and no pip of its own.
QUICK       := .cache/quick
QUICK_READY := $(QUICK)/.ready
QUICK_BIN    = $(if $(wildcard $(READY)),$(BIN),$(QUICK)/bin)
QUICK_ROOMS := wire ledger tc rm_producer rm_pending_ack client compat
quick: $(if $(wildcard $(READY)),,$(QUICK_READY)) ## a minute: style, types and tests of machines, wire and client; no Spark, no Java, 100 MB
	$(QUICK_BIN)/ruff check .
	$(QUICK_BIN)/ruff format --check .
	$(QUICK_BIN)/mypy --cache-dir .mypy_cache/quick $(QUICK_ROOMS) --exclude 'client/commands\.py$$'
	PYTHONDONTWRITEBYTECODE=1 $(QUICK_BIN)/python -m pytest -q -n 2 --dist worksteal -m "quick and not stock and not slow" -k "not ours" --hypothesis-profile=quick tests $(ARGS)

demo: $(READY) ## flights through Pulsar and Spark, killed at the worst moments; totals to the cent
	$(PY) examples/flights --flights $(FLIGHTS) $(ARGS)

# The machines' own tests take every branch of them. They run apart: a tracer makes all others twice as slow.
MACHINES := tests/tc tests/rm_producer tests/rm_pending_ack
COVER := --cov=tc/pulsar_txn --cov=rm_producer/pulsar_txn --cov=rm_pending_ack/pulsar_txn --cov-branch --cov-fail-under=100 \
  --cov-report=term-missing:skip-covered
export COVERAGE_FILE = $(abspath $(VENV))/.coverage
PARTLY = $(filter -k -m --collect-only --co --lf --ff -x,$(ARGS))
BY_FILE := --dist loadfile --no-loadscope-reorder

# The mutants test the tests and not the product: they have a run of their own.
ELSEWHERE = $(if $(filter tests tests/,$(TESTS)),--ignore=tests/mutants)
test: $(READY) ## all tests, also on stock Apache Pulsar where Java and Maven are
	@$(PY) tests/support/stock_install.py
	@$(PY) tests/support/postgres.py
	@$(PY) tests/support/class_archives.py
ifneq ($(and $(ELSEWHERE),$(if $(PARTLY),,all)),)
	$(PY) -m pytest $(MACHINES) $(COVER) -n 2 $(BY_FILE) $(ARGS); machines=$$?; $(PY) tests/support/warm_cache.py; \
	  $(PY) -m pytest $(TESTS) $(ELSEWHERE) $(addprefix --ignore=,$(MACHINES)) -n $(WORKERS) $(BY_FILE) $(ARGS) && exit $$machines
else
	$(PY) -m pytest $(TESTS) $(ELSEWHERE) -n $(WORKERS) $(BY_FILE) $(ARGS)
endif

mutants: $(READY) ## the code is broken on purpose, place after place: a test must notice each
	$(PY) -m pytest tests/mutants -n $(WORKERS) --dist load $(ARGS)

# One server: no page is made, only the stories run.
SERVER  ?=
SHOWN   := $(CURDIR)/.cache/conformance.jsonl
conformance: $(READY) ## what Pulsar's own tests ask, on our broker and on stock; or SERVER=ours, stock-4.0.8, stock-4.2.4
ifeq ($(SERVER),)
	@$(PY) tests/support/stock_install.py
	@mkdir -p $(dir $(SHOWN)) && rm -f $(SHOWN)
	PULSAR_TXN_CONFORMANCE=$(SHOWN) $(PY) -m pytest tests/conformance -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS); \
	  shown=$$?; PYTHONPATH=tests/support $(PY) tests/conformance/differences_page.py $(SHOWN) && exit $$shown
else ifeq ($(SERVER),ours)
	$(PY) -m pytest tests/conformance -n $(WORKERS) --dist loadfile -m "not stock" $(ARGS)
else
	@$(PY) tests/support/stock_install.py
	PULSAR_TXN_STOCK=$(SERVER:stock-%=%) $(PY) -m pytest tests/conformance -n $(WORKERS) --dist loadfile -m stock $(ARGS)
endif

coverage: $(READY) ## the machines' own tests take every branch of them
	$(PY) -m pytest $(MACHINES) $(COVER) -n 2 $(BY_FILE) -q $(ARGS)

lint: $(READY) ## style, types, who imports whom, who writes what, links of the docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PY) tests/house/contracts.py
	$(PY) tests/house/structure.py
	$(PY) tests/house/walks.py
	$(PY) docs/state_diagrams.py --check
	$(PY) docs/walks.py --check
	$(PY) tests/mutants/mutants.py
	$(PY) -m pytest -q tests/house/test_runtime_rule.py tests/house/test_docs_links.py

# The black-box chain of tests/chain, seed after seed; a seed that fails is printed with the command to run it again.
MINUTES ?= 30
soak: $(READY) ## the largest sizes, crashes under Spark's sinks and of stock brokers, then the black-box chain for MINUTES=30; ARGS: see tests/chain/run_chain.py
	PULSAR_TXN_SOAK=1 $(PY) -m pytest tests --ignore=tests/mutants -m soak
	$(PY) tests/chain/run_chain.py --minutes $(MINUTES) --seconds 60 $(ARGS)
	$(PY) tests/chain/run_chain.py --minutes $(MINUTES) --seconds 60 --clients ours java go $(ARGS)

bench: $(READY) ## our broker beside stock Pulsar, in turns
	$(PY) $(BENCH) $(ARGS)

docs: $(READY) ## the documentation as a site, in site/; open site/index.html
	$(PY) docs/state_diagrams.py
	$(PY) docs/walks.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

image: $(READY) ## the container image `pulsar-txn`, from the wheel; needs Docker
	rm -rf dist
	$(PY) -m build --wheel --no-isolation --outdir dist .
	docker build -t pulsar-txn -f docker/Dockerfile .

clean: ## remove what was made; fetched servers stay in .cache
	rm -rf $(VENV) $(QUICK) .cache/pycache build dist site demo-report .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

constraints: ## constraints.txt anew, from the newest versions that the extras allow
	rm -rf $(VENV)
	$(MAKE) $(PY)
	$(PY) -m pip install --disable-pip-version-check -e '.[$(EXTRAS)]'
	{ sed -n '/^#/p' constraints.txt; $(PY) -m pip freeze --exclude-editable; } > constraints.new
	mv constraints.new constraints.txt

$(QUICK_READY): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then echo "pulsar-txn needs Python 3.11 or newer: make PYTHON=/path/to/python3.12 quick"; exit 1; fi
	"$(PYTHON)" -m venv --without-pip $(QUICK)
	"$(PYTHON)" -m pip --python $(QUICK)/bin/python install --disable-pip-version-check -q --no-compile -c constraints.txt -e '.[quick]'
	@touch $@

$(PY):
	@if [ -z "$(PYTHON)" ]; then \
	  echo "pulsar-txn needs Python 3.11 or newer, and none is on the PATH (python3: $$(python3 --version 2>&1))."; \
	  echo "Install one, or name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)"; exit 1; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "pulsar-txn needs Python 3.11 or newer; asked for '$(PYTHON)' ($$("$(PYTHON)" --version 2>&1 || true))."; exit 1; }
	@echo "making a virtual environment with $$("$(PYTHON)" --version) in $(VENV) ..."
	@"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "$(PYTHON) cannot make virtual environments: install its venv module (on Debian: apt-get install python3-venv)."; exit 1; }

$(READY): pyproject.toml constraints.txt | $(PY)
	@echo "installing pulsar-txn and what its extras need (once; about 1 GB with Spark) ..."
	$(PY) -m pip install --disable-pip-version-check --progress-bar on -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@
