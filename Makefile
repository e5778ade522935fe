# make demo, make test: each works on a fresh clone with nothing done before, in either order, and again.
PYTHON ?= python3
VENV := .venv
# Modules are compiled when they are first imported: most never are, and compiling all takes half of the install.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(VENV)/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test test-long browser lint audit format clean

demo: $(VENV)/.demo
	$(VENV)/bin/dragoman demo

test: $(VENV)/.dev lint
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -q -n 2

# Soaks, sweeps and trainings that take longer; their last results are in docs/results.md.
test-long: $(VENV)/.long
	DRAGOMAN_TEST_SEED=$${DRAGOMAN_TEST_SEED:-fresh} OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -q -n 2 -m long

# Debian's Chromium, for the tests of pages; without one they are skipped.
browser:
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core)

lint: $(VENV)/.dev
	$(VENV)/bin/ruff format --check src tests bench
	$(VENV)/bin/ruff check src tests bench
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache

# Known vulnerabilities in the pinned packages. Needs pypi.org itself: a mirror has the packages, but not what is known of
# each version, and without --strict all that cannot be looked up would pass.
audit: $(VENV)/.audit
	@echo "make audit asks pypi.org about each version in constraints.txt; 'not found on PyPI' means that it was not reached"
	$(VENV)/audit/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r constraints.txt

format: $(VENV)/.dev
	$(VENV)/bin/ruff format src tests bench
	$(VENV)/bin/ruff check --fix src tests bench

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# A stamp for each set of extras, renewed when the pins or the project's metadata change.
$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Dragoman needs Python 3.11 or newer: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[demo,serve]'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[demo,tensorboard,serve,image,audio,office,interop,onnx,sweep,dev]'
	touch $@

# Ray, S3 with a server of it, the schemas of Kubernetes: 400 MB that no other target needs.
$(VENV)/.long: $(VENV)/.dev
	$(PIP) -e '.[ray,remote]' moto flask flask-cors kubernetes-validate
	touch $@

$(VENV)/.audit: | $(VENV)/bin/python
	$(VENV)/bin/python -m venv $(VENV)/audit  # of its own: it is no part of what it looks at
	$(VENV)/audit/bin/python -m pip install --quiet --no-compile -c constraints.txt pip-audit
	touch $@
