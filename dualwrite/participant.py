"""The producer of dual writes for threads: `Producer` with the calls that only they need, which may change.

A dual write completes its predecessor under a lock that it may have lost, proves by the log an end that the coordinator
has forgotten, and reads back the records of a transaction that a broker has aborted.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from dualwrite.client.admin.results import TopicDescription
from dualwrite.client.io_thread import this_process
from dualwrite.client.log.transaction_end import TransactionEnd
from dualwrite.client.monotonic import monotonic_s
from dualwrite.client.participant_base import ParticipantBase
from dualwrite.client.records.batch_reading import StoredRecord
from dualwrite.client.records.batches import Header
from dualwrite.client.records.record_future import RecordFuture
from dualwrite.client.transactions.manifest import Manifest, PartitionManifest
from dualwrite.errors import DualWriteError
from dualwrite.monkey_patches import FIRST_LOCK
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.producer import Producer


class ParticipantProducer(ParticipantBase[RecordFuture], Producer):
    """The producer of dual writes for threads."""

    def complete_before_fencing(self, state: PreparedTxnState, *, is_over: bool = False) -> None:
        """Do the same as `complete_transaction`, but leave the last fencing to `fence_others()`.

        Between the two calls the caller checks that it still holds the lock of the stored state.
        `is_over`: the log has proven (`end_of()`) how the transaction of `state` ended. Then it is not lost, even if
        the coordinator contradicts: any other open transaction is aborted, and the id is taken over.
        """
        checked = self._checked_prepared(state)
        self._run(lambda: self._core.complete_transaction(checked, fence_others=False, is_over=is_over))

    def fence_others(self) -> None:
        """Fence producers that got the same responses as this one in `complete_before_fencing`."""
        self._run(self._core.fence_others)

    def is_current(self) -> bool:
        """Return whether no other producer has used the transactional id since.

        Call it between transactions. Describes the id at its coordinator.
        """
        self._run(self._core.describe)
        return self._core.is_current

    def end_of(self, manifest: Manifest, timeout_ms: int, *, is_over: bool = False) -> TransactionEnd:
        """Return how the transaction ended in each of its partitions, by reading the log.

        Changes nothing, and may be called in any state. Waits up to `timeout_ms` for markers that are being written,
        and for leaders. `is_over`: the coordinator writes no more markers, so a log without one is watched only for a
        few seconds. Raises `OutcomeUnknown` (nothing was changed; ask again; `NoMarkerError` if each log could be read
        to its end), `KafkaUnreachableError` after `unreachable.timeout.ms`, `AuthorizationError` without READ on a
        topic, `AnotherClusterError`, also for a manifest without partitions, and `AuthenticationError`.
        """
        return self._read(self._of_log(lambda log: log.end_of(manifest, timeout_ms, is_over=is_over)))

    def cluster_id(self, timeout_ms: int) -> str:
        """Return the id of the Kafka cluster; "" if it has none.

        Raises `KafkaTimeoutError` (`KafkaUnreachableError` after `unreachable.timeout.ms`), `AuthenticationError`.
        """
        return self._read(self._of_log(lambda log: log.cluster_id(timeout_ms)))

    def records_of(
        self, manifest: Manifest, partitions: Collection[PartitionManifest], timeout_ms: int
    ) -> list[StoredRecord]:
        """Return the records of the transaction in those partitions, as stored and in order.

        Whether they are committed makes no difference. Raises `RecordsGoneError` if any is missing,
        `KafkaTimeoutError` (nothing was changed; ask again), and else as `end_of()`.
        """
        return self._read(self._of_log(lambda log: log.records_of(manifest, partitions, timeout_ms)))

    def repair_of(
        self,
        manifest: Manifest,
        parts: Collection[PartitionManifest],
        undecided: PreparedTxnState,
        timeout_ms: int,
        others: Collection[PreparedTxnState] = (),
    ) -> PreparedTxnState | None:
        """Return the transaction that published the aborted records of all these partitions again; None without one.

        Reads the log of one of them from the aborted records to its end, and the others only for a transaction of
        another producer id, which must have the records of each that still has any. `undecided` is an open transaction
        that is going to be aborted, and `others` are known to be no repair. Changes nothing. Raises `KafkaTimeoutError`
        if the end is not reached in time (nothing was changed; ask again), and else as `end_of()`.
        """
        return self._read(self._of_log(lambda log: log.repair_of(manifest, parts, undecided, timeout_ms, others)))

    def describe_topics(self, topics: Collection[str]) -> dict[str, TopicDescription]:
        """Return whether this producer may read topics, and how their logs are cleaned.

        Changes nothing, and may be called in any state. Raises `KafkaTimeoutError` (`KafkaUnreachableError` after
        `unreachable.timeout.ms`), `AuthenticationError`.
        """
        return self._read(self._of_log(lambda log: log.describe_topics(topics, self.max_block_ms)))

    def learn_topics(self, topics: Collection[str], beside: Collection[str] = ()) -> dict[str, DualWriteError]:
        """Request the partitions of topics, as sending does.

        Return the errors of topics that are still unknown after `max.block.ms`. The same request asks for the topics in
        `beside`, but does not wait for them. Raises `KafkaUnreachableError`, `AuthenticationError`.
        """
        self._check_process()
        deadline_s = self._deadline_s()
        waiter = self._new_waiter()
        wanted = self._core.want_topics(topics, beside)
        try:
            with self._core.lock:
                wanted.all_ended.listen(waiter.wake)
            waiter.wait(deadline_s - monotonic_s())
        finally:
            self._core.give_up_topics(wanted)
        return self._not_learned(wanted)

    def send_checked(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: list[Header],
        partition: int | None,
        timestamp_ms: int,
    ) -> RecordFuture:
        """Send a record that has been checked and serialized."""
        if self._generation != this_process.generation or threading.Lock is not FIRST_LOCK:
            self._check_process()
        queued = self._queue(topic, value, key, headers, partition, timestamp_ms)
        return queued if type(queued) is RecordFuture else self._send_when_possible(queued)
