"""Spark's classes as a JVM has them in memory, kept in a file: with it, a driver starts with half of the work.

    python -m tests.support.spark_classes

Makes the file where it is missing, by queries in a JVM that is told to leave it behind when it ends; half a minute,
once for each Java and each installation of PySpark.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.server_unavailable import ServerUnavailableError
from spark_sink import dualwrite_batch, register
from spark_sink.errors import JavaError
from tests.spark.sinks import SinkWorld, finish
from tests.support.servers.cache import cached
from tests.support.spark_jvm import CLASSES_FILE, QUICK, QUIET, classes_name
from tests.support.spark_session import prepare_environment, start_session

_LONGEST_END_S = 300.0


def make_spark_classes() -> Path:
    """The directory that the file is in. Raises ServerUnavailableError where Spark does not start here."""
    try:
        prepare_environment()
        return cached(classes_name(), _make)
    except (JavaError, PySparkException, subprocess.TimeoutExpired) as error:
        raise ServerUnavailableError(f"Spark does not start here: {error}") from error


def _make(work: Path) -> Path:
    made = work / "classes"
    made.mkdir()
    options = f"{QUICK} -XX:ArchiveClassesAtExit={made / CLASSES_FILE} {QUIET}"
    spark = start_session(spark_driver_extraJavaOptions=options)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    jvm = gateway.proc
    with Emulator() as broker:
        _use(spark, broker, work)
    spark.stop()
    jvm.stdin.close()  # it tells the JVM that its driver has gone
    jvm.wait(_LONGEST_END_S)
    return made


def _use(spark: SparkSession, broker: Emulator, directory: Path) -> None:
    """A query of each kind that the tests have."""
    register(spark)
    world = SinkWorld(broker, f"sqlite:///{directory / 'store.db'}", directory)
    world.add_values("a", "b")
    world.run(world.read(spark).repartition(2))
    checkpoint = str(directory / "foreach")
    known = {**world.options, "sinkId": "foreach", "checkpointLocation": checkpoint}
    write = dualwrite_batch(known, lambda connection, batch_id: None)
    query = world.read(spark).writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    finish(query.trigger(availableNow=True).start())


if __name__ == "__main__":
    print(make_spark_classes())
