"""The base of the producers of dual writes: proofs by the coordinator and by the log, and topics to be known ahead."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager

from dualwrite.client.admin.results import TopicDescription
from dualwrite.client.log.batches import StoredRecord
from dualwrite.client.log.reader import LogReader
from dualwrite.client.log.transaction_end import TransactionEnd
from dualwrite.client.producer_base import FutureT, ProducerBase
from dualwrite.client.transactions.manifest import Manifest, PartitionManifest
from dualwrite.client.wanted_topics import WantedTopics
from dualwrite.errors import AuthenticationError, DualWriteError, KafkaUnreachableError
from dualwrite.prepared_state import PreparedTxnState


class ParticipantBase(ProducerBase[FutureT]):
    """The calls of a producer that only dual writes make, without those that wait."""

    @property
    def manifest(self) -> Manifest | None:
        """Where Kafka stored the records of the transaction that `prepare_transaction()` has prepared.

        None if nothing is prepared, if it was prepared by another producer, or if a broker could not say where it
        stored a batch (DUPLICATE_SEQUENCE_NUMBER).
        """
        return self._core.manifest

    def coordinator_knows(self, stored: PreparedTxnState) -> bool:
        """Return whether the coordinator has proven that the stored transaction is open or committed.

        To be called between `init_transactions(keep_prepared_txn=True)` and the completion. True also if `stored` is
        empty. If False, it was aborted or there is no trace of it: `end_of()` asks the log.
        """
        return self._core.coordinator_knows(stored)

    def coordinator_committed_later(self, stored: PreparedTxnState) -> bool:
        """Return whether the coordinator has proven that a later transaction than the stored one was committed.

        . To be called where `coordinator_knows()` is. False where it keeps no proof.
        """
        return self._core.coordinator_committed_later(stored)

    def coordinator_aborted_later(self, stored: PreparedTxnState) -> bool:
        """Return whether the coordinator has shown an abort that may be that of the stored transaction.

        For completion, as `coordinator_knows()` is. Nothing proves then that the stored one was committed.
        """
        return self._core.coordinator_aborted_later(stored)

    def coordinator_aborted(self, stored: PreparedTxnState) -> bool:
        """Return whether the coordinator has proven that the stored transaction was aborted.

        To be called where `coordinator_knows()` is.
        """
        return self._core.coordinator_aborted(stored)

    @property
    def coordinator_is_ending(self) -> bool:
        """Whether the coordinator has said that markers of the id's last transaction are being written.

        To be read where `coordinator_knows()` is called.
        """
        return self._core.coordinator_is_ending

    # ---- the log --------------------------------------------------------------------------------------------

    async def _read_end(self, manifest: Manifest, timeout_ms: int, *, is_over: bool) -> TransactionEnd:
        """Do what `end_of()` does. In the loop of the connections."""
        reader = LogReader(self._core.config, self._loop)
        try:
            return await reader.end_of(manifest, timeout_ms, is_over=is_over)
        finally:
            await reader.close()

    async def _read_records(
        self, manifest: Manifest, partitions: Collection[PartitionManifest], timeout_ms: int
    ) -> list[StoredRecord]:
        """Do what `records_of()` does. In the loop of the connections."""
        reader = LogReader(self._core.config, self._loop)
        try:
            return await reader.records_of(manifest, partitions, timeout_ms)
        finally:
            await reader.close()

    async def _read_repair(
        self, manifest: Manifest, part: PartitionManifest, undecided: PreparedTxnState, timeout_ms: int
    ) -> PreparedTxnState | None:
        """Do what `repair_of()` does. In the loop of the connections."""
        reader = LogReader(self._core.config, self._loop)
        try:
            return await reader.repair_of(manifest, part, undecided, timeout_ms)
        finally:
            await reader.close()

    def partitions(self, topic: str) -> int:
        """Return the topic's number of partitions, 0 if it is not known: `learn_topics()` asks."""
        return self._core.partitions(topic)

    def any_size(self) -> AbstractContextManager[None]:
        """Return a context in which records may be larger than `max.request.size`.

        They have passed the limit of the process that accepted them.
        """
        return self._core.any_size()

    def _not_learned(self, wanted: WantedTopics) -> dict[str, DualWriteError]:
        """Return why topics are not known after the wait for them.

        Raises the error that is not about a topic: that no broker can be reached, or refuses the login.
        """
        found: dict[str, DualWriteError] = {}
        for topic, operation in wanted.by_topic.items():
            if operation.done and operation.error is None:
                continue
            error = operation.error or self._not_sent(operation, topic, "nothing was sent")
            if isinstance(error, KafkaUnreachableError | AuthenticationError):
                raise error
            found[topic] = error
        return found

    async def _describe_topics(self, topics: Collection[str]) -> dict[str, TopicDescription]:
        """Do what `describe_topics()` does. In the loop of the connections."""
        reader = LogReader(self._core.config, self._loop)
        try:
            return await reader.describe_topics(topics, self.max_block_ms)
        finally:
            await reader.close()
