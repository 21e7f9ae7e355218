"""The state table on any database that SQLAlchemy reaches, and how its row is locked there.

`state_row.py` says what the row holds. `schema.sql` is the same table for people who create tables by hand.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError

from dualwrite.errors import IllegalStateError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.database_identity import DatabaseIdentity, new_suffix
from dualwrite.recipes.identity_table import ensure_identity, found_identity, kafka_transaction_database
from dualwrite.recipes.mysql_row_lock import (
    INSERT_TIMEOUT_MS,
    LOCK_TIMEOUTS,
    error_code,
    insert_row,
    is_still_locked,
)
from dualwrite.recipes.mysql_row_lock import lock_row as lock_mysql_row
from dualwrite.recipes.pinned_tables import PinnedTables, assert_still_there, carried_out, replaced
from dualwrite.recipes.postgres_row_lock import LOCK_NOT_AVAILABLE, STILL_HELD, UNDEFINED_TABLE, lock_row
from dualwrite.recipes.sqlalchemy_tables import AS_NAMED, in_schema, pinned_tables, schema_for
from dualwrite.recipes.state_row import (
    MAX_TRANSACTIONAL_ID_LENGTH,
    missing_table,
    not_as_locked,
    not_exact,
    state_in,
    stayed_locked,
)

metadata = sa.MetaData()


def exact_text(length: int) -> sa.types.TypeEngine[str]:
    """`Orders` is not `orders`, though MySQL's usual collations say so: the two would share a row."""
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")


kafka_transaction_state = sa.Table(
    "kafka_transaction_state",
    metadata,
    sa.Column("transactional_id", exact_text(MAX_TRANSACTIONAL_ID_LENGTH), primary_key=True),
    sa.Column("prepared_transaction_state", sa.String(64), nullable=False, server_default=""),
    sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    mysql_engine="InnoDB",  # whatever the server's default is: others have no transactions
    mariadb_engine="InnoDB",
)


class Statements:
    """Those on the rows of one table, which is named in full."""

    def __init__(self, pinned: PinnedTables) -> None:
        self.pinned = pinned
        table = in_schema(kafka_transaction_state, pinned.schema)
        of_id = table.c.transactional_id == sa.bindparam("id")
        self.select = sa.select(table.c.prepared_transaction_state).where(of_id)
        self.select_locked = self.select.with_for_update()
        self.select_id = sa.select(table.c.transactional_id).where(of_id)
        self.insert = sa.insert(table).values(transactional_id=sa.bindparam("id"))
        self.touch = sa.update(table).where(of_id).values(updated_at=table.c.updated_at)
        self.write = (
            sa.update(table)
            .where(of_id, table.c.prepared_transaction_state == sa.bindparam("previous"))
            .values(prepared_transaction_state=sa.bindparam("new"), updated_at=sa.func.now())
        )

    def locked_text(self, connection: sa.Connection, transactional_id: str) -> str | None:
        """What the row holds now, which is locked."""
        values = {"id": transactional_id}
        text: str | None = connection.scalar(self.select_locked, values, execution_options=AS_NAMED)
        return text


class _RowLock(Protocol):
    still_held: sa.ColumnElement[bool]
    """True of the row where the present transaction has locked it; as much of that as the database can say."""

    def insert(self, connection: sa.Connection, statements: Statements, transactional_id: str) -> None:
        """Create the row, empty."""

    def acquire(
        self, connection: sa.Connection, statements: Statements, transactional_id: str, timeout_ms: int | None
    ) -> str | None:
        """Lock the row and return its text, or None where there is no row."""

    def assert_transaction(self, connection: sa.Connection) -> None:
        """Raise IllegalStateError where the connection commits each statement by itself, so that no lock can last."""

    def outlasted(self, connection: sa.Connection) -> bool:
        """Whether the transaction that locked the row is the one that has written it; as `still_held`, but later."""


class _UpdatedRow:
    """Any database: an UPDATE that changes nothing locks its row everywhere.

    FOR UPDATE alone does not, because SQLAlchemy drops it without a word where a database has no such thing (SQL
    Server). It is still asked for: the reading must be of now, not of a snapshot that is older than the lock (MySQL).
    """

    still_held: sa.ColumnElement[bool] = sa.true()

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

    def outlasted(self, connection: sa.Connection) -> bool:
        return True


_text = cache(sa.text)


class _PostgresRowLock(_UpdatedRow):
    """By the statements of `postgres_row_lock.py`."""

    still_held: sa.ColumnElement[bool] = sa.literal_column(STILL_HELD, sa.Boolean)

    def acquire(
        self, connection: sa.Connection, statements: Statements, transactional_id: str, timeout_ms: int | None
    ) -> str | None:
        steps = lock_row(transactional_id, timeout_ms)
        answer: str | None = None
        while True:
            try:
                statement, parameters = steps.send(answer)
            except StopIteration as locked:
                text: str | None = locked.value
                return text
            answer = connection.scalar(_text(statements.pinned.sql(statement)), parameters)


class _MySqlRowLock(_UpdatedRow):
    """By the statements of `mysql_row_lock.py`; MariaDB's are the same."""

    def insert(self, connection: sa.Connection, statements: Statements, transactional_id: str) -> None:
        insert_row(connection, statements.insert, {"id": transactional_id})

    def acquire(
        self, connection: sa.Connection, statements: Statements, transactional_id: str, timeout_ms: int | None
    ) -> str | None:
        text: str | None = lock_mysql_row(connection, statements.select, {"id": transactional_id}, timeout_ms)
        return text

    def outlasted(self, connection: sa.Connection) -> bool:
        return is_still_locked(connection)


