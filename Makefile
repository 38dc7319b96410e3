# `make demo`, `make test` and `make docs` set up all they need in $(VENV): Python and make are enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Each has a cache of its own: mypy discards results for another platform.
PLATFORMS := linux darwin win32
MYPY = $(BIN)/mypy --cache-dir .mypy_cache/$$platform

# The tests that pass with the file system and the processes of Windows, which a plugin simulates.
PORTABLE := tests/storage/test_load.py tests/storage/test_verbatim.py tests/pool tests/batches \
  tests/end_to_end/test_kinds_of_models.py tests/runtime/test_split.py tests/runtime/test_session.py \
  tests/runtime/test_kernel_cache.py tests/runtime/test_bundle_contents.py \
  tests/integrations/test_inference_session.py

.PHONY: demo test test-portable test-cpus docs
demo: $(VENV)/.installed
	mkdir -p build
	$(BIN)/onnxfold optimize models/swin.onnx -o build/swin.onnx --check 1

test: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	for platform in $(PLATFORMS); do $(MYPY) --platform $$platform || exit 1; done
	$(BIN)/pytest -n 3 --dist worksteal

test-portable: $(VENV)/.installed
	$(BIN)/pytest -p tests.portability.as_on_windows $(PORTABLE)

test-cpus: $(VENV)/.installed
	$(BIN)/python -m tests.cpus

docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	$(BIN)/mkdocs build --quiet --config-file docs/mkdocs.yml

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@
