"""docs/spark.md on SQL and on real-time mode is true of Spark: each statement, and each refusal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from tests.spark.sinks import SinkWorld, finish
from tests.support.databases import unique
from tests.test_docs import ROOT

pytestmark = pytest.mark.timeout(600)

PAGE: Final = (ROOT / "docs" / "spark.md").read_text()
SQL: Final = PAGE.partition("\n## SQL\n")[2].partition("\n## ")[0]
REAL_TIME: Final = PAGE.partition("\n## Real-time mode\n")[2].partition("\n## ")[0]

ROWS: Final = "SELECT CAST(id AS STRING) AS key, concat('row ', id) AS value FROM orders"
OPTIONS_MISSING: Final = "SinkOptionError: the option sinkId is missing"
NO_OVERWRITE: Final = "SinkOptionError: a topic cannot be overwritten"


@pytest.fixture
def sql(spark: SparkSession, sqlite_world: SinkWorld, tmp_path: Path) -> Iterator[Sql]:
    with_tables = unique("tables").replace("-", "_")
    spark.sql(f"CREATE DATABASE {with_tables} LOCATION '{tmp_path / 'tables'}'")
    spark.sql(f"USE {with_tables}")
    spark.range(2).createOrReplaceTempView("orders")
    yield Sql(spark, sqlite_world)
    spark.sql("USE default")
    spark.sql(f"DROP DATABASE {with_tables} CASCADE")
    for view in spark.catalog.listTables("default"):
        spark.catalog.dropTempView(view.name)


class Sql:
    """Statements of a user with SQL alone, on one sink."""

    def __init__(self, spark: SparkSession, world: SinkWorld) -> None:
        self.spark = spark
        self.world = world

    def options(self, **more: str) -> str:
        """Return the options of the sink as the clauses OPTIONS and WITH have them."""
        return _clause({**self.world.options, **more})

    @property
    def source_options(self) -> str:
        return _clause(
            {"kafka.bootstrap.servers": self.world.options["kafka.bootstrap.servers"], "subscribe": self.world.topic}
        )

    def run(self, statement: str) -> list[Row]:
        return self.spark.sql(statement).collect()

    def refused(self, statement: str, *words: str) -> None:
        """Run a statement that fails with these words."""
        with pytest.raises(AnalysisException) as refusal:
            self.run(statement)
        for each in words:
            assert each in str(refusal.value)

    @property
    def values(self) -> list[str | None]:
        return self.world.values()


def _clause(options: dict[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in options.items())


# ---- views ----------------------------------------------------------------------------------------------------


def test_the_example(sql: Sql) -> None:
    (example,) = re.findall(r"```sql\n(.*?)```", SQL, re.DOTALL)
    for shown, real in {
        "127.0.0.1:9092": sql.world.options["kafka.bootstrap.servers"],
        "'topic' = 'orders'": f"'topic' = '{sql.world.topic}'",
        "'sinkId' = 'orders-sql'": f"'sinkId' = '{sql.world.sink_id}'",
        "'commitStore.urlEnv' = 'ORDERS_STORE_URL'": f"'commitStore.url' = '{sql.world.store_url}'",
    }.items():
        assert shown in example
        example = example.replace(shown, real)
    view, insert = (each for each in example.split(";") if each.strip())
    sql.run(view)
    for count in (1, 2):  # each INSERT is a batch job of its own
        sql.run(insert)
        assert sql.values == sorted(['{"id":0}', '{"id":1}'] * count)
    assert sql.world.open_transactions() == []


def test_the_job_of_a_view_is_the_job_of_each_insert(sql: Sql) -> None:
    columns = "(key STRING, value STRING)"
    sql.run(f"CREATE TEMPORARY VIEW job {columns} USING `dualwrite-kafka` OPTIONS ({sql.options(jobId='nightly')})")
    for _ in range(2):
        sql.run(f"INSERT INTO job {ROWS}")
    assert sql.values == ["row 0", "row 1"]
    sql.run(f"INSERT INTO job WITH ('jobId' = 'another') {ROWS}")  # Spark ignores the clause
    assert sql.values == ["row 0", "row 1"]


def test_a_view_over_the_source(sql: Sql) -> None:
    _write(sql)
    sql.run(f"CREATE TEMPORARY VIEW read USING `dualwrite-kafka-source` OPTIONS ({sql.source_options})")
    rows = sql.run("SELECT CAST(value AS STRING) FROM read ORDER BY 1")
    assert [row.value for row in rows] == ["row 0", "row 1"]
    sql.run(f"CREATE TEMPORARY VIEW typed (value BINARY) USING `dualwrite-kafka-source` OPTIONS ({sql.source_options})")
    sql.refused("SELECT * FROM typed", "dualwrite-kafka-source has fixed columns")


def _write(sql: Sql) -> None:
    rows = sql.spark.sql(ROWS)
    rows.write.format("dualwrite-kafka").mode("append").options(**sql.world.options).save()


# ---- the table of the page ------------------------------------------------------------------------------------


def _table(sql: Sql) -> None:
    sql.run(f"CREATE TABLE sent (key STRING, value STRING) USING `dualwrite-kafka` OPTIONS ({sql.options()})")


def create_table_using_the_sink(sql: Sql) -> None:
    _table(sql)
    sql.refused(f"INSERT INTO sent {ROWS}", OPTIONS_MISSING)
    assert sql.values == []


def insert_into_that_table_with(sql: Sql) -> None:
    _table(sql)
    for _ in range(2):
        sql.run(f"INSERT INTO sent WITH ({sql.options(jobId='nightly')}) {ROWS}")
    assert sql.values == ["row 0", "row 1"]
    sql.refused(f"INSERT INTO sent WITH ('jobId' = 'another') {ROWS}", OPTIONS_MISSING)


def data_frames_to_that_table(sql: Sql) -> None:
    _table(sql)
    sql.spark.sql(ROWS).writeTo("sent").options(**sql.world.options).append()
    assert sql.values == ["row 0", "row 1"]
    sql.world.add_values("of a stream")
    stream = (
        sql.world.read(sql.spark)
        .writeStream.trigger(availableNow=True)
        .options(
            **{**sql.world.options, "sinkId": f"{sql.world.sink_id}_stream"},
            checkpointLocation=str(sql.world.checkpoint),
        )
    )
    finish(stream.toTable("sent"))
    assert sql.values == ["of a stream", "row 0", "row 1"]


def create_table_as_select(sql: Sql) -> None:
    sql.refused(f"CREATE TABLE made USING `dualwrite-kafka` OPTIONS ({sql.options()}) AS {ROWS}", OPTIONS_MISSING)
    assert sql.values == []


def insert_overwrite(sql: Sql) -> None:
    _table(sql)
    sql.run(f"CREATE TEMPORARY VIEW send (key STRING, value STRING) USING `dualwrite-kafka` OPTIONS ({sql.options()})")
    sql.refused(f"INSERT OVERWRITE sent WITH ({sql.options()}) {ROWS}", NO_OVERWRITE)
    sql.refused(f"INSERT OVERWRITE send {ROWS}", NO_OVERWRITE)


def select_from_the_sink(sql: Sql) -> None:
    _table(sql)
    sql.refused(f"SELECT * FROM sent WITH ({sql.options()})", "[NOT_IMPLEMENTED] reader is not implemented")


def create_table_using_the_source(sql: Sql) -> None:
    _write(sql)
    created = f"USING `dualwrite-kafka-source` OPTIONS ({sql.source_options})"
    sql.refused(f"CREATE TABLE plain {created}", "SinkOptionError: unknown option provider")
    columns = (
        "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
    )
    sql.run(f"CREATE TABLE received ({columns}) {created}")
    sql.refused("SELECT * FROM received", "SinkOptionError", "bootstrap.servers is missing")
    rows = sql.run(f"SELECT CAST(value AS STRING) FROM received WITH ({sql.source_options}) ORDER BY 1")
    assert [row.value for row in rows] == ["row 0", "row 1"]


def a_stream_from_a_view(sql: Sql) -> None:
    sql.run(f"CREATE TEMPORARY VIEW read USING `dualwrite-kafka-source` OPTIONS ({sql.source_options})")
    with pytest.raises(AnalysisException, match="read is not a temp view of streaming logical plan"):
        sql.spark.readStream.table("read")
    sql.refused("SELECT * FROM STREAM read", "read is not a temp view of streaming logical plan")


OTHER_STATEMENTS: Final[dict[str, Callable[[Sql], None]]] = {
    "`CREATE TABLE ... USING` the sink": create_table_using_the_sink,
    "`INSERT INTO` that table `WITH (...)`": insert_into_that_table_with,
    "`df.writeTo(table).options(...).append()`, `writeStream.options(...).toTable(table)`": data_frames_to_that_table,
    "`CREATE TABLE ... AS SELECT`": create_table_as_select,
    "`INSERT OVERWRITE`": insert_overwrite,
    "`SELECT` from the sink": select_from_the_sink,
    "`CREATE TABLE ... USING` the source": create_table_using_the_source,
    "a stream from a view over the source": a_stream_from_a_view,
}


def test_every_statement_of_the_page_is_tested() -> None:
    rows = re.findall(r"^\| (.*?) \| .* \|$", SQL, re.MULTILINE)
    assert rows[1:] == list(OTHER_STATEMENTS)


@pytest.mark.parametrize("statement", OTHER_STATEMENTS.values(), ids=lambda each: each.__name__)
def test_other_statements(statement: Callable[[Sql], None], sql: Sql) -> None:
    statement(sql)


# ---- real-time mode -------------------------------------------------------------------------------------------


@pytest.fixture
def real_time(spark: SparkSession, sqlite_world: SinkWorld, tmp_path: Path) -> Iterator[RealTime]:
    yield RealTime(spark, sqlite_world, tmp_path)
    spark.conf.unset(RealTime.CHECK)


class RealTime:
    """Queries with the real-time trigger."""

    CHECK: Final = "spark.sql.streaming.realTimeMode.allowlistCheck"

    def __init__(self, spark: SparkSession, world: SinkWorld, directory: Path) -> None:
        self._spark = spark
        self._world = world
        self._checkpoints = directory

    def refusal(self, *, mode: str, by_list: bool, foreach_batch: bool) -> str:
        """Return Spark's refusal of a query; no record is written."""
        self._spark.conf.set(self.CHECK, str(by_list).lower())
        rows = self._spark.readStream.format("rate").load().selectExpr("CAST(value AS string) AS value")
        writer: Any = rows.writeStream.outputMode(mode)
        writer = writer.trigger(realTime="5 minutes")
        writer = writer.option("checkpointLocation", str(self._checkpoints / unique("checkpoint")))
        if foreach_batch:
            writer = writer.foreachBatch(_never)
        else:
            writer = writer.format("dualwrite-kafka").options(**self._world.options)
        with pytest.raises(PySparkException) as refused:
            finish(writer.start())
        assert isinstance(refused.value, AnalysisException | IllegalArgumentException)
        assert self._world.tables() == []
        return str(refused.value)


