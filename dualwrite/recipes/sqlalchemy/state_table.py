"""The state table on any database that SQLAlchemy supports, and the lock on its row.

`core/store.py` describes the row. On PostgreSQL `schema.sql` creates the same table by hand.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from dualwrite.decisions.database_safety import ACCEPT_OPTION, checked_names
from dualwrite.guarded import cleaning_up_after, pass_on_signal
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.database_identity import DatabaseIdentity, new_suffix
from dualwrite.recipes.core.store import MAX_TRANSACTIONAL_ID_LENGTH, missing_table, not_durable
from dualwrite.recipes.sql.database import ResultT, SqlDatabase, Steps
from dualwrite.recipes.sql.identity_table import found_identity
from dualwrite.recipes.sql.lease_statements import LEASE_TABLE
from dualwrite.recipes.sql.outbox_steps import OUTBOX_TABLE
from dualwrite.recipes.sql.pinned_tables import STATE_TABLE, Pin, PinnedTables
from dualwrite.recipes.sql.socket_timeout import SocketTimeout
from dualwrite.recipes.sqlalchemy.drivers import Carry, deciding, here
from dualwrite.recipes.sqlalchemy.engines import at_read_committed, engine_without_pool, is_mysql, shares_one_connection
from dualwrite.recipes.sqlalchemy.examination import examine
from dualwrite.recipes.sqlalchemy.mysql_row_lock import INSERT_TIMEOUT_MS
from dualwrite.recipes.sqlalchemy.outbox_table import kafka_transaction_outbox
from dualwrite.recipes.sqlalchemy.own_statements import for_own_use
from dualwrite.recipes.sqlalchemy.steps import OnMySql, OnOthers, OnPostgres, OnSqlite
from dualwrite.recipes.sqlalchemy.tables import (
    create_missing,
    exact_text,
    home,
    kafka_transaction_database,
    kafka_transaction_lease,
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

_BESIDE: Final = {OUTBOX_TABLE: kafka_transaction_outbox, LEASE_TABLE: kafka_transaction_lease}
"""The tables that not every writer has."""

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
    create_missing(engine, kafka_transaction_state, schema_for(engine, schema))
    database = SqlAlchemyDatabase(engine, schema)
    create_missing(engine, kafka_transaction_database, database.pinned.schema)
    database.identity()


class SqlAlchemyDatabase(SqlDatabase):
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
        super().__init__(schema=schema_for(engine, schema))
        self.dialect = engine.dialect.name
        self.insert_timeout_ms = INSERT_TIMEOUT_MS if is_mysql(engine.dialect) else None
        self._engine = at_read_committed(for_own_use(engine))
        self._engine_to_prove = engine_without_pool(self._engine)
        self._steps_class = _STEPS.get(engine.dialect.name, OnOthers)
        self._create_table = create_table
        self._has_created = False
        self._only_recovers = only_recovers
        self._carry = carry

    async def _pin_tables(self) -> None:
        await self._carry(self._find_or_create_tables)

    def _find_or_create_tables(self) -> PinnedTables:
        if not self._only_recovers:
            examine(self._engine, checked_names(self._engine.get_execution_options().get(ACCEPT_OPTION, ())))
        if self._create_table and not self._has_created:
            create_state_table(self._engine, self._schema)
            self._has_created = True
        return self.pinned

    async def ensure_table(self, table: str, pinned: PinnedTables | None = None) -> PinnedTables:
        return await self._carry(lambda: self._ensure_table(table, pinned))

    def _ensure_table(self, table: str, pinned: PinnedTables | None) -> PinnedTables:
        if pinned is None:
            with self._engine.connect() as connection:
                pinned = home(connection, self._schema, table)
        need_table(self._engine, pinned, _BESIDE[table], create=self._create_table)
        return pinned

    def was_inserted_by_others(self, error: Exception) -> bool:
        pass_on_signal(error)
        return isinstance(error, IntegrityError)

    async def in_transaction(self, steps: Steps[ResultT], pin: Pin | None = None) -> ResultT:
        return await self._carry(lambda: self._in_transaction(steps, pin))

    def _in_transaction(self, steps: Steps[ResultT], pin: Pin | None) -> ResultT:
        try:
            with self._engine.begin() as connection:
                return blocking.run(steps(self._steps_class(connection, pin or self.pin)))
        except (OperationalError, ProgrammingError) as error:
            if pin is None:
                self._raise_if_missing(error)
            raise

    async def _outside_transactions(self, sql: str) -> None:
        await self._carry(lambda: self._execute_outside_transactions(sql))

    def _execute_outside_transactions(self, sql: str) -> None:
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(sql)

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
        tables = self.pin.tables
        if tables is None:
            with self._engine.connect() as connection:
                tables = pinned_tables(connection, self._schema)
            if tables is None:
                raise missing_table(kafka_transaction_state.name, otherwise="create_state_table(engine)")
            self.pin.tables = tables
        return tables

    def steps(self, connection: sa.Connection) -> SqlAlchemySteps:
        """Return the steps that need no dual write on a connection; `pinned` must have been queried before."""
        return self._steps_class(connection, self.pin)

    def identity(self, *, may_make: bool = True) -> DatabaseIdentity:
        """Return the identity that this database adds to its transactional ids; queried once.

        A missing identity is inserted. With `may_make=False` nothing is inserted, and a random identity is returned in
        its place, which no transactional id carries.

        Raises StateRowError if a table is missing, StateTableError, and DatabaseMovedError.
        """
        assert self.pinned is not None, "it raises otherwise"
        if self._identity is None and not may_make:
            return blocking.run(self.in_transaction(found_identity)) or DatabaseIdentity(new_suffix())
        return blocking.run(self._known_identity())

    def _raise_if_missing(self, error: Exception) -> None:
        for table in (kafka_transaction_state.name, kafka_transaction_database.name):
            if not sa.inspect(self._engine).has_table(table, schema=self.pinned.schema):
                raise missing_table(table, otherwise="create_state_table(engine)") from error

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
