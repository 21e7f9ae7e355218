"""Run one call for many keys: send each to the responsible broker, and repeat until each has a result or time is up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from dualwrite.client.admin import codec
from dualwrite.client.admin.codec import Call, ClusterMetadata, Reply
from dualwrite.client.admin.results import BrokerDescription
from dualwrite.client.admin.transport import AdminTransport, NoResponseError
from dualwrite.client.backoff import Backoff
from dualwrite.client.error_texts import error_name, missing_right
from dualwrite.client.messages import ANY_NODE
from dualwrite.client.records.record import TopicPartition
from dualwrite.config import AdminConfig
from dualwrite.errors import (
    NETWORK_EXCEPTION,
    AdminError,
    Api,
    AuthorizationError,
    ErrorClass,
    KafkaError,
    KafkaTimeoutError,
    UnsupportedByBrokerError,
    error_class,
)

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")

MAX_KEYS_PER_REQUEST: Final = 500
"""Requests for many partitions of one broker are split, as kafka-transactions.sh does."""

_UNKNOWN_TOPIC: Final = 3
_LEADER_NOT_AVAILABLE: Final = 5
_NO_LEADER: Final = -1
RETRIABLE: Final = (ErrorClass.RETRIABLE, ErrorClass.RETRIABLE_AFTER_LOOKUP)
"""The error classes after which a request is repeated."""


class Results(NamedTuple, Generic[K, V]):
    """The results by key, and why the other keys have none."""

    done: dict[K, V]
    failed: dict[K, KafkaError]


class Located(NamedTuple, Generic[K]):
    """The responsible broker of each key, the keys that never have one, and why others have none yet."""

    nodes: Mapping[K, int]
    failed: Mapping[K, KafkaError]
    not_yet: Mapping[K, str | NoResponseError]


# What to do about a refusal, if the error's name does not say it.
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

    def __init__(self, config: AdminConfig, transport: AdminTransport) -> None:
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

    async def metadata(self, topics: Sequence[str] | None, deadline_s: float) -> ClusterMetadata:
        """Request metadata from any broker that responds. Raises `KafkaTimeoutError`."""
        backoff = self.new_backoff()
        why: dict[str, str] = {}
        while True:
            try:
                response = await self._transport.request(ANY_NODE, codec.metadata(topics), deadline_s)
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
        metadata = await self.metadata(topics, deadline_s)
        nodes: dict[TopicPartition, int] = {}
        failed: dict[TopicPartition, KafkaError] = {}
        not_yet: dict[TopicPartition, str | NoResponseError] = {}
        for partition in partitions:
            topic = metadata.topics.get(partition.topic)
            error_code = _UNKNOWN_TOPIC if topic is None else topic.error_code
            leader = None if topic is None else topic.leaders.get(partition.partition)
            if error_code == 0 and leader is None:
                error_code = _UNKNOWN_TOPIC
            if error_code not in (0, _LEADER_NOT_AVAILABLE):
                failed[partition] = failure(Api.METADATA, error_code, partition)
            elif leader is None or leader[0] == _NO_LEADER:
                not_yet[partition] = f"{name_of(partition)} has no leader"
            else:
                nodes[partition] = leader[0]
        return Located(nodes, failed, not_yet)

    async def coordinators(self, transactional_ids: Sequence[str], deadline_s: float) -> Located[str]:
        """Look up the transaction coordinators of ids."""
        nodes: dict[str, int] = {}
        failed: dict[str, KafkaError] = {}
        not_yet: dict[str, str | NoResponseError] = {}
        for some in _in_parts(transactional_ids):
            try:
                replies = await self._transport.request(ANY_NODE, codec.find_coordinators(some), deadline_s)
            except NoResponseError as error:
                not_yet |= dict.fromkeys(some, error)
                continue
            for key in some:
                code, broker = replies.get(key, Reply(NETWORK_EXCEPTION))
                if code == 0 and broker is not None:
                    nodes[key] = broker.node_id
                    self._transport.learn_brokers([BrokerDescription(*broker, rack=None)])
                elif error_class(Api.FIND_COORDINATOR, code) in RETRIABLE:
                    not_yet[key] = f"FindCoordinator for {key!r} was answered with {error_name(code)}"
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
                except KafkaTimeoutError as error:  # keep the results that there are
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
            why[key] = f"broker {nodes[key]} answered {api.kafka_name} with {error_name(reply.error_code)}"
            if error_class(api, reply.error_code) is ErrorClass.RETRIABLE_AFTER_LOOKUP:
                del nodes[key]
        else:
            results.failed[key] = failure(api, reply.error_code, key)

    async def request_once(self, node_id: int, call: Call[T], deadline_s: float) -> T:
        """Send a request without repeating it. Raises `NoResponseError`, `UnsupportedByBrokerError`."""
        return await self._transport.request(node_id, call, deadline_s)

    async def greatest_version(self, node_id: int, api: Api, deadline_s: float) -> int:
        """Return the greatest version that a broker supports, -1 for none. Raises `NoResponseError`."""
        return await self._transport.greatest_version(node_id, api, deadline_s)


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
