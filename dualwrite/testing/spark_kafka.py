"""Spark's own Kafka connector, as jars for `spark.jars`. They come from Maven Central, without Ivy.

SparkSession.builder.config("spark.jars", ",".join(spark_kafka_jars()))
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dualwrite.testing.maven import dependency, fetched

CONNECTOR_VERSION: Final = "4.2.0"
"""The newest release whose jar resolves; Spark 4.3 runs it."""

TOKEN_PROVIDER_VERSION: Final = "4.0.0"
"""The same for its part that knows delegation tokens."""

_ALONE: Final = ("*:*",)
"""Without what it depends on: Spark has the most of it already, and Spark's POMs name a mirror that cannot be reached
from everywhere, which Maven would ask."""


def fetch_spark_kafka() -> Path:
    """The directory with the connector and what Spark lacks for it. Raises ServerUnavailableError."""
    return fetched(
        f"spark-sql-kafka-{CONNECTOR_VERSION}",
        dependency(f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR_VERSION}", without=_ALONE),
        dependency(f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{TOKEN_PROVIDER_VERSION}", without=_ALONE),
        dependency("org.apache.kafka:kafka-clients:3.9.2", without=_ALONE),
        dependency("org.apache.commons:commons-pool2:2.13.1", without=_ALONE),
    )


def spark_kafka_jars() -> list[str]:
    """Their paths, for `spark.jars`. Raises ServerUnavailableError."""
    return sorted(str(jar) for jar in fetch_spark_kafka().glob("*.jar"))
