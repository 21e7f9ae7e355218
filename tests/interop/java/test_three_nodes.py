"""Kafka's tools on a cluster of three: copies move, and leaders are elected again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.testing.server_unavailable import ServerUnavailableError
from tests.interop.client_folders import BROKER_FIXTURES, On
from tests.interop.conftest import KAFKA_VERSION_USED
from tests.interop.java.client import JavaTools, KafkaScripts
from tests.interop.wire import wait_for
from tests.support.names import next_name
from tests.support.servers.apache_kafka import ApacheKafka
from tests.support.unavailable import skip


@pytest.fixture(scope="module", params=list(BROKER_FIXTURES))
def servers(request: pytest.FixtureRequest) -> Iterator[str]:
    """The emulator and a real Apache Kafka, each with three nodes."""
    if BROKER_FIXTURES[request.param] == On.EMULATOR:
        with Emulator(nodes=3) as emulator:
            yield emulator.bootstrap_servers
        return
    kafka = ApacheKafka(version=KAFKA_VERSION_USED, nodes=3)
    try:
        kafka.start()
    except ServerUnavailableError as error:
        skip(error)
    yield kafka.bootstrap_servers
    kafka.stop()


@pytest.fixture
def cluster(java: JavaTools, servers: str) -> KafkaScripts:
    return KafkaScripts(java, servers)


def placed(cluster: KafkaScripts, topic: str) -> dict[str, Any]:
    """The leader of partition 0, and where its copies are."""
    described = cluster.ok("kafka-topics", "--describe", "--topic", topic).splitlines()[-1]
    fields = dict(part.strip().partition(": ")[::2] for part in described.split("\t"))
    return {
        "leader": int(fields["Leader"]),
        "copies": [int(node) for node in fields["Replicas"].split(",")],
        "in sync": sorted(int(node) for node in fields["Isr"].split(",")),
    }


def nodes_of(cluster: KafkaScripts) -> list[int]:
    """Their ids."""
    described = json.loads(cluster.ok("kafka-log-dirs", "--describe").splitlines()[-1])
    return sorted(broker["broker"] for broker in described["brokers"])


def created(cluster: KafkaScripts, *copies: int) -> str:
    """A new topic with one partition, on these nodes."""
    topic = next_name("placed")
    assignment = ":".join(map(str, copies))
    cluster.ok("kafka-topics", "--create", "--topic", topic, "--replica-assignment", assignment)
    wait_for(lambda: placed(cluster, topic)["leader"], lambda leader: leader == copies[0])
    return topic


def test_copies_move(cluster: KafkaScripts, tmp_path: Path) -> None:
    first, second, third = nodes_of(cluster)
    topic = created(cluster, first, second)
    plan = tmp_path / "plan.json"
    plan.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [third, second]}]})
    )
    moved = cluster.ok("kafka-reassign-partitions", "--execute", "--reassignment-json-file", str(plan))
    assert "Successfully started partition reassignment" in moved
    verify = ["--verify", "--reassignment-json-file", str(plan)]
    is_complete = f"Reassignment of partition {topic}-0 is completed."
    wait_for(lambda: cluster.ok("kafka-reassign-partitions", *verify), lambda out: is_complete in out)
    found = placed(cluster, topic)
    assert found["copies"] == [third, second]
    assert found["in sync"] == sorted([second, third])
    assert found["leader"] == third
    assert "No partition reassignments found." in cluster.ok("kafka-reassign-partitions", "--list")


def test_preferred_leaders_are_elected(cluster: KafkaScripts, tmp_path: Path) -> None:
    first, second, _ = nodes_of(cluster)
    topic = created(cluster, first, second)
    plan = tmp_path / "plan.json"
    plan.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [second, first]}]})
    )
    cluster.ok("kafka-reassign-partitions", "--execute", "--reassignment-json-file", str(plan))
    wait_for(lambda: placed(cluster, topic)["copies"], lambda copies: copies == [second, first])
    assert placed(cluster, topic)["leader"] == first
    partition = ["--topic", topic, "--partition", "0"]
    out = cluster.ok("kafka-leader-election", "--election-type", "preferred", *partition)
    assert "Successfully completed leader election (PREFERRED) for partitions" in out
    wait_for(lambda: placed(cluster, topic)["leader"], lambda leader: leader == second)
