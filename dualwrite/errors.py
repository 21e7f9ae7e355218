"""The tree of all exceptions that dualwrite raises deliberately, and the table of Kafka's error codes.

The class does not tell whether the block that an exception left was written: the exception may be about that block, or
about an earlier dual write under its transactional id that has to be completed first. `error.outcome` tells; for
exceptions of other libraries, `outcome_of(error)`.

Every error of a producer with a transactional id names that id, the producer's present state, and the next step.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Any, Final, Self, TypeVar

from dualwrite.outcome import Outcome, outcome_of


class DualWriteError(Exception):
    """Base of all errors of this package."""

    @property
    def outcome(self) -> Outcome:
        """The outcome of the block that this error left, as by `outcome_of`; UNKNOWN if it left none."""
        return outcome_of(self)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Let pickle and copy keep the attributes, for example when an exception goes to another process."""
        return _restored, (type(self), self.args, self.__dict__)


_ErrorT = TypeVar("_ErrorT", bound=DualWriteError)


def _restored(cls: type[_ErrorT], args: tuple[Any, ...], attributes: dict[str, Any]) -> _ErrorT:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class ConfigError(DualWriteError, ValueError):
    """A setting is unknown, invalid, or contradicts another one; nothing was started.

    Remedy: correct it.
    """


class IllegalStateError(DualWriteError):
    """The call is not allowed in the producer's present state; the state did not change.

    Remedy: correct the program; the message says which call is next.
    """


class InvalidTxnStateError(IllegalStateError):
    """A two-phase-commit call came while nothing is prepared, or two-phase commit is off (KIP-939).

    Remedy: as for `IllegalStateError`.
    """


class InvalidRecordError(DualWriteError, ValueError):
    """The record cannot be sent as it is (too large, a wrong type); nothing was sent and no state changed.

    Remedy: send another record, or abort; the transaction continues.
    """


class KafkaError(DualWriteError):
    """A broker refused a request, or could not be reached.

    `error_code` is Kafka's number, or None if no broker responded.
    """

    def __init__(self, message: str, *, error_code: int | None = None) -> None:
        super().__init__(message)
        self.error_code = error_code

    def reworded(self, message: str) -> Self:
        """Return the same error with another message."""
        return _restored(type(self), (message,), self.__dict__)


class RetriableError(KafkaError):
    """The call has no outcome yet; a commit that was sent may have taken effect.

    Remedy: repeat the same call, and no other.
    """


class KafkaTimeoutError(RetriableError):
    """No response came in time; the message says why. The call may still take effect.

    Remedy: repeat the same call until it returns, or `close()`.
    """


class KafkaUnreachableError(KafkaTimeoutError):
    """No broker of the cluster can be reached; the message says since when, and how the last attempt failed.

    From a producer it comes after `unreachable.timeout.ms`, instead of after `max.block.ms`, and means the same as
    `KafkaTimeoutError`. From a dual write it means that neither side was changed.

    `since_s` is how long no broker could be reached, in seconds; `problem` is the failure of the last attempt.

    Remedy: of a dual write, repeat the block later; of a producer, as for `KafkaTimeoutError`.
    """

    def __init__(self, message: str, *, since_s: float = 0.0, problem: str = "", error_code: int | None = None) -> None:
        super().__init__(message, error_code=error_code)
        self.since_s = since_s
        self.problem = problem


class TransactionHangsError(KafkaTimeoutError):
    """A transaction has no marker in some partitions, and no coordinator is going to write one (KAFKA-20734). Nothing
    was published behind it or again.

    `read_committed` consumers stop at it there. A dual write raises it at each use of the id if its row names the
    transaction, else before it would write to such a partition; a producer with two-phase commit does the latter too,
    and then its open transaction can only be aborted. Nothing is published again, because the records may still become
    visible, and nothing is sent behind them, because the same marker would end both.

    `prepared_state` is the producer id and epoch of the transaction that hangs, `partitions` has the topics and
    partitions without a marker, and `start_offsets` its first offset in each, or nothing if its row names it.

    Remedy: run the command in the message, which writes the marker; then repeat the call.
    """

    def __init__(
        self,
        message: str,
        *,
        transactional_id: str,
        prepared_state: str,
        partitions: tuple[tuple[str, int], ...],
        start_offsets: tuple[int, ...] = (),
    ) -> None:
        super().__init__(message)
        self.transactional_id = transactional_id
        self.prepared_state = prepared_state
        self.partitions = partitions
        self.start_offsets = start_offsets


