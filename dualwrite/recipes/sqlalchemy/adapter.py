"""The database side of a dual write on SQLAlchemy, for threads and for asyncio."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Generic, TypeVar

import sqlalchemy as sa

from dualwrite.errors import ConfigError
from dualwrite.guarded import cleaning_up_after
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.dual_write import DualWrite, roll_back_database
from dualwrite.recipes.core.leases import Leases
from dualwrite.recipes.core.settings import WritingSettings
from dualwrite.recipes.core.waiting import Waiting, settled
from dualwrite.recipes.sql.lease_statements import NOW_MS, TableLeases
from dualwrite.recipes.sqlalchemy.binding import Bind
from dualwrite.recipes.sqlalchemy.drivers import Carry
from dualwrite.recipes.sqlalchemy.engines import (
    background_engine,
    keeps_a_snapshot,
    locks_whole_database,
    shares_one_connection,
)
from dualwrite.recipes.sqlalchemy.events import watch
from dualwrite.recipes.sqlalchemy.outbox_table import assert_has_outboxes
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyDatabase
from dualwrite.recipes.sqlalchemy.tables import schema_for
from dualwrite.recipes.sqlalchemy.transaction import SqlAlchemyTransaction
from dualwrite.recipes.writer import Use

BindT = TypeVar("BindT")
TxT = TypeVar("TxT", bound=DualWrite)


class SqlAlchemyBackend(Generic[BindT, TxT]):
    """An engine on which blocks run, in threads or in the greenlets of a loop; a pool has a second one beside it.

    `new_session` makes the Session of a block, `behind` returns the Session or Connection that does the work of one,
    and `handle` makes the handle of a block.
    """

    database: SqlAlchemyDatabase
    has_savepoints: Final = True

    def __init__(
        self,
        engine: sa.Engine,
        *,
        new_session: Callable[[], Any],
        behind: Callable[[Any], Bind],
        handle: Callable[[SqlAlchemyTransaction, SqlAlchemyDatabase, RecordBuffer], TxT],
        waiting: Waiting,
        carry: Carry,
        carry_out: Callable[[Coroutine[Any, Any, Any]], Any],
        settings: WritingSettings,
        is_pool: bool,
    ) -> None:
        watch(engine)
        self.engine: Final = engine
        self.waiting: Final = waiting
        self.carry_out: Final = carry_out
        self._new_session = new_session
        self._behind = behind
        self._handle = handle
        self._carry = carry
        self._create_table = settings.create_table
        self._schema = schema_for(engine, settings.schema)
        self.background_engine = engine
        self.has_connected = False
        """Whether the engine for blocks has connected."""
        if not is_pool:
            self.database = self._new_database(engine)

    async def begin(self, bind: BindT | None, records: RecordBuffer, use: Use) -> TxT:
        bound: Any = self._new_session() if bind is None else bind
        owned = bind is None
        try:
            behind = self._behind(bound)
            transaction = await self._carry(partial(SqlAlchemyTransaction, behind, self.engine, records, owned=owned))
            tx = self._handle(transaction, self.database, records)
        except BaseException as error:  # else the connection would be left to the garbage collector
            if owned:
                with cleaning_up_after(error):
                    await self.waiting.uninterrupted(settled(bound.close()))
            raise
        if use.needs_slot_early and keeps_a_snapshot(transaction.connection):
            await self._take_slot_before_snapshot(use, tx)
        return tx

    async def _take_slot_before_snapshot(self, use: Use, tx: TxT) -> None:
        try:
            await use.take_slot()
        except BaseException as error:
            try:
                await roll_back_database(tx.progress)
            finally:
                await self.waiting.uninterrupted(tx.progress.database.close())
            tx.tell(error)
            raise

    async def close(self) -> None:
        if self.background_engine is not self.engine:
            await self._carry(self.background_engine.dispose)

    # ---- for pools ------------------------------------------------------------------------------------------

    def begin_life(self) -> None:
        engine = self.background_engine = background_engine(self.engine)
        watch(engine)
        self.database = self._new_database(engine)

    def _new_database(self, engine: sa.Engine) -> SqlAlchemyDatabase:
        return SqlAlchemyDatabase(engine, self._schema, create_table=self._create_table, carry=self._carry)

    @property
    def outbox(self) -> SqlAlchemyDatabase:
        """The database, with its outbox. Raises ConfigError if it cannot have one."""
        assert_has_outboxes(self.engine.dialect)
        if shares_one_connection(self.engine):
            raise ConfigError(
                f"an outbox is not possible with {type(self.engine.pool).__name__}, which has a single connection: "
                "what publishes needs one of its own. Use a file, or leave delivery at Direct()"
            )
        return self.database

    def leases(self, prefix: str, *, owner: str, lease_ms: int) -> Leases:
        if self.database.dialect not in NOW_MS:
            raise ConfigError(
                f"leases of transactional ids need a database whose clock can be queried ({', '.join(NOW_MS)}), "
                f"not {self.database.dialect}; use one DualWriter per transactional id there"
            )
        return TableLeases(self.database, prefix=prefix, owner=owner, lease_ms=lease_ms)

    @property
    def leases_inside_blocks(self) -> bool:
        return not locks_whole_database(self.engine.dialect)

    async def connect_first(self) -> None:
        """Connect the blocks' engine before any other engine that shares its dialect.

        On the first connection the dialect queries the features of the database. Only callers of the same pool wait for
        that; a second pool would continue with a half-initialised dialect.
        """
        if not self.has_connected:
            await self._carry(lambda: self.engine.connect().close())
            self.has_connected = True
