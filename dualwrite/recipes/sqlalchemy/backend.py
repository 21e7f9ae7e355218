"""A database through SQLAlchemy as a backend of the writers: what is the same for threads and for asyncio."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, Protocol, TypeVar

import sqlalchemy as sa

from dualwrite.recipes.capabilities import BackendName
from dualwrite.recipes.core.dual_write import DualWrite, roll_back_database
from dualwrite.recipes.core.leases import Leases
from dualwrite.recipes.core.waiting import Waiting
from dualwrite.recipes.pool.settings import PoolSettings
from dualwrite.recipes.sqlalchemy.adapter import Carry, SqlAlchemyDatabase
from dualwrite.recipes.sqlalchemy.engines import (
    FirstConnection,
    background_engine,
    keeps_a_snapshot,
    locks_whole_database,
)
from dualwrite.recipes.sqlalchemy.lease_table import SqlAlchemyLeases
from dualwrite.recipes.sqlalchemy.tables import schema_for
from dualwrite.recipes.sqlalchemy.transaction import watch
from dualwrite.recipes.writer import Use

ResultT = TypeVar("ResultT")


class CarryOut(Protocol):
    """Carries the steps of a dual write out in the middle of what SQLAlchemy does, and returns their result."""

    def __call__(self, steps: Coroutine[Any, Any, ResultT], /) -> ResultT: ...


class SqlAlchemyBackend:
    """An engine on which blocks run; for a pool, what is done beside the blocks has an engine of its own."""

    name: Final = BackendName.SQLALCHEMY
    database: SqlAlchemyDatabase

    def __init__(
        self,
        engine: sa.Engine,
        *,
        waiting: Waiting,
        carry: Carry,
        carry_out: CarryOut,
        create_table: bool,
        schema: str | None,
        pooled: bool,
    ) -> None:
        watch(engine)
        self.engine: Final = engine
        self.waiting: Final = waiting
        self.carry_out: Final = carry_out
        self._carry = carry
        self._create_table = create_table
        self.background_engine = engine
        self._first_connection = FirstConnection(engine)
        if pooled:
            self._schema = schema_for(engine, schema)
        else:
            self.database = SqlAlchemyDatabase(engine, create_table=create_table, schema=schema, carry=carry)

    async def take_slot_before_snapshot(self, use: Use, connection: sa.Connection | None, tx: DualWrite) -> None:
        """Take the slot of the block now where the connection keeps a snapshot; give `tx` back where that fails."""
        if connection is None or not keeps_a_snapshot(connection):
            return
        try:
            await use.take_slot()
        except BaseException as error:
            try:
                await roll_back_database(tx.progress)
            finally:
                await self.waiting.uninterrupted(tx.progress.database.close())
            tx.tell(error)
            raise

    def note_connection(self) -> None:
        """Remember that a Session has a connection already, so that the first one was made."""
        self._first_connection.made = True

    async def close(self) -> None:
        if self.background_engine is not self.engine:
            await self._carry(self.background_engine.dispose)

    # ---- for pools ------------------------------------------------------------------------------------------

    def begin_life(self) -> None:
        """Make the background's engine and the database on it, for this process."""
        engine = self.background_engine = background_engine(self.engine)
        watch(engine)
        self.database = SqlAlchemyDatabase(
            engine, create_table=self._create_table, schema=self._schema, carry=self._carry
        )

    def leases(self, settings: PoolSettings) -> Leases:
        """Return the leases of a new owner."""
        return SqlAlchemyLeases(
            self.background_engine,
            prefix=settings.prefix,
            owner=settings.new_owner(),
            lease_ms=settings.lease_ms,
            create_table=self._create_table,
            schema=self._schema,
            carry=self._carry,
        )

    @property
    def leases_inside_blocks(self) -> bool:
        """Whether a lease can be taken while a block of this process has written something."""
        return not locks_whole_database(self.engine.dialect)

    async def connect_first(self) -> None:
        """Connect the blocks' engine before any that shares its dialect."""
        if not self._first_connection.made:
            await self._carry(self._first_connection.make)
