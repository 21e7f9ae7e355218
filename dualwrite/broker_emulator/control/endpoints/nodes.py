"""Nodes: who is there, crash, stop, start."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

from dualwrite.broker_emulator.cluster.cluster import ClusterNode
from dualwrite.broker_emulator.control.controlled import Controlled
from dualwrite.broker_emulator.control.endpoint import Endpoint
from dualwrite.broker_emulator.control.errors import as_conflict, not_found


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One broker."""

    node: int
    addresses: Annotated[dict[str, str], "What clients are told, by listener."]
    is_alive: bool
    is_controller: bool
    connections: Annotated[int, "Clients that are connected to it."]
    leads: Annotated[int, "How many partitions it leads, without internal ones."]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeList:
    """All brokers."""

    nodes: tuple[NodeView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePath:
    """A broker by its id."""

    node: int


def views(controlled: Controlled) -> tuple[NodeView, ...]:
    """All brokers as they are shown."""
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


async def list_all(controlled: Controlled) -> NodeList:
    return NodeList(nodes=views(controlled))


async def show(controlled: Controlled, path: NodePath) -> NodeView:
    find(controlled, path.node)
    return next(view for view in views(controlled) if view.node == path.node)


def find(controlled: Controlled, node_id: int) -> ClusterNode:
    """A node, alive or not. Raises ControlError where there is none."""
    nodes = controlled.cluster.nodes
    if node_id not in nodes:
        raise not_found(f"there is no node {node_id}", map(str, sorted(nodes)))
    return nodes[node_id]


async def crash(controlled: Controlled, path: NodePath) -> NodeView:
    find(controlled, path.node)
    with as_conflict():
        controlled.operations.living_node(path.node).crash()
    return await show(controlled, path)


async def stop(controlled: Controlled, path: NodePath) -> NodeView:
    find(controlled, path.node)
    with as_conflict():
        await controlled.operations.living_node(path.node).stop()
    return await show(controlled, path)


async def start(controlled: Controlled, path: NodePath) -> NodeView:
    find(controlled, path.node)
    with as_conflict():
        await controlled.start_node(path.node)
    return await show(controlled, path)


_ONE = "/v1/nodes/{node}"
_ERRORS = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)

ENDPOINTS = (
    Endpoint("GET", "/v1/nodes", list_all, "All nodes"),
    Endpoint("GET", _ONE, show, "One node", (HTTPStatus.NOT_FOUND,)),
    Endpoint("POST", _ONE + "/crash", crash, "End a node as SIGKILL does", _ERRORS),
    Endpoint("POST", _ONE + "/stop", stop, "Stop a node in order: others lead first", _ERRORS),
    Endpoint("POST", _ONE + "/start", start, "Start a node again on its old port", _ERRORS),
)
