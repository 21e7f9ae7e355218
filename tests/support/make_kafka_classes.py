"""Create the class-data archive that `tests.support.servers.kafka_classes` starts brokers with.

    python -m tests.support.make_kafka_classes

A broker runs one transaction and writes its classes to the archive when it ends. This takes half a minute, once for
each Java and each Kafka release.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

from dualwrite.producer import Producer
from tests.support.conditions import until
from tests.support.real_kafkas import OLDER_VERSION
from tests.support.servers.apache_kafka import JVM_OPTIONS, KAFKA_VERSION, ApacheKafka, fetch_kafka
from tests.support.servers.cache import cached, find_program
from tests.support.servers.kafka_classes import CLASSES_FILE, classes_name

_LONGEST_S: Final = 120.0


def make_kafka_classes(version: str) -> Path:
    """Return the directory of the archive, created if needed. Raises ServerUnavailableError if Kafka does not start."""
    java = find_program("java", "a real Apache Kafka needs a Java 17 runtime")
    return cached(classes_name(java, fetch_kafka(version)), lambda work: _make(work, version))


def _make(work: Path, version: str) -> Path:
    made = work / "classes"
    made.mkdir()
    options = [*JVM_OPTIONS, f"-XX:ArchiveClassesAtExit={made / CLASSES_FILE}"]
    with ApacheKafka(version=version, jvm_options=options, start_timeout_s=_LONGEST_S) as kafka:
        with Producer(bootstrap_servers=kafka.bootstrap_servers, transactional_id="x") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", value=b"v")
            producer.commit_transaction()
        os.kill(kafka.pid, signal.SIGTERM)
        until(lambda: not kafka.is_alive, _LONGEST_S)
    return made


if __name__ == "__main__":
    for each in (KAFKA_VERSION, OLDER_VERSION):
        print(make_kafka_classes(each))
