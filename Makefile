# `make` lists what there is to make.
PYTHON ?= python3
# What pip installs as PyTorch. From PyPI on Linux that is a CUDA build of several GB; for a small one see README.md.
TORCH ?= torch==2.13.0
PYTEST ?= -q

SOURCES := pyproject.toml setup.py $(shell find src -name '*.py' -o -name '*.cpp' -o -name '*.hpp' -o -path '*/report/page.*')
CPP := find src tests -name '*.[ch]pp'
RUN := .venv/bin/python
unexport PYTHONDONTWRITEBYTECODE # what is imported in a thousand programs is compiled once

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */\1 | /' | \
	    awk -F ' \\| ' '{ printf "  make %-11s %s\n", $$1, $$2 }'

.PHONY: demo
demo: .venv/.for-demo ## train a small transformer with every operator observed; ends with a report
	$(RUN) examples/demo.py

.PHONY: test
test: .venv/.for-test ## the whole test suite, then the part without PyTorch on the other CPythons found here
	scripts/test_all.sh $(PYTEST)

.PHONY: sanitize
sanitize: .venv/.for-test ## recorder, drain and contract tests under the compiler's sanitizers (Linux)
	scripts/sanitize.sh

.PHONY: lint
lint: .venv/.for-test ## linter, formats and types
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(CPP) | xargs .venv/bin/clang-format --dry-run -Werror
	$(RUN) -m mypy

.PHONY: format
format: .venv/.for-test ## set Python and C++ as lint wants them
	$(RUN) -m ruff format .
	$(CPP) | xargs .venv/bin/clang-format -i

.PHONY: check
check: lint ## linter, formats, types and layers
	$(RUN) -m pytest -q tests/unit/test_layers.py tests/unit/test_native_layers.py

.PHONY: map
map: ## what each source file is
	@"$(PYTHON)" scripts/map.py

.PHONY: bench
bench: .venv/.for-test ## what it costs, beside its peers, on this machine
	@for file in benchmarks/bench_*.py; do echo "== $$file"; $(RUN) $$file || exit 1; done

.PHONY: bench-quick
bench-quick: .venv/.for-test ## what a program pays beside the recorder, in two minutes
	$(RUN) benchmarks/quick.py

.PHONY: build
build: .venv/.for-test ## a wheel, in dist/
	$(RUN) -m pip wheel -q --no-deps --no-build-isolation -w dist . && ls dist

.PHONY: clean
clean: ## remove environments, builds and the demo's output
	rm -rf .venv .venv-3.* build dist demo-out src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/.torch: scripts/venv_with_torch.sh
	scripts/venv_with_torch.sh .venv "$(PYTHON)" "$(TORCH)"
	touch $@

.venv/.for-demo: .venv/.torch $(SOURCES)
	scripts/install.sh .venv torch,examples
	touch $@

.venv/.for-test: .venv/.torch $(SOURCES)
	scripts/install.sh .venv torch,examples,dev
	touch .venv/.for-demo $@
