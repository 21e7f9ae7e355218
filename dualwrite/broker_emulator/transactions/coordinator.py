"""The transaction coordinator's decisions, as pure functions of its metadata, the request and the time.

`init_producer_id.py` has the one about InitProducerId.

A decision is a response, and the transition that must be in the log before the response may be sent. Unless that append
fails, the response depends only on the arguments. KIP-98, KIP-360, KIP-890, KIP-939.

Errors are always the coordinator's own; the API layer maps 90 to 47 for old request versions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import Generic, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.config import MAX_EPOCH, TWO_PHASE_COMMIT_TIMEOUT_MS
from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.topics.topics import TopicPartition
from dualwrite.broker_emulator.transactions import transitions
from dualwrite.broker_emulator.transactions.metadata import (
    LAST_USABLE_EPOCH,
    NO_PAIR,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    CoordinatorRules,
    ProducerPair,
    TransactionMetadata,
)
from dualwrite.broker_emulator.transactions.states import EXPIRABLE_STATES, ONGOING, PREPARE_STATES, TransactionState
from dualwrite.broker_emulator.transactions.transitions import Transition


class EndTxnResult(NamedTuple):
    """Response to EndTxn; the pair is the next one to use (KIP-890 part 2), -1 below version 5 and beside an error."""

    error: ErrorCode
    producer_id: int = -1
    producer_epoch: int = -1


Response = TypeVar("Response")


class CoordinatorDecision(NamedTuple, Generic[Response]):
    """The response to send once `transition` (if any) is in the log."""

    response: Response
    transition: Transition | None = None


def needs_new_producer_id(metadata: TransactionMetadata | None) -> bool:
    """Return whether a decision about this transactional id may have to give it a fresh producer id."""
    if metadata is None:
        return True
    epoch = metadata.next_producer_epoch if metadata.has_dual_identity else metadata.producer_epoch
    return epoch >= LAST_USABLE_EPOCH


# --- adding and verifying partitions --------------------------------------------------------------------------------


def decide_add_partitions(
    metadata: TransactionMetadata | None,
    writer: ProducerPair,
    partitions: Collection[TopicPartition],
    rules: CoordinatorRules,
    *,
    transaction_version: int,
    now_ms: int,
) -> CoordinatorDecision[ErrorCode]:
    """Decide AddPartitionsToTxn, AddOffsetsToTxn, and the additions by brokers for Produce and TxnOffsetCommit."""
    if metadata is None:
        return CoordinatorDecision(ErrorCode.invalid_producer_id_mapping)
    is_pending = metadata.pending_state is not None
    if is_pending and rules.pending_checked_before_identity:
        return CoordinatorDecision(ErrorCode.concurrent_transactions)
    error = _writer_error(metadata, writer)
    if error is not NO_ERROR:
        return CoordinatorDecision(error)
    if is_pending or metadata.state in PREPARE_STATES:
        return CoordinatorDecision(ErrorCode.concurrent_transactions)
    if metadata.state is ONGOING and metadata.topic_partitions.issuperset(partitions):
        return CoordinatorDecision(NO_ERROR)
    recorded_version = min(transaction_version, rules.newest_client_version)
    transition = transitions.added(metadata, partitions, transaction_version=recorded_version, now_ms=now_ms)
    return CoordinatorDecision(NO_ERROR, transition)


def verify_partitions(
    metadata: TransactionMetadata | None, writer: ProducerPair, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Check that each partition belongs to the writer's transaction; ignores a pending transition (KAFKA-14904)."""
    error = ErrorCode.invalid_producer_id_mapping if metadata is None else _writer_error(metadata, writer)
    if metadata is None or error is not NO_ERROR:
        return dict.fromkeys(partitions, error)
    if metadata.state in PREPARE_STATES:
        return dict.fromkeys(partitions, ErrorCode.concurrent_transactions)
    known = metadata.topic_partitions
    return {partition: NO_ERROR if partition in known else ErrorCode.transaction_abortable for partition in partitions}


def _writer_error(metadata: TransactionMetadata, writer: ProducerPair) -> ErrorCode:
    """Check that the pair may write.

    A recovering client may only end the transaction; late produce requests of the old incarnation still belong to it
    (KIP-939).
    """
    if writer == (metadata.producer_id, metadata.producer_epoch):
        return NO_ERROR
    if metadata.has_dual_identity:
        is_client = writer == metadata.client_pair
        return ErrorCode.invalid_txn_state if is_client else ErrorCode.producer_fenced
    if writer.producer_id != metadata.producer_id:
        return ErrorCode.invalid_producer_id_mapping
    return ErrorCode.producer_fenced


# --- EndTxn ---------------------------------------------------------------------------------------------------------


