"""One cluster as all its users in a process see it: connections and metadata, shared and counted.

Producers with the same settings lease the same cluster, per event loop; it is closed when the last lease ends. What a
cluster is made of is in `ClusterSettings` alone, so equal settings are all that sharing needs.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol, Self

from dualwrite.client.backoff import Backoff
from dualwrite.client.last_error import LastError
from dualwrite.client.messages import Broker
from dualwrite.client.wire.codec import Framer
from dualwrite.client.wire.connection import Connection
from dualwrite.client.wire.connections import Connections, NodeState
from dualwrite.client.wire.handshake import Security
from dualwrite.client.wire.metadata import MetadataRefresher, MetadataUser
from dualwrite.client.wire.topology import Address, Topology
from dualwrite.errors import AuthenticationError
from dualwrite.security_config import SecurityConfig


def monotonic_ms() -> float:
    """The clock of everything that waits in this package."""
    return time.monotonic() * 1000


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Everything that connections and metadata depend on. Times in milliseconds."""

    bootstrap_servers: tuple[Address, ...]
    client_id: str = "dualwrite"
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    connections_max_per_node: int = 16
    security: SecurityConfig = field(default_factory=SecurityConfig)

    @classmethod
    def of(cls, config: Any) -> Self:
        """From any configuration that has settings of these names; one that it does not have keeps its default."""
        names = [each.name for each in fields(cls)]
        return cls(**{name: getattr(config, name) for name in names if hasattr(config, name)})


class LeaseUser(MetadataUser, Protocol):
    """Whoever holds a lease: is told when what it asked for has come or failed."""


