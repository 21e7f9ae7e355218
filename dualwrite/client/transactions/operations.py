"""Calls of the application that wait for Kafka: `Operation` is any, `PendingCall` the one without a known outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dualwrite.client import messages as m
from dualwrite.client.backoff import Backoff
from dualwrite.client.metrics import Outgoing
from dualwrite.client.transactions.initialisation import Step
from dualwrite.errors import Api, DualWriteError, IllegalStateError, KafkaError


class Operation:
    """A call and its outcome. Waiting callers are notified through listeners; nothing here waits.

    `name` and `argument` identify the call: after a timeout only the same call may be repeated, and it joins this
    operation. Invariant: an operation ends once, and each listener is called once.
    """

    __slots__ = ("_listeners", "argument", "done", "error", "name")

    def __init__(self, name: str, argument: Any = None) -> None:
        self.name: Final = name
        self.argument: Final = argument
        self.done = False
        self.error: DualWriteError | None = None
        self._listeners: list[Callable[[], None]] = []

    @property
    def has_waiting_caller(self) -> bool:
        """Whether a caller is waiting and will be notified when this ends."""
        return bool(self._listeners)

    def is_same_call(self, name: str, argument: Any) -> bool:
        """Return whether a repeated call means this operation."""
        return self.name == name and bool(self.argument == argument)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` when this ends; at once if it has ended."""
        if self.done:
            listener()
        else:
            self.error = None
            self._listeners.append(listener)

    def stop_listening(self, listener: Callable[[], None]) -> None:
        """Remove a listener whose caller has stopped waiting."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def interrupt(self, error: DualWriteError) -> None:
        """End the wait of all callers with `error`. The operation itself goes on; repeating the call joins it."""
        if self._listeners:
            self.error = error
            self._notify()

    def end(self, error: DualWriteError | None = None) -> None:
        """End the operation: successfully, or with `error`."""
        if self.done:
            raise AssertionError(f"{self.name} ended twice")
        self.done = True
        self.error = error
        self._notify()

    def _notify(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()


class PendingCall:
    """The one transactional call whose outcome is unknown, or known and not yet received by its caller.

    Invariant: while there is one, the same call joins it and any other call is refused, because the state that the
    other call would start from depends on the outcome.
    """

    __slots__ = ("operation",)

    def __init__(self) -> None:
        self.operation: Operation | None = None
        """The pending operation; also one that has ended, until its caller has received the outcome."""

    @property
    def unfinished(self) -> Operation | None:
        """The pending operation, unless it has ended."""
        operation = self.operation
        return None if operation is None or operation.done else operation

    def is_waiting_for(self, name: str) -> bool:
        """Return whether the call of that name is pending and has not ended."""
        operation = self.operation
        return operation is not None and not operation.done and operation.name == name

    def start(self, name: str, argument: object) -> Operation:
        """Start a new call; the caller has checked that none is pending."""
        self.operation = Operation(name, argument)
        return self.operation

    def join(self, name: str, argument: object, standing: str) -> Operation | None:
        """Return the pending operation if it is the same call, None if nothing is pending.

        Raises `IllegalStateError` if another call is pending.
        """
        operation = self.operation
        if operation is None:
            return None
        if not operation.is_same_call(name, argument):
            raise _other_call(name, operation, standing)
        if operation.done:
            self.operation = None
        return operation

    def refuse_another(self, name: str, standing: str) -> None:
        """Raise `IllegalStateError` if any call is pending."""
        if self.operation is not None:
            raise _other_call(name, self.operation, standing)

    def finish(self, error: KafkaError | IllegalStateError | None) -> None:
        """End the pending operation. It stays here until `acknowledge`: its caller's wait may be interrupted now."""
        if self.operation is not None and not self.operation.done:
            self.operation.end(error)

    def interrupt(self, error: KafkaError, standing: str) -> None:
        """End the wait for the pending operation with `error`; the operation goes on, and the same call joins it."""
        operation = self.unfinished
        if operation is not None:
            reworded = error.reworded(
                f"{error}. Nothing is decided: {standing}; put that right and repeat {operation.name}"
            )
            reworded.__cause__ = error.__cause__
            operation.interrupt(reworded)

    def acknowledge(self, operation: Operation) -> None:
        """Forget `operation`: its caller has received the outcome."""
        if self.operation is operation and operation.done:
            self.operation = None

    def forget(self) -> None:
        """Forget the pending operation: no caller will come back for its outcome."""
        self.operation = None


def _other_call(name: str, pending: Operation, standing: str) -> IllegalStateError:
    return IllegalStateError(
        f"{name} is not allowed: the outcome of {pending.name} is not known yet, and {standing}; "
        "repeat that call with the same argument"
    )


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
