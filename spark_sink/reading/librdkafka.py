"""`Cluster` and `Records` with confluent-kafka, which is librdkafka: the faster of the two libraries."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import import_module
from typing import Any, Final, TypeVar

import confluent_kafka
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from spark_sink.errors import SinkOptionError, SourceReadError
from spark_sink.reading.clients import OffsetOutOfRangeError, retried
from spark_sink.reading.kafka_settings import READ_COMMITTED, WAIT_AT_THE_END_MS, api_timeout_ms, for_librdkafka
from spark_sink.reading.offsets import OffsetRange, Offsets, Partition
from spark_sink.reading.rows import NO_TIMESTAMP_TYPE, Chunk

_log = logging.getLogger("spark_sink.librdkafka")

_ONLY_OF_CONSUMERS: Final = (
    *("isolation.level", "fetch.max.bytes", "fetch.min.bytes", "fetch.wait.max.ms", "max.partition.fetch.bytes"),
    *("check.crcs", "client.rack", "group.id"),
)
_Response = TypeVar("_Response")
_MOST_MESSAGES: Final = 1_000
_WAIT_S: Final = 0.25

# The errors of librdkafka itself, from `rd_kafka_resp_err_t`: confluent-kafka has names for them that look private.
# tests/spark/test_source_options.py compares the two.
NOENT: Final = -156
AUTO_OFFSET_RESET: Final = -140
TIMED_OUT: Final = -185
ALL_BROKERS_DOWN: Final = -187
PARTITION_EOF: Final = -191
RESOLVE: Final = -193
TRANSPORT: Final = -195

_TRANSIENT: Final = frozenset(
    {
        TRANSPORT,
        ALL_BROKERS_DOWN,
        TIMED_OUT,
        RESOLVE,
        NOENT,  # no leaders found, as while a broker starts
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        # the group is only a name: no offset is committed, and no consumer joins
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    }
)
"""The errors that librdkafka reports and recovers from by itself."""


class ConfluentCluster:
    """A `Cluster`, for the driver."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        wanted = for_librdkafka(settings)
        self._committed = wanted["isolation.level"] == READ_COMMITTED
        self._timeout_s = api_timeout_ms(settings) / 1000
        self._config = {name: value for name, value in wanted.items() if name not in _ONLY_OF_CONSUMERS}
        self._connect()
        self._spec: Any = import_module("confluent_kafka.admin").OffsetSpec

    def _connect(self) -> None:
        self._admin: Any = _made(AdminClient, self._config)

    def partitions(self, topics: Collection[str] | None) -> Mapping[str, Collection[int]]:
        if topics is None:
            return self._all_topics()
        return self._query("its topics", lambda: self._described(confluent_kafka.TopicCollection(list(topics))))

    def _described(self, topics: Any) -> Mapping[str, Collection[int]]:
        """Describe topics with a request that does not create them, as list_topics(topic) does."""
        found = {}
        for topic, description in self._admin.describe_topics(topics, request_timeout=self._timeout_s).items():
            try:
                found[topic] = sorted(each.id for each in description.result().partitions)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        return found

    def _all_topics(self) -> Mapping[str, Collection[int]]:
        found = self._query("its topics", lambda: self._admin.list_topics(timeout=self._timeout_s)).topics
        return {
            name: sorted(each.partitions)
            for name, each in found.items()
            if each.error is None and not name.startswith("__")
        }

    def beginnings(self, partitions: Collection[Partition]) -> Offsets:
        return self._offsets(partitions, self._spec.earliest(), committed=False)

    def ends(self, partitions: Collection[Partition]) -> Offsets:
        return self._offsets(partitions, self._spec.latest(), committed=self._committed)

    def high_watermarks(self, partitions: Collection[Partition]) -> Offsets:
        return self._offsets(partitions, self._spec.latest(), committed=False)

    def at_time(self, partitions: Collection[Partition], timestamp_ms: int) -> Mapping[Partition, int | None]:
        found = self._offsets(partitions, self._spec.for_timestamp(timestamp_ms), committed=False)
        return {partition: offset if offset >= 0 else None for partition, offset in found.items()}

    def _offsets(self, partitions: Collection[Partition], spec: Any, *, committed: bool) -> dict[Partition, int]:
        if not partitions:
            return {}
        levels = confluent_kafka.IsolationLevel
        level = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        queried = {confluent_kafka.TopicPartition(*each): spec for each in partitions}

        def call() -> dict[Partition, int]:
            responses = self._admin.list_offsets(queried, isolation_level=level, request_timeout=self._timeout_s)
            offsets = {
                Partition(each.topic, each.partition): found.result().offset for each, found in responses.items()
            }
            if OFFSET_INVALID in offsets.values():  # the connection broke, which is not reported as an error
                raise KafkaException(KafkaError(TRANSPORT))
            return offsets

        return self._query("offsets", call)

    def _query(self, what: str, call: Callable[[], _Response]) -> _Response:
        try:
            return retried(call, self._reconnects, self._timeout_s)
        except KafkaException as error:
            raise _refused(what, error) from error

    def _reconnects(self, error: Exception) -> bool:
        """Return whether an error is transient; then connect again, because this client keeps outdated leaders."""
        if not isinstance(error, KafkaException) or error.args[0].code() not in _TRANSIENT:
            return False
        self._connect()
        return True

    def close(self) -> None:
        del self._admin


