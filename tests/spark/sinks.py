"""The surroundings of a sink in a test: input files, a checkpoint, topics, a commit store."""

from __future__ import annotations

import json
import os
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from dualwrite.broker_emulator.emulator import Emulator
from spark_sink.store.attempt_states import LIVE
from spark_sink.store.topic.topic_store import TopicStore
from tests.spark.topic_stores import kafka_log
from tests.support.databases import unique

PARTITIONS = 2
_EPOCH_S = 1_750_000_000


class Record(NamedTuple):
    """A record as another client library sees it."""

    topic: str
    partition: int
    key: str | None
    value: str | None
    headers: tuple[tuple[str, bytes | None], ...]


class SinkWorld:
    """The input is files, one for each batch; the output is read with other libraries."""

    def __init__(self, broker: Emulator, store_url: str, directory: Path) -> None:
        self.broker = broker
        self.store_url = store_url
        self.sink_id = unique("sink").replace("-", "_")
        self.topic = self.new_topic()
        self.checkpoint = directory / "checkpoint"
        self._input = directory / "input"
        self._input.mkdir()

    def new_topic(self) -> str:
        """Create another topic."""
        topic = unique("topic")
        self.broker.create_topic(topic, PARTITIONS)
        return topic

    @property
    def options(self) -> dict[str, str]:
        """Return the options, for the format and for foreachBatch."""
        return {
            "kafka.bootstrap.servers": self.broker.bootstrap_servers,
            "sinkId": self.sink_id,
            "topic": self.topic,
            "commitStore.url": self.store_url,
        }

    # input

    def add_batch(self, *rows: dict[str, Any]) -> None:
        """Write a file, which becomes the next batch."""
        number = len(list(self._input.iterdir()))
        partial = self._input.parent / "partial.json"
        partial.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(partial, (_EPOCH_S + number, _EPOCH_S + number))  # Spark takes the oldest first
        partial.rename(self._input / f"{number:03}.json")

    def add_values(self, *values: str) -> None:
        """Write a batch of records, whose keys are their values."""
        self.add_batch(*({"key": value, "value": value} for value in values))

    def read(self, spark: SparkSession, schema: str = "key string, value string") -> DataFrame:
        """Return a stream with a batch for each file."""
        return spark.readStream.schema(schema).option("maxFilesPerTrigger", "1").json(str(self._input))

    # queries

    def writer(self, df: DataFrame, **more: str | None) -> DataStreamWriter:
        """Start a query on this world's checkpoint that ends at the end of the input.

        `more` options have underscores for dots; None removes one.
        """
        given: dict[str, str | None] = {**self.options, "checkpointLocation": str(self.checkpoint)}
        given |= {name.replace("_", "."): value for name, value in more.items()}
        options = {name: value for name, value in given.items() if value is not None}
        return df.writeStream.format("dualwrite-kafka").options(**options).trigger(availableNow=True)

    def run(self, df: DataFrame, **more: str | None) -> None:
        """Write all of the input. Raises the error that ended the query, if any."""
        finish(self.writer(df, **more).start())

    def forget_commit(self, batch_id: int) -> None:
        """Simulate a driver that died before Spark recorded its last batch: the next start replays it."""
        for name in (f"{batch_id}", f".{batch_id}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    # output

    def records(self, topic: str | None = None) -> list[Record]:
        """Return all records that confluent-kafka reads with read_committed."""
        return read_records(self.broker.bootstrap_servers, topic or self.topic)

    def values(self, topic: str | None = None) -> list[str | None]:
        """Return the values of all records, sorted."""
        return sorted((record.value for record in self.records(topic)), key=str)

    @cached_property
    def _engine(self) -> sa.Engine:
        return sa.create_engine(self.store_url, poolclass=sa.NullPool)

    def select(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query to the database."""
        with self._engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text(sql))]

    def execute(self, sql: str) -> None:
        """Run a statement that changes the database."""
        with self._engine.begin() as connection:
            connection.execute(sa.text(sql))

    def tables(self) -> list[str]:
        """Return the tables of the database; the first plan creates those of the store."""
        return sa.inspect(self._engine).get_table_names()

    def batches(self) -> list[tuple[int, str, int]]:
        """Return the decided batches: id, status, records."""
        found = self.select("SELECT batch_id, status, n_records FROM dw_batch ORDER BY query_id, batch_id")
        return [(batch_id, status, records) for batch_id, status, records in found]

    def digests(self) -> list[str | None]:
        """Return the digests of the decided batches."""
        return [digest for (digest,) in self.select("SELECT offsets_digest FROM dw_batch ORDER BY query_id, batch_id")]

    def statuses(self) -> dict[str, int]:
        """Return the number of attempts in each status."""
        return dict(self.select("SELECT status, count(*) FROM dw_attempt GROUP BY status ORDER BY status"))

    def leased(self) -> int:
        """Return the number of attempts that lease an id."""
        ((count,),) = self.select("SELECT count(*) FROM dw_attempt WHERE live_txn_id IS NOT NULL")
        return int(count)

    def attempts_of_last_batch(self) -> int:
        """Return how many attempts the last decided batch has."""
        of_last = "SELECT count(*) FROM dw_attempt WHERE batch_id = (SELECT max(batch_id) FROM dw_batch)"
        ((count,),) = self.select(of_last)
        return int(count)

    def open_transactions(self) -> list[str]:
        """Return the transactional ids of this sink with a transaction at the broker."""
        return [
            transaction.transactional_id
            for transaction in self.broker.transactions()
            if transaction.transactional_id.startswith(f"{self.sink_id}-")
            and transaction.state not in ("Empty", "CompleteCommit", "CompleteAbort", "Dead")
        ]


class TopicWorld(SinkWorld):
    """A sink whose commit store is in a topic of the same broker."""

    def __init__(self, broker: Emulator, directory: Path) -> None:
        store_topic = unique("commits")
        super().__init__(broker, f"kafka:///{store_topic}", directory)
        self.store = TopicStore(kafka_log(broker.bootstrap_servers, store_topic))
        self.store_topic = store_topic

    def batches(self) -> list[tuple[int, str, int]]:
        return sorted((row.batch_id, row.status.value, row.records) for row in self.store.batches(self.sink_id))

    def statuses(self) -> dict[str, int]:
        return dict(Counter(row.status.value for row in self.store.attempts(self.sink_id)))

    def leased(self) -> int:
        return len(self.store.attempts(self.sink_id, LIVE))

    def attempts_of_last_batch(self) -> int:
        last = max(batch_id for batch_id, _, _ in self.batches())
        return sum(row.batch_id == last for row in self.store.attempts(self.sink_id))


def finish(query: StreamingQuery, timeout_s: int = 180) -> None:
    """Wait for the end of a query. Raises the error that ended it, and an error if it does not end."""
    try:
        assert query.awaitTermination(timeout_s), f"the query did not end within {timeout_s} s"
    finally:
        query.stop()


def read_records(bootstrap_servers: str, topic: str) -> list[Record]:
    """Return the records that confluent-kafka reads up to the last stable offset, by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    found: list[Record] = []
    try:
        unfinished = set(consumer.list_topics(topic, timeout=60).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in unfinished])
        while unfinished:
            message = consumer.poll(15)
            assert message is not None, f"no end of partitions {unfinished} within 15 s"
            if error := message.error():
                assert error.name() == "_PARTITION_EOF", error
                unfinished.discard(message.partition())
                continue
            partition = message.partition()
            assert partition is not None
            headers: Any = message.headers() or ()  # a list of pairs, one of the annotated types
            found.append(Record(topic, partition, _text(message.key()), _text(message.value()), tuple(headers)))
    finally:
        consumer.close()
    return sorted(found, key=lambda record: record.partition)


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode()
