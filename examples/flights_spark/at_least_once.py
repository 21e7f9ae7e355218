"""At least once, as it is done today: tasks produce and insert, the driver updates the totals.

It is done carefully: every record is acknowledged and every insert is committed before the batch ends. But Spark
repeats a batch whose end it has not recorded, and this code cannot know which part of it is already written.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import sqlalchemy as sa
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from pyspark.sql import DataFrame, Row

from examples.flights_spark.job import Job
from examples.flights_spark.methods import Method
from examples.flights_spark.shape import shaped
from examples.flights_spark.tables import COLUMNS, TABLES, add_up

_TABLES = TABLES[Method.AT_LEAST_ONCE]
_FLUSH_TIMEOUT_S = 30


def write_at_least_once(job: Job) -> partial[None]:
    """Return the function for `foreachBatch`."""
    return partial(_write, sa.create_engine(job.database_url), job)


def _write(engine: sa.Engine, job: Job, flights: DataFrame, batch_id: int) -> None:
    write_partition = partial(_write_partition, job.bootstrap_servers, job.database_url)
    shaped(flights, batch_id, job.tasks).foreachPartition(write_partition)
    with engine.begin() as connection:
        add_up(connection, _TABLES, batch_id)


def _write_partition(bootstrap_servers: str, database_url: str, rows: Iterable[Row]) -> None:
    """Write a partition in a task, as a Kafka writer and a JDBC writer would."""
    flights = list(rows)
    if flights:
        _produce(bootstrap_servers, flights)
        _insert(database_url, flights)


def _produce(bootstrap_servers: str, flights: Iterable[Row]) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",  # Kafka's own
            "linger.ms": 5,
        }
    )
    for flight in flights:
        producer.produce(Method.AT_LEAST_ONCE.topic, key=flight.key, value=flight.value, on_delivery=_raise_failure)
    if left := producer.flush(_FLUSH_TIMEOUT_S):
        raise TimeoutError(f"{left} records were not delivered within {_FLUSH_TIMEOUT_S} s")


def _insert(database_url: str, flights: Iterable[Row]) -> None:
    engine = sa.create_engine(database_url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.execute(_TABLES.flights.insert(), [{name: flight[name] for name in COLUMNS} for flight in flights])


def _raise_failure(error: KafkaError | None, message: Message) -> None:
    if error is not None:
        raise KafkaException(error)
