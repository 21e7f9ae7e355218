"""`writeStream.format("dualwrite-kafka")`: every row is in Kafka once, after replays, retries and stops."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from tests.spark.sinks import SinkWorld, finish

pytestmark = pytest.mark.timeout(600)


def test_each_batch_is_written_once_however_often_spark_replays_it(
    spark: SparkSession, sqlite_world: SinkWorld
) -> None:
    world = sqlite_world
    world.add_values("a", "b", "c", "d")
    world.add_values("e")
    df = world.read(spark).repartition(2)
    world.run(df)
    assert world.values() == ["a", "b", "c", "d", "e"]
    assert world.batches() == [(0, "DONE", 4), (1, "DONE", 1)]

    world.forget_commit(1)
    world.run(world.read(spark).coalesce(1))
    assert world.values() == ["a", "b", "c", "d", "e"], "replayed with other partitions"

    world.add_values("f")
    world.forget_commit(1)
    world.run(df)
    assert world.values() == ["a", "b", "c", "d", "e", "f"]
    assert world.batches() == [(0, "DONE", 4), (1, "DONE", 1), (2, "DONE", 1)]
    assert set(world.statuses()) == {"COMMITTED"}
    assert world.open_transactions() == []


def test_columns_name_the_destination_and_the_content_of_a_record(spark: SparkSession, sqlite_world: SinkWorld) -> None:
    world = sqlite_world
    other = world.new_topic()
    world.add_batch(
        {"key": None, "value": "default topic", "partition": 1},
        {"key": "k", "value": None, "topic": other, "partition": 0, "header": "h"},
        {"key": "k", "value": "v", "topic": other, "partition": 1},
        {"key": "k", "value": "by its key"},
    )
    rows = world.read(spark, "key string, value string, topic string, partition int, header string")
    headers = sf.when(
        sf.col("header").isNotNull(),
        sf.array(sf.struct(sf.col("header").alias("key"), sf.encode(sf.lit("x"), "utf-8").alias("value"))),
    )
    df = rows.select(
        sf.encode("key", "utf-8").alias("key"),
        "value",
        sf.coalesce("topic", sf.lit(world.topic)).alias("topic"),
        "partition",
        headers.alias("headers"),
    )
    world.run(df, includeHeaders="true", topic=None)
    mine = {record.value: record for record in world.records()}
    assert mine.keys() == {"default topic", "by its key"}
    assert (mine["default topic"].partition, mine["default topic"].key) == (1, None)
    theirs = {record.partition: record for record in world.records(other)}
    assert (theirs[0].value, theirs[0].headers) == (None, (("h", b"x"),))
    assert (theirs[1].value, theirs[1].headers) == ("v", ())


def test_batches_without_rows_are_decided_too(spark: SparkSession, sqlite_world: SinkWorld) -> None:
    world = sqlite_world
    world.add_values("a")
    world.add_values("b")
    df = world.read(spark).where("value <> 'a'").repartition(2)
    world.run(df)
    assert world.values() == ["b"]
    assert world.batches() == [(0, "DONE", 0), (1, "DONE", 1)]


@pytest.mark.parametrize("name", ["orders", None])
def test_a_restored_copy_is_refused_where_the_session_names_the_place(
    spark: SparkSession, sqlite_world: SinkWorld, tmp_path: Path, name: str | None
) -> None:
    world = sqlite_world
    root = tmp_path / "root"

    def run() -> None:
        writer = world.writer(world.read(spark), checkpointLocation=None)
        finish((writer if name is None else writer.queryName(name)).start())

    with setting(spark, "spark.sql.streaming.checkpointLocation", str(root)):
        world.add_values("a")
        run()
        (checkpoint,) = root.iterdir()
        assert world.digests() == [sha256(checkpoint / "offsets" / "0")]
        if name is None:
            return  # Spark gives the next query another random name, and never finds this checkpoint again
        shutil.copytree(checkpoint, tmp_path / "copy")
        world.add_values("b")
        run()
        shutil.rmtree(checkpoint)
        (tmp_path / "copy").rename(checkpoint)
        world.add_values("c")
        with pytest.raises(StreamingQueryException, match="decided with other source offsets"):
            run()
    assert world.values() == ["a", "b"]


def test_without_a_digest_a_decided_batch_is_skipped_only_on_the_word_of_the_user(
    spark: SparkSession, sqlite_world: SinkWorld, tmp_path: Path
) -> None:
    world = sqlite_world
    world.add_values("a")

    def run(**more: str) -> None:
        world.run(world.read(spark), checkpointLocation=readable_by_spark_alone(world.checkpoint), **more)

    run()
    assert world.digests() == [None]
    world.forget_commit(0)
    with pytest.raises(StreamingQueryException, match="requireDigest=false"):
        run()
    run(requireDigest="false")
    assert world.values() == ["a"]

    shutil.copytree(world.checkpoint, tmp_path / "copy")
    world.add_values("b")
    world.add_values("c")
    run()
    shutil.rmtree(world.checkpoint)
    (tmp_path / "copy").rename(world.checkpoint)
    with pytest.raises(StreamingQueryException, match="and so is batch 2"):
        run(requireDigest="false")
    assert world.values() == ["a", "b", "c"]


def test_a_batch_without_a_digest_is_refused_if_one_is_required(spark: SparkSession, sqlite_world: SinkWorld) -> None:
    world = sqlite_world
    world.add_values("a")
    with pytest.raises(StreamingQueryException, match="requireDigest is true; nothing was decided"):
        world.run(world.read(spark), requireDigest="true", checkpointLocation=readable_by_spark_alone(world.checkpoint))
    assert world.values() == []
    world.run(world.read(spark), requireDigest="true")
    assert world.values() == ["a"]


def readable_by_spark_alone(checkpoint: Path) -> str:
    """Return the name of the directory as Hadoop shortens it; the operating system does not find that."""
    return f"{checkpoint.parent}/missing/../{checkpoint.name}"


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Set a setting of the session for a while."""
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name)


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_new_checkpoint_is_refused_unless_it_is_to_be_adopted(
    spark: SparkSession, sqlite_world: SinkWorld, tmp_path: Path
) -> None:
    world = sqlite_world
    world.add_values("a")
    df = world.read(spark)
    world.run(df)
    elsewhere = str(tmp_path / "new checkpoint")
    with pytest.raises(StreamingQueryException, match="CheckpointMismatchError"):
        finish(world.writer(df).option("checkpointLocation", elsewhere).start())
    assert world.values() == ["a"]
    world.run(df, checkpointLocation=elsewhere, onNewCheckpoint="adopt")
    assert world.values() == ["a", "a"], "a new query begins at the beginning of its input"


