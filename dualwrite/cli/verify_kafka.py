"""The topic and the readers of `dualwrite verify`.

They use kafka-python, not this library: the code under test must not read for its judge.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from dualwrite.cli.failures import UNUSABLE
from dualwrite.config import AdminConfig
from dualwrite.verify.history import Event, Isolation, PartitionAtRest, Poll, Record, RecordAtRest

RETENTION_MS: Final = 86_400_000
"""Retention of the topic: one that is left behind empties itself after a day."""
_POLL_MS: Final = 200
_AGAIN_S: Final = 0.2


class CannotRunError(click.ClickException):
    """The run could not be made, so it has no result."""

    exit_code = UNUSABLE


@contextmanager
def kafka_errors(doing: str) -> Iterator[None]:
    """Raise CannotRunError for an error of kafka-python."""
    try:
        yield
    except KafkaError as error:
        raise CannotRunError(f"{doing} failed: {type(error).__name__}: {error}") from error


def client_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a connection by kafka-python's names."""
    config = AdminConfig.parse(None, settings)
    found: dict[str, Any] = {
        "bootstrap_servers": [f"{host}:{port}" for host, port in config.bootstrap_servers],
        "client_id": config.client_id,
        "security_protocol": config.security_protocol,
    }
    if config.uses_tls:
        found |= {
            "ssl_cafile": config.ssl_ca_location,
            "ssl_certfile": config.ssl_certificate_location,
            "ssl_keyfile": config.ssl_key_location,
            "ssl_password": config.ssl_key_password,
            "ssl_check_hostname": bool(config.ssl_endpoint_identification_algorithm),
        }
    if config.uses_sasl:
        found |= {
            "sasl_mechanism": config.sasl_mechanism,
            "sasl_plain_username": config.sasl_username,
            "sasl_plain_password": config.sasl_password,
        }
    return found


class Topic:
    """The topic of one run."""

    def __init__(self, name: str, settings: Mapping[str, Any], timeout_ms: int) -> None:
        self.name: Final = name
        self._settings = client_settings(settings)
        self._timeout_ms = timeout_ms

    def create(self, partitions: int, replication_factor: int) -> None:
        """Raise CannotRunError if it exists, or cannot be created."""
        options = {
            "num_partitions": partitions,
            "replication_factor": replication_factor,
            "configs": {"cleanup.policy": "delete", "retention.ms": str(RETENTION_MS)},
        }
        with kafka_errors(f"creating the topic {self.name}"), self._admin() as admin:
            if self.name in admin.list_topics():
                raise CannotRunError(
                    f"the topic {self.name} exists, and this command writes only to a topic of its own; nothing was "
                    "changed: leave --topic out, or give an unused name"
                )
            admin.create_topics({self.name: options}, timeout_ms=self._timeout_ms, wait_for_metadata=True)

    def delete(self) -> None:
        """Raise CannotRunError if it could not be deleted."""
        with kafka_errors(f"deleting the topic {self.name}"), self._admin() as admin:
            admin.delete_topics([self.name], timeout_ms=self._timeout_ms)

    @contextmanager
    def _admin(self) -> Iterator[Any]:
        admin = KafkaAdminClient(**self._settings, bootstrap_timeout_ms=self._timeout_ms)
        try:
            yield admin
        finally:
            admin.close()

    @contextmanager
    def consumer(self, isolation: Isolation) -> Iterator[tuple[Any, list[TopicPartition]]]:
        """Return a consumer of all partitions, from their beginning, and the partitions."""
        consumer = KafkaConsumer(
            **self._settings,
            bootstrap_timeout_ms=self._timeout_ms,
            isolation_level=str(isolation),
            enable_auto_commit=False,
            allow_auto_create_topics=False,
            fetch_max_wait_ms=_POLL_MS,
        )
        try:
            numbers = consumer.partitions_for_topic(self.name) or ()
            if not numbers:
                raise CannotRunError(f"the brokers do not say which partitions the topic {self.name} has")
            partitions = [TopicPartition(self.name, number) for number in sorted(numbers)]
            consumer.assign(partitions)
            consumer.seek_to_beginning(*partitions)
            yield consumer, partitions
        finally:
            consumer.close(autocommit=False)

    # ---- at rest --------------------------------------------------------------------------------------------

    def wait_until_readable(self, deadline_s: float) -> list[PartitionAtRest]:
        """Return the end of each partition once the last stable offset has reached it, or at the deadline."""
        with (
            kafka_errors(f"reading the ends of {self.name}"),
            self.consumer(Isolation.READ_COMMITTED) as (committed, partitions),
            self.consumer(Isolation.READ_UNCOMMITTED) as (uncommitted, _),
        ):
            while True:
                stable, high = committed.end_offsets(partitions), uncommitted.end_offsets(partitions)
                ends = [PartitionAtRest(name_of(each), stable[each], high[each]) for each in partitions]
                is_late = time.monotonic() > deadline_s
                if is_late or all(end.last_stable_offset == end.high_watermark for end in ends):
                    return ends
                time.sleep(_AGAIN_S)

    def read(self, ends: Sequence[PartitionAtRest], deadline_s: float) -> list[RecordAtRest]:
        """Return the records of a `read_committed` reader up to these ends. Raises CannotRunError at the deadline."""
        found: list[RecordAtRest] = []
        with (
            kafka_errors(f"reading {self.name}"),
            self.consumer(Isolation.READ_COMMITTED) as (consumer, partitions),
        ):
            goals = dict(zip(partitions, (end.last_stable_offset for end in ends), strict=True))
            while any(consumer.position(each) < goal for each, goal in goals.items()):
                if time.monotonic() > deadline_s:
                    raise CannotRunError(f"{self.name} could not be read to the end in time: raise --settle")
                for each, records in consumer.poll(timeout_ms=_POLL_MS).items():
                    found += [RecordAtRest(name_of(each), *_fields(record)) for record in records]
        return found


