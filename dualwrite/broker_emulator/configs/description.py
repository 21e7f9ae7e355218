"""What DescribeConfigs says of a resource: each setting with its value, where that comes from, and what it hides. Pure.

A value is looked up in layers, the first one that has it counts: the resource's own, what was altered for one broker,
what was altered for all of them, what the broker was started with, the default. The layers that have a value are the
setting's synonyms (KIP-226).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import dropwhile
from typing import NamedTuple

from dualwrite.broker_emulator.configs import group_settings, topic_settings
from dualwrite.broker_emulator.configs.broker_settings import broker_synonyms
from dualwrite.broker_emulator.configs.documentation import documentation_of
from dualwrite.broker_emulator.configs.group_settings import CLIENT_METRICS_SETTINGS, GROUP_SETTINGS
from dualwrite.broker_emulator.configs.reading import base_name
from dualwrite.broker_emulator.configs.setting import ConfigType, InvalidValueError, Setting, UpdateMode


class ConfigSource(IntEnum):
    """Where a value comes from, with Kafka's numbers."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class Synonym(NamedTuple):
    """A layer that has a value."""

    name: str
    value: str | None
    source: ConfigSource


class Entry(NamedTuple):
    """One setting as it is told."""

    name: str
    value: str | None
    """None where there is none, and where it is sensitive."""
    source: ConfigSource
    type: ConfigType
    is_read_only: bool = False
    is_sensitive: bool = False
    synonyms: Sequence[Synonym] = ()
    documentation: str | None = None


class BrokerLayers(NamedTuple):
    """What is set of one broker, by where it was set."""

    settings: Mapping[str, Setting]
    own: Mapping[str, str]
    of_all_brokers: Mapping[str, str]
    static: Mapping[str, str]
    effective: Callable[[str], str | None]
    """The value that a broker goes by, of whichever synonym."""

    def synonyms(self, name: str) -> list[Synonym]:
        """The layers that have a value for a setting; those of another name count only behind one of its own."""
        names = broker_synonyms(name)
        base = base_name(name)
        names = names if base == name else (name, base)
        found = [
            Synonym(each, layer[each], source)
            for layer, source in (
                (self.own, ConfigSource.DYNAMIC_BROKER_CONFIG),
                (self.of_all_brokers, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
                (self.static, ConfigSource.STATIC_BROKER_CONFIG),
            )
            for each in names
            if each in layer
        ]
        for each in names:
            setting = self.settings.get(each)
            if setting is not None and setting.default is not None:
                found.append(Synonym(each, setting.default, ConfigSource.DEFAULT_CONFIG))
        return list(dropwhile(lambda synonym: synonym.name != name, found))


def broker_entries(layers: BrokerLayers) -> list[Entry]:
    """Every setting of one broker."""
    given = [*layers.own, *layers.of_all_brokers, *layers.static]
    names = dict.fromkeys([*_shown(layers.settings), *given])
    return [_broker_entry(name, layers.settings.get(base_name(name)), layers.synonyms(name)) for name in names]


def all_brokers_entries(layers: BrokerLayers) -> list[Entry]:
    """What was altered for all brokers."""
    return [
        _broker_entry(
            name,
            layers.settings.get(base_name(name)),
            [Synonym(name, text, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)],
        )
        for name, text in layers.of_all_brokers.items()
    ]


def _broker_entry(name: str, setting: Setting | None, synonyms: Sequence[Synonym]) -> Entry:
    first = synonyms[0] if synonyms else Synonym(name, None, ConfigSource.DEFAULT_CONFIG)
    is_read_only = setting is None or setting.update is UpdateMode.READ_ONLY
    return _entry(name, setting, first.value, first.source, synonyms, is_read_only=is_read_only)


def topic_entries(settings: Mapping[str, Setting], own: Mapping[str, str | None], layers: BrokerLayers) -> list[Entry]:
    """Every setting of a topic as the broker that is asked sees it."""
    entries = []
    for name in dict.fromkeys([*_shown(settings), *own]):
        setting = settings.get(name)
        of_brokers = topic_settings.BROKER_SETTING_OF.get(name)
        synonyms = [] if of_brokers is None else layers.synonyms(of_brokers)
        value = None if of_brokers is None else layers.effective(of_brokers)
        if value is None and setting is not None:
            value = setting.default
        if name in own:
            value = own[name]
            synonyms = [Synonym(name, value, ConfigSource.TOPIC_CONFIG), *synonyms]
        source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
        entries.append(_entry(name, setting, value, source, synonyms))
    return entries


def group_entries(own: Mapping[str, str], values: Mapping[str, str], layers: BrokerLayers) -> list[Entry]:
    """Every setting of a group; `values` are those that hold."""
    entries = []
    for name, setting in GROUP_SETTINGS.items():
        of_brokers = group_settings.BROKER_SETTING_OF.get(name)
        if of_brokers is None:
            synonyms = [Synonym(name, setting.default, ConfigSource.DEFAULT_CONFIG)]
        else:
            synonyms = layers.synonyms(of_brokers)
        if name in own:
            synonyms = [Synonym(name, own[name], ConfigSource.GROUP_CONFIG), *synonyms]
        entries.append(_entry(name, setting, values.get(name), synonyms[0].source, synonyms))
    return entries


def client_metrics_entries(own: Mapping[str, str]) -> list[Entry]:
    """Every setting of a subscription to client metrics."""
    return [
        _entry(
            name,
            setting,
            own.get(name, setting.default),
            ConfigSource.CLIENT_METRICS_CONFIG if name in own else ConfigSource.DEFAULT_CONFIG,
            (),
        )
        for name, setting in CLIENT_METRICS_SETTINGS.items()
    ]


def logger_entries(levels: Mapping[str, str]) -> list[Entry]:
    """The level of every logger (KIP-412)."""
    source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
    return [Entry(name, level, source, ConfigType.UNKNOWN) for name, level in levels.items()]


def only(entries: Iterable[Entry], names: Collection[str] | None) -> list[Entry]:
    """Those that were asked for; all of them where nothing was named."""
    return [entry for entry in entries if not names or entry.name in names]


def _shown(settings: Mapping[str, Setting]) -> list[str]:
    return [name for name, setting in settings.items() if not setting.is_internal]


def _entry(
    name: str,
    setting: Setting | None,
    value: str | None,
    source: ConfigSource,
    synonyms: Sequence[Synonym],
    *,
    is_read_only: bool = False,
) -> Entry:
    """What nobody knows the type of could be a secret, so that it is hidden."""
    is_sensitive = setting is None or setting.is_sensitive
    return Entry(
        name,
        None if is_sensitive else _canonical(setting, value),
        source,
        ConfigType.UNKNOWN if setting is None else setting.type,
        is_read_only,
        is_sensitive,
        [synonym._replace(value=None) for synonym in synonyms] if is_sensitive else synonyms,
        documentation_of(name),
    )


def _canonical(setting: Setting | None, value: str | None) -> str | None:
    if setting is None or value is None:
        return value
    try:
        return setting.canonical(value)
    except InvalidValueError:
        return value  # set in Python, where values of another kind are taken
