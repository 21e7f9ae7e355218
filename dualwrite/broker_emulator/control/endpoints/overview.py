"""The emulator as a whole: its health, for probes and processes that wait for its start, its state, metrics, page."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import Annotated, Final, Literal

from dualwrite.broker_emulator.cluster.operations import clear
from dualwrite.broker_emulator.control.endpoint import Content, ControlledEmulator, Endpoint
from dualwrite.broker_emulator.control.endpoints import (
    faults,
    groups,
    nodes,
    time_control,
    topics,
    transactions,
)
from dualwrite.broker_emulator.control.errors import conflict
from dualwrite.broker_emulator.control.shapes import Limit
from dualwrite.broker_emulator.metrics.prometheus import CONTENT_TYPE, render_prometheus
from dualwrite.broker_emulator.metrics.snapshot import collection
from dualwrite.broker_emulator.profiles import Profile
from dualwrite.broker_emulator.slices import in_slices


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
    clock: time_control.ClockView
    nodes: tuple[nodes.NodeView, ...]
    faults: tuple[faults.FaultView, ...]
    holds: tuple[time_control.HoldView, ...]
    transactions: transactions.TransactionList
    partitions: topics.PartitionList
    groups: groups.GroupList


@dataclass(frozen=True, slots=True, kw_only=True)
class StateQuery:
    """Selects parts of the state."""

    internal: bool = False
    limit: Limit = 1000


async def show_state(controlled: ControlledEmulator, query: StateQuery) -> State:
    return State(
        health=health_view(controlled),
        clock=time_control.clock_view(controlled),
        nodes=nodes.views(controlled),
        faults=tuple(faults.view(controlled, handle) for handle in controlled.known_faults.all()),
        holds=tuple(time_control.hold_view(hold) for hold in controlled.cluster.pause_points.holds),
        transactions=transactions.views(controlled, transactions.TransactionQuery(limit=query.limit)),
        partitions=topics.partition_views(
            controlled, topics.PartitionQuery(internal=query.internal, limit=query.limit)
        ),
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


_RENDERED_IN_LOOP: Final = 200
"""Up to this number of partitions, metrics are written at once; beyond it, in a thread."""


async def metrics(controlled: ControlledEmulator) -> Content:
    snapshot = await in_slices(collection(controlled.cluster))
    is_long = len(snapshot.partitions) > _RENDERED_IN_LOOP
    text = await asyncio.to_thread(render_prometheus, snapshot) if is_long else render_prometheus(snapshot)
    return Content(CONTENT_TYPE, text.encode())


_SCRIPTS: Final = ("page.js", "details.js", "elements.js", "forms.js", "requests.js", "sections.js", "tables.js")
_HTML: Final = "text/html; charset=utf-8"
_CSS: Final = "text/css; charset=utf-8"
_JAVASCRIPT: Final = "text/javascript; charset=utf-8"


@cache
def _content(name: str, content_type: str) -> Content:
    return Content(content_type, files("dualwrite.broker_emulator.control").joinpath("page", name).read_bytes())


def _file(path: str, name: str, content_type: str, summary: str) -> Endpoint:
    async def serve(controlled: ControlledEmulator) -> Content:
        return _content(name, content_type)

    return Endpoint("GET", path, serve, summary, content_type=content_type.partition(";")[0])


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
    Endpoint("GET", "/metrics", metrics, "Metrics in Prometheus' text format", content_type="text/plain"),
    _file("/", "index.html", _HTML, "The HTML page"),
    _file("/page.css", "page.css", _CSS, "The page's style sheet"),
    *(_file(f"/{name}", name, _JAVASCRIPT, "A script of the page") for name in _SCRIPTS),
)
