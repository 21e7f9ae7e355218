"""Nodes and the connections of clients to them: list, crash, stop, start, disconnect."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

from dualwrite.broker_emulator.api.call import ClientConnection
from dualwrite.broker_emulator.cluster.cluster import ClusterNode
from dualwrite.broker_emulator.control.endpoint import ControlledEmulator, Endpoint
from dualwrite.broker_emulator.control.errors import as_conflict, not_found
from dualwrite.broker_emulator.control.shapes import Limit, first


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One broker."""

    node: int
    addresses: Annotated[dict[str, str], "The advertised addresses by listener."]
    is_alive: bool
    is_controller: bool
    connections: Annotated[int, "How many clients are connected to it."]
    leads: Annotated[int, "How many partitions it leads, internal topics excluded."]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeList:
    """All brokers."""

    nodes: tuple[NodeView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePath:
    """A broker by its id."""

    node: int


def views(controlled: ControlledEmulator) -> tuple[NodeView, ...]:
    """Return the views of all brokers."""
    cluster = controlled.cluster
    leads = dict.fromkeys(cluster.nodes, 0)
    for topic in cluster.topics.values():
        for partition in topic.partitions if not topic.is_internal else ():
            if partition.leader_id in leads:
                leads[partition.leader_id] += 1
    return tuple(
        NodeView(
            node=node.node_id,
            addresses={name: endpoint.address for name, endpoint in node.endpoints.items()},
            is_alive=node.is_alive,
            is_controller=node.node_id == cluster.controller_id,
            connections=len(node.connections),
            leads=leads[node.node_id],
        )
        for _, node in sorted(cluster.nodes.items())
    )


async def list_all(controlled: ControlledEmulator) -> NodeList:
    return NodeList(nodes=views(controlled))


async def show(controlled: ControlledEmulator, path: NodePath) -> NodeView:
    find(controlled, path.node)
    return next(view for view in views(controlled) if view.node == path.node)


def find(controlled: ControlledEmulator, node_id: int) -> ClusterNode:
    """Return a node, alive or not. Raises ControlError if it does not exist."""
    nodes = controlled.cluster.nodes
    if node_id not in nodes:
        raise not_found(f"there is no node {node_id}", map(str, sorted(nodes)))
    return nodes[node_id]


async def crash(controlled: ControlledEmulator, path: NodePath) -> NodeView:
    find(controlled, path.node)
    with as_conflict():
        controlled.operations.living_node(path.node).crash()
    return await show(controlled, path)


async def stop(controlled: ControlledEmulator, path: NodePath) -> NodeView:
    find(controlled, path.node)
    with as_conflict():
        await controlled.operations.living_node(path.node).stop()
    return await show(controlled, path)


async def start(controlled: ControlledEmulator, path: NodePath) -> NodeView:
    find(controlled, path.node)
    with as_conflict():
        await controlled.start_node(path.node)
    return await show(controlled, path)


_ONE = "/v1/nodes/{node}"
_ERRORS = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionView:
    """One connection."""

    node: int
    client_id: Annotated[str | None, "From its last request."]
    peer_host: str
    principal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionList:
    """Connections of all nodes."""

    connections: tuple[ConnectionView, ...]
    total: Annotated[int, "How many there are in all, regardless of the limit."]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionQuery:
    """Selects connections."""

    client_id: Annotated[str | None, "Only those of this client."] = None
    limit: Limit = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DisconnectQuery:
    """Selects the connections to close."""

    client_id: Annotated[str | None, "Only those of this client."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnected:
    """The number of closed connections."""

    disconnected: int


def _connection_view(connection: ClientConnection) -> ConnectionView:
    return ConnectionView(
        node=connection.node.node_id,
        client_id=connection.client_id,
        peer_host=connection.peer_host,
        principal=str(connection.principal),
    )


async def list_connections(controlled: ControlledEmulator, query: ConnectionQuery) -> ConnectionList:
    shown, total = first(controlled.operations.connections(query.client_id), query.limit)
    return ConnectionList(connections=tuple(map(_connection_view, shown)), total=total)


async def disconnect(controlled: ControlledEmulator, query: DisconnectQuery) -> Disconnected:
    return Disconnected(disconnected=controlled.operations.disconnect(query.client_id))


ENDPOINTS = (
    Endpoint("GET", "/v1/nodes", list_all, "All nodes"),
    Endpoint("GET", _ONE, show, "One node", (HTTPStatus.NOT_FOUND,)),
    Endpoint("POST", _ONE + "/crash", crash, "Crash a node, as SIGKILL would", _ERRORS),
    Endpoint("POST", _ONE + "/stop", stop, "Stop a node cleanly: its partitions move to other leaders first", _ERRORS),
    Endpoint("POST", _ONE + "/start", start, "Restart a node on its old port", _ERRORS),
    Endpoint("GET", "/v1/connections", list_connections, "The connections of clients"),
    Endpoint("DELETE", "/v1/connections", disconnect, "Close connections abruptly: those of one client, or all"),
)
