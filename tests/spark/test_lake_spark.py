"""A Delta table through Spark: streams, foreachBatch, batch jobs, and drivers whose JVM is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from dualwrite.broker_emulator.emulator import Emulator
from spark_sink import dualwrite_batch
from spark_sink.pause_points import PausePoint as At
from tests.spark.faults import Action, Fault, Faults, Process
from tests.spark.lake_model import deltalake, new_table, read
from tests.spark.sinks import SinkWorld, finish
from tests.spark.test_driver_kills import Supervisor
from tests.spark.test_pages import DELTA
from tests.support.databases import unique

pytestmark = pytest.mark.timeout(600)

COLUMNS = pa.schema([("id", pa.int64()), ("value", pa.string())])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return new_table(tmp_path, COLUMNS)


def ids(path: Path) -> list[int]:
    return sorted(read(path)["id"].to_pylist())


def options(path: Path) -> dict[str, str]:
    return {"dual_table": f"delta:{path}", "dual_columns": "id,value"}


def test_a_stream_and_its_replay(spark: SparkSession, sqlite_world: SinkWorld, path: Path) -> None:
    world = sqlite_world
    schema = "id int, value string"
    world.add_batch({"id": 1, "value": "1"}, {"id": 2, "value": "2"})
    world.add_batch({"id": 3, "value": "3"})
    world.run(world.read(spark, schema).repartition(2), **options(path))
    world.forget_commit(1)
    world.add_batch({"id": 4})
    with pytest.raises(StreamingQueryException, match="value"):
        world.run(world.read(spark, schema).select("id", sf.lit(5).alias("value")), **options(path))
    world.run(world.read(spark, schema).fillna("4"), **options(path))
    assert ids(path) == [1, 2, 3, 4]
    assert world.values() == ["1", "2", "3", "4"]
    assert world.select("SELECT count(*) FROM dw_lake_file") == [(0,)]
    assert deltalake.DeltaTable(str(path)).version() == 3


def test_foreach_batch_and_jobs(spark: SparkSession, postgres_world: SinkWorld, path: Path) -> None:
    world = postgres_world
    more = {name.replace("_", "."): value for name, value in options(path).items()}
    world.add_batch({"id": 1, "value": "1"})
    write = dualwrite_batch({**world.options, **more})
    df = world.read(spark, "id bigint, value string")
    stream = df.writeStream.foreachBatch(write).option("checkpointLocation", str(world.checkpoint))
    finish(stream.trigger(availableNow=True).start())
    assert (ids(path), world.values()) == ([1], ["1"])

    world.sink_id = unique("sink").replace("-", "_")
    job = spark.range(2, 5, numPartitions=2).select("id", sf.col("id").cast("string").alias("value"))
    for _ in range(2):
        job.write.format("dualwrite-kafka").mode("append").options(**world.options, **more, jobId="j").save()
    assert (ids(path), world.values()) == ([1, 2, 3, 4], ["1", "2", "3", "4"])
    with pytest.raises(PySparkException, match="is not an absolute path"):
        job.write.format("dualwrite-kafka").mode("append").options(
            **{**world.options, **more, "dual.table": "delta:s3://bucket/orders"}
        ).save()


_FAULTS = [
    Fault(At.AFTER_FILE, Action.KILL_WORKER, Process.TASK),
    Fault(At.BEFORE_ADDITION, Action.RAISE, Process.COMMITTER),
    Fault(At.BEFORE_ADDITION, Action.KILL_WORKER, Process.COMMITTER),
    Fault(At.AFTER_ADDITION, Action.KILL_WORKER, Process.COMMITTER),
    Fault(At.BEFORE_FORGETTING, Action.KILL_WORKER, Process.COMMITTER),
]


def test_workers_that_die_at_each_step(
    spark: SparkSession, sqlite_world: SinkWorld, path: Path, tmp_path: Path
) -> None:
    world = sqlite_world
    faults = Faults(tmp_path / "faults")
    name = unique("faulty")
    spark.dataSource.register(faults.format(name))
    written: list[int] = []
    for number, fault in enumerate(_FAULTS):
        faults.arm(fault)
        world.add_batch(*({"id": 10 * number + row, "value": f"{10 * number + row}"} for row in range(3)))
        written += range(10 * number, 10 * number + 3)
        df = world.read(spark, "id bigint, value string").repartition(2)
        for _ in range(4):
            try:
                finish(world.writer(df, **options(path)).format(name).start())
            except StreamingQueryException:
                continue
            break
        assert faults.struck() == [fault]
        assert ids(path) == written
        assert world.values() == sorted(map(str, written))
    assert world.select("SELECT count(*) FROM dw_lake_file WHERE decided_at IS NOT NULL") == [(0,)]


def test_the_page_shows_how_a_table_is_made(spark: SparkSession, sqlite_world: SinkWorld, tmp_path: Path) -> None:
    world = sqlite_world
    exec(DELTA.replace("/lake/orders", str(tmp_path / "orders")), {})
    df = spark.sql("SELECT 1L AS id, 'lamp' AS item, 'r' AS value")
    df.write.format("dualwrite-kafka").mode("append").options(
        **world.options, **{"dual.table": f"delta:{tmp_path / 'orders'}"}
    ).save()
    assert read(tmp_path / "orders").to_pylist() == [{"id": 1, "item": "lamp"}]


# ---- the JVM --------------------------------------------------------------------------------------------------


class LakeSupervisor(Supervisor):
    """Drivers with a Delta table."""

    def _options(self) -> dict[str, str]:
        self.path = new_table(self._directory, pa.schema([("id", pa.string())]))
        return {**super()._options(), "dual.table": f"delta:{self.path}"}

    def in_table(self) -> list[str]:
        return sorted(read(self.path)["id"].to_pylist(), key=int)


_KILLS = [
    Fault(At.AFTER_FILE, Action.ORPHAN, Process.TASK),
    Fault(At.BEFORE_ADDITION, Action.KILL_JVM, Process.COMMITTER),
    Fault(At.AFTER_ADDITION, Action.ORPHAN, Process.COMMITTER),
    Fault(At.BEFORE_FORGETTING, Action.KILL_JVM, Process.COMMITTER),
]


@pytest.fixture
def supervisor(emulator: Emulator, tmp_path: Path) -> Iterator[LakeSupervisor]:
    made = LakeSupervisor(emulator, tmp_path)
    yield made
    made.close()


def test_whenever_the_jvm_is_killed_topic_and_table_become_equal(supervisor: LakeSupervisor) -> None:
    for fault in _KILLS:
        supervisor.add_batch()
        supervisor.faults.arm(fault)
        supervisor.run_until_the_jvm_dies()
        assert supervisor.faults.struck() == [fault]
        in_table = supervisor.in_table()
        assert in_table == supervisor.written[: len(in_table)], "whole batches, and in their order"
    supervisor.run_to_the_end()
    assert supervisor.in_topic() == supervisor.in_table() == supervisor.written
    assert supervisor.open_transactions() == []
    assert supervisor.column("SELECT attempt_id FROM dw_lake_file WHERE decided_at IS NOT NULL") == []
