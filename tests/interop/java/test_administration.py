"""Topics, settings, groups, records, access and features with Kafka's own tools."""

from __future__ import annotations

import json
from pathlib import Path

from tests.interop.java.client import KafkaScripts
from tests.interop.logged_records import values_of
from tests.interop.wire import EARLIEST, GROUP, Code, Wire, wait_for


def test_topics(scripts: KafkaScripts, wire: Wire, topic: str) -> None:
    name = f"{topic}-made"
    created = ["--create", "--topic", name, "--partitions", "2", "--config", "retention.ms=60000"]
    assert f"Created topic {name}." in scripts.ok("kafka-topics", *created)
    again = scripts.run("kafka-topics", *created)
    assert again.exit_status == 1
    assert f"Topic '{name}' already exists" in again.out + again.err
    assert name in scripts.ok("kafka-topics", "--list").split()
    described = scripts.ok("kafka-topics", "--describe", "--topic", name)
    assert "PartitionCount: 2\tReplicationFactor: 1" in described
    assert "retention.ms=60000" in described
    scripts.ok("kafka-topics", "--alter", "--topic", name, "--partitions", "4")
    assert "PartitionCount: 4" in scripts.ok("kafka-topics", "--describe", "--topic", name)
    fewer = scripts.run("kafka-topics", "--alter", "--topic", name, "--partitions", "3")
    assert fewer.exit_status == 1
    assert "3 would not be an increase" in fewer.out + fewer.err
    scripts.ok("kafka-topics", "--delete", "--topic", name)
    assert name not in scripts.ok("kafka-topics", "--list").split()


def test_topic_settings(scripts: KafkaScripts, topic: str) -> None:
    entity = ["--entity-type", "topics", "--entity-name", topic]
    scripts.ok("kafka-configs", "--alter", *entity, "--add-config", "retention.ms=1000,cleanup.policy=compact")
    described = scripts.ok("kafka-configs", "--describe", *entity)
    assert "  retention.ms=1000 sensitive=false" in described
    assert "  cleanup.policy=compact" in described
    scripts.ok("kafka-configs", "--alter", *entity, "--delete-config", "retention.ms")
    described = scripts.ok("kafka-configs", "--describe", *entity)
    assert "retention.ms" not in described
    assert "cleanup.policy=compact" in described
    wrong = scripts.run("kafka-configs", "--alter", *entity, "--add-config", "retention.msec=1")
    assert wrong.exit_status == 1
    assert "Unknown topic config name: retention.msec" in wrong.out + wrong.err


def test_default_settings_of_a_topic(scripts: KafkaScripts, topic: str) -> None:
    described = scripts.ok("kafka-configs", "--describe", "--all", "--entity-type", "topics", "--entity-name", topic)
    shown = dict(line.strip().split(" ")[0].partition("=")[::2] for line in described.splitlines() if "=" in line)
    expected = {"cleanup.policy": "delete", "max.message.bytes": "1048588", "retention.ms": "604800000"}
    assert {name: shown.get(name) for name in expected} == expected
    assert {"compression.type", "min.insync.replicas", "segment.bytes", "unclean.leader.election.enable"} <= set(shown)


def test_broker_settings(scripts: KafkaScripts) -> None:
    entity = ["--entity-type", "brokers", "--entity-default"]
    scripts.ok("kafka-configs", "--alter", *entity, "--add-config", "log.retention.ms=7200000")
    try:
        is_set = "log.retention.ms=7200000"
        wait_for(lambda: scripts.ok("kafka-configs", "--describe", *entity), lambda described: is_set in described)
    finally:  # other cases look at this broker's settings
        scripts.ok("kafka-configs", "--alter", *entity, "--delete-config", "log.retention.ms")
    wait_for(lambda: scripts.ok("kafka-configs", "--describe", *entity), lambda found: "log.retention.ms" not in found)


def test_quotas(scripts: KafkaScripts, topic: str) -> None:
    entity = ["--entity-type", "clients", "--entity-name", f"client-{topic}"]
    scripts.ok("kafka-configs", "--alter", *entity, "--add-config", "producer_byte_rate=1048576")
    described = scripts.ok("kafka-configs", "--describe", *entity)
    assert "producer_byte_rate=1048576" in described
    scripts.ok("kafka-configs", "--alter", *entity, "--delete-config", "producer_byte_rate")
    assert "producer_byte_rate" not in scripts.ok("kafka-configs", "--describe", *entity)


