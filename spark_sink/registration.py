"""Telling a Spark session about the formats of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `dualwrite-kafka` and `dualwrite-kafka-source` known to this session, of Spark Classic or Spark Connect.

    The package must be installed wherever the session's driver and executors run.
    """
    from spark_sink.datasource import DualWriteKafka
    from spark_sink.source import DualWriteKafkaSource

    spark.dataSource.register(DualWriteKafka)
    spark.dataSource.register(DualWriteKafkaSource)
