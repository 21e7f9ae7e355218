"""Everything at one moment: what the page shows, and what a test keeps that has failed."""

from __future__ import annotations

from dataclasses import dataclass

from dualwrite.broker_emulator.control.controlled import Controlled
from dualwrite.broker_emulator.control.endpoint import Endpoint
from dualwrite.broker_emulator.control.endpoints import (
    clock,
    faults,
    groups,
    health,
    holds,
    nodes,
    partitions,
    transactions,
)
from dualwrite.broker_emulator.control.shapes import Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The emulator at one moment."""

    health: health.Health
    clock: clock.ClockView
    nodes: tuple[nodes.NodeView, ...]
    faults: tuple[faults.FaultView, ...]
    holds: tuple[holds.HoldView, ...]
    transactions: transactions.TransactionList
    partitions: partitions.PartitionList
    groups: groups.GroupList


@dataclass(frozen=True, slots=True, kw_only=True)
class StateQuery:
    """How much of it."""

    internal: bool = False
    limit: Limit = 1000


async def show(controlled: Controlled, query: StateQuery) -> State:
    return State(
        health=health.view(controlled),
        clock=clock.view(controlled),
        nodes=nodes.views(controlled),
        faults=tuple(faults.view(controlled, handle) for handle in controlled.fault_book.all()),
        holds=tuple(holds.view(hold) for hold in controlled.cluster.pause_points.holds),
        transactions=transactions.views(controlled, transactions.TransactionQuery(limit=query.limit)),
        partitions=partitions.views(controlled, partitions.PartitionQuery(internal=query.internal, limit=query.limit)),
        groups=groups.views(controlled, groups.GroupQuery(limit=query.limit)),
    )


ENDPOINTS = (Endpoint("GET", "/v1/state", show, "Everything at one moment"),)
