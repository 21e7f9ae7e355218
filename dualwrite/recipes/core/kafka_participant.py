"""Kafka's side of the dual writes under one transactional id: its interface, for threads, and for asyncio."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from dualwrite.client.transactions.manifest import Manifest
from dualwrite.client.transactions.recovery import CoordinatorMemory
from dualwrite.client.transactions.states import ProducerState
from dualwrite.guarantee import Guarantee
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.buffer import BufferedOffsets, BufferedRecord

if TYPE_CHECKING:
    from dualwrite.participant import ParticipantProducer
    from dualwrite.participant_async import AsyncParticipantProducer

ArgumentsT = ParamSpec("ArgumentsT")
ResultT = TypeVar("ResultT")


async def _result_of(returned: ResultT | Coroutine[Any, Any, ResultT]) -> ResultT:
    """Return the result of a call of either producer. A check for an ABC would cost another call."""
    of_any_kind: Any = returned
    result: ResultT = await of_any_kind if isinstance(of_any_kind, CoroutineType) else of_any_kind
    return result


def _of_producer(
    method_of: Callable[[ParticipantProducer], Callable[ArgumentsT, ResultT]],
) -> Callable[Concatenate[KafkaParticipant, ArgumentsT], Coroutine[Any, Any, ResultT]]:
    """Return a method that calls the producer's documented method of that name, and awaits the result if necessary."""

    async def method(self: KafkaParticipant, /, *arguments: ArgumentsT.args, **named: ArgumentsT.kwargs) -> ResultT:
        producer: Any = self._producer
        return await _result_of(method_of(producer)(*arguments, **named))

    return method


class KafkaParticipant:
    """A producer for threads that can be given up and replaced. Raises the errors of a producer."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Import the producer, so that the first block does not wait for that."""
        self._settings = dict(settings)
        self._producer_class = self._imported()
        self._producer: ParticipantProducer | AsyncParticipantProducer
        """Missing before the first take-over, and after `give_up`."""
        self._cluster_id: str | None = None
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
        self._cluster_id = None
        producer = self._producer = self._producer_class(**self._settings, transactional_id=kafka_id)
        if self._most_ms is not None:
            producer.max_block_ms = min(producer.max_block_ms, self._most_ms)
        await _result_of(producer.init_transactions(keep_prepared_txn=True))
        return producer.prepared_txn_state

    async def cluster_id(self, timeout_ms: int) -> str:
        """Return the id of the Kafka cluster, which is asked once after each take-over; "" if it has none."""
        if self._cluster_id is None:
            self._cluster_id = await _result_of(self._producer.cluster_id(timeout_ms))
        return self._cluster_id

    @property
    def memory(self) -> CoordinatorMemory:
        """The coordinator's memory of the id's last transaction, as the take-over has found it."""
        return self._producer.memory

    end_of = _of_producer(lambda producer: producer.end_of)
    records_of = _of_producer(lambda producer: producer.records_of)
    repair_of = _of_producer(lambda producer: producer.repair_of)
    complete = _of_producer(lambda producer: producer.complete_before_fencing)
    own = _of_producer(lambda producer: producer.fence_others)
    is_current = _of_producer(lambda producer: producer.is_current)
    describe_topics = _of_producer(lambda producer: producer.describe_topics)
    learn_topics = _of_producer(lambda producer: producer.learn_topics)
    abort = _of_producer(lambda producer: producer.abort_transaction)

    @property
    def has_failed(self) -> bool:
        """Whether the producer can no longer be used, as after a commit that another process has completed."""
        return self._producer.state is ProducerState.FATAL_ERROR

    @property
    def bounded_ms(self) -> int | None:
        """How long after its first record Kafka aborts a prepared transaction; None if it never does."""
        return self._producer.bounded_ms

    @property
    def guarantee(self) -> Guarantee:
        return self._producer.guarantee

    async def begin(self) -> None:
        begun = self._producer.begin_transaction()
        if begun is not None:  # awaitable; each of these calls is on the way of every block
            await begun

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

    async def give_up(self) -> None:
        """Close the producer without ending its transaction, which the next take-over completes."""
        producer = vars(self).pop("_producer", None)
        if producer is not None:
            await _result_of(producer.close(timeout_s=0))


class AsyncKafkaParticipant(KafkaParticipant):
    """`KafkaParticipant` on the producer for asyncio, which is bound to the event loop of its take-over."""

    @staticmethod
    def _imported() -> type[AsyncParticipantProducer]:
        from dualwrite.participant_async import AsyncParticipantProducer

        return AsyncParticipantProducer
