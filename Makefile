# The two commands of a newcomer are `make run` and `make test`; the rest is for people who work on it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest

.PHONY: run test quick lint format bench bank crash-matrix mutants soak fuzz setup setup-dev servers lock clean

run: setup  ## the main job on an embedded cluster
	$(BIN)/balancer demo $(ARGS)

test: setup-dev servers lint  ## everything, on real servers
	$(PYTEST) -m "not bench" -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

quick: setup-dev  ## pure tests and those on embedded servers that take moments
	$(PYTEST) -m "quick and not bench" -n 2 --dist loadfile $(ARGS)

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup-dev servers  ## measurements, each beside something real in the same run
	$(PYTEST) -m bench -s $(ARGS) tests/benchmarks

soak: setup-dev servers  ## an instance under load for ten minutes, its figures as a table; SECONDS=60 is shorter
	$(BIN)/python -m tests.support.soak $(or $(SECONDS),600)

fuzz: setup-dev servers  ## generated input for everything that takes input, SECONDS=60 each; SEED=7 repeats, WORDS=imports runs a part
	$(BIN)/python -m tests.support.fuzz_main --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(WORDS)

bank: setup-dev servers  ## transfers between nodes while everything moves and dies, SECONDS=120; BANK_SEED=7 repeats; TABLETS=64 MOVES=2 SECONDS=3600 ends when each has moved twice
	$(BIN)/python -m tests.support.bank $(or $(SECONDS),120) $(or $(TABLETS),16) $(or $(MOVES),0)

crash-matrix: setup-dev servers  ## every state × everybody killed, JOBS=3 cells at a time; WORDS='split daemon' runs a part
	$(BIN)/python -m tests.support.crash_matrix_main -j $(or $(JOBS),3) $(WORDS)

mutants: setup-dev servers  ## the argument with a step left out: which end-to-end test notices; WORDS=no-drain runs a part
	$(BIN)/python -m tests.support.mutants_main -j $(or $(JOBS),2) $(WORDS)

setup: $(VENV)/.run

setup-dev: $(VENV)/.dev

# Debian's venv module may be missing, and then pip is too: deploy/servers.sh python-venv says so and installs it.
$(VENV)/bin/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV) || { sh deploy/servers.sh python-venv $(PYTHON) && $(PYTHON) -m venv --clear $(VENV); }

$(VENV)/.run: $(VENV)/bin/pip requirements.txt pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.run requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	touch $@

servers:  ## ZooKeeper and PostgreSQL 15 from the distribution, where they are missing
	sh deploy/servers.sh servers

lock: setup-dev  ## renew the pinned lists from the ranges in pyproject.toml, and the NOTICE of what an image contains (needs uv)
	uv pip compile -q --no-emit-package tablet-balancer-client --upgrade --universal --generate-hashes --python-version 3.11 --no-header --no-annotate --extra embedded -o requirements.txt pyproject.toml
	uv pip compile -q --no-emit-package tablet-balancer-client --upgrade --universal --generate-hashes --python-version 3.11 --no-header --no-annotate --extra embedded --extra dev -c requirements.txt -o requirements-dev.txt pyproject.toml
	uv pip compile -q --no-emit-package tablet-balancer-client --universal --generate-hashes --python-version 3.11 --no-header --no-annotate -c requirements.txt -o requirements-runtime.txt pyproject.toml
	$(MAKE) setup-dev
	$(BIN)/python -m tests.support.pins notice > NOTICE

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis build *.egg-info
