# `make run` shows what coterie does, `make test` checks it, `make bench` measures it. All set themselves up.
VENV := .venv
BIN := $(VENV)/bin
OUT ?= runs/two-labelings
REPEATS ?= 5
TORCH = $(shell $(BIN)/python -c "import torch; print(torch.__version__.split('+')[0])")  # for all that use it

.PHONY: run test test-slow bench clean

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
	@echo "import-linter ..." && $(BIN)/lint-imports --no-cache > .import-linter.log 2>&1 || { cat .import-linter.log; exit 1; }
	@echo "pytest ..." && $(BIN)/pytest -n 2 -m "not slow"

test-slow: $(VENV)/.installed
	@echo "pytest, the slow part ..." && $(BIN)/pytest -n 2 -m slow

# Other simulators, each in a virtual environment of its own; one that cannot be installed is skipped.
BASELINES := flower pfl fedjax
flower_needs = torch==$(TORCH) numpy 'flwr[simulation]==1.41.*'
pfl_needs = torch==$(TORCH) pfl
fedjax_needs = fedjax 'jax<0.5' 'jaxlib<0.5'  # what it calls was taken out of jax since

$(BASELINES:%=.bench/%.tried): | $(VENV)/.installed
	@echo "Setting up $(@:.tried=) (once) ..." && mkdir -p .bench
	@(python3 -m venv $(@:.tried=) && $(@:.tried=)/bin/pip install --quiet --disable-pip-version-check \
		$($(@:.bench/%.tried=%)_needs)) > $(@:tried=log) 2>&1 \
		|| echo "$(@:.tried=) could not be installed (see $(@:tried=log)) and is skipped"
	@touch $@

bench: $(VENV)/.installed $(BASELINES:%=.bench/%.tried)
	@COTERIE_BENCH_FLOWER=.bench/flower/bin/python COTERIE_BENCH_PFL=.bench/pfl/bin/python \
		COTERIE_BENCH_FEDJAX=.bench/fedjax/bin/python \
		$(BIN)/coterie bench --repeats $(REPEATS) --out .bench/speed.json
	@cp .bench/speed.json benchmarks/results/speed.json && $(BIN)/python docs/build.py

clean:
	rm -rf $(VENV) .bench .mypy_cache .ruff_cache .pytest_cache
