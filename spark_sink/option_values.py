"""Options of a sink or a source, by their documented names, read as what they are meant to be."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from spark_sink.errors import SinkOptionError

_Choice = TypeVar("_Choice", bound=Enum)


class OptionValues:
    """Given options, by lower-case names; asked for by their documented ones. Raises SinkOptionError."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def text(self, name: str) -> str | None:
        value = self._given.get(name.lower())
        if value is not None and not value.strip():
            raise SinkOptionError(f"the option {name} is empty; leave it out, or give a value")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise SinkOptionError(f"{name}: {value!r} is not true or false")
        return value.lower() == "true"

    def number(self, name: str, default: int, least: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        if not (value.isascii() and value.isdecimal()) or not least <= int(value) < 2**31:
            raise SinkOptionError(f"{name}: {value!r} is not a whole number from {least} to {2**31 - 1}")
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
            raise SinkOptionError(f"{name}: {value!r} is not a list of different names, with commas in between")
        return names
