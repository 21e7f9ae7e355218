"""Read the topic with another library's consumer, committed transactions only."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from examples.flights.comparison import TopicRecord
from examples.flights.errors import ServiceError, UnfinishedTransactionError

_REQUEST_TIMEOUT_S = 10.0
_CHECK_TIMEOUT_S = 0.5
_POLL_S = 0.2

# confluent-kafka's public constants, despite their underscores
_ALL_BROKERS_DOWN = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001
_PARTITION_EOF = KafkaError._PARTITION_EOF  # noqa: SLF001


def read_topic(bootstrap_servers: str, topic: str, *, timeout_s: float = 60) -> list[TopicRecord]:
    """Return every committed record, up to the end of the log; partitions interleave.

    Raises UnfinishedTransactionError if an open transaction still hides the end after `timeout_s`, and ServiceError if
    the broker does not respond.
    """
    try:
        ends = _log_ends(bootstrap_servers, topic)
        return _read_committed(bootstrap_servers, ends, time.monotonic() + timeout_s)
    except KafkaException as error:
        raise ServiceError(f"topic {topic} cannot be read: {error.args[0]}") from error


def check_brokers(bootstrap_servers: str) -> None:
    """Raise ServiceError, with the reason, if no broker responds there."""
    errors: list[KafkaError] = []
    consumer = _consumer(bootstrap_servers, "read_committed", error_cb=errors.append, log_level=0)
    deadline_s = time.monotonic() + _REQUEST_TIMEOUT_S
    try:
        while not _responds(consumer):
            if time.monotonic() > deadline_s or any(error.code() == _ALL_BROKERS_DOWN for error in errors):
                reason = errors[0].str() if errors else f"no response within {_REQUEST_TIMEOUT_S:g} s"
                raise ServiceError(f"no broker responds at {bootstrap_servers}: {reason}")
    finally:
        consumer.close()


def _responds(consumer: Consumer) -> bool:
    try:
        consumer.list_topics(timeout=_CHECK_TIMEOUT_S)
    except KafkaException:
        consumer.poll(0)  # calls error_cb
        return False
    return True


def _consumer(bootstrap_servers: str, isolation_level: str, **more: Any) -> Consumer:
    return Consumer(
        {
            **more,
            "bootstrap.servers": bootstrap_servers,
            "group.id": "flights-demo-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation_level,
            "fetch.wait.max.ms": 50,
        }
    )


def _log_ends(bootstrap_servers: str, topic: str) -> dict[TopicPartition, int]:
    """Return the end of each partition, open transactions included."""
    consumer = _consumer(bootstrap_servers, "read_uncommitted")
    try:
        described = consumer.list_topics(topic, timeout=_REQUEST_TIMEOUT_S).topics[topic]
        partitions = [TopicPartition(topic, number, OFFSET_BEGINNING) for number in sorted(described.partitions)]
        return {
            partition: consumer.get_watermark_offsets(partition, timeout=_REQUEST_TIMEOUT_S)[1]
            for partition in partitions
        }
    finally:
        consumer.close()


def _read_committed(bootstrap_servers: str, ends: dict[TopicPartition, int], deadline_s: float) -> list[TopicRecord]:
    unread = {partition.partition: end for partition, end in ends.items() if end > 0}
    records: list[TopicRecord] = []
    consumer = _consumer(bootstrap_servers, "read_committed")
    try:
        consumer.assign(list(ends))
        while unread:
            message = consumer.poll(_POLL_S)
            if message is not None:
                _take(message, records, unread)
            elif time.monotonic() > deadline_s:
                raise UnfinishedTransactionError(
                    f"a transaction is still open in {ends and next(iter(ends)).topic}, partitions "
                    f"{', '.join(map(str, sorted(unread)))}: a read_committed consumer cannot read to the end"
                )
    finally:
        consumer.close()
    return records


def _take(message: Message, records: list[TopicRecord], unread: dict[int, int]) -> None:
    """Store a record, or note that a partition was read to its end; aborted records and markers are not returned."""
    error, partition, offset = message.error(), message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    if error is None:
        records.append(TopicRecord(partition, offset, _text(message.key()), _text(message.value())))
    elif error.code() != _PARTITION_EOF:
        raise KafkaException(error)
    elif offset >= unread.get(partition, 0):
        unread.pop(partition, None)


def _text(content: bytes | str | None) -> str | None:
    """Decode a key or value; None stays None, because a missing key is not an empty one."""
    return content.decode(errors="replace") if isinstance(content, bytes) else content
