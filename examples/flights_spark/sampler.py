"""Sample offsets and rows over time, for the plot."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import sqlalchemy as sa
from confluent_kafka import Consumer, KafkaException, TopicPartition

from examples.flights_spark.methods import Method
from examples.flights_spark.tables import count_rows

_EVERY_S: Final = 0.25
_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """The offsets of a method at one moment, as sums over the partitions of its topic, and its rows."""

    second: float
    end_offset: int
    """The end of the log, including aborted and open transactions, and markers."""
    stable_offset: int
    """The last stable offset, up to which a read_committed consumer can read."""
    rows: int


class Sampler:
    """Takes samples in a thread of its own until the `with` block ends."""

    def __init__(
        self, bootstrap_servers: str, engine: sa.Engine, *, partitions: int, seconds: Callable[[], float]
    ) -> None:
        self.samples: dict[Method, list[Sample]] = {method: [] for method in Method}
        self._engine = engine
        self._partitions = range(partitions)
        self._seconds = seconds
        self._consumers = {
            level: _consumer(bootstrap_servers, level) for level in ("read_uncommitted", "read_committed")
        }
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler")

    def _run(self) -> None:
        with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            while not self._stopped.wait(_EVERY_S):
                self._look(connection)
            self._look(connection)

    def _look(self, connection: sa.Connection) -> None:
        for method, samples in self.samples.items():
            try:
                stable, end = self._offset(method, "read_committed"), self._offset(method, "read_uncommitted")
            except KafkaException:
                continue  # a missing sample only leaves a gap in the plot
            samples.append(Sample(self._seconds(), end, stable, count_rows(connection, method)))

    def _offset(self, method: Method, isolation_level: str) -> int:
        partitions = [TopicPartition(method.topic, number) for number in self._partitions]
        consumer = self._consumers[isolation_level]
        return sum(consumer.get_watermark_offsets(each, timeout=_TIMEOUT_S)[1] for each in partitions)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        for consumer in self._consumers.values():
            consumer.close()


def last(samples: Sequence[Sample]) -> Sample:
    """Return the last sample, or an empty one if there is none."""
    return samples[-1] if samples else Sample(0.0, 0, 0, 0)


def _consumer(bootstrap_servers: str, isolation_level: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "flights-spark-sampler",
            "enable.auto.commit": False,
            "isolation.level": isolation_level,
        }
    )
