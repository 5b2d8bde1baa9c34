# Two commands do all the set-up: `make demo` and `make test`. `make help` lists the rest.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(BIN)/uv
STAMP  := $(VENV)/.installed
ARGS   ?=
# Most tests wait for processes, so there are more workers than cores. 0: one process runs them all, in order.
WORKERS ?= 3
# The ledger's tests of long histories and of Airflow's own tables take as long as all others of the quick ones.
SLOW   := $(patsubst %,tests/ledger/test_%.py,invariants migrations mirror races reconcile)
QUICK  := $(addprefix tests/,client dagkit policy scheduling test_parallel.py test_repository.py) \
	$(filter-out $(SLOW),$(wildcard tests/ledger/test_*.py)) $(wildcard tests/proof/test_scenario_*.py)
# Byte code is kept: it halves the time in which Airflow and torch start.
unexport PYTHONDONTWRITEBYTECODE
export UV_LINK_MODE ?= hardlink

.DEFAULT_GOAL := help
.PHONY: help env demo test quick cluster lint types bench lock clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

env: $(STAMP)  ## create the environment (.venv) from the lock

$(VENV)/bin/uv: requirements/uv.txt
	@command -v $(PYTHON) >/dev/null || { echo "EMEP needs Python 3.11: $(PYTHON) was not found; name one with PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@touch $@

$(STAMP): requirements.lock pyproject.toml $(VENV)/bin/uv
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP)  ## the main job on an embedded default; ARGS=--exit stops when done
	$(BIN)/emep demo $(ARGS)

test: $(STAMP)  ## every test; ARGS="tests/ledger -q" a part of them, WORKERS=0 in one process
	$(BIN)/python -m pytest -n $(WORKERS) --durations=10 $(ARGS)

quick: $(STAMP)  ## for the inner loop, about a minute: scheduling, policy, most of the ledger on SQLite
	EMEP_TEST_POSTGRES_URL= $(BIN)/python -m pytest -n 2 -q $(QUICK) $(ARGS)

cluster: $(STAMP)  ## a real Kubernetes on this machine (root); ARGS=down, status, prepare or "kubectl ..."
	$(BIN)/python -m tests.cluster $(or $(ARGS),up)

lint: $(STAMP)  ## ruff, the layers' import rules, dead code, how easy the source is to enter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/vulture
	$(BIN)/python -m tests.house

types: $(STAMP)  ## mypy, strict on the core
	$(BIN)/mypy

bench: $(STAMP)  ## benchmarks of the scheduling core, the simulator, the control plane and merging (minutes; on a quiet machine)
	$(BIN)/python -m tests.benchmarks.scheduling.measure
	$(BIN)/python -m tests.benchmarks.simulation.measure
	$(BIN)/python -m tests.benchmarks.ledger.measure
	$(BIN)/python tests/benchmarks/merge/bench_merge.py $(or $(ARGS),.emep/bench)

lock: $(VENV)/bin/uv  ## write requirements.lock anew from pyproject.toml
	$(UV) pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet -o requirements.lock
	printf 'uv==%s\n' "$$($(UV) --version | cut -d' ' -f2)" | $(UV) pip compile - --universal --generate-hashes --no-header --no-annotate --no-emit-index-url --quiet -o requirements/uv.txt

clean:  ## remove the environment and the demo's folder
	rm -rf $(VENV) .emep
