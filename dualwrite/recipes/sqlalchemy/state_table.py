"""The state table on any database that SQLAlchemy supports, and the lock on its row.

`core/store.py` describes the row. `schema.sql` creates the same table by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from dualwrite.decisions.database_safety import ACCEPT_OPTION, checked_names
from dualwrite.guarded import cleaning_up_after, pass_on_signal
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.database_identity import DatabaseIdentity, new_suffix
from dualwrite.recipes.core.store import (
    MAX_TRANSACTIONAL_ID_LENGTH,
    missing_table,
    not_durable,
    not_exact,
    stayed_locked,
)
from dualwrite.recipes.sql import state_statements
from dualwrite.recipes.sql.outbox_database import DatabaseWithOutbox
from dualwrite.recipes.sql.outbox_elsewhere import OUTBOX_SQL
from dualwrite.recipes.sql.outbox_steps import OutboxSql
from dualwrite.recipes.sql.pinned_tables import STATE_TABLE, Pin, PinnedTables
from dualwrite.recipes.sql.socket_timeout import SocketTimeout
from dualwrite.recipes.sqlalchemy.drivers import Carry, deciding, here
from dualwrite.recipes.sqlalchemy.engines import at_read_committed, engine_without_pool, is_mysql, shares_one_connection
from dualwrite.recipes.sqlalchemy.examination import examine
from dualwrite.recipes.sqlalchemy.mysql_row_lock import INSERT_TIMEOUT_MS, LOCK_TIMEOUTS, error_code, lock_wait_limit
from dualwrite.recipes.sqlalchemy.outbox_table import kafka_transaction_outbox
from dualwrite.recipes.sqlalchemy.own_statements import cached_text, for_own_use
from dualwrite.recipes.sqlalchemy.steps import OnMySql, OnOthers, OnPostgres, OnSqlite
from dualwrite.recipes.sqlalchemy.tables import (
    create_missing,
    ensure_identity,
    exact_text,
    found_identity,
    kafka_transaction_database,
    need_table,
    own_table,
    pinned_tables,
    schema_for,
)
from dualwrite.recipes.sqlalchemy.transaction import SqlAlchemyTransaction

kafka_transaction_state = own_table(
    STATE_TABLE,
    sa.Column("transactional_id", exact_text(MAX_TRANSACTIONAL_ID_LENGTH), primary_key=True),
    sa.Column("prepared_transaction_state", sa.String(64), nullable=False, server_default=""),
    sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    sa.Column("manifest", sa.Text, nullable=True),
)


SqlAlchemySteps = OnPostgres | OnOthers
_STEPS: Final[dict[str, type[SqlAlchemySteps]]] = {
    "postgresql": OnPostgres,
    "mysql": OnMySql,
    "mariadb": OnMySql,
    "sqlite": OnSqlite,
}


def create_state_table(engine: sa.Engine, schema: str | None = None) -> None:
    """Create `kafka_transaction_state` and `kafka_transaction_database` if they are missing.

    They are created in `schema`, by default in the schema of unqualified names. Safe in several processes at once.
    """
    schema = schema_for(engine, schema)
    create_missing(engine, kafka_transaction_state, schema)
    with engine.connect() as connection:
        pinned = pinned_tables(connection, schema)
    assert pinned is not None, "it has just been created"
    create_missing(engine, kafka_transaction_database, pinned.schema)
    ensure_identity(engine, pinned)


class SqlAlchemyDatabase(DatabaseWithOutbox):
    # SQLAlchemy does not wrap the OSError of a connection that asyncpg could not open
    errors: tuple[type[Exception], ...] = (SQLAlchemyError, OSError)

    def __init__(
        self,
        engine: sa.Engine,
        schema: str | None = None,
        *,
        create_table: bool = False,
        carry: Carry = here,
        only_recovers: bool = False,
    ) -> None:
        """Connect the database; with `only_recovers`, complete decided transactions even if it lacks guarantees."""
        self._engine = at_read_committed(for_own_use(engine))
        self._engine_to_prove = engine_without_pool(self._engine)
        self._schema = schema_for(engine, schema)
        self._steps_class = _STEPS.get(engine.dialect.name, OnOthers)
        self._create_table = self._may_create_outbox = create_table
        self._only_recovers = only_recovers
        self._carry = carry
        self.pin: Final = Pin()
        """The location of the tables, as far as it was queried."""
        self._identity: DatabaseIdentity | None = None

    def _create_missing_tables(self) -> None:
        if not self._only_recovers:
            examine(self._engine, checked_names(self._engine.get_execution_options().get(ACCEPT_OPTION, ())))
        if self._create_table:
            create_state_table(self._engine, self._schema)
            self._create_table = False

    async def prepare_outbox(self) -> None:
        await self._carry(self._prepare_outbox)

    def _prepare_outbox(self) -> None:
        self._create_missing_tables()
        pinned = self.pinned
        if not self.pin.has_outbox_table:
            create = self._may_create_outbox
            need_table(self._engine, pinned, kafka_transaction_outbox, create=create, option=" --outbox")
            self.pin.has_outbox_table = True

    @property
    def _outbox_sql(self) -> OutboxSql:
        return OUTBOX_SQL[self._engine.dialect.name]

    def _located(self) -> Pin:
        assert self.pinned is not None, "it raises otherwise"
        return self.pin

    def _was_inserted_by_others(self, error: Exception) -> bool:
        pass_on_signal(error)
        return isinstance(error, IntegrityError)

    async def _outside_transactions(self, sql: str) -> None:
        await self._carry(lambda: self._execute_outside_transactions(sql))

    def _execute_outside_transactions(self, sql: str) -> None:
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(sql)

    async def _one_row(self, sql: str, values: Mapping[str, Any]) -> Sequence[Any]:
        return await self._carry(lambda: self._fetch(sql, values))

    def _fetch(self, sql: str, values: Mapping[str, Any]) -> Sequence[Any]:
        with self._engine.connect() as connection:
            return connection.execute(self._text(sql), values).one()

    async def begin(self) -> SqlAlchemySteps:
        return await self._carry(self._begin)

    def _begin(self) -> SqlAlchemySteps:
        assert self.pinned is not None, "it raises otherwise"
        connection = self._engine.connect()
        try:
            return self.transaction(SqlAlchemyTransaction(connection, self._engine, RecordBuffer(), owned=True))
        except BaseException as error:  # else the connection would be left to the garbage collector
            with cleaning_up_after(error):
                connection.close()
            raise

    def transaction(self, transaction: SqlAlchemyTransaction) -> SqlAlchemySteps:
        return self._steps_class(transaction.connection, self.pin, self._carry, transaction)

    @property
    def pinned(self) -> PinnedTables:
        """The location of the tables; queried once. Raises StateRowError if they are missing, and StateTableError."""
        if self.pin.tables is None:
            with self._engine.connect() as connection:
                pinned = pinned_tables(connection, self._schema)
                if pinned is None:
                    raise missing_table(kafka_transaction_state.name, otherwise="create_state_table(engine)")
            self.pin.tables = pinned
        return self.pin.tables

    def steps(self, connection: sa.Connection) -> SqlAlchemySteps:
        """Return the steps that need no dual write on a connection; `pinned` must have been queried before."""
        return self._steps_class(connection, self.pin)

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

    async def ensure_row(self, transactional_id: str) -> DatabaseIdentity:
        """Create an empty row unless it exists. Return the database's identity.

        Raises StateRowError if a table is missing, or if its collation makes two different transactional ids equal,
        RowLockTimeoutError if another transaction holds a lock on the place of the new row, and the errors of
        `identity`.
        """
        return await self._carry(lambda: self._ensure_row(transactional_id))

    def _ensure_row(self, transactional_id: str) -> DatabaseIdentity:
        self._create_missing_tables()
        identity = self.identity()
        try:
            with self._engine.begin() as connection:
                found = connection.scalar(self._text(state_statements.SELECT_ID), {"id": transactional_id})
                if found is None:
                    wait = lock_wait_limit(connection) if is_mysql(connection.dialect) else nullcontext()
                    with wait:
                        connection.execute(self._text(state_statements.INSERT), {"id": transactional_id})
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

    def _text(self, sql: str) -> sa.TextClause:
        return cached_text(self.pinned.sql(sql))

    async def make_durable(self, transactional_id: str, row: PreparedTxnState, *, timeout_ms: int) -> None:
        await self._carry(lambda: self._make_durable(transactional_id, row, timeout_ms))

    def _make_durable(self, transactional_id: str, row: PreparedTxnState, timeout_ms: int) -> None:
        """Prove it on a connection outside the engine's pool that is closed afterwards."""
        dialect = self._engine.dialect
        if dialect.name not in _STEPS:
            return  # it does not show what is not durable
        if dialect.name == "sqlite" and shares_one_connection(self._engine):
            return  # in memory: nothing outlives the connection
        assert self.pinned is not None, "it raises otherwise"
        with self._engine_to_prove.connect() as connection:
            driver: Any = connection.connection.driver_connection
            cut = SocketTimeout(driver, timeout_ms / 1000)
            try:
                with cut, deciding(connection) as wait:
                    seen = blocking.run(self.steps(connection).witness(transactional_id))
                    if seen != str(row):
                        raise not_durable(transactional_id, row, f"another connection finds {seen!r} in its row")
                    connection.commit()
            except (DBAPIError, OSError) as error:
                if not cut.has_fired:
                    raise
                why = f"a commit got no response within {timeout_ms} ms"
                raise not_durable(transactional_id, row, why) from error
        if wait.was_given_up:
            raise not_durable(transactional_id, row, "the wait for the standby was cancelled again")
