"""The transaction coordinator's decisions, as pure functions of its metadata, the request and the time.

A decision is a response, and the transition that must be in the log before the response may be sent. Unless that append
fails, the response depends only on the arguments. KIP-98, KIP-360, KIP-890, KIP-939.

Errors are always the coordinator's own; the API layer maps 90 to 47 for old request versions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import Final, Generic, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.config import MAX_EPOCH, TWO_PHASE_COMMIT_TIMEOUT_MS
from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.profiles import KeepPrepared
from dualwrite.broker_emulator.topics.topics import TopicPartition
from dualwrite.broker_emulator.transactions import transitions
from dualwrite.broker_emulator.transactions.metadata import (
    LAST_USABLE_EPOCH,
    NO_PAIR,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP_MS,
    CoordinatorRules,
    ProducerPair,
    TransactionMetadata,
)
from dualwrite.broker_emulator.transactions.states import EXPIRABLE_STATES, ONGOING, PREPARE_STATES, TransactionState
from dualwrite.broker_emulator.transactions.transitions import Transition


class InitProducerIdResult(NamedTuple):
    """Response to InitProducerId; beside an error, every id and epoch is -1.

    The ongoing pair (KIP-939) names the prepared transaction that was kept, or is (-1, -1) if none was open.
    """

    error: ErrorCode
    producer_id: int = -1
    producer_epoch: int = -1
    ongoing_producer_id: int = -1
    ongoing_producer_epoch: int = -1


class EndTxnResult(NamedTuple):
    """Response to EndTxn; the pair is the next one to use (KIP-890 part 2), -1 below version 5 and beside an error."""

    error: ErrorCode
    producer_id: int = -1
    producer_epoch: int = -1


Response = TypeVar("Response", bound=ErrorCode | InitProducerIdResult | EndTxnResult)


class CoordinatorDecision(NamedTuple, Generic[Response]):
    """The response to send once `transition` (if any) is in the log."""

    response: Response
    transition: Transition | None = None


APPEND_ERRORS: Mapping[ErrorCode, ErrorCode] = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
}


def client_error_of_append(error: ErrorCode) -> ErrorCode:
    """Return the error for a client whose append to `__transaction_state` failed with `error`."""
    return APPEND_ERRORS.get(error, error)


def needs_new_producer_id(metadata: TransactionMetadata | None) -> bool:
    """Return whether a decision about this transactional id may have to give it a fresh producer id."""
    if metadata is None:
        return True
    epoch = metadata.next_producer_epoch if metadata.has_dual_identity else metadata.producer_epoch
    return epoch >= LAST_USABLE_EPOCH


# --- InitProducerId -------------------------------------------------------------------------------------------------


class InitProducerIdRequest(NamedTuple):
    """The fields of InitProducerId v6; `expected` is the pair that the client thinks it holds (KIP-360) or (-1, -1)."""

    timeout_ms: int
    expected: ProducerPair = NO_PAIR
    enable_2pc: bool = False
    keep_prepared: bool = False

    @property
    def stored_timeout_ms(self) -> int:
        """The timeout to store: a participant in two-phase commit never times out, whichever timeout it sent."""
        return TWO_PHASE_COMMIT_TIMEOUT_MS if self.enable_2pc else self.timeout_ms


def check_init_request(
    transactional_id: str | None, request: InitProducerIdRequest, rules: CoordinatorRules
) -> ErrorCode:
    """Run the checks that need no metadata of the id, which precede even the lookup of its coordinator."""
    expected_pid, expected_epoch = request.expected
    if (expected_pid == NO_PRODUCER_ID) != (expected_epoch == NO_PRODUCER_EPOCH):
        return ErrorCode.invalid_request
    if transactional_id is None:
        return NO_ERROR
    if not transactional_id:
        return ErrorCode.invalid_request
    if request.enable_2pc and not rules.two_phase_commit_enabled:
        return ErrorCode.transactional_id_authorization_failed
    if request.keep_prepared and (error := _keep_error(request, rules)) is not NO_ERROR:
        return error
    if not request.enable_2pc and not 0 < request.timeout_ms <= rules.max_timeout_ms:
        return ErrorCode.invalid_transaction_timeout
    return NO_ERROR


def _keep_error(request: InitProducerIdRequest, rules: CoordinatorRules) -> ErrorCode:
    if rules.keep_prepared is KeepPrepared.REFUSED:
        return ErrorCode.unsupported_version
    if rules.keep_prepared_excludes_expected_pair and request.expected != NO_PAIR:
        return ErrorCode.invalid_request
    if rules.keep_prepared_needs_2pc and not request.enable_2pc:
        return ErrorCode.invalid_request
    return NO_ERROR


def decide_init_producer_id(
    transactional_id: str,
    metadata: TransactionMetadata | None,
    request: InitProducerIdRequest,
    rules: CoordinatorRules,
    *,
    new_producer_id: int,
    now_ms: int,
) -> CoordinatorDecision[InitProducerIdResult]:
    """Decide InitProducerId for an id of this coordinator.

    `new_producer_id` is used only if `needs_new_producer_id`.
    """
    if metadata is None:
        metadata = transitions.new_transactional_id(
            transactional_id, new_producer_id, request.stored_timeout_ms, now_ms
        )
    if metadata.pending_state is not None:
        return _init_refused(ErrorCode.concurrent_transactions)
    if request.expected != NO_PAIR and not _is_expected_pair_valid(metadata, request.expected):
        return _init_refused(ErrorCode.producer_fenced)
    if metadata.state in PREPARE_STATES:
        return _init_refused(ErrorCode.concurrent_transactions)
    if metadata.state is not ONGOING:
        return _initialise(metadata, request, rules, new_producer_id, now_ms)
    if request.keep_prepared and (metadata.is_two_phase_commit or not rules.keep_prepared_needs_2pc):
        return _keep(metadata, request, rules, new_producer_id, now_ms)
    if rules.init_fences_before_it_aborts:
        abort = _server_abort(metadata, rules, new_producer_id, now_ms)
    else:
        abort = transitions.ended(metadata, commit=False, now_ms=now_ms)
    return CoordinatorDecision(InitProducerIdResult(ErrorCode.concurrent_transactions), abort)


def _init_refused(error: ErrorCode) -> CoordinatorDecision[InitProducerIdResult]:
    return CoordinatorDecision(InitProducerIdResult(error))


def _is_expected_pair_valid(metadata: TransactionMetadata, expected: ProducerPair) -> bool:
    if metadata.has_dual_identity:  # the holder of the ongoing pair, and of every earlier client pair, is fenced
        return expected == metadata.client_pair
    if metadata.producer_epoch == NO_PRODUCER_EPOCH or expected.producer_id == metadata.producer_id:
        return True
    # the response that rotated the producer id was lost: the retry still names the previous one
    return expected.producer_id == metadata.previous_producer_id and expected.producer_epoch >= LAST_USABLE_EPOCH


def _keep(
    metadata: TransactionMetadata,
    request: InitProducerIdRequest,
    rules: CoordinatorRules,
    new_producer_id: int,
    now_ms: int,
) -> CoordinatorDecision[InitProducerIdResult]:
    if rules.keep_prepared is KeepPrepared.SAME_PAIR:
        pair = metadata.producer_pair
        return CoordinatorDecision(InitProducerIdResult(NO_ERROR, *pair, *pair))
    transition = transitions.kept(
        metadata,
        timeout_ms=request.stored_timeout_ms,
        new_producer_id=new_producer_id,
        now_ms=now_ms,
        reaches_last_epoch=rules.recovering_client_reaches_last_epoch,
    )
    client, ongoing = transition.after.client_pair, transition.after.producer_pair
    return CoordinatorDecision(InitProducerIdResult(NO_ERROR, *client, *ongoing), transition)


def _initialise(
    metadata: TransactionMetadata,
    request: InitProducerIdRequest,
    rules: CoordinatorRules,
    new_producer_id: int,
    now_ms: int,
) -> CoordinatorDecision[InitProducerIdResult]:
    pid, epoch = metadata.producer_pair
    is_claimed = request.expected != NO_PAIR
    is_current = epoch in (NO_PRODUCER_EPOCH, request.expected.producer_epoch)
    last, previous = (epoch if is_claimed else NO_PRODUCER_EPOCH), NO_PRODUCER_ID
    if not is_claimed or is_current:
        pair = ProducerPair(pid, epoch + 1)
        if metadata.producer_pair.is_exhausted:
            pair, previous = ProducerPair(new_producer_id, 0), pid
    elif metadata.producer_pair.is_exhausted and rules.exhausted_init_retry_fails:
        return _init_refused(ErrorCode.unknown_server_error)
    elif request.expected.producer_epoch == metadata.last_producer_epoch:
        pair, last = metadata.producer_pair, metadata.last_producer_epoch
    else:
        return _init_refused(ErrorCode.producer_fenced)
    transition = transitions.initialised(
        metadata,
        pair,
        last_producer_epoch=last,
        previous_producer_id=previous,
        timeout_ms=request.stored_timeout_ms,
        now_ms=now_ms,
        start_timestamp_ms=NO_TIMESTAMP_MS if rules.init_forgets_start_time else metadata.start_timestamp_ms,
    )
    return CoordinatorDecision(InitProducerIdResult(NO_ERROR, *pair), transition)


def decide_next_epoch(
    transactional_id: str,
    metadata: TransactionMetadata | None,
    producer_epoch: int,
    *,
    new_producer_id: int,
    now_ms: int,
) -> Transition | None:
    """Decide that the next InitProducerId of an id returns this epoch, for tests; None while a transaction is open.

    The id is left as if its producer had used the previous epoch. A new producer id has no such epoch for 0.
    """
    if metadata is None:
        metadata = transitions.new_transactional_id(transactional_id, new_producer_id, _TIMEOUT_MS, now_ms)
    elif metadata.pending_state is not None or metadata.state in _OPEN_STATES:
        return None
    pair = ProducerPair(metadata.producer_id, producer_epoch - 1)
    return transitions.initialised(
        metadata, pair, last_producer_epoch=NO_PRODUCER_EPOCH, timeout_ms=metadata.timeout_ms, now_ms=now_ms
    )


_OPEN_STATES: Final = PREPARE_STATES | {TransactionState.ONGOING}
_TIMEOUT_MS: Final = 60_000
"""The timeout of an id before its first InitProducerId, which replaces it; the default of Kafka's producers."""


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


