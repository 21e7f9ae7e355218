"""The exchange with the brokers: the coordinators, the request in flight, and when the next one may be sent."""

from __future__ import annotations

from typing import Final

from dualwrite.client import messages as m
from dualwrite.client.backoff import Backoff
from dualwrite.client.producer_port import Outgoing
from dualwrite.client.transactions.initialisation import Step
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


class Exchange:
    """The manager's exchange with the brokers, one request at a time.

    Invariant: there is at most one request in flight, and none is sent before `retry_at_ms`. A request that got no
    response, or a retriable error, is followed by the same request.
    """

    __slots__ = ("backoff", "init_unanswered", "request", "retry_at_ms", "step")

    def __init__(self, backoff: Backoff) -> None:
        self.backoff = backoff
        self.request: m.Request | None = None
        """The request in flight."""
        self.step: Step | None = None
        """The step of taking the id over that the request in flight carries out, if it is one."""
        self.retry_at_ms = 0.0
        """When the next request may be sent; 0.0: at once."""
        self.init_unanswered = False
        """Whether an InitProducerId went without a response: it may arrive late, and fence this producer itself."""

    @property
    def commit_in_flight(self) -> bool:
        """Whether the request in flight is EndTxn(commit)."""
        return isinstance(self.request, m.EndTxn) and self.request.committed

    def end(self) -> tuple[m.Request | None, Step | None]:
        """Return the request in flight and its step; from now on there is none."""
        request, step = self.request, self.step
        self.request = self.step = None
        return request, step

    def retry_later(self, now_ms: float, error_code: int | None = None) -> None:
        """Wait for the back-off before the next request."""
        self.retry_at_ms = now_ms + self.backoff.failed(error_code)

    def restart(self) -> None:
        """Forget the back-off: a new call of the application is not delayed by failures of an earlier one."""
        self.backoff.succeeded()
        self.retry_at_ms = 0.0
