# make run: set everything up and do the main job on real data.   make test: set everything up and pass the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test test-cluster test-workers setup lint bench pins clean

run: setup
	$(BIN)/pel-ray quickstart

# Three at a time, each with a Ray of its own: most of a test's time is waiting for processes to start.
test: setup lint
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder

# All that is said of jobs and clusters, with the long form: nodes and the head killed under every step. Two at a time.
test-cluster: setup
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'cluster or jobs'

# The same of several workers on one machine: they do the work of one, and one of them or the driver is killed.
test-workers: setup
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m workers

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "pel-ray needs Python 3.10 or newer: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cpu,quickstart,dev]'
	@touch $(READY)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	@status=0; for file in $(filter-out benchmarks/quality.py,$(wildcard benchmarks/[a-z]*.py)); do $(BIN)/python $$file $(BENCH) || status=1; done; exit $$status

# Pins what a fresh environment holds now.
pins: setup
	{ head -n 1 constraints.txt; $(BIN)/pip freeze --exclude-editable | sed -e 's/ @ .*//' -e 's/+cpu$$//'; } > constraints.new
	mv constraints.new constraints.txt
	@touch $(READY)

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
