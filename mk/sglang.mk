# The environment of SGLang workers: `make sglang-env` builds .venv-sglang for the CPU test bed.
SGLANG_PYTHON ?= python3.11
SGLANG_VENV := .venv-sglang
SGLANG_STAMP := $(SGLANG_VENV)/.stamp
SGLANG_SHIM := testbed/shim/pyproject.toml $(wildcard testbed/shim/*.py testbed/shim/*.pth testbed/shim/sgl_kernel/*.py)

.PHONY: sglang-env
sglang-env: $(SGLANG_STAMP)

$(SGLANG_STAMP): testbed/install.sh testbed/requirements.txt pyproject.toml $(SGLANG_SHIM)
	@PYTHON=$(SGLANG_PYTHON) testbed/install.sh $(SGLANG_VENV)
	@touch $@
