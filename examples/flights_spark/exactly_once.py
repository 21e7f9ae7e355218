"""Exactly once: all that an application has to write."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import sqlalchemy as sa
from pyspark.sql import DataFrame

from examples.flights_spark.job import SINK_ID, Job
from examples.flights_spark.methods import Method
from examples.flights_spark.shape import shaped
from examples.flights_spark.tables import COLUMNS, TABLES, add_up
from spark_sink import dualwrite_batch

DATABASE_VARIABLE = "FLIGHTS_DATABASE_URL"


def write_exactly_once(job: Job) -> partial[None]:
    """Return the function for `foreachBatch`: it writes records, rows and totals in one commit."""
    write = dualwrite_batch(
        {
            "sinkId": SINK_ID,
            "kafka.bootstrap.servers": job.bootstrap_servers,
            "topic": Method.EXACTLY_ONCE.topic,
            "commitStore.urlEnv": DATABASE_VARIABLE,
            "dual.table": TABLES[Method.EXACTLY_ONCE].flights.name,
            "dual.columns": ",".join(COLUMNS),
            "dual.mode": "upsert",
        },
        sql_fn=_add_up,
    )
    return partial(_write, write, job.tasks)


def _write(write: Callable[[DataFrame, int], None], tasks: int, flights: DataFrame, batch_id: int) -> None:
    write(shaped(flights, batch_id, tasks), batch_id)


def _add_up(connection: sa.Connection, batch_id: int) -> None:
    """Add the batch to the totals, in the transaction that decides the batch."""
    add_up(connection, TABLES[Method.EXACTLY_ONCE], batch_id)