class Cluster:
    """Connections, topology and the refreshing of metadata, in one loop."""

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings: Final = settings
        self.topology: Final = Topology()
        self.last_error: Final = LastError()
        self.connections: Final = Connections(
            bootstrap=settings.bootstrap_servers,
            topology=self.topology,
            framer=Framer(settings.client_id),
            security=Security(settings.security),
            request_timeout_ms=settings.request_timeout_ms,
            max_per_node=settings.connections_max_per_node,
            new_backoff=lambda: Backoff(settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms),
            clock_ms=monotonic_ms,
            last_error=self.last_error,
            on_change=self._on_change,
        )
        self.metadata: Final = MetadataRefresher(
            topology=self.topology,
            connections=self.connections,
            max_age_ms=settings.metadata_max_age_ms,
            pause_ms=settings.retry_backoff_ms,
            backoff=Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms),
            clock_ms=monotonic_ms,
            last_error=self.last_error,
        )
        self._waiting: dict[LeaseUser, None] = {}

    def tell_of_change(self, user: LeaseUser) -> None:
        """Call `user.on_change()` once, after the next connection came up or failed to."""
        self._waiting[user] = None

    def forget(self, user: LeaseUser) -> None:
        """This one waits for nothing any more."""
        self._waiting.pop(user, None)
        self.metadata.forget(user)

    def _on_change(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for user in waiting:
            user.on_change()
        self.metadata.pump()

    async def close(self) -> None:
        """Drop the connections; in the loop."""
        self.metadata.close()
        await self.connections.close()


class Lease:
    """One user's share of a cluster. In the loop, except for `topology`, `obstacle`, `retry_refused`."""

    def __init__(self, cluster: Cluster, loop: asyncio.AbstractEventLoop) -> None:
        self.topology: Final = cluster.topology
        self._cluster = cluster
        self._loop = loop
        self._connections = cluster.connections
        self._user: LeaseUser | None = None
        self._leader_connections: dict[int, Connection] = {}
        self._released = False

    def serve(self, user: LeaseUser) -> None:
        """Who is to be told; once, before anything else."""
        self._user = user

    @property
    def user(self) -> LeaseUser:
        """Who is told, and in whose name requests are sent: `Connection.send(..., owner=lease.user)`."""
        assert self._user is not None
        return self._user

    # ---- connections ----------------------------------------------------------------------------------------

    def to_any(self, now_ms: float) -> Connection | NodeState:
        """A connection to whichever broker; where one is being made, the user is told of the change."""
        return self._told(self._connections.to_any(now_ms, self._user))

    def to_node(self, node_id: int, now_ms: float) -> Connection | NodeState:
        """A connection for one request whose order among others does not matter."""
        return self._told(self._connections.to_node(node_id, now_ms, self._user))

    def to_leader(self, node_id: int, now_ms: float, *, in_flight: bool) -> Connection | NodeState:
        """The connection for requests that must arrive in their order: the same one while any of them is `in_flight`.

        One that is lost is still the one until all its requests have heard so.
        """
        if in_flight:
            connection = self._leader_connections[node_id]
            return NodeState.CONNECTING if connection.lost else connection
        found = self.to_node(node_id, now_ms)
        if isinstance(found, Connection):
            self._leader_connections[node_id] = found
        return found

    def _told(self, found: Connection | NodeState) -> Connection | NodeState:
        if found is NodeState.CONNECTING:
            self._cluster.tell_of_change(self.user)
        return found

    @property
    def refusal(self) -> AuthenticationError | None:
        """Why no connection can be made, where the settings or the accounts of the broker are to blame."""
        return self._connections.refusal

    def retry_refused(self) -> None:
        """A caller waits anew: what was refused is tried again, after its back-off. From any thread."""
        self._connections.retry_refused()

    def wake_at_ms(self, now_ms: float) -> float | None:
        """When a failed address may be tried again."""
        return self._connections.wake_at_ms(now_ms)

    # ---- who is who -----------------------------------------------------------------------------------------

    def learn_broker(self, broker: Broker) -> None:
        """Where a broker is, from any answer that says so."""
        self.topology.learn_broker(broker)

    def want_topic(self, topic: str) -> None:
        """Ask about a topic until it is known; the user is told by `on_topic`."""
        self._cluster.metadata.want(topic, self.user)

    def refresh_metadata(self, now_ms: float) -> None:
        """A leader is missing. The user is told when metadata has come."""
        self._cluster.metadata.refresh(self.user, now_ms)

    def obstacle(self, since_ms: float, own: LastError) -> str:
        """What a caller is told who has waited in vain since then: the newest problem, or what is waited for."""
        recent = own.newest(self._cluster.last_error, since_ms)
        if recent is not None:
            return f"last problem: {recent}"
        older = own.newest(self._cluster.last_error)
        waited_for = self._connections.waited_for(self._user)
        return waited_for or ("no problem was seen" if older is None else f"last problem: {older}")

    # ---- the end --------------------------------------------------------------------------------------------

    async def release(self) -> None:
        """No more requests by this user; the last one closes the connections. Idempotent, in the loop."""
        if self._released:
            return
        self._released = True
        self._cluster.forget(self.user)
        if _clusters.end_lease(self._cluster, self._loop):
            await self._cluster.close()


class _Clusters:
    """All clusters of this process, by loop and settings, and how many lease them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_key: dict[tuple[asyncio.AbstractEventLoop, ClusterSettings], Cluster] = {}
        self._abandoned: list[object] = []

    def lease(self, settings: ClusterSettings, loop: asyncio.AbstractEventLoop) -> Lease:
        with self._lock:
            self._drop_those_of_closed_loops()
            cluster = self._by_key.get((loop, settings))
            if cluster is None:
                cluster = self._by_key[loop, settings] = Cluster(settings)
            cluster.connections.users += 1
        return Lease(cluster, loop)

    def end_lease(self, cluster: Cluster, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether it was the last one."""
        with self._lock:
            cluster.connections.users -= 1
            if cluster.connections.users:
                return False
            self._by_key.pop((loop, cluster.settings), None)
            return True

    def _drop_those_of_closed_loops(self) -> None:
        for key in [key for key in self._by_key if key[0].is_closed()]:
            del self._by_key[key]

    def after_fork_in_child(self) -> None:
        """The parent's clusters stay alive, unused: closing their sockets here would end them in its poll object."""
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self._abandoned.append(self._by_key)
        self._by_key = {}


_clusters: Final = _Clusters()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_clusters.after_fork_in_child)


def lease_cluster(settings: ClusterSettings, loop: asyncio.AbstractEventLoop) -> Lease:
    """A share of the cluster with these settings in that loop; from any thread. Nothing is connected to yet."""
    return _clusters.lease(settings, loop)
