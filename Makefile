# The commands of this project; each sets up what it needs, and a second run is quick.
#
#   make             build in place          make test    the tests (ARGS= for pytest)
#   make demo        train on photographs    make lint    style and types
#   make cuda-build  compile for CUDA        make bench   timings (ARGS= for benchmarks/run.py)
#   make clean       remove build products   make help    this text
#
# Variables:
#   PYTHON=/path/to/python   use that environment's torch (the environment itself is left as it is)
#   BASE_PYTHON=python3.12   the Python that environments are made from
#   PIP_ARGS=...             passed to pip, such as another index for torch

SHELL := /bin/bash
.SHELLFLAGS := -e -o pipefail -c
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
.PHONY: build demo test lint bench cuda-build clean help

TORCH := torch==2.13.0
CUDA_TORCH := torch==2.14.1
BUILD_TOOLS := ninja numpy setuptools wheel
BASE_PYTHON ?= python3

# With PYTHON=, an overlay: an environment that sees the packages of the other one below its own.
VENV := .venv$(subst /,-,$(PYTHON))
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
CUDA_VENV := .venv-cuda
CUDA_PY := $(CUDA_VENV)/bin/python

# ninja's verbose lines are shortened to [3/12] csrc/...
BRIEF := 2>&1 | sed -uE 's:^(\[[0-9]+/[0-9]+\]) .* -c [^ ]*/(csrc/[^ ]+) .*:\1 \2:'

build: $(VENV)/.torch
	$(PY) setup.py -q build_ext --inplace $(BRIEF)

demo: $(VENV)/.packages
	$(PY) examples/train_super_resolution.py $(ARGS)

test: $(VENV)/.packages
	$(PY) -m pytest tests $(ARGS)

bench: $(VENV)/.packages
	$(PY) benchmarks/run.py $(ARGS)

lint: $(VENV)/.lint-tools
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	git ls-files --cached --others --exclude-standard csrc tests \
	  | grep -E '\.(h|cpp|cu|cuh)$$' | xargs $(VENV)/bin/clang-format --dry-run -Werror

# Only loads the kernels, on any machine with nvcc; one architecture and one CPU library keep it short.
cuda-build: $(CUDA_VENV)/.torch
	TORCH_DNNL_CUDA=1 TORCH_DNNL_CPU=default TORCH_CUDA_ARCH_LIST=9.0+PTX \
	  $(CUDA_PY) setup.py -q build --build-lib build/cuda $(BRIEF)
	PYTHONPATH=build/cuda $(CUDA_PY) tools/check_cuda_kernels.py

clean:
	rm -rf build dist *.egg-info torch_dnnl/*.so torch_dnnl/_build.py
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

# The stamps below say which part of an environment is complete.

ifeq ($(PYTHON),)
$(VENV)/.torch:
	@echo "Creating $(VENV) with $(TORCH)"
	$(BASE_PYTHON) -m venv $(VENV)
	$(PIP) install $(PIP_ARGS) $(TORCH) $(BUILD_TOOLS)
	touch $@
else
$(VENV)/.torch:
	@echo "Creating $(VENV) over the packages of $(PYTHON)"
	$(PYTHON) -c 'import torch; print("torch", torch.__version__)'
	$(PYTHON) -m venv --without-pip $(VENV)
	$(PYTHON) -c 'import site; p = [*site.getsitepackages(), site.getusersitepackages()]; \
	  print("import site;", "; ".join(f"site.addsitedir({d!r})" for d in p))' \
	  > $$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/below.pth
	$(PIP) --version || $(PY) -m ensurepip
	$(PIP) install $(PIP_ARGS) $(BUILD_TOOLS)
	touch $@
endif

$(CUDA_VENV)/.torch:
	@PATH="$$PATH:$${CUDA_HOME:-/usr/local/cuda}/bin"; command -v nvcc || \
	  { echo "make cuda-build needs nvcc: install the CUDA toolkit and put nvcc on PATH"; exit 1; }
	@echo "Creating $(CUDA_VENV) with $(CUDA_TORCH)"
	$(BASE_PYTHON) -m venv $(CUDA_VENV)
	$(CUDA_PY) -m pip --disable-pip-version-check install $(PIP_ARGS) $(CUDA_TORCH) $(BUILD_TOOLS)
	touch $@

# An editable install, whose build finds everything just built. The build itself is always run, as
# only ninja knows what is out of date.
$(VENV)/.packages: pyproject.toml | build
	$(PIP) install $(PIP_ARGS) --no-build-isolation -e '.[examples,test]'
	touch $@

$(VENV)/.lint-tools: $(VENV)/.packages
	$(PIP) install $(PIP_ARGS) --no-build-isolation -e '.[dev]'
	touch $@
