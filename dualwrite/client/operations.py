"""Calls of the application that wait for Kafka: `Operation` is any, `PendingCall` the one without a known outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dualwrite.errors import DualWriteError, IllegalStateError, KafkaError


class Operation:
    """A call and its outcome. Waiting callers are notified through listeners; nothing here waits.

    `name` and `argument` identify the call: after a timeout only the same call may be repeated, and it joins this
    operation. Invariant: an operation ends once, and each listener is called once.
    """

    __slots__ = ("_listeners", "argument", "done", "error", "name")

    def __init__(
        self, name: str, argument: Any = None, *, done: bool = False, error: DualWriteError | None = None
    ) -> None:
        self.name: Final = name
        self.argument: Final = argument
        self.done = done
        self.error = error
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
            self._listeners.append(listener)

    def stop_listening(self, listener: Callable[[], None]) -> None:
        """Remove a listener whose caller has stopped waiting."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def raise_error(self) -> None:
        """Raise the error that ended this, or the wait for it; return if this succeeded."""
        if self.error is not None:
            raise self.error
        if not self.done:
            raise AssertionError(f"the wait for {self.name} ended, but {self.name} did not")

    def interrupt(self, error: DualWriteError) -> None:
        """End the wait of all callers with `error`. The operation itself goes on; repeating the call joins it."""
        if self._listeners:
            self.error = error
            self.notify()

    def end(self, error: DualWriteError | None = None) -> None:
        """End the operation: successfully, or with `error`."""
        if self.done:
            raise AssertionError(f"{self.name} ended twice")
        self.error = error
        self.done = True
        self.notify()

    def notify(self) -> None:
        """Call the listeners, once each."""
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

    def interrupt(self, error: KafkaError, effect: str) -> None:
        """End the wait for the pending operation with `error`; the operation goes on, and the same call joins it.

        `effect` says what the call may have changed, and the state of the producer.
        """
        operation = self.unfinished
        if operation is not None:
            reworded = error.reworded(f"{error}. {effect}; correct that and repeat {operation.name}")
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
