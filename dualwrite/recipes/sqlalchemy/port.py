"""The part of `DatabaseTransaction` on a Connection of SQLAlchemy that is alike on every database."""

from __future__ import annotations

import sqlalchemy as sa

from dualwrite.recipes.sql.pinned_tables import Pin
from dualwrite.recipes.sqlalchemy.drivers import Carry, here
from dualwrite.recipes.sqlalchemy.tables import OnConnection
from dualwrite.recipes.sqlalchemy.transaction import SqlAlchemyTransaction


class SqlAlchemyPort(OnConnection):
    """The transaction of a dual write; on a Connection without one (None) only rows are read and written."""

    def __init__(
        self,
        connection: sa.Connection,
        pin: Pin,
        carry: Carry = here,
        transaction: SqlAlchemyTransaction | None = None,
    ) -> None:
        super().__init__(connection, pin, carry)
        self._of_block = transaction

    @property
    def _transaction(self) -> SqlAlchemyTransaction:
        assert self._of_block is not None, "a dual write runs on the Connection"
        return self._of_block

    @property
    def commit_was_sent(self) -> bool:
        return self._transaction.commit_was_sent

    @property
    def was_ended_past(self) -> bool:
        return self._transaction.was_ended_past

    @property
    def connection(self) -> sa.Connection:
        return self._connection

    def _note_id(self, transactional_id: str) -> None:
        if self._of_block is not None:
            self._of_block.transactional_id = transactional_id

    def doom(self, error: BaseException) -> None:
        self._transaction.doom(error)

    async def flush(self) -> None:
        transaction = self._transaction
        transaction.assert_intact()
        if transaction.holds_back:
            await self._carry(transaction.flush)

    async def commit(self) -> None:
        await self._carry(self._transaction.commit)

    async def rollback(self) -> None:
        await self._carry(self._transaction.rollback)

    async def close(self) -> None:
        await self._carry(self._transaction.close)

    def close_at_once(self) -> bool:
        if self._carry is not here:
            return False
        self._transaction.close()
        return True
