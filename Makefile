# `make demo` and `make test` create .venv themselves; they need python3, pip and make.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
TEST_PROCESSES ?= 3  # more than the cores of a small machine, because tests often wait
TORCH ?= $(shell sed -n 's/^torch==//p' constraints.txt)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint .venv/constraints.txt

export PYTHONDONTWRITEBYTECODE =  # tests start hundreds of processes; each would compile the package anew

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-compiled test-clusters test-browser test-fuzz test-chaos test-wheel transcripts \
	diagrams screenshots notebook coverage dist docs lint types format bench clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(READY)  ## create .venv with Scalewise and its development tools

$(READY): pyproject.toml constraints.txt
	@echo "Setting up .venv (once, one or two minutes, mostly for torch)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Scalewise needs Python 3.10 or later: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@sed 's/^torch==.*/torch==$(TORCH)/' constraints.txt > .venv/constraints.txt
	@echo "  1/3 pip" && $(PIP) pip
	@echo "  2/3 torch" && $(PIP) torch
	@echo "  3/3 scalewise, its libraries and its development tools" && $(PIP) --editable . --group dev
	@touch $@
	@echo "Ready: $(BIN)/scalewise --help"

demo: $(READY)  ## the 2020 study on this machine in 3 minutes: which model gains from a second device
	@echo "Training two models of spoken digits on one and two devices (CPU cores without a GPU): about 3 minutes"
	@rm -f demo/measurements.jsonl demo/environment.json  # measure again, the machine may have been busy before
	@$(BIN)/scalewise reproduce stevens --quick --out demo

test: $(READY)  ## all tests, with real processes, sockets and namespaces: several minutes
	@$(BIN)/pytest -m "not serial and not compiled" --numprocesses $(TEST_PROCESSES) \
		--dist loadscope --no-loadscope-reorder; side_by_side=$$?; \
		if [ $$side_by_side -eq 1 ]; then echo "Running the failed tests once more, alone on the machine"; \
			$(BIN)/pytest -m "not serial and not compiled" --last-failed --last-failed-no-failures none; side_by_side=$$?; fi; \
		$(BIN)/pytest -m serial && exit $$side_by_side

test-fast: $(READY)  ## tests that start no processes: a minute
	@$(BIN)/pytest -m "not serial and not slow" --numprocesses 2 --dist worksteal

test-browser: $(READY)  ## open real reports in Chromium, which is installed if it is missing and possible
	@$(BIN)/python -c "import playwright" 2>/dev/null || $(PIP) playwright || true
	@browser=$$($(BIN)/python -m tests.browser.prepare); case $$? in \
		0) SCALEWISE_BROWSER="$$browser" $(BIN)/pytest tests/browser ;; \
		10) ;; \
		*) exit 1 ;; esac

test-compiled: $(READY)  ## tests that compile with torch.compile on the CPU: a minute
	@$(BIN)/pytest -m compiled

FUZZ_COUNT ?= 10000
test-fuzz: $(READY)  ## read 10,000 mutated files (FUZZ_COUNT=1000 SEED=1): no traceback, no hang, little memory
	@$(BIN)/python -m tests.faults.fuzz --count $(FUZZ_COUNT) $(if $(SEED),--seed $(SEED))

CHAOS_COUNT ?= 50
test-chaos: $(READY)  ## 50 random faults in runs with --max-restarts (CHAOS_COUNT=10 SEED=1); as root also disks and links
	@$(BIN)/python -m tests.faults.chaos --count $(CHAOS_COUNT) $(if $(SEED),--seed $(SEED))

test-clusters: $(READY)  ## a real Slurm and Ray on emulated nodes (root; installs slurm, munge, ray, skypilot): ten minutes
	@command -v slurmctld slurmd munged sbatch >/dev/null || \
		{ apt-get update --quiet && \
		apt-get install --yes --quiet --no-install-recommends slurmctld slurmd slurm-client munge; }
	@$(BIN)/python -c "import ray.train, submitit" 2>/dev/null || $(PIP) --editable '.[slurm,ray]'
	@test -x .venv/skypilot/bin/sky || { $(PYTHON) -m venv .venv/skypilot && \
		.venv/skypilot/bin/python -m pip --disable-pip-version-check install --quiet skypilot; }
	@SCALEWISE_TEST_CLUSTERS=1 $(BIN)/pytest tests/clusters

test-wheel: dist  ## install the wheel into a new environment and use it from an empty folder: two minutes
	@$(BIN)/python -m tests.packaging.bare_environment dist/*.whl

dist: $(READY)  ## build the wheel and the source archive into dist/
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation

transcripts: $(READY)  ## run the commands whose output README and docs show, and write what they print
	@$(BIN)/python -m tests.docs.transcripts

diagrams: $(READY)  ## draw the diagrams of the strategies in docs/images again
	@$(BIN)/python -m website.diagrams

notebook: $(READY)  ## run the example notebook and save it with its outputs: three minutes on an idle machine
	@$(BIN)/python -c "import nbclient, ipykernel" 2>/dev/null || $(PIP) --group notebook
	@$(BIN)/python -m website.notebook

coverage: $(READY)  ## line coverage of the tests that start no processes: three minutes
	@$(BIN)/python -c "import pytest_cov" 2>/dev/null || $(PIP) --group coverage
	@$(BIN)/pytest -m "not serial and not slow" --numprocesses 2 --dist worksteal --cov=scalewise --cov-report=term:skip-covered

screenshots: $(READY)  ## take the screenshots of the report in docs/images again (needs Chromium, see test-browser)
	@$(BIN)/python -m website.screenshots "$$($(BIN)/python -m tests.browser.prepare)"

docs: $(READY)  ## build the site of the documentation into site/; warnings are errors
	@$(BIN)/python -c "import mkdocs, material, mkdocstrings_handlers.python" 2>/dev/null || $(PIP) --editable '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "Open site/index.html; with search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory site"

lint: $(READY)  ## ruff: style and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY)  ## mypy, strict
	@$(BIN)/mypy

format: $(READY)  ## fix style and format with ruff
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(READY)  ## benchmarks; run them on an idle machine
	@$(BIN)/python benchmarks/loop.py
	@$(BIN)/python benchmarks/allreduce.py
	@$(BIN)/python benchmarks/strategies.py
	@$(BIN)/python benchmarks/parameter_server.py
	@$(BIN)/python benchmarks/asynchronous.py straggler
	@$(BIN)/python benchmarks/quick_vs_paper.py

clean:  ## remove .venv, build products and caches
	@rm -rf .venv dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