class AbortableError(KafkaError):
    """The transaction can no longer be committed: none of its records is, or will be, visible to a `read_committed`
    consumer.

    Remedy: call `abort_transaction()` and start a new one.
    """


class DeliveryError(AbortableError):
    """A record was not stored within `delivery.timeout.ms`, was refused, or was dropped when its transaction ended.

    Remedy: in a transaction, call `abort_transaction()` and start again. Without one, send the record again; it is
    stored twice if only the response was lost.
    """


class AuthorizationError(KafkaError):
    """A right on the transactional id, the topic or the cluster is missing; the message names it. The call had no
    effect.

    Remedy: grant the right, then repeat the call; the same producer can still be used.
    """


class AuthenticationError(KafkaError):
    """The broker did not accept this client's identity, or could not prove its own (TLS, SASL); the message says why. A
    commit that was sent may have taken effect.

    Only a call retries the login: each retry would count as one more wrong password.

    Remedy: correct the cause, then repeat the same call, and no other.
    """


class FatalError(KafkaError):
    """The producer can no longer be used.

    Remedy: close it and create a new one, whose `init_transactions()` aborts a transaction that was open.
    """


class FencedError(FatalError):
    """Another producer with the same transactional id has taken over (PRODUCER_FENCED, INVALID_PRODUCER_EPOCH), or the
    broker aborted the transaction after `transaction.timeout.ms`, which it reports with the same error.

    Remedy: close this producer. Create a new one only if there is no other: the two would fence each other forever.
    """


class UnsupportedByBrokerError(FatalError):
    """The broker lacks a feature that the configuration requires, for example two-phase commit.

    Remedy: close this producer; change the configuration, or the broker.
    """


class AdminError(KafkaError):
    """A broker refused an admin request; it changed nothing.

    Remedy: correct the request; repeating it would not help.
    """


class TransactionalIdNotFoundError(AdminError):
    """No coordinator knows the transactional id: it was never used, or it expired (TRANSACTIONAL_ID_NOT_FOUND).

    Remedy: as for `AdminError`.
    """


class InvalidPatternError(AdminError, ValueError):
    """A pattern of transactional ids is not a regular expression for Kafka (RE2/J; INVALID_REGULAR_EXPRESSION).

    Remedy: as for `AdminError`.
    """


class IncompleteAnswerError(KafkaError):
    """Results of some brokers, transactional ids or partitions are missing.

    `partial` is the result without the missing ones; `failures` says why they are missing, by broker id, transactional
    id or `TopicPartition`.

    Remedy: use `partial`, or repeat the call, which is harmless.
    """

    def __init__(self, message: str, *, partial: Any, failures: Mapping[Any, KafkaError]) -> None:
        super().__init__(message)
        self.partial = partial
        self.failures = failures


