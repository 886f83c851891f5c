# make demo         train two models on device "tpu", minutes
# make test         every test
# make check        lint, format, types and the fast tests, what pre-commit runs
# make bench        ratios to torch CPU eager, in bench_output/
# make conformance  torch's whole operator database; an hour, goes on where it stopped
# make wheel        dist/: an sdist, and a wheel with the core prebuilt for the installed torch

.PHONY: demo test check bench conformance wheel venv
.DEFAULT_GOAL := demo

RUNS_VENV = import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3.14 python3,\
            $(shell $(p) -c '$(RUNS_VENV)' 2>/dev/null && echo $(p))))
READY := .venv/.ready
PY := .venv/bin/python
DIST := dist
STAGE := build/wheel
PLATFORM = $(shell $(PY) -c "import sysconfig; print(sysconfig.get_platform())")

venv: $(READY)

# Made once, and again when the pins or the package's description change.
$(READY): constraints.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "needs Python >= 3.11 with venv (set PYTHON=...)"; exit 1; }
	@echo "== .venv: installing the tested set of constraints.txt, a few minutes, once"
	@$(PYTHON) -m venv .venv
	@$(PY) -m pip install --disable-pip-version-check --no-compile -c constraints.txt -e '.[test]'
	@touch $@

demo: $(READY)
	@$(PY) examples/train_digits.py --compare
	@$(PY) examples/train_gpt.py --compare

test: $(READY)
	@$(PY) -m pytest

check: $(READY)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) -m pytest -m "not slow and not by_hand"

bench: $(READY)
	@$(PY) tests/benchmarks/run.py

conformance: $(READY)
	@$(PY) -m tests.conformance --resume

# An sdist, and from it a wheel that carries the core built here for the installed torch.
wheel: $(READY)
	@rm -rf $(STAGE) && mkdir -p $(STAGE) $(DIST)
	@$(PY) -c "from setuptools.build_meta import build_sdist as b; b('$(DIST)')" >$(STAGE)/sdist.log
	@tar -xzf $(DIST)/tpu_kernels-*.tar.gz -C $(STAGE) --strip-components=1
	@$(PY) -m tpu_kernels.backend.build --output $(STAGE)/backend/prebuilt
	@$(PY) -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	  -C--build-option=--plat-name=$(PLATFORM) -w $(DIST) $(STAGE)
	@ls -l $(DIST)
