"""Keep a topology up to date: one Metadata request at a time, for all users that share it.

The request is sent when a user needs a topic that is not known yet, when a leader is missing, and every
`metadata.max.age.ms`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from dualwrite.client import messages as m
from dualwrite.client.error_texts import LastError, error_name
from dualwrite.client.pacing import Backoff
from dualwrite.client.wire import codec
from dualwrite.client.wire.connection import Connection
from dualwrite.client.wire.malformed import MalformedResponseError
from dualwrite.client.wire.pool import ConnectionPool
from dualwrite.client.wire.topology import Topology
from dualwrite.client.wire.versions import common_version, versions_wanted
from dualwrite.errors import Api, KafkaError, UnsupportedByBrokerError

_NEVER: Final = float("inf")

_UNKNOWN_TOPIC: Final = 3
_EXPLAINED: Final = {
    _UNKNOWN_TOPIC: ": it does not exist, and the cluster does not create it by itself (auto.create.topics.enable)"
}

_log = logging.getLogger(__name__)


class MetadataUser(Protocol):
    """A user that waits for metadata. Its methods are called in the loop, without any lock held."""

    def on_change(self) -> None:
        """Look again: a requested connection or metadata has come or failed."""

    def on_topic(self, topic: m.TopicMetadata) -> bool:
        """Take the metadata of a topic that was wanted; return whether the topic is still wanted."""

    def on_no_metadata(self, topics: tuple[str, ...], error: KafkaError) -> None:
        """Give up these topics: their metadata will never come."""


class MetadataRefresher:
    """Sends Metadata requests in the loop of its connections. Times in milliseconds."""

    def __init__(
        self,
        *,
        topology: Topology,
        connections: ConnectionPool,
        max_age_ms: float,
        pause_ms: float,
        backoff: Backoff,
        clock_ms: Callable[[], float],
        last_error: LastError,
    ) -> None:
        self._topology = topology
        self._connections = connections
        self._max_age_ms = max_age_ms
        self._pause_ms = pause_ms
        self._backoff = backoff
        self._clock_ms = clock_ms
        self._last_error = last_error
        self._wanted: dict[str, dict[MetadataUser, None]] = {}
        self._refresh_waiters: dict[MetadataUser, None] = {}
        self._in_flight = False
        self._due_at_ms = _NEVER
        self._refreshed_at_ms = -_NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = _NEVER
        self._pump_pending = False
        self._closed = False

    # ---- users' requests ------------------------------------------------------------------------------------

    def want(self, topic: str, user: MetadataUser) -> None:
        """Request a topic until it is known, or until `user` no longer wants it."""
        self._wanted.setdefault(topic, {})[user] = None
        self._due_at_ms = min(self._due_at_ms, self._clock_ms())
        self._pump_soon()

    def refresh(self, user: MetadataUser, now_ms: float) -> None:
        """Refresh as soon as the pause between requests allows, and notify `user` then: a leader is missing."""
        self._refresh_waiters[user] = None
        soonest_ms = max(now_ms, self._refreshed_at_ms + self._pause_ms)
        if not self._in_flight and self._due_at_ms > soonest_ms:
            self._due_at_ms = soonest_ms
            self._pump_soon()

    def forget(self, user: MetadataUser) -> None:
        """Drop everything that `user` waits for."""
        self._refresh_waiters.pop(user, None)
        for users in self._wanted.values():
            users.pop(user, None)
        self._wanted = {topic: users for topic, users in self._wanted.items() if users}

    # ---- the request ----------------------------------------------------------------------------------------

    def _pump_soon(self) -> None:
        """Schedule `pump`. Calling it now could notify a caller that holds its own lock."""
        if not self._pump_pending:
            self._pump_pending = True
            asyncio.get_running_loop().call_soon(self.pump)

    def pump(self) -> None:
        """Send the request if it is due; otherwise set a timer for when it will be."""
        self._pump_pending = False
        topics = tuple(dict.fromkeys([*self._topology.topics, *self._wanted]))
        if self._closed or self._in_flight or not topics:
            return
        now_ms = self._clock_ms()
        if now_ms < self._due_at_ms:
            self._wake_at(self._due_at_ms, now_ms)
            return
        connection = self._connections.to_any(now_ms, self)
        if isinstance(connection, Connection):
            self._send(connection, m.Metadata(topics))
        else:  # a connection that is being opened calls `pump` when it is up
            self._wake_at(self._connections.wake_at_ms(now_ms) or _NEVER, now_ms)
            if self._connections.refusal is not None:
                self._notify_of_refusal()

    def _notify_of_refusal(self) -> None:
        for user in {user: None for users in (*self._wanted.values(), self._refresh_waiters) for user in users}:
            user.on_change()

    def _send(self, connection: Connection, request: m.Metadata) -> None:
        offered = connection.features.versions.get(Api.METADATA)
        version = common_version(versions_wanted(request), offered)
        if version is None:
            self._give_up(UnsupportedByBrokerError("the broker is too old: no Metadata v5"))
            return
        self._in_flight = True
        body = codec.encode(request, version)
        connection.send(Api.METADATA, version, body, partial(self._on_response, connection, request, version), self)

    def _give_up(self, error: KafkaError) -> None:
        self._due_at_ms = self._clock_ms() + self._max_age_ms
        wanted, self._wanted = self._wanted, {}
        for topic, users in wanted.items():
            for user in users:
                user.on_no_metadata((topic,), error)

    def _wake_at(self, at_ms: float, now_ms: float) -> None:
        if at_ms >= self._timer_at_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = at_ms
        self._timer = asyncio.get_running_loop().call_later((at_ms - now_ms) / 1000 + 0.0005, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at_ms = _NEVER
        self.pump()

    # ---- the response ---------------------------------------------------------------------------------------

    def _on_response(self, connection: Connection, request: m.Metadata, version: int, body: memoryview | None) -> None:
        self._in_flight = False
        if self._closed:
            return
        now_ms = self._refreshed_at_ms = self._clock_ms()
        response = None if body is None else self._decoded(connection, request, version, body)
        if response is not None and self._connections.leads_elsewhere(response.cluster_id):
            connection.close()
            response = None
            self._notify_of_refusal()
        if response is not None and self._take(response):
            self._backoff.succeeded()
            self._due_at_ms = now_ms + (0 if self._wanted else self._max_age_ms)
        else:
            self._due_at_ms = now_ms + self._backoff.failed()
        waiters, self._refresh_waiters = self._refresh_waiters, {}
        for user in waiters:
            user.on_change()
        self.pump()

    def _decoded(
        self, connection: Connection, request: m.Metadata, version: int, body: memoryview
    ) -> m.MetadataResponse | None:
        try:
            response = codec.decode(request, body, version)
        except MalformedResponseError as error:
            connection.drop(error)
            self._last_error.note(self._clock_ms(), connection.problem)
            return None
        return response if isinstance(response, m.MetadataResponse) else None

    def _take(self, response: m.MetadataResponse) -> bool:
        """Apply the response; return False if a wanted topic or a leader is still missing."""
        self._topology.apply(response)
        return [self._take_topic(topic) for topic in response.topics].count(False) == 0

    def _take_topic(self, topic: m.TopicMetadata) -> bool:
        users = self._wanted.pop(topic.name, {})
        still = {user: None for user in users if user.on_topic(topic)}
        if still:
            self._wanted[topic.name] = still | self._wanted.get(topic.name, {})
            return False
        if topic.error_code:
            sentence = f"Metadata for {topic.name!r} returned {error_name(topic.error_code)}"
            self._last_error.note(self._clock_ms(), sentence + _EXPLAINED.get(topic.error_code, ""))
            return True
        leaderless = [str(partition) for partition, leader in enumerate(topic.leaders) if leader < 0]
        if leaderless:
            sentence = f"{topic.name!r} has no leader for partition {', '.join(leaderless)}"
            self._last_error.note(self._clock_ms(), sentence)
        return not leaderless

    # ---- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Send no more requests."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
