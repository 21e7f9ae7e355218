"""The leaders and replicas of partitions: leaders, reassignments, elections, coordinators."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

from dualwrite.broker_emulator.cluster.topics import NO_LEADER, Partition
from dualwrite.broker_emulator.control.endpoint import ControlledEmulator, Endpoint
from dualwrite.broker_emulator.control.endpoints.nodes import find as find_node
from dualwrite.broker_emulator.control.endpoints.partitions import PartitionPath, PartitionView, find, view
from dualwrite.broker_emulator.control.errors import as_conflict, bad_request


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLeader:
    """The node that will lead."""

    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewReplicas:
    """The nodes that will have a replica."""

    replicas: Annotated[tuple[int, ...], "The preferred leader first."]


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedPartition:
    """A partition that has a new leader."""

    topic: str
    partition: int
    leader: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedList:
    """The partitions whose leader an election changed."""

    moved: tuple[MovedPartition, ...]


async def move_leader(controlled: ControlledEmulator, path: PartitionPath, body: NewLeader) -> PartitionView:
    partition = find(controlled, path)
    move(controlled, partition, body.node)
    return view(controlled, partition)


def move(controlled: ControlledEmulator, partition: Partition, node: int) -> None:
    """Make a node the leader of a partition. Raises ControlError if it cannot lead."""
    find_node(controlled, node)
    with as_conflict():
        controlled.operations.move_leader(partition, node)


async def reassign(controlled: ControlledEmulator, path: PartitionPath, body: NewReplicas) -> PartitionView:
    partition = find(controlled, path)
    for node in body.replicas:
        find_node(controlled, node)
    try:
        controlled.operations.reassign(partition, body.replicas)
    except ValueError as error:
        raise bad_request(f"'replicas': {error}") from None
    return view(controlled, partition)


async def cancel(controlled: ControlledEmulator, path: PartitionPath) -> PartitionView:
    partition = find(controlled, path)
    with as_conflict():
        controlled.operations.reassign(partition, None)
    return view(controlled, partition)


async def elect(controlled: ControlledEmulator) -> MovedList:
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
    """The transactional id or the group whose coordinator is requested."""

    transactional_id: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCoordinator:
    """The node that will coordinate this id or group, and all others of the same internal partition."""

    node: int
    transactional_id: str | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorView:
    """A coordinator."""

    node: Annotated[int | None, "Null while no node that could coordinate is alive."]
    topic: Annotated[str, "The internal topic."]
    partition: int
    coordinator_epoch: int


def _coordinator_partition(
    controlled: ControlledEmulator, transactional_id: str | None, group: str | None
) -> Partition:
    try:
        return controlled.operations.coordinator_partition(transactional_id, group)
    except ValueError:
        raise bad_request("give either a 'transactional_id' or a 'group'", ["transactional_id", "group"]) from None


def _coordinator_view(partition: Partition) -> CoordinatorView:
    return CoordinatorView(
        node=None if partition.leader_id == NO_LEADER else partition.leader_id,
        topic=partition.topic.name,
        partition=partition.index,
        coordinator_epoch=partition.log.leader_epoch,
    )


async def show_coordinator(controlled: ControlledEmulator, query: CoordinatorQuery) -> CoordinatorView:
    return _coordinator_view(_coordinator_partition(controlled, query.transactional_id, query.group))


async def move_coordinator(controlled: ControlledEmulator, body: NewCoordinator) -> CoordinatorView:
    partition = _coordinator_partition(controlled, body.transactional_id, body.group)
    move(controlled, partition, body.node)
    return _coordinator_view(partition)


ENDPOINTS = (
    Endpoint("PUT", _ONE + "/leader", move_leader, "Make a node the leader, with a new leader epoch", _ERRORS),
    Endpoint("PUT", _ONE + "/replicas", reassign, "Reassign the replicas to other nodes", (HTTPStatus.NOT_FOUND,)),
    Endpoint("POST", _ONE + "/cancel-reassignment", cancel, "Cancel a reassignment that is in progress", _ERRORS),
    Endpoint("POST", "/v1/elect-preferred-leaders", elect, "Elect the preferred leader of each partition"),
    Endpoint("GET", "/v1/coordinators", show_coordinator, "The coordinator of a transactional id or a group"),
    Endpoint(
        "PUT",
        "/v1/coordinators",
        move_coordinator,
        "Make a node the coordinator of a transactional id or a group",
        (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT),
    ),
)
