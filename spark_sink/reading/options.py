"""The source's options, which have the names of Spark's own Kafka source; parsed once, before anything is read."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from spark_sink.errors import SinkOptionError
from spark_sink.options import OptionValues
from spark_sink.reading.kafka_settings import checked_settings
from spark_sink.reading.offsets import EARLIEST, LATEST, Offsets, Partition, from_json

DEFAULT_POLL_TIMEOUT_MS: Final = 120_000
DEFAULT_GROUP_PREFIX: Final = "spark-kafka-source"


class Library(Enum):
    """`consumer.library`: who speaks to Kafka. AUTO: confluent-kafka where it is installed, else kafka-python."""

    AUTO = "auto"
    CONFLUENT_KAFKA = "confluent-kafka"
    KAFKA_PYTHON = "kafka-python"


class OnNoTimestamp(Enum):
    """`startingOffsetsByTimestampStrategy`: what to do where no record is as late as `startingTimestamp`."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True)
class Topics:
    """Which partitions are read; exactly one of them is given."""

    subscribe: tuple[str, ...] | None = None
    pattern: str | None = None
    """`subscribePattern`: a regular expression that the whole name of a topic must match."""
    assign: tuple[Partition, ...] | None = None


@dataclass(frozen=True)
class Bound:
    """Where to start or to end: one of the three."""

    everywhere: int | None = None
    """EARLIEST or LATEST."""
    offsets: Offsets | None = None
    """By partition; EARLIEST and LATEST may be among them."""
    timestamp_ms: int | None = None
    """The first record that is as late as this."""


@dataclass(frozen=True)
class SourceOptions:
    """What the caller asked for. Picklable; its repr has no secrets."""

    kafka: Mapping[str, str] = field(repr=False)
    """Consumer settings by the names of `docs/security.md` and Kafka's, without the prefix `kafka.`."""
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
    """What a reader was given, checked. Names in any case: Spark hands them over in lower case.

    Raises SinkOptionError, whose text has no secret, for an unknown option (with the nearest name), one that is
    missing, or a value that cannot be.
    """
    given = _given(options)
    kafka = {name.removeprefix(_KAFKA): value for name, value in given.items() if name.startswith(_KAFKA)}
    own = OptionValues({name: value for name, value in given.items() if not name.startswith(_KAFKA)})
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
    """SinkOptionError for what only a batch query can have."""
    if options.ending is not None:
        raise SinkOptionError(
            "endingOffsets and endingTimestamp are for batch queries (spark.read); a stream reads on, and "
            "trigger(availableNow=True) ends it at what is there when it begins"
        )


def check_for_batch(options: SourceOptions) -> None:
    """SinkOptionError for a batch query that would read nothing, or cannot."""
    start, end = options.starting or Bound(), options.ending or Bound()
    if start.everywhere == LATEST or LATEST in (start.offsets or {}).values():
        raise SinkOptionError("startingOffsets: a batch query that starts at the latest offsets has nothing to read")
    if end.everywhere == EARLIEST or EARLIEST in (end.offsets or {}).values():
        raise SinkOptionError("endingOffsets: a batch query that ends at the earliest offsets has nothing to read")
    if options.max_offsets_per_trigger is not None:
        raise SinkOptionError("maxOffsetsPerTrigger is for streams; a batch query reads up to endingOffsets")


_KAFKA: Final = "kafka."

_NAMES: Final = (
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
    "path": "load() takes no path: topics are named by subscribe, subscribePattern or assign",
    "topic": "topic is an option of the sink; a source is told its topics by subscribe, subscribePattern or assign",
    "startingoffsetsbytimestamp": "startingOffsetsByTimestamp is not known; startingTimestamp is for all partitions",
    "endingoffsetsbytimestamp": "endingOffsetsByTimestamp is not known; endingTimestamp is for all partitions",
    "minoffsetspertrigger": (
        "minOffsetsPerTrigger is not known here, as Spark lets no source in Python wait for a time; set "
        "trigger(processingTime=...)"
    ),
    "maxtriggerdelay": "maxTriggerDelay is of minOffsetsPerTrigger, which is not known here",
    "fetchoffset.numretries": "how long offsets are asked for is said by kafka.default.api.timeout.ms",
    "fetchoffset.retryintervalms": "the time between two questions is said by kafka.retry.backoff.ms",
}
"""Names in lower case, as all names are compared."""


def _given(options: Mapping[str, object]) -> dict[str, str]:
    """All options by lower-case names, every name known, `kafka.` ones not looked at yet."""
    known = {name.lower() for name in _NAMES}
    given: dict[str, str] = {}
    for written, value in options.items():
        name = written.lower()
        if name in given:
            raise SinkOptionError(f"the option {written} is given twice: names are the same in upper and lower case")
        if name in _REFUSED:
            raise SinkOptionError(_REFUSED[name])
        if name not in known and not name.startswith(_KAFKA):
            raise SinkOptionError(_unknown(written))
        given[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return given


def _unknown(written: str) -> str:
    by_name = {name.lower(): name for name in _NAMES} | {
        f"{_KAFKA}{name}": f"{_KAFKA}{name}" for name in ("bootstrap.servers", "isolation.level")
    }
    close = difflib.get_close_matches(written.lower(), by_name, n=1)
    if close:
        return f"unknown option {written}; did you mean {by_name[close[0]]}?"
    return f"unknown option {written}; the options are {', '.join(_NAMES)}, and kafka.* for the consumer"


def _count(own: OptionValues, name: str) -> int | None:
    return None if own.text(name) is None else own.number(name, 1, 1)


def _topics(own: OptionValues) -> Topics:
    names = ("subscribe", "subscribePattern", "assign")
    if sum(own.text(name) is not None for name in names) != 1:
        raise SinkOptionError(f"exactly one of the options {', '.join(names)} says what is read")
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
        raise SinkOptionError(f'assign: {text!r} names no partitions; it is JSON like {{"topic": [0, 1]}}')
    return tuple(sorted(set(found)))


def _bound(own: OptionValues, by_offset: str, by_time: str) -> Bound | None:
    """A timestamp wins, as it does in Spark's own source."""
    if own.text(by_time) is not None:
        return Bound(timestamp_ms=_milliseconds(own, by_time))
    text = own.text(by_offset)
    if text is None:
        return None
    if text.strip().lower() in ("earliest", "latest"):
        return Bound(everywhere=EARLIEST if text.strip().lower() == "earliest" else LATEST)
    try:
        return Bound(offsets=from_json(json.loads(text)))
    except ValueError as error:
        raise SinkOptionError(
            f'{by_offset}: {text!r} is not earliest, latest or JSON like {{"topic": {{"0": 12, "1": -2}}}} ({error})'
        ) from error


def _milliseconds(own: OptionValues, name: str) -> int:
    value = (own.text(name) or "").strip()
    if not (value.isascii() and value.isdecimal()):
        raise SinkOptionError(f"{name}: {value!r} is not a time in milliseconds since 1970")
    return int(value)
