"""The change of a transactional id's metadata by each step, epoch bumps included; `coordinator.py` decides the step.

Every step has two phases: it is pending while its record is appended, and applied once the record is in the log (or
rolled back if the append fails). Markers carry the producer pair of a Prepare record.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from dualwrite.broker_emulator.config import MAX_EPOCH, TWO_PHASE_COMMIT_TIMEOUT_MS
from dualwrite.broker_emulator.topics.topics import TopicPartition
from dualwrite.broker_emulator.transactions.metadata import (
    NO_PAIR,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP_MS,
    ProducerPair,
    TransactionMetadata,
    copier,
)
from dualwrite.broker_emulator.transactions.states import (
    COMPLETE_STATES,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARE_STATES,
    VALID_PREVIOUS_STATES,
    TransactionState,
)

_COMPLETION_OF = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}

_NO_PARTITIONS: frozenset[TopicPartition] = frozenset()
_ENDING_STATES = PREPARE_STATES | COMPLETE_STATES

_with_pending_state = copier("pending_state")
_with_topic_partitions = copier("topic_partitions")

_STEP = ("state", "last_update_timestamp_ms", "pending_state")
"""The fields that every step changes. The pending state is that of the next automatic step, if any."""

# the steps of every transaction, for which `_replace` takes too long (see `copier`)
_after_adding = copier(
    *_STEP, "previous_producer_id", "topic_partitions", "start_timestamp_ms", "client_transaction_version"
)
_after_decision = copier(*_STEP, "previous_producer_id", "client_transaction_version")
_after_decision_with_bump = copier(
    *_STEP,
    "producer_epoch",
    "last_producer_epoch",
    "previous_producer_id",
    "next_producer_id",
    "next_producer_epoch",
    "start_timestamp_ms",
    "client_transaction_version",
)
_after_completion = copier(
    *_STEP,
    "producer_id",
    "producer_epoch",
    "previous_producer_id",
    "next_producer_id",
    "next_producer_epoch",
    "topic_partitions",
)


class Transition(NamedTuple):
    """One step of one id: its metadata while the record is appended, afterwards, and if the append fails."""

    during: TransactionMetadata
    after: TransactionMetadata
    on_failure: TransactionMetadata | None  # None: the id was new and is forgotten


def _transition(
    before: TransactionMetadata, after: TransactionMetadata, on_failure: TransactionMetadata | None = None
) -> Transition:
    """Return the step from `before` to `after`. Raises RuntimeError for an invalid step."""
    state = after.state
    if before.state not in VALID_PREVIOUS_STATES[state]:
        raise RuntimeError(f"{before.transactional_id!r} cannot go from {before.state.label} to {state.label}")
    if state in _ENDING_STATES and after.start_timestamp_ms == NO_TIMESTAMP_MS:
        raise RuntimeError(f"{before.transactional_id!r} would be {state.label} without ever having been started")
    return Transition(_with_pending_state(before, state), after, on_failure or before)


def new_transactional_id(transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    """Return the metadata of a new id; its epoch is -1 until its first record is in the log."""
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=NO_PRODUCER_EPOCH,
        timeout_ms=timeout_ms,
        last_update_timestamp_ms=now_ms,
    )


def loaded(metadata: TransactionMetadata) -> TransactionMetadata:
    """Return the id as a new coordinator loads it: a decided transaction has its completion pending."""
    return metadata._replace(pending_state=_COMPLETION_OF.get(metadata.state))


def initialised(
    before: TransactionMetadata,
    pair: ProducerPair,
    *,
    last_producer_epoch: int,
    previous_producer_id: int = NO_PRODUCER_ID,
    timeout_ms: int,
    now_ms: int,
    start_timestamp_ms: int = NO_TIMESTAMP_MS,
) -> Transition:
    """Set the id to Empty under `pair`: InitProducerId without an open transaction."""
    after = before._replace(
        state=TransactionState.EMPTY,
        last_update_timestamp_ms=now_ms,
        pending_state=None,
        producer_id=pair.producer_id,
        producer_epoch=pair.producer_epoch,
        last_producer_epoch=last_producer_epoch,
        previous_producer_id=previous_producer_id,
        timeout_ms=timeout_ms,
        topic_partitions=frozenset(),
        start_timestamp_ms=start_timestamp_ms,
    )
    transition = _transition(before, after)
    return transition._replace(on_failure=None) if before.producer_epoch == NO_PRODUCER_EPOCH else transition


def kept(
    before: TransactionMetadata,
    *,
    timeout_ms: int,
    new_producer_id: int,
    now_ms: int,
    reaches_last_epoch: bool = True,
) -> Transition:
    """Keep the prepared transaction and bump only the client pair: InitProducerId with keepPreparedTxn (KIP-939).

    The KIP lets a recovering client hold epoch 32767, but not as the successor of the open transaction's own pair,
    since that is the markers' epoch. A transaction without a timeout keeps none, whichever timeout the recovering
    client sends. Without `reaches_last_epoch`, no client gets 32767.
    """
    client = before.client_pair
    may_be_last = before.has_dual_identity and reaches_last_epoch
    limit_reached = client.producer_epoch == MAX_EPOCH if may_be_last else client.is_exhausted
    next_pair = ProducerPair(new_producer_id, 0) if limit_reached else _bumped(client)
    after = before._replace(
        state=ONGOING,
        last_update_timestamp_ms=now_ms,
        pending_state=None,
        next_producer_id=next_pair.producer_id,
        next_producer_epoch=next_pair.producer_epoch,
        timeout_ms=TWO_PHASE_COMMIT_TIMEOUT_MS if before.is_two_phase_commit else timeout_ms,
    )
    return _transition(before, after)


def added(
    before: TransactionMetadata, partitions: Collection[TopicPartition], *, transaction_version: int, now_ms: int
) -> Transition:
    """Add partitions to the transaction, which opens with the first of them."""
    after = _after_adding(
        before,
        state=ONGOING,
        last_update_timestamp_ms=now_ms,
        pending_state=None,
        previous_producer_id=NO_PRODUCER_ID,
        topic_partitions=before.topic_partitions.union(partitions),
        start_timestamp_ms=before.start_timestamp_ms if before.state is ONGOING else now_ms,
        client_transaction_version=transaction_version,
    )
    return _transition(before, after)


def ended(before: TransactionMetadata, *, commit: bool, now_ms: int) -> Transition:
    """Decide the transaction under the same pair: EndTxn below version 5."""
    state = PREPARE_COMMIT if commit else PREPARE_ABORT
    after = _after_decision(
        before,
        state=state,
        last_update_timestamp_ms=now_ms,
        pending_state=_COMPLETION_OF[state],
        previous_producer_id=NO_PRODUCER_ID,
        client_transaction_version=0,
    )
    return _transition(before, after)


def ended_with_bump(
    before: TransactionMetadata,
    *,
    commit: bool,
    new_producer_id: int,
    now_ms: int,
    rotates: bool = True,
    client_is_previous: bool = True,
) -> Transition:
    """Decide the transaction under transaction version 2: bump the epoch, for the markers and for the next transaction.

    A recovered transaction completes under a pair beyond the client's, not under the client's own: a delayed EndTxn
    with the pair that ended it must find a later pair (KIP-939).
    """
    client = before.client_pair
    next_pair = _bumped(client) if before.has_dual_identity else NO_PAIR
    if client.is_exhausted and rotates:
        next_pair = ProducerPair(new_producer_id, 0)
    changed = client_is_previous and client.producer_id != before.producer_id
    state = PREPARE_COMMIT if commit else PREPARE_ABORT
    after = _after_decision_with_bump(
        before,
        state=state,
        last_update_timestamp_ms=now_ms,
        pending_state=_COMPLETION_OF[state],
        producer_epoch=before.producer_epoch + 1,
        last_producer_epoch=client.producer_epoch,
        previous_producer_id=client.producer_id if changed else NO_PRODUCER_ID,
        next_producer_id=next_pair.producer_id,
        next_producer_epoch=next_pair.producer_epoch,
        start_timestamp_ms=before.start_timestamp_ms if before.state is ONGOING else now_ms,
        client_transaction_version=2,
    )
    return _transition(before, after)


def fenced_and_aborted(before: TransactionMetadata, now_ms: int) -> Transition:
    """Abort by the server below transaction version 2: bump the epoch to fence the producer; the markers carry it.

    If the append fails, the bumped epoch stays in memory and is not bumped again (KAFKA-9666). An id that has
    reached the last epoch is aborted at that epoch (KAFKA-20090).
    """
    is_bumped = before.has_failed_epoch_fence or before.producer_epoch == MAX_EPOCH
    fenced = before._replace(
        producer_epoch=before.producer_epoch if is_bumped else before.producer_epoch + 1,
        last_producer_epoch=NO_PRODUCER_EPOCH,
        previous_producer_id=NO_PRODUCER_ID,
        has_failed_epoch_fence=True,
    )
    after = fenced._replace(
        state=PREPARE_ABORT,
        last_update_timestamp_ms=now_ms,
        pending_state=_COMPLETION_OF[PREPARE_ABORT],
        has_failed_epoch_fence=False,
        client_transaction_version=0,
    )
    transition = _transition(fenced, after, on_failure=fenced)
    return transition._replace(during=before._replace(pending_state=TransactionState.PREPARE_EPOCH_FENCE))


def completed(before: TransactionMetadata, now_ms: int) -> Transition:
    """Complete the transaction once every marker is acknowledged; the next pair, if any, becomes the producer pair."""
    client_producer_id = (
        before.producer_id if before.previous_producer_id == NO_PRODUCER_ID else before.previous_producer_id
    )
    producer_id, producer_epoch = before.producer_id, before.producer_epoch
    if before.next_producer_id != NO_PRODUCER_ID:  # Kafka 4 writes a rotation without the epoch, which is then 0
        producer_id, producer_epoch = before.next_producer_id, max(before.next_producer_epoch, 0)
    after = _after_completion(
        before,
        state=_COMPLETION_OF[before.state],
        last_update_timestamp_ms=now_ms,
        pending_state=None,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        previous_producer_id=client_producer_id,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_PRODUCER_EPOCH,
        topic_partitions=_NO_PARTITIONS,
    )
    return _transition(before, after)


def acknowledged(metadata: TransactionMetadata, topic_partitions: Collection[TopicPartition]) -> TransactionMetadata:
    """Remove partitions whose markers are acknowledged, only in memory."""
    return _with_topic_partitions(metadata, metadata.topic_partitions.difference(topic_partitions))


def _bumped(pair: ProducerPair) -> ProducerPair:
    return ProducerPair(pair.producer_id, pair.producer_epoch + 1)
