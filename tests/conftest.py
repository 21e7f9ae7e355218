"""Servers that the tests share. Each starts on this machine, by itself, on a free port."""

from __future__ import annotations

import logging
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import hypothesis
import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.client.log import reader
from dualwrite.testing.postgres import PostgresServer
from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.support.databases import Database, MariaDbDatabase, PostgresDatabase, SqliteDatabase
from tests.support.servers.mariadb import MariaDbServer
from tests.support.unavailable import skip

pytest_plugins = [
    "tests.support.coroutines",
    "tests.support.failures_at_once",
    "tests.support.parallel_runs",
    "tests.support.proof_only",
]

_MEMORY: Final = Path("/dev/shm")
_ENOUGH_BYTES: Final = 4 << 30

# Each commit in an SQLite file is several fsyncs, which take seconds each while another process writes to the same
# disk: the temporary directories of tests are in memory where there is enough of it. A killed process loses no data by
# that.
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ENOUGH_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

# A shell starts background jobs with SIGINT ignored, and so are their children, to which tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is, not whether the code is right.
hypothesis.settings.register_profile("dualwrite", deadline=None)
hypothesis.settings.load_profile("dualwrite")


_FOREIGN_LOGGERS: Final = ("aiokafka", "kafka", "py4j")


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Capture this project's logs. A foreign client that an earlier test left behind may log at any time."""

    def is_ours(record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] not in _FOREIGN_LOGGERS

    caplog.handler.addFilter(is_ours)
    yield caplog
    caplog.handler.removeFilter(is_ours)


@pytest.fixture
def brief_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a log without a marker be watched for a moment only, where none is to come."""
    monkeypatch.setattr(reader, "SHOWN_WITHIN_MS", 50)


@pytest.fixture
def asks_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a block query the outcome of its lost commit again once, and then no more: no slow query is cut off."""
    for module in ("core.completion", "pool.outbox"):
        monkeypatch.setattr(f"dualwrite.recipes.{module}.backoff_s", lambda failures: 0.0 if failures < 2 else 3_600.0)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    try:
        server = PostgresServer.start()
    except ServerUnavailableError as error:
        skip(error)
    with server:
        server.spare_the_disk()
        yield server


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[PostgresDatabase]:
    """For features of PostgreSQL alone."""
    made = PostgresDatabase(postgres_server)
    yield made
    made.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteDatabase]:
    made = SqliteDatabase(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDbServer]:
    try:
        server = MariaDbServer.start()
    except ServerUnavailableError as error:
        skip(error)
    with server:
        server.spare_the_disk()
        yield server


@pytest.fixture
def mariadb(mariadb_server: MariaDbServer) -> Iterator[MariaDbDatabase]:
    """For features of InnoDB alone."""
    made = MariaDbDatabase(mariadb_server)
    yield made
    made.close()


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator() as broker:
        yield broker


_ON_MARIADB_TOO = (
    "cli.test_doctor",
    "cli.test_init_db",
    "cli.test_outbox_tables",
    "crash.test_lost_commit",
    "crash.test_matrix",
    "crash.test_pool_leases",
    "crash.test_split_brain",
    "recipes.test_dual_writer",
    "recipes.test_lease_table",
    "recipes.test_misuse",
    "recipes.test_state_table",
    "recipes.test_diversion",
    "recipes.test_whose_transaction",
    "recovery.test_outbox",
    "recovery.test_service",
    "spark.test_dual_table",
    "spark.test_recovery",
)


_ON_PSYCOPG_TOO = ("crash.test_pool_leases", "recipes.test_pool", "recipes.test_diversion")
"""Modules whose scenario "psycopg" runs without SQLAlchemy; its database is another Postgres."""


_ON_ONE = {
    "cli.test_outbox_tools": "postgres",
    "cli.test_publish": "postgres",
    "cli.test_recover": "postgres",
    "cli.test_spark_cli": "sqlite",
    "cli.test_take_out": "sqlite",
    "cli.test_top": "sqlite",
    "recipes.test_decorator": "postgres",
    "recipes.test_failing_telemetry": "sqlite",
    "recipes.test_telemetry": "postgres",
    "recipes.test_traces": "sqlite",
}
"""Modules whose rules are in code that all databases share, or need a feature that others lack."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that needs a database on each; on MariaDB only where databases differ in it."""
    if "database" in metafunc.fixturenames:
        module = metafunc.module.__name__.removeprefix("tests.")
        if module in _ON_ONE:
            metafunc.parametrize("database", [_ON_ONE[module]], indirect=True)
            return
        more = ["mariadb"] * (module in _ON_MARIADB_TOO) + ["psycopg"] * (module in _ON_PSYCOPG_TOO)
        metafunc.parametrize("database", ["postgres", *more, "sqlite"], indirect=True)


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    made: Database
    if request.param in ("postgres", "psycopg"):
        made = PostgresDatabase(request.getfixturevalue("postgres_server"))
    elif request.param == "mariadb":
        made = MariaDbDatabase(request.getfixturevalue("mariadb_server"))
    else:
        made = SqliteDatabase(tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["postgres", "mariadb"])
def store(request: pytest.FixtureRequest) -> Iterator[Database]:
    """Each database for which Django has an ENGINE with dual writes."""
    is_postgres = request.param == "postgres"
    server = request.getfixturevalue("postgres_server" if is_postgres else "mariadb_server")
    made = PostgresDatabase(server) if is_postgres else MariaDbDatabase(server)
    yield made
    made.close()
