"""The definition of a setting: name, type, default, valid values, and whether a running broker can change it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple, Protocol, TypeAlias


class ConfigType(IntEnum):
    """The types of settings, with their numbers in DescribeConfigs v3+ (KIP-569)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class UpdateMode(StrEnum):
    """Whether a running broker can change a setting (KIP-226), in the terms of Kafka's documentation."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class InvalidValueError(ValueError):
    """A value is invalid for a setting; the message names both."""

    def __init__(self, name: str, value: str | None, reason: str) -> None:
        super().__init__(f"Invalid value {value} for configuration {name}: {reason}")


Value: TypeAlias = bool | int | float | str | list[str]


class Rule(Protocol):
    """A restriction of a setting's values beyond its type."""

    def problem(self, value: Value) -> str | None:
        """Return why a value is invalid, or None."""


class Between(NamedTuple):
    """Numbers from `lowest` to `highest`."""

    lowest: float
    highest: float | None = None

    def problem(self, value: Value) -> str | None:
        assert isinstance(value, int | float)
        if value < self.lowest:
            return f"Value must be at least {self.lowest}"
        if self.highest is not None and value > self.highest:
            return f"Value must be no more than {self.highest}"
        return None


class OneOf(NamedTuple):
    """One of these names, or a list of them."""

    names: tuple[str, ...]
    ignores_case: bool = False

    def problem(self, value: Value) -> str | None:
        given = value if isinstance(value, list) else [str(value)]
        if all(self._is_known(name) for name in given):
            return None
        case = "(case insensitive) " if self.ignores_case else ""
        return f"String must be one of{' ' + case.strip() if case else ''}: {', '.join(self.names)}"

    def _is_known(self, name: str) -> bool:
        if self.ignores_case:
            return name.lower() in (known.lower() for known in self.names)
        return name in self.names


class NotEmpty(NamedTuple):
    """Any text that is not empty."""

    def problem(self, value: Value) -> str | None:
        return None if value else "String must be non-empty"


class BetweenOr(NamedTuple):
    """Numbers of a range, or the one number that means "the default"."""

    lowest: int
    highest: int
    other: int

    def problem(self, value: Value) -> str | None:
        assert isinstance(value, int | float)
        if value == self.other:
            return None
        return Between(self.lowest, self.highest).problem(value)


class ThrottledReplicas(NamedTuple):
    """`*`, or pairs of partition and broker (KIP-73)."""

    def problem(self, value: Value) -> str | None:
        if value in (["*"], []) or all(re.fullmatch(r"[0-9]+:[0-9]+", pair) for pair in _listed(value)):
            return None
        return "it takes '*' or a list [partitionId]:[brokerId],[partitionId]:[brokerId],..."


class OffsetReset(NamedTuple):
    """The initial position of a share group (KIP-932)."""

    def problem(self, value: Value) -> str | None:
        if value in ("earliest", "latest") or re.fullmatch(r"by_duration:P\S+", str(value)):
            return None
        return "The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."


class Setting(NamedTuple):
    """A setting of Kafka. Values are text, as Kafka stores and sends them."""

    name: str
    type: ConfigType
    default: str | None
    rule: Rule | None = None
    update: UpdateMode = UpdateMode.READ_ONLY
    is_internal: bool = False
    """As in Kafka, DescribeConfigs shows an internal setting only if it is set."""

    @property
    def is_sensitive(self) -> bool:
        """Whether its value is never sent."""
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str) -> Value:
        """Parse `text`. Raises InvalidValueError."""
        value = _parsed(self.name, self.type, text.strip())
        problem = None if self.rule is None else self.rule.problem(value)
        if problem is not None:
            shown = "[hidden]" if self.is_sensitive else _wrong_part(self.rule, value)
            raise InvalidValueError(self.name, shown, problem)
        return value

    def canonical(self, text: str) -> str:
        """Return `text` in Kafka's canonical form. Raises InvalidValueError."""
        return text_of(self.parse(text))


def text_of(value: Value) -> str:
    """Return a value in Kafka's form."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value).replace("e+", "E").replace("e", "E")
    return ",".join(value) if isinstance(value, list) else str(value)


def by_name(settings: Iterable[Setting]) -> Mapping[str, Setting]:
    """Return settings by name. Raises ValueError for a duplicate name."""
    table: dict[str, Setting] = {}
    for setting in settings:
        if table.setdefault(setting.name, setting) is not setting:
            raise ValueError(f"{setting.name} is defined twice")
    return table


_WIDTHS: Final = {ConfigType.SHORT: 15, ConfigType.INT: 31, ConfigType.LONG: 63}
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def _parsed(name: str, kind: ConfigType, text: str) -> Value:
    if kind is ConfigType.BOOLEAN:
        if text.lower() not in ("true", "false"):
            raise InvalidValueError(name, text, "Expected value to be either true or false")
        return text.lower() == "true"
    if kind in _WIDTHS:
        number = int(text) if _WHOLE_NUMBER.fullmatch(text) else None
        if number is None or not -(1 << _WIDTHS[kind]) <= number < 1 << _WIDTHS[kind]:
            raise InvalidValueError(name, text, f"Not a number of type {kind.name}")
        return number
    if kind is ConfigType.DOUBLE:
        if not _NUMBER.fullmatch(text):
            raise InvalidValueError(name, text, f"Not a number of type {kind.name}")
        return float(text)
    if kind is ConfigType.LIST:
        return [part.strip() for part in text.split(",")] if text else []
    return text


def _listed(value: Value) -> list[str]:
    return value if isinstance(value, list) else [text_of(value)]


def _wrong_part(rule: Rule | None, value: Value) -> str:
    """Return the first invalid element of a list, or the value itself."""
    if isinstance(value, list) and isinstance(rule, OneOf):
        return next(part for part in value if rule.problem([part]) is not None)
    return f"[{', '.join(value)}]" if isinstance(value, list) else text_of(value)
