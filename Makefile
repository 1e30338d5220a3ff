# Two commands for a fresh machine with Python 3.11 or newer and a C compiler:
#   make demo    set up, train a small model on the built-in text, print a sample
#   make test    set up and run the whole test suite

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test slow-test lint clean

# the package itself, installed the way a user installs it
$(VENV)/installed: pyproject.toml setup.py $(shell find llmcy -name '*.py' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.h')
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet .
	touch $@

demo: $(VENV)/installed
	cd $(VENV) && rm -rf demo-run && bin/llmcy train --run demo-run --steps 200
	cd $(VENV) && bin/llmcy sample demo-run --prompt "The " --temperature 0.8 --top-k 40 --seed 1

# the suite runs on an editable install: tests sit beside the package, not inside it
$(VENV)-test/installed: pyproject.toml setup.py $(shell find llmcy -name '*.pyx' -o -name '*.pxd' -o -name '*.h')
	$(PYTHON) -m venv $(VENV)-test
	$(VENV)-test/bin/pip install --quiet --upgrade pip
	$(VENV)-test/bin/pip install --quiet --editable '.[test]'
	touch $@

test: $(VENV)-test/installed
	$(VENV)-test/bin/pytest -n auto

slow-test: $(VENV)-test/installed
	$(VENV)-test/bin/pytest -m slow

lint: $(VENV)-test/installed
	$(VENV)-test/bin/ruff check llmcy tests tools setup.py
	$(VENV)-test/bin/mypy llmcy

clean:
	rm -rf $(VENV) $(VENV)-test build *.egg-info llmcy/_kernels/*_f64 llmcy/_kernels/*_f32
	find llmcy -name '*.so' -delete
