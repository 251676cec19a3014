# Plain pip and venv. `make demo` and `make test` work on a fresh clone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: venv demo check lint types test tests test-all attack bench papers docs verifier page-types pictures release clean

venv: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: venv
	$(BIN)/everyformer demo

check: lint types

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: venv
	$(BIN)/basedpyright

# Types beside the tests: pyright has one thread, and some tests wait for others.
# Tests have two processes of one thread each; the second call reads the files that name
# its marks.
# Modules that the hook and pytest rewrite are compiled once, whatever the shell says.
MARKED = $(shell grep -rlE --include='*.py' 'mark\.(compile|unhooked)' tests)
UNHOOKED = $(BIN)/pytest -q -n 2 -o addopts="" --strict-markers --import-mode=importlib
test: lint
	$(MAKE) --jobs 2 types tests

tests: export OMP_NUM_THREADS = 1
tests: export PYTHONDONTWRITEBYTECODE =
tests: venv
	$(BIN)/pytest -q -n 2
	$(UNHOOKED) -m "(compile or unhooked) and not slow" $(MARKED)

# And the rows of long tables whose kind is tested above by another row.
test-all: export OMP_NUM_THREADS = 1
test-all: test
	$(BIN)/pytest -q -n 2 -m "slow and not compile and not unhooked and not gpu"
	$(UNHOOKED) -m "(compile or unhooked) and slow" $(MARKED)

# Tampered certificates and random modules against the verifier and the checks.
CASES ?= 300
SEED  ?= 0
attack: venv
	$(BIN)/python -m tests.adversarial.attack --cases $(CASES) --seed $(SEED)
	$(BIN)/python -m tests.adversarial.compile_attack --cases $(CASES) --seed $(SEED)
	$(BIN)/python -m tests.adversarial.register_tampering --cases $(CASES) --seed $(SEED)
	$(BIN)/python -m tests.adversarial.programs --cases $(CASES) --seed $(SEED)

bench: venv
	$(BIN)/everyformer bench building
	$(BIN)/everyformer bench execution
	$(BIN)/everyformer bench certificates

# docs/papers.md, from docs/papers.toml and the marks in the code.
papers: venv
	$(BIN)/python -m tests.papers_page

# The documentation site in build/site; nothing is loaded from elsewhere when it is read.
$(VENV)/.docs: $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The types of the explorer's modules; needs node and npm, which nothing else does.
TYPESCRIPT = build/node/node_modules/.bin/tsc
page-types:
	test -x $(TYPESCRIPT) || npm install --silent --no-audit --no-fund --prefix build/node typescript@5.9
	$(TYPESCRIPT) -p tests/explore/jsconfig.json

# The README's picture, and every view of the explorer; look at them before you commit them.
pictures: venv
	$(BIN)/python docs/pictures/draw.py
	$(BIN)/python -m tests.explore.pictures docs/pictures

# Wheel and sdist, without the network, and a look at what is inside.
release: venv
	rm -rf build/lib dist/*.whl dist/*.tar.gz
	$(BIN)/python -m build --no-isolation
	$(BIN)/pytest -q tests/test_release.py

verifier: venv
	$(BIN)/python -m everyformer.cli.standalone dist/everyformer-verify.pyz

clean:
	rm -rf $(VENV) build dist src/*.egg-info
