"""Clients' connections: list, break."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dualwrite.broker_emulator.api.call import ClientConnection
from dualwrite.broker_emulator.control.controlled import Controlled
from dualwrite.broker_emulator.control.endpoint import Endpoint
from dualwrite.broker_emulator.control.limits import Limit, first


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionView:
    """One connection."""

    node: int
    client_id: Annotated[str | None, "As its last request said."]
    peer_host: str
    principal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionList:
    """Connections of all nodes."""

    connections: tuple[ConnectionView, ...]
    total: Annotated[int, "How many there are, the limit aside."]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionQuery:
    """Which connections."""

    client_id: Annotated[str | None, "Those of this client only."] = None
    limit: Limit = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DisconnectQuery:
    """Which connections are broken."""

    client_id: Annotated[str | None, "Those of this client only."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnected:
    """How many connections were broken."""

    disconnected: int


def _view(connection: ClientConnection) -> ConnectionView:
    return ConnectionView(
        node=connection.node.node_id,
        client_id=connection.client_id,
        peer_host=connection.peer_host,
        principal=str(connection.principal),
    )


async def list_all(controlled: Controlled, query: ConnectionQuery) -> ConnectionList:
    shown, total = first(controlled.operations.connections(query.client_id), query.limit)
    return ConnectionList(connections=tuple(map(_view, shown)), total=total)


async def disconnect(controlled: Controlled, query: DisconnectQuery) -> Disconnected:
    return Disconnected(disconnected=controlled.operations.disconnect(query.client_id))


ENDPOINTS = (
    Endpoint("GET", "/v1/connections", list_all, "The connections of clients"),
    Endpoint("DELETE", "/v1/connections", disconnect, "Break connections abruptly: a client's, or all"),
)
