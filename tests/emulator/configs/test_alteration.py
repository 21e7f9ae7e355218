"""Altering settings: the operations on one, and what is refused beside the cases of tests/interop/raw_wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator import BrokerConfig
from dualwrite.broker_emulator.configs.alteration import (
    AlterationError,
    Change,
    Operation,
    after_changes,
    check_client_metrics_configs,
    check_group_configs,
)
from dualwrite.broker_emulator.configs.effective import topic_settings
from dualwrite.broker_emulator.profiles import Settings

TOPIC = topic_settings(Settings.KAFKA_4_4)
SET, DELETE, APPEND, SUBTRACT = Operation


def refusal(act: Callable[[], object]) -> tuple[ErrorCode, str]:
    with pytest.raises(AlterationError) as refused:
        act()
    return refused.value.error, str(refused.value)


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


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ({"share.delivery.count.limit": "11"}, "must be in the range 2 to 10 inclusive."),
        ({"share.auto.offset.reset": "now"}, "The value must be either 'earliest', 'latest' or of the format"),
    ],
)
def test_settings_that_no_group_has(configs: Mapping[str, str], said: str) -> None:
    error, message = refusal(lambda: check_group_configs(configs, BrokerConfig()))
    assert (error, said in message) == (ErrorCode.invalid_config, True), message


@pytest.mark.parametrize(
    ("configs", "error", "said"),
    [
        ({"match": "client_id=a,colour=b"}, 40, "Illegal client matching pattern: colour=b"),
        ({"match": "client_id"}, 40, "Illegal client matching pattern: client_id"),
        ({"match": f"client_id={'(' * 2000}"}, 40, f"Illegal client matching pattern: client_id={'(' * 2000}"),
        ({"match": "client_id=a{9999999999}"}, 40, "Illegal client matching pattern: client_id=a{9999999999}"),
        ({"match": f"client_id={'a' * 5000}"}, 40, "match has 5010 characters; the emulator takes 4096 at most"),
    ],
)
def test_settings_that_no_subscription_has(configs: Mapping[str, str], error: int, said: str) -> None:
    code, message = refusal(lambda: check_client_metrics_configs(configs))
    assert (code, said in message) == (error, True), message