class ConfluentRecords:
    """A `Records`, for a task."""

    def __init__(self, settings: Mapping[str, str], group_prefix: str) -> None:
        self._known: set[str] = set()
        self._timeout_s = api_timeout_ms(settings) / 1000
        self._consumer: Any = _made(
            Consumer,
            {
                "group.id": group_prefix,  # a name that librdkafka requires
                "fetch.wait.max.ms": WAIT_AT_THE_END_MS,
                **for_librdkafka(settings),
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
            },
        )

    def read(self, wanted: OffsetRange, *, headers: bool, patience_ms: int) -> Iterator[Chunk]:
        """See `Records.read`. Reads until a message, or the end of the partition, reaches the end of the range.

        librdkafka's own position stays before markers and aborted records; the end of the partition that it reports
        does not.
        """
        self._look_up(wanted.partition.topic)
        self._consumer.assign([confluent_kafka.TopicPartition(*wanted.partition, wanted.start)])
        patience_s = patience_ms / 1000
        deadline = time.monotonic() + patience_s
        position = wanted.start
        while position < wanted.end:
            messages = self._consumer.consume(_MOST_MESSAGES, timeout=0)
            if not messages:
                message = self._consumer.poll(_WAIT_S)
                messages = [] if message is None else [message]
            position, chunk = _sorted_out(messages, wanted, position, headers)
            if messages and (chunk.offsets or position >= wanted.end):
                deadline = time.monotonic() + patience_s
            if chunk.offsets:
                yield chunk
            elif time.monotonic() > deadline:
                raise SourceReadError(
                    f"Kafka has returned nothing of {wanted.partition} from offset {position} on for {patience_ms} ms, "
                    f"although the batch continues to offset {wanted.end}; see kafkaConsumer.pollTimeoutMs"
                )
        self._consumer.unassign()

    def _look_up(self, topic: str) -> None:
        """Query the topic now: librdkafka looks up the leaders of a new topic up to a second after assign()."""
        if topic not in self._known:
            try:
                self._consumer.list_topics(topic, timeout=self._timeout_s)
            except KafkaException as error:
                raise _refused(f"the topic {topic}", error) from error
            self._known.add(topic)

    def close(self) -> None:
        self._consumer.close()


def _sorted_out(messages: Collection[Any], wanted: OffsetRange, position: int, headers: bool) -> tuple[int, Chunk]:
    """Return the next position, and the records among these messages that are in the range."""
    records = []
    for message in messages:
        error = message.error()
        if error is None:
            records.append(message)
        elif error.code() == PARTITION_EOF:
            position = max(position, message.offset())
        else:
            _raise_unless_transient(error, wanted)
    if records:
        position = max(position, records[-1].offset() + 1)
        if position > wanted.end:
            records = [each for each in records if each.offset() < wanted.end]
    stamps = [each.timestamp() for each in records]
    return position, Chunk(
        [each.key() for each in records],
        [each.value() for each in records],
        [each.offset() for each in records],
        [milliseconds if kind else None for kind, milliseconds in stamps],
        [kind - 1 if kind else NO_TIMESTAMP_TYPE for kind, _ in stamps],
        [each.headers() for each in records] if headers else [],
    )


def _raise_unless_transient(error: Any, wanted: OffsetRange) -> None:
    if error.code() in (AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise OffsetOutOfRangeError(error.str())
    if error.fatal() or error.code() not in _TRANSIENT:
        raise _refused(f"records of {wanted.partition}", KafkaException(error))


def _made(client: Any, config: Mapping[str, Any]) -> Any:
    try:
        return client(dict(config), logger=_log)
    except KafkaException as error:
        raise SinkOptionError(f"librdkafka refuses the options kafka.*: {error.args[0].str()}") from error


def _refused(what: str, error: KafkaException) -> SourceReadError:
    return SourceReadError(f"Kafka was queried for {what}, and confluent-kafka reports: {error.args[0].str()}")
