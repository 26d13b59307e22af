# `make run` shows what coterie does; `make test` checks it. Both set themselves up.
VENV := .venv
BIN := $(VENV)/bin
OUT ?= runs/two-labelings

.PHONY: run test test-slow clean

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (once; a minute or two) ..."
	@test -x $(BIN)/python || python3 -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,datasets]'
	@touch $@

run: $(VENV)/.installed
	@$(BIN)/coterie run examples/two-labelings.toml --out $(OUT) --again

test: $(VENV)/.installed
	@echo "ruff ..." && $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "mypy --strict ..." && $(BIN)/mypy
	@echo "pytest ..." && $(BIN)/pytest -n 2 -m "not slow"

test-slow: $(VENV)/.installed
	@echo "pytest, the slow part ..." && $(BIN)/pytest -n 2 -m slow

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
