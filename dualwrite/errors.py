"""Every exception that dualwrite raises on purpose, in one tree.

A caller acts on the class, not on the text:

* `RetriableError`: nothing is decided; the same call may be repeated.
* `AbortableError`: this transaction cannot be committed; `abort_transaction()` and start again.
* `FencedError`: another producer with this transactional id has taken over; this one is finished.
* `FatalError`: this producer cannot go on; close it.
* `OutcomeUnknown`: a commit was sent and no answer came; the exception names the call that finds out.
"""

from __future__ import annotations


class DualWriteError(Exception):
    """Base of all errors of this package."""


class ConfigError(DualWriteError, ValueError):
    """A setting is unknown, malformed, or contradicts another one; nothing was started."""


class IllegalStateError(DualWriteError):
    """The call is not allowed in the producer's present state; the state did not change."""


class InvalidTxnStateError(IllegalStateError):
    """A two-phase-commit call came while nothing is prepared, or two-phase commit is off (KIP-939)."""


class KafkaError(DualWriteError):
    """A broker, or the way to it, refused something.

    `error_code` is Kafka's number, or None where no broker answered.
    """

    def __init__(self, message: str, *, error_code: int | None = None) -> None:
        super().__init__(message)
        self.error_code = error_code


class RetriableError(KafkaError):
    """Nothing is decided; the same call may be repeated, and a different one may not."""


class KafkaTimeoutError(RetriableError):
    """No answer within `max.block.ms`; the operation may still take effect, so repeat the same call."""


class AbortableError(KafkaError):
    """The transaction cannot be committed any more; abort it and start a new one."""


class FatalError(KafkaError):
    """The producer cannot be used any more; close it."""


class FencedError(FatalError):
    """Another producer with the same transactional id has taken over (PRODUCER_FENCED, INVALID_PRODUCER_EPOCH)."""


class UnsupportedByBrokerError(FatalError):
    """The broker does not offer what the configuration asks for, for example two-phase commit."""


class RecipeError(DualWriteError):
    """A dual write ended without taking effect on either side."""


class TransactionDoomedError(RecipeError):
    """A statement of the dual write failed and the error was swallowed; both sides were rolled back."""


class TransactionEndedInsideError(RecipeError):
    """The block committed or rolled back the database by itself; the dual write cannot be completed."""


class StateRowError(RecipeError):
    """The state row is missing, or is not what this writer left in it under its lock."""


class RowLockTimeoutError(RecipeError):
    """The state row stayed locked by another database transaction; nothing was decided."""


class OutcomeUnknown(DualWriteError):  # noqa: N818 - the name says it all
    """The database commit was sent, no answer came, and the database could not be asked.

    Both sides will agree whatever happens next; only which way is unknown yet.
    `transactional_id` and `prepared_state` identify the dual write. `DualWriter.resolve()` finds the
    outcome once the database answers again, and so does any process that next uses the transactional id.
    """

    def __init__(self, message: str, *, transactional_id: str, prepared_state: str) -> None:
        super().__init__(message)
        self.transactional_id = transactional_id
        self.prepared_state = prepared_state
