# Every target builds what it needs in .venv first; nothing has to be installed by hand but Python >= 3.11.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Most tests wait for disks and sockets, so more of them than there are cores run at a time; 0 runs them in one process.
# Files are not reordered by their number of tests: the long ones have few, and one worker would still be busy with them
# when the others have nothing left.
TEST_WORKERS ?= 5
READY := $(VENV)/.ready

# The oldest Spark that works, by pyproject.toml, in an environment of its own: pip would replace the newer one.
OLDEST_SPARK := 4.2.0
VENV_OLDEST_SPARK := $(VENV)-spark-floor
TESTS_OLDEST_SPARK := $(addprefix tests/spark/test_,batch.py foreach_batch.py source.py datasource.py)

# The same for SQLAlchemy: what runs on it, in the tests that `make test` runs. 2.0.43 has the first dialects that tell
# whether a connection is in autocommit mode.
OLDEST_SQLALCHEMY := 2.0.43
VENV_OLDEST_SQLALCHEMY := $(VENV)-sqlalchemy-floor
TESTS_OLDEST_SQLALCHEMY := tests/recipes tests/crash tests/recovery tests/pgbouncer tests/cli/test_init_db.py \
  tests/cli/test_alembic_project.py tests/unit/test_sqlalchemy_internals.py tests/spark/test_commit_store.py \
  tests/spark/test_store_connections.py

# The oldest Django, by pyproject.toml, in a folder before the newer one of $(VENV), which `make test` takes.
OLDEST_DJANGO := 4.2
FOLDER_OLDEST_DJANGO := $(VENV)-django-floor
TESTS_OLDEST_DJANGO := tests/django tests/examples/test_django_shop.py

.PHONY: demo demo-spark test proof test-spark-floor test-sqlalchemy-floor test-django-floor interop fuzz differential lint docs bench dist clean

demo: $(READY)
	$(BIN)/python -m examples.flights $(DEMO_ARGS)

demo-spark: $(READY)
	$(BIN)/python -m examples.flights_spark $(DEMO_SPARK_ARGS)

# `test` is for every change and leaves out what is marked `proof`; `proof` runs everything.
# Compiled files are kept even where the environment says otherwise: each of the processes, and each process that a test
# starts, would compile everything anew.
test proof: export PYTHONDONTWRITEBYTECODE :=
test: $(READY)
	$(BIN)/python -m tests.support.fetch_servers
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder -m "not proof" $(TEST_ARGS)

proof: $(READY)
	$(BIN)/python -m tests.support.fetch_servers
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(TEST_ARGS)

test-spark-floor: $(VENV_OLDEST_SPARK)/.ready
	$(VENV_OLDEST_SPARK)/bin/python -c 'import pyspark; assert pyspark.__version__ == "$(OLDEST_SPARK)", pyspark'
	$(VENV_OLDEST_SPARK)/bin/python -m pytest $(TESTS_OLDEST_SPARK) $(TEST_ARGS)

test-sqlalchemy-floor: $(VENV_OLDEST_SQLALCHEMY)/.ready
	$(VENV_OLDEST_SQLALCHEMY)/bin/python -c 'import sqlalchemy as sa; assert sa.__version__ == "$(OLDEST_SQLALCHEMY)", sa'
	$(VENV_OLDEST_SQLALCHEMY)/bin/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder \
	  -m "not proof" $(TESTS_OLDEST_SQLALCHEMY) $(TEST_ARGS)

test-django-floor: export PYTHONPATH := $(abspath $(FOLDER_OLDEST_DJANGO))
test-django-floor: $(READY) $(FOLDER_OLDEST_DJANGO)/.ready
	$(BIN)/python -c 'import django; assert django.__version__ == "$(OLDEST_DJANGO)", django'
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder \
	  -m "not proof" $(TESTS_OLDEST_DJANGO) $(TEST_ARGS)

$(FOLDER_OLDEST_DJANGO)/.ready: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --no-deps \
	  --target $(@D) django==$(OLDEST_DJANGO)
	@touch $@

interop: $(READY)
	$(BIN)/python -m pytest tests/interop $(TEST_ARGS)

# Hostile requests against the emulator; requests in step with a real Apache Kafka.
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

differential: $(READY)
	$(BIN)/python -m tests.differential $(DIFFERENTIAL_ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation as a site, in build/site; a link that leads nowhere is an error.
docs: export NO_MKDOCS_2_WARNING := 1
docs: $(READY)
	$(BIN)/python -m mkdocs build --strict --config-file docs/site/mkdocs.yml --site-dir "$(CURDIR)/build/site"

bench: $(READY)
	$(BIN)/python -m benchmarks $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.dual_write $(DUAL_WRITE_BENCH_ARGS)
	$(BIN)/python -m benchmarks.broker $(BROKER_BENCH_ARGS)
	$(BIN)/python -m benchmarks.broker_scale $(SCALE_BENCH_ARGS)
	$(BIN)/python -m benchmarks.spark_sink $(SPARK_BENCH_ARGS)

dist: $(READY)
	rm -rf build dist
	$(BIN)/python .ci/distributions.py
	$(BIN)/python -m twine check --strict dist/*

# A virtual environment in $(@D) with what $(REQUIRED) names.
$(READY): REQUIRED := '.[dev]'
$(VENV_OLDEST_SPARK)/.ready: REQUIRED := '.[dev]' pyspark==$(OLDEST_SPARK)
$(VENV_OLDEST_SQLALCHEMY)/.ready: REQUIRED := '.[dev]' 'sqlalchemy[asyncio]==$(OLDEST_SQLALCHEMY)'
$(READY) $(VENV_OLDEST_SPARK)/.ready $(VENV_OLDEST_SQLALCHEMY)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "dualwrite needs Python >= 3.11; point PYTHON at one: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(@D) || \
	  { echo "Python's venv module is incomplete here; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable $(REQUIRED)
	@touch $@

clean:
	rm -rf $(VENV) $(VENV_OLDEST_SPARK) $(VENV_OLDEST_SQLALCHEMY) $(FOLDER_OLDEST_DJANGO) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
