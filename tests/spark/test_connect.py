"""Spark Connect: the client has no JVM, and the processes of the server do the same as in Classic."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.spark.lake_tables import DeltaLake
from tests.spark.sinks import SinkWorld

pytestmark = pytest.mark.timeout(600)

CLIENT = """
import sqlite3
import sys
import time
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import repeat
from spark_sink import dualwrite_batch, register
from tests.support.spark_session import prepare_environment, settings

prepare_environment()
options, files, checkpoint, lake = eval(sys.argv[1])
builder = SparkSession.builder.remote("local[2]")
for name, value in settings().items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
register(spark)
rows = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", "1").json(files)

def run(writer, name):
    ready = writer.option("checkpointLocation", f"{checkpoint}/{name}").trigger(availableNow=True)
    assert started(ready).awaitTermination(200)

def started(ready):
    for _ in range(5):
        try:
            return ready.start()
        except PySparkException as error:
            # Spark gives the process of foreachBatch ten seconds to start, whatever else the machine does meanwhile
            if "Python worker failed to connect back" not in str(error):
                raise
    raise AssertionError("Spark could not start its process for foreachBatch")

run(rows.writeStream.format("dualwrite-kafka").options(**options), "format")
in_lake = {**options, "sinkId": options["sinkId"] + "_lake", "dual.table": f"delta:{lake}", "dual.columns": "id"}
run(rows.withColumn("id", rows["value"]).writeStream.format("dualwrite-kafka").options(**in_lake), "lake")
job = spark.createDataFrame([("job",)], "value string")
own = {**options, "sinkId": options["sinkId"] + "_job"}
job.write.format("dualwrite-kafka").mode("append").options(**own).save()

def note(connection, batch_id):
    connection.exec_driver_sql(f"INSERT INTO noted VALUES ({batch_id})")

options["sinkId"] += "_foreach"
known = {**options, "checkpointLocation": f"{checkpoint}/foreach"}
run(rows.writeStream.foreachBatch(dualwrite_batch(known, note)), "foreach")

database = options["commitStore.url"].removeprefix("sqlite:///")

def broken(batches):
    yield from batches
    while not sqlite3.connect(database).execute("SELECT 1 FROM dw_attempt WHERE batch_id = 2").fetchone():
        time.sleep(0.05)
    raise RuntimeError("broken")

with open(f"{files}/002.json", "w") as file:
    file.write('{"key": "d", "value": "d"}\\n{"key": "e", "value": "e"}')
spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
large = rows.withColumn("value", repeat("value", 100_000)).coalesce(1).mapInArrow(broken, rows.schema)
options["sinkId"] = options["sinkId"].removesuffix("_foreach")
try:
    run(large.writeStream.format("dualwrite-kafka").options(**options), "format")
except PySparkException as error:
    assert "broken" in str(error), error
else:
    raise AssertionError("the batch did not fail")
"""


def test_the_format_a_delta_table_foreach_batch_and_a_batch_that_fails(sqlite_world: SinkWorld, tmp_path: Path) -> None:
    world = sqlite_world
    world.execute("CREATE TABLE noted (batch bigint)")
    world.add_values("a", "b")
    world.add_values("c")
    lake = DeltaLake(tmp_path, pa.schema([("id", pa.string())]))
    arguments = repr((world.options, str(tmp_path / "input"), str(world.checkpoint), str(lake.root)))
    free_port = {**os.environ, "SPARK_TESTING": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, arguments],
        env=free_port,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-9000:]
    assert world.values() == ["a", "a", "a", "b", "b", "b", "c", "c", "c", "job"]
    assert sorted(lake.read()["id"].to_pylist()) == ["a", "b", "c"]
    assert world.select("SELECT batch FROM noted ORDER BY batch") == [(0,), (1,)]
    assert world.statuses().keys() == {"ABORTED", "COMMITTED"}
    assert world.open_transactions() == []
