"""A Spark session with Spark's own Kafka connector, and the topics."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.interop.both_brokers import broker
from tests.interop.conftest import Broker
from tests.spark.conftest import spark
from tests.spark.written_topics import Topics
from tests.support.servers.spark_kafka import spark_kafka_jars
from tests.support.unavailable import skip

__all__ = ["broker", "connected", "spark", "topics"]


@pytest.fixture(scope="module")
def connected(spark: SparkSession) -> SparkSession:
    """A session that knows `format("kafka")`; added here, as `spark.jars` counts only for a JVM that starts."""
    try:
        jars = spark_kafka_jars()
    except ServerUnavailableError as error:
        skip(error)
    for jar in jars:
        spark.sql(f"ADD JAR '{jar}'")
    return spark


@pytest.fixture
def topics(broker: Broker) -> Topics:
    return Topics(broker.bootstrap_servers)
