# `make demo` and `make test` set up everything they need, once, in .venv.
PYTHON ?= python3
PIP_ARGS ?=
BIN := .venv/bin
INSTALL := $(BIN)/pip install --disable-pip-version-check -q $(PIP_ARGS) -c constraints.txt

.PHONY: demo test check dashboards reference pictures bench bench-gpu bench-queue model fuzz chaos chaos-bites clean

demo: .venv/demo
	$(BIN)/rose demo

# A file at a time on each core: what a file shares, it sets up once.
test: .venv/dev
	$(BIN)/python -m pytest -n auto --dist loadfile

check: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m deploy.grafana --check
	$(BIN)/python -m docs.reference --check

# Writes the JSON of the Grafana dashboards again; `make check` says when it is stale.
dashboards: .venv/demo
	$(BIN)/python -m deploy.grafana

# Writes the tables of docs/settings.md again; `make check` says when they are stale.
reference: .venv/demo
	$(BIN)/python -m docs.reference

# Draws docs/img anew: what `rose top` and `rose demo` show while they really run.
pictures: .venv/demo
	$(BIN)/python -m rose_cli.demo.pictures docs/img

# Fills docs/performance.md. BENCH='--only batch --vllm PYTHON_OF_VLLM' for another run.
bench: .venv/bench
	$(BIN)/python -m benchmarks.engine --write docs/performance.md --plot docs/img/engine.svg $(BENCH)

# On a machine with a GPU. BENCH_GPU=--cpu-smoke runs it small without one.
bench-gpu: .venv/bench
	$(BIN)/python -m benchmarks.gpu --write docs/performance.md $(BENCH_GPU)

# Needs a redis-server; CHAOS='--jobs 500 --seed 1' for another run.
chaos: .venv/dev
	$(BIN)/python -m tests.chaos $(CHAOS)

# Takes out one safeguard after another: the harness must notice each time.
chaos-bites: .venv/dev
	$(BIN)/python -m tests.chaos --bite

# BENCH_QUEUE="--peers-python PYTHON --bullmq FOLDER" for other queues, where they are installed.
bench-queue: .venv/demo
	$(BIN)/python -m benchmarks.queue $(BENCH_QUEUE)

# Trains the built-in model again into build/model, from the generator's text, in two runs.
model: .venv/demo
	$(BIN)/python -m training.train --out build/model-first
	$(BIN)/python -m training.train --start build/model-first --out build/model \
		--drill 0 --seed 3 --steps 900 --tokens 2048 --lr 1e-3

# A million damaged messages through a worker; FUZZ='--messages 10000 --seed 1' for another run.
fuzz: .venv/dev
	$(BIN)/python -m tests.fuzz $(FUZZ)

clean:
	rm -rf .venv build dist *.egg-info

.venv/bin/pip:
	$(PYTHON) -c 'import sys; sys.exit("roseinfer needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv

.venv/demo: .venv/bin/pip pyproject.toml constraints.txt
	@echo "installing roseinfer with torch and transformers into .venv (once; takes minutes)"
	$(INSTALL) -e '.[demo]'
	@touch $@

# Each of these has all of the demo's; where none is there yet, it compiles the kernels only once.
.venv/bench: .venv/bin/pip pyproject.toml constraints.txt
	@echo "installing what the benchmarks need, into .venv (once; takes minutes)"
	$(INSTALL) -e '.[bench]'
	@touch .venv/demo $@

.venv/dev: .venv/bin/pip pyproject.toml constraints.txt
	@echo "installing what the tests and checks need, into .venv (once; takes minutes)"
	$(INSTALL) -e '.[dev]'
	@touch .venv/demo .venv/bench $@
