# One-line targets over the CLI. `make bench` and `make test` set everything up first.
.DEFAULT_GOAL := help
PYTHON  ?= python3
VENV    ?= .venv
FLAVOUR := $(shell FLAVOUR=$(FLAVOUR) scripts/flavour.sh)
CONFIG  ?= $(if $(filter gpu,$(FLAVOUR)),configs/gem.yaml,configs/smoke.yaml)
BIN     := $(VENV)/bin
OUT     ?= dist/bundle
RUN     ?= results/baselines/nvidia-h200/gem.csv
PYTEST_ARGS ?= -n auto --maxprocesses 8 --dist loadfile

.PHONY: help setup bench test check format doctor gate report notebooks refresh bundle unbundle env clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup: ## the virtual environment for this machine (GPU or CPU)
	@PYTHON=$(PYTHON) scripts/setup.sh $(VENV) $(FLAVOUR)

bench: setup ## the main job: gem on a GPU, smoke without one (CONFIG=... chooses)
	@$(BIN)/harness run $(CONFIG)

test: setup ## the tests
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

check: setup ## lint, types and import directions; edits nothing
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: setup ## lint fixes that are safe
	@$(BIN)/ruff check --fix .

gate: setup ## the regression gate: on a GPU configs/gate.yaml against the baseline, without one compiled kernels (GATE_ARGS=...)
	@FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=1 $(BIN)/harness gate \
	    $(if $(filter gpu,$(FLAVOUR)),configs/gate.yaml --rerun 4,--static) $(GATE_ARGS)

doctor: setup ## which backends can run here, and why the others can't
	@$(BIN)/harness doctor

report: setup ## one HTML page of a run (RUN=its CSV; AGAINST=an earlier one to compare with)
	@$(BIN)/harness report $(RUN) $(if $(AGAINST),--against $(AGAINST))

notebooks: setup ## the example notebooks, executed on the committed results
	@$(BIN)/python docs/refresh.py notebooks

refresh: setup ## all that is made from the committed results: plots, tables, pictures, notebooks
	@$(BIN)/python docs/refresh.py

bundle: ## dependencies as archives for a GPU machine without network (OUT=dir; NAME=fa4@4.0.0b15 for one environment)
	@PYTHON=$(PYTHON) scripts/bundle.sh $(OUT) $(NAME)

unbundle: ## .venv of such archives, without network, beside PYTHON's own torch (BUNDLE=dir)
	@PYTHON=$(PYTHON) scripts/setup.sh $(VENV) $(FLAVOUR) $(or $(BUNDLE),$(OUT))

env: ## a named environment for a backend's worker (NAME=fa4@4.0.0b15; BUNDLE=dir without network)
	@PYTHON=$(PYTHON) scripts/environment.sh $(NAME) $(BUNDLE)

clean: ## remove the environment, caches and runs
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis results/runs
