"""Open connections to Kafka: `connect` and `connect_topic_ids` for the driver, `consumer` and `topic_ids` for tasks.

A process keeps the connections of its tasks, and reuses them from batch to batch. A forked child opens its own, because
processes cannot share a socket.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

from dualwrite.errors import AuthenticationError, ConfigError, KafkaError
from dualwrite.guarded import cleaning_up_after, pass_on_signal
from spark_sink.errors import SinkOptionError, SourceReadError
from spark_sink.reading.clients import Cluster, Records
from spark_sink.reading.kafka_settings import api_timeout_ms, connection_settings, needs_kafka_python
from spark_sink.reading.options import Library, SourceOptions
from spark_sink.reading.topic_ids import KafkaTopicIds, TopicIdLookup

_log = logging.getLogger(__name__)

_LONGEST_LOGIN_MS: Final = 5_000


def library_of(options: SourceOptions) -> Library:
    """Return CONFLUENT_KAFKA or KAFKA_PYTHON. Raises SinkOptionError if it is not installed or not suitable."""
    only_kafka_python = needs_kafka_python(options.kafka)
    installed = importlib.util.find_spec("confluent_kafka") is not None
    if options.library is Library.AUTO:
        return Library.CONFLUENT_KAFKA if installed and not only_kafka_python else Library.KAFKA_PYTHON
    if options.library is Library.CONFLUENT_KAFKA and not installed:
        raise SinkOptionError("consumer.library: confluent-kafka is not installed here: pip install confluent-kafka")
    if options.library is Library.CONFLUENT_KAFKA and only_kafka_python:
        raise SinkOptionError("consumer.library: OAUTHBEARER needs kafka-python here; omit the option")
    return options.library


def connect(options: SourceOptions) -> Cluster:
    """Return a new connection to the cluster. Raises SourceReadError, and SinkOptionError for unusable settings."""
    _log_in(options)
    if library_of(options) is Library.CONFLUENT_KAFKA:
        from spark_sink.reading.librdkafka import ConfluentCluster

        return ConfluentCluster(options.kafka)
    from spark_sink.reading.kafka_python import KafkaPythonCluster

    return KafkaPythonCluster(options.kafka)


def _log_in(options: SourceOptions) -> None:
    """Raise a clear error if the login fails: both libraries retry it again and again, and then report a timeout."""
    from dualwrite.admin import TransactionAdmin  # tasks read records and do not log in here

    timeout_ms = api_timeout_ms(options.kafka)
    try:
        with TransactionAdmin(connection_settings(options.kafka)) as admin:
            admin.describe_cluster(timeout_ms=min(timeout_ms, _LONGEST_LOGIN_MS))
    except ConfigError as error:
        raise SinkOptionError(f"the options kafka.* cannot be used: {error}") from error
    except AuthenticationError as error:
        raise SourceReadError(f"Kafka refuses the login of the source: {error}") from error
    except KafkaError:
        return  # the broker is unreachable, or does not support this request; the library retries


def open_consumer(options: SourceOptions) -> Records:
    if library_of(options) is Library.CONFLUENT_KAFKA:
        from spark_sink.reading.librdkafka import ConfluentRecords

        return ConfluentRecords(options.kafka, options.group_prefix)
    from spark_sink.reading.kafka_python import KafkaPythonRecords

    return KafkaPythonRecords(options.kafka)


def connect_topic_ids(options: SourceOptions) -> TopicIdLookup:
    """Return a new connection for looking up the ids of topics."""
    return KafkaTopicIds(options.kafka)


_KEPT: Final = 4
"""The number of idle connections of a kind that a worker keeps: tasks of several queries may take turns in it."""


class _Closable(Protocol):
    def close(self) -> None: ...


_Connection = TypeVar("_Connection", bound=_Closable)
_Idle = OrderedDict[tuple[int, object], _Connection]

_idle_consumers: _Idle[Records] = OrderedDict()
_idle_topic_ids: _Idle[TopicIdLookup] = OrderedDict()


@contextmanager
def consumer(options: SourceOptions, make: Callable[[SourceOptions], Records] = open_consumer) -> Iterator[Records]:
    """Return a consumer of this process for one range. It is kept for the next range unless an exception is raised."""
    settings = library_of(options), options.group_prefix, tuple(sorted(options.kafka.items()))
    with _kept(_idle_consumers, settings, lambda: make(options)) as records:
        yield records


@contextmanager
def topic_ids(options: SourceOptions) -> Iterator[TopicIdLookup]:
    """Return a lookup of this process for the ids of topics. It is kept unless an exception is raised."""
    settings = tuple(sorted(options.kafka.items()))
    with _kept(_idle_topic_ids, settings, lambda: connect_topic_ids(options)) as lookup:
        yield lookup


@contextmanager
def _kept(idle: _Idle[_Connection], settings: object, make: Callable[[], _Connection]) -> Iterator[_Connection]:
    key = (os.getpid(), settings)
    connection = idle.pop(key, None) or make()
    try:
        yield connection
    except BaseException as error:
        with cleaning_up_after(error):
            connection.close()
        raise
    if key in idle:
        _close_surplus(connection)
    else:
        idle[key] = connection
    mine = [each for each in idle if each[0] == os.getpid()]
    for surplus in mine[:-_KEPT]:
        _close_surplus(idle.pop(surplus))


def _close_surplus(connection: _Closable) -> None:
    """Close a connection that is not kept; a failure does not concern the rows that were read."""
    try:
        connection.close()
    except Exception as error:
        pass_on_signal(error)
        _log.warning("an idle connection to Kafka could not be closed", exc_info=error)


@atexit.register
def _close_topic_ids() -> None:
    """Close the lookups of this process while the interpreter still can: they need its I/O thread."""
    for key in [each for each in _idle_topic_ids if each[0] == os.getpid()]:
        _idle_topic_ids.pop(key).close()
