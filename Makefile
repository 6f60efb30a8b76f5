# Two commands do everything on a machine with Python and git: `make run` and `make test`.
#
#   PYTHON   the interpreter that the environment is made with       (python3)
#   VENV     where the environment goes                              (.venv)
#   ARGS     what is handed on, as in: make run ARGS="--seed 7"
#   STEPS    of `make llama3`: as many as this machine trains in 55 minutes (22000)

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
STEPS ?= 22000

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: docs wheel help env run llama3 test check unit lint types drill fuzz swarm score-diagnosis bench validate-plan validate-plan-live test-gpu clean

help:  ## say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 18

env: $(STAMP)  ## make the environment, once; again when what it is made from changes

$(STAMP): pyproject.toml constraints.txt src/outlast/runtime/tiers/_stream.c src/outlast/runtime/tiers/_parity.c
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt setuptools
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[torch,data,plot,web,metrics,object-storage,docs,dev]'
	@touch $@

run: $(STAMP)  ## train for a minute undisturbed, then under fire, and compare; ARGS="--hosts 3" loses a host
	$(if $(findstring --hosts,$(ARGS)),$(BIN)/python examples/lost_host.py $(ARGS),$(BIN)/outlast drill examples/rehearse.toml $(ARGS) -- examples/train_gpt.py --steps 400)

llama3: $(STAMP)  ## Llama 3's 466 interruptions in 54 days, in 54 minutes on real processes; two hours in all; ARGS="--hosts 5" on five hosts
	$(BIN)/outlast drill llama3 --html llama3.html $(ARGS) -- examples/train_gpt.py --steps $(STEPS)

test: $(STAMP)  ## the tests, real processes included; under six minutes on two quiet cores
	$(BIN)/python tests/lanes.py $(ARGS)

check: lint types unit  ## before each commit: lint, format, types and the fast tests; under two minutes

unit: $(STAMP)  ## of those the fast ones, that start no worker: decisions, arithmetic, layers, style; under a minute
	$(BIN)/python -m pytest tests/model tests/engine tests/test_layers.py tests/test_tidy.py $(ARGS)

lint: $(STAMP)  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## mypy, strict
	$(BIN)/mypy

docs: $(STAMP)  ## the documentation as a site, in build/site; a warning is an error
	$(BIN)/python tools/site/build.py

wheel: $(STAMP)  ## build wheels with and without the compiled parts, install them in a fresh environment, and train with them there
	$(BIN)/python tools/try_wheel.py

drill: $(STAMP)  ## the slow tests: hundreds of faults into real processes
	$(BIN)/python tests/lanes.py --drills $(ARGS)

fuzz: $(STAMP)  ## the property tests with examples that nobody has seen yet
	$(BIN)/python -m pytest -m hypothesis --hypothesis-profile=fuzz $(ARGS)

swarm: $(STAMP)  ## simulated lives of runs on all cores; as long as asked: ARGS="--swarm 600"
	$(BIN)/outlast sim $(if $(ARGS),$(ARGS),--swarm 60)

score-diagnosis: $(STAMP)  ## how often a diagnosis is right: labelled logs (ARGS="--data FOLDER"), and 200 incidents made for it; ten minutes
	$(BIN)/python benchmarks/score_logs.py $(ARGS)
	$(BIN)/python benchmarks/incidents/score.py

bench: $(STAMP)  ## the benchmarks, side by side with their peers; writes into benchmarks/RESULTS.md
	$(BIN)/python benchmarks/all.py $(ARGS)

validate-plan: $(STAMP)  ## published figures of runs and clusters beside what the planner computes for them
	$(BIN)/python benchmarks/validate_plan/published.py $(ARGS)

validate-plan-live: $(STAMP)  ## real runs under real kills, predicted by the planner before they run; 40 minutes, and nothing else should run
	$(BIN)/python benchmarks/validate_plan/live.py $(ARGS)

test-gpu: $(STAMP)  ## the tests that need CUDA devices
	$(BIN)/python -m pytest -m gpu $(ARGS)

clean:  ## remove the environment and what tools left behind; runs/ stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build src/*.egg-info src/outlast/runtime/tiers/*.so
