"""Settings from a file or a test: accepted, reported as without effect, or refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from dualwrite.broker_emulator import BrokerConfig, Emulator, Profile
from dualwrite.broker_emulator.config import Fsync, read_properties

AS_KAFKA_SHIPS_IT = """\
# for one process that is broker and controller
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,\\
    SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=2
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def test_a_stock_kafka_file_starts_an_emulator(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "server.properties"
    path.write_text(AS_KAFKA_SHIPS_IT)
    with caplog.at_level(logging.WARNING):
        config = BrokerConfig.from_properties(read_properties(path))
    (warning,) = caplog.messages
    assert warning.startswith("accepted, but without effect here: ")
    assert "log.dirs" in warning
    assert "num.io.threads" in warning
    assert "node.id" not in warning
    assert "listeners" not in warning
    assert (config.num_partitions, config.log_segment_bytes, config.node_id) == (2, 1 << 30, 1)
    assert config.log_retention_ms == 168 * 3_600_000
    with Emulator(config=config, nodes=2) as emulator:
        assert emulator.living_nodes == [1, 2]
        assert emulator.bootstrap_servers.startswith("127.0.0.1:")


@pytest.mark.parametrize(
    ("properties", "field", "value"),
    [
        ({"log.retention.hours": "2"}, "log_retention_ms", 7_200_000),
        ({"log.retention.minutes": "2", "log.retention.hours": "9"}, "log_retention_ms", 120_000),
        ({"log.retention.ms": "5", "log.retention.minutes": "2"}, "log_retention_ms", 5),
        ({"log.retention.hours": "-1"}, "log_retention_ms", -1),
        ({"log.roll.hours": "3"}, "log_roll_ms", 10_800_000),
        ({"log.flush.scheduler.interval.ms": "50"}, "log_flush_interval_ms", 50),
        ({"broker.id": "3"}, "node_id", 3),
        ({"profile": "kafka-3.9"}, "profile", Profile.KAFKA_3_9),
        ({"profile": "automq"}, "profile", Profile.KAFKA_3_9),
        ({"fsync": "always"}, "fsync", Fsync.ALWAYS),
        ({"log.cleaner.min.cleanable.ratio": "1"}, "log_cleaner_min_cleanable_ratio", 1.0),
        ({"transaction.two.phase.commit.enable": "False"}, "transaction_two_phase_commit_enable", False),
    ],
)
def test_a_setting_sets_its_field(properties: dict[str, Any], field: str, value: object) -> None:
    assert getattr(BrokerConfig.from_properties(properties), field) == value


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"num.partitions": "0"}, "Invalid value 0 for configuration num.partitions: Value must be at least 1"),
        ({"message.max.bytes": "big"}, "Not a number of type INT"),
        ({"num.io.threads": "0"}, "Value must be at least 1"),
        ({"log.flush.interval.ms": "0"}, "Value must be at least 1"),
        ({"connections.max.idle.ms": "-1"}, "Value must be at least 0"),
        ({"log.retention.ms": "-2"}, "Value must be at least -1"),
        (
            {"profile": "kafka-2.8"},
            f"String must be one of: {', '.join(Profile)}",
        ),
        ({"process.roles": "controller"}, "process.roles must include broker"),
    ],
)
def test_invalid_settings_are_refused(properties: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        BrokerConfig.from_properties(properties)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("num.partitons", "ignored: unknown broker setting 'num.partitons'; did you mean 'num.partitions'?"),
        ("colour", "ignored: unknown broker setting 'colour'"),
        (
            "listener.name.inside.ssl.keystore.locaton",
            "ignored: unknown broker setting 'listener.name.inside.ssl.keystore.locaton'; did you mean "
            "'zookeeper.ssl.keystore.location'?",
        ),
        (
            "leader.replication.throttled.rate",
            "ignored: the broker setting leader.replication.throttled.rate can only be altered while the broker runs",
        ),
    ],
)
def test_an_unknown_setting_is_a_warning(caplog: pytest.LogCaptureFixture, name: str, said: str) -> None:
    """As in Kafka, where it may be a plugin's."""
    config = BrokerConfig.from_properties({name: "7", "num.partitions": "4"})
    assert (config.num_partitions, config.properties[name]) == (4, "7")
    assert [message for logger, _, message in caplog.record_tuples if logger.startswith("dualwrite.")] == [said]


def test_settings_of_listeners_and_plugins_are_known_by_the_part_after_the_prefix() -> None:
    given = {
        "listener.name.inside.max.connections": "5",
        "listener.name.inside.scram-sha-256.sasl.jaas.config": "x",
        "rsm.config.bucket": "b",
        "zookeeper.connect": "localhost:2181",
        "super.users": "User:admin",
    }
    assert BrokerConfig.from_properties(given).properties == given


def test_a_file_by_javas_rules(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(
        b"# a\n! b\nnum.partitions : 3\nlog.retention.hours   2  \nsuper.users=User\\:a;\\\n   User:\\u00e9\n"
    )
    found = read_properties(path)
    assert found == {"num.partitions": "3", "log.retention.hours": "2", "super.users": "User:a;User:é"}


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="missing cannot be read: No such file"):
        read_properties(tmp_path / "missing")
    (tmp_path / "broken").write_text("a=\\u12")
    with pytest.raises(ValueError, match="broken is not a properties file"):
        read_properties(tmp_path / "broken")
