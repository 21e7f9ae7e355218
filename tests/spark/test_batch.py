"""`df.write.format("dualwrite-kafka")`: a batch job is atomic, and repeating it has no effect."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tests.spark.sinks import SinkWorld

pytestmark = pytest.mark.timeout(600)


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, numPartitions=partitions).select(sf.col("id").cast("string").alias("value"))


def write(world: SinkWorld, df: DataFrame, mode: str = "append", **more: str) -> None:
    df.write.format("dualwrite-kafka").mode(mode).options(**world.options, **more).save()


def test_a_job_is_written_once_by_its_id(spark: SparkSession, sqlite_world: SinkWorld) -> None:
    world = sqlite_world
    write(world, numbers(spark, 4), jobId="2026-11-20")
    write(world, numbers(spark, 9, partitions=3), jobId="2026-11-20")
    assert world.values() == ["0", "1", "2", "3"], "the second run of a job changes nothing"
    write(world, numbers(spark, 1), jobId="2026-11-21")
    assert world.values() == ["0", "0", "1", "2", "3"]
    assert world.select("SELECT query_id FROM dw_batch ORDER BY query_id") == [
        ("job:2026-11-20",),
        ("job:2026-11-21",),
    ]


def test_of_a_job_with_versions_only_higher_ones_are_written(spark: SparkSession, sqlite_world: SinkWorld) -> None:
    world = sqlite_world

    def run(version: int) -> None:
        rows = spark.range(2, numPartitions=2).select(sf.concat(sf.lit(f"{version}:"), "id").alias("value"))
        write(world, rows, jobId="daily", jobVersion=str(version))

    for version in (20261121, 1_795_486_916_400, 20261121, 1_795_486_916_401):
        run(version)
    written = (20261121, 1_795_486_916_400, 1_795_486_916_401)
    assert world.values() == sorted(f"{version}:{row}" for version in written for row in (0, 1))
    assert world.open_transactions() == []


def test_a_job_without_an_id_is_a_new_one_each_time(spark: SparkSession, sqlite_world: SinkWorld) -> None:
    world = sqlite_world
    for _ in range(2):
        write(world, numbers(spark, 1, partitions=1))
    assert world.values() == ["0", "0"]


def test_a_job_without_rows_is_done_too(spark: SparkSession, sqlite_world: SinkWorld) -> None:
    world = sqlite_world
    write(world, spark.createDataFrame([], "value string"), jobId="empty")
    assert world.batches() == [(0, "DONE", 0)]


@pytest.mark.parametrize(
    ("mode", "sentence"), [("overwrite", "a topic cannot be overwritten"), ("ignore", "cannot be written in the")]
)
def test_other_modes_are_refused(spark: SparkSession, sqlite_world: SinkWorld, mode: str, sentence: str) -> None:
    with pytest.raises(AnalysisException, match=sentence):
        write(sqlite_world, numbers(spark, 1), mode)
    assert sqlite_world.tables() == []
