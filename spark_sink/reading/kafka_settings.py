"""Translate the source's options `kafka.*`, with the Java consumer's names that Spark users know, for both libraries.

Every name is translated, passed on, or refused with advice; none is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple

from dualwrite.config import AdminConfig
from dualwrite.errors import ConfigError
from dualwrite.java_client import translated
from spark_sink.errors import SinkOptionError

READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"

WAIT_AT_THE_END_MS: Final = 5
"""`fetch.max.wait.ms` unless it was set: all records of a range exist already, so a fetch waits only at its end."""

_DECIDED_BY_THE_SOURCE: Final = {
    "auto.offset.reset": "a new query starts at startingOffsets, and continues from its checkpoint",
    "enable.auto.commit": "offsets are kept in the checkpoint and not in Kafka",
    "key.deserializer": "the column key is binary: cast it, or use a function on it",
    "value.deserializer": "the column value is binary: cast it, or use a function on it",
    "interceptor.classes": "they are Java classes, and might change records",
    "group.instance.id": "the source joins no group",
    "partition.assignment.strategy": "the source joins no group",
    "max.poll.records": "maxOffsetsPerTrigger sets how much a batch reads",
}


class _Fetching(NamedTuple):
    """A setting of consumers only: its names in the two libraries, and its type."""

    librdkafka: str
    kafka_python: str | None
    kind: type[int] | type[bool] | type[str]


_FETCHING: Final = {
    "isolation.level": _Fetching("isolation.level", "isolation_level", str),
    "fetch.max.bytes": _Fetching("fetch.max.bytes", "fetch_max_bytes", int),
    "fetch.min.bytes": _Fetching("fetch.min.bytes", "fetch_min_bytes", int),
    "fetch.max.wait.ms": _Fetching("fetch.wait.max.ms", "fetch_max_wait_ms", int),
    "max.partition.fetch.bytes": _Fetching("max.partition.fetch.bytes", "max_partition_fetch_bytes", int),
    "receive.buffer.bytes": _Fetching("socket.receive.buffer.bytes", "receive_buffer_bytes", int),
    "check.crcs": _Fetching("check.crcs", "check_crcs", bool),
    "client.rack": _Fetching("client.rack", "client_rack", str),
    "group.id": _Fetching("group.id", None, str),
}

_TO_LIBRDKAFKA: Final = {"request.timeout.ms": "socket.timeout.ms"}
_UNKNOWN_TO_LIBRDKAFKA: Final = ("default.api.timeout.ms",)


def checked_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options `kafka.*` by the names of docs/security.md, without that prefix; still strings, to be pickled.

    `isolation.level` is `read_committed` unless it is set. Raises SinkOptionError, whose text has no secret, for an
    option that is unknown, invalid, set by the source, or only for Java.
    """
    for name in given:
        if name in _DECIDED_BY_THE_SOURCE:
            raise SinkOptionError(f"the option kafka.{name} cannot be set: {_DECIDED_BY_THE_SOURCE[name]}")
    try:
        settings = {"isolation.level": READ_COMMITTED, "check.crcs": "true"} | translated(given)
        _connection(settings)
    except ConfigError as error:
        raise SinkOptionError(
            f"the consumer's settings, which are the options kafka.*, are invalid: {error}; in addition to those of "
            f"connections, there are {', '.join(_FETCHING)}"
        ) from None
    for name in settings.keys() & _FETCHING.keys():
        _value(name, settings[name])
    level = settings["isolation.level"] = settings["isolation.level"].lower()
    if level not in (READ_COMMITTED, READ_UNCOMMITTED):
        raise SinkOptionError(f"kafka.isolation.level: {level!r} is not {READ_COMMITTED} or {READ_UNCOMMITTED}")
    return settings


def api_timeout_ms(settings: Mapping[str, str]) -> int:
    """Return the time limit for querying topics and offsets (`default.api.timeout.ms`)."""
    return _connection(settings).default_api_timeout_ms


def needs_kafka_python(settings: Mapping[str, str]) -> bool:
    """Return whether only kafka-python supports this login: librdkafka requires the time when a token expires."""
    return _connection(settings).sasl_mechanism == "OAUTHBEARER"


def for_librdkafka(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of confluent-kafka's clients, with `isolation.level` and the others of consumers."""
    wanted = {}
    for name, value in settings.items():
        if name in _FETCHING:
            wanted[_FETCHING[name].librdkafka] = value
        elif name not in _UNKNOWN_TO_LIBRDKAFKA:
            wanted[_TO_LIBRDKAFKA.get(name, name)] = value
    if "ssl.certificate.location" in wanted:  # one PEM file may contain both
        wanted.setdefault("ssl.key.location", wanted["ssl.certificate.location"])
    if wanted.get("ssl.endpoint.identification.algorithm") == "":
        wanted["ssl.endpoint.identification.algorithm"] = "none"
    return wanted


def connection_of_kafka_python(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that all of kafka-python's clients have."""
    config = _connection(settings)
    wanted: dict[str, Any] = {
        "bootstrap_servers": [f"{host}:{port}" for host, port in config.bootstrap_servers],
        "client_id": config.client_id,
        "request_timeout_ms": config.request_timeout_ms,
        "bootstrap_timeout_ms": config.default_api_timeout_ms,
        "retry_backoff_ms": config.retry_backoff_ms,
        "reconnect_backoff_ms": config.reconnect_backoff_ms,
        "reconnect_backoff_max_ms": config.reconnect_backoff_max_ms,
        "security_protocol": config.security_protocol,
        "ssl_check_hostname": config.ssl_endpoint_identification_algorithm == "https",
        "ssl_cafile": config.ssl_ca_location,
        "ssl_certfile": config.ssl_certificate_location,
        "ssl_keyfile": config.ssl_key_location,
        "ssl_password": config.ssl_key_password,
        "sasl_mechanism": config.sasl_mechanism,
        "sasl_plain_username": config.sasl_username,
        "sasl_plain_password": config.sasl_password,
    }
    if config.sasl_oauth_token_provider is not None:
        wanted["sasl_oauth_token_provider"] = _token_provider(config.sasl_oauth_token_provider)
    return wanted


def fetching_of_kafka_python(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that only kafka-python's consumer has."""
    return {
        setting.kafka_python: _value(name, settings[name])
        for name, setting in _FETCHING.items()
        if name in settings and setting.kafka_python is not None
    }


def _token_provider(token: Callable[[], str]) -> Any:
    base: Any = import_module("kafka.net.sasl.oauth").AbstractTokenProvider
    return type("TokenProvider", (base,), {"token": lambda self: token()})()


def connection_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of connections, for `dualwrite.TransactionAdmin`."""
    return {name: text for name, text in settings.items() if name not in _FETCHING}


def _connection(settings: Mapping[str, str]) -> AdminConfig:
    return AdminConfig.parse(connection_settings(settings), {})


def _value(name: str, text: str) -> Any:
    kind = _FETCHING[name].kind
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise SinkOptionError(f"kafka.{name}: {text!r} is not true or false")
        return text.lower() == "true"
    if kind is int:
        if not (text.isascii() and text.isdecimal()):
            raise SinkOptionError(f"kafka.{name}: {text!r} is not a whole number")
        return int(text)
    return text
