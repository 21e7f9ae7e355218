"""A batch that fails, or whose query or job is stopped, is invisible, and holds up no reader of the topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_sink import dualwrite_batch
from tests.spark.lake_tables import DeltaLake
from tests.spark.sinks import SinkWorld, finish
from tests.support.conditions import until

pytestmark = pytest.mark.timeout(600)

LONG = 100_000  # Spark hands rows to a task's Python when it has 64 KiB of them, or all
ROWS = ["a" * LONG, "b" * LONG, "z"]
"""Of one task, which has sent the first two before it gets the last."""


class Gate:
    """Holds a task before its last row, until a test lets it go on, or fail."""

    def __init__(self, directory: Path) -> None:
        self._go, self._fails = directory / "go", directory / "fails"
        self.shut()

    def shut(self) -> None:
        self._go.unlink(missing_ok=True)
        self._fails.touch()

    def open(self, *, fails: bool = False) -> None:
        if not fails:
            self._fails.unlink()
        self._go.touch()

    def before_the_last(self, df: DataFrame) -> DataFrame:
        """Return `df` in one partition, row by row."""
        go, fails = self._go, self._fails

        def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number, value in enumerate(batch.column("value").to_pylist()):
                    if value == "z":
                        until(go.exists, 120)
                        if fails.exists():
                            raise RuntimeError("still broken")
                    yield batch.slice(number, 1)

        return df.coalesce(1).mapInArrow(rows, df.schema)


@pytest.fixture
def gate(spark: SparkSession, tmp_path: Path) -> Iterator[Gate]:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    yield Gate(tmp_path)
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


Start = Callable[[DataFrame], StreamingQuery]


class Faces:
    """The ways to write a stream."""

    def __init__(self, world: SinkWorld, directory: Path) -> None:
        self._world = world
        self._directory = directory

    def of_the_format(self, df: DataFrame) -> StreamingQuery:
        return self._world.writer(df).start()

    def with_a_table(self, df: DataFrame) -> StreamingQuery:
        if "target" not in self._world.tables():
            self._world.execute("CREATE TABLE target (value text)")
        return self._world.writer(df, dual_table="target", dual_columns="value").start()

    def with_a_delta_table(self, df: DataFrame) -> StreamingQuery:
        found = next(self._directory.glob("lake-*"), None)
        root = found or DeltaLake(self._directory).root
        return self._world.writer(df, dual_table=f"delta:{root}", dual_columns="value").start()

    def of_foreach_batch(self, df: DataFrame) -> StreamingQuery:
        writer = df.writeStream.foreachBatch(dualwrite_batch(self._world.options))
        return writer.option("checkpointLocation", str(self._world.checkpoint)).trigger(availableNow=True).start()


def fails(query: StreamingQuery, gate: Gate) -> None:
    gate.open(fails=True)
    with pytest.raises(StreamingQueryException, match="still broken"):
        finish(query)


def is_stopped(query: StreamingQuery, gate: Gate) -> None:
    query.stop()
    assert query.exception() is None


@pytest.mark.parametrize("ends", [fails, is_stopped])
@pytest.mark.parametrize(
    "face", [Faces.of_the_format, Faces.with_a_table, Faces.with_a_delta_table, Faces.of_foreach_batch]
)
def test_a_batch_of_a_stream(
    spark: SparkSession,
    sqlite_world: SinkWorld,
    tmp_path: Path,
    gate: Gate,
    face: Callable[[Faces, DataFrame], StreamingQuery],
    ends: Callable[[StreamingQuery, Gate], None],
) -> None:
    """The first batch of each start, and at last one behind another batch."""
    world, faces = sqlite_world, Faces(sqlite_world, tmp_path)
    df = gate.before_the_last(world.read(spark))

    def start_and_give_up(seen: list[str], done: int = 0) -> None:
        gate.shut()
        query = face(faces, df)
        until(lambda: statuses(world) == ["DONE"] * done and world.open_transactions() != [], 120)
        ends(query, gate)
        assert initials(world) == seen
        assert world.open_transactions() == []

    world.add_values(*ROWS)
    start_and_give_up([])
    start_and_give_up([])
    gate.open()
    finish(face(faces, df))
    assert initials(world) == ["a", "b", "z"]

    world.add_values("c")
    world.add_values(*ROWS)
    start_and_give_up(["a", "b", "c", "z"], done=2)
    gate.open()
    finish(face(faces, df))
    assert initials(world) == ["a", "a", "b", "b", "c", "z", "z"]
    assert world.batches() == [(0, "DONE", 3), (1, "DONE", 1), (2, "DONE", 3)]


def statuses(world: SinkWorld) -> list[str]:
    """Return the status of each decided batch."""
    return [status for _, status, _ in world.batches()] if "dw_batch" in world.tables() else []


def initials(world: SinkWorld) -> list[str]:
    return [str(value)[0] for value in world.values()]


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_job(spark: SparkSession, sqlite_world: SinkWorld, tmp_path: Path, gate: Gate, is_stopped: bool) -> None:
    world = sqlite_world
    world.add_values(*ROWS)
    df = gate.before_the_last(spark.read.schema("key string, value string").json(str(tmp_path / "input")))

    def write() -> None:
        df.write.format("dualwrite-kafka").mode("append").options(**world.options, jobId="j").save()

    def end() -> None:
        until(lambda: world.open_transactions() != [], 120)
        if is_stopped:
            spark.sparkContext.cancelAllJobs()
        else:
            gate.open(fails=True)

    with ThreadPoolExecutor(1) as threads:
        ending = threads.submit(end)
        with pytest.raises(Exception, match="cancelled" if is_stopped else "still broken"):
            write()
        ending.result()
    assert world.values() == []
    assert world.open_transactions() == []

    gate.open()
    write()
    assert initials(world) == ["a", "b", "z"]
    assert world.open_transactions() == []
