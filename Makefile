# `make demo`, `make test` and `make docs` set up all they need in $(VENV): Python and make are enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Each has a cache of its own: mypy discards results for another platform.
PLATFORMS := linux darwin win32
# The system that `make test-portable` simulates: windows or macos.
SYSTEM ?= windows
MYPY = $(BIN)/mypy --cache-dir .mypy_cache/$$platform

.PHONY: demo test test-portable test-cpus docs
demo: $(VENV)/.installed
	mkdir -p build
	$(BIN)/onnxfold optimize models/swin.onnx -o build/swin.onnx --check 1

test: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	for platform in $(PLATFORMS); do $(MYPY) --platform $$platform || exit 1; done
	$(BIN)/pytest -n 3 --dist worksteal

# A plugin simulates the system. tests/portability/posix_only.py lists the tests that Windows skips.
test-portable: $(VENV)/.installed
	$(BIN)/pytest -n 3 --dist worksteal -p tests.portability.as_on_$(SYSTEM)

test-cpus: $(VENV)/.installed
	$(BIN)/python -m tests.cpus

docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	$(BIN)/mkdocs build --quiet --config-file docs/mkdocs.yml

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@