def test_groups(scripts: KafkaScripts, wire: Wire, topic: str, group: str) -> None:
    wire.write(topic, b"a", b"b", b"c")
    wire.wait_for_coordinator(group, GROUP)
    read = ["--topic", topic, "--group", group, "--from-beginning", "--max-messages", "2", "--timeout-ms", "20000"]
    assert scripts.ok("kafka-console-consumer", *read).split() == ["a", "b"]
    assert group in scripts.ok("kafka-consumer-groups", "--list").split()
    described = scripts.run("kafka-consumer-groups", "--describe", "--group", group)
    assert described.exit_status == 0
    (line,) = [line.split() for line in described.lines if topic in line]
    assert line[:6] == [group, topic, "0", "2", "3", "1"]
    assert "has no active members" in described.out + described.err
    reset = ["--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute"]
    scripts.ok("kafka-consumer-groups", *reset)
    assert wire.offset_fetch(group, topic) == (Code.NONE, 0)
    scripts.ok("kafka-consumer-groups", "--delete-offsets", "--group", group, "--topic", topic)
    assert wire.offset_fetch(group, topic) == (Code.NONE, -1)


def test_deletion_of_a_group(scripts: KafkaScripts, wire: Wire, topic: str, group: str) -> None:
    wire.wait_for_coordinator(group, GROUP)
    reset = ["--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute"]
    scripts.ok("kafka-consumer-groups", *reset)
    assert wire.offset_fetch(group, topic) == (Code.NONE, 0)
    assert f"('{group}')" in scripts.ok("kafka-consumer-groups", "--delete", "--group", group)
    assert group not in scripts.ok("kafka-consumer-groups", "--list").split()
    again = scripts.run("kafka-consumer-groups", "--delete", "--group", group)
    assert "GroupIdNotFoundException" in again.out + again.err


def test_records(scripts: KafkaScripts, wire: Wire, topic: str, tmp_path: Path) -> None:
    wire.write(topic, b"a", b"b")
    wire.write(topic, b"c")
    asked = tmp_path / "records.json"
    asked.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 2}], "version": 1}))
    assert "low_watermark: 2" in scripts.ok("kafka-delete-records", "--offset-json-file", str(asked))
    assert wire.list_offsets(topic, EARLIEST) == 2
    assert values_of(wire, topic) == [b"c"]
    assert f"{topic}:0:3" in scripts.ok("kafka-get-offsets", "--topic", topic)
    assert f"{topic}:0:2" in scripts.ok("kafka-get-offsets", "--topic", topic, "--time", "earliest")


def test_features(scripts: KafkaScripts) -> None:
    described = {line.split()[1]: line for line in scripts.ok("kafka-features", "describe").splitlines()}
    assert "FinalizedVersionLevel: 2" in described["transaction.version"]
    wrong = scripts.run("kafka-features", "upgrade", "--feature", "transaction.version=99")
    assert wrong.exit_status == 1
    assert "transaction.version" in wrong.out + wrong.err


def test_log_directories(scripts: KafkaScripts, wire: Wire, topic: str) -> None:
    wire.write(topic, b"x" * 1000)
    out = scripts.ok("kafka-log-dirs", "--describe", "--topic-list", topic)
    described = json.loads(out.splitlines()[-1])
    (broker,) = described["brokers"]
    (partition,) = [each for directory in broker["logDirs"] for each in directory["partitions"]]
    assert partition["partition"] == f"{topic}-0"
    assert 1000 < partition["size"] < 1200
    assert (partition["offsetLag"], partition["isFuture"]) == (0, False)


def test_access_control_is_off(scripts: KafkaScripts) -> None:
    for command in (["--list"], ["--add", "--allow-principal", "User:a", "--operation", "Read", "--topic", "*"]):
        ended = scripts.run("kafka-acls", *command)
        assert "SecurityDisabledException" in ended.out + ended.err


def test_cluster_id_and_api_versions(scripts: KafkaScripts) -> None:
    assert scripts.ok("kafka-cluster", "cluster-id").startswith("Cluster ID: ")
    versions = scripts.ok("kafka-broker-api-versions")
    assert "InitProducerId(22): 0 to" in versions
    assert "EndTxn(26): 0 to 5" in versions


def test_election_of_preferred_leaders(scripts: KafkaScripts, topic: str) -> None:
    partition = ["--topic", topic, "--partition", "0"]
    out = scripts.ok("kafka-leader-election", "--election-type", "preferred", *partition)
    assert "Valid replica already elected for partitions" in out
    unknown = ["--topic", "nobody-made-this", "--partition", "0"]
    ended = scripts.run("kafka-leader-election", "--election-type", "preferred", *unknown)
    assert ended.exit_status == 1
    assert "UnknownTopicOrPartitionException" in ended.out + ended.err
