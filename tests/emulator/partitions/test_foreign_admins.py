"""kafka-python's admin client on three nodes; on one, and on a real Apache Kafka: tests/interop."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from dualwrite.broker_emulator import Emulator
from tests.emulator.partitions.conftest import CONFIG

kafka: Any = import_module("kafka")
confluent_kafka: Any = import_module("confluent_kafka")
confluent_kafka_admin: Any = import_module("confluent_kafka.admin")

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with Emulator(nodes=3, config=CONFIG, topics={"t": 2, "u": 1}) as emulator:
        yield emulator


@pytest.fixture(scope="module")
def kafka_python(emulator: Emulator) -> Iterator[Any]:
    admin = kafka.KafkaAdminClient(bootstrap_servers=emulator.bootstrap_servers)
    yield admin
    admin.close()


def test_kafka_python_moves_copies(emulator: Emulator, kafka_python: Any) -> None:
    partition = kafka.TopicPartition("u", 0)
    kafka_python.alter_partition_reassignments({partition: [0]})
    held = emulator.hold_replication("u")
    assert kafka_python.alter_partition_reassignments({partition: [1, 2]}) == {partition: None}
    (listed,) = kafka_python.list_partition_reassignments().items()
    assert listed == (partition, {"replicas": [1, 2, 0], "adding_replicas": [1, 2], "removing_replicas": [0]})
    held.release()
    assert kafka_python.list_partition_reassignments() == {}
    refused = kafka_python.alter_partition_reassignments({partition: None})
    assert refused[partition] is kafka.errors.NoReassignmentInProgressError
    emulator.reassign("u", 0, [0, 1, 2])


def test_kafka_python_sees_log_dirs_and_the_quorum(emulator: Emulator, kafka_python: Any) -> None:
    directories = kafka_python.describe_log_dirs()
    assert len(directories) == 3
    assert "/memory" in str(directories)
    (topic,) = kafka_python.describe_metadata_quorum()["topics"]
    assert topic["partitions"][0]["leader_id"] == 0


def test_kafka_python_elects_the_preferred_leader(emulator: Emulator, kafka_python: Any) -> None:
    """kafka-python only: elect_leaders of confluent-kafka 2.16 fails before it sends a request."""
    emulator.elect_preferred_leaders()
    preferred = emulator.log("t").leader_id
    emulator.move_leader("t", 0, (preferred + 1) % 3)
    kafka_python.elect_leaders(0, {"t": [0]})
    assert emulator.log("t").leader_id == preferred
