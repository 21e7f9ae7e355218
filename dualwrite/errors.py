"""Every exception that dualwrite raises on purpose, in one tree.

A caller acts on the class, not on the text:

* `RetriableError`: nothing is decided; the same call may be repeated.
* `AbortableError`: this transaction cannot be committed; `abort_transaction()` and start again.
* `AuthenticationError`, `AuthorizationError`: put right what the sentence names, and repeat the same call.
* `FencedError`: another producer with this transactional id has taken over; this one is finished.
* `FatalError`: this producer cannot go on; close it.
* `PreparedTransactionLost`: the broker aborted what had been prepared; the application's data and Kafka disagree.
* `OutcomeUnknown`: a commit was sent and no answer came; the exception names the call that finds out.

Every error of a producer with a transactional id names that id, where the producer stands now, and what to do next.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Any, Final, Self, TypeVar


class DualWriteError(Exception):
    """Base of all errors of this package."""

    def __reduce__(self) -> str | tuple[Any, ...]:
        """As exceptions are copied to other processes, attributes and all."""
        return _made_again, (type(self), self.args, self.__dict__)


_Made = TypeVar("_Made", bound=DualWriteError)


def _made_again(cls: type[_Made], args: tuple[Any, ...], attributes: dict[str, Any]) -> _Made:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class ConfigError(DualWriteError, ValueError):
    """A setting is unknown, malformed, or contradicts another one; nothing was started."""


class IllegalStateError(DualWriteError):
    """The call is not allowed in the producer's present state; the state did not change."""


class InvalidTxnStateError(IllegalStateError):
    """A two-phase-commit call came while nothing is prepared, or two-phase commit is off (KIP-939)."""


class InvalidRecordError(DualWriteError, ValueError):
    """The record cannot be sent as it is (too large, of a wrong type); nothing was sent and no state changed."""


class KafkaError(DualWriteError):
    """A broker, or the way to it, refused something.

    `error_code` is Kafka's number, or None where no broker answered.
    """

    def __init__(self, message: str, *, error_code: int | None = None) -> None:
        super().__init__(message)
        self.error_code = error_code

    def reworded(self, message: str) -> Self:
        """The same error with another sentence."""
        return _made_again(type(self), (message,), self.__dict__)


class RetriableError(KafkaError):
    """Nothing is decided; the same call may be repeated, and a different one may not."""


class KafkaTimeoutError(RetriableError):
    """No answer in time, and why; the operation may still take effect, so repeat the same call."""


class AbortableError(KafkaError):
    """The transaction cannot be committed any more: call `abort_transaction()` and start a new one.

    Nothing of it is, or will be, visible to a `read_committed` consumer.
    """


class DeliveryError(AbortableError):
    """A record was not stored within `delivery.timeout.ms`, was refused, or was dropped when its transaction ended.

    In a transaction: call `abort_transaction()` and start again. Without one the producer goes on, and the record may
    be sent again; one that was not acknowledged in time may be stored all the same.
    """


class AuthorizationError(KafkaError):
    """A right is missing on the transactional id, the topic or the cluster, which the sentence names.

    The call had no effect: grant the right, then repeat it. The producer need not be created anew.
    """


class AuthenticationError(KafkaError):
    """A broker does not accept who this client is, or cannot show who it is itself (TLS, SASL); the sentence says why.

    Nothing is decided. Once that is put right the same call may be repeated, and a different one may not; another try
    is made then, and none meanwhile that would count as one more wrong password.
    """


class FatalError(KafkaError):
    """The producer cannot be used any more: close it and create a new one.

    A transaction that was open is aborted by the `init_transactions()` of the new one.
    """


class FencedError(FatalError):
    """Another producer with the same transactional id has taken over (PRODUCER_FENCED, INVALID_PRODUCER_EPOCH).

    Or the broker aborted the transaction because `transaction.timeout.ms` was over, which it answers in the same way.
    Close this producer. A new one with the same id would fence the other in turn: create it only if there is no other.
    """


class UnsupportedByBrokerError(FatalError):
    """The broker does not offer what the configuration asks for, for example two-phase commit.

    Close this producer; change the configuration, or the broker.
    """


class AdminError(KafkaError):
    """A broker refused an administrative request for good; it changed nothing."""


class TransactionalIdNotFoundError(AdminError):
    """No coordinator knows the transactional id: it was never used, or it expired (TRANSACTIONAL_ID_NOT_FOUND)."""


