"""Send one admin request to one broker, and return its response or raise why there is none.

This is the only admin module that uses connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, TypeVar

from dualwrite.client.admin.codec import Call
from dualwrite.client.admin.results import BrokerDescription
from dualwrite.client.last_error import LastError
from dualwrite.client.messages import ANY_NODE, Broker, TopicMetadata
from dualwrite.client.wire.cluster import ClusterSettings, lease_cluster, monotonic_ms
from dualwrite.client.wire.codec import common_version
from dualwrite.client.wire.connection import Connection
from dualwrite.client.wire.pool import NodeState
from dualwrite.config import AdminConfig
from dualwrite.errors import AdminError, Api, IllegalStateError, KafkaError, UnsupportedByBrokerError

T = TypeVar("T")


class NoResponseError(Exception):
    """No response came; the request may or may not have been applied.

    `out_of_time`: the caller's time was up, so an earlier error says more.
    """

    def __init__(self, message: str, *, out_of_time: bool = False) -> None:
        super().__init__(message)
        self.out_of_time = out_of_time


class AdminTransport:
    """The connections of one admin client, leased from a shared cluster. For one loop; may be created outside of it."""

    def __init__(self, config: AdminConfig, loop: asyncio.AbstractEventLoop) -> None:
        self._cluster: Final = lease_cluster(ClusterSettings.of(config), loop)
        self._changed = asyncio.Event()
        self._closed = False
        self._cluster.serve(self)

    def retry_refused(self) -> None:
        """Try a refused login or certificate again, once, because a new call begins."""
        self._cluster.retry_refused()

    def learn_brokers(self, brokers: Iterable[BrokerDescription]) -> None:
        """Remember the addresses of brokers."""
        for broker in brokers:
            self._cluster.learn_broker(Broker(broker.broker_id, broker.host, broker.port))

    async def greatest_version(self, node_id: int, api: Api, deadline_s: float) -> int:
        """Return the greatest version of an API that a broker supports, -1 for none. Raises `NoResponseError`."""
        connection = await self._connected(node_id, deadline_s)
        return connection.features.versions.get(api, (-1, -1))[1]

    async def request(self, node_id: int, call: Call[T], deadline_s: float) -> T:
        """Return the response of a broker (`ANY_NODE`: of any), by `deadline_s` of the loop's clock.

        Raises `NoResponseError`, `AuthenticationError`, and `UnsupportedByBrokerError` if the broker supports no
        version that can carry the request.
        """
        connection = await self._connected(node_id, deadline_s)
        offered = connection.features.versions.get(call.api)
        version = common_version(call.versions, offered)
        if version is None:
            raise UnsupportedByBrokerError(_unsupported(node_id, call.api, call.versions, offered))
        loop = asyncio.get_running_loop()
        received: asyncio.Future[memoryview | None] = loop.create_future()
        connection.send(
            call.api, version, call.encode(version), lambda body: None if received.done() else received.set_result(body)
        )
        body = await self._in_time(received, node_id, f"has not responded to {call.api.kafka_name} yet", deadline_s)
        if body is None:
            raise NoResponseError(f"{_broker(node_id)}: {connection.problem}")
        try:
            return call.decode(body, version)
        except Exception as error:  # a codec may raise anything for bytes that are not Kafka's
            raise AdminError(
                f"the response of {_broker(node_id)} to {call.api.kafka_name} is not Kafka's ({error!r})"
            ) from error

    async def _connected(self, node_id: int, deadline_s: float) -> Connection:
        began_ms = monotonic_ms()
        while True:
            changed = self._changed
            now_ms = monotonic_ms()
            if self._closed:
                raise IllegalStateError("the admin client was closed before a response came; it may have taken effect")
            found = self._cluster.to_any(now_ms) if node_id == ANY_NODE else self._cluster.to_node(node_id, now_ms)
            if isinstance(found, Connection):
                return found
            if self._cluster.refusal is not None:
                raise self._cluster.refusal
            if found is NodeState.FAILED:
                raise NoResponseError(
                    f"{_broker(node_id)} is not connected ({self._cluster.obstacle(began_ms, LastError())})"
                )
            connecting = asyncio.ensure_future(self._until_change(changed, now_ms))
            await self._in_time(connecting, node_id, "is still being connected to", deadline_s)

    async def _until_change(self, changed: asyncio.Event, now_ms: float) -> None:
        """Wait until a connection has come or failed, or until another broker should be tried beside a silent one."""
        wake_at_ms = self._cluster.wake_at_ms(now_ms)
        # rounded up: waking a moment early would find nothing due, and spin
        patience_s = None if wake_at_ms is None else (wake_at_ms - now_ms) / 1000 + 0.0005
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await changed.wait()

    async def _in_time(self, awaited: asyncio.Future[T], node_id: int, otherwise: str, deadline_s: float) -> T:
        try:
            async with asyncio.timeout_at(deadline_s):
                return await awaited
        except TimeoutError:
            raise NoResponseError(f"{_broker(node_id)} {otherwise}", out_of_time=True) from None

    def on_change(self) -> None:
        """Handle the cluster's notification: a requested connection has come or failed."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def on_topic(self, topic: TopicMetadata) -> bool:
        """Return False: the admin client requests metadata itself."""
        return False

    def on_no_metadata(self, topics: tuple[str, ...], error: KafkaError) -> None:
        """Do nothing: the admin client requests metadata itself."""

    async def close(self) -> None:
        """Release the connections, and wake the calls that wait for one."""
        self._closed = True
        self.on_change()
        await self._cluster.release()


def _broker(node_id: int) -> str:
    return "a broker" if node_id == ANY_NODE else f"broker {node_id}"


def _unsupported(node_id: int, api: Api, wanted: tuple[int, int], offered: tuple[int, int] | None) -> str:
    supported = f"versions {offered[0]} to {offered[1]}" if offered is not None else f"no {api.kafka_name} at all"
    return (
        f"{_broker(node_id)} supports {supported}, and this needs {api.kafka_name} in version {wanted[0]} to "
        f"{wanted[1]}: nothing was sent to it"
    )