class _EndAction(Enum):
    END = auto()  # append the decision
    REPLAY = auto()  # this decision was made before: repeat its response
    LATE_COMMIT = auto()  # the server aborted first: the response differs between releases


_S = TransactionState
_END, _REPLAY, _LATE_COMMIT = _EndAction
_INVALID_STATE = ErrorCode.invalid_txn_state
_CONCURRENT = ErrorCode.concurrent_transactions
_FENCED = ErrorCode.producer_fenced

_EndRow = tuple[_EndAction | ErrorCode, ...]

# fmt: off
# EndTxn v0-4, with the id's own pair and nothing pending:
END_TXN_V0: Mapping[TransactionState, _EndRow] = {
    #                    commit           abort
    _S.EMPTY:           (_INVALID_STATE,  _INVALID_STATE),
    _S.ONGOING:         (_END,            _END),
    _S.PREPARE_COMMIT:  (_CONCURRENT,     _INVALID_STATE),
    _S.PREPARE_ABORT:   (_INVALID_STATE,  _CONCURRENT),
    _S.COMPLETE_COMMIT: (_REPLAY,         _INVALID_STATE),
    _S.COMPLETE_ABORT:  (_INVALID_STATE,  _REPLAY),
}
# EndTxn v5 with nothing pending; a retry presents the pair with which the last decision was made:
END_TXN_V5: Mapping[TransactionState, _EndRow] = {
    #                    commit current   commit retry     abort current    abort retry
    _S.EMPTY:           (_INVALID_STATE,  _FENCED,         _END,            _FENCED),
    _S.ONGOING:         (_END,            _FENCED,         _END,            _FENCED),
    _S.PREPARE_COMMIT:  (_FENCED,         _CONCURRENT,     _FENCED,         _INVALID_STATE),
    _S.PREPARE_ABORT:   (_FENCED,         _INVALID_STATE,  _FENCED,         _CONCURRENT),
    _S.COMPLETE_COMMIT: (_INVALID_STATE,  _REPLAY,         _END,            _INVALID_STATE),
    _S.COMPLETE_ABORT:  (_INVALID_STATE,  _LATE_COMMIT,    _END,            _REPLAY),
}
# fmt: on


def decide_end_txn(
    metadata: TransactionMetadata | None,
    pair: ProducerPair,
    rules: CoordinatorRules,
    *,
    commit: bool,
    transaction_version: int,
    new_producer_id: int,
    now_ms: int,
) -> CoordinatorDecision[EndTxnResult]:
    """Decide EndTxn. `transaction_version` 2 is request version 5, independently of the cluster's finalized version."""
    if metadata is None:
        return _end_refused(ErrorCode.invalid_producer_id_mapping)
    if transaction_version < 2:
        return _end_same_epoch(metadata, pair, commit, now_ms)
    return _end_with_bump(metadata, pair, rules, commit, new_producer_id, now_ms)


_ENDED = EndTxnResult(NO_ERROR)


def _end_refused(error: ErrorCode) -> CoordinatorDecision[EndTxnResult]:
    return CoordinatorDecision(EndTxnResult(error))


def _end_same_epoch(
    metadata: TransactionMetadata, pair: ProducerPair, commit: bool, now_ms: int
) -> CoordinatorDecision[EndTxnResult]:
    error = _identity_error(metadata, pair)
    if error is not NO_ERROR:
        return _end_refused(error)
    if metadata.pending_state is not None:
        return _end_refused(ErrorCode.concurrent_transactions)
    if metadata.has_dual_identity:  # it completes under another pair, which a response below v5 cannot carry
        return _end_refused(ErrorCode.unsupported_version)
    action = END_TXN_V0[metadata.state][0 if commit else 1]
    if isinstance(action, ErrorCode):
        return _end_refused(action)
    if action is _REPLAY:
        return CoordinatorDecision(_ENDED)
    return CoordinatorDecision(_ENDED, transitions.ended(metadata, commit=commit, now_ms=now_ms))


def _end_with_bump(
    metadata: TransactionMetadata,
    pair: ProducerPair,
    rules: CoordinatorRules,
    commit: bool,
    new_producer_id: int,
    now_ms: int,
) -> CoordinatorDecision[EndTxnResult]:
    if metadata.pending_state is not None:  # before the pair: a rotated pair is returned while this is pending
        return _end_refused(ErrorCode.concurrent_transactions)
    is_retry = _is_end_retry(metadata, pair) if rules.logs_last_epoch else _is_one_epoch_behind(metadata, pair)
    if not is_retry:
        error = _identity_error(metadata, pair)
        if error is not NO_ERROR:
            return _end_refused(error)
    action = END_TXN_V5[metadata.state][(0 if commit else 2) + is_retry]
    if isinstance(action, ErrorCode):
        return _end_refused(action)
    if action is _LATE_COMMIT:
        return _end_refused(rules.late_commit_error)
    if action is _REPLAY:
        return CoordinatorDecision(EndTxnResult(NO_ERROR, *metadata.producer_pair))
    if metadata.producer_epoch == MAX_EPOCH:  # no client ever had this epoch, and no marker could follow it
        return _end_refused(ErrorCode.producer_fenced)
    transition = transitions.ended_with_bump(
        metadata,
        commit=commit,
        new_producer_id=new_producer_id,
        now_ms=now_ms,
        client_is_previous=rules.completes_with_client_as_previous,
    )
    after = transition.after
    pair = after.producer_pair if after.next_pair == NO_PAIR else after.next_pair
    return CoordinatorDecision(EndTxnResult(NO_ERROR, *pair), transition)


