"""Consumer offsets that are committed with a transaction, and the protection against late offset requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from dualwrite.client import messages as m
from dualwrite.client.records.record import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition


class GroupOffsets(NamedTuple):
    """Offsets of one consumer group: the argument of one `send_offsets_to_transaction()`."""

    group: ConsumerGroupMetadata
    offsets: Mapping[TopicPartition, OffsetAndMetadata]


class TransactionOffsets:
    """The offsets of the open transaction.

    A TxnOffsetCommit without a response may arrive after its repetition, and replace newer offsets by older ones.
    Invariant: offsets of a partition are never followed by other ones in the same transaction once a request for them
    went without a response (`may_go_back`); and after a transaction with such a request, each later one repeats its
    offsets right before EndTxn, where the broker would otherwise lose them (`next_repeated`).
    """

    __slots__ = ("_late", "_repeats", "_stored", "current")

    def __init__(self) -> None:
        self.current: GroupOffsets | None = None
        """Offsets that are to be sent, or are on their way."""
        self._late: dict[tuple[str, TopicPartition], OffsetAndMetadata] = {}
        self._stored: deque[GroupOffsets] = deque()
        self._repeats = False

    def may_go_back(self, wanted: GroupOffsets) -> bool:
        """Return whether an earlier request of this transaction may still replace `wanted` by older offsets."""
        return any(
            self._late.get((wanted.group.group_id, partition), offset) != offset
            for partition, offset in wanted.offsets.items()
        )

    def note_unanswered(self, request: m.TxnOffsetCommit) -> None:
        """Note that a request got no response: it may take effect at any time from now on."""
        group_id = request.group.group_id
        self._late |= {(group_id, name): offset for name, offset in request.offsets.items()}

    def note_stored(self, stored: GroupOffsets) -> None:
        """Keep offsets that the coordinator has stored, in case they must be repeated before EndTxn."""
        self._stored.append(stored)

    @property
    def must_repeat(self) -> bool:
        """Whether stored offsets are to be sent again right before EndTxn.

        The group coordinator of Kafka 3.9 and older refuses a late TxnOffsetCommit of an earlier epoch, and in doing so
        forgets what is pending for the producer id.
        """
        return self._repeats and bool(self._stored)

    def next_repeated(self) -> GroupOffsets:
        """Return stored offsets to send again, as the current ones."""
        self.current = self._stored.popleft()
        return self.current

    def clear(self) -> None:
        """Forget the offsets: the transaction is over."""
        self.current = None
        if self._late:
            self._late.clear()
            self._repeats = True
        if self._stored:
            self._stored.clear()
