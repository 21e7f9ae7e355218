"""The state table on any database that SQLAlchemy reaches, and how its row is locked there.

The row of a transactional id holds the prepared state of the last dual write that the database committed with it
(KIP-939's recipe). `schema.sql` is the same table for people who create tables by hand.
"""

from __future__ import annotations

from typing import Protocol

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError

from dualwrite.errors import IllegalStateError, RowLockTimeoutError, StateRowError
from dualwrite.prepared_state import PreparedTxnState

MAX_TRANSACTIONAL_ID_LENGTH = 255
"""In characters; Kafka itself allows more, but some databases have no longer primary keys."""

metadata = sa.MetaData()

kafka_transaction_state = sa.Table(
    "kafka_transaction_state",
    metadata,
    sa.Column("transactional_id", sa.String(MAX_TRANSACTIONAL_ID_LENGTH), primary_key=True),
    sa.Column("prepared_transaction_state", sa.String(64), nullable=False, server_default=""),
    sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
)

_T = kafka_transaction_state
_SELECT = sa.select(_T.c.prepared_transaction_state).where(_T.c.transactional_id == sa.bindparam("id"))
_SELECT_LOCKED = _SELECT.with_for_update()
_INSERT = sa.insert(_T).values(transactional_id=sa.bindparam("id"))
_TOUCH = sa.update(_T).where(_T.c.transactional_id == sa.bindparam("id")).values(updated_at=_T.c.updated_at)
_WRITE = (
    sa.update(_T)
    .where(_T.c.transactional_id == sa.bindparam("id"), _T.c.prepared_transaction_state == sa.bindparam("previous"))
    .values(prepared_transaction_state=sa.bindparam("new"), updated_at=sa.func.now())
)


def _locked_text(connection: sa.Connection, transactional_id: str) -> str | None:
    text: str | None = connection.scalar(_SELECT_LOCKED, {"id": transactional_id})
    return text


class _RowLock(Protocol):
    still_held: sa.ColumnElement[bool]
    """True of the row where the present transaction has locked it; as much of that as the database can say."""

    def acquire(self, connection: sa.Connection, transactional_id: str, timeout_ms: int | None) -> str | None:
        """Lock the row and return its text, or None where there is no row."""

    def assert_transaction(self, connection: sa.Connection) -> None:
        """Raise IllegalStateError where the connection commits each statement by itself, so that no lock can last."""


class _UpdatedRow:
    """Any database: an UPDATE that changes nothing locks its row everywhere.

    FOR UPDATE alone does not, because SQLAlchemy drops it without a word where a database has no such thing (SQL
    Server). It is still asked for: the reading must be of now, not of a snapshot that is older than the lock (MySQL).
    """

    still_held: sa.ColumnElement[bool] = sa.true()

    def acquire(self, connection: sa.Connection, transactional_id: str, timeout_ms: int | None) -> str | None:
        connection.execute(_TOUCH, {"id": transactional_id})
        return _locked_text(connection, transactional_id)

    def assert_transaction(self, connection: sa.Connection) -> None:
        dbapi_connection = connection.connection.dbapi_connection
        if dbapi_connection is not None and connection.dialect.detect_autocommit_setting(dbapi_connection):
            raise IllegalStateError(_AUTOCOMMIT)


class _PostgresRowLock(_UpdatedRow):
    """SKIP LOCKED first, because it neither waits nor fails the transaction; then wait with a time limit.

    A locked row names its locker in `xmax`. So the last statement of a dual write can prove that the transaction which
    locked the row is still the one that runs, even where somebody sent ROLLBACK as a text or through a forked process.
    After a savepoint that was not released the locker is a subtransaction, whose id only this backend holds a lock on.
    """

    still_held: sa.ColumnElement[bool] = sa.literal_column(
        "CASE WHEN kafka_transaction_state.xmax = CAST(pg_current_xact_id() AS xid) THEN true ELSE EXISTS ("
        "SELECT 1 FROM pg_locks WHERE pg_locks.locktype = 'transactionid' AND pg_locks.pid = pg_backend_pid()"
        " AND pg_locks.granted AND pg_locks.transactionid = kafka_transaction_state.xmax) END",
        sa.Boolean,
    )

    def acquire(self, connection: sa.Connection, transactional_id: str, timeout_ms: int | None) -> str | None:
        free: str | None = connection.scalar(_SELECT.with_for_update(skip_locked=True), {"id": transactional_id})
        if free is not None:
            return free
        if timeout_ms is None:
            return _locked_text(connection, transactional_id)
        before = connection.scalar(sa.text("SELECT current_setting('lock_timeout')"))
        self._set_timeout(connection, f"{max(timeout_ms, 1)}ms")  # 0 would mean to wait for ever
        waited_for = _locked_text(connection, transactional_id)
        self._set_timeout(connection, str(before))
        return waited_for

    @staticmethod
    def _set_timeout(connection: sa.Connection, value: str) -> None:
        connection.execute(sa.text("SELECT set_config('lock_timeout', :value, true)"), {"value": value})


