"""Carry requests and responses between the state machines and the brokers.

Everything happens in `pump()`, which runs in the loop after any change: a call of the application, a response, a
connection, a timer. It gets the next requests from the state machines, writes them to sockets and returns. There is no
task per request: a response leads to the next request within the same turn of the loop, so that a one-record
transaction is two round trips and one wake-up of the loop.

`lock` guards the state machines, because applications append records from their own threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeVar

from dualwrite.client import messages as m
from dualwrite.client.error_texts import LastError, error_name, missing_right
from dualwrite.client.late_log import log_guarded
from dualwrite.client.operations import Operation
from dualwrite.client.pacing import MarkerPace
from dualwrite.client.producer_port import Outgoing, ProducerPort
from dualwrite.client.records.accumulator import Accumulator
from dualwrite.client.records.delivery import TOO_LARGE, DeliveryResult, delivery_result
from dualwrite.client.records.partition_queue import Batch
from dualwrite.client.transactions.states import Event
from dualwrite.client.wire import codec, frames
from dualwrite.client.wire.cluster import Lease
from dualwrite.client.wire.connection import Connection
from dualwrite.client.wire.malformed import MalformedResponseError
from dualwrite.client.wire.pool import NodeState
from dualwrite.client.wire.versions import SPOKEN_VERSIONS, common_version, versions_in_transaction, versions_wanted
from dualwrite.errors import (
    NETWORK_EXCEPTION,
    Api,
    DeliveryError,
    ErrorClass,
    FatalError,
    InvalidRecordError,
    KafkaError,
    KafkaUnreachableError,
    UnsupportedByBrokerError,
    error_class,
    exception_for,
)

T = TypeVar("T")

_log = logging.getLogger(__name__)

_NEVER: Final = float("inf")
_INVALID_TOPIC: Final = 17
_JUST_MS: Final = 5_000
"""For how long the last response about a topic counts; it is requested again about once a second."""


class _Produce(NamedTuple):
    """A Produce request that is to be sent."""

    connection: Connection
    node_id: int
    batches: list[Batch]


class Sender:
    """The traffic of one producer. All methods run in the loop, unless they say otherwise."""

    def __init__(
        self,
        *,
        lock: threading.Lock,
        manager: ProducerPort,
        accumulator: Accumulator,
        cluster: Lease,
        encoder: frames.ProduceEncoder,
        transactional: bool,
        expects_responses: bool,
        max_in_flight: int,
        linger_ms: float,
        clock_ms: Callable[[], float],
        last_error: LastError,
        unreachable_timeout_ms: float | None,
        on_obstructed: Callable[[KafkaError], None],
    ) -> None:
        """`on_obstructed` ends the waits of all callers with an error; it is called under the lock."""
        self.timer_at_ms = _NEVER
        self._lock = lock
        self._manager = manager
        self._accumulator = accumulator
        self._metrics = accumulator.metrics
        self._topology = cluster.topology
        self._cluster = cluster
        self._encoder = encoder
        self._transactional = transactional
        self._expects_responses = expects_responses
        self._max_in_flight = max_in_flight
        self._linger_ms = linger_ms
        self._clock_ms = clock_ms
        self._last_error = last_error
        self._unreachable_timeout_ms = unreachable_timeout_ms
        self._on_obstructed = on_obstructed
        self._pace = MarkerPace()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._outgoing: Outgoing | None = None
        self._produces_in_flight: dict[int, int] = {}
        self._topic_waiters: dict[str, Operation] = {}
        self._unavailable_topics: dict[str, tuple[int, float]] = {}
        self._new_topics: list[str] = []
        cluster.serve(self)

    @property
    def produces_in_flight(self) -> int:
        """The number of Produce requests without a response yet. May be read by any thread."""
        return sum(tuple(self._produces_in_flight.values()))

    # ---- called from other threads, under the lock ----------------------------------------------------------

    def want_topic(self, topic: str) -> Operation:
        """Return an operation that ends when the topic's partitions are known. The caller wakes the loop."""
        waiter = self._topic_waiters.get(topic)
        if waiter is None:
            waiter = self._topic_waiters[topic] = Operation(f"metadata of {topic}")
        elif waiter.has_waiting_caller:
            return waiter
        # Request it at once, even if earlier callers gave up: their back-off must not delay this one.
        self._new_topics.append(topic)
        return waiter

    # ---- the pump -------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send everything that can be sent. A bug in here must not leave callers waiting, so it ends the producer."""
        if self._closed:
            return
        try:
            self._pump()
        except BaseException as error:
            self._fail_on_bug(error)
        self._manager.late_log.flush()

    def _fail_on_bug(self, error: BaseException) -> None:
        """End the producer. An exception of a signal's handler, which leaves as much undone, is raised again."""
        cause = "a bug in" if isinstance(error, Exception) else "an interruption of"
        log_guarded(_log, logging.ERROR, "%s the producer; the producer is no longer usable", cause, exc_info=True)
        fatal = FatalError(f"{cause} the producer: {type(error).__name__}: {error}")
        fatal.__cause__ = error
        self._end_producer(fatal)
        if not isinstance(error, Exception):
            raise error

    def _end_producer(self, fatal: FatalError) -> None:
        with self._lock:
            self._manager.fail_fatal(fatal)
            self._accumulator.drop_all(fatal)
        self.on_no_metadata(tuple(self._topic_waiters), fatal)

    def _pump(self) -> None:
        now_ms = self._clock_ms()
        drained: list[_Produce] = []
        new_topics: list[str] = []
        with self._lock:
            # A transaction of one record comes here four times, and only once with batches to expire or to drain.
            if self._accumulator.active:
                self._expire_batches(now_ms)
            self._poll_manager(now_ms)
            if self._accumulator.active:
                drained = self._drain_all(now_ms)
                if self._manager.wants_partitions:  # draining found some that are not in the transaction
                    self._poll_manager(now_ms)
            if self._new_topics:
                new_topics, self._new_topics = self._new_topics, []
            awaits_topics = bool(self._topic_waiters)
        for topic in new_topics:
            self._cluster.want_topic(topic)
        if self._outgoing is not None:
            self._send_outgoing(now_ms, self._outgoing)
        for connection, node_id, batches in drained:
            self._send_produce(connection, node_id, batches)
        if awaits_topics and self._unreachable_timeout_ms is not None:
            self._cluster.to_any(now_ms)  # to be notified if that fails: metadata are requested elsewhere,
            self._cluster.notify_of_change()  # and may be lost with their connection
        # Without the lock: a thread that adds a batch or a call after this wakes the loop, or a timer is set for it.
        is_idle = self._outgoing is None and not self._accumulator.active and self._manager.retry_at_ms is None
        unreachable_at_ms = _NEVER
        if (awaits_topics or not is_idle) and self._cluster.is_obstructed:
            self._end_waits_on_refusal()
            unreachable_at_ms = self._end_waits_if_unreachable(now_ms)
        if not is_idle or unreachable_at_ms < self.timer_at_ms:
            self._arm_timer(now_ms, unreachable_at_ms)

    def _end_waits_on_refusal(self) -> None:
        """Fail callers at once, without waiting for the timeout, if a broker has refused the login.

        Their requests stay queued. A producer whose addresses lead to another cluster ends.
        """
        if isinstance(self._cluster.refusal, FatalError):
            self._outgoing = None
            self._end_producer(self._cluster.refusal)
            return
        with self._lock:
            refusal = self._cluster.refusal  # again: a caller that wants another try withdraws it under the lock
            if refusal is None or not self._anything_unsent():
                return
            self._on_obstructed(refusal)

    def _end_waits_if_unreachable(self, now_ms: float) -> float:
        """Fail callers if no broker has been reachable for `unreachable.timeout.ms`. Their requests stay queued.

        Return when to look again.
        """
        timeout_ms = self._unreachable_timeout_ms
        fails_at_ms = None if timeout_ms is None else self._cluster.fails_at_ms(timeout_ms)
        if fails_at_ms is None:
            return _NEVER
        with self._lock:
            if not self._anything_unsent():
                return _NEVER
        if now_ms < fails_at_ms:
            return fails_at_ms
        since_ms = self._cluster.unreachable_since_ms(now_ms)
        if since_ms is not None:
            since_s = (now_ms - since_ms) / 1000
            problem = self.obstacle(since_ms)
            sentence = f"no broker could be reached for {since_s:.1f} s ({problem})"
            with self._lock:
                self._on_obstructed(KafkaUnreachableError(sentence, since_s=since_s, problem=problem))
        return self._cluster.wake_at_ms(now_ms) or _NEVER

    def _anything_unsent(self) -> bool:
        return bool(
            self._outgoing is not None
            or self._manager.retry_at_ms is not None
            or self._topic_waiters
            or self._accumulator.active
        )

    def _expire_batches(self, now_ms: float) -> None:
        expired = self._accumulator.expire(now_ms, self.obstacle, self._consequence_of_expiry)
        for batch in expired:
            assert batch.error is not None
            self._manager.fail_abortable(batch.error)
        if self._manager.drops_unsent:
            self._accumulator.drop_waiting(_not_sent(self._manager.error))

    def _consequence_of_expiry(self) -> str:
        return self._manager.consequence(Event.ABORTABLE_FAILURE)

    def _poll_manager(self, now_ms: float) -> None:
        if self._outgoing is None:
            self._outgoing = self._manager.poll(now_ms, delivered=self._accumulator.incomplete == 0)

    def _drain_all(self, now_ms: float) -> list[_Produce]:
        """Drain batches into requests; several per node if a partition has several, up to the limit in flight."""
        drained: list[_Produce] = []
        if now_ms < self._pace.may_produce_at_ms:
            return drained
        while self._accumulator.active and self._manager.may_produce:
            more = self._drain(now_ms)
            if not more:
                break
            drained += more
        return drained

    def _drain(self, now_ms: float) -> list[_Produce]:
        ready: dict[int, Connection] = {}
        drained = self._accumulator.drain(
            now_ms,
            lambda topic, partition: self._ready_leader(topic, partition, now_ms, ready),
            self._manager.producer_id,
            self._manager.producer_epoch,
        )
        if drained:
            self._manager.produced()
            self._pace.produced(now_ms)
        requests: list[_Produce] = []
        for node_id, batches in drained.items():
            self._produces_in_flight[node_id] = self._produces_in_flight.get(node_id, 0) + 1
            requests.append(_Produce(ready[node_id], node_id, batches))
        return requests

    def _ready_leader(self, topic: str, partition: int, now_ms: float, ready: dict[int, Connection]) -> int:
        """Return the leader's node id if a request can be sent there now; else -1, and request the missing data."""
        node_id = self._topology.leader(topic, partition)
        if node_id < 0:
            self._cluster.refresh_metadata(now_ms)
            return -1
        in_flight = self._produces_in_flight.get(node_id, 0)
        if in_flight >= self._max_in_flight:
            return -1
        connection = ready.get(node_id) or self._cluster.to_leader(node_id, now_ms, in_flight=in_flight > 0)
        if not isinstance(connection, Connection):
            if connection is NodeState.FAILED:
                self._cluster.refresh_metadata(now_ms)
            return -1
        # only now: a request of the manager's to a leader that is being connected to would keep back all others
        if not self._manager.may_produce_to(topic, partition, node_id, self._cluster.losses(node_id)):
            return -1
        ready[node_id] = connection
        return node_id

    def _arm_timer(self, now_ms: float, unreachable_at_ms: float) -> None:
        """Set the timer to the next due time. A timer that is early costs one idle turn and is not replaced."""
        with self._lock:
            at_ms = self._due_at_ms(now_ms)
        if unreachable_at_ms < at_ms:
            at_ms = unreachable_at_ms
        if at_ms < self.timer_at_ms:
            self._set_timer(max(at_ms, now_ms), now_ms)

    def _due_at_ms(self, now_ms: float) -> float:
        at_ms = _NEVER
        retry_at_ms = self._manager.retry_at_ms
        if retry_at_ms is not None:
            at_ms = retry_at_ms
        if self._accumulator.active and self._manager.may_produce:
            at_ms = min(at_ms, self._accumulator.wake_at_ms(now_ms) or _NEVER)
            if now_ms < self._pace.may_produce_at_ms:
                at_ms = min(at_ms, self._pace.may_produce_at_ms)
        if self._outgoing is not None or self._accumulator.active:
            at_ms = min(at_ms, self._cluster.wake_at_ms(now_ms) or _NEVER)
        return at_ms

    def _set_timer(self, at_ms: float, now_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.timer_at_ms = at_ms
        # rounded up: a timer that fires a moment early would find nothing due and spin
        self._timer = asyncio.get_running_loop().call_later((at_ms - now_ms) / 1000 + 0.0005, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.timer_at_ms = _NEVER
        self.pump()

    # ---- Produce --------------------------------------------------------------------------------------------

    def _send_produce(self, connection: Connection, node_id: int, batches: list[Batch]) -> None:
        version = common_version(self._produce_versions(), connection.features.versions.get(Api.PRODUCE))
        if version is None:
            self._produces_in_flight[node_id] -= 1
            self._fail_produce_unsupported(batches)
            return
        body = self._encoder.encode(batches, version)
        self._metrics.requests += 1
        if not self._expects_responses:
            connection.send_without_response(Api.PRODUCE, version, body)
            self._produces_in_flight[node_id] -= 1
            with self._lock:
                for batch in batches:
                    self._accumulator.delivered(batch, -1, -1)
            asyncio.get_running_loop().call_soon(self.pump)
            return
        on_response = partial(self._on_produced, connection, node_id, batches, version, self._clock_ms())
        connection.send(Api.PRODUCE, version, body, on_response, self)

    def _produce_versions(self) -> tuple[int, int]:
        if self._transactional:
            return versions_in_transaction(Api.PRODUCE, self._manager.transaction_version)
        return SPOKEN_VERSIONS[Api.PRODUCE]

    def _fail_produce_unsupported(self, batches: list[Batch]) -> None:
        error = UnsupportedByBrokerError(
            f"the broker does not offer Produce v{self._produce_versions()[0]} to v{self._produce_versions()[1]}"
        )
        with self._lock:
            for batch in batches:
                self._accumulator.failed(batch, error)
            self._manager.fail_fatal(error)

    def _on_produced(
        self,
        connection: Connection,
        node_id: int,
        batches: list[Batch],
        version: int,
        sent_ms: float,
        body: memoryview | None,
    ) -> None:
        self._produces_in_flight[node_id] -= 1
        if self._closed:
            return
        now_ms = self._clock_ms()
        if body is not None:
            self._metrics.answered(now_ms - sent_ms)
            self._pace.answered(now_ms - sent_ms)
        try:
            answered = self._decoded(connection, partial(codec.decode_produce, version=version), body)
            results = {(result.topic, result.partition): result for result in answered or ()}
            with self._lock:
                if answered is None:
                    self._manager.produce_unanswered()
                for batch in batches:
                    if not batch.done:
                        self._settle(batch, results.get((batch.topic, batch.partition)), now_ms)
        except BaseException as error:
            self._fail_on_bug(error)
        self.pump()

    def _settle(self, batch: Batch, result: m.PartitionProduced | None, now_ms: float) -> None:
        error_code = NETWORK_EXCEPTION if result is None else result.error_code
        is_unresolved = batch.queue.has_unresolved_before(batch) or batch.follows_loss(self._manager.producer_epoch)
        outcome = delivery_result(error_code, record_count=batch.record_count, unresolved_before=is_unresolved)
        if outcome is DeliveryResult.DELIVERED:
            base_offset, time_ms = (result.base_offset, result.log_append_time_ms) if result is not None else (-1, -1)
            self._manager.stored(batch.topic, batch.partition, base_offset, batch.record_count)
            self._accumulator.delivered(batch, base_offset, time_ms)
            return
        if outcome is DeliveryResult.SEND_AGAIN_AFTER_LOOKUP:
            if result is not None:
                self._topology.forget_leader(batch.topic, batch.partition)
            self._cluster.refresh_metadata(now_ms)
        if outcome in (DeliveryResult.SEND_AGAIN, DeliveryResult.SEND_AGAIN_AFTER_LOOKUP):
            if result is not None:
                where = f"Produce to {batch.topic}-{batch.partition}"
                self._last_error.note(now_ms, f"{where} returned {error_name(error_code)}")
            self._accumulator.send_again(batch, now_ms, error_code)
            return
        if outcome is DeliveryResult.SPLIT:
            self._split(batch, error_code, now_ms)
            return
        self._lose(batch, error_code, result.message if result is not None else None, outcome)

    def _split(self, batch: Batch, error_code: int, now_ms: float) -> None:
        batch_size = f"a batch of {batch.record_count} records ({len(batch.data)} bytes)"
        where = f"for {batch.topic}-{batch.partition} was refused with {error_name(error_code)}"
        sentence = f"{batch_size} {where}: it is split and sent again"
        self._last_error.note(now_ms, sentence)
        if batch.whole is None:
            advice = "batch.size should not exceed the topic's max.message.bytes"
            self._manager.late_log.note(_log, logging.INFO, "%s; %s", sentence, advice)
        self._accumulator.split(batch)

    def _lose(self, batch: Batch, error_code: int, message: str | None, outcome: DeliveryResult) -> None:
        where = f"{batch.record_count} record(s) for {batch.topic}-{batch.partition}"
        right = missing_right(Api.PRODUCE, error_code, batch.topic)
        details = [f"the right that is missing is {right}"] if right is not None else []
        if error_code in TOO_LARGE:
            details.append(f"alone in its batch it takes {len(batch.data)} bytes, more than the topic allows")
        if batch.doubtful is not None:
            details.append("an earlier request without a response may have stored them")
        details += [message] if message else []
        event = Event.FATAL_FAILURE if outcome is DeliveryResult.FATAL else Event.ABORTABLE_FAILURE
        sentence = ": ".join([f"{where} were refused with {error_name(error_code)}", *details])
        sentence += self._manager.consequence(event)
        if outcome is DeliveryResult.FATAL:
            fatal = exception_for(Api.PRODUCE, error_code, sentence)
            self._accumulator.failed(batch, fatal)
            self._manager.fail_fatal(fatal)
        else:
            lost = DeliveryError(sentence, error_code=error_code)
            self._accumulator.failed(batch, lost)
            self._manager.fail_abortable(lost)

    # ---- the manager's requests ----------------------------------------------------------------------------

    def _send_outgoing(self, now_ms: float, outgoing: Outgoing) -> None:
        """Send the manager's request once its node is connected; report to it if the node cannot be reached."""
        if outgoing.node_id == m.ANY_NODE:
            found = self._cluster.to_any(now_ms)
            if not isinstance(found, Connection):
                return
        else:
            found = self._cluster.to_node(outgoing.node_id, now_ms)
            if found is NodeState.CONNECTING:
                return
        self._outgoing = None
        if not isinstance(found, Connection):
            with self._lock:
                self._manager.on_no_response(now_ms, sent=False)
            return
        self._send_request(found, outgoing.request)

    def _send_request(self, connection: Connection, request: m.Request) -> None:
        api = m.API_OF[type(request)]
        version = common_version(versions_wanted(request), connection.features.versions.get(api))
        if version is None:
            with self._lock:
                self._manager.on_unsupported(
                    UnsupportedByBrokerError(
                        f"the broker does not offer the version of {api.kafka_name} that is needed"
                    )
                )
            asyncio.get_running_loop().call_soon(self.pump)
            return
        body = codec.encode(request, version)
        connection.send(api, version, body, partial(self._on_response, connection, request, version), self)

    def _decoded(self, connection: Connection, decode: Callable[[memoryview], T], body: memoryview | None) -> T | None:
        """Return the response; None if there is none, or an unreadable one, after which the connection ends.

        In both cases the request may have been carried out, so it is sent again. A timed-out caller gets the reason.
        """
        if body is None:
            return None
        try:
            return decode(body)
        except MalformedResponseError as error:
            connection.drop(error)
            self._last_error.note(self._clock_ms(), connection.problem)
            return None

    def _on_response(self, connection: Connection, request: m.Request, version: int, body: memoryview | None) -> None:
        if self._closed:
            return
        now_ms = self._clock_ms()
        try:
            response = self._decoded(connection, partial(codec.decode, request, version=version), body)
            self._take_response(request, response, now_ms)
        except BaseException as error:
            self._fail_on_bug(error)
        if isinstance(request, m.EndTxn) and now_ms + self._linger_ms < self.timer_at_ms:
            # Otherwise the next transaction's first record would have to wake this loop to start its lingering.
            self._set_timer(now_ms + self._linger_ms, now_ms)
        self.pump()

    def _take_response(self, request: m.Request, response: m.Response | None, now_ms: float) -> None:
        with self._lock:
            if response is None:
                self._manager.on_no_response(now_ms, sent=True)
                return
            if isinstance(response, m.FindCoordinatorResponse) and response.error_code == 0:
                self._cluster.learn_broker(m.Broker(response.node_id, response.host, response.port))
            self._note_refusals(request, response, now_ms)
            if isinstance(response, m.DescribeProducersResponse):
                self._look_up_leaders(response, now_ms)
            self._manager.on_response(response, now_ms)
            if isinstance(response, m.EndTxnResponse) and response.error_code == 0:
                self._pace.ended(now_ms)

    def _note_refusals(self, request: m.Request, response: m.Response, now_ms: float) -> None:
        """Note error codes as the last error: most are retried, and the caller may time out before a retry succeeds."""
        for error_code in m.error_codes_of(response):
            if error_code:
                name = m.API_OF[type(request)].kafka_name
                self._last_error.note(now_ms, f"{name} returned {error_name(error_code)}")

    def _look_up_leaders(self, response: m.DescribeProducersResponse, now_ms: float) -> None:
        """Request metadata for partitions that the broker no longer leads."""
        for (topic, partition), described in response.partitions.items():
            if error_class(Api.DESCRIBE_PRODUCERS, described.error_code) is ErrorClass.RETRIABLE_AFTER_LOOKUP:
                self._topology.forget_leader(topic, partition)
                self._cluster.refresh_metadata(now_ms)

    # ---- notifications of the cluster -----------------------------------------------------------------------

    def on_change(self) -> None:
        """Go on after a requested connection or metadata has arrived or failed."""
        self.pump()

    def on_topic(self, topic: m.TopicMetadata) -> bool:
        """Notify callers that wait for a topic; return whether its metadata must be requested again."""
        with self._lock:
            waiter = self._topic_waiters.get(topic.name)
            if waiter is None:
                return False
            error = None if topic.error_code == 0 else _topic_error(topic)
            self._unavailable_topics[topic.name] = (topic.error_code, self._clock_ms())
            if topic.error_code == 0 and topic.leaders:
                self._unavailable_topics.pop(topic.name)
                self._end_topic_waiter(topic.name)
                return False
            if error is not None and error_class(Api.METADATA, topic.error_code) is not ErrorClass.RETRIABLE:
                self._end_topic_waiter(topic.name, error)
                return False
            sentence = f"Metadata for {topic.name!r} returned {error_name(topic.error_code)}"
            self._last_error.note(self._clock_ms(), sentence)
            if not waiter.has_waiting_caller:  # its caller has stopped waiting; one that is about to wait tries again
                self._end_topic_waiter(topic.name)
                return False
            return True

    def on_no_metadata(self, topics: tuple[str, ...], error: KafkaError) -> None:
        """End waits for topics whose metadata will never arrive."""
        with self._lock:
            for topic in topics:
                self._end_topic_waiter(topic, error)

    def _end_topic_waiter(self, topic: str, error: KafkaError | InvalidRecordError | None = None) -> None:
        waiter = self._topic_waiters.pop(topic, None)
        if waiter is not None:
            waiter.end(error)

    def obstacle(self, since_ms: float) -> str:
        """Return why a call has waited since `since_ms`, for its timeout error. May be called from any thread."""
        return self._cluster.obstacle(since_ms, self._last_error)

    def error_code_of(self, topic: str) -> int | None:
        """Return the error code with which Metadata was just answered for a topic; None if it was not."""
        with self._lock:
            error_code, at_ms = self._unavailable_topics.get(topic, (0, 0.0))
            return error_code if error_code and self._clock_ms() - at_ms < _JUST_MS else None

    # ---- the end --------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop, and fail all unacknowledged records."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        error = FatalError("the producer was closed before this was acknowledged")
        self.on_no_metadata(tuple(self._topic_waiters), error)
        with self._lock:
            self._accumulator.drop_all(error)
        await self._cluster.release()


def _not_sent(cause: KafkaError | None) -> KafkaError:
    """Return the error of records that are never going to be sent: fatal only if the producer's error is fatal."""
    if cause is None:
        return DeliveryError("not sent: the transaction was aborted")
    if isinstance(cause, FatalError):
        return cause.reworded(f"not sent: {cause}")
    dropped = DeliveryError(f"not sent: {cause}", error_code=cause.error_code)
    dropped.__cause__ = cause  # tells it from the batch that was refused itself
    return dropped


def _topic_error(topic: m.TopicMetadata) -> KafkaError | InvalidRecordError:
    if topic.error_code == _INVALID_TOPIC:
        return InvalidRecordError(f"{topic.name!r} is not a valid topic name; the record was not sent")
    right = missing_right(Api.METADATA, topic.error_code, topic.name)
    cause = error_name(topic.error_code) + ("" if right is None else f", the right that is missing is {right}")
    sentence = f"the topic {topic.name!r} cannot be used: {cause}; the record was not sent"
    return exception_for(Api.METADATA, topic.error_code, sentence)
