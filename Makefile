# `make` alone says what there is. Everything happens inside .venv; nothing else is touched.

PYTHON   ?= python3
VENV     ?= .venv
# More than two cores' worth: recorded programs wait much of their time.
JOBS     ?= 3
# Opens no browser, only fetches the page.
HEADLESS ?=
# A guided case to record: the name of a program in examples/cases.
CASE     ?=
# Versions of torch whose engines a wheel carries.
TORCH    ?=
# Where torch publishes its builds for processors alone. The default one for Linux brings gigabytes
# for GPUs; it is taken where there is one, and where this index or the version is not to be had.
CPU_TORCH ?= $(if $(shell command -v nvidia-smi),,https://download.pytorch.org/whl/cpu)
# Tests of one room: its folder, and files with its name.
ROOM     ?=
TESTS     = $(if $(ROOM),$(or $(shell find tests -type d -name '$(ROOM)' -o -name 'test_$(ROOM)*.py' -o -name 'test_*_$(ROOM)*.py'),$(error no tests are called $(ROOM))))
# Sizes that let four ranks finish in well under a minute on two cores.
DEMO     ?= --dim 128 --seq 64 --steps 30 --clip 4 --slow-rank 2 --slow-ms 250

BIN   := $(abspath $(VENV))/bin
READY := $(VENV)/.ready
# What bundles and checks JavaScript comes from npm, and npm from a wheel.
NODE  := $(abspath $(VENV))/node
BIOME  = $(NODE)/node_modules/.bin/biome
CPP    = $(shell git ls-files '*.cpp' '*.h')
LINKS := $(abspath $(VENV))/links
# A console script (torchrun, lanescope) finds its siblings without anybody activating anything.
export PATH := $(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where the caller has set it, every process would compile all that it imports: tests, several
# hundred of them, would take twice as long.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo wheel test test-all soak harmless matrix gpu lint format types texts bench docs lock clean
.DELETE_ON_ERROR:

help:  ## say what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 16

# Of 17,000 modules a few thousand are ever imported: Python compiles those, the most of them while
# npm waits for its server, once and not in four ranks at a time.
setup: $(READY)  ## make .venv with pinned versions and the package in it (editable)

$(READY): requirements-dev.txt pyproject.toml setup.py lanescope_start.pth package.json package-lock.json .npmrc
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "development needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try: make setup PYTHON=python3.11")'
	@echo "Installing the pinned versions into $(VENV); the first time takes a minute or two."
	$(PYTHON) -m venv $(VENV)
	$(if $(CPU_TORCH),@$(BIN)/python -m pip install -qq --no-compile --no-deps --retries 0 --timeout 15 \
	  --extra-index-url $(CPU_TORCH) "$$(grep '^torch==' requirements-dev.txt)+cpu" 2>/dev/null || true)
	$(BIN)/python -m pip install -qq --no-compile --requirement requirements-dev.txt
	@mkdir -p $(NODE)
	cp package.json package-lock.json .npmrc $(NODE)
	(cd $(NODE) && npm install --silent --no-audit --no-fund) & npm=$$!; \
	$(BIN)/python -c 'import dash, pandas, torch._dynamo, torch.distributed.run' && wait $$npm
	ln -sf $(NODE)/node_modules/@esbuild/*/bin/esbuild $(BIN)/
	$(BIN)/python -m pip install -qq --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY)  ## record a 4-rank training run and open it in the browser (CASE=hang: a small program with a fault)
ifneq ($(CASE),)
	python examples/record_case.py $(CASE)
	lanescope view runs/case-$(CASE) $(addprefix --baseline ,$(wildcard runs/case-$(CASE)-baseline))
else
	rm -rf runs/demo
	OMP_NUM_THREADS=1 lanescope record -o runs/demo -- torchrun --nproc-per-node 4 examples/train_gpt.py $(DEMO)
	lanescope info runs/demo
ifeq ($(HEADLESS),)
	lanescope view runs/demo
else
	python examples/fetch_page.py runs/demo
endif
endif

# A file's tests share what they record, so they stay in one process; all browser tests do.
SPREAD := -n $(JOBS) --dist loadfile --no-loadscope-reorder

test: $(READY)  ## run the tests (ROOM=races for one room, ARGS='-k overlap' for some of them)
	python -m pytest $(SPREAD) $(TESTS) $(ARGS)

test-all: $(READY)  ## the same and the slow tests, of both engines
	python -m pytest $(SPREAD) -m "not soak" $(TESTS) $(ARGS)

soak: $(READY)  ## kill recorded processes at 500 random instants per engine, and count; all slow tests, also further forms of faults and those that install packages
	LANESCOPE_KILLS=500 python -m pytest tests/collector/journal/test_death.py
	env -u CI python -m pytest -m slow
	python -m pytest tests/collector/watchdog/soak_starved.py

harmless: $(READY)  ## run others' tests plain and recorded, compare (HARMLESS='threading queue' ENGINE=native)
	python -m tests.harmless --jobs $(JOBS) $(addprefix --engine ,$(ENGINE)) $(HARMLESS)

wheel: $(READY)  ## build dist/*.whl; TORCH="2.10 2.13" puts an engine for each of them into it
	rm -rf build/engines build/lib build/bdist*
	@for version in $(TORCH); do \
	  at=build/torch/$$version; \
	  [ -d $$at/torch ] || python -m pip install -qq --no-deps --target $$at "torch==$$version.*" || exit 1; \
	  python -m lanescope.collector.engines.prebuild build/engines $$at/torch || exit 1; \
	done
	LANESCOPE_ENGINES=$(if $(TORCH),build/engines) python -m build --wheel --no-isolation

matrix:  ## record with each version of Python and torch that can be had (ARGS='--torch 2.15.0')
	$(PYTHON) tests/matrix/run.py $(ARGS)

# Torch in .venv may be one for processors only: GPU_PYTHON names an interpreter with another.
gpu: $(READY)  ## run all that needs an NVIDIA GPU, under eight minutes, and print a table; without one exits 2
	$(or $(GPU_PYTHON),python) -m tests.gpu

lint: $(READY) types  ## check style, types and the number of suppressed checks
	ruff check .
	ruff format --check .
	@echo clang-format --dry-run --Werror
	@clang-format --dry-run --Werror $(CPP)
	$(BIOME) check --error-on-warnings
	python -m tests.suppressions

# mypy cannot see through setuptools' folder mapping, so it gets the same mapping as links. They
# point at folders: a new file is checked without installing anything again.
types: $(READY)  ## check types alone
	@mkdir -p $(LINKS)/lanescope
	@for part in collector/lanescope/* collector webapp assets; do ln -sfn $(CURDIR)/$$part $(LINKS)/lanescope/$${part##*/}; done
	MYPYPATH=$(LINKS) mypy

texts: $(READY)  ## print all texts that the product can say (ROOM=races for some of them)
	@python -m tests.texts $(ROOM)

format: $(READY)  ## bring the code into the project's format
	ruff check --fix .
	ruff format .
	@clang-format -i $(CPP)
	$(BIOME) check --write

bench: $(READY)  ## run the benchmarks and print their tables (ONLY=tiles for one of them)
	python benchmarks/run.py $(ONLY)

docs: $(READY)  ## make the generated parts of the docs again and build the site, build/site/index.html
	python docs/schema_reference.py
	PYTHONPATH=. python docs/screenshots.py
	mkdocs build --strict

lock:  ## resolve requirements-dev.in and pyproject.toml anew into requirements-dev.txt
	rm -rf build/lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install -qq --requirement requirements-dev.in '.[view]'
	(echo '# Made by "make lock" from requirements-dev.in and pyproject.toml; not edited by hand.'; \
	 build/lock/bin/python -m pip freeze --all --exclude lanescope --exclude pip | sed 's/+.*$$//') > requirements-dev.txt
	rm -rf build/lock

clean:  ## remove what the targets made (.venv, build, caches); keeps runs/
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
