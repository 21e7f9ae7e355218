"""Nodes: list, crash, stop, start, disconnect their clients; and the partitions and coordinators that they lead."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

from dualwrite.broker_emulator.cluster.cluster import ClusterNode
from dualwrite.broker_emulator.control.endpoint import ControlledEmulator, Endpoint
from dualwrite.broker_emulator.control.endpoints.topics import (
    PartitionPath,
    PartitionView,
    find_partition,
    partition_view,
)
from dualwrite.broker_emulator.control.errors import as_conflict, bad_request, not_found
from dualwrite.broker_emulator.control.shapes import Limit, first
from dualwrite.broker_emulator.messages.call import ClientConnection
from dualwrite.broker_emulator.topics.topics import NO_LEADER, Partition


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
    find_node(controlled, path.node)
    return next(view for view in views(controlled) if view.node == path.node)


def find_node(controlled: ControlledEmulator, node_id: int) -> ClusterNode:
    """Return a node, alive or not. Raises ControlError if it does not exist."""
    nodes = controlled.cluster.nodes
    if node_id not in nodes:
        raise not_found(f"there is no node {node_id}", map(str, sorted(nodes)))
    return nodes[node_id]


async def crash(controlled: ControlledEmulator, path: NodePath) -> NodeView:
    find_node(controlled, path.node)
    with as_conflict():
        controlled.operations.living_node(path.node).crash()
    return await show(controlled, path)


async def stop(controlled: ControlledEmulator, path: NodePath) -> NodeView:
    find_node(controlled, path.node)
    with as_conflict():
        await controlled.operations.living_node(path.node).stop()
    return await show(controlled, path)


async def start(controlled: ControlledEmulator, path: NodePath) -> NodeView:
    find_node(controlled, path.node)
    with as_conflict():
        await controlled.start_node(path.node)
    return await show(controlled, path)


_NODE = "/v1/nodes/{node}"
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
    partition = find_partition(controlled, path)
    move(controlled, partition, body.node)
    return partition_view(controlled, partition)


def move(controlled: ControlledEmulator, partition: Partition, node: int) -> None:
    """Make a node the leader of a partition. Raises ControlError if it cannot lead."""
    find_node(controlled, node)
    with as_conflict():
        controlled.operations.move_leader(partition, node)


async def reassign(controlled: ControlledEmulator, path: PartitionPath, body: NewReplicas) -> PartitionView:
    partition = find_partition(controlled, path)
    for node in body.replicas:
        find_node(controlled, node)
    try:
        controlled.operations.reassign(partition, body.replicas)
    except ValueError as error:
        raise bad_request(f"'replicas': {error}") from None
    return partition_view(controlled, partition)


async def cancel(controlled: ControlledEmulator, path: PartitionPath) -> PartitionView:
    partition = find_partition(controlled, path)
    with as_conflict():
        controlled.operations.reassign(partition, None)
    return partition_view(controlled, partition)


async def elect(controlled: ControlledEmulator) -> MovedList:
    operations = controlled.operations
    return MovedList(
        moved=tuple(
            MovedPartition(topic=topic, partition=index, leader=operations.partition(topic, index).leader_id)
            for topic, index in operations.elect_preferred_leaders()
        )
    )


_PARTITION = "/v1/topics/{topic}/partitions/{partition}"


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
    Endpoint("GET", "/v1/nodes", list_all, "All nodes"),
    Endpoint("GET", _NODE, show, "One node", (HTTPStatus.NOT_FOUND,)),
    Endpoint("POST", _NODE + "/crash", crash, "Crash a node, as SIGKILL would", _ERRORS),
    Endpoint("POST", _NODE + "/stop", stop, "Stop a node cleanly: its partitions move to other leaders first", _ERRORS),
    Endpoint("POST", _NODE + "/start", start, "Restart a node on its old port", _ERRORS),
    Endpoint("GET", "/v1/connections", list_connections, "The connections of clients"),
    Endpoint("DELETE", "/v1/connections", disconnect, "Close connections abruptly: those of one client, or all"),
    Endpoint("PUT", _PARTITION + "/leader", move_leader, "Make a node the leader, with a new leader epoch", _ERRORS),
    Endpoint(
        "PUT", _PARTITION + "/replicas", reassign, "Reassign the replicas to other nodes", (HTTPStatus.NOT_FOUND,)
    ),
    Endpoint("POST", _PARTITION + "/cancel-reassignment", cancel, "Cancel a reassignment that is in progress", _ERRORS),
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
