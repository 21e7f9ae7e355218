"""Parse and check the source's options, which have the names of Spark's own Kafka source."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from spark_sink.errors import SinkOptionError
from spark_sink.option_values import OptionNames, OptionValues
from spark_sink.reading.kafka_settings import checked_settings
from spark_sink.reading.offsets import EARLIEST, LATEST, TOPIC_ID, Json, Offsets, Partition, from_json

DEFAULT_POLL_TIMEOUT_MS: Final = 120_000
DEFAULT_GROUP_PREFIX: Final = "spark-kafka-source"


class Library(Enum):
    """`consumer.library`: the Kafka library. AUTO: confluent-kafka if it is installed, else kafka-python."""

    AUTO = "auto"
    CONFLUENT_KAFKA = "confluent-kafka"
    KAFKA_PYTHON = "kafka-python"


class OnNoTimestamp(Enum):
    """`startingOffsetsByTimestampStrategy`: how to proceed if no record is as late as `startingTimestamp`."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True)
class Topics:
    """The partitions to read; exactly one of the fields is set."""

    subscribe: tuple[str, ...] | None = None
    pattern: str | None = None
    """`subscribePattern`: a regular expression that must match the whole name of a topic."""
    assign: tuple[Partition, ...] | None = None


@dataclass(frozen=True)
class Bound:
    """A start or an end; one of the fields is set."""

    everywhere: int | None = None
    """EARLIEST or LATEST."""
    offsets: Offsets | None = None
    """Offsets by partition; may be EARLIEST or LATEST."""
    timestamp_ms: int | None = None
    """The first record with this or a later timestamp."""


@dataclass(frozen=True)
class SourceOptions:
    """The parsed options. Picklable; its repr has no secrets."""

    kafka: Mapping[str, str] = field(repr=False)
    """Consumer settings by the names of `docs/security.md` and of Kafka, without the prefix `kafka.`."""
    topics: Topics
    starting: Bound | None
    """None: latest for a stream, earliest for a batch query."""
    ending: Bound | None
    on_no_timestamp: OnNoTimestamp
    fail_on_data_loss: bool
    include_headers: bool
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    max_records_per_partition: int | None
    poll_timeout_ms: int
    group_prefix: str
    library: Library


def parse(options: Mapping[str, object]) -> SourceOptions:
    """Parse and check the options of a reader. Names may be in any case: Spark passes them in lower case.

    Raises SinkOptionError, whose text has no secret, for an unknown option (with the nearest name), a missing option,
    or an invalid value.
    """
    own, kafka = _OPTIONS.given(options)
    return SourceOptions(
        kafka=checked_settings(kafka),
        topics=_topics(own),
        starting=_bound(own, "startingOffsets", "startingTimestamp"),
        ending=_bound(own, "endingOffsets", "endingTimestamp"),
        on_no_timestamp=own.one_of("startingOffsetsByTimestampStrategy", OnNoTimestamp.ERROR),
        fail_on_data_loss=own.flag("failOnDataLoss", True),
        include_headers=own.flag("includeHeaders", False),
        max_offsets_per_trigger=_count(own, "maxOffsetsPerTrigger"),
        min_partitions=_count(own, "minPartitions"),
        max_records_per_partition=_count(own, "maxRecordsPerPartition"),
        poll_timeout_ms=own.number("kafkaConsumer.pollTimeoutMs", DEFAULT_POLL_TIMEOUT_MS, 1),
        group_prefix=own.text("groupIdPrefix") or DEFAULT_GROUP_PREFIX,
        library=own.one_of("consumer.library", Library.AUTO),
    )


def check_for_stream(options: SourceOptions) -> None:
    """Raise SinkOptionError for options that are only for batch queries."""
    if options.ending is not None:
        raise SinkOptionError(
            "endingOffsets and endingTimestamp are for batch queries (spark.read); a stream does not end, unless with "
            "trigger(availableNow=True), which reads the records that exist when it starts"
        )


