# One line each. `make demo` and `make test` do all set-up on a fresh machine.
PYTHON ?= $(shell command -v python3.11 >/dev/null 2>&1 && python3.11 -c '' 2>/dev/null && echo python3.11 || echo python3)
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# Tests wait two thirds of their time: six processes keep two cores busy (1 GB of memory each, and three control planes of 1 GB).
# By shared cluster or file (tests/support/groups.py), for their tests share what fixtures start. A process that dies is not
# replaced: pytest-xdist 3.8 then waits for ever for the tests of its file.
export AT_ONCE := -n 6 --max-worker-restart 0

# Without cached bytecode every start compiles hundreds of modules: `stoker up` takes twice as long to be ready.
unexport PYTHONDONTWRITEBYTECODE

GPU_PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,python3)

TESTBED := $(BIN)/python -m tests.support.testbed

.PHONY: help setup demo test compiled quick lint format bench bench-trainer sweep verify clean testbed cluster nodes cluster-down e2e images image-check release chart gpu-check gpu-check-wheels
help: ## show the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

setup: $(VENV)/.installed ## make the environment and install (once)
$(VENV)/.installed: pyproject.toml constraints.txt tools/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash tools/setup.sh

demo: setup ## train real models on this machine through the whole chain, and show what came out
	@$(BIN)/python tools/demo.py

test: setup ## every test, then on one newer Python what can differ there
	@$(MAKE) --no-print-directory -j2 lint compiled
	@$(TESTBED) build control-plane helm monitoring --or-skip
	@bash tools/chromium.sh
	@$(PYTEST) $(AT_ONCE)
	@VENV="$(VENV)" bash tools/test_newer.sh

# Beside lint, on the other core: on a fresh clone six processes would each rewrite the asserts of all files, for ten CPU seconds.
compiled: setup
	@$(PYTEST) --collect-only -q >/dev/null || true # the run itself shows what fails

quick: setup ## the tests that take no longer than ten seconds each
	@$(PYTEST) $(AT_ONCE) -m "not slow"

lint: setup ## style, types, and the arrows between the rooms
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

format: setup ## put the code into shape
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

testbed: setup ## build the programs of a real Kubernetes (GROUP=control-plane, nodes, helm; 8 minutes, once)
	@$(TESTBED) build $(GROUP)

cluster: setup ## a control plane on this machine, on loopback, with RBAC and admission on
	@$(TESTBED) cluster up

nodes: setup ## a control plane and two real nodes with pretend GPUs (root)
	@$(TESTBED) nodes up

cluster-down: setup ## stop and remove what `make cluster` or `make nodes` started
	@$(TESTBED) down

e2e: setup ## the tests on real nodes (root)
	@$(TESTBED) build control-plane nodes helm monitoring
	@$(PYTEST) -m e2e --timeout 1200

bench-trainer: setup ## the trainer against the plainest good PyTorch loop, and `batch: auto` against a full grid (four minutes)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tools.bench.trainer $(ARGS)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tools.bench.batch

bench: setup ## speed and memory, with machine and versions
	@bash tools/bench.sh

sweep: setup ## what is too long for `make test`: faults at every write, ten times the examples of properties, `make verify`, a soak (docs/reliability.md; two and a half hours)
	@$(TESTBED) build control-plane
	@SWEEP_WRITES=1 $(PYTEST) -m sweep
	@STOKER_EXAMPLES=10 $(PYTEST) --timeout 3600 -m "hypothesis and not e2e"
	@$(MAKE) verify
	@$(BIN)/python -m tools.verify.soak --mode up
	@$(BIN)/python -m tools.verify.soak --mode cluster

verify: setup ## the proofs of docs/verify.md, one after the other (about half an hour)
	@bash tools/verify.sh

images: setup ## build the images that changed (root, buildah, mmdebstrap; no registry)
	@$(BIN)/python -m tools.images build

image-check: setup ## build all images, CUDA's too (30 GB free disk), and start each under runc
	@$(BIN)/python -m tools.images check

chart: setup ## write what of helm/stoker is generated, and lint it
	@$(BIN)/python -m tools.chart --lint

release: setup ## wheel, images, chart, SBOMs, checksums into dist/ (root, buildah; VERSION=, CUDA=1, DIRTY=1)
	@$(BIN)/python -m tools.release $(VERSION:%=--version %) $(CUDA:%=--cuda) $(DIRTY:%=--dirty)

gpu-check: ## what only a real GPU can show, into docs/gpu-check (an NVIDIA GPU, root, torch; no network, no set-up)
	@$(GPU_PYTHON) -m tools.gpu_check $(ARGS)

gpu-check-wheels: ## fetch into .whl/ what such a machine may lack beside torch (5 MB, for Python 3.12 on x86-64)
	@bash tools/gpu_check/wheels.sh

clean: ## remove environments and run data
	rm -rf .venv* .stoker .mypy_cache .ruff_cache .pytest_cache