class InvalidPatternError(AdminError, ValueError):
    """A pattern of transactional ids is no regular expression for Kafka (RE2/J; INVALID_REGULAR_EXPRESSION)."""


class IncompleteAnswerError(KafkaError):
    """Some brokers, transactional ids or partitions could not be asked; reading again is harmless.

    `partial` is what the call would have returned, without them; `failures` says by broker id, transactional id or
    `TopicPartition` why they are missing.
    """

    def __init__(self, message: str, *, partial: Any, failures: Mapping[Any, KafkaError]) -> None:
        super().__init__(message)
        self.partial = partial
        self.failures = failures


class PreparedTransactionLost(KafkaError):  # noqa: N818 - the name says it all
    """The broker aborted a transaction that had been prepared, and that may be decided: the two sides disagree.

    It cannot happen where `Producer.guarantee` has no bound, unless an operator ends the transaction or Kafka loses
    data. Nothing was sent to the broker because of it, so that each later recovery with `keep_prepared_txn=True` and
    the same stored state raises it again, until somebody has seen to it and goes on with `init_transactions()`.

    `described_state`, `described_producer_id`, `described_producer_epoch` and `described_start_ms` (milliseconds since
    1970, -1 where unknown) are what DescribeTransactions said (KIP-664).
    """

    def __init__(
        self,
        message: str,
        *,
        transactional_id: str,
        prepared_state: str,
        described_state: str,
        described_producer_id: int,
        described_producer_epoch: int,
        described_start_ms: int,
    ) -> None:
        super().__init__(message)
        self.transactional_id = transactional_id
        self.prepared_state = prepared_state
        self.described_state = described_state
        self.described_producer_id = described_producer_id
        self.described_producer_epoch = described_producer_epoch
        self.described_start_ms = described_start_ms


class RecipeError(DualWriteError):
    """A dual write ended without taking effect on either side."""


class TransactionDoomedError(RecipeError):
    """A statement of the dual write failed and the error was swallowed; both sides were rolled back."""


class TransactionTooLargeError(RecipeError):
    """More records than one dual write may hold; both sides were rolled back."""


class TransactionEndedInsideError(RecipeError):
    """The block committed or rolled back the database by itself; the dual write cannot be completed."""


class StateRowError(RecipeError):
    """The state row is missing, or is not what this writer left in it under its lock."""


class StateTableError(StateRowError):
    """The state table is not the one that was found at first use, or it cannot be told which table is meant."""


class DatabaseMovedError(RecipeError):
    """The state table was made in another database than the one it is in now; nothing was written or aborted.

    `made_in` and `found_in` name both. `dualwrite adopt` says which of the two goes on with the transactional ids.
    """

    def __init__(self, message: str, *, made_in: str = "", found_in: str = "") -> None:
        super().__init__(message)
        self.made_in = made_in
        self.found_in = found_in


class RowLockTimeoutError(RecipeError):
    """The state row stayed locked by another database transaction; nothing was decided."""


class PoolTimeoutError(RecipeError):
    """No transactional id of the pool became free in time; both sides were rolled back, and nothing was sent."""


class PartitionTakenOverError(RecipeError):
    """Another consumer of the group has gone on with a partition; what was read of it here was not written."""


class OutcomeUnknown(DualWriteError):  # noqa: N818 - the name says it all
    """A commit was sent, no answer came, and whether it took effect cannot be found out now.

    From a dual write: both sides will agree whatever happens next; only which way is unknown yet.
    `transactional_id` and `prepared_state` identify the dual write. `DualWriter.resolve()` finds the
    outcome once the database answers again, and so does any process that next uses the transactional id.

    From a producer (`CommitOutcomeUnknown`): the records are either all visible to `read_committed` consumers or none
    is, which is what to look at; `prepared_state` is empty where nothing was prepared.
    """

    def __init__(self, message: str, *, transactional_id: str, prepared_state: str) -> None:
        super().__init__(message)
        self.transactional_id = transactional_id
        self.prepared_state = prepared_state


class CommitOutcomeUnknown(OutcomeUnknown, FatalError):  # noqa: N818 - as its base
    """A commit went unanswered, and then the producer came to an end before it could be asked for again.

    Close this producer. Read the topics with `read_committed` to see whether the commit took effect; where the
    transaction was prepared, the next owner of the id completes it by the state that the database holds.
    """

    def __init__(
        self, message: str, *, transactional_id: str, prepared_state: str, error_code: int | None = None
    ) -> None:
        OutcomeUnknown.__init__(self, message, transactional_id=transactional_id, prepared_state=prepared_state)
        self.error_code = error_code


