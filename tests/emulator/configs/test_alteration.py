"""Altering settings: the operations on one setting, and the refusals of each type of resource."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator import BrokerConfig
from dualwrite.broker_emulator.configs.alteration import (
    ALL_BROKERS,
    AlterationError,
    Change,
    Operation,
    after_changes,
    check_broker_configs,
    check_client_metrics_configs,
    check_group_configs,
    check_topic_configs,
    why_invalid,
)
from dualwrite.broker_emulator.configs.effective import alterable_broker_settings, topic_settings
from dualwrite.broker_emulator.profiles import Settings

TOPIC = topic_settings(Settings.KAFKA_4_4)
BROKER = alterable_broker_settings(Settings.KAFKA_4_4)
SET, DELETE, APPEND, SUBTRACT = Operation


def refusal(act: Callable[[], object]) -> tuple[ErrorCode, str]:
    with pytest.raises(AlterationError) as refused:
        act()
    return refused.value.error, refused.value.message


@pytest.mark.parametrize(
    ("current", "change", "after"),
    [
        ({}, ("retention.ms", SET, "5"), {"retention.ms": "5"}),
        ({"retention.ms": "1"}, ("retention.ms", SET, "5"), {"retention.ms": "5"}),
        ({"retention.ms": "1"}, ("retention.ms", DELETE, None), {}),
        ({}, ("never.heard.of", DELETE, None), {}),
        ({}, ("cleanup.policy", APPEND, "compact"), {"cleanup.policy": "delete,compact"}),
        ({"cleanup.policy": "compact"}, ("cleanup.policy", APPEND, "compact"), {"cleanup.policy": "compact"}),
        ({"cleanup.policy": ""}, ("cleanup.policy", APPEND, "compact"), {"cleanup.policy": "compact"}),
        ({}, ("cleanup.policy", SUBTRACT, "delete,compact"), {"cleanup.policy": ""}),
        ({}, ("cleanup.policy", APPEND, "compact,delete,compact"), {"cleanup.policy": "delete,compact"}),
        ({"cleanup.policy": "a,b,a,a"}, ("cleanup.policy", SUBTRACT, "a,c,a"), {"cleanup.policy": "b,a"}),
        ({"cleanup.policy": "compact,delete"}, ("cleanup.policy", SUBTRACT, "delete"), {"cleanup.policy": "compact"}),
    ],
)
def test_one_change(current: Mapping[str, str], change: tuple[str, int, str | None], after: Mapping[str, str]) -> None:
    before = dict(current)
    assert after_changes(current, [Change(*change)], TOPIC) == after
    assert current == before


@pytest.mark.parametrize("operation", [APPEND, SUBTRACT])
@pytest.mark.parametrize("name", ["retention.ms", "never.heard.of"])
def test_a_list_operation_on_what_is_no_list(name: str, operation: Operation) -> None:
    changes = [Change(name, operation, "5")]
    said = f"Can't {operation.name} to key {name} because its type is not LIST."
    assert refusal(lambda: after_changes({}, changes, TOPIC)) == (ErrorCode.invalid_config, said)
    said = f"Config value {operation.name.lower()} is not allowed for config key: {name}"
    assert refusal(lambda: after_changes({}, changes, BROKER, of_broker=True)) == (ErrorCode.invalid_config, said)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([Change("a", SET, "1"), Change("a", DELETE, None)], "Error due to duplicate config keys"),
        ([Change("a", SET, None), Change("b", APPEND, None)], "Null value not supported for : a, b"),
        ([Change("a", 9, "1")], "Unknown operations type 9"),
    ],
)
def test_what_no_request_may_say(changes: list[Change], said: str) -> None:
    problem = why_invalid(changes)
    assert problem is not None
    assert (problem.error, problem.message) == (ErrorCode.invalid_request, said)


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ({"colour": "blue"}, "Unknown topic config name: colour"),
        ({"log.retention.ms": "1"}, "Unknown topic config name: log.retention.ms"),
        ({"retention.ms": "x"}, "Invalid value x for configuration retention.ms: Not a number of type LONG"),
        ({"retention.ms": None}, "Null value not supported for topic configs: retention.ms"),
        (
            {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
            "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
        ),
        (
            {"remote.storage.enable": "true"},
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log "
            "storage.",
        ),
    ],
)
def test_settings_that_no_topic_has(configs: Mapping[str, str | None], said: str) -> None:
    assert refusal(lambda: check_topic_configs(configs, TOPIC)) == (ErrorCode.invalid_config, said)


@pytest.mark.parametrize(
    ("name", "configs", "said"),
    [
        ("0", {"num.partitions": "4"}, "Cannot update these configs dynamically: [num.partitions]"),
        ("", {"log.retention.hours": "4"}, "Cannot update these configs dynamically: [log.retention.hours]"),
        (
            "0",
            {"ssl.keystore.location": "x", "ssl.key.password": "y"},
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            "[ssl.key.password, ssl.keystore.location]",
        ),
        (
            "",
            {"principal.builder.class": "x"},
            "Cannot update these configs at default cluster level, broker id must be specified: "
            "[principal.builder.class]",
        ),
        ("0", {"listeners": "PLAINTEXT://:1"}, "The emulator changes these only when it starts: [listeners]"),
        (
            "",
            {"message.max.bytes": "-1"},
            "Invalid value -1 for configuration message.max.bytes: Value must be at least 0",
        ),
        ("", {"max.connections": "0"}, "Invalid max.connections 0"),
    ],
)
def test_settings_that_no_running_broker_takes(name: str, configs: Mapping[str, str], said: str) -> None:
    assert refusal(lambda: check_broker_configs(name, configs, BROKER)) == (ErrorCode.invalid_request, said)


@pytest.mark.parametrize("name", [ALL_BROKERS, "0"])
def test_settings_that_a_running_broker_takes(name: str) -> None:
    configs = {"log.retention.ms": "-1", "num.io.threads": "9", "a.class.of.mine": "x"}
    check_broker_configs(name, configs, BROKER)
    check_broker_configs("0", {"listener.name.inside.ssl.keystore.location": "x"}, BROKER)


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ({"consumer.session.timeout.ms": "44999"}, "must be in the range 45000 to 60000 inclusive."),
        ({"consumer.heartbeat.interval.ms": "15001"}, "must be in the range 5000 to 15000 inclusive."),
        ({"share.delivery.count.limit": "11"}, "must be in the range 2 to 10 inclusive."),
        ({"streams.num.standby.replicas": "3"}, "must be less than or equal to 2"),
        ({"share.isolation.level": "none"}, "String must be one of: read_committed, read_uncommitted"),
        ({"share.auto.offset.reset": "now"}, "The value must be either 'earliest', 'latest' or of the format"),
        ({"colour": "blue"}, "Unknown group config name: colour"),
    ],
)
def test_settings_that_no_group_has(configs: Mapping[str, str], said: str) -> None:
    error, message = refusal(lambda: check_group_configs(configs, BrokerConfig()))
    assert (error, said in message) == (ErrorCode.invalid_config, True), message


def test_the_limits_of_groups_are_their_brokers() -> None:
    config = BrokerConfig.from_properties({"group.share.max.heartbeat.interval.ms": "20000"})
    check_group_configs({"share.heartbeat.interval.ms": "20000"}, config)


@pytest.mark.parametrize(
    ("configs", "error", "said"),
    [
        ({"interval.ms": "99"}, 42, "interval must be between 100 and 3600000"),
        ({"interval.ms": "often"}, 40, "Not a number of type INT"),
        ({"interval.ms": "99", "colour": "blue"}, 42, "Unknown client metrics configuration: colour"),
        ({"metrics": "a,,b"}, 40, "Configuration 'metrics' values must not be empty."),
        ({"colour": "blue"}, 42, "Unknown client metrics configuration: colour"),
        ({"match": "client_id=a,colour=b"}, 40, "Illegal client matching pattern: colour=b"),
        ({"match": "client_id=["}, 40, "Illegal client matching pattern: client_id=["),
        ({"match": "client_id=a=b"}, 40, "Illegal client matching pattern: client_id=a=b"),
        ({"match": "client_id"}, 40, "Illegal client matching pattern: client_id"),
        ({"match": f"client_id={'(' * 2000}"}, 40, f"Illegal client matching pattern: client_id={'(' * 2000}"),
        ({"match": "client_id=a{9999999999}"}, 40, "Illegal client matching pattern: client_id=a{9999999999}"),
        ({"match": f"client_id={'a' * 5000}"}, 40, "match has 5010 characters; the emulator takes 4096 at most"),
    ],
)
def test_settings_that_no_subscription_has(configs: Mapping[str, str], error: int, said: str) -> None:
    code, message = refusal(lambda: check_client_metrics_configs(configs))
    assert (code, said in message) == (error, True), message


def test_settings_that_a_subscription_has() -> None:
    check_client_metrics_configs({"interval.ms": "100", "match": "client_id=a.*,client_source_port=1.", "metrics": "*"})
