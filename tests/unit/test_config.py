"""Settings by Kafka's names; whatever is wrong is refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from dualwrite.config import ProducerConfig
from dualwrite.errors import ConfigError


def parse(config: dict[str, Any] | None = None, **settings: Any) -> ProducerConfig:
    return ProducerConfig.parse({"bootstrap.servers": "h:1"} | (config or {}), settings)


def test_dotted_and_underscored_names_mean_the_same() -> None:
    assert parse({"linger.ms": 7}) == parse(linger_ms=7) == parse({"linger_ms": "7"})


def test_bootstrap_servers() -> None:
    servers = (("a", 1), ("::1", 2))
    assert ProducerConfig.parse(None, {"bootstrap_servers": "a:1, [::1]:2"}).bootstrap_servers == servers
    assert ProducerConfig.parse(None, {"bootstrap_servers": ["a:1", "[::1]:2"]}).bootstrap_servers == servers


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bogus.setting": 1}, "unknown setting"),
        ({"bootstrap.servers": "nohost"}, "is not host:port"),
        ({"bootstrap.servers": ""}, "names no server"),
        ({"bootstrap.servers": "a:0"}, "is not host:port"),
        ({"linger.ms": -1}, "whole number"),
        ({"linger.ms": True}, "whole number"),
        ({"linger.ms": 1.5}, "whole number"),
        ({"linger.ms": "soon"}, "whole number"),
        ({"acks": 2}, "is not one of"),
        ({"compression.type": "rar"}, "is not one of"),
        ({"enable.idempotence": "maybe"}, "true or false"),
        ({"transactional.id": ""}, "at least one character"),
        ({"transaction.two.phase.commit.enable": True}, r"needs a transactional\.id"),
        (
            {
                "transactional.id": "t",
                "transaction.two.phase.commit.enable": True,
                "transaction.timeout.ms": 60000,
            },
            "has no timeout",
        ),
        ({"transactional.id": "t", "enable.idempotence": False}, r"enable\.idempotence=true"),
        ({"acks": 1}, "acks=all"),
        ({"max.in.flight.requests.per.connection": 6}, "last five batches"),
        ({"delivery.timeout.ms": 30000, "linger.ms": 1}, r"delivery\.timeout\.ms"),
    ],
)
def test_what_is_wrong_is_said(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(settings)


def test_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        parse({"linger.ms": 1}, linger_ms=1)


def test_missing_bootstrap_servers() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is missing"):
        ProducerConfig.parse({}, {})


def test_two_phase_commit_has_no_timeout() -> None:
    assert parse(transactional_id="t").effective_transaction_timeout_ms == 60_000
    two_phase = parse(transactional_id="t", transaction_two_phase_commit_enable=True)
    assert two_phase.effective_transaction_timeout_ms == 2**31 - 1


def test_acks_without_idempotence() -> None:
    assert parse(acks=0, enable_idempotence="false").acks == 0
    assert parse(acks="all").acks == -1
