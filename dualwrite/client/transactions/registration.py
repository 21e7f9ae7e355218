"""Where a transaction is registered: its coordinators, and the partitions and groups that they know to be in it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from dualwrite.client import messages as m
from dualwrite.client.producer_port import Outgoing
from dualwrite.client.records.record import TopicPartition
from dualwrite.errors import Api


class Coordinators:
    """The transaction coordinator, and the coordinator of the group whose offsets go with the transaction.

    Invariant: a node is known only after a FindCoordinator response without an error, and until a response says that it
    is no longer the coordinator. A request for a coordinator that is not known is replaced by FindCoordinator.
    """

    __slots__ = ("_group", "_transactional_id", "of_transaction")

    def __init__(self, transactional_id: str) -> None:
        self._transactional_id: Final = transactional_id
        self.of_transaction: int | None = None
        """Node id of the transaction coordinator, if known."""
        self._group: tuple[str, int] | None = None

    def of_group(self, group_id: str) -> int | None:
        """Return the node id of the group's coordinator, if known."""
        return self._group[1] if self._group is not None and self._group[0] == group_id else None

    def to_transaction(self, request: m.Request) -> Outgoing:
        """Address `request` to the transaction coordinator; return FindCoordinator while that is not known."""
        if self.of_transaction is None:
            return Outgoing(m.FindCoordinator(m.CoordinatorType.TRANSACTION, self._transactional_id), m.ANY_NODE)
        return Outgoing(request, self.of_transaction)

    def find_group(self, group_id: str) -> Outgoing:
        """Return the FindCoordinator request for a group."""
        return Outgoing(m.FindCoordinator(m.CoordinatorType.GROUP, group_id), m.ANY_NODE)

    def learn(self, request: m.FindCoordinator, response: m.FindCoordinatorResponse) -> None:
        """Store the coordinator that a response without an error names."""
        if request.key_type is m.CoordinatorType.TRANSACTION:
            self.of_transaction = response.node_id
        else:
            self._group = (request.key, response.node_id)

    def forget(self, api: Api) -> None:
        """Forget the coordinator that requests of `api` go to: it has moved, or its node cannot be reached."""
        if api is Api.TXN_OFFSET_COMMIT:
            self._group = None
        else:
            self.of_transaction = None


class TxnPartitions:
    """Partitions and groups in the open transaction, for transaction.version 0 and 1.

    There the client registers them before it writes (AddPartitionsToTxn, AddOffsetsToTxn); from version 2 on the
    brokers do (KIP-890), and this stays empty. Invariant: a partition is wanted or added, never both, and what is added
    has been confirmed by the coordinator. `clear()` begins the next transaction.
    """

    __slots__ = ("_added", "_groups", "confirmed", "wanted")

    def __init__(self) -> None:
        self.confirmed = False
        """Whether the coordinator has confirmed that anything is in the transaction."""
        self.wanted: dict[TopicPartition, None] = {}
        """Partitions to add, in the order in which they were first written to."""
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
