"""The application: `python -m examples.flights_spark.driver JOB`, where JOB is a `Job` as JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from examples.flights_spark.at_least_once import write_at_least_once
from examples.flights_spark.exactly_once import DATABASE_VARIABLE, write_exactly_once
from examples.flights_spark.job import Job
from examples.flights_spark.methods import Method
from examples.flights_spark.shape import read_flights
from spark_sink import ensure_java

_ROOT: Final = Path(__file__).parents[2]


def main(job: Job) -> None:
    """Run both queries until everything is written."""
    os.environ[DATABASE_VARIABLE] = job.database_url
    os.environ["PYSPARK_PYTHON"] = sys.executable
    ensure_java()
    spark = _session(job)
    flights = read_flights(spark, job)
    # The kills wait until the sink is writing, so the other query is started first: then they hit both.
    queries = [
        _start(flights, job, Method.AT_LEAST_ONCE, write_at_least_once(job)),
        _start(flights, job, Method.EXACTLY_ONCE, write_exactly_once(job)),
    ]
    for query in queries:
        query.awaitTermination()
    spark.stop()


def _session(job: Job) -> SparkSession:
    settings: dict[str, bool | float | int | str | None] = {
        "spark.master": "local[4]",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # lives are short
        # Tasks run in other processes, which need the path of this package and the URL of the database.
        "spark.executorEnv.PYTHONPATH": str(_ROOT),
        f"spark.executorEnv.{DATABASE_VARIABLE}": job.database_url,
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.sql.adaptive.enabled": False,  # the plan sets the number of tasks
    }
    return SparkSession.builder.appName("flights").config(map=settings).getOrCreate()


def _start(flights: DataFrame, job: Job, method: Method, write: Callable[[DataFrame, int], None]) -> StreamingQuery:
    return (
        flights.writeStream.queryName(method)
        .foreachBatch(write)
        .option("checkpointLocation", job.checkpoint_of(method))
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    main(Job.from_json(sys.argv[1]))
