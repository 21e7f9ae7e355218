"""Listeners: the address that a broker binds, its security protocol, and the advertised address (KIP-103)."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Self

from dualwrite.broker_emulator.security.sasl.mechanism import Sasl
from dualwrite.broker_emulator.security.tls import Tls

MAX_PORT: Final = 65535
UNROUTABLE: Final = ("0.0.0.0", "::")


class SecurityProtocol(StrEnum):
    """Kafka's security protocols: with or without TLS, with or without a SASL login."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)

    @classmethod
    def of(cls, *, tls: bool, sasl: bool) -> Self:
        """Return the protocol with these parts."""
        return cls(("SASL_" if sasl else "") + ("SSL" if tls else "PLAINTEXT") if sasl or tls else "PLAINTEXT")


class Endpoint(NamedTuple):
    """The advertised address of a broker."""

    host: str
    port: int

    @property
    def address(self) -> str:
        """host:port, with an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Listener:
    """One listener, which every node has: node n (counted from 0) binds `port` + n, or a free port if `port` is 0.

    `tls` and `sasl` determine the security protocol; without both it is PLAINTEXT. The advertised host and port (also +
    n) default to the bound ones. An empty host binds every interface and advertises this machine's host name. Raises
    ValueError for an impossible name or port.
    """

    name: str = "PLAINTEXT"
    host: str = "127.0.0.1"
    port: int = 0
    tls: Tls | None = None
    sasl: Sasl | None = None
    advertised_host: str | None = None
    advertised_port: int | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a listener needs a name")
        for port in (self.port, self.advertised_port or 0):
            if not 0 <= port <= MAX_PORT:
                raise ValueError(f"listener {self.name}: a port must be a number from 0 to {MAX_PORT}, not {port}")

    @property
    def protocol(self) -> SecurityProtocol:
        """The security protocol."""
        return SecurityProtocol.of(tls=self.tls is not None, sasl=self.sasl is not None)

    def port_of(self, place: int) -> int:
        """Return the port that the node at this place binds; 0: any free port."""
        return self.port + place if self.port else 0

    def advertised(self, place: int, bound_port: int) -> Endpoint:
        """Return the advertised address of the node at this place, whose listener is bound to `bound_port`."""
        port = self.advertised_port + place if self.advertised_port else bound_port
        return Endpoint(self.advertised_host or self.host or socket.gethostname(), port)


def check_listeners(listeners: list[Listener], nodes: int) -> None:
    """Raise ValueError if these listeners conflict on one node, or the ports of the nodes overlap."""
    names = [listener.name for listener in listeners]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"a node needs one or more listeners with different names, not {', '.join(names) or 'none'}")
    taken: dict[int, str] = {}
    for listener in listeners:
        for port in {listener.port_of(place) for place in range(nodes)} - {0}:
            if port > MAX_PORT:
                raise ValueError(
                    f"listener {listener.name}: {nodes} nodes from port {listener.port} on need ports beyond {MAX_PORT}"
                )
            other = taken.setdefault(port, listener.name)
            if other != listener.name:
                raise ValueError(
                    f"the listeners {other} and {listener.name} both need port {port}: each of {nodes} nodes takes the "
                    "next port, so leave that many between two listeners"
                )
