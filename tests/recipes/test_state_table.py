"""The row lock and the row itself, on each database."""

from __future__ import annotations

import importlib.resources
import logging
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
import sqlalchemy as sa

from dualwrite.errors import RowLockTimeoutError, StateRowError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import blocking
from dualwrite.recipes.sqlalchemy.state_table import create_state_table, kafka_transaction_state
from dualwrite.testing.conformance.row_store import RowStore
from tests.support.databases import Database, PostgresDatabase
from tests.support.threads import in_threads

EMPTY = PreparedTxnState()
FIRST = PreparedTxnState("42:7")


@pytest.fixture
def store(database: Database) -> RowStore:
    create_state_table(database.engine)
    store = RowStore(database.engine)
    blocking.run(store.ensure_row("t"))
    return store


def statements_of(connection: sa.Connection) -> list[str]:
    """Record the statements that `connection` sends from now on."""
    statements: list[str] = []
    sa.event.listen(connection, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    return statements


def test_proving_durability_needs_no_logger(
    database: Database, store: RowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal whose handler raises can leave the lock of `logging` held, and other threads would wait for it."""

    asked_for = Mock(wraps=logging.getLogger)
    with monkeypatch.context() as patched:
        patched.setattr(logging, "getLogger", asked_for)
        blocking.run(store.make_durable("t", EMPTY, timeout_ms=60_000))
    assert not asked_for.called


def test_a_write_over_something_else_is_refused(database: Database, store: RowStore) -> None:
    with database.engine.connect() as connection:
        store.lock(connection, "t", timeout_ms=None)
        with pytest.raises(StateRowError, match="no longer holds '42:7'"):
            store.write(connection, "t", previous=FIRST, new=PreparedTxnState("42:8"), manifest="")


def test_both_readings_see_the_current_row(database: Database, store: RowStore) -> None:
    """A plain SELECT may be of a snapshot from before the lock (MySQL), and a take-over would decide by that."""
    if database.engine.dialect.name == "sqlite":
        pytest.skip("SQLite's write lock allows only the newest snapshot")
    with database.engine.begin() as connection:
        statements = statements_of(connection)
        store.lock(connection, "t", timeout_ms=None)
        store.read(connection, "t")
    readings = [statement for statement in statements if statement.startswith("SELECT")]
    assert len(readings) == 2
    assert all("FOR UPDATE" in statement for statement in readings)


def test_an_unknown_database_locks_by_an_update(tmp_path: Path) -> None:
    """SQLAlchemy drops FOR UPDATE without a word where a database has none, such as SQL Server."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/other.db")
    engine.dialect.name = "unheard-of"
    create_state_table(engine)
    store = RowStore(engine)
    blocking.run(store.ensure_row("t"))
    with engine.begin() as connection:
        statements = statements_of(connection)
        assert store.lock(connection, "t", timeout_ms=None) == EMPTY
        store.write(connection, "t", previous=EMPTY, new=FIRST, manifest="")
    assert [statement.split()[0] for statement in statements] == ["UPDATE", "SELECT", "UPDATE"]


def test_a_missing_row_is_reported(database: Database, store: RowStore) -> None:
    with database.engine.begin() as connection, pytest.raises(StateRowError, match="no row for transactional id 'u'"):
        store.lock(connection, "u", timeout_ms=10)


def test_a_missing_row_is_not_confused_with_one_hidden_by_the_snapshot(database: Database, store: RowStore) -> None:
    level = "SERIALIZABLE" if database.engine.dialect.name == "sqlite" else "REPEATABLE READ"
    isolated = database.engine.execution_options(isolation_level=level)
    with pytest.raises(StateRowError, match="no row for transactional id 'u'"), isolated.begin() as connection:
        store.lock(connection, "u", timeout_ms=10)
    with pytest.raises(StateRowError, match="no row for transactional id 'u'"), isolated.begin() as connection:
        store.lock(connection, "u", timeout_ms=10)


def test_a_missing_table_is_reported(database: Database) -> None:
    with pytest.raises(StateRowError, match="create_state_table"):
        blocking.run(RowStore(database.engine).ensure_row("t"))


def test_the_database_keeps_its_own_lock_timeout(database: Database, store: RowStore) -> None:
    set_timeout, show_timeout, value = {
        "postgresql": ("SET LOCAL lock_timeout = '3s'", "SHOW lock_timeout", "3s"),
        "mysql": ("SET innodb_lock_wait_timeout = 3", "SELECT @@innodb_lock_wait_timeout", 3),
        "sqlite": ("PRAGMA busy_timeout = 3000", "PRAGMA busy_timeout", 3000),
    }[database.engine.dialect.name]
    with database.engine.connect() as holder, database.engine.connect() as waiter:
        store.lock(holder, "t", timeout_ms=None)
        waiter.execute(sa.text(set_timeout))
        freed = threading.Timer(0.05, holder.rollback)
        freed.start()
        store.lock(waiter, "t", timeout_ms=20_000)
        assert waiter.scalar(sa.text(show_timeout)) == value
        freed.join()


def test_several_processes_create_the_table_at_once(database: Database) -> None:
    def create() -> None:
        create_state_table(database.engine)
        blocking.run(RowStore(database.engine).ensure_row("t"))

    in_threads(*[create] * 4)


def test_a_place_that_stays_locked_is_not_waited_for_without_end(database: Database, store: RowStore) -> None:
    """The transaction that has locked it may be waiting for this one."""
    if database.engine.dialect.name != "mysql":
        pytest.skip("has no locks of what is not there")
    store.insert_timeout_ms = 1_000
    with database.engine.connect() as holder:
        holder.execute(sa.text("SELECT * FROM kafka_transaction_state WHERE transactional_id = 'orders-7' FOR UPDATE"))
        with pytest.raises(RowLockTimeoutError, match="'orders-7' stayed locked"):
            blocking.run(store.ensure_row("orders-7"))
    blocking.run(store.ensure_row("orders-7"))


def test_the_shipped_sql_makes_the_same_table(postgres: PostgresDatabase) -> None:
    text = importlib.resources.files("dualwrite.recipes.sql").joinpath("schema.sql").read_text()
    with postgres.engine.begin() as connection:
        connection.exec_driver_sql(text)
    made = {column["name"]: column for column in sa.inspect(postgres.engine).get_columns("kafka_transaction_state")}
    assert list(made) == list(kafka_transaction_state.columns.keys())
    assert [name for name, column in made.items() if column["nullable"]] == ["manifest"]
    blocking.run(RowStore(postgres.engine).ensure_row("t"))


def test_a_table_that_confuses_two_ids_is_refused(database: Database) -> None:
    """MySQL's usual collation does that in a table made by hand: a recovery would abort a committed transaction."""
    if database.engine.dialect.name != "mysql":
        pytest.skip("compares exactly by itself")
    with database.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE kafka_transaction_state (transactional_id VARCHAR(255) COLLATE utf8mb4_general_ci PRIMARY KEY"
            ", prepared_transaction_state VARCHAR(64) NOT NULL DEFAULT '', updated_at DATETIME NOT NULL DEFAULT NOW())"
        )
    create_state_table(database.engine)
    store = RowStore(database.engine)
    blocking.run(store.ensure_row("orders"))
    blocking.run(store.ensure_row("orders"))
    with pytest.raises(StateRowError, match="'Orders' equal to 'orders'"):
        blocking.run(store.ensure_row("Orders"))
