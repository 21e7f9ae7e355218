"""Topics: list, create, grow, delete; and partitions: their logs, producers, open transactions, held replication."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

from dualwrite.broker_emulator.control.endpoint import ControlledEmulator, Endpoint
from dualwrite.broker_emulator.control.errors import ControlError, as_conflict, bad_request, conflict, not_found
from dualwrite.broker_emulator.control.shapes import AtLeast, AtMost, Limit, first
from dualwrite.broker_emulator.log.results import ProducerDescription
from dualwrite.broker_emulator.text import did_you_mean
from dualwrite.broker_emulator.topics.topics import NO_LEADER, Partition, Topic, why_not_a_topic_name


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A new topic. Without a replication factor every node has a replica."""

    name: str
    partitions: Annotated[int, AtLeast(1), AtMost(10_000)] = 1
    replication_factor: Annotated[int, AtLeast(1)] | None = None
    configs: Annotated[dict[str, str] | None, "By Kafka's names, such as cleanup.policy."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCount:
    """The new number of partitions of a topic."""

    count: Annotated[int, AtMost(10_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """A topic."""

    name: str
    topic_id: str
    partitions: int
    is_internal: bool
    configs: Annotated[dict[str, str | None], "The topic's own settings."]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicList:
    """All topics, by name."""

    topics: tuple[TopicView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPath:
    """A topic by its name."""

    topic: str


def _topic_view(topic: Topic) -> TopicView:
    return TopicView(
        name=topic.name,
        topic_id=str(topic.topic_id),
        partitions=len(topic.partitions),
        is_internal=topic.is_internal,
        configs=dict(topic.configs),
    )


def find_topic(controlled: ControlledEmulator, name: str) -> Topic:
    """Return a topic. Raises ControlError if it does not exist."""
    topics = controlled.cluster.topics
    if name not in topics:
        known = sorted(topic.name for topic in topics.values() if not topic.is_internal)
        raise not_found(f"there is no topic {name!r}{did_you_mean(name, known)}", known)
    return topics[name]


async def list_topics(controlled: ControlledEmulator) -> TopicList:
    topics = controlled.cluster.topics
    return TopicList(topics=tuple(_topic_view(topics[name]) for name in sorted(topics)))


async def show_topic(controlled: ControlledEmulator, path: TopicPath) -> TopicView:
    return _topic_view(find_topic(controlled, path.topic))


async def create(controlled: ControlledEmulator, body: NewTopic) -> TopicView:
    problem = why_not_a_topic_name(body.name)
    if problem is not None:
        raise bad_request(problem)
    cluster = controlled.cluster
    async with cluster.changes:
        if body.name in cluster.topics:
            raise conflict(f"there is already a topic {body.name!r}")
        creation = cluster.topic_creation(
            body.name, body.partitions, configs=body.configs, replication_factor=body.replication_factor
        )
        try:
            return _topic_view(await cluster.changes.make(creation))
        except ValueError as error:
            raise bad_request(str(error)) from None


async def create_partitions(controlled: ControlledEmulator, path: TopicPath, body: NewCount) -> TopicView:
    changes = controlled.cluster.changes
    async with changes:
        topic = find_topic(controlled, path.topic)
        with as_conflict():
            await changes.make(controlled.operations.partition_creation(topic.name, body.count))
        return _topic_view(topic)


async def delete(controlled: ControlledEmulator, path: TopicPath) -> TopicView:
    changes = controlled.cluster.changes
    async with changes:
        topic = find_topic(controlled, path.topic)
        if topic.is_internal:
            raise conflict(f"{topic.name} belongs to the coordinators and cannot be deleted")
        view = _topic_view(topic)
        await changes.make(controlled.cluster.topic_deletion(topic.name))
        return view


_TOPIC = "/v1/topics/{topic}"
_ERRORS = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)


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


def partition_views(controlled: ControlledEmulator, query: PartitionQuery) -> PartitionList:
    """Return the view of the selected partitions."""
    shown, total = first(_partitions(controlled, query), query.limit)
    owners = _Owners(controlled)
    return PartitionList(partitions=tuple(_partition_view(partition, owners) for partition in shown), total=total)


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


def _partition_view(partition: Partition, owners: _Owners) -> PartitionView:
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


def partition_view(controlled: ControlledEmulator, partition: Partition) -> PartitionView:
    """Return the view of a partition."""
    return _partition_view(partition, _Owners(controlled))


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


async def list_partitions(controlled: ControlledEmulator, query: PartitionQuery) -> PartitionList:
    if query.topic is not None:
        find_topic(controlled, query.topic)
    return partition_views(controlled, query)


def find_partition(controlled: ControlledEmulator, path: PartitionPath) -> Partition:
    """Return a partition. Raises ControlError if it does not exist."""
    partitions = find_topic(controlled, path.topic).partitions
    if not 0 <= path.partition < len(partitions):
        raise not_found(f"{path.topic} has no partition {path.partition}", map(str, range(len(partitions))))
    return partitions[path.partition]


async def show_partition(controlled: ControlledEmulator, path: PartitionPath) -> PartitionDetails:
    partition, owners = find_partition(controlled, path), _Owners(controlled)
    return PartitionDetails(
        partition=_partition_view(partition, owners), producers=tuple(_producers(partition, owners))
    )


async def hold_replication(controlled: ControlledEmulator, path: PartitionPath) -> PartitionView:
    partition = find_partition(controlled, path)
    with as_conflict():
        controlled.operations.hold_replication(path.topic, path.partition)
    return partition_view(controlled, partition)


async def release_replication(
    controlled: ControlledEmulator, path: PartitionPath, body: ReplicationRelease
) -> PartitionView:
    partition = find_partition(controlled, path)
    if not partition.log.is_high_watermark_held:
        raise conflict(f"the replication of {path.topic}-{path.partition} is not held")
    try:
        partition.log.release_high_watermark(body.up_to)
    except ValueError as error:
        raise _wrong_offset(error) from None
    return partition_view(controlled, partition)


def _wrong_offset(error: ValueError) -> ControlError:
    return bad_request(f"'up_to': {error}")


_PARTITION = "/v1/topics/{topic}/partitions/{partition}"
_MISSING = (HTTPStatus.NOT_FOUND,)


ENDPOINTS = (
    Endpoint("GET", "/v1/topics", list_topics, "All topics"),
    Endpoint("POST", "/v1/topics", create, "Create a topic", (HTTPStatus.CONFLICT,), HTTPStatus.CREATED),
    Endpoint("GET", _TOPIC, show_topic, "One topic", (HTTPStatus.NOT_FOUND,)),
    Endpoint("PUT", _TOPIC + "/partitions", create_partitions, "Add partitions to a topic", _ERRORS),
    Endpoint("DELETE", _TOPIC, delete, "Delete a topic", _ERRORS),
    Endpoint("GET", "/v1/partitions", list_partitions, "Partitions with their offsets and open transactions", _MISSING),
    Endpoint("GET", _PARTITION, show_partition, "One partition with all its producers", _MISSING),
    Endpoint("POST", _PARTITION + "/hold-replication", hold_replication, "Keep followers from fetching", _ERRORS),
    Endpoint(
        "POST",
        _PARTITION + "/release-replication",
        release_replication,
        "Let followers fetch again, everything or up to an offset",
        _ERRORS,
    ),
)