class FencedCommitOutcomeUnknown(CommitOutcomeUnknown, FencedError):  # noqa: N818 - as its base
    """A commit went unanswered, and then another producer took the transactional id over; see both bases."""


class ErrorClass(Enum):
    """What a client does about an error code of a broker."""

    RETRIABLE = "ask the same node again after a back-off"
    RETRIABLE_AFTER_LOOKUP = "find out who is responsible, then ask again"
    ABORTABLE = "the transaction (without one: the record) has failed, the producer has not"
    REFUSED = "permission is missing; the call failed and may be repeated"
    FENCED = "another producer has taken over, or the broker aborted the transaction after transaction.timeout.ms"
    UNSUPPORTED = "the broker does not offer it"
    FATAL = "the producer cannot go on"


WHAT_TO_DO: Final[dict[ErrorClass, str]] = {
    ErrorClass.RETRIABLE: "the producer asks again by itself",
    ErrorClass.RETRIABLE_AFTER_LOOKUP: "the producer asks again by itself",
    ErrorClass.ABORTABLE: "call abort_transaction() and start again",
    ErrorClass.REFUSED: "grant it, then repeat the call",
    ErrorClass.FENCED: "close this producer, and create a new one only if there is no other with this id",
    ErrorClass.UNSUPPORTED: "close this producer; change the configuration, or the broker",
    ErrorClass.FATAL: "close this producer and create a new one",
}
"""What an application does about a class, for the end of a sentence."""


class Api(IntEnum):
    """The APIs that producers and `TransactionAdmin` use; the values are Kafka's API keys."""

    PRODUCE = 0
    METADATA = 3
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    SASL_AUTHENTICATE = 36
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66

    @property
    def kafka_name(self) -> str:
        """As the protocol writes it: `InitProducerId`."""
        return self.name.title().replace("_", "")


NETWORK_EXCEPTION: Final = 13
"""Kafka's code for an answer that did not come; a lost connection is reported as this."""

_E = ErrorClass

