"""Spark's own Kafka connector, as jars for `spark.jars`, from Maven Central without Ivy.

SparkSession.builder.config("spark.jars", ",".join(spark_kafka_jars()))
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.support.servers.maven import dependency, fetched

CONNECTOR_VERSION: Final = "4.2.0"
"""The newest connector release whose jar resolves; it runs in Spark 4.3."""

TOKEN_PROVIDER_VERSION: Final = "4.0.0"
"""The newest release of its delegation-token part whose jar resolves."""

_ALONE: Final = ("*:*",)
"""Exclude all dependencies: Spark already has most of them, and its POMs name a mirror that Maven may not reach."""


def fetch_spark_kafka() -> Path:
    """Return the directory with the connector and the jars that Spark lacks. Raises ServerUnavailableError."""
    return fetched(
        f"spark-sql-kafka-{CONNECTOR_VERSION}",
        dependency(f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR_VERSION}", without=_ALONE),
        dependency(f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{TOKEN_PROVIDER_VERSION}", without=_ALONE),
        dependency("org.apache.kafka:kafka-clients:3.9.2", without=_ALONE),
        dependency("org.apache.commons:commons-pool2:2.13.1", without=_ALONE),
    )


def spark_kafka_jars() -> list[str]:
    """Return the paths of the jars, for `spark.jars`. Raises ServerUnavailableError."""
    return sorted(str(jar) for jar in fetch_spark_kafka().glob("*.jar"))
