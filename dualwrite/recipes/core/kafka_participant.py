"""Kafka's side of the dual writes under one transactional id: its interface, for threads, and for asyncio."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar

from dualwrite.client.admin.results import TopicDescription
from dualwrite.client.transactions.manifest import Manifest, PartitionManifest
from dualwrite.client.transactions.states import ProducerState
from dualwrite.errors import DualWriteError
from dualwrite.guarantee import Guarantee
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.buffer import BufferedOffsets, BufferedRecord

if TYPE_CHECKING:
    from dualwrite.client.log.batches import StoredRecord
    from dualwrite.client.log.transaction_end import TransactionEnd
    from dualwrite.participant import ParticipantProducer
    from dualwrite.participant_async import AsyncParticipantProducer

ResultT = TypeVar("ResultT")


async def _result_of(returned: ResultT | Coroutine[Any, Any, ResultT]) -> ResultT:
    """Return the result of a call of either producer. It asks for the class: to ask for an ABC is a call by itself."""
    of_any_kind: Any = returned
    result: ResultT = await of_any_kind if isinstance(of_any_kind, CoroutineType) else of_any_kind
    return result


class KafkaParticipant:
    """A producer for threads that can be given up and replaced. Raises the errors of a producer."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Import the producer, so that the first block does not wait for that."""
        self._settings = dict(settings)
        self._producer_class = self._imported()
        self._producer: ParticipantProducer | AsyncParticipantProducer
        """Missing before the first take-over, and after `give_up`."""
        self._most_ms: int | None = None

    @staticmethod
    def _imported() -> type[ParticipantProducer | AsyncParticipantProducer]:
        from dualwrite.participant import ParticipantProducer

        return ParticipantProducer

    def limit_waits(self, timeout_ms: int) -> None:
        """Let no call wait longer than this from now on, including calls of producers that `take_over` creates."""
        self._most_ms = timeout_ms
        if "_producer" in vars(self):
            self._producer.max_block_ms = min(self._producer.max_block_ms, timeout_ms)

    async def take_over(self, kafka_id: str) -> PreparedTxnState:
        """Fence the previous owner with a new producer of this id. Return the transaction it left open, or empty."""
        await self.give_up()
        producer = self._producer = self._producer_class(**self._settings, transactional_id=kafka_id)
        if self._most_ms is not None:
            producer.max_block_ms = min(producer.max_block_ms, self._most_ms)
        await _result_of(producer.init_transactions(keep_prepared_txn=True))
        return producer.prepared_txn_state

    def coordinator_knows(self, row: PreparedTxnState) -> bool:
        """Return whether the responses to the take-over prove that the row's transaction is open or was committed."""
        return self._producer.coordinator_knows(row)

    def coordinator_aborted(self, row: PreparedTxnState) -> bool:
        """Return whether the responses to the take-over prove that the row's transaction was aborted."""
        return self._producer.coordinator_aborted(row)

    @property
    def coordinator_is_ending(self) -> bool:
        """Whether markers were being written when the id was described in the take-over."""
        return self._producer.coordinator_is_ending

    def coordinator_committed_later(self, row: PreparedTxnState) -> bool:
        """Return whether the responses to the take-over prove that a later transaction than the row's was committed."""
        return self._producer.coordinator_committed_later(row)

    async def end_of(self, manifest: Manifest, timeout_ms: int, *, is_over: bool) -> TransactionEnd:
        """Read from the log how the transaction of the manifest ended. Changes nothing."""
        return await _result_of(self._producer.end_of(manifest, timeout_ms, is_over=is_over))

    async def records_of(
        self, manifest: Manifest, partitions: Sequence[PartitionManifest], timeout_ms: int
    ) -> Sequence[StoredRecord]:
        """Read the records of a transaction from the log. Raises PreparedTransactionLost if some are missing."""
        return await _result_of(self._producer.records_of(manifest, partitions, timeout_ms))

    async def repair_of(
        self, manifest: Manifest, part: PartitionManifest, undecided: PreparedTxnState, timeout_ms: int
    ) -> PreparedTxnState | None:
        """Read from the log the transaction that published a partition's aborted records again; None if none did.

        `undecided` is open, and is going to be aborted.
        """
        return await _result_of(self._producer.repair_of(manifest, part, undecided, timeout_ms))

    async def complete(self, row: PreparedTxnState, *, is_over: bool = False) -> None:
        """Commit the transaction that was left open if the row names it, else abort it.

        `is_over`: the log proves that the row's transaction has ended, so that only another one can be open. Another
        process that takes the id over may get the same responses, until `own`.
        """
        await _result_of(self._producer.complete_before_fencing(row, is_over=is_over))

    async def own(self) -> None:
        """Fence all other producers of the id. Call it after checking that the lock is still held."""
        await _result_of(self._producer.fence_others())

    @property
    def has_failed(self) -> bool:
        """Whether the producer cannot be used any more, as after a commit that another process has completed."""
        return self._producer.state is ProducerState.FATAL_ERROR

    async def is_current(self) -> bool:
        """Return whether no other producer has used the id since, according to Kafka. Call it between transactions.

        Waits until no markers are being written. Raises KafkaTimeoutError.
        """
        return await _result_of(self._producer.is_current())

    @property
    def bounded_ms(self) -> int | None:
        """How long after its first record Kafka aborts a prepared transaction; None if it never does."""
        return self._producer.bounded_ms

    @property
    def guarantee(self) -> Guarantee:
        """The brokers' guarantee for a prepared transaction."""
        return self._producer.guarantee

    async def describe_topics(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        """Return whether this client may read topics, and how their logs are cleaned. Changes nothing."""
        return await _result_of(self._producer.describe_topics(topics))

    async def begin(self) -> None:
        begun = self._producer.begin_transaction()
        if begun is not None:  # awaitable; each of these calls is on the way of every block
            await begun

    async def learn_topics(self, topics: Collection[str], beside: Collection[str]) -> Mapping[str, DualWriteError]:
        """Ask for the partitions of topics. Return the reason for each topic still unknown after the usual wait.

        Topics `beside` are asked for by the same request, and not waited for. Raises KafkaUnreachableError,
        AuthenticationError. Needs no transaction.
        """
        return await _result_of(self._producer.learn_topics(topics, beside))

    def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic, 0 if it is not known."""
        return self._producer.partitions(topic)

    async def send(
        self,
        entries: Iterable[BufferedRecord | BufferedOffsets],
        after_each: Callable[[], object],
        *,
        any_size: bool = False,
    ) -> None:
        """Send all entries in the open transaction, in order. Call `after_each` after each record.

        `any_size`: the setting `max.request.size` does not count, because the records were accepted before.
        """
        producer = self._producer
        if any_size:
            with producer.any_size():
                await self.send(entries, after_each)
            return
        for entry in entries:
            if isinstance(entry, BufferedOffsets):
                await _result_of(producer.send_offsets_to_transaction(entry.offsets, entry.group_metadata))
                continue
            sent: Any = producer.send_checked(
                entry.topic, entry.value, entry.key, entry.headers, entry.partition, entry.timestamp_ms
            )
            entry.fate = await sent if isinstance(sent, CoroutineType) else sent
            after_each()

    async def prepare(self) -> PreparedTxnState:
        """Wait until everything is stored. Return the producer id and epoch by which it can be committed."""
        prepared = self._producer.prepare_transaction()
        return prepared if isinstance(prepared, PreparedTxnState) else await prepared

    @property
    def manifest(self) -> Manifest | None:
        """Where the records of the prepared transaction are stored; None if that is not known."""
        return self._producer.manifest

    async def commit(self) -> None:
        committed = self._producer.commit_transaction()
        if committed is not None:
            await committed

    async def abort(self) -> None:
        await _result_of(self._producer.abort_transaction())

    async def give_up(self) -> None:
        """Close the producer without ending its transaction, which the next take-over completes."""
        producer = vars(self).pop("_producer", None)
        if producer is not None:
            await _result_of(producer.close(timeout_s=0))


class AsyncKafkaParticipant(KafkaParticipant):
    """The same with the producer for asyncio, which is bound to the event loop of its take-over."""

    @staticmethod
    def _imported() -> type[AsyncParticipantProducer]:
        from dualwrite.participant_async import AsyncParticipantProducer

        return AsyncParticipantProducer
