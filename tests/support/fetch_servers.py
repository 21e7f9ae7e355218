"""Fetch every server that the tests start, one after the other, before a test has to wait for it.

    python -m tests.support.fetch_servers

A server that is already in the cache takes no time. One that cannot be fetched is reported here, and its tests are
skipped, or fail if DUALWRITE_REQUIRE_SERVERS is set.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.interop.franz_go.client import build_program as build_franz_go
from tests.interop.java.client import fetch_programs as fetch_java_programs
from tests.interop.kafka_go.client import build_program as build_kafka_go
from tests.interop.kafkajs.client import fetch_packages as fetch_kafkajs
from tests.interop.sarama.client import build_program as build_sarama
from tests.support.make_kafka_classes import make_kafka_classes
from tests.support.real_kafkas import OLDER_VERSION
from tests.support.servers.apache_kafka import KAFKA_VERSION, fetch_kafka
from tests.support.servers.chromium import fetch_chromium
from tests.support.servers.mariadb import fetch_mariadb
from tests.support.servers.pgbouncer import fetch_pgbouncer
from tests.support.servers.postgres_releases import RELEASES as POSTGRES_RELEASES
from tests.support.servers.postgres_releases import fetch_postgres
from tests.support.servers.spark_kafka import fetch_spark_kafka
from tests.support.spark_classes import make_spark_classes


def main() -> None:
    """Fetch all servers; print the failures."""
    for version in (KAFKA_VERSION, OLDER_VERSION):
        _fetch(f"Apache Kafka {version}", partial(fetch_kafka, version))
        _fetch(f"Apache Kafka {version}'s class-data archive", partial(make_kafka_classes, version))
    for release in POSTGRES_RELEASES.values():
        _fetch(f"PostgreSQL {release}", partial(fetch_postgres, release))
    _fetch("MariaDB", fetch_mariadb)
    _fetch("PgBouncer", fetch_pgbouncer)
    _fetch("Spark's Kafka connector", fetch_spark_kafka)
    _fetch("Spark's class-data archive", make_spark_classes)
    _fetch("Kafka's command-line tools", fetch_java_programs)
    _fetch("kafkajs", fetch_kafkajs)
    _fetch("franz-go", build_franz_go)
    _fetch("sarama", build_sarama)
    _fetch("kafka-go", build_kafka_go)
    _fetch("Chromium", fetch_chromium)


def _fetch(name: str, fetch: Callable[[], object]) -> None:
    try:
        fetch()
    except ServerUnavailableError as error:
        print(f"{name} cannot be fetched: {error}")


if __name__ == "__main__":
    main()