def _identity_error(metadata: TransactionMetadata, pair: ProducerPair) -> ErrorCode:
    if metadata.has_dual_identity:
        return NO_ERROR if pair == metadata.client_pair else ErrorCode.producer_fenced
    if pair == (metadata.producer_id, metadata.producer_epoch):
        return NO_ERROR
    if pair.producer_id == metadata.producer_id:
        return ErrorCode.producer_fenced
    return ErrorCode.invalid_producer_id_mapping


def _is_end_retry(metadata: TransactionMetadata, pair: ProducerPair) -> bool:
    """Return whether the pair is exactly the one that ended the last transaction, under transaction version 2.

    In Kafka's terms, the epoch is one less than the stored one, or the producer id is the one before a rotation. Only
    the exact epoch distinguishes a client that ended a transaction with 32767 from the client that it had fenced at
    32766 (KIP-939).
    """
    if metadata.client_transaction_version < 2 or metadata.last_producer_epoch == NO_PRODUCER_EPOCH:
        return False
    ended_by = (
        metadata.producer_id if metadata.previous_producer_id == NO_PRODUCER_ID else metadata.previous_producer_id
    )
    return pair == (ended_by, metadata.last_producer_epoch)


def _is_one_epoch_behind(metadata: TransactionMetadata, pair: ProducerPair) -> bool:
    """Return whether Kafka would take it for a retry of EndTxn, for any version and producer of the last decision."""
    if pair == (metadata.producer_id, metadata.producer_epoch - 1):
        return True
    return metadata.producer_epoch == 0 and pair == (metadata.previous_producer_id, LAST_USABLE_EPOCH)


# --- server-side aborts and expiry ----------------------------------------------------------------------------------


def server_abort(
    metadata: TransactionMetadata, rules: CoordinatorRules, new_producer_id: int, now_ms: int
) -> Transition:
    """Abort. Version 2 raises the epoch in the abort itself (KAFKA-19367), earlier versions fence first."""
    if rules.transaction_version < 2 or metadata.producer_epoch == MAX_EPOCH:
        return transitions.fenced_and_aborted(metadata, now_ms)
    return transitions.ended_with_bump(
        metadata,
        commit=False,
        new_producer_id=new_producer_id,
        now_ms=now_ms,
        rotates=rules.rotates_on_server_abort,
        client_is_previous=rules.completes_with_client_as_previous,
    )


def decide_timeout_abort(
    metadata: TransactionMetadata, rules: CoordinatorRules, *, new_producer_id: int, now_ms: int
) -> Transition | None:
    """Return the abort of a transaction that has been open beyond its timeout; None for every other id."""
    if not has_timed_out(metadata, now_ms):
        return None
    return server_abort(metadata, rules, new_producer_id, now_ms)


def has_timed_out(metadata: TransactionMetadata, now_ms: int) -> bool:
    """Return whether the transaction is open beyond its timeout, which two-phase commit never is (KIP-939)."""
    deadline_ms = timeout_deadline_ms(metadata)
    return deadline_ms is not None and metadata.pending_state is None and deadline_ms <= now_ms


def timeout_deadline_ms(metadata: TransactionMetadata) -> int | None:
    """Return the time at which the open transaction times out; None if none is open or it never does."""
    if metadata.state is not ONGOING or metadata.timeout_ms == TWO_PHASE_COMMIT_TIMEOUT_MS:
        return None
    return metadata.start_timestamp_ms + metadata.timeout_ms + 1


def has_expired(metadata: TransactionMetadata, rules: CoordinatorRules, now_ms: int) -> bool:
    """Return whether the id has been unused for `transactional.id.expiration.ms`."""
    return (
        metadata.state in EXPIRABLE_STATES
        and metadata.pending_state is None
        and expiry_deadline_ms(metadata, rules) <= now_ms
    )


def expiry_deadline_ms(metadata: TransactionMetadata, rules: CoordinatorRules) -> int:
    """Return the time at which the id expires if it stays unused."""
    return metadata.last_update_timestamp_ms + rules.transactional_id_expiration_ms
