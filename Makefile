# On a bare machine with python3, make and pip, `make demo` and `make test` do all the set-up themselves.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types format bench clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(READY)  ## create .venv with Scalewise and its development tools

$(READY): pyproject.toml constraints.txt
	@echo "Setting up .venv; torch is the large part: a minute or two, once."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Scalewise needs Python 3.10 or later: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "  1/3 pip" && $(PIP) pip
	@echo "  2/3 torch" && $(PIP) torch
	@echo "  3/3 scalewise, its libraries and its development tools" && $(PIP) --editable . --group dev
	@touch $@
	@echo "Ready: $(BIN)/scalewise --help"

demo: $(READY)  ## the 2020 study on this machine, in minutes: who gains from a second device, who chokes
	@echo "Two models of spoken digits on one device and on two (CPU cores where there is no GPU): about 3 minutes."
	@rm -f demo/measurements.jsonl demo/environment.json  # what an earlier, busier moment left is not gone on with
	@$(BIN)/scalewise reproduce stevens --quick --out demo

test: $(READY)  ## all tests: real processes, sockets and namespaces, in minutes
	@$(BIN)/pytest

lint: $(READY)  ## ruff: style and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY)  ## mypy, strict
	@$(BIN)/mypy

format: $(READY)  ## put the code in order
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(READY)  ## the benchmarks; on a quiet machine only
	@$(BIN)/python benchmarks/loop.py
	@$(BIN)/python benchmarks/allreduce.py
	@$(BIN)/python benchmarks/strategies.py
	@$(BIN)/python benchmarks/parameter_server.py
	@$(BIN)/python benchmarks/asynchronous.py straggler
	@$(BIN)/python benchmarks/quick_vs_paper.py

clean:  ## remove .venv and caches
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
