"""Which nodes have a partition and which one leads it: leaders, reassignments, elections, coordinators."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

from dualwrite.broker_emulator.cluster.cluster import NO_LEADER, Partition
from dualwrite.broker_emulator.control.controlled import Controlled
from dualwrite.broker_emulator.control.endpoint import Endpoint
from dualwrite.broker_emulator.control.endpoints.nodes import find as find_node
from dualwrite.broker_emulator.control.endpoints.partitions import PartitionPath, PartitionView, find, view
from dualwrite.broker_emulator.control.errors import as_conflict, bad_request


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLeader:
    """The node that is to lead."""

    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewReplicas:
    """The nodes that are to have a copy."""

    replicas: Annotated[tuple[int, ...], "The preferred leader first."]


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedPartition:
    """A partition that another node leads now."""

    topic: str
    partition: int
    leader: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedList:
    """What an election has moved."""

    moved: tuple[MovedPartition, ...]


async def move_leader(controlled: Controlled, path: PartitionPath, body: NewLeader) -> PartitionView:
    partition = find(controlled, path)
    move(controlled, partition, body.node)
    return view(controlled, partition)


def move(controlled: Controlled, partition: Partition, node: int) -> None:
    """Let a node lead a partition. Raises ControlError where it cannot."""
    find_node(controlled, node)
    with as_conflict():
        controlled.operations.move_leader(partition, node)


async def reassign(controlled: Controlled, path: PartitionPath, body: NewReplicas) -> PartitionView:
    partition = find(controlled, path)
    for node in body.replicas:
        find_node(controlled, node)
    try:
        controlled.operations.reassign(partition, body.replicas)
    except ValueError as error:
        raise bad_request(f"'replicas': {error}") from None
    return view(controlled, partition)


async def cancel(controlled: Controlled, path: PartitionPath) -> PartitionView:
    partition = find(controlled, path)
    with as_conflict():
        controlled.operations.reassign(partition, None)
    return view(controlled, partition)


async def elect(controlled: Controlled) -> MovedList:
    operations = controlled.operations
    return MovedList(
        moved=tuple(
            MovedPartition(topic=topic, partition=index, leader=operations.partition(topic, index).leader_id)
            for topic, index in operations.elect_preferred_leaders()
        )
    )


_ONE = "/v1/topics/{topic}/partitions/{partition}"
_ERRORS = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorQuery:
    """Whose coordinator: a transactional id's or a group's."""

    transactional_id: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCoordinator:
    """The node that is to coordinate a transactional id or a group, and all others of the same internal partition."""

    node: int
    transactional_id: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorView:
    """A coordinator."""

    node: Annotated[int | None, "Null when none that could is alive."]
    topic: Annotated[str, "The internal topic."]
    partition: int
    coordinator_epoch: int


def _coordinator_partition(controlled: Controlled, transactional_id: str | None, group: str | None) -> Partition:
    try:
        return controlled.operations.coordinator_partition(transactional_id, group)
    except ValueError:
        raise bad_request("name either a 'transactional_id' or a 'group'", ["transactional_id", "group"]) from None


def _coordinator_view(partition: Partition) -> CoordinatorView:
    return CoordinatorView(
        node=None if partition.leader_id == NO_LEADER else partition.leader_id,
        topic=partition.topic.name,
        partition=partition.index,
        coordinator_epoch=partition.log.leader_epoch,
    )


async def show_coordinator(controlled: Controlled, query: CoordinatorQuery) -> CoordinatorView:
    return _coordinator_view(_coordinator_partition(controlled, query.transactional_id, query.group))


async def move_coordinator(controlled: Controlled, body: NewCoordinator) -> CoordinatorView:
    partition = _coordinator_partition(controlled, body.transactional_id, body.group)
    move(controlled, partition, body.node)
    return _coordinator_view(partition)


ENDPOINTS = (
    Endpoint("PUT", _ONE + "/leader", move_leader, "Let a node lead, under a new leader epoch", _ERRORS),
    Endpoint("PUT", _ONE + "/replicas", reassign, "Move the copies to other nodes", (HTTPStatus.NOT_FOUND,)),
    Endpoint("POST", _ONE + "/cancel-reassignment", cancel, "Give up a reassignment that is under way", _ERRORS),
    Endpoint("POST", "/v1/elect-preferred-leaders", elect, "Let the first replica of each partition lead again"),
    Endpoint("GET", "/v1/coordinators", show_coordinator, "Who coordinates a transactional id or a group"),
    Endpoint(
        "PUT",
        "/v1/coordinators",
        move_coordinator,
        "Let a node coordinate a transactional id or a group",
        (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT),
    ),
)
