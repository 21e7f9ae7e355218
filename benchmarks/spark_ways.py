"""The sinks that `benchmarks.spark_sink` compares, each as a query that writes the same rows in the same batches."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.streaming.readwriter import DataStreamWriter

if TYPE_CHECKING:
    import pyarrow as pa

NOOP = "noop sink in Python, Arrow"
THIS = "this sink"
SPARKS_OWN = "Spark's own Kafka sink"
FOREACH = "foreachPartition, confluent-kafka"

_VALUE_BYTES = 100
_TIMEOUT_S = 300


@dataclass(frozen=True)
class Target:
    """The destination of a query."""

    bootstrap_servers: str
    topic: str
    store_url: str
    txn_mode: str


class NoopSink(DataSource):
    """Receives rows as this sink does, and discards them: the cost of Spark and Python alone."""

    @classmethod
    def name(cls) -> str:
        return "bench-noop"

    def streamWriter(self, schema: Any, overwrite: bool) -> NoopWriter:  # noqa: N802 - Spark's
        return NoopWriter()


class NoopWriter(DataSourceStreamArrowWriter):
    """Discards the rows of a task."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


def noop(writer: DataStreamWriter, target: Target) -> DataStreamWriter:
    return writer.format("bench-noop")


def this_sink(writer: DataStreamWriter, target: Target) -> DataStreamWriter:
    options = {
        "kafka.bootstrap.servers": target.bootstrap_servers,
        "topic": target.topic,
        "sinkId": f"bench.{uuid.uuid4().hex[:8]}",
        "commitStore.url": target.store_url,
        "txn.mode": target.txn_mode,
    }
    return writer.format("dualwrite-kafka").options(**options)


def sparks_own(writer: DataStreamWriter, target: Target) -> DataStreamWriter:
    options = {"kafka.bootstrap.servers": target.bootstrap_servers, "topic": target.topic}
    return writer.format("kafka").options(**options)


def foreach_partition(writer: DataStreamWriter, target: Target) -> DataStreamWriter:
    def write(rows: Iterator[Row]) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": target.bootstrap_servers,
                "enable.idempotence": True,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        for row in rows:
            producer.produce(target.topic, key=row.key, value=row.value)
            producer.poll(0)
        producer.flush()

    def write_batch(df: DataFrame, batch_id: int) -> None:
        df.foreachPartition(write)

    return writer.foreachBatch(write_batch)


WAYS: dict[str, Callable[[DataStreamWriter, Target], DataStreamWriter]] = {
    NOOP: noop,
    THIS: this_sink,
    SPARKS_OWN: sparks_own,
    FOREACH: foreach_partition,
}


class Input:
    """The input files; each batch has as many files as there are tasks."""

    def __init__(self, spark: SparkSession, directory: Path, *, rows: int, batches: int, tasks: int) -> None:
        self._spark = spark
        self._directory = directory
        self._batches = batches
        self._tasks = tasks
        key = "CAST(id AS STRING)"
        source = spark.range(0, rows * batches, numPartitions=tasks * batches)
        source.selectExpr(f"{key} AS key", f"rpad({key}, {_VALUE_BYTES}, 'x') AS value").write.parquet(str(directory))
        planned = spark.read.parquet(str(directory)).rdd.getNumPartitions()
        if planned != tasks * batches:
            raise SystemExit(f"{tasks * batches} files are read by {planned} tasks: the batches would have other sizes")

    def batch_times_ms(self, way: str, target: Target, *, warm_up: int) -> list[float]:
        """Return the time of each trigger of a new query (`triggerExecution`), without the first `warm_up` ones."""
        stream = self._spark.readStream.schema("key STRING, value STRING").option("maxFilesPerTrigger", self._tasks)
        with tempfile.TemporaryDirectory(prefix="bench-spark-") as checkpoint:
            writer = WAYS[way](stream.parquet(str(self._directory)).writeStream, target)
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            if not query.awaitTermination(_TIMEOUT_S):
                query.stop()
                raise SystemExit(f"{way}: not done within {_TIMEOUT_S} s")
            times_ms = {each["batchId"]: each["durationMs"]["triggerExecution"] for each in query.recentProgress}
        if not times_ms.keys() >= set(range(self._batches)):
            raise SystemExit(f"{way}: Spark reports only batches {sorted(times_ms)}")
        return [float(times_ms[batch_id]) for batch_id in range(warm_up, self._batches)]
