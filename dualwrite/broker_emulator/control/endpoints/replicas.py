"""Where the copies of a partition are, and which of them leads: reassignments and elections."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

from dualwrite.broker_emulator.control.controlled import Controlled
from dualwrite.broker_emulator.control.endpoint import Endpoint
from dualwrite.broker_emulator.control.endpoints.nodes import find as find_node
from dualwrite.broker_emulator.control.endpoints.partitions import PartitionPath, PartitionView, find, view
from dualwrite.broker_emulator.control.errors import as_conflict, bad_request


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

ENDPOINTS = (
    Endpoint("PUT", _ONE + "/replicas", reassign, "Move the copies to other nodes", (HTTPStatus.NOT_FOUND,)),
    Endpoint("POST", _ONE + "/cancel-reassignment", cancel, "Give up a reassignment that is under way", _ERRORS),
    Endpoint("POST", "/v1/elect-preferred-leaders", elect, "Let the first replica of each partition lead again"),
)
