"""The base of the producers of dual writes: proofs by the coordinator and by the log, and topics to be known ahead."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from dualwrite.client.log.reader import LogReader
from dualwrite.client.producer_base import FutureT, ProducerBase
from dualwrite.client.transactions.manifest import Manifest
from dualwrite.client.transactions.recovery import CoordinatorMemory
from dualwrite.client.wanted_topics import WantedTopics
from dualwrite.errors import AuthenticationError, DualWriteError, KafkaUnreachableError

ResultT = TypeVar("ResultT")


class ParticipantBase(ProducerBase[FutureT]):
    """The calls of a producer that only dual writes make, without those that wait."""

    @property
    def manifest(self) -> Manifest | None:
        """Where Kafka stored the records of the transaction that `prepare_transaction()` has prepared.

        None if nothing is prepared, if another producer prepared it, or if a broker could not say where it stored a
        batch (DUPLICATE_SEQUENCE_NUMBER).
        """
        return self._core.manifest

    @property
    def memory(self) -> CoordinatorMemory:
        """The coordinator's memory of the id's last transaction.

        Read it between `init_transactions(keep_prepared_txn=True)` and the completion.
        """
        return self._core.memory

    # ---- the log --------------------------------------------------------------------------------------------

    async def _of_log(self, call: Callable[[LogReader], Awaitable[ResultT]]) -> ResultT:
        """Return the result of one call of a reader of the log, in the loop of the connections."""
        reader = LogReader(self._core.config, self._loop)
        try:
            return await call(reader)
        finally:
            await reader.close()

    def partitions(self, topic: str) -> int:
        """Return the topic's number of partitions, 0 if unknown; `learn_topics()` requests it."""
        return self._core.partitions(topic)

    def any_size(self) -> AbstractContextManager[None]:
        """Return a context in which records may be larger than `max.request.size`.

        They have passed the limit of the process that accepted them.
        """
        return self._core.any_size()

    def _not_learned(self, wanted: WantedTopics) -> dict[str, DualWriteError]:
        """Return the errors of topics that are still unknown after the wait for them.

        Raises an error that is not about a topic: no broker can be reached, or one refuses the login.
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
