"""The state table on any database that SQLAlchemy supports, and the lock on its row.

`core/store.py` describes the row. `schema.sql` creates the same table by hand.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError

from dualwrite.errors import IllegalStateError, StateRowError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.database_errors import driver_error, sqlstate_of
from dualwrite.recipes.core.database_safety import ACCEPT_OPTION, checked_names
from dualwrite.recipes.core.store import (
    MAX_TRANSACTIONAL_ID_LENGTH,
    manifest_in,
    missing_manifest,
    missing_table,
    newer_than_snapshot,
    not_as_locked,
    not_durable,
    not_exact,
    state_in,
    stayed_locked,
)
from dualwrite.recipes.postgres.commit_message import Refusals, refusal_in
from dualwrite.recipes.sql import postgres, state_statements
from dualwrite.recipes.sql.database_identity import DatabaseIdentity, new_suffix
from dualwrite.recipes.sql.pinned_tables import PinnedTables, execute_query, table_replaced
from dualwrite.recipes.sql.socket_timeout import SocketTimeout
from dualwrite.recipes.sql.sqlite import sync
from dualwrite.recipes.sqlalchemy.drivers import (
    DRIVERS_THAT_MARK,
    CommitMessage,
    commit_message,
    deciding,
    driver_connection,
    ended_past_sqlalchemy,
    in_transaction,
    value_past_sqlalchemy,
)
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


class Statements:
    """Executes statements on the rows of one table; they are written without its full name."""

    def __init__(self, pinned: PinnedTables) -> None:
        self.pinned = pinned

    def value(self, connection: sa.Connection, sql: str, values: Values) -> str | None:
        """Return the first value of a statement, a text; None if it is NULL or there is no row."""
        text: str | None = connection.scalar(cached_text(self.pinned.sql(sql)), values)
        return text

    def changed(self, connection: sa.Connection, sql: str, values: Values) -> int:
        """Return the number of rows that a statement changed."""
        return connection.execute(cached_text(self.pinned.sql(sql)), values).rowcount


class _RowLock:
    """The row lock of any database: an UPDATE that changes nothing locks its row everywhere."""

    select = state_statements.SELECT
    """Reads the locked row, as it is now."""
    select_manifest = state_statements.SELECT_MANIFEST
    raise_durability: str | None = None
    """The statement that makes this transaction's COMMIT wait until it is durable; None if it always waits."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    def insert(self, connection: sa.Connection, transactional_id: str) -> None:
        """Create an empty row."""
        self._statements.changed(connection, state_statements.INSERT, {"id": transactional_id})

    def acquire(self, connection: sa.Connection, transactional_id: str, timeout_ms: int | None) -> str | None:
        """Lock the row and return its text, or None if there is no row."""
        row = {"id": transactional_id}
        self._statements.changed(connection, state_statements.TOUCH, row)
        return self._statements.value(connection, self.select, row)

    def assert_transaction(self, connection: sa.Connection) -> None:
        """Raise IllegalStateError if the connection is in autocommit mode, which cannot hold a lock."""
        dbapi_connection = connection.connection.dbapi_connection
        if dbapi_connection is not None and connection.dialect.detect_autocommit_setting(dbapi_connection):
            raise IllegalStateError(_AUTOCOMMIT)

    def assert_no_row(self, connection: sa.Connection, transactional_id: str) -> None:
        """Raise the reason why a row was not found, if it may exist."""

    def write(self, connection: sa.Connection, transactional_id: str, values: Values) -> None:
        """Write the row if it holds the state `previous`, and is locked by this transaction.

        Raises StateRowError, and TransactionEndedInsideError.
        """
        if self._statements.changed(connection, state_statements.WRITE, values) != 1:
            raise _not_as_locked(transactional_id, values)

    def read_to_prove_durable(self, connection: sa.Connection, transactional_id: str) -> str | None:
        """Read the row without a lock, and write, so that a commit proves the durability of everything read."""
        raise NotImplementedError(
            f"whether a commit is durable can be checked on {', '.join(_SHOW_WHAT_IS_NOT_DURABLE)} only"
        )


def _not_as_locked(transactional_id: str, values: Values) -> StateRowError:
    return not_as_locked(transactional_id, PreparedTxnState(values["previous"] or ""), past="SQLAlchemy")


