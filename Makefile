# Two commands: `make serve` and `make test`. Both set up .venv first, which takes minutes once and no time after.

BIN := .venv/bin
ONE_ID := tests/serve_apps/test_schemathesis.py# its operations share one test id, of which pytest-xdist runs the first

.PHONY: serve test check soak bench setup clean

serve: setup
	@exec $(BIN)/acs serve

test: setup check
	$(BIN)/python -m pytest --ignore=tests/tidy --ignore=$(ONE_ID) -m "not soak" -n 2 --no-loadscope-reorder
	$(BIN)/python -m pytest -q $(ONE_ID)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -p acs
	$(BIN)/python -m pytest -q tests/tidy

soak: setup
	$(BIN)/python -m pytest -m soak

bench: setup
	$(BIN)/python benchmarks/completions.py
	$(BIN)/python benchmarks/whole_vocabulary.py
	$(BIN)/python benchmarks/views.py
	$(BIN)/python benchmarks/ledger.py
	$(BIN)/python benchmarks/tap_alone.py
	$(BIN)/python benchmarks/activations.py
	$(BIN)/python benchmarks/activations_http.py
	$(BIN)/python benchmarks/jobs.py
	$(BIN)/python benchmarks/harvest.py
	$(BIN)/python benchmarks/loom.py

setup:
	@scripts/setup

clean: # what can be made again; the data of a server (.acs) stays
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path "./.git/*" -prune -exec rm -rf {} +
