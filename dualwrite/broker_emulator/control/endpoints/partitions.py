"""Partitions: their logs, producers and open transactions, and holding back their replication."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

from dualwrite.broker_emulator.cluster.topics import NO_LEADER, Partition
from dualwrite.broker_emulator.control.endpoint import ControlledEmulator, Endpoint
from dualwrite.broker_emulator.control.endpoints.topics import find as find_topic
from dualwrite.broker_emulator.control.errors import ControlError, as_conflict, bad_request, conflict, not_found
from dualwrite.broker_emulator.control.shapes import AtLeast, Limit, first
from dualwrite.broker_emulator.log.results import ProducerDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerView:
    """A partition's knowledge of a producer; null for unknown values."""

    producer_id: int
    producer_epoch: int
    last_sequence: int | None
    last_timestamp_ms: int | None
    coordinator_epoch: Annotated[int | None, "Of the last marker."]
    open_transaction_first_offset: Annotated[int | None, "The first offset of its open transaction on this partition."]
    transactional_id: Annotated[str | None, "The owner of the producer id, if a coordinator knows it."]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """One partition."""

    topic: str
    partition: int
    leader: Annotated[int | None, "Null while no node with a replica is alive."]
    leader_epoch: int
    replicas: Annotated[tuple[int, ...], "The preferred leader first."]
    adding_replicas: Annotated[tuple[int, ...], "The nodes that a reassignment adds and that have not caught up yet."]
    removing_replicas: Annotated[tuple[int, ...], "The nodes that a reassignment will remove."]
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: Annotated[int, "Consumers with read_committed read up to here."]
    size_bytes: int
    is_replication_held: bool
    open_transactions: Annotated[tuple[ProducerView, ...], "Producers with an open transaction here."]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDetails:
    """One partition with all its producers."""

    partition: PartitionView
    producers: tuple[ProducerView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionList:
    """Partitions, by topic."""

    partitions: tuple[PartitionView, ...]
    total: Annotated[int, "How many there are in all, regardless of the limit."]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionQuery:
    """Selects partitions."""

    topic: str | None = None
    internal: Annotated[bool, "Whether internal topics are included."] = False
    limit: Limit = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPath:
    """A partition of a topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationRelease:
    """The offset up to which followers may fetch."""

    up_to: Annotated[
        Annotated[int, AtLeast(0)] | None,
        "The first offset that stays unreplicated; null: none.",
    ] = None


def views(controlled: ControlledEmulator, query: PartitionQuery) -> PartitionList:
    """Return the view of the selected partitions."""
    shown, total = first(_partitions(controlled, query), query.limit)
    owners = _Owners(controlled)
    return PartitionList(partitions=tuple(_view(partition, owners) for partition in shown), total=total)


def _partitions(controlled: ControlledEmulator, query: PartitionQuery) -> Iterator[Partition]:
    topics = controlled.cluster.topics
    for name in sorted(topics):
        if query.topic in (None, name) and (query.internal or query.topic == name or not topics[name].is_internal):
            yield from topics[name].partitions


class _Owners:
    """Transactional ids by producer id, collected at the first use."""

    def __init__(self, controlled: ControlledEmulator) -> None:
        self._controlled = controlled
        self._by_producer_id: dict[int, str] | None = None

    def of(self, producer_id: int) -> str | None:
        if self._by_producer_id is None:
            self._by_producer_id = {
                metadata.producer_id: metadata.transactional_id
                for node in self._controlled.cluster.living_nodes
                for metadata in node.transactions.known_ids()
            }
        return self._by_producer_id.get(producer_id)


def _view(partition: Partition, owners: _Owners) -> PartitionView:
    log = partition.log
    is_stable = log.last_stable_offset == log.log_end_offset  # then no producer has an open transaction
    producers = () if is_stable else tuple(_producers(partition, owners))
    return PartitionView(
        topic=partition.topic.name,
        partition=partition.index,
        leader=None if partition.leader_id == NO_LEADER else partition.leader_id,
        leader_epoch=log.leader_epoch,
        replicas=tuple(partition.replicas),
        adding_replicas=tuple(partition.adding),
        removing_replicas=tuple(partition.removing),
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        size_bytes=log.size_bytes,
        is_replication_held=log.is_high_watermark_held,
        open_transactions=tuple(each for each in producers if each.open_transaction_first_offset is not None),
    )


def view(controlled: ControlledEmulator, partition: Partition) -> PartitionView:
    """Return the view of a partition."""
    return _view(partition, _Owners(controlled))


def _producers(partition: Partition, owners: _Owners) -> Iterator[ProducerView]:
    for producer in partition.log.producers():
        yield _producer_view(producer, owners.of(producer.producer_id))


def _producer_view(producer: ProducerDescription, owner: str | None) -> ProducerView:
    def known(number: int) -> int | None:
        return None if number < 0 else number

    return ProducerView(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        last_sequence=known(producer.last_sequence),
        last_timestamp_ms=known(producer.last_timestamp),
        coordinator_epoch=known(producer.coordinator_epoch),
        open_transaction_first_offset=known(producer.current_txn_start_offset),
        transactional_id=owner,
    )


async def list_all(controlled: ControlledEmulator, query: PartitionQuery) -> PartitionList:
    if query.topic is not None:
        find_topic(controlled, query.topic)
    return views(controlled, query)


def find(controlled: ControlledEmulator, path: PartitionPath) -> Partition:
    """Return a partition. Raises ControlError if it does not exist."""
    partitions = find_topic(controlled, path.topic).partitions
    if not 0 <= path.partition < len(partitions):
        raise not_found(f"{path.topic} has no partition {path.partition}", map(str, range(len(partitions))))
    return partitions[path.partition]


async def show(controlled: ControlledEmulator, path: PartitionPath) -> PartitionDetails:
    partition, owners = find(controlled, path), _Owners(controlled)
    return PartitionDetails(partition=_view(partition, owners), producers=tuple(_producers(partition, owners)))


async def hold_replication(controlled: ControlledEmulator, path: PartitionPath) -> PartitionView:
    partition = find(controlled, path)
    with as_conflict():
        controlled.operations.hold_replication(path.topic, path.partition)
    return view(controlled, partition)


async def release_replication(
    controlled: ControlledEmulator, path: PartitionPath, body: ReplicationRelease
) -> PartitionView:
    partition = find(controlled, path)
    if not partition.log.is_high_watermark_held:
        raise conflict(f"the replication of {path.topic}-{path.partition} is not held")
    try:
        partition.log.release_high_watermark(body.up_to)
    except ValueError as error:
        raise _wrong_offset(error) from None
    return view(controlled, partition)


def _wrong_offset(error: ValueError) -> ControlError:
    return bad_request(f"'up_to': {error}")


_ONE = "/v1/topics/{topic}/partitions/{partition}"
_MISSING = (HTTPStatus.NOT_FOUND,)
_ERRORS = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)

ENDPOINTS = (
    Endpoint("GET", "/v1/partitions", list_all, "Partitions with their offsets and open transactions", _MISSING),
    Endpoint("GET", _ONE, show, "One partition with all its producers", _MISSING),
    Endpoint("POST", _ONE + "/hold-replication", hold_replication, "Keep followers from fetching", _ERRORS),
    Endpoint(
        "POST",
        _ONE + "/release-replication",
        release_replication,
        "Let followers fetch again, everything or up to an offset",
        _ERRORS,
    ),
)
