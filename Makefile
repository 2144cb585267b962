# The two commands of a newcomer are `make run` and `make test`; the rest is for people who work on it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# Processes that `make test` shares the tests out to, on two cores: they wait for servers some of the time.
WORKERS := 5
# The tests start Python hundreds of times, and each process collects all of them: compiled files are worth keeping.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test compiled quick lint format docs manifests dist bench scale bank chaos crash-matrix model mutants soak fuzz setup setup-dev servers lock clean

run: setup  ## the main job on an embedded cluster
	$(BIN)/balancer demo $(ARGS)

# numpy's library for matrices starts threads wherever it is imported: a tenth of what a short command costs.
test quick: export OPENBLAS_NUM_THREADS := 1

test: setup-dev servers  ## on real servers; long tests take turns, SAMPLE_SEED=all runs every one; WORKERS=6: in more processes
	$(MAKE) --no-print-directory -j 2 lint compiled
	$(PYTEST) -m "not bench" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# pytest compiles the tests when it first collects them: once, beside the linters, and not in each of its processes. What
# is wrong with a test is said by the run itself.
compiled: setup-dev
	-$(PYTEST) -m "not bench" --collect-only -qq > /dev/null

quick: setup-dev  ## pure tests and those on embedded servers that take moments
	$(PYTEST) -m "quick and not bench" -n 3 --dist loadfile $(ARGS)

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup-dev $(VENV)/.site  ## the reference pages from the code, then the site, in build/site: without any other network
	$(BIN)/python -m tests.support.reference_pages
	NO_MKDOCS_2_WARNING=1 $(VENV)/site/bin/mkdocs build --strict --quiet

manifests: setup-dev  ## the generated manifests in deploy/kubernetes; all of them compared with what kubectl kustomize makes
	$(BIN)/python -m tests.support.kustomize

dist: setup-dev $(VENV)/.release  ## wheels and source archives of both distributions in build/dist, checked and installed as a user does
	$(BIN)/python -m tests.support.release_main build/dist $(VENV)/release/bin/python

bench: setup-dev servers  ## measurements, each beside something real in the same run
	$(PYTEST) -m bench -s $(ARGS) tests/benchmarks

# What takes minutes: followers by the thousand, a million tablets on a host with a warm cache, a year of commits, a
# thousand nodes and 200 bundles.
# BENCH_COMMITS=1000000 is that year (ten minutes alone on the machine); without it, a week.
NODES := 10,100,1000
SCALE := test_followers test_http_followers test_warm_start test_history test_thousand_nodes
scale: setup-dev servers  ## measurements of large installations: the tables of docs/scale.md
	BENCH_COMMITS=$(or $(BENCH_COMMITS),20000) BENCH_NODES=$(or $(BENCH_NODES),$(NODES)) BENCH_BUNDLES=$(or $(BENCH_BUNDLES),200) \
		$(PYTEST) -m bench -s $(ARGS) $(SCALE:%=tests/benchmarks/%.py)

soak: setup-dev servers  ## an instance under load for ten minutes, its figures as a table; SECONDS=60 is shorter
	$(BIN)/python -m tests.support.soak $(or $(SECONDS),600)

fuzz: setup-dev servers  ## generated input for everything that takes input, SECONDS=60 each; SEED=7 repeats, WORDS=imports runs a part
	$(BIN)/python -m tests.support.fuzz_main --seconds $(or $(SECONDS),60) $(if $(SEED),--seed $(SEED)) $(WORDS)

chaos: setup-dev servers  ## what an application and an operator do, in any order, SECONDS=60; CHAOS_SEED=7 begins with that seed
	$(BIN)/python -m tests.support.chaos $(or $(SECONDS),60)

bank: setup-dev servers  ## transfers between nodes while everything moves and dies, SECONDS=120; BANK_SEED=7 repeats; TABLETS=64 MOVES=2 SECONDS=3600 ends when each has moved twice
	$(BIN)/python -m tests.support.bank $(or $(SECONDS),120) $(or $(TABLETS),16) $(or $(MOVES),0)

crash-matrix: setup-dev servers  ## every state × everybody killed, JOBS=3 cells at a time; WORDS='split daemon' runs a part
	$(BIN)/python -m tests.support.crash_matrix_main -j $(or $(JOBS),3) $(WORDS)

model: setup-dev  ## the protocol of a move, searched through every order of events: minutes; WORDS='lags -v' runs a part
	$(BIN)/python -m tests.model $(WORDS)

mutants: setup-dev servers  ## the argument with a step left out: which end-to-end test notices; WORDS=no-drain runs a part
	$(BIN)/python -m tests.support.mutants_main -j $(or $(JOBS),2) $(WORDS)

setup: $(VENV)/.run

setup-dev: $(VENV)/.dev

# Debian's venv module may be missing, and then pip is too: deploy/servers.sh python-venv says so and installs it.
$(VENV)/bin/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -c 'import ensurepip' 2>/dev/null || sh deploy/servers.sh python-venv $(PYTHON)
	$(PYTHON) -m venv --clear $(VENV)

$(VENV)/.run: $(VENV)/bin/pip requirements.txt pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.run $(VENV)/.generator requirements-dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	touch $@

# A program that a test runs, in a place of its own: it wants an older typer than ours.
$(VENV)/.generator: $(VENV)/bin/pip requirements-generator.txt
	$(PYTHON) -m venv $(VENV)/generator
	$(VENV)/generator/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-generator.txt
	touch $@

# mkdocs-material: the site's search, code and tables work without another network; the tests do not need it.
$(VENV)/.site: $(VENV)/bin/pip requirements-docs.txt
	$(PYTHON) -m venv $(VENV)/site
	$(VENV)/site/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.txt
	touch $@

# What builds and checks a release; its dependencies are many and none of the product's.
$(VENV)/.release: $(VENV)/bin/pip requirements-release.txt
	$(PYTHON) -m venv $(VENV)/release
	$(VENV)/release/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-release.txt
	touch $@

servers:  ## ZooKeeper and PostgreSQL 15 from the distribution, where they are missing
	sh deploy/servers.sh servers

lock: setup-dev  ## renew the pinned lists from the ranges in pyproject.toml, and the NOTICE of what an image contains (needs uv)
	uv pip compile -q --no-emit-package tablet-balancer-client --upgrade --universal --generate-hashes --python-version 3.11 --no-header --no-annotate --extra embedded -o requirements.txt pyproject.toml
	uv pip compile -q --no-emit-package tablet-balancer-client --upgrade --universal --generate-hashes --python-version 3.11 --no-header --no-annotate --extra embedded --extra dev -c requirements.txt -o requirements-dev.txt pyproject.toml
	uv pip compile -q --no-emit-package tablet-balancer-client --universal --generate-hashes --python-version 3.11 --no-header --no-annotate -c requirements.txt -o requirements-runtime.txt pyproject.toml
	echo openapi-python-client | uv pip compile -q --upgrade --universal --generate-hashes --python-version 3.11 --no-header --no-annotate -o requirements-generator.txt -
	echo mkdocs-material | uv pip compile -q --upgrade --universal --generate-hashes --python-version 3.11 --no-header --no-annotate -o requirements-docs.txt -
	printf 'build\ntwine\nsetuptools>=77\n' | uv pip compile -q --upgrade --universal --generate-hashes --python-version 3.11 --no-header --no-annotate -o requirements-release.txt -
	$(MAKE) setup-dev
	$(BIN)/python -m tests.support.pins notice > NOTICE

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis build *.egg-info
