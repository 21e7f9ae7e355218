"""What the psycopg writers for threads and for coroutines have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.coordinator import DualWriteCoordinator
from dualwrite.recipes.core.kafka_participant import KafkaParticipant
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.core.settings import Confirm, KafkaSettings, follows_later
from dualwrite.recipes.core.shield import Uninterrupted
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.psycopg.adapter import PsycopgDatabase, PsycopgTransaction
from dualwrite.recipes.psycopg.connection_guard import AnyConnection
from dualwrite.recipes.psycopg.connections import connections_beside, connections_from


class PsycopgWriterBase:
    """Its parts, put together; `connect` opens a connection, `kafka_side` is made with the producer's settings."""

    def __init__(
        self,
        database: Any,
        *,
        connect: Callable[..., Any],
        kafka_side: Callable[[Mapping[str, Any]], KafkaParticipant],
        sleep: Callable[[float], Awaitable[None]],
        uninterrupted: Uninterrupted,
        transactional_id: str,
        lock_timeout_ms: int | None,
        resolve_timeout_ms: int,
        max_buffered_bytes: int,
        create_table: bool,
        schema: str | None,
        confirm: Confirm,
        pause: PauseHook | None,
        producer_settings: Mapping[str, Any],
    ) -> None:
        settings = KafkaSettings(transactional_id, producer_settings)
        self._serializers: Final = settings.serializers
        self._max_buffered_bytes: Final = max_buffered_bytes
        self._connections: Final = connections_from(database, connect)
        self._database: Final = PsycopgDatabase(
            self._connections,
            create_table=create_table,
            schema=schema,
            uninterrupted=uninterrupted,
            beside=connections_beside(database, connect, most_kept=0),
        )
        self._writes: Final = DualWriteCoordinator(
            settings.transactional_id,
            database=self._database,
            kafka=kafka_side(settings.producer),
            sleep=sleep,
            lock_timeout_ms=lock_timeout_ms,
            resolve_timeout_ms=resolve_timeout_ms,
            pause=pause,
            uninterrupted=uninterrupted,
            kafka_follows_later=follows_later(confirm),
        )

    @property
    def transactional_id(self) -> str:
        """The name that this writer was given, by which the database knows its row."""
        return self._writes.transactional_id

    @property
    def kafka_transactional_id(self) -> str | None:
        """What Kafka sees of it: with the suffix of the database. None before the first use, which asks for that."""
        return self._writes.kafka_transactional_id

    @property
    def state(self) -> SlotState:
        """What this writer knows about its transactional id."""
        return self._writes.state

    @property
    def in_doubt(self) -> PreparedTxnState:
        """The dual write that the database committed and whose Kafka commit is not confirmed yet; else empty.

        The next `transaction()` with records, or `recover()`, here or in any process, completes it first. In state
        FENCED that is for the process that took the id over, or for a new writer.
        """
        return self._writes.in_doubt

    async def _begin(self, connection: AnyConnection | None) -> tuple[PsycopgTransaction, RecordBuffer]:
        records = RecordBuffer(self._max_buffered_bytes, self._serializers)
        return await self._database.transaction(connection, records), records

    async def _close(self) -> None:
        await self._writes.close()
        await self._connections.close()
