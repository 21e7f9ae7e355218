"""The state table on any database that SQLAlchemy supports, and the lock on its row.

`core/store.py` describes the row. `schema.sql` creates the same table by hand.
"""

from __future__ import annotations

import secrets
from typing import Any, Final, Protocol

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError

from dualwrite.errors import IllegalStateError
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
from dualwrite.recipes.sql.database_identity import DatabaseIdentity, new_suffix
from dualwrite.recipes.sql.pinned_tables import PinnedTables, execute_query, table_replaced
from dualwrite.recipes.sql.postgres import (
    ANOTHER_TRANSACTION,
    IS_MARKED,
    LOCK_NOT_AVAILABLE,
    MARK,
    MARK_ATTRIBUTE,
    NOT_AS_LOCKED,
    RAISE,
    SERIALIZATION_FAILURE,
    STILL_HELD,
    UNDEFINED_TABLE,
    WITNESS,
    assert_no_row,
    lock_free_row,
    lock_row,
    write_and_commit,
)
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
    lock_wait_limit,
)
from dualwrite.recipes.sqlalchemy.mysql_row_lock import lock_row as lock_mysql_row
from dualwrite.recipes.sqlalchemy.own_statements import AS_NAMED, cached_text, for_own_use, own_text
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


class Statements:
    """The statements on the rows of one table, by its full name."""

    def __init__(self, pinned: PinnedTables) -> None:
        self.pinned = pinned
        table = in_schema(kafka_transaction_state, pinned.schema)
        of_id = table.c.transactional_id == sa.bindparam("id")
        self.select = sa.select(table.c.prepared_transaction_state).where(of_id)
        self.select_locked = self.select.with_for_update()
        self.select_manifest = sa.select(table.c.manifest).where(of_id).with_for_update()
        self.select_id = sa.select(table.c.transactional_id).where(of_id)
        self.insert = sa.insert(table).values(transactional_id=sa.bindparam("id"))
        self.touch = sa.update(table).where(of_id).values(updated_at=table.c.updated_at)
        self.write = (
            sa.update(table)
            .where(of_id, table.c.prepared_transaction_state == sa.bindparam("previous"))
            .values(
                prepared_transaction_state=sa.bindparam("new"),
                manifest=sa.bindparam("manifest"),
                updated_at=sa.func.now(),
            )
        )

        # An UPDATE that leaves a row as it is would not reach the binary log.
        self.change_witness = (
            mysql.insert(table)
            .values(transactional_id=sa.bindparam("id"))
            .on_duplicate_key_update(updated_at=sa.text("updated_at + INTERVAL 1 SECOND"))
        )

    def locked_text(self, connection: sa.Connection, transactional_id: str) -> str | None:
        """Return the current content of the row, which must be locked."""
        values = {"id": transactional_id}
        text: str | None = connection.scalar(self.select_locked, values, execution_options=AS_NAMED)
        return text

    def manifest(self, connection: sa.Connection, transactional_id: str) -> str | None:
        """Return the manifest in the row, which must be locked: empty without one, None if there is no row."""
        row = connection.execute(self.select_manifest, {"id": transactional_id}, execution_options=AS_NAMED).first()
        return None if row is None else row[0] or ""


class _RowLock(Protocol):
    still_held: sa.ColumnElement[bool]
    """True for the row that the current transaction has locked, as far as the database can tell."""
    raise_durability: str | None
    """The statement that makes this transaction's COMMIT wait until it is durable; None if it always waits."""

    def proof(self, connection: sa.Connection) -> dict[str, str]:
        """Return the parameters of `still_held`."""

    def insert(self, connection: sa.Connection, statements: Statements, transactional_id: str) -> None:
        """Create an empty row."""

    def acquire(
        self, connection: sa.Connection, statements: Statements, transactional_id: str, timeout_ms: int | None
    ) -> str | None:
        """Lock the row and return its text, or None if there is no row."""

    def assert_transaction(self, connection: sa.Connection) -> None:
        """Raise IllegalStateError if the connection is in autocommit mode, which cannot hold a lock."""

    def was_held_at_write(self, connection: sa.Connection) -> bool:
        """Return whether the row was still locked when it was written: like `still_held`, but checked afterwards."""

    def is_another(self, connection: sa.Connection) -> bool:
        """Return whether the current transaction is known not to be the one that SQLAlchemy began."""

    def read_to_prove_durable(
        self, connection: sa.Connection, statements: Statements, transactional_id: str
    ) -> str | None:
        """Read the row without a lock, and write, so that a commit proves the durability of everything read."""


