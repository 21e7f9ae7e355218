"""The shared view of one cluster: connections and metadata, leased by all its users in a process.

Producers with equal settings lease the same cluster, per event loop; it is closed when the last lease ends. A cluster
depends only on its `ClusterSettings`, so equal settings are enough to share it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol, Self

from dualwrite.client.error_texts import LastError
from dualwrite.client.messages import Broker
from dualwrite.client.monotonic import monotonic_ms
from dualwrite.client.pacing import Backoff
from dualwrite.client.wire.connection import Connection, Connector
from dualwrite.client.wire.frames import Framer
from dualwrite.client.wire.metadata import MetadataRefresher, MetadataUser
from dualwrite.client.wire.pool import ConnectionPool, NodeState
from dualwrite.client.wire.topology import Address, Topology
from dualwrite.errors import AuthenticationError, FatalError
from dualwrite.monkey_patches import assert_unpatched
from dualwrite.security_config import SecurityConfig


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """All settings that connections and metadata depend on. Times in milliseconds."""

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
        """Copy the settings of these names from `config`; a setting that it lacks keeps its default."""
        names = [each.name for each in fields(cls)]
        return cls(**{name: getattr(config, name) for name in names if hasattr(config, name)})


class LeaseUser(MetadataUser, Protocol):
    """The holder of a lease, which is notified when its requested connection or metadata has come or failed."""


class Cluster:
    """The connections, the topology and the metadata refresher of one cluster, in one loop."""

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings: Final = settings
        self.topology: Final = Topology()
        self.last_error: Final = LastError()
        self.connections: Final = ConnectionPool(
            bootstrap=settings.bootstrap_servers,
            topology=self.topology,
            framer=Framer(settings.client_id),
            connector=Connector(settings.security),
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

    def notify_of_change(self, user: LeaseUser) -> None:
        """Call `user.on_change()` once, when the next connection comes up, fails to, or is lost."""
        self._waiting[user] = None

    def forget(self, user: LeaseUser) -> None:
        """Drop everything that `user` waits for."""
        self._waiting.pop(user, None)
        self.metadata.forget(user)

    def _on_change(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for user in waiting:
            user.on_change()
        self.metadata.pump()

    async def close(self) -> None:
        """Close the connections; in the loop."""
        self.metadata.close()
        await self.connections.close()


class Lease:
    """One user's lease of a cluster. For use in the loop, except `topology`, `obstacle` and `retry_refused`."""

    def __init__(self, cluster: Cluster, loop: asyncio.AbstractEventLoop) -> None:
        self.topology: Final = cluster.topology
        self._cluster = cluster
        self._loop = loop
        self._connections = cluster.connections
        self.retry_refused: Final = cluster.connections.retry_refused
        self._user: LeaseUser | None = None
        self._leader_connections: dict[int, Connection] = {}
        self._released = False

    def serve(self, user: LeaseUser) -> None:
        """Set the listener; call exactly once, first."""
        self._user = user

    @property
    def user(self) -> LeaseUser:
        """The listener, which is also the owner of its requests: `Connection.send(..., owner=lease.user)`."""
        assert self._user is not None
        return self._user

    # ---- connections ----------------------------------------------------------------------------------------

    def to_any(self, now_ms: float) -> Connection | NodeState:
        """Return a connection to any broker; if one is being opened, the user is notified of the change."""
        found = self._connections.to_any(now_ms, self._user)
        if found is NodeState.CONNECTING:
            self.notify_of_change()
        return found

    def to_node(self, node_id: int, now_ms: float) -> Connection | NodeState:
        """Return a connection for one request whose order among others does not matter."""
        found = self._connections.to_node(node_id, now_ms, self._user)
        if found is NodeState.CONNECTING:
            self.notify_of_change()
        return found

    def to_leader(self, node_id: int, now_ms: float, *, in_flight: bool) -> Connection | NodeState:
        """Return the connection for requests that must arrive in order: the same one while any of them is `in_flight`.

        A lost connection is not replaced until the callbacks of all its requests have been called.
        """
        if in_flight:
            connection = self._leader_connections[node_id]
            return NodeState.CONNECTING if connection.lost else connection
        found = self.to_node(node_id, now_ms)
        if isinstance(found, Connection):
            self._leader_connections[node_id] = found
        return found

    def losses(self, node_id: int) -> int:
        """Return how many connections to a node have been lost: it may have been away if there was another one."""
        return self._connections.losses(node_id)

    def notify_of_change(self) -> None:
        """Notify the user, once, when the next connection has come up, has failed to, or is lost."""
        self._cluster.notify_of_change(self.user)

    @property
    def refusal(self) -> AuthenticationError | FatalError | None:
        """Why no connection can be opened: see `ConnectionPool`."""
        return self._connections.refusal

    @property
    def is_obstructed(self) -> bool:
        """Whether no connection can be opened: it was refused, or no broker may be reachable."""
        return self._connections.failing_since_ms is not None or self._connections.refusal is not None

    def fails_at_ms(self, timeout_ms: float) -> float | None:
        """Return when no broker may have been reachable for `timeout_ms`; None if one is, as far as is known."""
        since_ms = self._connections.failing_since_ms
        return None if since_ms is None else since_ms + timeout_ms

    def unreachable_since_ms(self, now_ms: float) -> float | None:
        """Return since when no broker can be reached; if unknown, try one, after which the user is notified."""
        self.to_any(now_ms)
        return self._connections.unreachable_since_ms(now_ms)

    def wake_at_ms(self, now_ms: float) -> float | None:
        """Return when a failed address may be tried again."""
        return self._connections.wake_at_ms(now_ms)

    # ---- metadata -------------------------------------------------------------------------------------------

    def learn_broker(self, broker: Broker) -> None:
        """Remember a broker's address, from any response that contains it."""
        self.topology.learn_broker(broker)

    def want_topic(self, topic: str) -> None:
        """Request metadata of a topic until it is known; the user is notified by `on_topic`."""
        self._cluster.metadata.want(topic, self.user)

    def refresh_metadata(self, now_ms: float) -> None:
        """Refresh metadata, because a leader is missing; the user is notified when it has come."""
        self._cluster.metadata.refresh(self.user, now_ms)

    def obstacle(self, since_ms: float, own: LastError) -> str:
        """Describe the obstacle of a call that timed out: the newest problem since then, or a missing response."""
        recent = own.newest(self._cluster.last_error, since_ms)
        if recent is not None:
            return f"last problem: {recent}"
        older = own.newest(self._cluster.last_error)
        waited_for = self._connections.waited_for(self._user)
        return waited_for or ("no problem was seen" if older is None else f"last problem: {older}")

    # ---- the end --------------------------------------------------------------------------------------------

    async def release(self) -> None:
        """End the lease; the last one closes the connections. Idempotent, in the loop."""
        if self._released:
            return
        self._released = True
        self._cluster.forget(self.user)
        if _clusters.end_lease(self._cluster, self._loop):
            await self._cluster.close()


