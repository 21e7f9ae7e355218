"""Telling a Spark session about the formats of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("dualwrite-kafka")` known to this session, of Spark Classic or Spark Connect.

    The package must be installed wherever the session's driver and executors run.
    """
    from spark_sink.datasource import DualWriteKafka

    spark.dataSource.register(DualWriteKafka)
