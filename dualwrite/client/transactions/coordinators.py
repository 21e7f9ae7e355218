"""Who coordinates a transactional id, and the group whose offsets go with a transaction. No I/O."""

from __future__ import annotations

from typing import Final

from dualwrite.client import messages as m
from dualwrite.client.producer_port import Outgoing
from dualwrite.errors import Api


class Coordinators:
    """What FindCoordinator said last; a request to one that is not known becomes the question for it."""

    __slots__ = ("_group", "_transaction", "_transactional_id")

    def __init__(self, transactional_id: str) -> None:
        self._transactional_id: Final = transactional_id
        self._transaction: int | None = None
        self._group: tuple[str, int] | None = None

    @property
    def of_transaction(self) -> int | None:
        """Node id of the transaction coordinator."""
        return self._transaction

    def of_group(self, group_id: str) -> int | None:
        """Node id of that group's coordinator."""
        return self._group[1] if self._group is not None and self._group[0] == group_id else None

    def to_transaction(self, request: m.Request) -> Outgoing:
        """`request` to the transaction coordinator."""
        if self._transaction is None:
            return Outgoing(m.FindCoordinator(m.CoordinatorType.TRANSACTION, self._transactional_id), m.ANY_NODE)
        return Outgoing(request, self._transaction)

    def find_group(self, group_id: str) -> Outgoing:
        """The question for a group's coordinator."""
        return Outgoing(m.FindCoordinator(m.CoordinatorType.GROUP, group_id), m.ANY_NODE)

    def learn(self, request: m.FindCoordinator, answer: m.FindCoordinatorResponse) -> None:
        """Take an answer without an error over."""
        if request.key_type is m.CoordinatorType.TRANSACTION:
            self._transaction = answer.node_id
        else:
            self._group = (request.key, answer.node_id)

    def forget(self, api: Api) -> None:
        """Whoever was asked by `api` is not the coordinator, or not there."""
        if api is Api.TXN_OFFSET_COMMIT:
            self._group = None
        else:
            self._transaction = None