class _Clusters:
    """All clusters of this process, by loop and settings, with the number of their leases."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_key: dict[tuple[asyncio.AbstractEventLoop, ClusterSettings], Cluster] = {}
        self._abandoned: list[object] = []

    def lease(self, settings: ClusterSettings, loop: asyncio.AbstractEventLoop) -> Lease:
        with self._lock:
            self._drop_those_of_closed_loops()
            cluster = self._by_key.get((loop, settings))
            if cluster is None or cluster.connections.has_moved:
                cluster = self._by_key[loop, settings] = Cluster(settings)
            cluster.connections.users += 1
        return Lease(cluster, loop)

    def end_lease(self, cluster: Cluster, loop: asyncio.AbstractEventLoop) -> bool:
        """End a lease and return whether it was the last one."""
        with self._lock:
            cluster.connections.users -= 1
            if cluster.connections.users:
                return False
            if self._by_key.get((loop, cluster.settings)) is cluster:
                del self._by_key[loop, cluster.settings]
            return True

    def _drop_those_of_closed_loops(self) -> None:
        for key in [key for key in self._by_key if key[0].is_closed()]:
            del self._by_key[key]

    def after_fork_in_child(self) -> None:
        """Start without clusters, but keep the parent's alive and unused.

        Closing their sockets here would remove them from the parent's poll object.
        """
        self._lock = threading.Lock()  # another thread of the parent may have held it
        self._abandoned.append(self._by_key)
        self._by_key = {}


_clusters: Final = _Clusters()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_clusters.after_fork_in_child)


def lease_cluster(settings: ClusterSettings, loop: asyncio.AbstractEventLoop) -> Lease:
    """Lease the cluster with these settings in that loop, from any thread. It connects to nothing yet.

    Raises as `assert_unpatched`.
    """
    assert_unpatched()
    return _clusters.lease(settings, loop)