class PreparedTransactionLost(KafkaError):  # noqa: N818 - the name says it all
    """The broker aborted a prepared transaction whose database side may have committed: the two sides disagree.

    A dual write raises it only if it cannot publish the records again: they are gone from the log (`RecordsGoneError`)
    or may not be read, consumed offsets went with them, or the state row has no manifest.

    If `Producer.guarantee` has no bound, this happens only if an operator or another program ends the transaction, or
    Kafka loses data. Nothing was sent to the broker because of it, so every later recovery with
    `keep_prepared_txn=True` and the same stored state raises it again.

    `described_state`, `described_producer_id`, `described_producer_epoch` and `described_start_ms` (milliseconds since
    1970, -1 if unknown) are the values from DescribeTransactions (KIP-664).

    Remedy: an operator makes both sides agree, then continues with `init_transactions()`.
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


class RecordsGoneError(PreparedTransactionLost):
    """The broker aborted a prepared transaction, and its records can no longer be read from the log, so they cannot be
    published again; nothing was changed.

    They were deleted or compacted, Kafka lost them, or their topic is another one. The coordinator was not asked, so
    `described_state` is empty.

    Remedy: restore them from the database, then continue as after `PreparedTransactionLost`.
    """

    def __init__(self, message: str, *, transactional_id: str, prepared_state: str) -> None:
        super().__init__(
            message,
            transactional_id=transactional_id,
            prepared_state=prepared_state,
            described_state="",
            described_producer_id=-1,
            described_producer_epoch=-1,
            described_start_ms=-1,
        )


class AnotherClusterError(KafkaError):
    """The stored transaction was prepared in another Kafka cluster than the one that responds; nothing was changed.

    `prepared_in` and `found` are the ids of the two clusters.

    Remedy: connect to the first cluster, or move to the second.
    """

    def __init__(self, message: str, *, prepared_in: str = "", found: str = "") -> None:
        super().__init__(message)
        self.prepared_in = prepared_in
        self.found = found


class RecipeError(DualWriteError):
    """A dual write ended without taking effect on either side."""


class TransactionDoomedError(RecipeError):
    """A statement failed, or a record was refused, and the error was swallowed; both sides were rolled back.

    Remedy: let the error leave the block, or use a savepoint.
    """


class TransactionTooLargeError(RecipeError):
    """The records of the dual write exceed `max_buffered_bytes`; both sides were rolled back.

    Remedy: send fewer records in one block, or raise the limit.
    """


class TransactionEndedInsideError(RecipeError):
    """The block itself committed or rolled back the database transaction; no records were sent, and the dual write
    cannot be completed.

    Remedy: leave COMMIT and ROLLBACK to the block.
    """


class StateRowError(RecipeError):
    """The state row is missing, or differs from the row that this writer wrote under its lock; nothing was changed.

    Remedy: find the program that edits `kafka_transaction_state`; call `recover()`.
    """


class StateTableError(StateRowError):
    """The state table is not the one found at first use, or it is ambiguous which table is meant; nothing was changed.

    Remedy: keep one table, and name its schema with `schema=`; `dualwrite init-db` creates it.
    """


class SnapshotTooOldError(RecipeError):
    """The database transaction keeps a snapshot from before its state row existed; both sides were rolled back.

    Only under REPEATABLE READ and SERIALIZABLE of PostgreSQL. The cause is the database's serialization failure.

    Remedy: repeat the block: its next transaction sees the row.
    """


class DatabaseMovedError(RecipeError):
    """The state table was created in another database than the one it is in now; nothing was written or aborted.

    `made_in` and `found_in` name both.

    Remedy: decide with `dualwrite adopt` which of the two keeps the transactional ids.
    """

    def __init__(self, message: str, *, made_in: str = "", found_in: str = "") -> None:
        super().__init__(message)
        self.made_in = made_in
        self.found_in = found_in


class RowLockTimeoutError(RecipeError):
    """The state row, or the row that diverts a pool, stayed locked for `lock_timeout_ms`; nothing was decided.

    Remedy: repeat the block; look for a frozen process.
    """


class DatabaseWentBackError(RecipeError):
    """The state row is older than the one this process knows, or than a transaction that Kafka committed under its id;
    nothing was changed on either side.

    The database was restored or failed over to an earlier state, or the row was edited. Every use of the id raises
    this.

    Remedy: compare both sides, then `dualwrite recover --acknowledge-lost`; replace a writer that remembers a newer
    row.
    """


class BoundExceededError(RecipeError):
    """Kafka might have aborted the dual write before its commit; both sides were rolled back.

    Only with brokers on which a prepared transaction has a timeout (`Guarantee.bounded_ms`).

    Remedy: repeat the block, or use a longer `transaction_timeout_ms`.
    """


class NotDurableError(RecipeError):
    """A decision is visible in the database but could not be made durable, so nothing was sent to Kafka; the
    transaction stays in doubt.

    Remedy: bring the standby back.
    """


class StoredBlocksError(RecipeError):
    """Blocks that wait in the outbox must be published before this one, which has consumed offsets and cannot go there;
    nothing was written.

    Remedy: repeat the block later; the pool publishes the outbox in the background.
    """


class RecordsRefusedError(RecipeError):
    """Kafka refuses for good a record that the database has decided: it is not published, and nothing was changed.

    `transactional_id`, `seq` and `topic` identify the records; the cause is the error of the producer.

    Remedy: correct the fault in `why`, or take the records out with `dualwrite recover --take-out`.
    """

    def __init__(self, message: str, *, transactional_id: str, seq: int, topic: str, why: str) -> None:
        super().__init__(message)
        self.transactional_id = transactional_id
        self.seq = seq
        self.topic = topic
        self.why = why


class StoredBlockRefusedError(RecordsRefusedError):
    """Kafka refuses a record of a block in an outbox, so no later block of the id is published; nothing was changed.

    `seq` is the number of the block. A block that cannot be read is refused too; `topic` is empty then.

    Remedy: as for `RecordsRefusedError`.
    """


class NotProvenError(RecipeError):
    """Nothing shows whether Kafka has committed the last batch of an outbox, so the outbox publishes nothing more;
    nothing was changed.

    The batch counts neither as committed nor as aborted: the database keeps its records. `transactional_id` and
    `prepared_state` identify it.

    Remedy: make the log readable, or look, then `dualwrite recover --publish-again` or `--take-out`.
    """

    def __init__(self, message: str, *, transactional_id: str, prepared_state: str) -> None:
        super().__init__(message)
        self.transactional_id = transactional_id
        self.prepared_state = prepared_state


class OwedRecordsRefusedError(RecordsRefusedError):
    """Kafka has aborted a decided dual write, and refuses its records now that they are to be published again; nothing
    was changed.

    Nothing can be written under the id before they are published or taken out. `seq` is 0.

    Remedy: as for `RecordsRefusedError`.
    """


class StoreFullError(RecipeError):
    """Unpublished blocks reach `max_stored_bytes` or `max_stored_age_ms`; both sides were rolled back.

    Remedy: bring Kafka back, correct the refused record, or start the publisher: `pool.status` says which.
    """


class UnsafeDatabaseError(RecipeError):
    """The database cannot give the guarantees of a dual write, and the settings do not accept that by name; nothing was
    changed.

    Remedy: change the database, or accept it by name.
    """


class PoolTimeoutError(RecipeError):
    """No transactional id or connection of an `asyncpg.Pool` became free in time; both sides were rolled back.

    Remedy: repeat the block, or raise `max_writers`.
    """


class PartitionTakenOverError(RecipeError):
    """Another consumer of the group has taken over a partition; this consumer's records of it were not written.

    Remedy: none is needed: the other consumer continues.
    """


class ConsumedLogError(RecipeError):
    """The records that a consumer read do not continue those written before; none of them was written.

    `topic`, `partition`, `expected_offset` and `found_offset` say where.
    """

    def __init__(self, message: str, *, topic: str, partition: int, expected_offset: int, found_offset: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.expected_offset = expected_offset
        self.found_offset = found_offset


class ConsumedLogReplacedError(ConsumedLogError):
    """The log of a partition is not the one that was consumed before: its topic was deleted and created again, or the
    log lost its end; nothing was written.

    Remedy: call `forget_consumed_offsets`, if that was intended.
    """


class ConsumedRecordsMissingError(ConsumedLogError):
    """Records between those written and those read are missing, and the log does not explain it; nothing was written.

    Remedy: as for `ConsumedLogReplacedError`.
    """


class OutcomeUnknown(DualWriteError):  # noqa: N818 - the name says it all
    """A commit was sent, no response came, and its outcome cannot be determined now.

    From a dual write: both sides will agree in any case; only the outcome is not known yet. `transactional_id` and
    `prepared_state` identify the dual write. Any process that next uses the transactional id determines the outcome,
    too.

    From a producer (`CommitOutcomeUnknown`): `read_committed` consumers see either all of the records or none;
    `prepared_state` is empty if nothing was prepared.

    Remedy: of a dual write, `DualWriter.recover()` once the database can be reached again; of a producer, read the
    topics.
    """

    def __init__(self, message: str, *, transactional_id: str, prepared_state: str) -> None:
        super().__init__(message)
        self.transactional_id = transactional_id
        self.prepared_state = prepared_state


class NoMarkerError(OutcomeUnknown):
    """The log has no marker behind a prepared transaction in some partitions, up to its end; nothing was changed.

    It is open, its markers are being written, or it hangs (KAFKA-20734). `partitions` has the partitions without a
    marker.

    Remedy: ask its coordinator, which alone can tell.
    """

    def __init__(
        self, message: str, *, transactional_id: str, prepared_state: str, partitions: tuple[tuple[str, int], ...]
    ) -> None:
        super().__init__(message, transactional_id=transactional_id, prepared_state=prepared_state)
        self.partitions = partitions


class CommitOutcomeUnknown(OutcomeUnknown, FatalError):  # noqa: N818 - as its base
    """A commit got no response, and the producer failed or was closed before the commit could be repeated.

    Remedy: close this producer. Read the topics with `read_committed` to see whether the commit took effect; if the
    transaction was prepared, the next owner of the id completes it by the state that the database holds.
    """

    def __init__(
        self, message: str, *, transactional_id: str, prepared_state: str, error_code: int | None = None
    ) -> None:
        OutcomeUnknown.__init__(self, message, transactional_id=transactional_id, prepared_state=prepared_state)
        self.error_code = error_code


class FencedCommitOutcomeUnknown(CommitOutcomeUnknown, FencedError):  # noqa: N818 - as its base
    """A commit got no response, and then another producer took over the transactional id.

    Remedy: as for `CommitOutcomeUnknown` and `FencedError`.
    """


class ErrorClass(Enum):
    """How a client handles an error code of a broker."""

    RETRIABLE = "repeat the request at the same node after a back-off"
    RETRIABLE_AFTER_LOOKUP = "look up the responsible broker, then repeat the request"
    ABORTABLE = "the transaction (without one: the record) has failed, but not the producer"
    REFUSED = "a right is missing; the call failed and may be repeated"
    FENCED = "another producer has taken over, or the broker aborted the transaction after transaction.timeout.ms"
    UNSUPPORTED = "the broker does not support it"
    FATAL = "the producer cannot continue"


WHAT_TO_DO: Final[dict[ErrorClass, str]] = {
    ErrorClass.RETRIABLE: "the producer repeats the request by itself",
    ErrorClass.RETRIABLE_AFTER_LOOKUP: "the producer repeats the request by itself",
    ErrorClass.ABORTABLE: "call abort_transaction() and start again",
    ErrorClass.REFUSED: "grant it, then repeat the call",
    ErrorClass.FENCED: "close this producer, and create a new one only if there is no other with this id",
    ErrorClass.UNSUPPORTED: "close this producer; change the configuration, or the broker",
    ErrorClass.FATAL: "close this producer and create a new one",
}
"""Advice to an application after an error of a class, for the end of an error text."""


class Api(IntEnum):
    """The APIs that producers, readers of the log and `TransactionAdmin` use; the values are Kafka's API keys."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66

    @property
    def kafka_name(self) -> str:
        """The name that the protocol uses: `InitProducerId`."""
        return self.name.title().replace("_", "")