def check_for_batch(options: SourceOptions) -> None:
    """Raise SinkOptionError for a batch query that would read nothing, and for options that are only for streams."""
    start, end = options.starting or Bound(), options.ending or Bound()
    if start.everywhere == LATEST or LATEST in (start.offsets or {}).values():
        raise SinkOptionError("startingOffsets: a batch query that starts at the latest offsets has nothing to read")
    if end.everywhere == EARLIEST or EARLIEST in (end.offsets or {}).values():
        raise SinkOptionError("endingOffsets: a batch query that ends at the earliest offsets has nothing to read")
    if options.max_offsets_per_trigger is not None:
        raise SinkOptionError("maxOffsetsPerTrigger is for streams; a batch query reads up to endingOffsets")


NAMES: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "failOnDataLoss",
    "includeHeaders",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "consumer.library",
)

_REFUSED: Final = {
    "path": "load() takes no path: set subscribe, subscribePattern or assign",
    "topic": "topic is an option of the sink; for a source, set subscribe, subscribePattern or assign",
    "startingoffsetsbytimestamp": (
        "startingOffsetsByTimestamp is not supported; startingTimestamp applies to all partitions"
    ),
    "endingoffsetsbytimestamp": "endingOffsetsByTimestamp is not supported; endingTimestamp applies to all partitions",
    "minoffsetspertrigger": (
        "minOffsetsPerTrigger is not supported, because Spark does not let a source in Python delay a batch; set "
        "trigger(processingTime=...)"
    ),
    "maxtriggerdelay": "maxTriggerDelay belongs to minOffsetsPerTrigger, which is not supported",
    "fetchoffset.numretries": "set kafka.default.api.timeout.ms, the time limit for querying offsets",
    "fetchoffset.retryintervalms": "set kafka.retry.backoff.ms, the time between two requests",
}
"""Names in lower case, in which all names are compared."""


_OPTIONS: Final = OptionNames(
    NAMES, refused=_REFUSED, of_kafka=("bootstrap.servers", "isolation.level"), client="consumer"
)


def _count(own: OptionValues, name: str) -> int | None:
    return None if own.text(name) is None else own.number(name, 1, 1)


def _topics(own: OptionValues) -> Topics:
    names = ("subscribe", "subscribePattern", "assign")
    if sum(own.text(name) is not None for name in names) != 1:
        raise SinkOptionError(f"set exactly one of the options {', '.join(names)}")
    pattern = own.text("subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise SinkOptionError(f"subscribePattern: {pattern!r} is not a regular expression ({error})") from error
    assigned = own.text("assign")
    return Topics(own.names("subscribe"), pattern, None if assigned is None else _assigned(assigned))


def _assigned(text: str) -> tuple[Partition, ...]:
    try:
        written = json.loads(text)
        found = [Partition(topic, number) for topic, numbers in written.items() for number in numbers]
    except (ValueError, TypeError, AttributeError) as error:
        raise SinkOptionError(f'assign: {text!r} is not JSON like {{"topic": [0, 1]}} ({error})') from error
    if not found or not all(isinstance(each.number, int) and each.number >= 0 for each in found):
        raise SinkOptionError(f'assign: {text!r} names no partitions; it must be JSON like {{"topic": [0, 1]}}')
    return tuple(sorted(set(found)))


def _bound(own: OptionValues, by_offset: str, by_time: str) -> Bound | None:
    """Return the start or the end. A timestamp takes precedence, as in Spark's own source."""
    if own.text(by_time) is not None:
        return Bound(timestamp_ms=_milliseconds(own, by_time))
    text = own.text(by_offset)
    if text is None:
        return None
    if text.strip().lower() in ("earliest", "latest"):
        return Bound(everywhere=EARLIEST if text.strip().lower() == "earliest" else LATEST)
    try:
        return Bound(offsets=_chosen(json.loads(text)))
    except ValueError as error:
        raise SinkOptionError(
            f'{by_offset}: {text!r} is not earliest, latest or JSON like {{"topic": {{"0": 12, "1": -2}}}} ({error})'
        ) from error


def _chosen(written: Json) -> Offsets:
    offsets, topic_ids = from_json(written)
    if topic_ids:
        raise ValueError(f"{TOPIC_ID} is only for checkpoints: leave it out, and the offsets are of the topic as it is")
    return offsets


def _milliseconds(own: OptionValues, name: str) -> int:
    value = (own.text(name) or "").strip()
    if not (value.isascii() and value.isdecimal()):
        raise SinkOptionError(f"{name}: {value!r} is not a time in milliseconds since 1970")
    return int(value)