def test_table_and_topic_change_in_one_commit(spark: SparkSession, postgres_world: SinkWorld) -> None:
    world = postgres_world
    world.execute("CREATE TABLE balances (account text PRIMARY KEY, amount bigint NOT NULL)")
    world.add_batch({"account": "x", "amount": 1}, {"account": "y", "amount": 2})
    world.add_batch({"account": "x", "amount": 3})
    rows = world.read(spark, "account string, amount bigint")
    df = rows.select(sf.col("account").alias("key"), sf.to_json(sf.struct("*")).alias("value"), "account", "amount")
    dual = {"dual_table": "balances", "dual_mode": "upsert", "dual_columns": "account,amount"}
    world.run(df.repartition(2), **dual)
    world.forget_commit(1)
    world.run(df, **dual)
    assert world.select("SELECT account, amount FROM balances ORDER BY account") == [("x", 3), ("y", 2)]
    assert world.values() == ['{"account":"x","amount":1}', '{"account":"x","amount":3}', '{"account":"y","amount":2}']
    assert world.open_transactions() == []

    world.execute("ALTER TABLE balances ADD CONSTRAINT small CHECK (amount < 100)")
    world.add_batch({"account": "y", "amount": 100})
    with pytest.raises(StreamingQueryException, match="DualTableError"):
        world.run(df, **dual)
    assert world.select("SELECT amount FROM balances WHERE account = 'y'") == [(2,)]
    assert len(world.values()) == 3, "what the table refuses is in no topic"


def test_the_update_mode_is_refused_by_spark_itself(spark: SparkSession, sqlite_world: SinkWorld) -> None:
    world = sqlite_world
    world.add_values("a")
    with pytest.raises(StreamingQueryException, match="does not support Update mode"):
        finish(world.writer(world.read(spark)).outputMode("update").start())


def test_the_complete_mode_is_refused(spark: SparkSession, sqlite_world: SinkWorld) -> None:
    world = sqlite_world
    world.add_values("a")
    df = world.read(spark).groupBy("key").agg(sf.max("value").alias("value"))
    with pytest.raises(StreamingQueryException, match="the complete mode would replace the content of the topic"):
        finish(world.writer(df).outputMode("complete").start())


def test_the_continuous_trigger_is_refused_before_anything_is_noted(
    spark: SparkSession, sqlite_world: SinkWorld
) -> None:
    world = sqlite_world
    df = spark.readStream.format("rate").load().selectExpr("CAST(value AS string) AS value")
    query = world.writer(df).trigger(continuous="100 milliseconds").start()
    with pytest.raises(
        StreamingQueryException, match="this sink does not support the continuous and the real-time trigger"
    ):
        finish(query)


def test_columns_that_cannot_be_sent_are_refused_by_the_plan(spark: SparkSession, sqlite_world: SinkWorld) -> None:
    world = sqlite_world
    world.add_batch({"a": 1})
    with pytest.raises(StreamingQueryException, match="SinkOptionError: the column value is of type int64"):
        world.run(world.read(spark, "key string, value bigint"))
    assert world.tables() == []


def test_no_secret_is_shown(
    spark: SparkSession, sqlite_world: SinkWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = sqlite_world
    world.add_values("a")
    df = world.read(spark)
    with pytest.raises(StreamingQueryException) as refusal:
        world.run(df, commitStore_url="jdbc:postgresql://db/app?password=hunter2")
    assert "SinkOptionError" in str(refusal.value)
    assert "hunter2" not in str(refusal.value)

    query = world.writer(df, commitStore_url=f"sqlite:///{tmp_path / 'hunter2.db'}").start()
    finish(query)
    query.explain(extended=True)
    plan = capsys.readouterr().out
    assert "WriteToMicroBatchDataSource" in plan or "WriteToDataSourceV2" in plan
    assert "hunter2" not in plan
    assert query.lastProgress is not None
    assert "hunter2" not in query.lastProgress.json
