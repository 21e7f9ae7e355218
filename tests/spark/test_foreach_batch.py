"""`foreachBatch(dualwrite_batch(...))`: records and the caller's SQL in one commit."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.errors import PySparkAttributeError, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.functions import udf
from pyspark.sql.types import StringType

from spark_sink import SinkOptionError, dualwrite_batch
from tests.spark.sinks import SinkWorld, finish

pytestmark = pytest.mark.timeout(600)


def run(
    world: SinkWorld,
    df: DataFrame,
    sql_fn: Callable[[sa.Connection, int], object] | None = None,
    mode: str = "append",
    **more: Any,
) -> None:
    write = dualwrite_batch({**world.options, **more}, sql_fn)
    writer = df.writeStream.foreachBatch(write).outputMode(mode).option("checkpointLocation", str(world.checkpoint))
    finish(writer.trigger(availableNow=True).start())


def note(connection: sa.Connection, batch_id: int) -> None:
    connection.execute(sa.text("INSERT INTO noted (batch) VALUES (:batch)"), {"batch": batch_id})


def test_sql_is_part_of_the_decision(spark: SparkSession, postgres_world: SinkWorld) -> None:
    world = postgres_world
    world.execute("CREATE TABLE noted (batch bigint)")
    world.add_values("a", "b")
    world.add_values("c")
    run(world, world.read(spark).repartition(2), note)
    world.forget_commit(1)
    run(world, world.read(spark), note)
    assert world.values() == ["a", "b", "c"]
    assert world.select("SELECT batch FROM noted ORDER BY batch") == [(0,), (1,)]

    def fail(connection: sa.Connection, batch_id: int) -> None:
        note(connection, batch_id)
        raise RuntimeError("the caller's SQL")

    world.add_values("d")
    with pytest.raises(StreamingQueryException, match="the caller's SQL"):
        run(world, world.read(spark), fail)
    assert world.values() == ["a", "b", "c"]
    assert world.open_transactions() == []
    run(world, world.read(spark).where("false"), note)
    assert world.select("SELECT batch FROM noted ORDER BY batch") == [(0,), (1,), (2,)], "of a batch without rows too"
    assert world.values() == ["a", "b", "c"]


def test_the_batch_is_computed_once(spark: SparkSession, sqlite_world: SinkWorld, tmp_path: Path) -> None:
    world = sqlite_world
    calls = tmp_path / "calls"

    def once(value: str) -> str:
        with calls.open("a") as file:
            file.write(value)
        return f"{value}{random.random()}"

    world.add_values("a", "b")
    df = world.read(spark).withColumn("value", udf(once, StringType())("key"))
    run(world, df)
    world.forget_commit(0)
    run(world, df)
    assert sorted(calls.read_text()) == ["a", "a", "b", "b"], "once for the records, and once for a query's state"
    assert [str(value)[0] for value in world.values()] == ["a", "b"]


def test_a_decided_batch_of_a_query_with_state_lets_its_tasks_commit_the_state(
    spark: SparkSession, sqlite_world: SinkWorld
) -> None:
    """Spark refuses a batch whose tasks have not committed the state store."""
    world = sqlite_world

    def count() -> None:
        counts = world.read(spark).groupBy("key").agg(sf.count("*").cast("string").alias("value"))
        run(world, counts, mode="update")

    world.add_values("a", "a")
    count()
    world.forget_commit(0)
    count()
    world.add_values("a")
    count()
    assert world.values() == ["2", "3"]


def test_several_calls_write_parts_of_a_batch(spark: SparkSession, sqlite_world: SinkWorld) -> None:
    """With two functions of one sink; the driver dies between two calls, and the calls come in another order."""
    world, other = sqlite_world, sqlite_world.new_topic()
    write, to_other = dualwrite_batch(world.options), dualwrite_batch({**world.options, "topic": other})
    world.add_values("a", "b", "c")

    def start(*keys: str, dies_after: int = 3) -> None:
        def parts(df: DataFrame, batch_id: int) -> None:
            for number, key in enumerate(keys):
                if number == dies_after:
                    raise RuntimeError("the driver dies")
                (to_other if key == "c" else write)(df.where(sf.col("key") == key), batch_id)

        writer = world.read(spark).writeStream.foreachBatch(parts)
        finish(writer.option("checkpointLocation", str(world.checkpoint)).trigger(availableNow=True).start())

    with pytest.raises(StreamingQueryException, match="the driver dies"):
        start("a", "b", "c", dies_after=1)
    with pytest.raises(StreamingQueryException, match="the same order as the first time"):
        start("b", "a", "c")
    assert world.values() == ["a"], "and nothing of the calls in another order"
    for _ in range(2):
        start("a", "b", "c")
        assert (world.values(), world.values(other)) == (["a", "b"], ["c"])
        world.forget_commit(0)
    assert world.open_transactions() == []


def test_the_update_mode(spark: SparkSession, sqlite_world: SinkWorld) -> None:
    world = sqlite_world
    world.add_values("a", "a", "b")
    world.add_values("a")
    counts = world.read(spark).groupBy("key").agg(sf.count("*").cast("string").alias("value"))
    run(world, counts, mode="update")
    assert sorted((record.key, record.value) for record in world.records()) == [("a", "2"), ("a", "3"), ("b", "1")]


@pytest.mark.parametrize("given", [True, False])
def test_a_checkpoint_that_was_restored_is_refused(spark: SparkSession, sqlite_world: SinkWorld, given: bool) -> None:
    world = sqlite_world
    world.add_values("a")
    option = {"checkpointLocation": str(world.checkpoint)} if given else {}
    run(world, world.read(spark), None, **option)
    offsets = world.checkpoint / "offsets" / "0"
    (world.checkpoint / "offsets" / ".0.crc").unlink()
    offsets.write_text(offsets.read_text().replace('"batchTimestampMs":', '"batchTimestampMs":1'))
    world.forget_commit(0)
    with pytest.raises(StreamingQueryException, match="decided with other source offsets"):
        run(world, world.read(spark), None, **option)


@pytest.mark.parametrize("query_id", [None, "orders-query"])
def test_a_checkpoint_of_another_query_is_refused(
    spark: SparkSession, sqlite_world: SinkWorld, tmp_path: Path, query_id: str | None
) -> None:
    """The other query's decided batches would count as those of this query, which has other rows, and be skipped."""
    world = sqlite_world
    write = dualwrite_batch({**world.options, "checkpointLocation": str(world.checkpoint)}, query_id=query_id)

    def start(checkpoint: Path) -> None:
        writer = world.read(spark).writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
        finish(writer.trigger(availableNow=True).start())

    world.add_values("a")
    start(world.checkpoint)
    decided = world.batches()
    with pytest.raises(StreamingQueryException, match=r"belongs to query .*neither the database nor Kafka was"):
        start(tmp_path / "another")
    assert (world.values(), world.batches(), world.open_transactions()) == (["a"], decided, [])


