"""A state table of an older version, which has no column `manifest`: it gets the column, or is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import StateTableError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import blocking
from dualwrite.recipes.postgres import transaction
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from dualwrite.recipes.recovery.service import RecoveryService
from dualwrite.recipes.sql.pinned_tables import ADD_MANIFEST
from dualwrite.recipes.sqlalchemy import manifest_column
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyStateStore, create_state_table, kafka_transaction_state
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from dualwrite.testing.postgres import PostgresServer
from tests.crash.psycopg_scenario import conninfo_of
from tests.support.databases import Database, PostgresDatabase
from tests.support.threads import in_threads

EMPTY = PreparedTxnState()
FIRST = PreparedTxnState("42:7")
NOWHERE = "127.0.0.1:1"
REFUSED = "no column manifest, because an older version created it; nothing was written: .*`dualwrite init-db`"


def make_old(database: Database) -> None:
    """Leave the table as an older version created it, with one decision in it."""
    create_state_table(database.engine)
    store = SqlAlchemyStateStore(database.engine)
    store.ensure_row("t")
    with database.engine.begin() as connection:
        store.lock(connection, "t", timeout_ms=None)
        store.write(connection, "t", previous=EMPTY, new=FIRST, manifest="")
    with database.aside.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE kafka_transaction_state DROP COLUMN manifest")


def columns(database: Database) -> list[str]:
    return [column["name"] for column in sa.inspect(database.aside).get_columns("kafka_transaction_state")]


def assert_added(database: Database) -> None:
    """Assert that the table has the column, and still the old decision."""
    assert columns(database).count("manifest") == 1
    store = SqlAlchemyStateStore(database.engine)
    with database.engine.begin() as connection:
        assert store.lock(connection, "t", timeout_ms=None) == FIRST
        assert store.read_manifest(connection, "t") == ""
        store.write(connection, "t", previous=FIRST, new=FIRST, manifest="m")
        assert store.read_manifest(connection, "t") == "m"


def with_sqlalchemy(database: Database, *, create_table: bool) -> DualWriter:
    return DualWriter(
        database.engine, bootstrap_servers=NOWHERE, transactional_id="t", create_table=create_table, max_block_ms=1
    )


def with_psycopg(database: Database, *, create_table: bool) -> PsycopgDualWriter:
    return PsycopgDualWriter(
        conninfo_of(database.url), bootstrap_servers=NOWHERE, transactional_id="t", create_table=create_table
    )


def ensure_row(writer: DualWriter | PsycopgDualWriter) -> None:
    """Take the first step of a writer's first use."""
    blocking.run(writer.backend.database.ensure_row("t"))


def test_a_writer_that_creates_tables_adds_it(database: Database) -> None:
    make_old(database)
    with with_sqlalchemy(database, create_table=True) as writer:
        ensure_row(writer)
    assert_added(database)


def test_a_writer_on_psycopg_that_creates_tables_adds_it(postgres: PostgresDatabase) -> None:
    make_old(postgres)
    with with_psycopg(postgres, create_table=True) as writer:
        ensure_row(writer)
    assert_added(postgres)


def test_a_writer_that_creates_none_refuses_the_table(database: Database) -> None:
    make_old(database)
    with with_sqlalchemy(database, create_table=False) as writer, pytest.raises(StateTableError, match=REFUSED):
        ensure_row(writer)
    assert "manifest" not in columns(database)


def test_a_writer_on_psycopg_that_creates_none_refuses_the_table(postgres: PostgresDatabase) -> None:
    make_old(postgres)
    with with_psycopg(postgres, create_table=False) as writer:
        with pytest.raises(StateTableError, match=REFUSED):
            ensure_row(writer)
        assert "manifest" not in columns(postgres)
        create_state_table(postgres.engine)
        ensure_row(writer)  # a missing column is looked for again
    assert_added(postgres)


def test_recovery_refuses_the_table(database: Database, emulator: Emulator) -> None:
    make_old(database)
    servers = emulator.bootstrap_servers
    with (
        RecoveryService(database.engine, bootstrap_servers=servers, transactional_ids=["t"]) as service,
        pytest.raises(StateTableError, match=REFUSED),
    ):
        service.recover()


