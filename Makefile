# make chat   the chat page on the embedded pair, at http://127.0.0.1:7860
# make test   lint, types, and all tests but those marked as slow: twelve minutes on two slow cores
#
# make test-all      lint, types and all tests: three times as long
# make exactness     the exactness suites as lesser processors would run them, in each set of instructions of this one
# make wide-pair     a pair of real size in OUT, to measure speeds on, in a few minutes
# make bench-peers   Outrider and other runtimes on that pair: an hour or more (ARGS="--family edit", --help)
#
# PYTHON=python3.12   another interpreter, 3.10 to 3.13
# TORCH=torch         another build of torch for the tests; pip's own variables (PIP_EXTRA_INDEX_URL, ...) apply too
# ARGS="--port 8000"  further options for `outrider chat`, or for pytest: make pytest ARGS="-k sampling"

SHELL := /bin/bash
TORCH ?= torch==2.13.0
ARGS ?=
OUT ?= build/wide
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
FOLDERS := app export models pipelines
# In the order of the folders, so that the tests of the page, which take longest, begin first.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: chat test test-all lint types pytest pytest-all exactness wide-pair bench-peers clean

chat: $(VENV)/runtime.done
	$(BIN)/outrider chat $(ARGS)

test: lint types pytest

test-all: lint types pytest-all

lint: $(VENV)/dev.done
	$(BIN)/ruff check .

types: $(VENV)/dev.done
	$(BIN)/mypy $(addprefix $(VENV)/src/outrider/,$(FOLDERS))

pytest: $(VENV)/dev.done $(VENV)/browser.done
	$(PYTEST) $(ARGS)

pytest-all: $(VENV)/dev.done $(VENV)/browser.done
	$(PYTEST) -m '' $(ARGS)

exactness: $(VENV)/dev.done
	$(BIN)/python -m tests.pipelines.instruction_sets

wide-pair: $(VENV)/dev.done
	$(BIN)/python -m tests.benchmark.wide_pair $(OUT)

bench-peers: $(VENV)/peers.done
	$(BIN)/python -m tests.benchmark.peers $(OUT) $(ARGS)

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The first interpreter that is there, runs, is of a supported version and can make a virtual environment.
$(VENV)/made.done:
	@for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.10); do \
	    "$$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || continue; \
	    supported=1; \
	    "$$python" -c 'import ensurepip, venv' 2>/dev/null || continue; \
	    echo "Making $(VENV) with $$("$$python" --version)"; \
	    "$$python" -m venv --clear $(VENV) && touch $@ && exit 0; \
	    exit 1; \
	done; \
	if [ -n "$$supported" ]; then \
	    echo "Python is there, but not its venv module. Install it (Debian, Ubuntu: apt install python3-venv)." >&2; \
	else \
	    echo "Outrider needs Python 3.10 to 3.13; $$(python3 --version 2>&1 || true) was found." \
	         "Install one, or name it: make $(or $(MAKECMDGOALS),chat) PYTHON=/path/to/python3" >&2; \
	fi; \
	exit 1

$(VENV)/runtime.done: $(VENV)/made.done pyproject.toml
	@echo "Installing the runtime (0.6 GB, about a minute)"
	$(PIP) install --quiet --editable .
	@touch $@

# A torchvision comes with the exporter though language models do not need it. Where its build does not fit that of
# torch, importing transformers fails, so such a one is taken out.
$(VENV)/dev.done: $(VENV)/made.done pyproject.toml
	@echo "Installing the runtime, the exporter and the test tools (about 2 GB with a CPU build of torch)"
	$(PIP) install --quiet --editable ".[bench,export,dev]" "$(TORCH)"
	@$(BIN)/python -c 'import torchvision' 2>/dev/null || $(PIP) uninstall --quiet --yes torchvision
	@mkdir -p $(VENV)/src/outrider
	@for folder in $(FOLDERS); do ln -sfn "$(CURDIR)/$$folder" "$(VENV)/src/outrider/$$folder"; done
	@touch $@ $(VENV)/runtime.done

# llama.cpp is compiled, for this processor; gguf writes what it reads.
$(VENV)/peers.done: $(VENV)/dev.done
	$(PIP) install --quiet gguf llama-cpp-python
	@touch $@

# The browser that tests the page: an installed one, or else the one that Playwright downloads.
$(VENV)/browser.done: $(VENV)/dev.done
	@for name in chromium-headless-shell chromium chromium-browser google-chrome; do \
	    command -v $$name >/dev/null && touch $@ && exit 0; \
	done; \
	echo "No Chromium is installed; downloading one for the tests of the page"; \
	$(BIN)/playwright install --only-shell chromium && touch $@ || \
	{ echo "Install Chromium (Debian: apt install chromium-headless-shell) and run make test again." >&2; exit 1; }