def test_options_are_checked_before_the_query_starts(sqlite_world: SinkWorld) -> None:
    with pytest.raises(SinkOptionError, match="did you mean topic"):
        dualwrite_batch({**sqlite_world.options, "topik": "a"})
    with pytest.raises(SinkOptionError, match="jobId is only for batch jobs"):
        dualwrite_batch({**sqlite_world.options, "jobId": "a"})


class DataFrameOfConnect:
    """A DataFrame of Spark Connect, whose session has no SparkContext."""

    @property
    def sparkSession(self) -> DataFrameOfConnect:  # noqa: N802 - Spark's
        return self

    @property
    def sparkContext(self) -> Any:  # noqa: N802 - Spark's
        raise PySparkAttributeError("[JVM_ATTRIBUTE_NOT_SUPPORTED]")


class DataFrameInThread(DataFrameOfConnect):
    """A DataFrame of Spark Classic, in a thread that Spark has given no local properties."""

    @property
    def sparkContext(self) -> Any:  # noqa: N802 - Spark's
        return self

    def getLocalProperty(self, name: str) -> None:  # noqa: N802 - Spark's
        """Know nothing."""


@pytest.mark.parametrize(
    ("df", "reason"),
    [
        (DataFrameOfConnect(), "under Spark Connect .*checkpointLocation as an option, or a query_id"),
        (DataFrameInThread(), "this thread does not have .*inheritable_thread_target, or .*checkpointLocation"),
    ],
)
def test_the_query_must_be_known(sqlite_world: SinkWorld, df: object, reason: str) -> None:
    write: Any = dualwrite_batch(sqlite_world.options)
    with pytest.raises(SinkOptionError, match=reason):
        write(df, 0)
    assert sqlite_world.tables() == []