class _PostgresRowLock(_RowLock):
    """PostgreSQL: the statements of `sql/postgres.py`."""

    select = postgres.SELECT_LOCKED
    select_manifest = postgres.SELECT_MANIFEST
    # the statement that raises the durability setting also writes the state
    raise_durability: str | None = f"SELECT {postgres.RAISE}"

    def assert_transaction(self, connection: sa.Connection) -> None:
        if not in_transaction(driver_connection(connection)):
            super().assert_transaction(connection)

    def assert_no_row(self, connection: sa.Connection, transactional_id: str) -> None:
        try:
            execute_query(
                postgres.assert_no_row(self._statements.pinned, transactional_id),
                lambda sql, values: connection.execute(cached_text(sql), values).all(),
            )
        except DBAPIError as error:
            if sqlstate_of(driver_error(error)) == postgres.SERIALIZATION_FAILURE:
                raise newer_than_snapshot(transactional_id) from error
            raise

    def acquire(self, connection: sa.Connection, transactional_id: str, timeout_ms: int | None) -> str | None:
        statements = self._statements
        free = value_past_sqlalchemy(connection, postgres.lock_free_row(statements.pinned, transactional_id))
        if free is not None:
            return free
        steps = postgres.lock_row(transactional_id, timeout_ms)
        answer: str | None = None
        while True:
            try:
                statement, parameters = steps.send(answer)
            except StopIteration as locked:
                text: str | None = locked.value
                return text
            answer = statements.value(connection, statement, parameters)

    def write(self, connection: sa.Connection, transactional_id: str, values: Values) -> None:
        mark, token = _mark_and_token(connection)
        try:
            self._statements.value(connection, postgres.WRITE, {**values, "mark": mark, "token": token})
        except DBAPIError as error:
            refusal = refusal_in(driver_error(error), token, _refusals(connection, transactional_id, values))
            if refusal is None:
                raise
            raise refusal from error

    def read_to_prove_durable(self, connection: sa.Connection, transactional_id: str) -> str | None:
        return self._statements.value(connection, postgres.WITNESS, {"id": transactional_id})


def _mark_and_token(connection: sa.Connection) -> tuple[str, str]:
    mark: str = getattr(driver_connection(connection), postgres.MARK_ATTRIBUTE, "")
    return mark, mark or secrets.token_hex(8)


def _refusals(connection: sa.Connection, transactional_id: str, values: Values) -> Refusals:
    return {
        postgres.NOT_AS_LOCKED: lambda: _not_as_locked(transactional_id, values),
        postgres.ANOTHER_TRANSACTION: lambda: ended_past_sqlalchemy(connection),
    }


class _MySqlRowLock(_RowLock):
    """MySQL and MariaDB: the statements of `mysql_row_lock.py`."""

    select = f"{state_statements.SELECT} FOR UPDATE"  # a plain SELECT may be of a snapshot older than the lock
    select_manifest = f"{state_statements.SELECT_MANIFEST} FOR UPDATE"

    def insert(self, connection: sa.Connection, transactional_id: str) -> None:
        insert_row(connection, self._statements.pinned.sql(state_statements.INSERT), {"id": transactional_id})

    def acquire(self, connection: sa.Connection, transactional_id: str, timeout_ms: int | None) -> str | None:
        select = self._statements.pinned.sql(state_statements.SELECT)
        return lock_row(connection, select, {"id": transactional_id}, timeout_ms)

    def write(self, connection: sa.Connection, transactional_id: str, values: Values) -> None:
        super().write(connection, transactional_id, values)
        if not is_still_locked(connection):
            raise _not_as_locked(transactional_id, values)

    def read_to_prove_durable(self, connection: sa.Connection, transactional_id: str) -> str | None:
        text = self._statements.value(connection, state_statements.SELECT, {"id": transactional_id})
        with lock_wait_limit(connection):
            self._statements.changed(connection, state_statements.CHANGE_WITNESS, {"id": WITNESS_ID})
        return text


class _SqliteWriteLock(_RowLock):
    """SQLite, which has one write lock for the whole file: an UPDATE that changes nothing takes it at once.

    A transaction that has already read may no longer be able to take it (SQLITE_BUSY_SNAPSHOT); it then fails here,
    before anything was sent.
    """

    def acquire(self, connection: sa.Connection, transactional_id: str, timeout_ms: int | None) -> str | None:
        before = connection.exec_driver_sql("PRAGMA busy_timeout").scalar()
        if timeout_ms is not None:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(timeout_ms)}")
        try:
            return super().acquire(connection, transactional_id, timeout_ms)
        finally:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {before}")

    def read_to_prove_durable(self, connection: sa.Connection, transactional_id: str) -> str | None:
        text = self._statements.value(connection, self.select, {"id": transactional_id})
        sync(file_of(connection))
        return text

    def assert_transaction(self, connection: sa.Connection) -> None:
        if not getattr(connection.connection.driver_connection, "in_transaction", True):
            raise IllegalStateError(_AUTOCOMMIT)


