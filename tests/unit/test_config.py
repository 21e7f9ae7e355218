"""Settings by Kafka's names: invalid ones are refused before anything starts."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from dualwrite.config import AdminConfig, ProducerConfig, shared_with_admin
from dualwrite.errors import ConfigError
from dualwrite.producer import Producer


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
        ({"bogus.setting": 1}, r"unknown setting 'bogus\.setting'; the settings are bootstrap\.servers, client\.id"),
        ({"xxxx_yyyy": 1}, "the settings are bootstrap_servers, client_id"),
        ({"lingerms": 1}, r"did you mean linger\.ms\?"),
        ({"compresion.type": "gzip"}, r"did you mean compression\.type\?"),
        ({"compresion_type": "gzip"}, r"did you mean compression_type\?"),
        ({1: 2}, "the name of a setting must be a str, not 1"),
        ({"linger_ms": "soon"}, "linger_ms: 'soon' is not a whole number"),
        ({"connections.max.per.node": 0}, "connections.max.per.node: 0 is not a whole number from 1"),
        ({"bootstrap.servers": 5}, r"5 is not host:port\[,host:port\]"),
        ({"bootstrap.servers": "a:²"}, "is not host:port"),
        ({"bootstrap.servers": "nohost"}, "is not host:port"),
        ({"bootstrap.servers": ""}, "names no server"),
        ({"bootstrap.servers": "a:0"}, "is not host:port"),
        ({"linger.ms": -1}, "whole number"),
        ({"linger.ms": True}, "whole number"),
        ({"linger.ms": 1.5}, "whole number"),
        ({"linger.ms": "soon"}, "whole number"),
        ({"acks": 2}, "is not one of"),
        ({"compression.type": "rar"}, "is not one of"),
        ({"compression.level": 1.5}, "whole number from -131072 to 22"),
        ({"partitioner": "murmur3"}, "neither one of default, murmur2_random"),
        ({"partitioner": ["default"]}, "neither one of default, murmur2_random"),
        ({"key.serializer": "utf8"}, r"key\.serializer: 'utf8' is neither a callable"),
        ({"enable.idempotence": "maybe"}, "true or false"),
        ({"transactional.id": ""}, "must be a non-empty string"),
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
def test_invalid_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse(settings)


def test_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="set twice"):
        parse({"linger.ms": 1}, linger_ms=1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, r"bootstrap\.servers is missing"),
        ({"client_id": "c"}, "bootstrap_servers is missing"),
        ({"client.id": "c", "linger_ms": 1}, r"bootstrap\.servers is missing"),
        ({"bootstrap_servers": "h:1", "acks": 1}, "enable_idempotence=true needs acks=all"),
        (
            {"bootstrap_servers": "h:1", "transaction_two_phase_commit_enable": True},
            "transaction_two_phase_commit_enable needs a transactional_id",
        ),
        ({"bootstrap_server": "h:1"}, r"did you mean bootstrap_servers\?"),
        ({"bootstrap.server": "h:1"}, r"did you mean bootstrap\.servers\?"),
    ],
)
def test_names_are_spelt_as_the_caller_spells_them(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ProducerConfig.parse(None, settings)


@pytest.mark.parametrize("config", ["127.0.0.1:9093", 5, ["bootstrap.servers"], b"h:1"])
def test_settings_that_are_no_mapping_are_refused(config: Any) -> None:
    with pytest.raises(ConfigError, match="the settings must be a mapping by Kafka's names, or keywords"):
        Producer(config)


def test_an_address_in_place_of_settings_is_recognised() -> None:
    with pytest.raises(ConfigError, match=r"for an address: bootstrap_servers='127\.0\.0\.1:9093'"):
        Producer("127.0.0.1:9093")  # type: ignore[arg-type]


def test_missing_bootstrap_servers() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is missing"):
        ProducerConfig.parse({}, {})


def test_two_phase_commit_has_no_timeout() -> None:
    assert parse(transactional_id="t").transaction_timeout_ms == 60_000
    two_phase = parse(transactional_id="t", transaction_two_phase_commit_enable=True)
    assert two_phase.transaction_timeout_ms == 900_000, "the bound, where there is one: what brokers allow by default"


def test_acks_without_idempotence() -> None:
    assert parse(acks=0, enable_idempotence="false").acks == 0
    assert parse(acks="all").acks == -1


def test_administration_reads_the_same_settings_by_the_same_rules() -> None:
    given = AdminConfig.parse({"bootstrap.servers": "h:1", "retry.backoff.ms": 7}, {"default_api_timeout_ms": "9"})
    assert (given.bootstrap_servers, given.retry_backoff_ms, given.default_api_timeout_ms) == ((("h", 1),), 7, 9)
    shared = {field.name for field in fields(AdminConfig)} & {field.name for field in fields(ProducerConfig)}
    admin, producer = AdminConfig.parse(None, {"bootstrap_servers": "h:1"}), parse()
    assert {getattr(admin, name) == getattr(producer, name) for name in shared} == {True}
    for settings, words in [
        ({}, r"bootstrap\.servers is missing"),
        ({"bootstrap_servers": "h:1", "linger_ms": 1}, "unknown setting 'linger_ms'"),
        ({"bootstrap_servers": "h:1", "default_api_timeout": 1}, "did you mean default_api_timeout_ms"),
        ({"bootstrap_servers": "h:1", "default_api_timeout_ms": 0}, "whole number from 1"),
    ]:
        with pytest.raises(ConfigError, match=words):
            AdminConfig.parse(None, settings)


def test_a_client_for_admin_requests_gets_a_producers_settings_however_they_are_written() -> None:
    given = {"bootstrap.servers": "h:1", "client_id": "x", "security.protocol": "SSL", "linger_ms": 1, "acks": "all"}
    shared = {"bootstrap.servers": "h:1", "client_id": "x", "security.protocol": "SSL"}
    assert shared_with_admin(given) == shared
    assert AdminConfig.parse(None, shared).client_id == "x"
