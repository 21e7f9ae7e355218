"""Fetches every server that tests start, one after the other and before any test waits for it.

    python -m tests.support.fetch_servers

What is there already takes no time. What cannot be fetched is said here, and its tests skip, or fail where
DUALWRITE_REQUIRE_SERVERS asks for that.
"""

from __future__ import annotations

from collections.abc import Callable

from dualwrite.testing.apache_kafka import KAFKA_VERSION, fetch_kafka
from dualwrite.testing.chromium import fetch_chromium
from dualwrite.testing.mariadb import fetch_mariadb
from dualwrite.testing.pgbouncer import fetch_pgbouncer
from dualwrite.testing.postgres import VERSIONS as POSTGRES_VERSIONS
from dualwrite.testing.postgres import fetch_postgres
from dualwrite.testing.server_unavailable import ServerUnavailableError
from dualwrite.testing.spark_kafka import fetch_spark_kafka
from dualwrite.testing.zookeeper import fetch_zookeeper
from tests.interop.franz_go.client import build_program as build_franz_go
from tests.interop.java.client import compiled as compile_java_cases
from tests.interop.kafkajs.client import fetch_packages as fetch_kafkajs
from tests.support.kafka_classes import make_kafka_classes
from tests.support.real_kafkas import OLDER_VERSION
from tests.support.spark_classes import make_spark_classes


def main() -> None:
    """Fetch all; never fails."""
    for version in (KAFKA_VERSION, OLDER_VERSION):
        _fetch(f"Apache Kafka {version}", lambda version=version: fetch_kafka(version))
        _fetch(f"Apache Kafka {version}'s classes in memory", lambda version=version: make_kafka_classes(version))
    for release in POSTGRES_VERSIONS.values():
        _fetch(f"PostgreSQL {release}", lambda release=release: fetch_postgres(release))
    _fetch("MariaDB", fetch_mariadb)
    _fetch("PgBouncer", fetch_pgbouncer)
    _fetch("ZooKeeper", fetch_zookeeper)
    _fetch("Spark's Kafka connector", fetch_spark_kafka)
    _fetch("Spark's classes in memory", make_spark_classes)
    _fetch("Kafka's command-line tools", compile_java_cases)
    _fetch("kafkajs", fetch_kafkajs)
    _fetch("franz-go", build_franz_go)
    _fetch("Chromium", fetch_chromium)


def _fetch(name: str, fetch: Callable[[], object]) -> None:
    try:
        fetch()
    except ServerUnavailableError as error:
        print(f"{name} cannot be had: {error}")


if __name__ == "__main__":
    main()
