"""Altered settings: the result of an alteration, or the reason for its refusal, and their storage for the next start.

The errors are Kafka's: an invalid value for a topic, a group or a client metrics subscription is 40 INVALID_CONFIG. For
a broker, whose node checks it before the controller does, it is 42 INVALID_REQUEST, as is a setting that can only be
changed by a restart. Only `AlteredConfigs` has a state; the rest is pure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.config import BrokerConfig
from dualwrite.broker_emulator.configs.effective import broker_value
from dualwrite.broker_emulator.configs.reading import base_name
from dualwrite.broker_emulator.configs.resource_settings import CLIENT_METRICS_SETTINGS, GROUP_SETTINGS
from dualwrite.broker_emulator.configs.setting import ConfigType, InvalidValueError, Setting, UpdateMode
from dualwrite.broker_emulator.error_codes import RefusedError
from dualwrite.broker_emulator.storage.storage import Storage

ALL_BROKERS: Final = ""
"""The name of the BROKER resource whose settings apply to every broker without its own value."""

_KIND: Final = "config"


class Operation(IntEnum):
    """The operations on a setting (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_OPERATIONS: Final = frozenset(Operation)


class Change(NamedTuple):
    """The change of one setting in a request."""

    name: str
    operation: int
    value: str | None


class AlterationError(RefusedError):
    """An alteration is refused; the settings stay as they are."""


def _invalid_config(message: str) -> AlterationError:
    return AlterationError(ErrorCode.invalid_config, message)


def _invalid_request(message: str) -> AlterationError:
    return AlterationError(ErrorCode.invalid_request, message)


def why_invalid(changes: Sequence[Change]) -> AlterationError | None:
    """Return why the changes are invalid for any resource, or None."""
    if len({change.name for change in changes}) < len(changes):
        return _invalid_request("Error due to duplicate config keys")
    missing = [change.name for change in changes if change.value is None and change.operation != Operation.DELETE]
    if missing:
        return _invalid_request(f"Null value not supported for : {', '.join(missing)}")
    for change in changes:
        if change.operation not in _OPERATIONS:
            return _invalid_request(f"Unknown operations type {change.operation}")
    return None


def after_changes(
    current: Mapping[str, str], changes: Iterable[Change], settings: Mapping[str, Setting], *, of_broker: bool = False
) -> dict[str, str]:
    """Return the settings of a resource after `changes`. Raises AlterationError for a list operation on a non-list."""
    after = dict(current)
    delete, set_ = int(Operation.DELETE), int(Operation.SET)  # compared very often in a large request
    for name, operation, value in changes:
        if operation == delete:
            after.pop(name, None)
        elif operation == set_:
            after[name] = str(value)
        else:
            setting = settings.get(name)
            if setting is None or setting.type is not ConfigType.LIST:
                raise _not_a_list(name, Operation(operation), of_broker)
            after[name] = _with_list_changed(after.get(name, setting.default), operation, str(value))
    return after


def _not_a_list(name: str, operation: Operation, of_broker: bool) -> AlterationError:
    if of_broker:
        return _invalid_config(f"Config value {operation.name.lower()} is not allowed for config key: {name}")
    return _invalid_config(f"Can't {operation.name} to key {name} because its type is not LIST.")


def _with_list_changed(text: str | None, operation: int, change: str) -> str:
    elements = [element for element in (text or "").split(",") if element]
    if operation == Operation.APPEND:
        present = set(elements)
        elements += (element for element in dict.fromkeys(change.split(",")) if element not in present)
        return ",".join(elements)
    removed = Counter(change.split(","))
    kept = []
    for element in elements:
        if removed[element] > 0:
            removed[element] -= 1
        else:
            kept.append(element)
    return ",".join(kept)


# --- topics -----------------------------------------------------------------------------------------------------------

_TIERED_STORAGE: Final = "remote.storage.enable"


def check_topic_configs(configs: Mapping[str, str | None], settings: Mapping[str, Setting]) -> None:
    """Raise AlterationError if a topic cannot have these settings."""
    missing = sorted(name for name, value in configs.items() if value is None)
    if missing:
        raise _invalid_config(f"Null value not supported for topic configs: {','.join(missing)}")
    values = _parsed(configs, settings, "topic")
    least, most = values.get("min.compaction.lag.ms", 0), values.get("max.compaction.lag.ms")
    if isinstance(least, int) and isinstance(most, int) and least > most:
        raise _invalid_config(
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        )
    if values.get(_TIERED_STORAGE) is True:
        raise _invalid_config(
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log "
            "storage."
        )


def _parsed(configs: Mapping[str, str | None], settings: Mapping[str, Setting], kind: str) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, text in configs.items():
        if name not in settings:
            raise _invalid_config(f"Unknown {kind} config name: {name}")
        try:
            values[name] = settings[name].parse(str(text))
        except InvalidValueError as error:
            raise _invalid_config(str(error)) from error
    return values


# --- brokers ----------------------------------------------------------------------------------------------------------

_PER_LISTENER: Final = frozenset(
    {
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
"""Settings that can be altered only for one listener."""

_FIXED_HERE: Final = frozenset({"listeners", "listener.security.protocol.map"})


def check_broker_configs(name: str, configs: Mapping[str, str], settings: Mapping[str, Setting]) -> None:
    """Raise AlterationError if a running broker, or all of them (ALL_BROKERS), cannot have these settings.

    Unknown settings are accepted, because they may belong to a user's class.
    """
    known = {key: settings[base_name(key)] for key in configs if base_name(key) in settings}
    _refuse("Cannot update these configs dynamically", (k for k in known if known[k].update is UpdateMode.READ_ONLY))
    _refuse(
        "These security configs can be dynamically updated only per-listener using the listener prefix",
        (key for key in known if key in _PER_LISTENER),
    )
    if name == ALL_BROKERS:
        _refuse(
            "Cannot update these configs at default cluster level, broker id must be specified",
            (key for key in known if known[key].update is UpdateMode.PER_BROKER),
        )
    _refuse("The emulator changes these only when it starts", (key for key in known if key in _FIXED_HERE))
    for key, setting in known.items():
        try:
            value = setting.parse(configs[key])
        except InvalidValueError as error:
            raise _invalid_request(str(error)) from error
        problem = _PROBLEMS.get((key, value if isinstance(value, int) else -1))
        if problem is not None:
            raise _invalid_request(problem)


_PROBLEMS: Final = {
    ("log.retention.ms", 0): "requirement failed: log.retention.ms must be unlimited (-1) or, greater than or equal "
    "to 1",
    ("max.connections", 0): "Invalid max.connections 0",
    ("max.connections.per.ip", 0): "requirement failed: max.connections.per.ip can be set to zero only if "
    "max.connections.per.ip.overrides property is set.",
}


def _refuse(why: str, names: Iterable[str]) -> None:
    found = sorted(names)
    if found:
        raise _invalid_request(f"{why}: [{', '.join(found)}]")


# --- groups -----------------------------------------------------------------------------------------------------------


class _Limits(NamedTuple):
    """The broker settings that bound a setting of a group."""

    least: str | None
    most: str


_GROUP_LIMITS: Final[Mapping[str, _Limits]] = {
    f"{kind}.{what}": _Limits(f"group.{kind}.min.{what}", f"group.{kind}.max.{what}")
    for kind in ("consumer", "share", "streams")
    for what in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")
} | {
    "share.record.lock.duration.ms": _Limits(
        "group.share.min.record.lock.duration.ms", "group.share.max.record.lock.duration.ms"
    ),
    "share.delivery.count.limit": _Limits(
        "group.share.min.delivery.count.limit", "group.share.max.delivery.count.limit"
    ),
    "share.partition.max.record.locks": _Limits(
        "group.share.min.partition.max.record.locks", "group.share.max.partition.max.record.locks"
    ),
    "streams.num.standby.replicas": _Limits(None, "group.streams.max.standby.replicas"),
    "streams.num.warmup.replicas": _Limits(None, "group.streams.max.warmup.replicas"),
}


def check_group_configs(configs: Mapping[str, str], config: BrokerConfig) -> None:
    """Raise AlterationError if a group cannot have these settings."""
    for name, value in _parsed(configs, GROUP_SETTINGS, "group").items():
        limits = _GROUP_LIMITS.get(name)
        if limits is None:
            continue
        most = int(broker_value(config, limits.most) or 0)
        assert isinstance(value, int)
        if limits.least is None:
            if value > most:
                raise _invalid_config(f"{name} must be less than or equal to {most}")
            continue
        least = int(broker_value(config, limits.least) or 0)
        if not least <= value <= most:
            raise _invalid_config(f"{name} must be in the range {least} to {most} inclusive.")


# --- client metrics ---------------------------------------------------------------------------------------------------

_LEAST_INTERVAL_MS: Final = 100
_MOST_INTERVAL_MS: Final = 3_600_000
_MATCH_KEYS: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
_LONGEST_MATCH: Final = 4096
"""Maximum length of all patterns together: compiling them takes time, while other clients wait."""


def check_client_metrics_configs(configs: Mapping[str, str]) -> None:
    """Raise AlterationError if a client metrics subscription cannot have these settings (KIP-714)."""
    for name in configs:
        if name not in CLIENT_METRICS_SETTINGS:
            raise _invalid_request(f"Unknown client metrics configuration: {name}")
    values = _parsed(configs, CLIENT_METRICS_SETTINGS, "client metrics")
    for name, value in values.items():
        if isinstance(value, list) and value != [""] and "" in value:
            raise _invalid_config(f"Configuration '{name}' values must not be empty.")
    interval_ms = values.get("interval.ms", _LEAST_INTERVAL_MS)
    assert isinstance(interval_ms, int)
    _check_interval(interval_ms)
    match = configs.get("match", "")
    if len(match) > _LONGEST_MATCH:
        raise _invalid_config(f"match has {len(match)} characters; the emulator takes {_LONGEST_MATCH} at most")
    for pattern in filter(None, match.split(",")):
        _check_pattern(pattern)


def _check_interval(interval_ms: int) -> None:
    if not _LEAST_INTERVAL_MS <= interval_ms <= _MOST_INTERVAL_MS:
        raise _invalid_request(
            f"Invalid value {interval_ms} for interval.ms, interval must be between {_LEAST_INTERVAL_MS} and "
            f"{_MOST_INTERVAL_MS} (1 hour)"
        )


def _check_pattern(pattern: str) -> None:
    key, equals, expression = pattern.partition("=")
    if "=" in expression:
        equals = ""
    try:
        re.compile(expression)
    except (re.error, OverflowError, RecursionError):  # the last two: for a large count, and for nested groups
        equals = ""
    if not equals or key.strip() not in _MATCH_KEYS:
        raise _invalid_config(f"Illegal client matching pattern: {pattern}")


class ConfigResource(IntEnum):
    """The types of resources that have settings, with Kafka's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class AlteredConfigs:
    """Altered settings by resource, as text."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def of(self, resource: ConfigResource, name: str) -> Mapping[str, str]:
        """Return the altered settings of a resource; empty if it was never altered."""
        found: Mapping[str, str] = self._storage.values(_KIND).get(_key(resource, name), {})
        return found

    def was_altered(self, resource: ConfigResource, name: str) -> bool:
        """Return whether a resource was ever altered, even if it has no altered setting now."""
        return _key(resource, name) in self._storage.values(_KIND)

    def names(self, resource: ConfigResource) -> list[str]:
        """Return the names of the resources of a type that have altered settings, sorted."""
        keys = (key.partition(":") for key, configs in self._storage.values(_KIND).items() if configs)
        return sorted(name for kind, _, name in keys if kind == str(int(resource)))

    def replace(self, resource: ConfigResource, name: str, configs: Mapping[str, str]) -> None:
        """Replace the settings of a resource. Raises StorageError, without any change."""
        self._storage.store_value(_KIND, _key(resource, name), dict(configs))

    def forget(self, resource: ConfigResource, name: str) -> None:
        """Remove a resource, as if it had never been altered. Raises StorageError."""
        if self.was_altered(resource, name):
            self._storage.store_value(_KIND, _key(resource, name), None)


def _key(resource: ConfigResource, name: str) -> str:
    return f"{int(resource)}:{name}"
