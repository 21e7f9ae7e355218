"""The one call of the application whose outcome is not known yet, or has not been heard. No I/O."""

from __future__ import annotations

from dualwrite.client.transactions.operations import Operation
from dualwrite.errors import IllegalStateError, KafkaError


class PendingCall:
    """The same call again waits for the same outcome; another one must not be guessed around it."""

    __slots__ = ("_operation",)

    def __init__(self) -> None:
        self._operation: Operation | None = None

    @property
    def operation(self) -> Operation | None:
        """What is pending, or has ended and was not heard of."""
        return self._operation

    @property
    def unfinished(self) -> Operation | None:
        """What is pending and has not ended."""
        operation = self._operation
        return None if operation is None or operation.done else operation

    @property
    def exists(self) -> bool:
        """Whether a caller has still to hear of something."""
        return self._operation is not None

    def is_waiting_for(self, name: str) -> bool:
        """Whether the call of that name has not ended."""
        operation = self._operation
        return operation is not None and not operation.done and operation.name == name

    def start(self, name: str, argument: object) -> Operation:
        """A new call; the one before has been heard of."""
        self._operation = Operation(name, argument)
        return self._operation

    def join(self, name: str, argument: object, standing: str) -> Operation | None:
        """The operation of the same call made before, if there is one. `IllegalStateError` where another is pending."""
        operation = self._operation
        if operation is None:
            return None
        if not operation.is_same_call(name, argument):
            raise _other_call(name, operation, standing)
        if operation.done:
            self._operation = None
        return operation

    def refuse_another(self, name: str, standing: str) -> None:
        """`IllegalStateError` where anything is pending."""
        if self._operation is not None:
            raise _other_call(name, self._operation, standing)

    def finish(self, error: KafkaError | IllegalStateError | None) -> None:
        """It ended. It stays here until a caller has heard it: who waits may be interrupted just now."""
        if self._operation is not None and not self._operation.done:
            self._operation.end(error)

    def interrupt(self, error: KafkaError, standing: str) -> None:
        """Nobody is to wait any longer; it goes on, and the same call joins it."""
        operation = self.unfinished
        if operation is not None:
            told = error.reworded(
                f"{error}. Nothing is decided: {standing}; put that right and repeat {operation.name}"
            )
            told.__cause__ = error.__cause__
            operation.interrupt(told)

    def heard(self, operation: Operation) -> None:
        """The caller has the outcome of `operation`."""
        if self._operation is operation and operation.done:
            self._operation = None

    def forget(self) -> None:
        """Nobody is going to ask for it."""
        self._operation = None


def _other_call(name: str, pending: Operation, standing: str) -> IllegalStateError:
    return IllegalStateError(
        f"{name} is not allowed: the outcome of {pending.name} is not known yet, and {standing}; "
        "repeat that call with the same argument"
    )
