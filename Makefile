# Two commands do everything on a bare machine with python3, make and pip: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types format bench clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(READY)  ## create .venv with Scalewise and its development tools

$(READY): pyproject.toml constraints.txt
	@echo "Setting up .venv (torch is the large part: a minute or two, once)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --upgrade --constraint constraints.txt "pip>=25.1" || $(BIN)/python -m pip --version
	@echo "  installing torch"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	@echo "  installing scalewise and its development tools"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	@touch $@
	@echo "Ready: $(BIN)/scalewise --help"
