"""`Cluster` and `Records` with kafka-python, which dualwrite requires anyway: slower, but already installed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import import_module
from typing import Any, Final, TypeVar

from spark_sink.errors import SourceReadError
from spark_sink.reading.clients import OffsetOutOfRangeError, retried
from spark_sink.reading.kafka_settings import (
    READ_UNCOMMITTED,
    WAIT_AT_THE_END_MS,
    api_timeout_ms,
    connection_of_kafka_python,
    fetching_of_kafka_python,
)
from spark_sink.reading.offsets import EARLIEST, LATEST, OffsetRange, Offsets, Partition
from spark_sink.reading.rows import NO_TIMESTAMP_TYPE, Chunk

_MOST_RECORDS: Final = 2_000
_SHORTEST_WAIT_MS: Final = 2
_LONGEST_WAIT_MS: Final = 100

_Response = TypeVar("_Response")


class KafkaPythonCluster:
    """A `Cluster`, for the driver."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._level = settings["isolation.level"]
        self._timeout_ms = api_timeout_ms(settings)
        self._kafka: Any = import_module("kafka")
        self._admin = _called(
            "a connection", lambda: self._kafka.KafkaAdminClient(**connection_of_kafka_python(settings))
        )

    def partitions(self, topics: Collection[str] | None) -> Mapping[str, Collection[int]]:
        wanted = None if topics is None else list(topics)
        described = self._query("its topics", lambda: self._admin.describe_topics(wanted))
        found = {}
        for topic in described:
            code = topic["error_code"]
            if code not in (0, _UNKNOWN_TOPIC):
                error = import_module("kafka.errors").for_code(code)
                raise SourceReadError(
                    f"Kafka was queried for the topic {topic['name']}, and responds: {error.__name__}"
                )
            if code == 0 and not (topics is None and topic["is_internal"]):
                found[topic["name"]] = tuple(sorted(each["partition_index"] for each in topic["partitions"]))
        return found

    def beginnings(self, partitions: Collection[Partition]) -> Offsets:
        return self._offsets(partitions, EARLIEST, READ_UNCOMMITTED)

    def ends(self, partitions: Collection[Partition]) -> Offsets:
        return self._offsets(partitions, LATEST, self._level)

    def high_watermarks(self, partitions: Collection[Partition]) -> Offsets:
        return self._offsets(partitions, LATEST, READ_UNCOMMITTED)

    def at_time(self, partitions: Collection[Partition], timestamp_ms: int) -> Mapping[Partition, int | None]:
        found = self._offsets(partitions, timestamp_ms, READ_UNCOMMITTED)
        return {partition: offset if offset >= 0 else None for partition, offset in found.items()}

    def _offsets(self, partitions: Collection[Partition], timestamp: int, level: str) -> dict[Partition, int]:
        if not partitions:
            return {}
        queried = {self._kafka.TopicPartition(*each): timestamp for each in partitions}
        responses = self._query(
            "offsets", lambda: self._admin.list_partition_offsets(queried, level, timeout_ms=self._timeout_ms)
        )
        return {Partition(*each): response.offset for each, response in responses.items()}

    def _query(self, what: str, call: Callable[[], _Response]) -> _Response:
        return _called(what, lambda: retried(call, _is_transient, self._timeout_ms / 1000))

    def close(self) -> None:
        self._admin.close()


_UNKNOWN_TOPIC: Final = 3


class KafkaPythonRecords:
    """A `Records`, for a task."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._kafka: Any = import_module("kafka")
        self._errors: Any = import_module("kafka.errors")
        wanted = {"fetch_max_wait_ms": WAIT_AT_THE_END_MS} | fetching_of_kafka_python(settings)
        self._consumer = _called(
            "a connection",
            lambda: self._kafka.KafkaConsumer(
                **connection_of_kafka_python(settings),
                **wanted,
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="none",
                allow_auto_create_topics=False,
            ),
        )

    def read(self, wanted: OffsetRange, *, headers: bool, patience_ms: int) -> Iterator[Chunk]:
        """See `Records.read`. Reads until the position reaches the end of the range; it moves past markers too."""
        partition = self._kafka.TopicPartition(*wanted.partition)
        self._consumer.assign([partition])
        self._consumer.seek(partition, wanted.start)
        position, wait_ms = wanted.start, _SHORTEST_WAIT_MS
        deadline = time.monotonic() + patience_ms / 1000
        while position < wanted.end:
            records = self._poll(wanted, wait_ms).get(partition, ())
            reached = records[-1].offset + 1 if records else self._consumer.position(partition)
            if reached > position:
                position, wait_ms = reached, _SHORTEST_WAIT_MS
                deadline = time.monotonic() + patience_ms / 1000
            else:  # poll() waits for records, and does not return if only the position has moved
                wait_ms = min(2 * wait_ms, _LONGEST_WAIT_MS)
            inside = [each for each in records if each.offset < wanted.end] if position > wanted.end else records
            if inside:
                yield _chunk(inside, headers)
            elif time.monotonic() > deadline:
                raise SourceReadError(
                    f"Kafka has returned nothing of {wanted.partition} from offset {position} on for {patience_ms} ms, "
                    f"although the batch continues to offset {wanted.end}; see kafkaConsumer.pollTimeoutMs"
                )
        self._consumer.assign([])

    def _poll(self, wanted: OffsetRange, wait_ms: int) -> Mapping[Any, Any]:
        try:
            found: Mapping[Any, Any] = self._consumer.poll(wait_ms, max_records=_MOST_RECORDS)
        except (self._errors.OffsetOutOfRangeError, self._errors.NoOffsetForPartitionError) as error:
            raise OffsetOutOfRangeError(str(error)) from error
        except self._errors.KafkaError as error:
            raise _refused(f"records of {wanted.partition}", error) from error
        return found

    def close(self) -> None:
        self._consumer.close()


def _chunk(records: Collection[Any], headers: bool) -> Chunk:
    return Chunk(
        [each.key for each in records],
        [each.value for each in records],
        [each.offset for each in records],
        [each.timestamp if each.timestamp >= 0 else None for each in records],
        [each.timestamp_type if each.timestamp >= 0 else NO_TIMESTAMP_TYPE for each in records],
        [each.headers for each in records] if headers else [],
    )


def _called(what: str, call: Callable[[], _Response]) -> _Response:
    try:
        return call()
    except import_module("kafka.errors").KafkaError as error:
        raise _refused(what, error) from error


def _is_transient(error: Exception) -> bool:
    unknown = import_module("kafka.errors").UnknownTopicOrPartitionError
    return bool(getattr(error, "retriable", False)) and not isinstance(error, unknown)


def _refused(what: str, error: Exception) -> SourceReadError:
    return SourceReadError(f"Kafka was queried for {what}, and kafka-python reports: {type(error).__name__}: {error}")
