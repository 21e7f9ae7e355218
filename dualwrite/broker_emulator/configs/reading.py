"""Parse a broker's settings, given by Kafka's names and as text: check them, and convert them to `BrokerConfig` fields.

Settings with a field have an effect, as do those of `READ_ELSEWHERE` and of a listener's security. All other settings
of Kafka are accepted without effect. So are unknown ones, as in Kafka: they may belong to a plugin.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any, Final

from dualwrite.broker_emulator.configs import kafka_3_9
from dualwrite.broker_emulator.configs.broker_settings import DYNAMIC_ONLY_SETTINGS, broker_synonyms
from dualwrite.broker_emulator.configs.differences import BROKER_SETTINGS_HERE, OWN_SETTINGS
from dualwrite.broker_emulator.configs.security_settings import AUTHORIZER_SETTINGS
from dualwrite.broker_emulator.configs.setting import Between, ConfigType, InvalidValueError, Setting, Value, text_of
from dualwrite.broker_emulator.security.settings import EFFECTIVE
from dualwrite.broker_emulator.text import did_you_mean

KNOWN: Final[Mapping[str, Setting]] = {
    **kafka_3_9.BROKER_CHANGES,
    **AUTHORIZER_SETTINGS,
    **BROKER_SETTINGS_HERE,
    **OWN_SETTINGS,
}
"""The settings that a configuration file may contain."""

_LISTENER_SETTING: Final = re.compile(r"listener\.name\.[^.]+\.(?:[^.]+\.)?(.*)")
_PLUGIN_PREFIXES: Final = ("rsm.config.", "rlmm.config.", "config.providers.", "metrics.context.")

READ_ELSEWHERE: Final = frozenset(
    {
        "broker.id",
        "process.roles",
        "listeners",
        "advertised.listeners",
        "listener.security.protocol.map",
        "inter.broker.listener.name",
        "security.inter.broker.protocol",
        "controller.listener.names",
        "log.retention.minutes",
        "log.retention.hours",
        "log.roll.hours",
        "log.flush.scheduler.interval.ms",
        "group.share.assignment.interval.ms",
        "group.share.delivery.count.limit",
        "group.share.heartbeat.interval.ms",
        "group.share.max.share.sessions",
        "group.share.max.size",
        "group.share.partition.max.record.locks",
        "group.share.record.lock.duration.ms",
        "group.share.session.timeout.ms",
        "share.coordinator.state.topic.num.partitions",
        *AUTHORIZER_SETTINGS,
    }
)
"""Settings with an effect but no field of their own."""

_MILLISECONDS: Final = {".minutes": 60_000, ".hours": 3_600_000}


def given_text(value: Any) -> str:
    """Return a Python value as the text of Kafka's configuration files."""
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(str(part) for part in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def base_name(name: str) -> str:
    """Return the name without a prefix `listener.name.<listener>.[<mechanism>.]`."""
    found = _LISTENER_SETTING.fullmatch(name)
    if found is None:
        return name
    whole = name.split(".", 3)[3]
    return whole if whole in KNOWN else found[1]


def problem_of_name(name: str, more: Collection[str] = ()) -> str | None:
    """Return why a setting is ignored, with the most similar name, or None if it is known.

    `more` are names of fields.
    """
    known = {*KNOWN, *more}
    if base_name(name) in known or name.startswith(_PLUGIN_PREFIXES):
        return None
    if name in DYNAMIC_ONLY_SETTINGS:
        return f"the broker setting {name} can only be altered while the broker runs"
    return f"unknown broker setting {name!r}{did_you_mean(name, known)}"


def field_values(given: Mapping[str, str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the fields that `given` sets; `defaults` has all fields, with `_` for `.` in their names.

    Raises ValueError for a value that is invalid for its setting.
    """
    for name, text in given.items():
        setting = KNOWN.get(base_name(name))
        if setting is not None:
            _check_least(setting, setting.parse(text))
    values = {}
    for field, default in defaults.items():
        found = next((name for name in _names_of(field) if name in given), None)
        if found is not None:
            values[field] = _field_value(found, given[found], default)
    return values


def _names_of(field: str) -> tuple[str, ...]:
    return ("node.id", "broker.id") if field == "node_id" else broker_synonyms(field.replace("_", "."))


def _check_least(setting: Setting, value: Value) -> None:
    """Raise InvalidValueError for a negative value if Kafka's table has no minimum: its code mostly has one."""
    if (
        setting.rule is None
        and isinstance(value, int | float)
        and setting.name not in ("broker.id", "queued.max.request.bytes")
    ):
        problem = Between(-1 if setting.name.startswith("log.retention.") else 0).problem(value)
        if problem is not None:
            raise InvalidValueError(setting.name, text_of(value), problem)


def _field_value(name: str, text: str, default: Any) -> Any:
    setting = KNOWN.get(name) or Setting(name, _TYPES.get(type(default), ConfigType.STRING), None)
    value = setting.parse(text)
    if isinstance(default, Enum):
        return type(default)(value)
    if isinstance(default, tuple):
        return tuple(value) if isinstance(value, list) else tuple(text.split(","))
    if isinstance(default, str):
        return text_of(value)
    if isinstance(value, int) and not isinstance(default, bool):
        return value * _unit(name) if value > 0 else value
    return value


_TYPES: Final = {bool: ConfigType.BOOLEAN, int: ConfigType.LONG, float: ConfigType.DOUBLE, tuple: ConfigType.LIST}


def _unit(name: str) -> int:
    return next((unit for ending, unit in _MILLISECONDS.items() if name.endswith(ending) and name in _IN_UNITS), 1)


_IN_UNITS: Final = ("log.retention.minutes", "log.retention.hours", "log.roll.hours")


def without_effect(given: Collection[str], fields: Collection[str]) -> list[str]:
    """Return Kafka's settings in `given` that have no effect here."""
    effective = {field.replace("_", ".") for field in fields} | READ_ELSEWHERE
    return sorted(name for name in given if name not in effective and base_name(name) not in EFFECTIVE)