class _SqliteWriteLock(_UpdatedRow):
    """SQLite has one write lock for the whole file; an UPDATE that changes nothing takes it at once.

    A transaction that has read before may not be able to take it any more (SQLITE_BUSY_SNAPSHOT); it then fails here,
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

    def assert_transaction(self, connection: sa.Connection) -> None:
        if not getattr(connection.connection.driver_connection, "in_transaction", True):
            raise IllegalStateError(_AUTOCOMMIT)


_AUTOCOMMIT = (
    "the database connection is in autocommit mode, where a row lock ends with its own statement; "
    "nothing was written: use a connection with transactions for dual writes"
)
_ROW_LOCKS: dict[str, type[_RowLock]] = {
    "postgresql": _PostgresRowLock,
    "mysql": _MySqlRowLock,
    "mariadb": _MySqlRowLock,
    "sqlite": _SqliteWriteLock,
}

# What databases say when a lock was not free in time: PostgreSQL's SQLSTATE, MySQL's number, and SQLite's sentence.
_LOCK_TIMEOUT_SQLSTATES = frozenset({LOCK_NOT_AVAILABLE})
_LOCK_TIMEOUT_SENTENCES = ("database is locked", "database table is locked")


def _is_lock_timeout(error: DBAPIError) -> bool:
    if error_code(error) in LOCK_TIMEOUTS:
        return True
    sqlstate = getattr(error.orig, "sqlstate", None)
    return sqlstate in _LOCK_TIMEOUT_SQLSTATES or any(text in str(error.orig) for text in _LOCK_TIMEOUT_SENTENCES)


def create_state_table(engine: sa.Engine, schema: str | None = None) -> None:
    """Create `kafka_transaction_state` and `kafka_transaction_database` where they are missing, in `schema` or where an
    unqualified name leads to; safe when several processes do it at once."""
    schema = schema_for(engine, schema)
    _create(engine, kafka_transaction_state, schema)
    with engine.connect() as connection:
        pinned = pinned_tables(connection, schema)
    assert pinned is not None, "it has just been created"
    _create(engine, kafka_transaction_database, pinned.schema)
    ensure_identity(engine, pinned)


def _create(engine: sa.Engine, table: sa.Table, schema: str | None) -> None:
    try:
        in_schema(table, schema).metadata.create_all(engine.execution_options(**AS_NAMED))
    except (IntegrityError, ProgrammingError, OperationalError):
        # Two processes created it in the same instant: the loser sees the winner's table on a second look.
        if not sa.inspect(engine).has_table(table.name, schema=schema):
            raise


class SqlAlchemyStateStore:
    """The rows as seen by the transaction of a `sqlalchemy.Connection`."""

    def __init__(self, engine: sa.Engine, schema: str | None = None) -> None:
        self._engine = engine
        self._schema = schema_for(engine, schema)
        self._row_lock: _RowLock = _ROW_LOCKS.get(engine.dialect.name, _UpdatedRow)()
        self._statements: Statements | None = None
        self._write: sa.Update | None = None
        self._identity: DatabaseIdentity | None = None

    def create_tables(self) -> None:
        """Create what is missing."""
        create_state_table(self._engine, self._schema)

    @property
    def pinned(self) -> PinnedTables:
        """Where the tables are; asked once. Raises StateRowError where they are missing, and StateTableError."""
        return self._known.pinned

    @property
    def _known(self) -> Statements:
        if self._statements is None:
            with self._engine.connect() as connection:
                pinned = pinned_tables(connection, self._schema)
            if pinned is None:
                raise missing_table(kafka_transaction_state.name, otherwise="create_state_table(engine)")
            self._statements = statements = Statements(pinned)
            self._write = statements.write.where(self._row_lock.still_held)
        return self._statements

    def identity(self, *, may_make: bool = True) -> DatabaseIdentity:
        """What this database adds to its transactional ids; asked once. Where there is nothing yet, that is made, or,
        unless it `may_make` it, one is returned that no id has.

        Raises StateRowError where a table is missing, StateTableError, and DatabaseMovedError.
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
        """Create the row, empty; harmless when it exists. Returns the database's identity.

        Raises StateRowError where a table is missing, or takes two transactional ids for one, RowLockTimeoutError
        where another transaction keeps the place of the row locked, and what `identity` raises.
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
            pass  # another process created it in the same instant, which is as good
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
                raise replaced(statements.pinned) from error
            if not _is_lock_timeout(error):
                raise
            raise stayed_locked(transactional_id, timeout_ms) from error
        self._row_lock.assert_transaction(transaction)
        if text is None:
            carried_out(
                assert_still_there(statements.pinned),
                lambda sql, values: transaction.execute(_text(sql), values).all(),
            )
        return state_in(transactional_id, text)

    def read(self, transaction: sa.Connection, transactional_id: str) -> PreparedTxnState:
        return state_in(transactional_id, self._known.locked_text(transaction, transactional_id))

    def write(
        self, transaction: sa.Connection, transactional_id: str, *, previous: PreparedTxnState, new: PreparedTxnState
    ) -> None:
        values = {"id": transactional_id, "previous": str(previous), "new": str(new)}
        assert self._write is not None, "the row was locked before"
        written = transaction.execute(self._write, values, execution_options=AS_NAMED).rowcount == 1
        if not written or not self._row_lock.outlasted(transaction):
            raise not_as_locked(transactional_id, previous, past="SQLAlchemy")
