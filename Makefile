# `make demo` and `make test` are all a newcomer needs; each makes the environment when it is missing.
PYTHON ?= python3
VENV ?= .venv
LEGACY ?= .venv-tl3
BIN := $(VENV)/bin
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Threads that spin while they wait slow everything down by a multiple when a core is shared.
export OMP_WAIT_POLICY ?= PASSIVE
# Two processes with a thread each get more done than one with two.
WORKERS ?= 2

.PHONY: demo test lint types unit legacy docs browser bench clean

demo: $(VENV)/.ready
	$(BIN)/locos-tl demo

test: lint types unit docs legacy

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# Pages of the site, with the notebooks as the tests left them; a warning is an error.
docs: $(VENV)/.dev
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/doctrees docs build/docs
	@echo "open build/docs/index.html"

# The same parity tests on transformer-lens 3.9, the last line with HookedTransformer.
legacy: $(LEGACY)/.ready
	$(LEGACY)/bin/python -m pytest -m legacy

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks

# The report is tested in a real browser; where there is no apt-get, those tests skip and say so.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null; } || true

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "installing into $(VENV): about 2 GB, a few minutes"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

$(LEGACY)/.ready: pyproject.toml constraints.txt
	test -x $(LEGACY)/bin/python || $(PYTHON) -m venv $(LEGACY)
	sed '/^transformer-lens==/d' constraints.txt > $(LEGACY)/constraints.txt
	$(LEGACY)/bin/python -m pip install --quiet -c $(LEGACY)/constraints.txt -e . 'transformer-lens>=3.9,<4' pytest hypothesis beartype
	touch $@

clean:
	rm -rf $(VENV) $(LEGACY) build dist .pytest_cache .ruff_cache .mypy_cache
