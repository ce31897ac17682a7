# Two commands for everybody: `make demo` and `make test`. Every target does its own set-up and may be run again.

PYTHON ?= python3
VENV := .venv
OLDEST := .venv-oldest
PACKAGE := .venv-package
# the oldest transformers that is supported and not withdrawn (5.10.0 was)
OLDEST_TRANSFORMERS := 5.10.1

# two processes of one thread each; whole files stay together for the sake of their fixtures
PYTEST := -m pytest -n 2 --dist loadfile
RUN := HF_HUB_OFFLINE=1 $(VENV)/bin/python
DEMO_PROMPT := "Explain in five short steps how to bake bread, then repeat the steps as a numbered list."

.PHONY: demo test quality test-oldest package docs bars clean

# float32, so that nobody has to take near-ties of bfloat16 on trust: the tokens are the same
demo: $(VENV)/core
	$(RUN) -m branchwise generate $(DEMO_PROMPT) --max-new-tokens 160 --compare --dtype float32

test: $(VENV)/ready
	$(RUN) -m branchwise models fetch default
	OMP_NUM_THREADS=1 $(RUN) $(PYTEST)

quality: $(VENV)/ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

test-oldest: $(OLDEST)/ready
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(OLDEST)/bin/python $(PYTEST) -m "core and not model" -p no:cacheprovider

# what users get: both archives, the wheel in an environment of its own with the core dependencies only. The tool that
# builds stays outside that environment.
package:
	rm -rf $(PACKAGE) dist
	$(PYTHON) -m venv $(PACKAGE)
	$(PACKAGE)/bin/python -m pip install --quiet --target $(PACKAGE)/tools "build>=1.2"
	PYTHONPATH=$(PACKAGE)/tools $(PACKAGE)/bin/python -m build --outdir dist .
	$(PACKAGE)/bin/python -m pip install --quiet -c constraints.txt dist/*.whl
	$(PACKAGE)/bin/python -m pip check
	$(PACKAGE)/bin/python -I tests/installed_package.py dist

# the documentation site, in site/
docs: $(VENV)/ready
	rm -rf site
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict --quiet
	$(VENV)/bin/python tests/built_site.py site

# figures of the README, see bench/bars.sh
bars: $(VENV)/ready
	PATH="$(VENV)/bin:$$PATH" bash bench/bars.sh

# what a first generation needs; the rest is several times as large
$(VENV)/core: pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e ".[hub]"
	touch $@

$(VENV)/ready: $(VENV)/core
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e ".[hub,openvino,ray,docs,dev]"
	touch $@

$(OLDEST)/ready: pyproject.toml constraints.txt
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	grep -vE '^(transformers|tokenizers|huggingface_hub)==' constraints.txt > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet -c $(OLDEST)/constraints.txt -e ".[dev]" transformers==$(OLDEST_TRANSFORMERS)
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) $(PACKAGE) .hypothesis .pytest_cache .mypy_cache .ruff_cache build dist site
