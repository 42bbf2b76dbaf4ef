# `make demo` and `make test` are the two commands of the README. Each first makes .venv with what it needs, or adds that:
# tools/set_up.py says what it does. TORCH=installed takes the torch that PYTHON has; it counts where .venv is made.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.NOTPARALLEL: # `make -j demo test`: one set-up at a time in .venv
.PHONY: help setup demo test test-slow test-browser bench docs wheel lint format clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: .venv/.ready ## make .venv with what all targets need; TORCH=installed: with the torch of your python3

.venv/.demo .venv/.ready: pyproject.toml constraints.txt
	TORCH='$(TORCH)' $(PYTHON) tools/set_up.py $(@F:.%=%)

demo: .venv/.demo ## a classifier meets drift: writes demo/index.html
	$(BIN)/equipoise demo --out demo

test: setup ## everything but the slow and the browser tests, on all cores
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'not slow and not browser'

test-slow: setup ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

test-browser: setup ## the pages in a real Chromium (Debian: apt-get install chromium)
	$(BIN)/python -m pytest -m browser

bench: setup ## what a step costs on this machine, ten minutes of it; BENCH=--quick for two, again to go on
	$(BIN)/python -m benchmarks.speed.run --out benchmarks/speed/local.csv $(BENCH)
	$(BIN)/python -m benchmarks.speed.performance benchmarks/speed/local.csv

docs: setup ## the documentation as pages in site/, every link and docstring checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: setup ## a wheel and a source archive in dist/, checked as a package index does
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

lint: setup ## formatting, style and strict types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup ## rewrite the files in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove what the other targets made
	rm -rf .venv demo dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
