"""A stream with nothing but Kafka: the decisions are in a topic, and the commands operate it there."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from dualwrite.broker_emulator.emulator import Emulator
from spark_sink import dualwrite_batch
from spark_sink.errors import SinkOptionError
from tests.spark.sinks import TopicWorld

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def world(broker: Emulator, tmp_path: Path) -> TopicWorld:
    return TopicWorld(broker, tmp_path)


def test_the_url_may_be_in_the_environment(
    spark: SparkSession, world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon of Spark's workers has the environment of the JVM, so this one is foreachBatch in this process."""
    monkeypatch.setenv("TOPIC_STORE", world.store_url)
    options = {**world.options, "commitStore.urlEnv": "TOPIC_STORE"}
    del options["commitStore.url"]
    world.add_values("a")

    def count(connection: object, batch_id: int) -> None:
        raise AssertionError("there is no connection")

    with pytest.raises(StreamingQueryException, match="runs no SQL"):
        query = (
            world.read(spark)
            .writeStream.foreachBatch(dualwrite_batch(options, count))
            .option("checkpointLocation", str(world.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
    assert world.values() == []
    with pytest.raises(SinkOptionError, match="runs no SQL"):
        dualwrite_batch(world.options, count)


def test_settings_that_were_changed_stop_the_next_batch(spark: SparkSession, world: TopicWorld) -> None:
    world.add_values("a")
    world.run(world.read(spark))
    world.broker.set_config({"retention.ms": "1000"}, topic=world.store_topic)
    world.add_values("b")
    with pytest.raises(StreamingQueryException, match=r"retention\.ms is 1000, not -1"):
        world.run(world.read(spark))
    assert world.values() == ["a"]
    world.broker.set_config({"retention.ms": "-1"}, topic=world.store_topic)
    world.run(world.read(spark))
    assert world.values() == ["a", "b"]