_AUTOCOMMIT = (
    "the database connection is in autocommit mode, in which a row lock ends with its own statement; "
    "nothing was written: use a connection with transactions for dual writes"
)
_SHOW_WHAT_IS_NOT_DURABLE: Final = ("postgresql", "mysql", "mariadb", "sqlite")
_ROW_LOCKS: dict[str, type[_RowLock]] = {
    "postgresql": _PostgresRowLock,
    "mysql": _MySqlRowLock,
    "mariadb": _MySqlRowLock,
    "sqlite": _SqliteWriteLock,
}

# How databases report a lock that was not free in time: PostgreSQL's SQLSTATE, MySQL's number, and SQLite's sentence.
_LOCK_TIMEOUT_SENTENCES = ("database is locked", "database table is locked")


def _is_lock_timeout(error: DBAPIError) -> bool:
    if error_code(error) in LOCK_TIMEOUTS:
        return True
    is_sqlstate = sqlstate_of(driver_error(error)) == postgres.LOCK_NOT_AVAILABLE
    return is_sqlstate or any(text in str(error.orig) for text in _LOCK_TIMEOUT_SENTENCES)


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
        self._row_lock_class = _ROW_LOCKS.get(engine.dialect.name, _RowLock)
        self.raise_durability = self._row_lock_class.raise_durability
        self._pinned: tuple[Statements, _RowLock] | None = None
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
        statements, _ = self._pinned or self._known
        return statements.pinned

    @property
    def _known(self) -> tuple[Statements, _RowLock]:
        if self._pinned is None:
            with self._engine.connect() as connection:
                pinned = pinned_tables(connection, self._schema)
                if pinned is None:
                    raise missing_table(kafka_transaction_state.name, otherwise="create_state_table(engine)")
                if lacks_manifest(connection, in_schema(kafka_transaction_state, pinned.schema)):
                    raise missing_manifest()
            statements = Statements(pinned)
            self._pinned = statements, self._row_lock_class(statements)
        return self._pinned

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
        statements, row_lock = self._known
        try:
            with self._engine.begin() as connection:
                found = statements.value(connection, state_statements.SELECT_ID, {"id": transactional_id})
                if found is None:
                    row_lock.insert(connection, transactional_id)
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
        statements, row_lock = self._known
        try:
            text = row_lock.acquire(transaction, transactional_id, timeout_ms)
        except DBAPIError as error:
            if sqlstate_of(driver_error(error)) == postgres.UNDEFINED_TABLE:
                raise table_replaced(statements.pinned) from error
            if not _is_lock_timeout(error):
                raise
            raise stayed_locked(transactional_id, timeout_ms) from error
        row_lock.assert_transaction(transaction)
        if text is None:
            row_lock.assert_no_row(transaction, transactional_id)
        return state_in(transactional_id, text)

    def read(self, transaction: sa.Connection, transactional_id: str) -> PreparedTxnState:
        statements, row_lock = self._known
        return state_in(transactional_id, statements.value(transaction, row_lock.select, {"id": transactional_id}))

    def read_manifest(self, transaction: sa.Connection, transactional_id: str) -> str:
        statements, row_lock = self._known
        text = statements.value(transaction, row_lock.select_manifest, {"id": transactional_id})
        return manifest_in(transactional_id, text)

    def write(
        self,
        transaction: sa.Connection,
        transactional_id: str,
        *,
        previous: PreparedTxnState,
        new: PreparedTxnState,
        manifest: str,
    ) -> None:
        _, row_lock = self._known
        contents = {"previous": str(previous), "new": str(new), "manifest": manifest or None}
        row_lock.write(transaction, transactional_id, {"id": transactional_id, **contents})

    def write_with_commit(
        self,
        transaction: sa.Connection,
        transactional_id: str,
        *,
        previous: PreparedTxnState,
        new: PreparedTxnState,
        manifest: str,
    ) -> CommitMessage | None:
        """Return a message that writes the state, as `write` does, and commits; None if the driver cannot send it."""
        if transaction.dialect.name != "postgresql" or transaction.dialect.driver not in DRIVERS_THAT_MARK:
            return None
        mark, token = _mark_and_token(transaction)
        row = {"previous": previous, "new": new}
        sql = postgres.write_and_commit(self.pinned, transactional_id, manifest=manifest, mark=mark, token=token, **row)
        refusals = _refusals(transaction, transactional_id, {"previous": str(previous)})
        return commit_message(driver_connection(transaction), sql, token, refusals)

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
                    _, row_lock = self._known
                    seen = row_lock.read_to_prove_durable(connection, transactional_id)
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