class _UpdateRowLock:
    """The row lock for any database: an UPDATE that changes nothing locks its row everywhere.

    FOR UPDATE alone does not, because SQLAlchemy silently omits it for a database without it (SQL Server). It is still
    used for the read, which must return the current row, not one from a snapshot older than the lock (MySQL).
    """

    still_held: sa.ColumnElement[bool] = sa.true()
    raise_durability: str | None = None

    def proof(self, connection: sa.Connection) -> dict[str, str]:
        return {}

    def insert(self, connection: sa.Connection, statements: Statements, transactional_id: str) -> None:
        connection.execute(statements.insert, {"id": transactional_id}, execution_options=AS_NAMED)

    def acquire(
        self, connection: sa.Connection, statements: Statements, transactional_id: str, timeout_ms: int | None
    ) -> str | None:
        connection.execute(statements.touch, {"id": transactional_id}, execution_options=AS_NAMED)
        return statements.locked_text(connection, transactional_id)

    def assert_transaction(self, connection: sa.Connection) -> None:
        dbapi_connection = connection.connection.dbapi_connection
        if dbapi_connection is not None and connection.dialect.detect_autocommit_setting(dbapi_connection):
            raise IllegalStateError(_AUTOCOMMIT)

    def was_held_at_write(self, connection: sa.Connection) -> bool:
        return True

    def is_another(self, connection: sa.Connection) -> bool:
        return False

    def read_to_prove_durable(
        self, connection: sa.Connection, statements: Statements, transactional_id: str
    ) -> str | None:
        raise NotImplementedError(
            f"whether a commit is durable can be checked on {', '.join(_SHOW_WHAT_IS_NOT_DURABLE)} only"
        )


_CURRENT_MARK: Final = own_text(f"SELECT current_setting('{MARK}', true)")


class _PostgresRowLock(_UpdateRowLock):
    """PostgreSQL: the statements of `sql/postgres.py`."""

    # the statement that raises the durability setting also writes the state
    still_held: sa.ColumnElement[bool] = sa.and_(
        sa.literal_column(f"{STILL_HELD} AND {RAISE} IS NOT NULL", sa.Boolean),
        sa.text(IS_MARKED).bindparams(sa.bindparam("mark", type_=sa.String)),
    )
    raise_durability: str | None = f"SELECT {RAISE}"

    def proof(self, connection: sa.Connection) -> dict[str, str]:
        return {"mark": getattr(driver_connection(connection), MARK_ATTRIBUTE, "")}

    def assert_transaction(self, connection: sa.Connection) -> None:
        if not in_transaction(driver_connection(connection)):
            super().assert_transaction(connection)

    def is_another(self, connection: sa.Connection) -> bool:
        mark = self.proof(connection)["mark"]
        return bool(mark) and connection.scalar(_CURRENT_MARK) != mark

    def acquire(
        self, connection: sa.Connection, statements: Statements, transactional_id: str, timeout_ms: int | None
    ) -> str | None:
        free = value_past_sqlalchemy(connection, lock_free_row(statements.pinned, transactional_id))
        if free is not None:
            return free
        steps = lock_row(transactional_id, timeout_ms)
        answer: str | None = None
        while True:
            try:
                statement, parameters = steps.send(answer)
            except StopIteration as locked:
                text: str | None = locked.value
                return text
            answer = connection.scalar(cached_text(statements.pinned.sql(statement)), parameters)

    def read_to_prove_durable(
        self, connection: sa.Connection, statements: Statements, transactional_id: str
    ) -> str | None:
        text: str | None = connection.scalar(cached_text(statements.pinned.sql(WITNESS)), {"id": transactional_id})
        return text


class _MySqlRowLock(_UpdateRowLock):
    """MySQL and MariaDB: the statements of `mysql_row_lock.py`."""

    def insert(self, connection: sa.Connection, statements: Statements, transactional_id: str) -> None:
        insert_row(connection, statements.insert, {"id": transactional_id})

    def acquire(
        self, connection: sa.Connection, statements: Statements, transactional_id: str, timeout_ms: int | None
    ) -> str | None:
        text: str | None = lock_mysql_row(connection, statements.select, {"id": transactional_id}, timeout_ms)
        return text

    def was_held_at_write(self, connection: sa.Connection) -> bool:
        return is_still_locked(connection)

    def read_to_prove_durable(
        self, connection: sa.Connection, statements: Statements, transactional_id: str
    ) -> str | None:
        text: str | None = connection.scalar(statements.select, {"id": transactional_id}, execution_options=AS_NAMED)
        with lock_wait_limit(connection):
            connection.execute(statements.change_witness, {"id": WITNESS_ID}, execution_options=AS_NAMED)
        return text