NETWORK_EXCEPTION: Final = 13
"""Kafka's code for a response that did not come; a lost connection is reported as this."""

_E = ErrorClass

# One row per API and code. _OTHERWISE has the class of a combination that is not listed: an unknown error must not be
# guessed at. INVALID_PRODUCER_EPOCH on Produce is abortable: a broker returns it for a late batch of a transaction that
# it aborted (KIP-890).
ERROR_CLASSES: Final[dict[tuple[Api, int], ErrorClass]] = {
    (Api.PRODUCE, 2): _E.RETRIABLE,  # CORRUPT_MESSAGE: damaged in transit
    (Api.PRODUCE, 3): _E.RETRIABLE_AFTER_LOOKUP,  # UNKNOWN_TOPIC_OR_PARTITION
    (Api.PRODUCE, 5): _E.RETRIABLE_AFTER_LOOKUP,  # LEADER_NOT_AVAILABLE
    (Api.PRODUCE, 6): _E.RETRIABLE_AFTER_LOOKUP,  # NOT_LEADER_OR_FOLLOWER
    (Api.PRODUCE, 7): _E.RETRIABLE,  # REQUEST_TIMED_OUT
    (Api.PRODUCE, 10): _E.ABORTABLE,  # MESSAGE_TOO_LARGE
    (Api.PRODUCE, 13): _E.RETRIABLE_AFTER_LOOKUP,  # NETWORK_EXCEPTION
    (Api.PRODUCE, 14): _E.RETRIABLE,  # COORDINATOR_LOAD_IN_PROGRESS
    (Api.PRODUCE, 15): _E.RETRIABLE,  # COORDINATOR_NOT_AVAILABLE
    (
        Api.PRODUCE,
        16,
    ): _E.RETRIABLE,  # NOT_COORDINATOR: the partition leader asked the wrong one, and retries
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
    # Any other is retried until the time is up; OFFSET_OUT_OF_RANGE is a fact about the log: client/log/codec.py
    (Api.FETCH, 3): _E.RETRIABLE_AFTER_LOOKUP,  # the leader learns of a partition later than metadata
    (Api.FETCH, 5): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.FETCH, 6): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.FETCH, 9): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.FETCH, 13): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.FETCH, 29): _E.REFUSED,
    (Api.FETCH, 35): _E.UNSUPPORTED,
    (Api.FETCH, 56): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.FETCH, 74): _E.RETRIABLE_AFTER_LOOKUP,  # FENCED_LEADER_EPOCH
    (Api.FETCH, 76): _E.UNSUPPORTED,  # UNSUPPORTED_COMPRESSION_TYPE: zstd before Fetch v10
    (Api.LIST_OFFSETS, 3): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.LIST_OFFSETS, 5): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.LIST_OFFSETS, 6): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.LIST_OFFSETS, 7): _E.RETRIABLE,
    (Api.LIST_OFFSETS, 13): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.LIST_OFFSETS, 29): _E.REFUSED,
    (Api.LIST_OFFSETS, 35): _E.UNSUPPORTED,
    (Api.LIST_OFFSETS, 56): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.LIST_OFFSETS, 74): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.LIST_OFFSETS, 78): _E.RETRIABLE,  # OFFSET_NOT_AVAILABLE: a leader that has just been elected
    (Api.CREATE_TOPICS, 7): _E.RETRIABLE,
    (Api.CREATE_TOPICS, 13): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.CREATE_TOPICS, 29): _E.REFUSED,
    (Api.CREATE_TOPICS, 31): _E.REFUSED,
    (Api.CREATE_TOPICS, 35): _E.UNSUPPORTED,
    (Api.CREATE_TOPICS, 41): _E.RETRIABLE_AFTER_LOOKUP,  # NOT_CONTROLLER
    (Api.CREATE_TOPICS, 89): _E.RETRIABLE,  # THROTTLING_QUOTA_EXCEEDED
    (Api.DELETE_RECORDS, 3): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.DELETE_RECORDS, 6): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.DELETE_RECORDS, 7): _E.RETRIABLE,
    (Api.DELETE_RECORDS, 13): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.DELETE_RECORDS, 29): _E.REFUSED,
    (Api.DELETE_RECORDS, 35): _E.UNSUPPORTED,
    (Api.DELETE_RECORDS, 56): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.METADATA, 3): _E.RETRIABLE,  # UNKNOWN_TOPIC_OR_PARTITION: it may be being created
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
    (Api.INIT_PRODUCER_ID, 51): _E.RETRIABLE,  # the last transaction is still ending
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
    (Api.ADD_PARTITIONS_TO_TXN, 55): _E.RETRIABLE,  # OPERATION_NOT_ATTEMPTED: another partition has the cause
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
    (Api.END_TXN, 48): _E.FATAL,  # INVALID_TXN_STATE: another producer or the broker ended it
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
    # An admin request belongs to no transaction: it is repeated, refused, or its response is final.
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
    (Api.DESCRIBE_CONFIGS, 7): _E.RETRIABLE,
    (Api.DESCRIBE_CONFIGS, 13): _E.RETRIABLE_AFTER_LOOKUP,
    (Api.DESCRIBE_CONFIGS, 29): _E.REFUSED,
    (Api.DESCRIBE_CONFIGS, 31): _E.REFUSED,
    (Api.DESCRIBE_CONFIGS, 35): _E.UNSUPPORTED,
    (Api.DESCRIBE_PRODUCERS, 3): _E.RETRIABLE_AFTER_LOOKUP,  # the leader learns of a partition later than metadata
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
    (Api.LIST_TRANSACTIONS, 15): _E.RETRIABLE_AFTER_LOOKUP,  # that broker is shutting down
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


# FATAL, except for these. Aborting the transaction resolves a batch whose outcome is unknown, as in Kafka's own client;
# only waits that max.block.ms bounds depend on metadata; and reading changes nothing and has a timeout.
_OTHERWISE: Final[dict[Api, ErrorClass]] = {
    Api.PRODUCE: _E.ABORTABLE,
    Api.METADATA: _E.RETRIABLE,
    Api.FETCH: _E.RETRIABLE,
}


def error_class(api: Api, error_code: int) -> ErrorClass:
    """Return how to handle `error_code` in a response of `api`."""
    found = ERROR_CLASSES.get((api, error_code))
    return _OTHERWISE.get(api, _E.FATAL) if found is None else found


def exception_for(api: Api, error_code: int, message: str) -> KafkaError:
    """Return the exception for `error_code` in a response of `api`."""
    return _EXCEPTIONS[error_class(api, error_code)](message, error_code=error_code)