# One row per code and API. A pair that is not here is what _OTHERWISE says: an unknown answer must not be guessed at.
# Fenced on Produce is abortable: a broker answers 47 there to a late batch of a transaction that it aborted (KIP-890).
ERROR_CLASSES: Final[dict[tuple[Api, int], ErrorClass]] = {
    (Api.PRODUCE, 2): _E.RETRIABLE,  # CORRUPT_MESSAGE: on the way
    (Api.PRODUCE, 3): _E.RETRIABLE_AFTER_LOOKUP,  # UNKNOWN_TOPIC_OR_PARTITION
    (Api.PRODUCE, 5): _E.RETRIABLE_AFTER_LOOKUP,  # LEADER_NOT_AVAILABLE
    (Api.PRODUCE, 6): _E.RETRIABLE_AFTER_LOOKUP,  # NOT_LEADER_OR_FOLLOWER
    (Api.PRODUCE, 7): _E.RETRIABLE,  # REQUEST_TIMED_OUT
    (Api.PRODUCE, 10): _E.ABORTABLE,  # MESSAGE_TOO_LARGE
    (Api.PRODUCE, 13): _E.RETRIABLE_AFTER_LOOKUP,  # NETWORK_EXCEPTION
    (Api.PRODUCE, 14): _E.RETRIABLE,  # COORDINATOR_LOAD_IN_PROGRESS
    (Api.PRODUCE, 15): _E.RETRIABLE,  # COORDINATOR_NOT_AVAILABLE
    (Api.PRODUCE, 16): _E.RETRIABLE,  # NOT_COORDINATOR: the partition leader asks, it looks up by itself
    (Api.PRODUCE, 17): _E.ABORTABLE,  # INVALID_TOPIC_EXCEPTION
    (Api.PRODUCE, 18): _E.ABORTABLE,  # RECORD_LIST_TOO_LARGE
    (Api.PRODUCE, 19): _E.RETRIABLE,  # NOT_ENOUGH_REPLICAS
    (Api.PRODUCE, 20): _E.RETRIABLE,  # NOT_ENOUGH_REPLICAS_AFTER_APPEND: a retry is recognised by its sequence
    (Api.PRODUCE, 29): _E.ABORTABLE,  # TOPIC_AUTHORIZATION_FAILED
    (Api.PRODUCE, 31): _E.FATAL,  # CLUSTER_AUTHORIZATION_FAILED
    (Api.PRODUCE, 35): _E.UNSUPPORTED,  # UNSUPPORTED_VERSION
    (Api.PRODUCE, 43): _E.ABORTABLE,  # UNSUPPORTED_FOR_MESSAGE_FORMAT
    (Api.PRODUCE, 45): _E.ABORTABLE,  # OUT_OF_ORDER_SEQUENCE_NUMBER, when no predecessor explains it
    (Api.PRODUCE, 47): _E.ABORTABLE,  # INVALID_PRODUCER_EPOCH
    (Api.PRODUCE, 48): _E.ABORTABLE,  # INVALID_TXN_STATE
    (Api.PRODUCE, 49): _E.FATAL,  # INVALID_PRODUCER_ID_MAPPING
    (Api.PRODUCE, 51): _E.RETRIABLE,  # CONCURRENT_TRANSACTIONS: the last transaction's markers (KAFKA-18575)
    (Api.PRODUCE, 53): _E.FATAL,  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    (Api.PRODUCE, 56): _E.RETRIABLE_AFTER_LOOKUP,  # KAFKA_STORAGE_ERROR
    (Api.PRODUCE, 59): _E.ABORTABLE,  # UNKNOWN_PRODUCER_ID
    (Api.PRODUCE, 87): _E.ABORTABLE,  # INVALID_RECORD
    (Api.PRODUCE, 90): _E.FENCED,  # PRODUCER_FENCED
    (Api.PRODUCE, 120): _E.ABORTABLE,  # TRANSACTION_ABORTABLE
    (Api.METADATA, 3): _E.RETRIABLE,  # UNKNOWN_TOPIC_OR_PARTITION: may be on its way
    (Api.METADATA, 5): _E.RETRIABLE,  # LEADER_NOT_AVAILABLE
    (Api.METADATA, 17): _E.REFUSED,  # INVALID_TOPIC_EXCEPTION
    (Api.METADATA, 29): _E.REFUSED,  # TOPIC_AUTHORIZATION_FAILED
    (Api.FIND_COORDINATOR, 7): _E.RETRIABLE,
    (Api.FIND_COORDINATOR, 13): _E.RETRIABLE,
    (Api.FIND_COORDINATOR, 14): _E.RETRIABLE,
    (Api.FIND_COORDINATOR, 15): _E.RETRIABLE,
    (Api.FIND_COORDINATOR, 16): _E.RETRIABLE,
    (Api.FIND_COORDINATOR, 24): _E.ABORTABLE,  # INVALID_GROUP_ID
    (Api.FIND_COORDINATOR, 30): _E.ABORTABLE,  # GROUP_AUTHORIZATION_FAILED
    (Api.FIND_COORDINATOR, 35): _E.UNSUPPORTED,
    (Api.FIND_COORDINATOR, 53): _E.REFUSED,
    (Api.FIND_COORDINATOR, 120): _E.ABORTABLE,
    (Api.INIT_PRODUCER_ID, 7): _E.RETRIABLE,
    (Api.INIT_PRODUCER_ID, 13): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.INIT_PRODUCER_ID, 14): _E.RETRIABLE,
    (Api.INIT_PRODUCER_ID, 15): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.INIT_PRODUCER_ID, 16): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.INIT_PRODUCER_ID, 31): _E.REFUSED,
    (Api.INIT_PRODUCER_ID, 35): _E.UNSUPPORTED,  # KeepPreparedTxn on 4.1 to 4.4 (KAFKA-20739)
    (Api.INIT_PRODUCER_ID, 47): _E.FENCED,
    (Api.INIT_PRODUCER_ID, 51): _E.RETRIABLE,  # the last transaction is still being ended
    (Api.INIT_PRODUCER_ID, 53): _E.REFUSED,  # also: two-phase commit is off at the broker, or ACL 15 is missing
    (Api.INIT_PRODUCER_ID, 90): _E.FENCED,
    (Api.ADD_PARTITIONS_TO_TXN, 3): _E.RETRIABLE,  # UNKNOWN_TOPIC_OR_PARTITION: the coordinator may not know it yet
    (Api.ADD_PARTITIONS_TO_TXN, 7): _E.RETRIABLE,
    (Api.ADD_PARTITIONS_TO_TXN, 13): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.ADD_PARTITIONS_TO_TXN, 14): _E.RETRIABLE,
    (Api.ADD_PARTITIONS_TO_TXN, 15): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.ADD_PARTITIONS_TO_TXN, 16): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.ADD_PARTITIONS_TO_TXN, 29): _E.ABORTABLE,
    (Api.ADD_PARTITIONS_TO_TXN, 35): _E.UNSUPPORTED,
    (Api.ADD_PARTITIONS_TO_TXN, 47): _E.FENCED,
    (Api.ADD_PARTITIONS_TO_TXN, 48): _E.FATAL,
    (Api.ADD_PARTITIONS_TO_TXN, 49): _E.FATAL,
    (Api.ADD_PARTITIONS_TO_TXN, 51): _E.RETRIABLE,  # the last transaction's markers (KAFKA-5477)
    (Api.ADD_PARTITIONS_TO_TXN, 53): _E.FATAL,
    (Api.ADD_PARTITIONS_TO_TXN, 55): _E.RETRIABLE,  # OPERATION_NOT_ATTEMPTED: another partition says why
    (Api.ADD_PARTITIONS_TO_TXN, 90): _E.FENCED,
    (Api.ADD_PARTITIONS_TO_TXN, 120): _E.ABORTABLE,
    (Api.ADD_OFFSETS_TO_TXN, 7): _E.RETRIABLE,
    (Api.ADD_OFFSETS_TO_TXN, 13): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.ADD_OFFSETS_TO_TXN, 14): _E.RETRIABLE,
    (Api.ADD_OFFSETS_TO_TXN, 15): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.ADD_OFFSETS_TO_TXN, 16): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.ADD_OFFSETS_TO_TXN, 30): _E.ABORTABLE,
    (Api.ADD_OFFSETS_TO_TXN, 35): _E.UNSUPPORTED,
    (Api.ADD_OFFSETS_TO_TXN, 47): _E.FENCED,
    (Api.ADD_OFFSETS_TO_TXN, 48): _E.FATAL,
    (Api.ADD_OFFSETS_TO_TXN, 49): _E.FATAL,
    (Api.ADD_OFFSETS_TO_TXN, 51): _E.RETRIABLE,
    (Api.ADD_OFFSETS_TO_TXN, 53): _E.FATAL,
    (Api.ADD_OFFSETS_TO_TXN, 90): _E.FENCED,
    (Api.ADD_OFFSETS_TO_TXN, 120): _E.ABORTABLE,
    (Api.API_VERSIONS, 7): _E.RETRIABLE,
    (Api.API_VERSIONS, 13): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.END_TXN, 7): _E.RETRIABLE,
    (Api.END_TXN, 13): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.END_TXN, 14): _E.RETRIABLE,
    (Api.END_TXN, 15): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.END_TXN, 16): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.END_TXN, 35): _E.UNSUPPORTED,
    (Api.END_TXN, 47): _E.FENCED,
    (Api.END_TXN, 48): _E.FATAL,  # INVALID_TXN_STATE: ended by somebody else
    (Api.END_TXN, 49): _E.FATAL,
    (Api.END_TXN, 51): _E.RETRIABLE,  # a retry while the first one is being completed
    (Api.END_TXN, 53): _E.FATAL,
    (Api.END_TXN, 90): _E.FENCED,
    (Api.END_TXN, 120): _E.ABORTABLE,
    (Api.TXN_OFFSET_COMMIT, 3): _E.RETRIABLE,
    (Api.TXN_OFFSET_COMMIT, 7): _E.RETRIABLE,
    (Api.TXN_OFFSET_COMMIT, 12): _E.ABORTABLE,  # OFFSET_METADATA_TOO_LARGE
    (Api.TXN_OFFSET_COMMIT, 13): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.TXN_OFFSET_COMMIT, 14): _E.RETRIABLE,  # KAFKA-7296
    (Api.TXN_OFFSET_COMMIT, 15): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.TXN_OFFSET_COMMIT, 16): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.TXN_OFFSET_COMMIT, 22): _E.ABORTABLE,  # ILLEGAL_GENERATION
    (Api.TXN_OFFSET_COMMIT, 24): _E.ABORTABLE,
    (Api.TXN_OFFSET_COMMIT, 25): _E.ABORTABLE,  # UNKNOWN_MEMBER_ID
    (Api.TXN_OFFSET_COMMIT, 28): _E.ABORTABLE,  # INVALID_COMMIT_OFFSET_SIZE
    (Api.TXN_OFFSET_COMMIT, 29): _E.ABORTABLE,
    (Api.TXN_OFFSET_COMMIT, 30): _E.ABORTABLE,
    (Api.TXN_OFFSET_COMMIT, 35): _E.UNSUPPORTED,
    (Api.TXN_OFFSET_COMMIT, 47): _E.FENCED,
    (Api.TXN_OFFSET_COMMIT, 51): _E.RETRIABLE,
    (Api.TXN_OFFSET_COMMIT, 53): _E.FATAL,
    (Api.TXN_OFFSET_COMMIT, 82): _E.ABORTABLE,  # FENCED_INSTANCE_ID
    (Api.TXN_OFFSET_COMMIT, 90): _E.FENCED,
    (Api.TXN_OFFSET_COMMIT, 120): _E.ABORTABLE,
    # An administrative request has no transaction of its own: it is repeated, refused, or its answer is final.
    (Api.WRITE_TXN_MARKERS, 3): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.WRITE_TXN_MARKERS, 6): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.WRITE_TXN_MARKERS, 7): _E.RETRIABLE,
    (Api.WRITE_TXN_MARKERS, 9): _E.RETRIABLE_AFTER_LOOKUP,  # REPLICA_NOT_AVAILABLE
    (Api.WRITE_TXN_MARKERS, 13): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.WRITE_TXN_MARKERS, 19): _E.RETRIABLE,
    (Api.WRITE_TXN_MARKERS, 20): _E.RETRIABLE,
    (Api.WRITE_TXN_MARKERS, 31): _E.REFUSED,
    (Api.WRITE_TXN_MARKERS, 35): _E.UNSUPPORTED,
    (Api.WRITE_TXN_MARKERS, 56): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.DESCRIBE_PRODUCERS, 3): _E.RETRIABLE_AFTER_LOOKUP,  # the leader hears of a partition later than metadata
    (Api.DESCRIBE_PRODUCERS, 6): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.DESCRIBE_PRODUCERS, 7): _E.RETRIABLE,
    (Api.DESCRIBE_PRODUCERS, 9): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.DESCRIBE_PRODUCERS, 13): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.DESCRIBE_PRODUCERS, 29): _E.REFUSED,
    (Api.DESCRIBE_PRODUCERS, 35): _E.UNSUPPORTED,
    (Api.DESCRIBE_TRANSACTIONS, 7): _E.RETRIABLE,
    (Api.DESCRIBE_TRANSACTIONS, 13): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.DESCRIBE_TRANSACTIONS, 14): _E.RETRIABLE,
    (Api.DESCRIBE_TRANSACTIONS, 15): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.DESCRIBE_TRANSACTIONS, 16): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.DESCRIBE_TRANSACTIONS, 35): _E.UNSUPPORTED,
    (Api.DESCRIBE_TRANSACTIONS, 53): _E.REFUSED,
    (Api.LIST_TRANSACTIONS, 7): _E.RETRIABLE,
    (Api.LIST_TRANSACTIONS, 13): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.LIST_TRANSACTIONS, 14): _E.RETRIABLE,
    (Api.LIST_TRANSACTIONS, 15): _E.RETRIABLE_AFTER_LOOKUP,  # that broker shuts down
    (Api.LIST_TRANSACTIONS, 35): _E.UNSUPPORTED,
}