def name_of(partition: TopicPartition) -> str:
    """Return a partition as Kafka prints it."""
    return f"{partition.topic}-{partition.partition}"


def _fields(record: Any) -> Record:
    return Record(record.offset, (record.key or b"").decode(), (record.value or b"").decode())


class Reader:
    """A consumer with `read_committed` that reads along in a thread, from the beginning to the end."""

    def __init__(self, topic: Topic, name: str, note: Callable[[Event], None]) -> None:
        self._topic = topic
        self._name = name
        self._note = note
        self._stopped = threading.Event()
        self._positions: dict[str, int] = {}
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def finish(self, ends: Sequence[PartitionAtRest], deadline_s: float) -> None:
        """Wait until it has reached these ends, or for the deadline, and stop it. Raises CannotRunError on failure."""
        goals = {end.partition: end.last_stable_offset for end in ends}
        while self._thread.is_alive() and time.monotonic() < deadline_s:
            if all(self._positions.get(partition, 0) >= goal for partition, goal in goals.items()):
                break
            time.sleep(_AGAIN_S)
        self.stop()
        if self._error is not None:
            raise CannotRunError(f"the reader {self._name} failed: {self._error}") from self._error

    def stop(self) -> None:
        """Stop the reader where it is."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            with self._topic.consumer(Isolation.READ_COMMITTED) as (consumer, partitions):
                for each in partitions:
                    self._heard(each, (), consumer.position(each))
                while not self._stopped.is_set():
                    self._poll(consumer, partitions)
        except (KafkaError, CannotRunError) as error:
            self._error = error

    def _poll(self, consumer: Any, partitions: Sequence[TopicPartition]) -> None:
        polled = consumer.poll(timeout_ms=_POLL_MS)
        for each in partitions:
            records = tuple(_fields(record) for record in polled.get(each, ()))
            position = consumer.position(each)
            if records or position != self._positions[name_of(each)]:
                self._heard(each, records, position)

    def _heard(self, partition: TopicPartition, records: tuple[Record, ...], position: int) -> None:
        name = name_of(partition)
        self._note(Poll(time.monotonic(), self._name, Isolation.READ_COMMITTED, name, records, position))
        self._positions[name] = position
