"""The health of the emulator, for probes and for processes that wait for its start, and its whole state."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Literal

from dualwrite.broker_emulator.cluster.clearing import clear
from dualwrite.broker_emulator.control.endpoint import ControlledEmulator, Endpoint
from dualwrite.broker_emulator.control.endpoints import (
    clock,
    faults,
    groups,
    holds,
    nodes,
    partitions,
    transactions,
)
from dualwrite.broker_emulator.control.errors import conflict
from dualwrite.broker_emulator.control.shapes import Limit
from dualwrite.broker_emulator.profiles import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The emulator is serving: once this endpoint responds, its brokers can be used."""

    status: Literal["serving"]
    bootstrap_servers: Annotated[str, "Of the first listener."]
    cluster_id: str
    profile: Profile
    living_nodes: Annotated[tuple[int, ...], "Nodes that were crashed or stopped are missing."]


def health_view(controlled: ControlledEmulator) -> Health:
    """Return the view of the emulator's health."""
    cluster = controlled.cluster
    return Health(
        status="serving",
        bootstrap_servers=controlled.bootstrap_servers,
        cluster_id=cluster.cluster_id,
        profile=cluster.config.profile,
        living_nodes=tuple(node.node_id for node in cluster.living_nodes),
    )


async def show_health(controlled: ControlledEmulator) -> Health:
    return health_view(controlled)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of the emulator at one moment."""

    health: Health
    clock: clock.ClockView
    nodes: tuple[nodes.NodeView, ...]
    faults: tuple[faults.FaultView, ...]
    holds: tuple[holds.HoldView, ...]
    transactions: transactions.TransactionList
    partitions: partitions.PartitionList
    groups: groups.GroupList


@dataclass(frozen=True, slots=True, kw_only=True)
class StateQuery:
    """Selects parts of the state."""

    internal: bool = False
    limit: Limit = 1000


async def show_state(controlled: ControlledEmulator, query: StateQuery) -> State:
    return State(
        health=health_view(controlled),
        clock=clock.view(controlled),
        nodes=nodes.views(controlled),
        faults=tuple(faults.view(controlled, handle) for handle in controlled.known_faults.all()),
        holds=tuple(holds.view(hold) for hold in controlled.cluster.pause_points.holds),
        transactions=transactions.views(controlled, transactions.TransactionQuery(limit=query.limit)),
        partitions=partitions.views(controlled, partitions.PartitionQuery(internal=query.internal, limit=query.limit)),
        groups=groups.views(controlled, groups.GroupQuery(limit=query.limit)),
    )


async def reset(controlled: ControlledEmulator) -> Health:
    for handle in controlled.known_faults.all():
        controlled.known_faults.remove(handle)
    try:
        await clear(controlled.cluster, controlled.start_node)
    except TimeoutError as error:
        raise conflict(str(error)) from None
    return health_view(controlled)


ENDPOINTS = (
    Endpoint("GET", "/v1/health", show_health, "Whether the emulator is serving"),
    Endpoint(
        "POST",
        "/v1/reset",
        reset,
        "Remove faults, holds, records and idle groups, start every node, and abort open transactions",
        (HTTPStatus.CONFLICT,),
    ),
    Endpoint("GET", "/v1/state", show_state, "The whole state at one moment"),
)
