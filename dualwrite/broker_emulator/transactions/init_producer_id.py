"""The coordinator's decision about InitProducerId: a pure function, as those of `coordinator.py` are."""

from __future__ import annotations

from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.config import TWO_PHASE_COMMIT_TIMEOUT_MS
from dualwrite.broker_emulator.error_codes import NO_ERROR
from dualwrite.broker_emulator.profiles import KeepPrepared
from dualwrite.broker_emulator.transactions import transitions
from dualwrite.broker_emulator.transactions.coordinator import CoordinatorDecision, server_abort
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
from dualwrite.broker_emulator.transactions.states import ONGOING, PREPARE_STATES, TransactionState
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
        abort = server_abort(metadata, rules, new_producer_id, now_ms)
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
