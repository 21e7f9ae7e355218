"""The table `kafka_transaction_outbox` on PostgreSQL with SQLAlchemy, as described in `sql/outbox_statements.py`.

The file `outbox_schema.sql` creates the same table by hand.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import IntegrityError

from dualwrite.errors import ConfigError
from dualwrite.recipes.core.database_errors import driver_error, sqlstate_of
from dualwrite.recipes.core.store import MAX_TRANSACTIONAL_ID_LENGTH, Added, Backlog, missing_table
from dualwrite.recipes.sql.outbox_statements import (
    ADD,
    HAS_WAITING,
    IS_IN_PROGRESS,
    MAY_VACUUM,
    NOT_MARKED,
    OUTBOX_TABLE,
    SELECT_BACKLOG,
    STILL_ADDED,
    VACUUM,
    OutboxTable,
    commit_if_added,
    place_of,
)
from dualwrite.recipes.sql.pinned_tables import PinnedTables
from dualwrite.recipes.sql.postgres import ANOTHER_TRANSACTION, MARK_ATTRIBUTE
from dualwrite.recipes.sqlalchemy.drivers import (
    DRIVERS_THAT_MARK,
    Carry,
    CommitMessage,
    commit_message,
    ended_past_sqlalchemy,
    value_without_greenlet,
)
from dualwrite.recipes.sqlalchemy.own_statements import cached_text
from dualwrite.recipes.sqlalchemy.tables import TextStatements, create_missing, pinned_tables, schema_for
from dualwrite.recipes.sqlalchemy.transaction import SqlAlchemyTransaction

kafka_transaction_outbox = sa.Table(
    OUTBOX_TABLE,
    sa.MetaData(),
    sa.Column("transactional_id", sa.String(MAX_TRANSACTIONAL_ID_LENGTH), primary_key=True),
    sa.Column("seq", sa.BigInteger, sa.Identity(always=False), primary_key=True),
    sa.Column("stored_at_ms", sa.BigInteger, nullable=False),
    sa.Column("records", sa.LargeBinary, nullable=True),
    sa.Column("published", postgresql.ARRAY(sa.BigInteger), nullable=True),
    sa.Column("forgotten", sa.BigInteger, nullable=True),
    sa.Column("prepared_transaction_state", sa.String(64), nullable=True),
)


def assert_has_outboxes(dialect: sa.Dialect) -> None:
    """Raise ConfigError for a database that cannot have the table."""
    if dialect.name != "postgresql":
        raise ConfigError(
            f"{OUTBOX_TABLE} is made for PostgreSQL, not for {dialect.name}; nothing was created: leave outbox out of "
            "the settings of pools there"
        )


def create_outbox_table(engine: sa.Engine, schema: str | None = None) -> None:
    """Create `kafka_transaction_outbox` if it is missing, beside the state table. Safe in several processes at once.

    Raises ConfigError unless this is PostgreSQL.
    """
    assert_has_outboxes(engine.dialect)
    schema = schema_for(engine, schema)
    with engine.connect() as connection:
        pinned = pinned_tables(connection, schema)
    create_missing(engine, kafka_transaction_outbox, schema if pinned is None else pinned.schema)


class SqlAlchemyOutbox:
    """The table of one database, in the schema of its state table; caches that it exists."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._exists = False

    def prepare(self, pinned: PinnedTables, *, create_table: bool) -> None:
        """Create the table if it is missing. Raises StateRowError if that is not allowed."""
        if self._exists:
            return
        if create_table:
            create_missing(self._engine, kafka_transaction_outbox, pinned.schema)
        with self._engine.connect() as connection:
            if not self.exists(connection, pinned):
                raise missing_table(OUTBOX_TABLE, otherwise="create_outbox_table(engine)", option=" --outbox")

    def exists(self, connection: sa.Connection, pinned: PinnedTables) -> bool:
        """Return whether the table exists; a positive answer is cached."""
        if not self._exists:
            is_possible = connection.dialect.name == "postgresql"
            self._exists = is_possible and sa.inspect(connection).has_table(OUTBOX_TABLE, schema=pinned.schema)
        return self._exists

    def blocks_on(self, connection: sa.Connection, pinned: PinnedTables, carry: Carry) -> OutboxTable:
        """Return the stored blocks, as seen in the transaction of `connection`."""
        return OutboxTable(_Statements(self, connection, pinned, carry))

    async def add(
        self,
        transaction: SqlAlchemyTransaction,
        pinned: PinnedTables,
        transactional_id: str,
        content: bytes,
        *,
        raise_durability: str | None,
        carry: Carry,
    ) -> Added:
        """Add a block's records; make its COMMIT durable, and let it fail if they are gone by then."""
        transaction.transactional_id = transactional_id
        connection, sql = transaction.connection, pinned.sql(ADD)
        is_marked = connection.dialect.driver in DRIVERS_THAT_MARK
        mark: str = getattr(transaction.driver, MARK_ATTRIBUTE, "") if is_marked else ""
        values = {"id": transactional_id, "content": content, "mark": mark}
        try:
            text = (
                await value_without_greenlet(connection, transaction.driver, sql, values, carry) if is_marked else None
            )
            if text is None:
                text = await carry(lambda: connection.scalar(cached_text(sql), values))
        except IntegrityError as error:
            if sqlstate_of(driver_error(error)) == NOT_MARKED:
                raise ended_past_sqlalchemy(connection) from error
            raise
        assert text is not None, "the statement returns a row"
        added, is_durable, _ = place_of(text, content)
        if raise_durability is not None and not is_durable:
            await carry(partial(connection.exec_driver_sql, raise_durability))
        if is_marked:
            transaction.decides_by(self._commit_of(transaction, pinned, transactional_id, added, mark), is_added=True)
        else:
            where = {"id": transactional_id, "seq": added.seq, "mark": ""}
            still_added = cached_text(pinned.sql(STILL_ADDED))
            transaction.decides(raise_durability, lambda: bool(connection.scalar(still_added, where)), is_added=True)
        return added

    def _commit_of(
        self,
        transaction: SqlAlchemyTransaction,
        pinned: PinnedTables,
        transactional_id: str,
        added: Added,
        mark: str,
    ) -> CommitMessage:
        """Return the COMMIT for psycopg; after hooks of the application it also checks that the records are there."""
        token = mark or secrets.token_hex(8)
        sql = "COMMIT"
        if transaction.has_hooks:
            sql = commit_if_added(pinned, transactional_id, added, mark=mark, token=token)
        ended = {ANOTHER_TRANSACTION: lambda: ended_past_sqlalchemy(transaction.connection)}
        return commit_message(transaction.driver, sql, token, ended)

    def is_in_progress(self, added: Added) -> bool:
        """Return whether the transaction that added a block is still running."""
        return bool(self._row(IS_IN_PROGRESS, {"transaction": added.transaction})[0])

    def has_waiting(self, pinned: PinnedTables, transactional_id: str) -> bool:
        """Return whether stored blocks wait, without a lock."""
        return bool(self._row(pinned.sql(HAS_WAITING), {"id": transactional_id})[0])

    def backlog(self, pinned: PinnedTables, transactional_id: str) -> Backlog:
        """Return the number, size and age of the stored blocks, without a lock."""
        return Backlog(*self._row(pinned.sql(SELECT_BACKLOG), {"id": transactional_id}))

    def vacuum(self, pinned: PinnedTables) -> None:
        """Vacuum the table, if the role may."""
        if self._row(MAY_VACUUM, {"name": pinned.sql(OUTBOX_TABLE)})[0]:
            with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql(pinned.sql(VACUUM))

    def _row(self, sql: str, values: Mapping[str, Any]) -> Sequence[Any]:
        with self._engine.connect() as connection:
            return connection.execute(cached_text(sql), values).one()


class _Statements(TextStatements):
    """`Statements` on a Connection."""

    def __init__(self, outbox: SqlAlchemyOutbox, connection: sa.Connection, pinned: PinnedTables, carry: Carry) -> None:
        super().__init__(connection, pinned, carry)
        self._outbox = outbox

    async def has_outbox_table(self) -> bool:
        return await self._carry(lambda: self._outbox.exists(self._connection, self._pinned))
