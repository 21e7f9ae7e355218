"""The options that Spark passes to the sink and to the source: their names and their values. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from spark_sink.errors import SinkOptionError

_KAFKA: Final = "kafka."


@dataclass(frozen=True)
class OptionNames:
    """The names of options. All but `names` are in lower case, because names are compared that way."""

    names: tuple[str, ...]
    """As documented."""
    refused: Mapping[str, str]
    """Options that are an error unless their value is false, with its message."""
    of_kafka: tuple[str, ...]
    """Settings of the client that are suggested for names that are nearly the same."""
    client: str
    """The client of Kafka that the options `kafka.*` are for."""
    of_spark: frozenset[str] = frozenset()
    """Spark's own options that it passes on."""
    without_effect: frozenset[str] = frozenset()

    def given(self, options: Mapping[str, object]) -> tuple[OptionValues, dict[str, str]]:
        """Return the options, and the settings of the client, which are not checked yet.

        Raises SinkOptionError for an unknown option (with the nearest name), and for one that is refused.
        """
        known = {name.lower() for name in self.names} | self.of_spark
        found: dict[str, str] = {}
        for written, value in options.items():
            name = written.lower()
            if name in found:
                raise SinkOptionError(f"the option {written} is given twice: names are not case-sensitive")
            if name in self.without_effect or (name in self.refused and _is_off(value)):
                continue
            if name in self.refused:
                raise SinkOptionError(self.refused[name])
            if name not in known and not name.startswith(_KAFKA):
                raise SinkOptionError(self._unknown(written))
            found[name] = _as_text(written, value)
        own = {name: value for name, value in found.items() if not name.startswith(_KAFKA)}
        kafka = {name.removeprefix(_KAFKA): value for name, value in found.items() if name.startswith(_KAFKA)}
        return OptionValues(own), kafka

    def _unknown(self, written: str) -> str:
        settings = [f"{_KAFKA}{name}" for name in self.of_kafka]
        by_name = {name.lower(): name for name in (*self.names, *settings)}
        close = difflib.get_close_matches(written.lower(), by_name, n=1)
        if close:
            return f"unknown option {written}; did you mean {by_name[close[0]]}?"
        return f"unknown option {written}; the options are {', '.join(self.names)}, and kafka.* for the {self.client}"


def _is_off(value: object) -> bool:
    return str(value).lower() == "false"


def _as_text(written: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    raise SinkOptionError(
        f"the option {written} must be a string, a number or true or false, not a {type(value).__name__}"
    )


_Choice = TypeVar("_Choice", bound=Enum)


class OptionValues:
    """The given options, by lower-case name; the methods take documented names, and raise SinkOptionError."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def text(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        if value is not None and not value.strip():
            raise SinkOptionError(f"the option {name} is empty; omit it, or give it a value")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise SinkOptionError(f"{name}: {value!r} is not true or false")
        return value.lower() == "true"

    def number(self, name: str, default: int, least: int, most: int = 2**31 - 1) -> int:
        value = self.text(name)
        if value is None:
            return default
        if not (value.isascii() and value.isdecimal()) or not least <= int(value) <= most:
            raise SinkOptionError(f"{name}: {value!r} is not a whole number from {least} to {most}")
        return int(value)

    def one_of(self, name: str, default: _Choice) -> _Choice:
        value = self.text(name)
        if value is None:
            return default
        for choice in type(default):
            if choice.value == value.lower():
                return choice
        raise SinkOptionError(f"{name}: {value!r} is not one of {', '.join(each.value for each in type(default))}")

    def names(self, name: str) -> tuple[str, ...] | None:
        value = self.text(name)
        if value is None:
            return None
        names = tuple(each.strip() for each in value.split(","))
        if not all(names) or len(set(names)) < len(names):
            raise SinkOptionError(f"{name}: {value!r} is not a list of distinct names, separated by commas")
        return names
