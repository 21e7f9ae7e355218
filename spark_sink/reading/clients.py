"""What is asked of a Kafka client: about a cluster, by the driver, and for records, by tasks.

Both are kept per process and reused from batch to batch. A forked child makes its own: sockets cannot be shared.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

from dualwrite.errors import AuthenticationError, ConfigError, KafkaError
from spark_sink.errors import SinkOptionError, SourceReadError
from spark_sink.reading.kafka_settings import api_timeout_ms, connection_settings, needs_kafka_python
from spark_sink.reading.offsets import OffsetRange, Offsets, Partition
from spark_sink.reading.options import Library, SourceOptions
from spark_sink.reading.rows import Chunk


class OffsetOutOfRangeError(Exception):
    """The broker has no such offset any more. A client raises it; what it means is for the source to say."""


_Answer = TypeVar("_Answer")
_PAUSE_S: Final = 0.2
_LONGEST_LOGIN_MS: Final = 5_000


def persistently(ask: Callable[[], _Answer], may_pass: Callable[[Exception], bool], timeout_s: float) -> _Answer:
    """Ask again while an error may pass by itself, as when a broker is started again. Raises the last one."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return ask()
        except Exception as error:
            if not may_pass(error) or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)


class Cluster(Protocol):
    """A cluster as the driver asks about it. Raises SourceReadError where it does not answer."""

    def partitions(self, topics: Collection[str] | None) -> Mapping[str, Collection[int]]:
        """The partitions of these topics (None: of all that are not internal); topics that do not exist are absent."""

    def beginnings(self, partitions: Collection[Partition]) -> Offsets:
        """The first offset that is still there."""

    def ends(self, partitions: Collection[Partition]) -> Offsets:
        """Where reading ends: the last stable offset with read_committed, else the high watermark."""

    def high_watermarks(self, partitions: Collection[Partition]) -> Offsets:
        """Where reading ends with read_uncommitted."""

    def at_time(self, partitions: Collection[Partition], timestamp_ms: int) -> Mapping[Partition, int | None]:
        """The first offset that is as late as this; None where there is none."""

    def close(self) -> None:
        """Let go of connections. Never raises."""


class Records(Protocol):
    """Records of one partition after the other, for tasks."""

    def read(self, wanted: OffsetRange, *, headers: bool, patience_ms: int) -> Iterator[Chunk]:
        """All records in between; markers, aborted and compacted ones are none, and are passed.

        Raises OffsetOutOfRangeError, and SourceReadError where nothing has come for `patience_ms`.
        """

    def close(self) -> None:
        """Let go of connections. Never raises."""


def library_of(options: SourceOptions) -> Library:
    """CONFLUENT_KAFKA or KAFKA_PYTHON. Raises SinkOptionError for one that is not installed or cannot do it."""
    only_kafka_python = needs_kafka_python(options.kafka)
    installed = importlib.util.find_spec("confluent_kafka") is not None
    if options.library is Library.AUTO:
        return Library.CONFLUENT_KAFKA if installed and not only_kafka_python else Library.KAFKA_PYTHON
    if options.library is Library.CONFLUENT_KAFKA and not installed:
        raise SinkOptionError("consumer.library: confluent-kafka is not installed here: pip install confluent-kafka")
    if options.library is Library.CONFLUENT_KAFKA and only_kafka_python:
        raise SinkOptionError("consumer.library: OAUTHBEARER needs kafka-python here; leave the option out")
    return options.library


def connect(options: SourceOptions) -> Cluster:
    """A cluster to ask; not shared. Raises SourceReadError, and SinkOptionError for settings that cannot be used."""
    _log_in(options)
    if library_of(options) is Library.CONFLUENT_KAFKA:
        from spark_sink.reading.librdkafka import ConfluentCluster

        return ConfluentCluster(options.kafka)
    from spark_sink.reading.kafka_python import KafkaPythonCluster

    return KafkaPythonCluster(options.kafka)


def _log_in(options: SourceOptions) -> None:
    """Say what a person has to mend: both libraries try a login again and again, and then report a timeout."""
    from dualwrite.admin import TransactionAdmin  # tasks read records and do not log in here

    timeout_ms = api_timeout_ms(options.kafka)
    try:
        with TransactionAdmin(connection_settings(options.kafka)) as admin:
            admin.describe_cluster(timeout_ms=min(timeout_ms, _LONGEST_LOGIN_MS))
    except ConfigError as error:
        raise SinkOptionError(f"the options kafka.* cannot be used: {error}") from error
    except AuthenticationError as error:
        raise SourceReadError(f"Kafka does not let the source in: {error}") from error
    except KafkaError:
        return  # a broker that is away, or older than that question; the library asks on


def _consume(options: SourceOptions) -> Records:
    if library_of(options) is Library.CONFLUENT_KAFKA:
        from spark_sink.reading.librdkafka import ConfluentRecords

        return ConfluentRecords(options.kafka, options.group_prefix)
    from spark_sink.reading.kafka_python import KafkaPythonRecords

    return KafkaPythonRecords(options.kafka)


_KEPT: Final = 4
"""Consumers that an idle worker keeps: it takes turns with the partitions, and seldom with clusters."""

_idle: OrderedDict[tuple[int, object], Records] = OrderedDict()


@contextmanager
def consumer(options: SourceOptions, make: Callable[[SourceOptions], Records] = _consume) -> Iterator[Records]:
    """A consumer of this process, for one range. Kept for the next one unless something was raised."""
    key = (os.getpid(), (library_of(options), options.group_prefix, tuple(sorted(options.kafka.items()))))
    records = _idle.pop(key, None) or make(options)
    try:
        yield records
    except BaseException:
        records.close()
        raise
    if key in _idle:
        records.close()
    else:
        _idle[key] = records
    mine = [each for each in _idle if each[0] == os.getpid()]
    for surplus in mine[:-_KEPT]:
        _idle.pop(surplus).close()