def _server_abort(
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
    return _server_abort(metadata, rules, new_producer_id, now_ms)


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


# --- responses to WriteTxnMarkers -----------------------------------------------------------------------------------


class MarkerReaction(Enum):
    """The coordinator's reaction to a leader's response, for one partition of a transaction that is being ended."""

    ACKNOWLEDGED = auto()  # the marker is written: the partition leaves the transaction
    DROPPED = auto()  # the partition can never take a marker: it leaves the transaction as well
    RETRY = auto()
    CANCEL = auto()  # a newer coordinator or producer is active: stop all markers, the id stays in its Prepare state


RETRY: Final = MarkerReaction.RETRY
CANCEL: Final = MarkerReaction.CANCEL
"""Module-level names, which are faster to look up (see `error_codes.py`)."""

REACTIONS: Mapping[ErrorCode | None, MarkerReaction] = {
    NO_ERROR: MarkerReaction.ACKNOWLEDGED,
    ErrorCode.unknown_topic_or_partition: MarkerReaction.RETRY,
    ErrorCode.not_leader_or_follower: MarkerReaction.RETRY,
    ErrorCode.request_timed_out: MarkerReaction.RETRY,
    ErrorCode.not_enough_replicas: MarkerReaction.RETRY,
    ErrorCode.not_enough_replicas_after_append: MarkerReaction.RETRY,
    ErrorCode.kafka_storage_error: MarkerReaction.RETRY,
    ErrorCode.invalid_producer_epoch: MarkerReaction.CANCEL,
    ErrorCode.transaction_coordinator_fenced: MarkerReaction.CANCEL,
    ErrorCode.unsupported_for_message_format: MarkerReaction.DROPPED,
    ErrorCode.unsupported_version: MarkerReaction.DROPPED,
    None: MarkerReaction.DROPPED,  # the topic was deleted: it has no leader
}


def reaction_to(response: ErrorCode | None) -> MarkerReaction:
    """Return the reaction to a leader's response. Raises RuntimeError on an error that no leader may send."""
    reaction = REACTIONS.get(response)
    if reaction is None:
        raise RuntimeError(f"a partition leader responded to a transaction marker with {response!r}")
    return reaction
