"""Both faces of the producer behind one set of blocking calls, so that a test is written once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from dualwrite.client.log.transaction_end import TransactionEnd
from dualwrite.client.records.batch_reading import StoredRecord
from dualwrite.client.transactions.manifest import Manifest, PartitionManifest
from dualwrite.client.transactions.recovery import CoordinatorMemory
from dualwrite.guarantee import Guarantee
from dualwrite.participant import ParticipantProducer
from dualwrite.participant_async import AsyncParticipantProducer
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.producer import ProducerState, TopicPartition

FACES: Final = ("sync", "async")


class Face:
    """A producer by its name in `FACES`; every call waits until it has ended."""

    def __init__(self, face: str, settings: dict[str, Any]) -> None:
        self._closed = False
        self._runner = asyncio.Runner() if face == "async" else None
        self._producer: Any = (
            ParticipantProducer(settings) if self._runner is None else self._runner.run(_created(settings))
        )

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        self._call(self._producer.init_transactions, keep_prepared_txn)

    def write(self, topic: str, *values: bytes) -> None:
        """Begin a transaction and have these records stored."""
        self._call(self._producer.begin_transaction)
        for value in values:
            self._call(self._producer.send, topic, value)
        self._call(self._producer.flush)

    def prepare(self, topic: str, *values: bytes) -> PreparedTxnState:
        """Begin a transaction with these records and prepare it."""
        self.write(topic, *values)
        prepared = self._call(self._producer.prepare_transaction)
        assert isinstance(prepared, PreparedTxnState)
        return prepared

    def begin(self) -> None:
        self._call(self._producer.begin_transaction)

    def send(self, topic: str, value: bytes | None, **record: Any) -> None:
        self._call(self._producer.send, topic, value, **record)

    def flush(self) -> None:
        self._call(self._producer.flush)

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group: str) -> None:
        self._call(self._producer.send_offsets_to_transaction, offsets, group)

    def prepare_open(self) -> PreparedTxnState:
        """Prepare the open transaction."""
        prepared = self._call(self._producer.prepare_transaction)
        assert isinstance(prepared, PreparedTxnState)
        return prepared

    @property
    def manifest(self) -> Manifest | None:
        manifest: Manifest | None = self._producer.manifest
        return manifest

    @property
    def memory(self) -> CoordinatorMemory:
        memory: CoordinatorMemory = self._producer.memory
        return memory

    def cluster_id(self, timeout_ms: int = 30_000) -> str:
        return str(self._call(self._producer.cluster_id, timeout_ms))

    def end_of(self, manifest: Manifest, timeout_ms: int = 30_000, *, is_over: bool = False) -> TransactionEnd:
        end = self._call(self._producer.end_of, manifest, timeout_ms, is_over=is_over)
        assert isinstance(end, TransactionEnd)
        return end

    def records_of(
        self, manifest: Manifest, partitions: Collection[PartitionManifest], timeout_ms: int = 30_000
    ) -> list[StoredRecord]:
        records: list[StoredRecord] = self._call(self._producer.records_of, manifest, partitions, timeout_ms)
        return records

    def complete_before_fencing(self, state: PreparedTxnState, *, is_over: bool = False) -> None:
        self._call(self._producer.complete_before_fencing, state, is_over=is_over)

    def fence_others(self) -> None:
        self._call(self._producer.fence_others)

    def complete_transaction(self, state: PreparedTxnState) -> None:
        self._call(self._producer.complete_transaction, state)

    def commit_transaction(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort_transaction(self) -> None:
        self._call(self._producer.abort_transaction)

    @property
    def state(self) -> ProducerState:
        state: ProducerState = self._producer.state
        return state

    @property
    def guarantee(self) -> Guarantee:
        guarantee: Guarantee = self._producer.guarantee
        return guarantee

    @property
    def shown(self) -> str:
        """The producer as a log shows it."""
        return repr(self._producer)

    def close(self, timeout_s: float | None = 0) -> None:
        """Let go of the connections; at once, as the end of the process does, unless there is more time."""
        if self._closed:
            return
        self._closed = True
        self._call(self._producer.close, timeout_s)
        if self._runner is not None:
            self._runner.close()

    def _call(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        result = call(*arguments, **named)
        if self._runner is None or not inspect.isawaitable(result):
            return result
        return self._runner.run(_awaited(result))


async def _created(settings: dict[str, Any]) -> AsyncParticipantProducer:
    return AsyncParticipantProducer(settings)


async def _awaited(result: Any) -> Any:
    return await result
