SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help demo demo-check test test-all screenshots docs fuzz bench bench-full lint preflight setup stop clean

PYTHON_HERE := .local/venv/bin/python
ARGS ?=
SEED ?= 1
# Processes of tests at once. Each has a Spark of its own, which keeps a core busy and takes 2 GB.
WORKERS ?= 2
# What crosses the rooms, and random lives, anew on other catalogs, an object store and a cluster.
ON_EVERY_CATALOG = -m "not slow or everywhere" --captures 500 tests/histories/composed/test_random_lives.py \
	tests/backfill/test_staged.py $(addprefix tests/promises/test_, \
	bites.py cascades.py launched_jobs.py lost_files.py multi_and_graph_assets.py own_sql.py partitioned.py)
QUICK_TESTS = $(PYTHON_HERE) -m pytest --doctest-modules -m "not slow" --numprocesses=$(WORKERS) --dist=worksteal
# What depends on Spark's version, anew on the oldest one that works.
ON_EVERY_SPARK = tests/spark tests/query/test_spark_dialect.py $(addprefix tests/promises/test_, combine.py \
	columns_with_defaults.py made_of.py partitioned.py removals.py sql_assets.py values_and_names.py write_modes.py)
OLDEST_SPARK := 4.0.1
SECONDS ?= 600

# The jars and the local Spark of this checkout live with it, not in the home folder.
export DAGSTER_IPS_CACHE := $(CURDIR)/.local/cache
# Where this is set, as in many containers, each of many processes would compile the packages' sources again.
export PYTHONDONTWRITEBYTECODE :=

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | \
	    while IFS='|' read -r target what; do printf '  make %-11s %s\n' "$$target" "$$what"; done

demo: setup ## run the example pipeline and serve Dagster's UI on it
	$(PYTHON_HERE) -m example_project.demo

demo-check: setup ## run the example pipeline from end to end, and check what it shows
	$(PYTHON_HERE) -m example_project.demo --check

test: setup ## run the tests and the docstrings' examples, without the slow ones; ARGS="-k words" to choose
	$(QUICK_TESTS) $(ARGS)

test-all: setup ## run every test, also those with servers, a browser or a long duration
	@scripts/setup_browser.sh
	$(QUICK_TESTS) $(ARGS)
	$(PYTHON_HERE) -m pytest -m slow --numprocesses=$(WORKERS) --dist=loadfile $(ARGS)
	$(PYTHON_HERE) -m pytest --catalog postgres --storage s3 $(ON_EVERY_CATALOG) $(ARGS)
	$(PYTHON_HERE) -m pytest --catalog rest --storage s3 --spark cluster $(ON_EVERY_CATALOG) $(ARGS)
	scripts/on_versions.sh $(PYTHON_HERE) $(OLDEST_SPARK) -m "not slow or everywhere" $(ON_EVERY_SPARK) $(ARGS)

screenshots: setup ## take the docs' screenshots again, from the tests in a browser
	@scripts/setup_browser.sh
	SCREENSHOTS=docs/images $(PYTHON_HERE) -m pytest tests/browser

docs: setup ## build the documentation as a site in .local/site, and check its links
	@$(PYTHON_HERE) -c 'import zensical' 2>/dev/null || \
	    $(PYTHON_HERE) -m pip --disable-pip-version-check install -q -c constraints.txt -e '.[docs]'
	.local/venv/bin/zensical build --strict --clean && echo "Open .local/site/index.html"; status=$$?; rm -rf .cache; exit $$status

fuzz: setup ## test random histories of tables and of whole pipelines: make fuzz SEED=1 SECONDS=600
	$(PYTHON_HERE) -m tests.histories.fuzz --seed $(SEED) --seconds $$(( $(SECONDS) / 2 ))
	$(PYTHON_HERE) -m tests.histories.composed.fuzz --seed $(SEED) --seconds $$(( $(SECONDS) / 2 ))

bench: setup ## measure what the docs claim, and write their pages: about 10 minutes; ONLY="capture ticks" to choose
	$(PYTHON_HERE) -m benchmarks $(if $(ONLY),--only $(ONLY))

bench-full: setup ## measure the same and more at all sizes: about four hours
	$(PYTHON_HERE) -m benchmarks --full $(if $(ONLY),--only $(ONLY))

lint: setup ## check style, types and the direction of imports
	$(PYTHON_HERE) -m ruff check .
	$(PYTHON_HERE) -m ruff format --check .
	$(PYTHON_HERE) -m mypy $(wildcard dagster_ips example_project)
	.local/venv/bin/lint-imports

preflight: ## check for Python and Java; with apt-get and no password, install what is missing
	@scripts/preflight.sh >/dev/null

setup: preflight
	@scripts/setup.sh

stop: ## stop the local Spark of this checkout
	@[ ! -x $(PYTHON_HERE) ] || $(PYTHON_HERE) -m dagster_ips.local_spark.connect_server stop || true

clean: stop ## stop Spark and remove .local: packages, jars, tables, Dagster's home
	rm -rf .local
