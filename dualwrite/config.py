"""The settings of producers and of `TransactionAdmin`, by Kafka's names, with their defaults, types and limits."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

from dualwrite import partitioners
from dualwrite.errors import ConfigError
from dualwrite.exact import exact
from dualwrite.imported import imported
from dualwrite.partitioners import Partitioner
from dualwrite.security_config import SECURITY_PARSERS, SecurityConfig
from dualwrite.serializers import Serializer
from dualwrite.shown import shown

MAX_TRANSACTION_TIMEOUT_MS: Final = 2**31 - 1
"""The transaction timeout sent for two-phase commit, which means none (KIP-939)."""

BOUNDED_TRANSACTION_TIMEOUT_MS: Final = 900_000
"""The default timeout of a prepared transaction with brokers on which it has one: the brokers' default maximum
(transaction.max.timeout.ms)."""

COMPRESSION_TYPES: Final = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
ACKS: Final = {"all": -1, "-1": -1, "0": 0, "1": 1}


@dataclass(frozen=True, slots=True)
class ProducerConfig(SecurityConfig):
    """Validated producer settings, by Kafka's names with underscores. Times in milliseconds, sizes in bytes."""

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str = "dualwrite"
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    transaction_two_phase_commit_enable: bool = False
    accept_bounded_guarantee: bool = False
    enable_idempotence: bool = True
    acks: int = -1
    max_in_flight_requests_per_connection: int = 5
    max_block_ms: int = 60_000
    unreachable_timeout_ms: int | None = None
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    linger_ms: int = 5
    batch_size: int = 262_144
    max_request_size: int = 1_048_576
    buffer_memory: int = 33_554_432
    compression_type: int = 0
    compression_level: int | None = None
    partitioner: str | Partitioner = "default"
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None
    trace_records: bool = False
    metadata_max_age_ms: int = 300_000
    connections_max_per_node: int = 16

    @classmethod
    def parse(cls, config: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> ProducerConfig:
        """Parse a mapping by Kafka's dotted names, and keywords with underscores. Raises `ConfigError`."""
        given = _named_once({} if config is None else _mapping(config), settings, _PARSERS)
        say = _Spelling((setting.written for setting in given.values()), by_keyword=bool(settings) and not config)
        values = _values(given, say, _PARSERS)
        if values.get("transaction_two_phase_commit_enable"):
            values.setdefault("transaction_timeout_ms", BOUNDED_TRANSACTION_TIMEOUT_MS)
        parsed = cls(**values)
        parsed._check_agreement(given.keys(), say)
        return parsed

    def _check_agreement(self, given: Collection[str], say: _Spelling) -> None:
        self.check_security(given, say)
        two_phase, idempotence = say("transaction_two_phase_commit_enable"), say("enable_idempotence")
        if self.transaction_two_phase_commit_enable:
            if self.transactional_id is None:
                raise ConfigError(f"{two_phase} needs a {say('transactional_id')}")
            if "transaction_timeout_ms" in given and not self.accept_bounded_guarantee:
                raise ConfigError(
                    f"{say('transaction_timeout_ms')} cannot be set together with {two_phase}: "
                    "a two-phase commit has no timeout (KIP-939), unless a broker without it is accepted with "
                    f"{say('accept_bounded_guarantee')}=true"
                )
        if not self.enable_idempotence and self.transactional_id is not None:
            raise ConfigError(f"{say('transactional_id')} needs {idempotence}=true")
        if self.enable_idempotence and self.acks != -1:
            raise ConfigError(f"{idempotence}=true needs acks=all")
        if self.enable_idempotence and self.max_in_flight_requests_per_connection > 5:
            raise ConfigError(
                f"{idempotence}=true needs {say('max_in_flight_requests_per_connection')} <= 5, "
                "because a broker recognises the last five batches of a producer"
            )
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise ConfigError(
                f"{say('delivery_timeout_ms')} must be at least {say('linger_ms')} + {say('request_timeout_ms')}"
            )


@dataclass(frozen=True, slots=True)
class AdminConfig(SecurityConfig):
    """Validated settings of `TransactionAdmin`: a producer's settings for connections, and `default.api.timeout.ms`."""

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str = "dualwrite"
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000

    @classmethod
    def parse(cls, config: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> AdminConfig:
        """Parse a mapping by Kafka's dotted names, and keywords with underscores. Raises `ConfigError`."""
        given = _named_once({} if config is None else _mapping(config), settings, _ADMIN_PARSERS)
        say = _Spelling((setting.written for setting in given.values()), by_keyword=bool(settings) and not config)
        parsed = cls(**_values(given, say, _ADMIN_PARSERS))
        parsed.check_security(given.keys(), say)
        return parsed


PUBLISHING: Final = frozenset(
    {
        "transaction_timeout_ms",
        "max_in_flight_requests_per_connection",
        "unreachable_timeout_ms",
        "delivery_timeout_ms",
        "linger_ms",
        "batch_size",
        "max_request_size",
        "buffer_memory",
        "compression_type",
        "compression_level",
        "partitioner",
        "metadata_max_age_ms",
        "connections_max_per_node",
    }
)
"""Settings of a producer that also apply to publishing records that were decided before, as commands do."""


def of_connections(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without those of `PUBLISHING`."""
    return {name: value for name, value in settings.items() if name.replace(".", "_") not in PUBLISHING}


def shared_with_admin(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of a producer's settings that `TransactionAdmin` takes too."""
    names = {field.name for field in fields(AdminConfig)}
    return {name: value for name, value in settings.items() if name.replace(".", "_") in names}


_Parsers = Mapping[str, Callable[[str, Any], Any]]
"""The allowed settings, each with the function that parses it."""


class _Given(NamedTuple):
    """A setting as the caller wrote it."""

    written: str
    value: Any


class _Spelling:
    """Writes names with dots or underscores, as the caller does.

    If no name shows it, `by_keyword` does: whether all names are keywords of Python. Kafka's own style has dots.
    """

    def __init__(self, written: Iterable[str], *, by_keyword: bool = False) -> None:
        names = list(written)
        underscored = by_keyword or any("_" in name for name in names)
        self._separator = "_" if underscored and not any("." in name for name in names) else "."

    def __call__(self, field: str) -> str:
        return field.replace("_", self._separator)


def _mapping(config: Any) -> Mapping[str, Any]:
    if isinstance(config, Mapping):
        return config
    sentence = f"the settings must be a mapping by Kafka's names, or keywords, not {type(config).__name__}"
    if isinstance(config, str):
        sentence += f"; for an address: bootstrap_servers={config!r}"
    raise ConfigError(sentence)


def _values(given: Mapping[str, _Given], say: _Spelling, parsers: _Parsers) -> dict[str, Any]:
    values = {field: parsers[field](setting.written, setting.value) for field, setting in given.items()}
    if "bootstrap_servers" not in values:
        raise ConfigError(f"{say('bootstrap_servers')} is missing: set it to host:port[,host:port]")
    return values


def _named_once(config: Mapping[str, Any], settings: Mapping[str, Any], parsers: _Parsers) -> dict[str, _Given]:
    given: dict[str, _Given] = {}
    for name, value in [*config.items(), *settings.items()]:
        if not isinstance(name, str):
            raise ConfigError(f"the name of a setting must be a str, not {name!r}")
        field = name.replace(".", "_")
        if field not in parsers:
            raise ConfigError(_unknown(name, field, parsers))
        if field in given:
            raise ConfigError(f"{given[field].written} is set twice, once as {name}")
        given[field] = _Given(name, value)
    return given


def assert_known(names: Iterable[str], beside: Collection[str]) -> None:
    """Raise ConfigError unless each name is a producer's setting or one of `beside`, the writer's own settings."""
    settings = (*beside, *_PARSERS)
    for name in names:
        field = name.replace(".", "_")
        if field not in settings:
            raise ConfigError(_unknown(name, field, settings))


def _unknown(name: str, field: str, parsers: Collection[str]) -> str:
    say = _Spelling([name])
    close = difflib.get_close_matches(field.lower(), parsers, n=1)
    hint = f"did you mean {say(close[0])}?" if close else f"the settings are {', '.join(map(say, parsers))}"
    return f"unknown setting {shown(name)}; {hint}"


def _servers(name: str, value: Any) -> tuple[tuple[str, int], ...]:
    if not isinstance(value, str | Iterable):
        raise ConfigError(f"{name}: {shown(value)} is not host:port[,host:port]")
    parts = value.split(",") if isinstance(value, str) else list(value)
    texts = [exact(part) if isinstance(part, str) else str(part) for part in parts]
    servers = tuple(_server(name, text) for text in texts if text.strip())
    if not servers:
        raise ConfigError(f"{name} names no server: set it to host:port[,host:port]")
    return servers


def _server(name: str, value: str) -> tuple[str, int]:
    scheme, is_url, rest = value.strip().partition("://")
    if is_url:
        raise ConfigError(_url(name, scheme, rest))
    host, colon, port = value.strip().rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ConfigError(f"{name}: {shown(value)} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _url(name: str, scheme: str, rest: str) -> str:
    """Return a message about a URL in place of an address, without the password that it may contain."""
    address = rest.rpartition("@")[2].partition("/")[0]
    protocol = "security.protocol" if "." in name else "security_protocol"
    return (
        f"{name} takes host:port, and no URL: write {address!r} without '{scheme}://'. TLS and logins have their own "
        f"settings ({protocol}; see docs/security.md)"
    )


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name} must be a non-empty string, not {shown(value)}")
    return exact(value)


def _optional_text(name: str, value: Any) -> str | None:
    return None if value is None else _text(name, value)


def _bool(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ConfigError(f"{name}: {shown(value)} is not true or false")


def _int(least: int, most: int = 2**31 - 1) -> Callable[[str, Any], int]:
    def parse(name: str, value: Any) -> int:
        try:
            number = int(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
        except ValueError:
            number = None
        if number is None or not least <= number <= most:
            raise ConfigError(f"{name}: {shown(value)} is not a whole number from {least} to {most}")
        return number

    return parse


def _optional_int(least: int, most: int) -> Callable[[str, Any], int | None]:
    parse = _int(least, most)
    return lambda name, value: None if value is None else parse(name, value)


def _partitioner(name: str, value: Any) -> str | Partitioner:
    if isinstance(value, str) and ":" in value:
        value = imported(name, value)
    if isinstance(value, str) and value in partitioners.NAMES:
        return exact(value)
    if callable(value):
        return value  # type: ignore[no-any-return]
    raise ConfigError(
        f"{name}: {shown(value)} is neither one of {', '.join(partitioners.NAMES)} "
        "nor a callable (topic, key, value, partition_count) -> partition, as it is or as 'module:function'"
    )


def _serializer(name: str, value: Any) -> Serializer | None:
    is_class = isinstance(value, type) and hasattr(value, "serialize")
    if value is None or (not is_class and callable(getattr(value, "serialize", value))):
        return value  # type: ignore[no-any-return]
    remedy = f"; pass an object: {value.__name__}(...)" if is_class else ""
    raise ConfigError(
        f"{name}: {shown(value)} is neither a callable (value) -> bytes nor an object with serialize(topic, value, "
        f"headers){remedy}"
    )


def _choice(choices: Mapping[str, int]) -> Callable[[str, Any], int]:
    def parse(name: str, value: Any) -> int:
        text = exact(value) if isinstance(value, str) else str(value)
        found = choices.get(text.lower()) if isinstance(value, str | int) else None
        if found is None:
            raise ConfigError(f"{name}: {shown(value)} is not one of {', '.join(choices)}")
        return found

    return parse


_PARSERS: Final[_Parsers] = {
    "bootstrap_servers": _servers,
    "client_id": _text,
    "transactional_id": _optional_text,
    "transaction_timeout_ms": _int(1),
    "transaction_two_phase_commit_enable": _bool,
    "accept_bounded_guarantee": _bool,
    "enable_idempotence": _bool,
    "acks": _choice(ACKS),
    "max_in_flight_requests_per_connection": _int(1),
    "max_block_ms": _int(0),
    "unreachable_timeout_ms": _optional_int(0, 2**31 - 1),
    "request_timeout_ms": _int(1),
    "delivery_timeout_ms": _int(1),
    "retry_backoff_ms": _int(0),
    "retry_backoff_max_ms": _int(0),
    "reconnect_backoff_ms": _int(0),
    "reconnect_backoff_max_ms": _int(0),
    "linger_ms": _int(0),
    "batch_size": _int(0),
    "max_request_size": _int(1),
    "buffer_memory": _int(1),
    "compression_type": _choice(COMPRESSION_TYPES),
    "compression_level": _optional_int(-131072, 22),
    "partitioner": _partitioner,
    "key_serializer": _serializer,
    "value_serializer": _serializer,
    "trace_records": _bool,
    "metadata_max_age_ms": _int(1),
    "connections_max_per_node": _int(1),
    **SECURITY_PARSERS,
}

assert _PARSERS.keys() == {field.name for field in fields(ProducerConfig)}

_ADMIN_PARSERS: Final[_Parsers] = {
    field.name: _int(1) if field.name == "default_api_timeout_ms" else _PARSERS[field.name]
    for field in fields(AdminConfig)
}
