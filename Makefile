# Plain pip and venv. `make demo` and `make test` work on a fresh clone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: venv demo check test attack bench verifier pictures release clean

venv: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: venv
	$(BIN)/everyformer demo

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

# Two processes of one thread each; the second call reads the files that name its marks.
MARKED = $(shell grep -rlE 'mark\.(compile|unhooked)' tests)
test: export OMP_NUM_THREADS = 1
test: check
	$(BIN)/pytest -q -n 2
	$(BIN)/pytest -q -n 2 -o addopts="" --strict-markers --import-mode=importlib -m "compile or unhooked" $(MARKED)

# Tampered certificates and random modules against the verifier and the checks.
CASES ?= 300
SEED  ?= 0
attack: venv
	$(BIN)/python -m tests.adversarial.attack --cases $(CASES) --seed $(SEED)
	$(BIN)/python -m tests.adversarial.register_tampering --cases $(CASES) --seed $(SEED)
	$(BIN)/python -m tests.adversarial.programs --cases $(CASES) --seed $(SEED)

bench: venv
	$(BIN)/everyformer bench building
	$(BIN)/everyformer bench execution
	$(BIN)/everyformer bench certificates

pictures: venv
	$(BIN)/python docs/pictures/draw.py

# Wheel and sdist, without the network, and a look at what is inside.
release: venv
	rm -rf build dist/*.whl dist/*.tar.gz
	$(BIN)/python -m build --no-isolation
	$(BIN)/pytest -q tests/test_release.py

verifier: venv
	$(BIN)/python -m everyformer.cli.standalone dist/everyformer-verify.pyz

clean:
	rm -rf $(VENV) build dist src/*.egg-info