_EXCEPTIONS: Final[dict[ErrorClass, type[KafkaError]]] = {
    _E.RETRIABLE: RetriableError,
    _E.RETRIABLE_AFTER_LOOKUP: RetriableError,
    _E.ABORTABLE: AbortableError,
    _E.REFUSED: AuthorizationError,
    _E.FENCED: FencedError,
    _E.UNSUPPORTED: UnsupportedByBrokerError,
    _E.FATAL: FatalError,
}


# FATAL, but for these. A batch whose fate is unknown is settled by aborting its transaction, as in Kafka's own client;
# and nothing but a wait that is bounded by max.block.ms depends on metadata.
_OTHERWISE: Final[dict[Api, ErrorClass]] = {Api.PRODUCE: _E.ABORTABLE, Api.METADATA: _E.RETRIABLE}


def error_class(api: Api, error_code: int) -> ErrorClass:
    """What to do about `error_code` in an answer of `api`."""
    found = ERROR_CLASSES.get((api, error_code))
    return _OTHERWISE.get(api, _E.FATAL) if found is None else found


def exception_for(api: Api, error_code: int, message: str) -> KafkaError:
    """The exception that tells the application about `error_code` in an answer of `api`."""
    return _EXCEPTIONS[error_class(api, error_code)](message, error_code=error_code)
