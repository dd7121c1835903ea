# Needs make and python3 (3.11 or later), nothing else: each target makes its own environment.

.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
RUN := $(VENV)/bin/python
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON = $(firstword $(foreach name,python3 python3.13 python3.12 python3.11,\
	$(shell $(name) -c '$(NEW_ENOUGH)' 2>/dev/null && echo $(name))))
TOO_OLD = bdtppl needs Python 3.11 or later, and python3 here is \
	$(or $(shell python3 --version 2>/dev/null),missing): install one, or name it with `make PYTHON=...`

DEMO_OUT := bdtppl-demo
WORKERS := 2
PYTEST_FLAGS :=
unexport PYTHONDONTWRITEBYTECODE  # else each of the many processes compiles the sources again
CASES := 2000
BENCHMARKS := systems exact greedy_modal map_trees metropolis particle amortised soft_trees reproduce

.PHONY: help demo test slow kill-test mutants fuzz lowest lint types doctest wheel notebooks docs bench clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(VENV)/installed  ## four pictures in ./bdtppl-demo, in about a minute
	$(VENV)/bin/bdtppl demo --out $(DEMO_OUT)

test: $(VENV)/installed  ## the fast tests
	$(RUN) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_FLAGS)

slow: $(VENV)/installed  ## the slow tests: statistical checks of minutes
	$(RUN) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m slow $(PYTEST_FLAGS)

kill-test: $(VENV)/installed  ## fits with checkpoints, killed at random moments
	$(RUN) tests/kill_test.py

mutants: $(VENV)/installed  ## mistakes made on purpose in the source, each of which a test must notice
	$(RUN) tests/mutants.py

doctest: $(VENV)/installed  ## every example in a docstring
	$(RUN) tests/doctests.py

wheel: $(VENV)/installed  ## build the wheel and try it in a clean environment
	$(RUN) tests/wheel_install.py

bench: $(VENV)/installed  ## all benchmarks, which take many hours; BENCHMARKS=exact for one
	for name in $(BENCHMARKS); do $(RUN) -m benchmarks.$$name || exit 1; done

lowest: $(VENV)/installed  ## the lowest versions of the dependencies: imports and some tests
	$(RUN) tests/lowest_versions.py

fuzz: $(VENV)/installed  ## damaged prior files, tables, models and checkpoints; CASES=100 for fewer of each kind
	$(RUN) tests/fuzz.py --cases $(CASES)

lint: $(VENV)/installed-dev  ## style and formatting
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(VENV)/installed-dev  ## static types, read from an installed wheel
	rm -rf build/lib build/typed
	$(RUN) -m pip install --quiet --no-deps --target build/typed .
	$(RUN) -m pyright --pythonpath $(RUN)

notebooks: $(VENV)/installed-dev  ## execute the notebooks in place
	$(RUN) tests/execute_notebooks.py

docs: $(VENV)/installed-docs  ## the documentation, into build/docs, with the links in it checked
	rm -rf docs/api/generated build/docs build/doctrees  # no page of a module that is gone
	MPLBACKEND=Agg $(RUN) -m sphinx --quiet --fail-on-warning --keep-going \
		--doctree-dir build/doctrees docs build/docs
	$(RUN) docs/check_links.py build/docs

clean:  ## remove the environment and whatever was built
	rm -rf $(VENV) build dist *.egg-info bdtppl-demo

$(RUN):
	$(or $(PYTHON),$(error $(TOO_OLD))) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(RUN)
	$(RUN) -m pip install --quiet --editable '.[test]'
	@touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(RUN) -m pip install --quiet --editable '.[docs]'
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(RUN) -m pip install --quiet --editable '.[dev]'
	@touch $@