def _never(df: DataFrame, batch_id: int) -> None:
    raise AssertionError("a batch of a query that Spark refuses")


def _quoted(of: str) -> list[str]:
    """Return the parts of the message on the page that contains these words, as far as it is printed there."""
    found: list[str] = re.findall(r"`([^`]+)`", REAL_TIME)
    (message,) = [each for each in found if of in each]
    return " ".join(message.split()).split(" ... ")  # the page may break its line anywhere


@pytest.mark.parametrize("mode", ["append", "update"])
def test_real_time_mode_has_a_list_of_sinks(mode: str, real_time: RealTime) -> None:
    refusal = real_time.refusal(mode=mode, by_list=True, foreach_batch=False)
    for part in _quoted("is not in the sink allowlist"):
        assert part in refusal
    assert "ForeachBatchSink is not in the sink allowlist" in real_time.refusal(
        mode=mode, by_list=True, foreach_batch=True
    )


def test_real_time_mode_without_the_list(real_time: RealTime) -> None:
    (words,) = _quoted("dualwrite-kafka does not support")
    assert words in real_time.refusal(mode="update", by_list=False, foreach_batch=False)
    assert words.replace("dualwrite-kafka", "ForeachBatchSink") in real_time.refusal(
        mode="update", by_list=False, foreach_batch=True
    )


def test_real_time_mode_knows_no_append(real_time: RealTime) -> None:
    for foreach_batch in (False, True):
        refusal = real_time.refusal(mode="append", by_list=False, foreach_batch=foreach_batch)
        for part in _quoted("The output mode Append"):
            assert part in refusal
