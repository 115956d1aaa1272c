# The environment of SGLang workers: `make sglang-env` builds .venv-sglang for the CPU test bed.
PYTHON ?= python3.11
SGLANG_VENV := .venv-sglang
SGLANG_STAMP := $(SGLANG_VENV)/.stamp

.PHONY: sglang-env
sglang-env: $(SGLANG_STAMP)

$(SGLANG_STAMP): testbed/install.sh testbed/requirements.txt pyproject.toml $(wildcard testbed/shim/*) $(wildcard testbed/shim/*/*)
	@PYTHON=$(PYTHON) testbed/install.sh $(SGLANG_VENV)
	@touch $@
