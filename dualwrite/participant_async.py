"""The producer of dual writes for asyncio: `AsyncProducer` with the calls that only they need, which may change."""

from __future__ import annotations

from collections.abc import Collection

from dualwrite.async_producer import AsyncProducer, AsyncRecordFuture
from dualwrite.client.admin.results import TopicDescription
from dualwrite.client.log.transaction_end import TransactionEnd
from dualwrite.client.participant_base import ParticipantBase
from dualwrite.client.producer_base import BlockedSend
from dualwrite.client.records.batch_reading import StoredRecord
from dualwrite.client.records.batches import Header
from dualwrite.client.transactions.manifest import Manifest, PartitionManifest
from dualwrite.errors import DualWriteError
from dualwrite.prepared_state import PreparedTxnState


class AsyncParticipantProducer(ParticipantBase[AsyncRecordFuture], AsyncProducer):
    """The producer of dual writes for asyncio."""

    async def complete_before_fencing(self, state: PreparedTxnState, *, is_over: bool = False) -> None:
        """See `ParticipantProducer.complete_before_fencing`."""
        checked = self._checked_prepared(state)
        await self._run(lambda: self._core.complete_transaction(checked, fence_others=False, is_over=is_over))

    async def fence_others(self) -> None:
        """See `ParticipantProducer.fence_others`."""
        await self._run(self._core.fence_others)

    async def is_current(self) -> bool:
        """See `ParticipantProducer.is_current`."""
        await self._run(self._core.describe)
        return self._core.is_current

    async def end_of(self, manifest: Manifest, timeout_ms: int, *, is_over: bool = False) -> TransactionEnd:
        """See `ParticipantProducer.end_of`."""
        self._check_here()
        return await self._of_log(lambda log: log.end_of(manifest, timeout_ms, is_over=is_over))

    async def cluster_id(self, timeout_ms: int) -> str:
        """See `ParticipantProducer.cluster_id`."""
        self._check_here()
        return await self._of_log(lambda log: log.cluster_id(timeout_ms))

    async def records_of(
        self, manifest: Manifest, partitions: Collection[PartitionManifest], timeout_ms: int
    ) -> list[StoredRecord]:
        """See `ParticipantProducer.records_of`."""
        self._check_here()
        return await self._of_log(lambda log: log.records_of(manifest, partitions, timeout_ms))

    async def repair_of(
        self,
        manifest: Manifest,
        parts: Collection[PartitionManifest],
        undecided: PreparedTxnState,
        timeout_ms: int,
        others: Collection[PreparedTxnState] = (),
    ) -> PreparedTxnState | None:
        """See `ParticipantProducer.repair_of`."""
        self._check_here()
        return await self._of_log(lambda log: log.repair_of(manifest, parts, undecided, timeout_ms, others))

    async def describe_topics(self, topics: Collection[str]) -> dict[str, TopicDescription]:
        """See `ParticipantProducer.describe_topics`."""
        self._check_here()
        return await self._of_log(lambda log: log.describe_topics(topics, self.max_block_ms))

    async def learn_topics(self, topics: Collection[str], beside: Collection[str] = ()) -> dict[str, DualWriteError]:
        """See `ParticipantProducer.learn_topics`."""
        self._check_here()
        deadline_s = self._deadline_s()
        wanted = self._core.want_topics(topics, beside)
        try:
            await self._ends(wanted.all_ended, deadline_s - self._loop.time())
        finally:
            self._core.give_up_topics(wanted)
        return self._not_learned(wanted)

    async def send_checked(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: list[Header],
        partition: int | None,
        timestamp_ms: int,
    ) -> AsyncRecordFuture:
        """Send a record that has been checked and serialized."""
        self._check_here()
        if self._core.can_send_now:
            await self._let_loop_send()
        queued = self._queue(topic, value, key, headers, partition, timestamp_ms)
        if isinstance(queued, BlockedSend):
            return await self._send_when_possible(queued)
        return queued