class _SqliteWriteLock(_UpdatedRow):
    """SQLite has one write lock for the whole file; an UPDATE that changes nothing takes it at once.

    A transaction that has read before may not be able to take it any more (SQLITE_BUSY_SNAPSHOT); it then fails here,
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

    def assert_transaction(self, connection: sa.Connection) -> None:
        if not getattr(connection.connection.driver_connection, "in_transaction", True):
            raise IllegalStateError(_AUTOCOMMIT)


_AUTOCOMMIT = (
    "the database connection is in autocommit mode, where a row lock ends with its own statement; "
    "nothing was written: use a connection with transactions for dual writes"
)
_ROW_LOCKS: dict[str, type[_RowLock]] = {"postgresql": _PostgresRowLock, "sqlite": _SqliteWriteLock}

# What databases say when a lock was not free in time: SQLSTATE 55P03 (PostgreSQL), and SQLite's sentence.
_LOCK_TIMEOUT_SQLSTATES = frozenset({"55P03"})
_LOCK_TIMEOUT_SENTENCES = ("database is locked", "database table is locked")


def _is_lock_timeout(error: DBAPIError) -> bool:
    sqlstate = getattr(error.orig, "sqlstate", None)
    return sqlstate in _LOCK_TIMEOUT_SQLSTATES or any(text in str(error.orig) for text in _LOCK_TIMEOUT_SENTENCES)


def create_state_table(engine: sa.Engine) -> None:
    """Create `kafka_transaction_state` where it is missing; safe when several processes do it at once."""
    try:
        metadata.create_all(engine)
    except (IntegrityError, ProgrammingError, OperationalError):
        # Two processes created it in the same instant: the loser sees the winner's table on a second look.
        if not sa.inspect(engine).has_table(kafka_transaction_state.name):
            raise


class SqlAlchemyStateStore:
    """The rows as seen by the transaction of a `sqlalchemy.Connection`."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._row_lock: _RowLock = _ROW_LOCKS.get(engine.dialect.name, _UpdatedRow)()
        self._write = _WRITE.where(self._row_lock.still_held)

    def ensure_row(self, transactional_id: str) -> None:
        """Create the row, empty; harmless when it exists. Raises StateRowError where the table is missing."""
        try:
            with self._engine.begin() as connection:
                if connection.scalar(_SELECT, {"id": transactional_id}) is not None:
                    return
                connection.execute(_INSERT, {"id": transactional_id})
        except IntegrityError:
            return  # another process created it in the same instant, which is as good
        except (OperationalError, ProgrammingError) as error:
            if sa.inspect(self._engine).has_table(kafka_transaction_state.name):
                raise
            raise StateRowError(
                "the table kafka_transaction_state does not exist in this database; nothing was written: "
                "create it with dualwrite.recipes.state_table.create_state_table(engine)"
            ) from error

    def lock(self, transaction: sa.Connection, transactional_id: str, *, timeout_ms: int | None) -> PreparedTxnState:
        try:
            text = self._row_lock.acquire(transaction, transactional_id, timeout_ms)
        except DBAPIError as error:
            if not _is_lock_timeout(error):
                raise
            raise RowLockTimeoutError(
                f"the state row of transactional id {transactional_id!r} stayed locked for {timeout_ms} ms by another "
                "database transaction; nothing was decided or written: try again when its owner has finished or died"
            ) from error
        self._row_lock.assert_transaction(transaction)
        return self._parse(transactional_id, text)

    def read(self, transaction: sa.Connection, transactional_id: str) -> PreparedTxnState:
        return self._parse(transactional_id, _locked_text(transaction, transactional_id))

    def write(
        self, transaction: sa.Connection, transactional_id: str, *, previous: PreparedTxnState, new: PreparedTxnState
    ) -> None:
        values = {"id": transactional_id, "previous": str(previous), "new": str(new)}
        if transaction.execute(self._write, values).rowcount != 1:
            raise StateRowError(
                f"the state row of transactional id {transactional_id!r} no longer holds {str(previous)!r} under the "
                "lock of this transaction, so the dual write was given up: something writes to this table, or sent "
                "COMMIT or ROLLBACK past SQLAlchemy; a COMMIT has made the statements before it permanent, without "
                "the records"
            )

    @staticmethod
    def _parse(transactional_id: str, text: str | None) -> PreparedTxnState:
        if text is None:
            raise StateRowError(
                f"kafka_transaction_state has no row for transactional id {transactional_id!r}; nothing was written: "
                "it was deleted after this writer had created it, and must not be while the id is in use; or this "
                "transaction reads a snapshot from before it was created: then begin a new one"
            )
        return PreparedTxnState(text)
