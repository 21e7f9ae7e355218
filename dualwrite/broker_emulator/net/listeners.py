"""The listeners of a running emulator: their protocols, and their addresses, reserved even while a node is down."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from dualwrite.broker_emulator.cluster.node import Node
from dualwrite.broker_emulator.net.client_transport import ClosingLog
from dualwrite.broker_emulator.net.server import Connection
from dualwrite.broker_emulator.security.listener import MAX_PORT, Endpoint, Listener, SecurityProtocol, check_listeners
from dualwrite.broker_emulator.security.settings import listeners_from

logger = logging.getLogger(__name__)

_ANY_ADDRESS = "0.0.0.0"


def listeners_of(
    listen: str | None, listeners: Sequence[Listener] | None, properties: Mapping[str, str]
) -> list[Listener]:
    """Return the configured listeners: given in full, by an address, or else by settings. Raises ValueError."""
    if listeners is not None:
        if listen is not None:
            raise ValueError("listen and listeners are mutually exclusive")
        return list(listeners)
    listen_or_default = listen or "127.0.0.1:0"
    host, port = address("listen", listen_or_default)
    if "listeners" not in properties and "advertised.listeners" in properties:
        properties = {**properties, "listeners": f"{SecurityProtocol.PLAINTEXT}://{listen_or_default}"}
    elif listen is not None:
        properties = {}
    return listeners_from(properties) or [Listener(host=host.strip("[]"), port=port)]


def address(name: str, text: str) -> tuple[str, int]:
    """Return the host and port of the argument `name`. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > MAX_PORT:
        raise ValueError(f"{name} takes host:port, not {text!r}")
    return host, int(port)


class Listeners:
    """All listeners of all nodes. Raises ValueError for conflicting listeners and unusable certificates."""

    def __init__(self, listeners: Sequence[Listener], nodes: int, first_node_id: int = 0) -> None:
        check_listeners(list(listeners), nodes)
        self._first_node_id = first_node_id
        self._listeners = {listener.name: listener for listener in listeners}
        self._tls_contexts = {name: each.tls.server_context() for name, each in self._listeners.items() if each.tls}
        self._reserved: dict[int, dict[str, socket.socket]] = {}
        self._closing_log = ClosingLog(logger)

    @property
    def names(self) -> list[str]:
        """The names of all listeners, in the order in which they were given."""
        return list(self._listeners)

    def reserve(self, node_id: int) -> None:
        """Reserve the addresses of a node. Raises OSError if one of them is in use."""
        taken = self._reserved.setdefault(node_id, {})
        for name, listener in self._listeners.items():
            taken[name] = _reserve(listener.host, listener.port_of(node_id - self._first_node_id))

    def release(self) -> None:
        """Release all addresses."""
        for taken in self._reserved.values():
            for each in taken.values():
                each.close()
        self._reserved.clear()

    def endpoints(self, node_id: int) -> dict[str, Endpoint]:
        """Return the addresses that clients get for a node, by listener."""
        return {
            name: listener.advertised(node_id - self._first_node_id, self._port(node_id, name))
            for name, listener in self._listeners.items()
        }

    def bootstrap(self, listener: str | None) -> str:
        """Return the addresses of all nodes at a listener (None: the first), as clients get them."""
        name = next(iter(self._listeners)) if listener is None else listener
        if name not in self._listeners:
            raise ValueError(f"there is no listener {name}; there are {', '.join(self._listeners)}")
        if not self._reserved:
            raise RuntimeError("the emulator is not running")
        endpoints = (self.endpoints(node_id)[name] for node_id in self._reserved)
        return ",".join(endpoint.address for endpoint in endpoints)

    async def listen(self, node: Node) -> list[asyncio.AbstractServer]:
        """Create the servers of a node; they do not accept connections yet."""
        loop = asyncio.get_running_loop()
        return [
            await loop.create_server(
                self._protocol(node, listener),
                listener.host or _ANY_ADDRESS,
                self._port(node.node_id, name),
                start_serving=False,
            )
            for name, listener in self._listeners.items()
        ]

    def _protocol(self, node: Node, listener: Listener) -> Callable[[], asyncio.Protocol]:
        """Return the factory of one connection's protocol. SASL and TLS are imported only if a listener needs them."""
        name, tls, sasl = listener.name, listener.tls, listener.sasl
        connection: Callable[[], Connection] = partial(Connection, node, name, self._closing_log)
        if sasl is not None:
            from dualwrite.broker_emulator.net.sasl import SaslConnection

            connection = partial(SaslConnection, node, name, self._closing_log, sasl)
        if tls is None:
            return connection
        from dualwrite.broker_emulator.net.tls import TlsTransport

        mapping = tls.principal_mapping if sasl is None else None
        return lambda: TlsTransport(self._tls_contexts[name], connection(), mapping)

    def _port(self, node_id: int, name: str) -> int:
        port: int = self._reserved[node_id][name].getsockname()[1]
        return port


def _reserve(host: str, port: int) -> socket.socket:
    """Bind an address without listening, so that no other process takes it while its node is down.

    Raises OSError if it is in use.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host or _ANY_ADDRESS, port, type=socket.SOCK_STREAM)[0]
    reserved = socket.socket(family, kind, protocol)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(address)
    except OSError as error:
        reserved.close()
        where = Endpoint(host, port).address
        raise OSError(error.errno, f"cannot listen on {where}: {str(error.strerror).lower()}") from error
    return reserved
