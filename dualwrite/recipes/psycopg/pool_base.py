"""What the pools on psycopg, for threads and for coroutines, have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.kafka_participant import KafkaParticipant
from dualwrite.recipes.core.shield import Uninterrupted
from dualwrite.recipes.pool.coordinator import Block, PoolCoordinator
from dualwrite.recipes.pool.runtime import Runtime
from dualwrite.recipes.pool.settings import PoolSettings
from dualwrite.recipes.pool.status import PoolStatus
from dualwrite.recipes.psycopg.adapter import PsycopgDatabase, PsycopgTransaction
from dualwrite.recipes.psycopg.connection_guard import AnyConnection
from dualwrite.recipes.psycopg.connections import connections_beside, connections_from
from dualwrite.recipes.psycopg.leases import PsycopgLeases
from dualwrite.recipes.sql.pinned_tables import checked_schema


class PsycopgPoolBase:
    """Its parts, put together; `connect` opens a connection, `kafka_side` is made with a producer's settings."""

    _writes: PoolCoordinator

    def __init__(
        self,
        database: Any,
        *,
        connect: Callable[..., Any],
        kafka_side: Callable[[Mapping[str, Any]], KafkaParticipant],
        sleep: Callable[[float], Awaitable[None]],
        uninterrupted: Uninterrupted,
        runtime: Callable[[], Runtime],
        settings: PoolSettings,
        max_buffered_bytes: int,
        create_table: bool,
        schema: str | None,
    ) -> None:
        self._settings: Final = settings
        self._source: Final = database
        self._connect: Final = connect
        self._kafka_side: Final = kafka_side
        self._sleep: Final = sleep
        self._uninterrupted: Final = uninterrupted
        self._runtime: Final = runtime
        self._max_buffered_bytes: Final = max_buffered_bytes
        self._create_table: Final = create_table
        self._schema: Final = checked_schema(schema)
        self._of_blocks: Final = connections_from(database, connect, most_kept=settings.max_writers)

    def _begin_life(self) -> None:
        """Slots, leases and background of this process."""
        settings = self._settings
        self._background = connections_beside(self._source, self._connect)
        self._database = PsycopgDatabase(
            self._background,
            create_table=self._create_table,
            schema=self._schema,
            uninterrupted=self._uninterrupted,
            of_blocks=self._of_blocks,
        )
        leases = PsycopgLeases(
            self._database,
            prefix=settings.prefix,
            owner=settings.new_owner(),
            lease_ms=settings.lease_ms,
            create_table=self._create_table,
        )
        self._writes = PoolCoordinator(
            settings,
            leases=leases,
            new_writes=settings.writes_maker(
                database=self._database,
                new_kafka=self._kafka_side,
                sleep=self._sleep,
                uninterrupted=self._uninterrupted,
            ),
            runtime=self._runtime(),
        )

    @property
    def prefix(self) -> str:
        """What the transactional ids of this pool begin with; a dash and a number follow."""
        return self._settings.prefix

    @property
    def status(self) -> PoolStatus:
        """What goes on now, and the sums since the pool was made. Cheap, and from any thread."""
        return self._writes.status()

    async def _begin(self, block: Block, connection: AnyConnection | None) -> tuple[PsycopgTransaction, RecordBuffer]:
        async def take_slot_before_snapshot(found: AnyConnection) -> None:
            if await self._database.keeps_a_snapshot(found):
                await self._writes.take_slot(block)

        records = RecordBuffer(self._max_buffered_bytes, self._settings.serializers)
        return await self._database.transaction(connection, records, take_slot_before_snapshot), records

    async def _close(self, timeout_s: float) -> None:
        await self._writes.close(timeout_s)
        await self._of_blocks.close()
        await self._background.close()
