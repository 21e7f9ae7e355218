"""The state of the open transaction, forgotten when it is over: its partitions, groups, offsets and prepared state."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from dualwrite.client import messages as m
from dualwrite.client.records.record import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from dualwrite.client.transactions.manifest import Manifest, PartitionManifest
from dualwrite.prepared_state import PreparedTxnState

NOT_PREPARED: Final = PreparedTxnState()


class TxnPartitions:
    """Partitions and groups in the open transaction, for transaction.version 0 and 1.

    There the client registers them before it writes (AddPartitionsToTxn, AddOffsetsToTxn); from version 2 on the
    brokers do (KIP-890), and this stays empty. Invariant: a partition is wanted or added, never both, and the
    coordinator has confirmed every added one. `clear()` begins the next transaction.
    """

    __slots__ = ("_added", "_groups", "confirmed", "wanted")

    def __init__(self) -> None:
        self.confirmed = False
        """Whether the coordinator has confirmed any partition or group in the transaction."""
        self.wanted: dict[TopicPartition, None] = {}
        """Partitions to add, in the order of their first writes."""
        self._added: set[TopicPartition] = set()
        self._groups: set[str] = set()

    def may_write(self, topic: str, partition: int) -> bool:
        """Return whether the partition is in the transaction; if not, note that it is wanted."""
        wanted = TopicPartition(topic, partition)
        if wanted in self._added:
            return True
        self.wanted[wanted] = None
        return False

    def add_partitions(self, added: Collection[TopicPartition]) -> None:
        """Note the partitions that the coordinator has confirmed."""
        self.confirmed = True
        self._added.update(added)
        for partition in added:
            self.wanted.pop(partition, None)

    def has_group(self, group_id: str) -> bool:
        """Return whether the group's offsets are in the transaction."""
        return group_id in self._groups

    def add_group(self, group_id: str) -> None:
        """Note the group that the coordinator has confirmed."""
        self.confirmed = True
        self._groups.add(group_id)

    def clear(self) -> None:
        """Forget everything: the transaction is over."""
        if self._added or self.wanted or self._groups:
            self._added.clear()
            self.wanted.clear()
            self._groups.clear()
        self.confirmed = False


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

        The group coordinator of Kafka 3.9 and older refuses a late TxnOffsetCommit of an earlier epoch, and then
        forgets the pending offsets of the producer id.
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


class StoredRanges:
    """Where the acknowledged batches of the open transaction are stored, for its manifest.

    Invariant: while `are_known`, every acknowledged record of the transaction is in one of the ranges.
    """

    __slots__ = ("_ranges", "are_known")

    def __init__(self) -> None:
        self.are_known = True
        """Whether all ranges are known: False after a stored batch of which no broker could say where it is."""
        self._ranges: dict[tuple[str, int], list[int]] = {}

    def add(self, topic: str, partition: int, base_offset: int, record_count: int) -> None:
        """Note an acknowledged batch. `base_offset` -1: the broker does not know where it is."""
        if base_offset < 0:
            self.are_known = False
            return
        last_offset = base_offset + record_count - 1
        stored = self._ranges.get((topic, partition))
        if stored is None:
            self._ranges[topic, partition] = [base_offset, last_offset, record_count]
            return
        if base_offset < stored[0]:
            stored[0] = base_offset
        if last_offset > stored[1]:
            stored[1] = last_offset
        stored[2] += record_count

    def has(self, topic: str, partition: int) -> bool:
        """Return whether a batch in the partition was acknowledged, with its offset."""
        return (topic, partition) in self._ranges

    def by_partition(self) -> tuple[PartitionManifest, ...]:
        """Return the ranges, ordered by topic and partition."""
        return tuple([PartitionManifest(*where, *numbers) for where, numbers in sorted(self._ranges.items())])

    def clear(self) -> None:
        """Forget everything: the transaction is over."""
        self.are_known = True
        if self._ranges:
            self._ranges.clear()


class OpenTransaction:
    """The open transaction: one that was begun here, or one that was found prepared.

    Invariant: `clear()` leaves it as it was made, so that no fact of a transaction reaches the next one; the only
    exception is that late offset requests are remembered (`TransactionOffsets`).
    """

    __slots__ = (
        "commit_may_take_effect",
        "failed",
        "has_offsets",
        "has_records",
        "leaves_id",
        "offsets",
        "partitions",
        "prepared_state",
        "reached_kafka",
        "stored",
    )

    def __init__(self) -> None:
        self.prepared_state = NOT_PREPARED
        """The producer id and epoch of a prepared transaction; else empty."""
        self.has_records = False
        """Whether a record or an offset was accepted from the application."""
        self.has_offsets = False
        """Whether consumed offsets were accepted from the application."""
        self.reached_kafka = False
        """Whether a request was made that may have told Kafka of this transaction."""
        self.failed = False
        """Whether a record or an offset was lost, so that it can only be aborted."""
        self.commit_may_take_effect = False
        """Whether EndTxn(commit) was sent and may have been carried out: until a response says how the transaction
        ended, no error may say that it failed."""
        self.leaves_id = False
        """Whether the transactional id is left to other producers once the transaction has ended."""
        self.partitions: Final = TxnPartitions()
        self.offsets: Final = TransactionOffsets()
        self.stored: Final = StoredRanges()

    def manifest(self, cluster_id: str) -> Manifest | None:
        """Return where the records of the prepared transaction are; None if none is prepared, or if unknown."""
        if self.prepared_state.is_empty or not self.stored.are_known:
            return None
        return Manifest(self.prepared_state, cluster_id, self.stored.by_partition(), self.has_offsets)

    def clear(self) -> None:
        """Forget everything: the transaction is over."""
        self.prepared_state = NOT_PREPARED
        self.has_records = self.reached_kafka = self.failed = self.commit_may_take_effect = self.leaves_id = False
        self.has_offsets = False
        self.offsets.clear()
        self.partitions.clear()
        self.stored.clear()
