"""The state of the transaction coordinators: every field of every transactional id."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, TypeAlias

from dualwrite.broker_emulator.cluster.cluster import ClusterNode
from dualwrite.broker_emulator.control.endpoint import ControlledEmulator, Endpoint
from dualwrite.broker_emulator.control.errors import as_conflict, bad_request, not_found
from dualwrite.broker_emulator.control.shapes import AtLeast, AtMost, Limit
from dualwrite.broker_emulator.text import did_you_mean
from dualwrite.broker_emulator.transactions.metadata import LAST_USABLE_EPOCH, TransactionMetadata
from dualwrite.broker_emulator.transactions.states import PREPARE_STATES, STATE_BY_LABEL, TransactionState


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPartition:
    """A partition of a transaction."""

    topic: str
    partition: int
    is_marker_written: Annotated[bool, "While the transaction ends: whether this partition has its marker."]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionView:
    """One transactional id; unknown fields are null, as are those of a transaction while none is open."""

    transactional_id: str
    state: Annotated[str, "By Kafka's name, such as Ongoing."]
    pending_state: Annotated[str | None, "The next state, while it is not in the log yet."]
    producer_id: Annotated[int, "Of the open transaction; while it ends, that of its markers."]
    producer_epoch: int
    last_producer_epoch: int | None
    previous_producer_id: int | None
    next_producer_id: Annotated[int | None, "Recorded for the next transaction (KIP-890, KIP-939)."]
    next_producer_epoch: int | None
    client_transaction_version: int
    is_two_phase_commit: Annotated[bool, "Whether it takes part in two-phase commit and never times out (KIP-939)."]
    is_kept_prepared: Annotated[bool, "Whether a recovering client has taken the open transaction over (KIP-939)."]
    has_failed_epoch_fence: bool
    timeout_ms: int
    is_open: Annotated[bool, "Whether a transaction is open or still ending."]
    start_timestamp_ms: int | None
    last_update_timestamp_ms: int | None
    open_for_ms: Annotated[int | None, "By the broker's clock."]
    partitions: tuple[TransactionPartition, ...]
    coordinator: Annotated[int, "The node."]
    coordinator_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionList:
    """Transactional ids: those with an open transaction first, oldest first, then the others by id."""

    transactions: tuple[TransactionView, ...]
    total: Annotated[int, "How many there are in all, regardless of the limit."]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionQuery:
    """Selects transactional ids."""

    state: Annotated[str | None, "By Kafka's name."] = None
    open: Annotated[bool | None, "Only those with an open transaction, or only the others."] = None
    prefix: Annotated[str, "A prefix of the id."] = ""
    transactional_id: Annotated[str | None, "Only this id; 404 if it is unknown."] = None
    limit: Limit = 1000


_OPEN_STATES = PREPARE_STATES | {TransactionState.ONGOING}

_Known: TypeAlias = tuple[TransactionMetadata, ClusterNode]


def views(controlled: ControlledEmulator, query: TransactionQuery) -> TransactionList:
    """Return the view of the selected transactional ids."""
    now_ms = controlled.cluster.clock.now_ms()
    total = 0

    def matching() -> Iterator[_Known]:
        nonlocal total
        for node in controlled.cluster.living_nodes:
            for metadata in node.transactions.known_ids():
                if _matches(metadata, query):
                    total += 1
                    yield metadata, node

    shown = heapq.nsmallest(query.limit, matching(), key=_order)
    return TransactionList(transactions=tuple(_view(metadata, node, now_ms) for metadata, node in shown), total=total)


def _matches(metadata: TransactionMetadata, query: TransactionQuery) -> bool:
    return (
        (query.transactional_id is None or query.transactional_id == metadata.transactional_id)
        and metadata.transactional_id.startswith(query.prefix)
        and (query.state is None or query.state == metadata.state.label)
        and (query.open is None or query.open == _is_open(metadata))
    )


def _is_open(metadata: TransactionMetadata) -> bool:
    return metadata.state in _OPEN_STATES


def _order(known: _Known) -> tuple[bool, int, str]:
    metadata, _ = known
    is_open = _is_open(metadata)
    return not is_open, metadata.start_timestamp_ms if is_open else 0, metadata.transactional_id


def _view(metadata: TransactionMetadata, node: ClusterNode, now_ms: int) -> TransactionView:
    is_open = _is_open(metadata)
    progress = node.transactions.progress(metadata.transactional_id)

    def given(number: int) -> int | None:
        return None if number < 0 else number

    return TransactionView(
        transactional_id=metadata.transactional_id,
        state=metadata.state.label,
        pending_state=None if metadata.pending_state is None else metadata.pending_state.label,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        last_producer_epoch=given(metadata.last_producer_epoch),
        previous_producer_id=given(metadata.previous_producer_id),
        next_producer_id=given(metadata.next_producer_id),
        next_producer_epoch=given(metadata.next_producer_epoch),
        client_transaction_version=metadata.client_transaction_version,
        is_two_phase_commit=metadata.is_two_phase_commit,
        is_kept_prepared=metadata.has_dual_identity,
        has_failed_epoch_fence=metadata.has_failed_epoch_fence,
        timeout_ms=metadata.timeout_ms,
        is_open=is_open,
        start_timestamp_ms=given(metadata.start_timestamp_ms),
        last_update_timestamp_ms=given(metadata.last_update_timestamp_ms),
        open_for_ms=now_ms - metadata.start_timestamp_ms if is_open and metadata.start_timestamp_ms >= 0 else None,
        partitions=tuple(
            TransactionPartition(
                topic=topic, partition=partition, is_marker_written=(topic, partition) in progress.marked
            )
            for topic, partition in sorted(metadata.topic_partitions)
        ),
        coordinator=node.node_id,
        coordinator_epoch=progress.coordinator_epoch,
    )


async def list_all(controlled: ControlledEmulator, query: TransactionQuery) -> TransactionList:
    if query.state is not None and query.state not in STATE_BY_LABEL:
        hint = did_you_mean(query.state, STATE_BY_LABEL)
        raise bad_request(f"there is no transaction state {query.state!r}{hint}", STATE_BY_LABEL)
    found = views(controlled, query)
    if query.transactional_id is not None and not found.total:
        raise not_found(f"no living coordinator that has loaded its ids knows {query.transactional_id!r}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class NextEpoch:
    """The epoch that the next InitProducerId returns."""

    producer_epoch: Annotated[int, AtLeast(0), AtMost(LAST_USABLE_EPOCH)]
    transactional_id: Annotated[str | None, "Null: for every producer without one."] = None


async def set_next_epoch(controlled: ControlledEmulator, body: NextEpoch) -> NextEpoch:
    with as_conflict():
        await controlled.operations.set_next_epoch(body.producer_epoch, body.transactional_id)
    return body


ENDPOINTS = (
    Endpoint(
        "POST",
        "/v1/producer-epoch",
        set_next_epoch,
        "Set the epoch that the next InitProducerId returns",
        (HTTPStatus.CONFLICT,),
    ),
    Endpoint(
        "GET", "/v1/transactions", list_all, "Transactional ids with everything that is known", (HTTPStatus.NOT_FOUND,)
    ),
)
