"""Run one call for many keys: send each to the responsible broker, and repeat until each has a result or time is up.

`AdminTransport` sends one request to one broker, and returns its response or raises an error with the reason. No other
part of the admin client uses connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, NamedTuple, TypeVar

from dualwrite.client.admin import codec
from dualwrite.client.admin.cluster_codec import ClusterMetadata, metadata
from dualwrite.client.admin.codec import Call, Reply
from dualwrite.client.admin.results import BrokerDescription
from dualwrite.client.error_texts import LastError, error_name, missing_right
from dualwrite.client.messages import ANY_NODE, Broker, TopicMetadata
from dualwrite.client.monotonic import monotonic_ms
from dualwrite.client.pacing import Backoff
from dualwrite.client.records.record import TopicPartition
from dualwrite.client.wire.cluster import ClusterSettings, lease_cluster
from dualwrite.client.wire.connection import Connection
from dualwrite.client.wire.malformed import MalformedResponseError
from dualwrite.client.wire.pool import NodeState
from dualwrite.client.wire.versions import common_version
from dualwrite.config import AdminConfig
from dualwrite.errors import (
    NETWORK_EXCEPTION,
    AdminError,
    Api,
    AuthorizationError,
    ErrorClass,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    KafkaUnreachableError,
    UnsupportedByBrokerError,
    error_class,
)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")

MAX_KEYS_PER_REQUEST: Final = 500
"""Requests for many partitions of one broker are split, as kafka-transactions.sh does."""

UNKNOWN_TOPIC: Final = 3
"""UNKNOWN_TOPIC_OR_PARTITION."""

_LEADER_NOT_AVAILABLE: Final = 5
_NO_LEADER: Final = -1
RETRIABLE: Final = (ErrorClass.RETRIABLE, ErrorClass.RETRIABLE_AFTER_LOOKUP)
"""The error classes after which a request is repeated."""

# Advice on a refusal, if the error's name does not give it.
_ADVICE: Final[Mapping[tuple[Api, int], str]] = {
    (Api.METADATA, 3): "it does not exist, or not yet",
    (Api.DESCRIBE_PRODUCERS, 6): "that broker has no replica of it; leave out broker_id to query the leader",
    (Api.WRITE_TXN_MARKERS, 43): "its log is older than transactions",
    (Api.WRITE_TXN_MARKERS, 47): "the producer has written there under a newer epoch; see describe_producers()",
    (Api.WRITE_TXN_MARKERS, 52): "a newer coordinator has ended a transaction there; see describe_producers()",
    (
        Api.INIT_PRODUCER_ID,
        50,
    ): "brokers have a lower transaction.max.timeout.ms; set request.timeout.ms to less than it",
}


class NoResponseError(Exception):
    """No response came; the request may or may not have been applied if it was `sent`.

    `out_of_time`: the caller's time was up, so an earlier error says more.
    """

    def __init__(self, message: str, *, out_of_time: bool = False, sent: bool = False) -> None:
        super().__init__(message)
        self.out_of_time = out_of_time
        self.sent = sent


class AdminTransport:
    """The connections of one admin client, leased from a shared cluster. For one loop; may be created outside of it."""

    def __init__(
        self,
        config: AdminConfig | ClusterSettings,
        loop: asyncio.AbstractEventLoop,
        *,
        unreachable_timeout_ms: int | None = None,
    ) -> None:
        """`unreachable_timeout_ms`: raise KafkaUnreachableError after no broker could be reached for that long."""
        self._unreachable_timeout_ms = unreachable_timeout_ms
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

    async def transaction_version(self, node_id: int, deadline_s: float) -> int:
        """Return the finalised `transaction.version` that a broker has reported. Raises as `request` does."""
        return (await self._connected(node_id, deadline_s)).features.transaction_version

    async def request(self, node_id: int, call: Call[T], deadline_s: float) -> T:
        """Return the response of a broker (`ANY_NODE`: of any), by `deadline_s` of the loop's clock.

        Raises `NoResponseError`, `KafkaUnreachableError`, `AuthenticationError`, and `UnsupportedByBrokerError` if the
        broker supports no version that can carry the request.
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
        silent = f"has not responded to {call.api.kafka_name} yet"
        body = await self._in_time(received, node_id, silent, deadline_s, sent=True)
        if body is None:
            raise NoResponseError(f"{_broker(node_id)}: {connection.problem}", sent=True)
        try:
            return call.decode(body, version)
        except Exception as error:  # a codec may raise anything for bytes that are not Kafka's
            connection.drop(MalformedResponseError(call.api, version, len(body), error))
            raise AdminError(
                f"{_broker(node_id)}: {connection.problem}. The request may have taken effect; repeat the call"
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
                self._raise_if_unreachable(now_ms)
                raise NoResponseError(
                    f"{_broker(node_id)} is not connected ({self._cluster.obstacle(began_ms, LastError())})"
                )
            connecting = asyncio.ensure_future(self._until_change(changed, now_ms))
            await self._in_time(connecting, node_id, "is still being connected to", deadline_s)

    def _raise_if_unreachable(self, now_ms: float) -> None:
        timeout_ms = self._unreachable_timeout_ms
        since_ms = None if timeout_ms is None else self._cluster.unreachable_since_ms(now_ms)
        if timeout_ms is None or since_ms is None or now_ms - since_ms < timeout_ms:
            return
        since_s, problem = (now_ms - since_ms) / 1000, self._cluster.obstacle(since_ms, LastError())
        raise KafkaUnreachableError(
            f"no broker could be reached for {since_s:.1f} s ({problem})", since_s=since_s, problem=problem
        )

    async def _until_change(self, changed: asyncio.Event, now_ms: float) -> None:
        """Wait until a connection has come or failed, or until another broker should be tried beside a silent one."""
        wake_at_ms = self._cluster.wake_at_ms(now_ms)
        # rounded up: waking a moment early would find nothing due, and spin
        patience_s = None if wake_at_ms is None else (wake_at_ms - now_ms) / 1000 + 0.0005
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await changed.wait()

    async def _in_time(
        self, awaited: asyncio.Future[T], node_id: int, otherwise: str, deadline_s: float, *, sent: bool = False
    ) -> T:
        try:
            async with asyncio.timeout_at(deadline_s):
                return await awaited
        except TimeoutError:
            raise NoResponseError(f"{_broker(node_id)} {otherwise}", out_of_time=True, sent=sent) from None

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


class Results(NamedTuple, Generic[K, V]):
    """The results by key, and the reasons why other keys have none."""

    done: dict[K, V]
    failed: dict[K, KafkaError]


class Located(NamedTuple, Generic[K]):
    """The responsible broker of each key, the keys that never have one, and why others have none yet."""

    nodes: Mapping[K, int]
    failed: Mapping[K, KafkaError]
    not_yet: Mapping[K, str | NoResponseError]


LookUp = Callable[[Sequence[K]], Awaitable[Located[K]]]
CallFor = Callable[[int, Sequence[K]], Call[dict[K, Reply[V]]]]


def failure(api: Api, error_code: int, key: Any) -> KafkaError:
    """Return the exception for an error that repeating the request does not cure."""
    right = missing_right(api, error_code, key.topic if isinstance(key, TopicPartition) else str(key))
    sentence = f"{api.kafka_name} for {name_of(key)!r} was refused: {error_name(error_code)}"
    advice = f"the right that is missing is {right}" if right else _ADVICE.get((api, error_code))
    if advice:
        sentence += f"; {advice}"
    if error_class(api, error_code) is ErrorClass.REFUSED:
        return AuthorizationError(sentence, error_code=error_code)
    if error_class(api, error_code) is ErrorClass.UNSUPPORTED:
        return UnsupportedByBrokerError(sentence, error_code=error_code)
    return AdminError(sentence, error_code=error_code)


class AdminDriver:
    """Repeats requests as the table of errors says. Every `deadline_s` is by the loop's clock."""

    def __init__(self, config: AdminConfig | ClusterSettings, transport: AdminTransport) -> None:
        self._config = config
        self._transport = transport

    def new_backoff(self) -> Backoff:
        """Return the back-off between two attempts."""
        return Backoff(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)

    async def pause(self, backoff: Backoff, deadline_s: float) -> bool:
        """Wait before the next attempt; return False if there is no time for one."""
        wait_s = backoff.failed() / 1000
        if asyncio.get_running_loop().time() + wait_s >= deadline_s:
            return False
        await asyncio.sleep(wait_s)
        return True

    # ---- responsible brokers --------------------------------------------------------------------------------

    async def metadata(
        self, topics: Sequence[str] | None, deadline_s: float, *, with_rights: bool = False
    ) -> ClusterMetadata:
        """Request metadata from any broker that responds and knows of brokers. Raises `KafkaTimeoutError`.

        A broker that has just started may respond before it knows of any, itself included: to go by that would be to
        find nothing in the whole cluster.
        """
        call = metadata(topics, with_rights=with_rights)
        backoff = self.new_backoff()
        why: dict[str, str] = {}
        while True:
            try:
                response = await self._transport.request(ANY_NODE, call, deadline_s)
                if not response.cluster.brokers:
                    raise NoResponseError("a broker has just started, and does not know of any broker yet")
            except NoResponseError as error:
                _remember(why, "Metadata", error)
                if not await self.pause(backoff, deadline_s):
                    raise KafkaTimeoutError(f"no broker has responded to Metadata in time: {why['Metadata']}") from None
            else:
                self._transport.learn_brokers(response.cluster.brokers)
                return response

    async def leaders(self, partitions: Sequence[TopicPartition], deadline_s: float) -> Located[TopicPartition]:
        """Look up the leaders of partitions. A topic that does not exist fails at once."""
        topics = list(dict.fromkeys(partition.topic for partition in partitions))
        return leaders_in(await self.metadata(topics, deadline_s), partitions)

    async def coordinators(self, transactional_ids: Sequence[str], deadline_s: float) -> Located[str]:
        """Look up the transaction coordinators of ids."""
        nodes: dict[str, int] = {}
        failed: dict[str, KafkaError] = {}
        not_yet: dict[str, str | NoResponseError] = {}
        parts = _in_parts(transactional_ids)
        while parts:
            some = parts.pop(0)
            try:
                replies = await self._transport.request(ANY_NODE, codec.find_coordinators(some), deadline_s)
            except UnsupportedByBrokerError:
                if len(some) == 1:
                    raise
                parts += [[each] for each in some]  # brokers that take one id in a request
                continue
            except NoResponseError as error:
                not_yet |= dict.fromkeys(some, error)
                continue
            for key in some:
                code, broker = replies.get(key, Reply(NETWORK_EXCEPTION))
                if code == 0 and broker is not None:
                    nodes[key] = broker.node_id
                    self._transport.learn_brokers([BrokerDescription(*broker, rack=None)])
                elif error_class(Api.FIND_COORDINATOR, code) in RETRIABLE:
                    not_yet[key] = f"FindCoordinator for {key!r} returned {error_name(code)}"
                else:
                    failed[key] = failure(Api.FIND_COORDINATOR, code, key)
        return Located(nodes, failed, not_yet)

    # ---- requests -------------------------------------------------------------------------------------------

    async def fulfil(
        self,
        keys: Collection[K],
        look_up: LookUp[K],
        call_for: CallFor[K, V],
        *,
        deadline_s: float,
        final_codes: Collection[int] = (),
    ) -> Results[K, V]:
        """Return a result for each key, from the broker that `look_up` names; `final_codes` are not repeated."""
        results: Results[K, V] = Results({}, {})
        nodes: dict[K, int] = {}
        why: dict[K, str] = {}
        waiting = list(dict.fromkeys(keys))
        backoff = self.new_backoff()
        while True:
            unknown = [key for key in waiting if key not in nodes]
            if unknown:
                try:
                    located = await look_up(unknown)
                except KafkaUnreachableError as error:  # keep the results that there are, and wait for no more
                    located = Located({}, dict.fromkeys(unknown, error), {})
                except KafkaTimeoutError as error:
                    out_of_time = NoResponseError(str(error), out_of_time=True)
                    located = Located({}, {}, dict.fromkeys(unknown, out_of_time))
                nodes.update(located.nodes)
                results.failed.update(located.failed)
                for key, reason in located.not_yet.items():
                    _remember(why, key, reason)
            calls = [
                self._request(node_id, some, call_for, deadline_s)
                for node_id, mine in _by_node(waiting, nodes).items()
                for some in _in_parts(mine)
            ]
            for api, replies in await asyncio.gather(*calls):
                for key, reply in replies.items():
                    self._take(api, key, reply, results, nodes, why, final_codes)
            waiting = [key for key in waiting if key not in results.done and key not in results.failed]
            if not waiting:
                return results
            if not await self.pause(backoff, deadline_s):
                for key in waiting:
                    results.failed[key] = KafkaTimeoutError(f"no result for {name_of(key)} in time: {why[key]}")
                return results

    async def _request(
        self, node_id: int, keys: Sequence[K], call_for: CallFor[K, V], deadline_s: float
    ) -> tuple[Api, dict[K, Reply[V] | NoResponseError | KafkaError]]:
        call = call_for(node_id, keys)
        try:
            received = await self._transport.request(node_id, call, deadline_s)
        except (NoResponseError, KafkaError) as error:
            return call.api, dict.fromkeys(keys, error)
        return call.api, {key: received.get(key, Reply(NETWORK_EXCEPTION)) for key in keys}

    def _take(
        self,
        api: Api,
        key: K,
        reply: Reply[V] | NoResponseError | KafkaError,
        results: Results[K, V],
        nodes: dict[K, int],
        why: dict[K, str],
        final_codes: Collection[int],
    ) -> None:
        if isinstance(reply, KafkaError):
            results.failed[key] = reply
        elif isinstance(reply, NoResponseError):
            _remember(why, key, reply)
            del nodes[key]
        elif reply.error_code == 0 and reply.value is not None:
            results.done[key] = reply.value
        elif reply.error_code not in final_codes and error_class(api, reply.error_code) in RETRIABLE:
            why[key] = f"broker {nodes[key]} returned {error_name(reply.error_code)} for {api.kafka_name}"
            if error_class(api, reply.error_code) is ErrorClass.RETRIABLE_AFTER_LOOKUP:
                del nodes[key]
        else:
            results.failed[key] = failure(api, reply.error_code, key)

    async def request_once(self, node_id: int, call: Call[T], deadline_s: float) -> T:
        """Send a request without repeating it. Raises `NoResponseError`, `UnsupportedByBrokerError`."""
        return await self._transport.request(node_id, call, deadline_s)

    async def transaction_version(self, node_id: int, deadline_s: float) -> int:
        """Return the finalised `transaction.version` that a broker has reported. Raises as `request_once` does."""
        return await self._transport.transaction_version(node_id, deadline_s)

    async def greatest_version(self, node_id: int, api: Api, deadline_s: float) -> int:
        """Return the greatest version that a broker supports, -1 for none. Raises `NoResponseError`."""
        return await self._transport.greatest_version(node_id, api, deadline_s)


def leaders_in(metadata: ClusterMetadata, partitions: Iterable[TopicPartition]) -> Located[TopicPartition]:
    """Return the leaders of partitions by this metadata. A topic or partition that it does not have fails."""
    nodes: dict[TopicPartition, int] = {}
    failed: dict[TopicPartition, KafkaError] = {}
    not_yet: dict[TopicPartition, str | NoResponseError] = {}
    for partition in partitions:
        topic = metadata.topics.get(partition.topic)
        error_code = UNKNOWN_TOPIC if topic is None else topic.error_code
        leader = None if topic is None else topic.leaders.get(partition.partition)
        if error_code == 0 and leader is None:
            error_code = UNKNOWN_TOPIC
        if error_code not in (0, _LEADER_NOT_AVAILABLE):
            failed[partition] = failure(Api.METADATA, error_code, partition)
        elif leader is None or leader[0] == _NO_LEADER:
            not_yet[partition] = f"{name_of(partition)} has no leader"
        else:
            nodes[partition] = leader[0]
    return Located(nodes, failed, not_yet)


def _remember(why: dict[K, str], key: K, reason: str | NoResponseError) -> None:
    """Keep the newest informative reason: that the caller's time is up does not replace an earlier one."""
    if not isinstance(reason, NoResponseError) or not reason.out_of_time or key not in why:
        why[key] = str(reason)


def _by_node(keys: Sequence[K], nodes: Mapping[K, int]) -> dict[int, list[K]]:
    by_node: dict[int, list[K]] = {}
    for key in keys:
        if key in nodes:
            by_node.setdefault(nodes[key], []).append(key)
    return by_node


def _in_parts(keys: Sequence[T]) -> list[Sequence[T]]:
    return [keys[begin : begin + MAX_KEYS_PER_REQUEST] for begin in range(0, len(keys), MAX_KEYS_PER_REQUEST)]


def name_of(key: Any) -> str:
    """Return a key's name for error texts: `orders-0` for a partition."""
    return f"{key.topic}-{key.partition}" if isinstance(key, TopicPartition) else str(key)
