PYTHON ?= python3
BIN := .venv/bin

.PHONY: env demo test test-slow lint types bench clean

env: .venv/.ready  ## the virtual environment with everything the tests need

.venv/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Error: Python 3.11 or newer is needed; name one with make PYTHON=python3.11"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: env  ## from data to pictures on two small problems
	$(BIN)/python examples/demo.py --out demo-output

test: env  ## the test suite
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: env  ## the heavy checks
	$(BIN)/python -m pytest -m slow

lint: env  ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: env  ## static types
	$(BIN)/pyright

bench: env  ## speed and memory, as ratios in one run
	$(BIN)/python -m benchmarks.contraction
	$(BIN)/python -m benchmarks.resolvents
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.aircraft
	$(BIN)/python -m benchmarks.training
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.parallel
	$(BIN)/python -m benchmarks.scale

clean:
	rm -rf .venv demo-output .pytest_cache .ruff_cache
