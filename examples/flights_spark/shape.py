"""The transformations that both queries apply before they write: the same columns, in the same tasks."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from examples.flights_spark.input_files import SCHEMA
from examples.flights_spark.job import Job


def read_flights(spark: SparkSession, job: Job) -> DataFrame:
    """Return the input as a stream, with one file per batch."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(job.input_directory)


def shaped(flights: DataFrame, batch_id: int, tasks: int) -> DataFrame:
    """Return the columns for table and topic. All flights of a plane are in one task, in order, so order is kept."""
    return (
        flights.withColumn("batch", f.lit(batch_id).cast("bigint"))
        .withColumn("carrier", f.get_json_object("event", "$.data.carrier"))
        .withColumn("distance", f.get_json_object("event", "$.data.distance").cast("bigint"))
        .withColumn("key", f.col("tailnum"))
        .withColumn("value", f.col("event"))
        .repartition(tasks, "key")
        .sortWithinPartitions("number")
    )
