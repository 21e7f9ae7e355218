"""Delta and Iceberg tables through Spark: streams, foreachBatch, batch jobs, and drivers whose JVM is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from dualwrite.broker_emulator.emulator import Emulator
from spark_sink import dualwrite_batch
from spark_sink.pause_points import PausePoint as At
from tests.spark.faults import Action, Fault, Process
from tests.spark.lake_tables import KINDS, LakeTable, deltalake
from tests.spark.sinks import SinkWorld, finish
from tests.spark.test_driver_kills import Supervisor
from tests.support.databases import unique
from tests.test_docs import ROOT, examples

pytestmark = pytest.mark.timeout(600)

DELTA, ICEBERG = examples(ROOT / "docs" / "spark-lake.md")[:2]

COLUMNS = pa.schema([("id", pa.int64()), ("value", pa.string())])


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def table(kind: str, tmp_path: Path) -> LakeTable:
    return KINDS[kind](tmp_path, COLUMNS)


def ids(table: LakeTable) -> list[int]:
    return sorted(table.read()["id"].to_pylist())


def options(table: LakeTable) -> dict[str, str]:
    return {name.replace(".", "_"): value for name, value in table.options.items()} | {"dual_columns": "id,value"}


def test_a_stream_and_its_replay(spark: SparkSession, sqlite_world: SinkWorld, table: LakeTable) -> None:
    world = sqlite_world
    schema = "id int, value string"
    world.add_batch({"id": 1, "value": "1"}, {"id": 2, "value": "2"})
    world.add_batch({"id": 3, "value": "3"})
    world.run(world.read(spark, schema).repartition(2), **options(table))
    world.forget_commit(1)
    world.add_batch({"id": 4})
    with pytest.raises(StreamingQueryException, match="value"):
        world.run(world.read(spark, schema).select("id", sf.lit(5).alias("value")), **options(table))
    world.run(world.read(spark, schema).fillna("4"), **options(table))
    assert ids(table) == [1, 2, 3, 4]
    assert world.values() == ["1", "2", "3", "4"]
    assert world.select("SELECT count(*) FROM dw_lake_file") == [(0,)]
    assert len(table.generations()) == 3


def test_foreach_batch_and_jobs(spark: SparkSession, postgres_world: SinkWorld, table: LakeTable) -> None:
    world = postgres_world
    more = {name.replace("_", "."): value for name, value in options(table).items()}
    world.add_batch({"id": 1, "value": "1"})
    write = dualwrite_batch({**world.options, **more})
    df = world.read(spark, "id bigint, value string")
    stream = df.writeStream.foreachBatch(write).option("checkpointLocation", str(world.checkpoint))
    finish(stream.trigger(availableNow=True).start())
    assert (ids(table), world.values()) == ([1], ["1"])

    world.sink_id = unique("sink").replace("-", "_")
    job = spark.range(2, 5, numPartitions=2).select("id", sf.col("id").cast("string").alias("value"))
    for _ in range(2):
        job.write.format("dualwrite-kafka").mode("append").options(**world.options, **more, jobId="j").save()
    assert (ids(table), world.values()) == ([1, 2, 3, 4], ["1", "2", "3", "4"])
    with pytest.raises(PySparkException, match="is not an absolute path"):
        job.write.format("dualwrite-kafka").mode("append").options(
            **{**world.options, "dual.table": "delta:s3://bucket/orders"}
        ).save()


def write_a_lamp(spark: SparkSession, world: SinkWorld, **more: str) -> None:
    df = spark.sql("SELECT 1L AS id, 'lamp' AS item, 'r' AS value")
    df.write.format("dualwrite-kafka").mode("append").options(**world.options, **more).save()


LAMP = [{"id": 1, "item": "lamp"}]


def test_the_page_shows_how_a_delta_table_is_made(spark: SparkSession, sqlite_world: SinkWorld, tmp_path: Path) -> None:
    exec(DELTA.replace("/lake/orders", str(tmp_path / "orders")), {})
    write_a_lamp(spark, sqlite_world, **{"dual.table": f"delta:{tmp_path / 'orders'}"})
    assert deltalake.DeltaTable(str(tmp_path / "orders")).to_pyarrow_table().to_pylist() == LAMP


def test_the_page_shows_how_an_iceberg_table_is_made(
    spark: SparkSession, sqlite_world: SinkWorld, tmp_path: Path
) -> None:
    made: dict[str, Any] = {}
    exec(ICEBERG.replace("/lake/", f"{tmp_path}/"), made)
    url = f"sqlite:///{tmp_path / 'catalog.db'}"
    write_a_lamp(spark, sqlite_world, **{"dual.table": "iceberg:shop.orders", "dual.catalog.url": url})
    assert made["catalog"].load_table("shop.orders").scan().to_arrow().to_pylist() == LAMP


# ---- the JVM --------------------------------------------------------------------------------------------------


class LakeSupervisor(Supervisor):
    """Drivers with a table of files."""

    def __init__(self, broker: Emulator, directory: Path, kind: str) -> None:
        self.table = KINDS[kind](directory, pa.schema([("id", pa.string())]))
        super().__init__(broker, directory)

    def _options(self) -> dict[str, str]:
        return {**super()._options(), **self.table.options}

    def in_table(self) -> list[str]:
        return sorted(self.table.read()["id"].to_pylist(), key=int)


_KILLS = [
    Fault(At.AFTER_FILE, Action.ORPHAN, Process.TASK),
    Fault(At.BEFORE_ADDITION, Action.KILL_JVM, Process.COMMITTER),
    Fault(At.AFTER_ADDITION, Action.ORPHAN, Process.COMMITTER),
    Fault(At.BEFORE_FORGETTING, Action.KILL_JVM, Process.COMMITTER),
]


@pytest.fixture
def supervisor(emulator: Emulator, tmp_path: Path, kind: str) -> Iterator[LakeSupervisor]:
    made = LakeSupervisor(emulator, tmp_path, kind)
    yield made
    made.close()


def test_whenever_the_jvm_is_killed_topic_and_table_become_equal(supervisor: LakeSupervisor) -> None:
    for fault in _KILLS:
        supervisor.kill_at(fault)
    supervisor.run_to_the_end()
    assert supervisor.column("SELECT attempt_id FROM dw_lake_file WHERE decided_at IS NOT NULL") == []
