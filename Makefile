# Every target builds what it needs: .venv for the control plane, .venv-sglang for live workers. Set-up talks on stderr,
# so that stdout is the command's own.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SOURCES := prorsa tests benchmarks scripts testbed

include mk/sglang.mk

.PHONY: demo test test-live check bench train docs clean
.DEFAULT_GOAL := demo

$(VENV)/.control: pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once)" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) >&2
	@$(PIP) --editable '.[control]' >&2
	@touch $@

$(VENV)/.dev: $(VENV)/.control
	@echo "adding the development tools (once)" >&2
	@$(PIP) --editable '.[dev]' >&2
	@touch $@

$(VENV)/.learn: $(VENV)/.control
	@echo "adding torch and what trains with it (once)" >&2
	@$(PIP) --editable '.[learn]' >&2
	@touch $@

# make demo ARGS="--headless --json"
demo: $(VENV)/.control
	@$(BIN)/prorsa demo $(ARGS)

test: $(VENV)/.dev
	@$(BIN)/pytest -m "not live" $(ARGS)

# Real SGLang workers on the CPU
test-live: $(VENV)/.dev sglang-env
	@$(BIN)/pytest -m live $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/event_reference.py --check
	$(BIN)/python scripts/console_reference.py --check

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.sim $(ARGS)
	$(BIN)/python -m benchmarks.bus $(ARGS)
	$(BIN)/python -m benchmarks.sdk $(ARGS)
	$(BIN)/python -m benchmarks.console $(ARGS)
	$(BIN)/python -m benchmarks.env $(ARGS)

# The shipped policy's recipe, in under an hour on two cores; it is written to trained/, nothing is overwritten
train: $(VENV)/.learn
	$(BIN)/prorsa train --out trained --minutes 40 $(ARGS)

docs: $(VENV)/.dev
	$(BIN)/python scripts/event_reference.py
	$(BIN)/python scripts/console_reference.py
	$(BIN)/python scripts/pictures.py

clean:
	rm -rf $(VENV) .venv-sglang
