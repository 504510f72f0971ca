# `make` alone lists what there is.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The demonstration's lake, if there is one; make up CONFIG=tidemark.toml for your own.
CONFIG ?= $(firstword $(wildcard build/demo/tidemark.toml) tidemark.toml)

# Commands and tests start many processes. Where Python may not write bytecode, each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-shapes up test test-slow test-gcs test-wheel test-versions gcs-tools promtool compiled simulate drain-demo chaos bench compare check ruff-format ruff-check mypy lint-imports docs reference pictures clean

help: ## list the commands
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed ## make .venv with everything pinned in constraints.txt

$(VENV)/.installed: pyproject.toml constraints.txt tools/check_machine.sh tools/install.sh
	extras=$$(sh tools/check_machine.sh $(PYTHON)) && $(PYTHON) -m venv $(VENV) && \
	sh tools/install.sh $(BIN)/python "$$extras"
	@touch $@

demo: setup ## play the whole mission on real parts in two minutes, and compare every row with the truth; FULL=1 LAKE=gs
	$(if $(filter gs,$(LAKE)),$(BIN)/python -m tests.gcs.demo,$(BIN)/tidemark demo) $(if $(FULL),--full) $(OPTIONS)

demo-shapes: setup ## play a small demonstration of each message shape, one after the other; a line for each
	$(BIN)/python -m tests.demo.every_shape $(OPTIONS)

up: setup ## start everything and open Dagster on the demo's lake, or on CONFIG=...; Ctrl-C stops it
	$(BIN)/tidemark --config $(CONFIG) up

test: setup ## all tests but the slow ones and those on Cloud Storage, in parallel; WORKERS=3
	$(BIN)/python -m pytest -n $(or $(WORKERS),auto) -m '$(or $(MARKS),not gcs and not slow and not wheel)'

test-slow: setup ## the tests that kill every process there is, or start a cluster: minutes; WORKERS=3
	$(BIN)/python -m pytest -n $(or $(WORKERS),3) -m slow

simulate: setup ## play SEEDS=10000 seeds of the simulation on all cores; FROM=0 JOBS=2
	$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),10000) --from $(or $(FROM),0) $(if $(JOBS),--jobs $(JOBS))

test-gcs: gcs-tools ## the lake's tests on a Cloud Storage server on loopback; needs Go
	$(BIN)/python -m pytest -n $(or $(WORKERS),auto) -m gcs

test-wheel: setup ## the built wheel, in an environment and a folder of its own; needs the registries
	$(BIN)/python -m pytest -m wheel

test-versions: setup ## tests on other versions of PySpark, Dagster and Python, as a table; needs the registries; CELL=pyspark-4.0
	$(BIN)/python -m tests.versions $(CELL)

gcs-tools: setup
	$(BIN)/python -m tests.gcs.tools

promtool: setup ## fetch Prometheus' promtool, by which the alerts are tested
	$(BIN)/python -m tests.observe.tools

compiled: setup # once, and not by each parallel worker
	$(BIN)/python -m pytest --collect-only --quiet > /dev/null

drain-demo: setup ## drain an outage's backlog of MESSAGES=3000000 with READERS=4, and compare every row with the truth
	$(BIN)/python -m benchmarks.drain --messages $(or $(MESSAGES),3000000) --readers $(or $(READERS),4)

chaos: setup ## kill and disturb the whole pipeline, and compare every row with the truth; SEED=1 KILLS=20
	$(BIN)/python -m tests.chaos --seed $(or $(SEED),1) --kills $(or $(KILLS),20)

bench: setup ## each stage's speed and size beside a reference: a table, and build/bench.json; SCALE=0.1
	sh tools/install.sh $(BIN)/python bench
	$(BIN)/python -m benchmarks --scale $(or $(SCALE),1)

compare: setup ## the same traffic by each watermark rule: a table, build/compare.json, and a picture
	$(BIN)/python -m benchmarks.compare

check: ruff-format ruff-check mypy lint-imports ## format, lint, types, import rules; --jobs=4 runs them side by side

ruff-format: setup
	$(BIN)/ruff format --check .

ruff-check: setup
	$(BIN)/ruff check .

mypy: setup
	$(BIN)/mypy

lint-imports: setup
	$(BIN)/lint-imports

reference: setup ## write the parts of docs/reference that follow from the code
	$(BIN)/python -m tools.reference

docs: setup ## build the documentation as a site, in build/site; a broken link or an unknown name fails
	sh tools/install.sh $(BIN)/python docs
	$(BIN)/mkdocs build
	@echo "The site is $(CURDIR)/build/site/index.html"

pictures: setup ## draw the pictures of docs/concepts/watermark.md again, from replays
	$(BIN)/python tools/draw_watermark.py

clean: ## remove what was built, .venv included
	rm -rf $(VENV) build .tidemark .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
