"""Earlier transactions of the producer id that are still open in a partition, where the next marker would end both.

Kafka can complete a transaction without its marker in a partition (KAFKA-20734, an unclean election). Records that were
never decided would then become visible with the next commit of the producer id there, and decided ones be aborted by
its next abort. So before a transaction first writes to a partition, its leader is asked (DescribeProducers, KIP-664).
Another leader is asked again, and so is one whose connection was lost: it may have been away when a marker was due. If
a transaction is open, its markers may still be on their way: the coordinator is asked next, and then the leader again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from dualwrite.client import messages as m
from dualwrite.client.producer_port import Outgoing
from dualwrite.client.records.record import TopicPartition
from dualwrite.errors import NETWORK_EXCEPTION, Api, ErrorClass, error_class
from dualwrite.prepared_state import PreparedTxnState

_CANNOT_TELL: Final = (ErrorClass.REFUSED, ErrorClass.UNSUPPORTED)
"""Without READ on a topic, or on an old broker, nothing can be asked; the transaction goes on as on any client."""
_NO_RESPONSE: Final = m.PartitionProducers(NETWORK_EXCEPTION, {})


class Asked(NamedTuple):
    """The outcome of a question to a leader.

    `hanging`: transactions that no marker will end. `error_code`: of a question to be repeated; 0 for none.
    """

    hanging: Mapping[TopicPartition, m.OpenAt]
    error_code: int


class EarlierTransactions:
    """Asks the leaders of partitions for earlier transactions, before the present one writes there.

    Invariant: a transaction writes to a partition only after its leader has said that no earlier one of the producer id
    is open (or that it cannot tell), and no connection to it was lost between that and its first acknowledged batch.
    """

    __slots__ = ("_asked", "_clear", "_coordinator_has_ended", "_is_off", "_wanted", "_written", "asks_coordinator")

    def __init__(self) -> None:
        self._is_off = False
        self._clear: dict[TopicPartition, tuple[int, int]] = {}
        """The leader that has said that nothing is open, and the number of connections to it lost by then."""
        self._wanted: dict[TopicPartition, tuple[int, int]] = {}
        """The leader to ask, and the number of connections to it lost so far."""
        self._asked: dict[TopicPartition, tuple[int, int]] = {}
        self._written: set[TopicPartition] = set()
        """The partitions that the present transaction may write to."""
        self.asks_coordinator = False
        """Whether the coordinator must be asked whether it still writes markers."""
        self._coordinator_has_ended = False

    @property
    def is_wanted(self) -> bool:
        """Whether a leader is to be asked."""
        return bool(self._wanted)

    def may_write(self, where: TopicPartition, by: tuple[int, int], *, is_stored: bool) -> bool:
        """Return whether the transaction may write to a partition; if not, note that its leader must be asked.

        `by`: the leader, and the number of connections to it lost so far. `is_stored`: a batch was acknowledged there.
        """
        if self._is_off or is_stored:
            return True
        if self._clear.get(where) == by:
            self._written.add(where)
            return True
        self._wanted[where] = by
        return False

    def question(self) -> Outgoing | None:
        """Return the request to a leader, if one is to be asked."""
        if not self._wanted:
            return None
        asked, _ = next(iter(self._wanted.values()))
        self._asked = {where: wanted for where, wanted in self._wanted.items() if wanted[0] == asked}
        return Outgoing(m.DescribeProducers(tuple(self._asked)), asked)

    def withdraw(self) -> None:
        """Forget the question that got no response: the sender asks again, maybe another leader."""
        for where in self._asked:
            self._wanted.pop(where, None)

    def take(self, response: m.DescribeProducersResponse, own: PreparedTxnState) -> Asked:
        """Take the response of a leader. `own`: the present pair of this producer."""
        found: dict[TopicPartition, m.OpenAt] = {}
        error_code = 0
        for where, asked in self._asked.items():
            described = response.partitions.get(where, _NO_RESPONSE)
            opened = described.open.get(own.producer_id)
            if described.error_code and error_class(Api.DESCRIBE_PRODUCERS, described.error_code) not in _CANNOT_TELL:
                error_code = described.error_code
                self._wanted.pop(where, None)  # the sender wants it again when it knows the leader
            elif opened is None or self._is_no_earlier_one(where, opened, own):
                self._clear[where] = asked
                self._wanted.pop(where, None)
            else:
                found[where] = opened
        if found and not self._coordinator_has_ended:
            self.asks_coordinator = True
            found = {}
        return Asked(found, error_code)

    def _is_no_earlier_one(self, where: TopicPartition, opened: m.OpenAt, own: PreparedTxnState) -> bool:
        """Return whether the open transaction is a successor's, which fences, or the present one.

        The present one may have written a batch whose response was lost.
        """
        is_own = where in self._written and opened.producer_epoch == own.producer_epoch
        return is_own or opened.producer_epoch > own.producer_epoch

    def coordinator_has_ended(self) -> None:
        """Note that the coordinator writes no more markers: a transaction that is still open hangs."""
        self.asks_coordinator = False
        self._coordinator_has_ended = True

    def turn_off(self) -> None:
        """Ask no leader: one does not offer DescribeProducers."""
        self._is_off = True
        self.clear()

    def clear(self) -> None:
        """Begin the next transaction."""
        self._written.clear()
        self._wanted.clear()
        self.asks_coordinator = self._coordinator_has_ended = False