def test_several_processes_add_it_at_once(database: Database) -> None:
    make_old(database)
    at_once([lambda: create_state_table(database.engine)] * 4)
    assert_added(database)


def test_several_processes_with_different_drivers_add_it_at_once(postgres: PostgresDatabase) -> None:
    make_old(postgres)
    made = [make(postgres, create_table=True) for make in (with_sqlalchemy, with_psycopg) * 3]
    at_once([lambda writer=writer: ensure_row(writer) for writer in made])  # type: ignore[misc]
    for writer in made:
        writer.close()
    assert_added(postgres)


def at_once(steps: list[Callable[[], object]]) -> None:
    ready = threading.Barrier(len(steps))

    def carry_out(step: Callable[[], object]) -> None:
        ready.wait(30)
        step()

    in_threads(*(partial(carry_out, step) for step in steps))


@pytest.mark.parametrize("make", [with_sqlalchemy, with_psycopg])
def test_who_does_not_own_the_table_is_told_who_has_to_add_it(
    postgres: PostgresDatabase, postgres_server: PostgresServer, make: Callable[..., Any]
) -> None:
    make_old(postgres)
    with as_a_user(postgres, postgres_server) as user, make(user, create_table=True) as writer:
        with pytest.raises(StateTableError, match="as a user who owns the table") as caught:
            ensure_row(writer)
        assert "must be owner" in str(caught.value.__cause__)
        create_state_table(postgres.engine)
        ensure_row(writer)
    assert_added(postgres)


@contextmanager
def as_a_user(postgres: PostgresDatabase, server: PostgresServer) -> Iterator[PostgresDatabase]:
    """The same database for a role that has a writer's rights, and owns no table."""
    schema = str(postgres.url.username)
    user = f"{schema}_user"
    administrator = sa.create_engine(server.url)
    other = postgres.another_client()
    try:
        with administrator.begin() as connection:
            connection.exec_driver_sql(f"CREATE ROLE {user} LOGIN PASSWORD '{user}'")
            connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {schema} TO {user}")
            connection.exec_driver_sql(f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA {schema} TO {user}")
        other.url = postgres.url.set(username=user, password=user)
        other.engine.dispose()
        other.engine = sa.create_engine(other.url)
        yield other
    finally:
        other.engine.dispose()
        other.proxy.close()
        with administrator.begin() as connection:
            connection.exec_driver_sql(f"DROP OWNED BY {user}")
            connection.exec_driver_sql(f"DROP ROLE {user}")
        administrator.dispose()


def test_a_table_that_stays_in_use_is_not_waited_for_without_end(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A waiting ALTER would make all writers wait."""
    if database.engine.dialect.name == "sqlite":
        pytest.skip("waits as long as its connections are set to")
    monkeypatch.setattr(manifest_column, "ALTER_TIMEOUT_S", 1)
    make_old(database)
    with database.aside.connect() as user:
        user.execute(sa.text("SELECT * FROM kafka_transaction_state")).all()
        with pytest.raises(StateTableError, match=REFUSED):
            create_state_table(database.engine)
    create_state_table(database.engine)
    assert_added(database)


def test_a_table_that_stays_in_use_is_not_waited_for_without_end_on_psycopg(
    postgres: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "ADD_MANIFEST", ADD_MANIFEST.replace("10s", "100ms"))
    make_old(postgres)
    with with_psycopg(postgres, create_table=True) as writer:
        with postgres.aside.connect() as user:
            user.execute(sa.text("SELECT * FROM kafka_transaction_state")).all()
            with pytest.raises(StateTableError, match=REFUSED):
                ensure_row(writer)
        ensure_row(writer)
    assert_added(postgres)


@pytest.mark.parametrize("dialect", ["postgresql", "mysql", "mariadb", "sqlite", "mssql", "oracle"])
def test_the_statement_of_every_dialect(dialect: str) -> None:
    made = manifest_column.statement(sa.engine.make_url(f"{dialect}://").get_dialect()(), kafka_transaction_state)
    assert made.startswith("ALTER TABLE kafka_transaction_state ADD manifest ")
