"""The state table on any database that SQLAlchemy supports, and the lock on its row.

`core/store.py` describes the row. `schema.sql` creates the same table by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError

from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.database_safety import ACCEPT_OPTION, checked_names
from dualwrite.recipes.core.store import (
    MAX_TRANSACTIONAL_ID_LENGTH,
    manifest_in,
    missing_manifest,
    missing_table,
    not_as_locked,
    not_durable,
    not_exact,
    state_in,
    stayed_locked,
)
from dualwrite.recipes.sql import state_statements
from dualwrite.recipes.sql.database_identity import DatabaseIdentity, new_suffix
from dualwrite.recipes.sql.pinned_tables import PinnedTables
from dualwrite.recipes.sql.postgres_steps import Pin
from dualwrite.recipes.sql.socket_timeout import SocketTimeout
from dualwrite.recipes.sql.sqlite import sync
from dualwrite.recipes.sqlalchemy.drivers import assert_holds_locks, autocommit, deciding
from dualwrite.recipes.sqlalchemy.engines import engine_without_pool, shares_one_connection
from dualwrite.recipes.sqlalchemy.examination import examine, file_of
from dualwrite.recipes.sqlalchemy.manifest_column import add_manifest, lacks_manifest
from dualwrite.recipes.sqlalchemy.mysql_row_lock import (
    INSERT_TIMEOUT_MS,
    LOCK_TIMEOUTS,
    WITNESS_ID,
    error_code,
    insert_row,
    is_still_locked,
    lock_row,
    lock_wait_limit,
)
from dualwrite.recipes.sqlalchemy.on_postgres import OnPostgres
from dualwrite.recipes.sqlalchemy.own_statements import cached_text, for_own_use
from dualwrite.recipes.sqlalchemy.tables import (
    create_missing,
    ensure_identity,
    exact_text,
    found_identity,
    in_schema,
    kafka_transaction_database,
    pinned_tables,
    schema_for,
)

metadata = sa.MetaData()


kafka_transaction_state = sa.Table(
    "kafka_transaction_state",
    metadata,
    sa.Column("transactional_id", exact_text(MAX_TRANSACTIONAL_ID_LENGTH), primary_key=True),
    sa.Column("prepared_transaction_state", sa.String(64), nullable=False, server_default=""),
    sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    sa.Column("manifest", sa.Text, nullable=True),
    mysql_engine="InnoDB",  # regardless of the server's default: most other engines have no transactions
    mariadb_engine="InnoDB",
)


Values = Mapping[str, str | None]


class _StateRow:
    """The state row on any database: an UPDATE that changes nothing locks its row everywhere."""

    def __init__(self, connection: sa.Connection, pin: Pin, transactional_id: str) -> None:
        self._connection = connection
        self._pin = pin
        self._id = transactional_id
        self._row = {"id": transactional_id}

    select = state_statements.SELECT
    """Reads the locked row, as it is now."""
    select_manifest = state_statements.SELECT_MANIFEST

    def _value(self, sql: str) -> str | None:
        text: str | None = self._connection.scalar(cached_text(self._pin.sql(sql)), self._row)
        return text

    def _changed(self, sql: str, values: Values) -> int:
        return self._connection.execute(cached_text(self._pin.sql(sql)), values).rowcount

    def insert(self) -> None:
        """Create an empty row."""
        self._changed(state_statements.INSERT, self._row)

    def lock(self, timeout_ms: int | None) -> PreparedTxnState:
        """Lock the row and return its state, as `DatabaseTransaction.lock` does."""
        try:
            text = self._acquire(timeout_ms)
        except DBAPIError as error:
            if not _is_lock_timeout(error):
                raise
            raise stayed_locked(self._id, timeout_ms) from error
        assert_holds_locks(self._connection)
        return state_in(self._id, text)

    def _acquire(self, timeout_ms: int | None) -> str | None:
        """Lock the row and return its text, or None if there is no row."""
        self._changed(state_statements.TOUCH, self._row)
        return self._value(self.select)

    def read(self) -> PreparedTxnState:
        return state_in(self._id, self._value(self.select))

    def read_manifest(self) -> str:
        return manifest_in(self._id, self._value(self.select_manifest))

    def write(self, values: Values) -> None:
        """Write the row if it holds the state `previous`, and is locked by this transaction.

        Raises StateRowError, and TransactionEndedInsideError.
        """
        if self._changed(state_statements.WRITE, {**self._row, **values}) != 1 or not self._was_held_at_write():
            raise not_as_locked(self._id, PreparedTxnState(values["previous"] or ""), past="SQLAlchemy")

    def _was_held_at_write(self) -> bool:
        """Return whether the row was still locked when it was written, as far as the database can tell."""
        return True

    def witness(self) -> str | None:
        """Read the row without a lock, and write, so that a commit proves the durability of everything read."""
        raise NotImplementedError(
            f"whether a commit is durable can be checked on {', '.join(_SHOW_WHAT_IS_NOT_DURABLE)} only"
        )


class _PostgresRow(_StateRow):
    """PostgreSQL: the steps of all its drivers."""

    def __init__(self, connection: sa.Connection, pin: Pin, transactional_id: str) -> None:
        super().__init__(connection, pin, transactional_id)
        self._steps = OnPostgres(connection, pin)

    def lock(self, timeout_ms: int | None) -> PreparedTxnState:
        return blocking.run(self._steps.lock(self._id, timeout_ms=timeout_ms))

    def read(self) -> PreparedTxnState:
        return blocking.run(self._steps.read(self._id))

    def read_manifest(self) -> str:
        return blocking.run(self._steps.read_manifest(self._id))

    def write(self, values: Values) -> None:
        self._steps.write_now(self._id, values)

    def witness(self) -> str | None:
        return blocking.run(self._steps.witness(self._id))


class _MySqlRow(_StateRow):
    """MySQL and MariaDB: the statements of `mysql_row_lock.py`."""

    select = f"{state_statements.SELECT} FOR UPDATE"  # a plain SELECT may be of a snapshot older than the lock
    select_manifest = f"{state_statements.SELECT_MANIFEST} FOR UPDATE"

    def insert(self) -> None:
        insert_row(self._connection, self._pin.sql(state_statements.INSERT), self._row)

    def _acquire(self, timeout_ms: int | None) -> str | None:
        return lock_row(self._connection, self._pin.sql(state_statements.SELECT), self._row, timeout_ms)

    def _was_held_at_write(self) -> bool:
        return is_still_locked(self._connection)

    def witness(self) -> str | None:
        text = self._value(state_statements.SELECT)
        with lock_wait_limit(self._connection):
            self._changed(state_statements.CHANGE_WITNESS, {"id": WITNESS_ID})
        return text


class _SqliteRow(_StateRow):
    """SQLite, which has one write lock for the whole file: an UPDATE that changes nothing takes it at once.

    A transaction that has already read may no longer be able to take it (SQLITE_BUSY_SNAPSHOT); it then fails here,
    before anything was sent.
    """

    def lock(self, timeout_ms: int | None) -> PreparedTxnState:
        state = super().lock(timeout_ms)
        if not getattr(self._connection.connection.driver_connection, "in_transaction", True):
            raise autocommit()
        return state

    def _acquire(self, timeout_ms: int | None) -> str | None:
        before = self._connection.exec_driver_sql("PRAGMA busy_timeout").scalar()
        if timeout_ms is not None:
            self._connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(timeout_ms)}")
        try:
            return super()._acquire(timeout_ms)
        finally:
            self._connection.exec_driver_sql(f"PRAGMA busy_timeout = {before}")

    def witness(self) -> str | None:
        text = self._value(self.select)
        sync(file_of(self._connection))
        return text


_SHOW_WHAT_IS_NOT_DURABLE: Final = ("postgresql", "mysql", "mariadb", "sqlite")
_ROWS: Final[dict[str, type[_StateRow]]] = {
    "postgresql": _PostgresRow,
    "mysql": _MySqlRow,
    "mariadb": _MySqlRow,
    "sqlite": _SqliteRow,
}

# How MySQL and SQLite report a lock that was not free in time
_LOCK_TIMEOUT_SENTENCES = ("database is locked", "database table is locked")


def _is_lock_timeout(error: DBAPIError) -> bool:
    return error_code(error) in LOCK_TIMEOUTS or any(text in str(error.orig) for text in _LOCK_TIMEOUT_SENTENCES)


def create_state_table(engine: sa.Engine, schema: str | None = None) -> None:
    """Create `kafka_transaction_state` and `kafka_transaction_database` if they are missing.

    They are created in `schema`, by default in the schema of unqualified names. A `kafka_transaction_state` of an older
    version gets the column `manifest`. Safe in several processes at once. Raises StateTableError if that column cannot
    be added, because the user does not own the table, or because transactions use it for too long.
    """
    schema = schema_for(engine, schema)
    create_missing(engine, kafka_transaction_state, schema)
    with engine.connect() as connection:
        pinned = pinned_tables(connection, schema)
    assert pinned is not None, "it has just been created"
    add_manifest(engine, in_schema(kafka_transaction_state, pinned.schema))
    create_missing(engine, kafka_transaction_database, pinned.schema)
    ensure_identity(engine, pinned)


class SqlAlchemyStateStore:
    """Reads and writes the state rows in the transaction of a `sqlalchemy.Connection`."""

    def __init__(self, engine: sa.Engine, schema: str | None = None) -> None:
        self._engine = for_own_use(engine)
        self._engine_to_prove = engine_without_pool(self._engine)
        self._schema = schema_for(engine, schema)
        self._row_class = _ROWS.get(engine.dialect.name, _StateRow)
        self.pin: Final = Pin()
        """The location of the tables, as far as it was queried."""
        self._identity: DatabaseIdentity | None = None

    def examine(self) -> None:
        """Examine the database once. Raises UnsafeDatabaseError for missing guarantees, unless they are accepted."""
        examine(self._engine, checked_names(self._engine.get_execution_options().get(ACCEPT_OPTION, ())))

    def create_tables(self) -> None:
        """Create missing tables."""
        create_state_table(self._engine, self._schema)

    @property
    def pinned(self) -> PinnedTables:
        """The location of the tables; queried once. Raises StateRowError if they are missing, and StateTableError."""
        if self.pin.tables is None:
            with self._engine.connect() as connection:
                pinned = pinned_tables(connection, self._schema)
                if pinned is None:
                    raise missing_table(kafka_transaction_state.name, otherwise="create_state_table(engine)")
                if lacks_manifest(connection, in_schema(kafka_transaction_state, pinned.schema)):
                    raise missing_manifest()
            self.pin.tables = pinned
        return self.pin.tables

    def _row(self, transaction: sa.Connection, transactional_id: str) -> _StateRow:
        assert self.pinned is not None, "it raises otherwise"
        return self._row_class(transaction, self.pin, transactional_id)

    def identity(self, *, may_make: bool = True) -> DatabaseIdentity:
        """Return the identity that this database adds to its transactional ids; queried once.

        A missing identity is inserted. With `may_make=False` nothing is inserted, and a random identity is returned in
        its place, which no transactional id carries.

        Raises StateRowError if a table is missing, StateTableError, and DatabaseMovedError.
        """
        if self._identity is None:
            pinned = self.pinned
            try:
                if not may_make:
                    return found_identity(self._engine, pinned) or DatabaseIdentity(new_suffix())
                self._identity = ensure_identity(self._engine, pinned)
            except (OperationalError, ProgrammingError) as error:
                self._raise_if_missing(error)
                raise
        return self._identity

    def ensure_row(self, transactional_id: str) -> DatabaseIdentity:
        """Create an empty row unless it exists. Return the database's identity.

        Raises StateRowError if a table is missing, or if its collation makes two different transactional ids equal,
        RowLockTimeoutError if another transaction holds a lock on the place of the new row, and the errors of
        `identity`.
        """
        identity = self.identity()
        select = cached_text(self.pinned.sql(state_statements.SELECT_ID))
        try:
            with self._engine.begin() as connection:
                found = connection.scalar(select, {"id": transactional_id})
                if found is None:
                    self._row(connection, transactional_id).insert()
                elif found != transactional_id:
                    raise not_exact(transactional_id, found)
        except IntegrityError:
            pass  # another process created it at the same moment
        except (OperationalError, ProgrammingError) as error:
            if error_code(error) in LOCK_TIMEOUTS:
                raise stayed_locked(transactional_id, INSERT_TIMEOUT_MS) from error
            self._raise_if_missing(error)
            raise
        return identity

    def _raise_if_missing(self, error: Exception) -> None:
        for table in (kafka_transaction_state.name, kafka_transaction_database.name):
            if not sa.inspect(self._engine).has_table(table, schema=self.pinned.schema):
                raise missing_table(table, otherwise="create_state_table(engine)") from error

    def lock(self, transaction: sa.Connection, transactional_id: str, *, timeout_ms: int | None) -> PreparedTxnState:
        return self._row(transaction, transactional_id).lock(timeout_ms)

    def read(self, transaction: sa.Connection, transactional_id: str) -> PreparedTxnState:
        return self._row(transaction, transactional_id).read()

    def read_manifest(self, transaction: sa.Connection, transactional_id: str) -> str:
        return self._row(transaction, transactional_id).read_manifest()

    def write(
        self,
        transaction: sa.Connection,
        transactional_id: str,
        *,
        previous: PreparedTxnState,
        new: PreparedTxnState,
        manifest: str,
    ) -> None:
        values = {"previous": str(previous), "new": str(new), "manifest": manifest or None}
        self._row(transaction, transactional_id).write(values)

    def make_durable(self, transactional_id: str, row: PreparedTxnState, *, timeout_ms: int) -> None:
        """Implement `Database.make_durable`, on a connection outside the engine's pool that is closed afterwards."""
        dialect = self._engine.dialect
        if dialect.name not in _SHOW_WHAT_IS_NOT_DURABLE:
            return
        if dialect.name == "sqlite" and shares_one_connection(self._engine):
            return  # in memory: nothing outlives the connection
        with self._engine_to_prove.connect() as connection:
            driver: Any = connection.connection.driver_connection
            cut = SocketTimeout(driver, timeout_ms / 1000)
            try:
                with cut, deciding(dialect.driver, driver) as wait:
                    seen = self._row(connection, transactional_id).witness()
                    if seen != str(row):
                        raise not_durable(transactional_id, row, f"another connection finds {seen!r} in its row")
                    connection.commit()
            except (DBAPIError, OSError) as error:
                if not cut.has_fired:
                    raise
                why = f"a commit was not answered within {timeout_ms} ms"
                raise not_durable(transactional_id, row, why) from error
        if wait.was_given_up:
            raise not_durable(transactional_id, row, "the wait for the standby was cancelled once more")