class _SqliteWriteLock(_UpdateRowLock):
    """SQLite, which has one write lock for the whole file: an UPDATE that changes nothing takes it at once.

    A transaction that has already read may no longer be able to take it (SQLITE_BUSY_SNAPSHOT); it then fails here,
    before anything was sent.
    """

    def acquire(
        self, connection: sa.Connection, statements: Statements, transactional_id: str, timeout_ms: int | None
    ) -> str | None:
        before = connection.exec_driver_sql("PRAGMA busy_timeout").scalar()
        if timeout_ms is not None:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(timeout_ms)}")
        try:
            return super().acquire(connection, statements, transactional_id, timeout_ms)
        finally:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {before}")

    def read_to_prove_durable(
        self, connection: sa.Connection, statements: Statements, transactional_id: str
    ) -> str | None:
        text: str | None = connection.scalar(statements.select, {"id": transactional_id}, execution_options=AS_NAMED)
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
_LOCK_TIMEOUT_SQLSTATES = frozenset({LOCK_NOT_AVAILABLE})
_LOCK_TIMEOUT_SENTENCES = ("database is locked", "database table is locked")


def _is_lock_timeout(error: DBAPIError) -> bool:
    if error_code(error) in LOCK_TIMEOUTS:
        return True
    sqlstate = getattr(error.orig, "sqlstate", None)
    return sqlstate in _LOCK_TIMEOUT_SQLSTATES or any(text in str(error.orig) for text in _LOCK_TIMEOUT_SENTENCES)


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
        self._row_lock: _RowLock = _ROW_LOCKS.get(engine.dialect.name, _UpdateRowLock)()
        self.raise_durability = self._row_lock.raise_durability
        self._statements: Statements | None = None
        self._write: sa.Update | None = None
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
        statements = self._statements or self._known
        return statements.pinned

    @property
    def _known(self) -> Statements:
        if self._statements is None:
            with self._engine.connect() as connection:
                pinned = pinned_tables(connection, self._schema)
                if pinned is None:
                    raise missing_table(kafka_transaction_state.name, otherwise="create_state_table(engine)")
                if lacks_manifest(connection, in_schema(kafka_transaction_state, pinned.schema)):
                    raise missing_manifest()
            self._statements = statements = Statements(pinned)
            self._write = statements.write.where(self._row_lock.still_held)
        return self._statements

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
        statements = self._known
        try:
            with self._engine.begin() as connection:
                values = {"id": transactional_id}
                found = connection.scalar(statements.select_id, values, execution_options=AS_NAMED)
                if found is None:
                    self._row_lock.insert(connection, statements, transactional_id)
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
        statements = self._known
        try:
            text = self._row_lock.acquire(transaction, statements, transactional_id, timeout_ms)
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) == UNDEFINED_TABLE:
                raise table_replaced(statements.pinned) from error
            if not _is_lock_timeout(error):
                raise
            raise stayed_locked(transactional_id, timeout_ms) from error
        self._row_lock.assert_transaction(transaction)
        if text is None and statements.pinned.oid is not None:
            self._assert_no_row(transaction, transactional_id)
        return state_in(transactional_id, text)

    def _assert_no_row(self, transaction: sa.Connection, transactional_id: str) -> None:
        try:
            execute_query(
                assert_no_row(self._known.pinned, transactional_id),
                lambda sql, values: transaction.execute(cached_text(sql), values).all(),
            )
        except DBAPIError as error:
            if sqlstate_of(driver_error(error)) == SERIALIZATION_FAILURE:
                raise newer_than_snapshot(transactional_id) from error
            raise

    def read(self, transaction: sa.Connection, transactional_id: str) -> PreparedTxnState:
        return state_in(transactional_id, self._known.locked_text(transaction, transactional_id))

    def read_manifest(self, transaction: sa.Connection, transactional_id: str) -> str:
        return manifest_in(transactional_id, self._known.manifest(transaction, transactional_id))

    def write(
        self,
        transaction: sa.Connection,
        transactional_id: str,
        *,
        previous: PreparedTxnState,
        new: PreparedTxnState,
        manifest: str,
    ) -> None:
        proof = self._row_lock.proof(transaction)
        contents = {"previous": str(previous), "new": str(new), "manifest": manifest or None}
        values = {"id": transactional_id, **contents, **proof}
        assert self._write is not None, "the row was locked before"
        written = transaction.execute(self._write, values, execution_options=AS_NAMED).rowcount == 1
        if not written or not self._row_lock.was_held_at_write(transaction):
            if self._row_lock.is_another(transaction):
                raise ended_past_sqlalchemy(transaction)
            raise not_as_locked(transactional_id, previous, past="SQLAlchemy")

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
        driver = driver_connection(transaction)
        mark = getattr(driver, MARK_ATTRIBUTE, "")
        token = mark or secrets.token_hex(8)
        sql = write_and_commit(
            self._known.pinned,
            transactional_id,
            previous=previous,
            new=new,
            manifest=manifest,
            mark=mark,
            token=token,
        )
        refusals = {
            NOT_AS_LOCKED: lambda: not_as_locked(transactional_id, previous, past="SQLAlchemy"),
            ANOTHER_TRANSACTION: lambda: ended_past_sqlalchemy(transaction),
        }
        return commit_message(driver, sql, token, refusals)

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
                    seen = self._row_lock.read_to_prove_durable(connection, self._known, transactional_id)
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
