"""Who coordinates a transactional id or a group, and who shall."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

from dualwrite.broker_emulator.cluster.topics import NO_LEADER, Partition
from dualwrite.broker_emulator.control.controlled import Controlled
from dualwrite.broker_emulator.control.endpoint import Endpoint
from dualwrite.broker_emulator.control.endpoints.partitions import move as move_partition
from dualwrite.broker_emulator.control.errors import bad_request


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


def _partition(controlled: Controlled, transactional_id: str | None, group: str | None) -> Partition:
    try:
        return controlled.operations.coordinator_partition(transactional_id, group)
    except ValueError:
        raise bad_request("name either a 'transactional_id' or a 'group'", ["transactional_id", "group"]) from None


def _view(partition: Partition) -> CoordinatorView:
    return CoordinatorView(
        node=None if partition.leader_id == NO_LEADER else partition.leader_id,
        topic=partition.topic.name,
        partition=partition.index,
        coordinator_epoch=partition.log.leader_epoch,
    )


async def show(controlled: Controlled, query: CoordinatorQuery) -> CoordinatorView:
    return _view(_partition(controlled, query.transactional_id, query.group))


async def move(controlled: Controlled, body: NewCoordinator) -> CoordinatorView:
    partition = _partition(controlled, body.transactional_id, body.group)
    move_partition(controlled, partition, body.node)
    return _view(partition)


ENDPOINTS = (
    Endpoint("GET", "/v1/coordinators", show, "Who coordinates a transactional id or a group"),
    Endpoint(
        "PUT",
        "/v1/coordinators",
        move,
        "Let a node coordinate a transactional id or a group",
        (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT),
    ),
)
