"""The parts of a request, each checked when it is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dualwrite.broker_emulator.schema_registry import errors
from dualwrite.broker_emulator.schema_registry.decisions import Proposed
from dualwrite.broker_emulator.schema_registry.errors import InvalidSchemaError, RegistryError
from dualwrite.broker_emulator.schema_registry.schemas import AVRO, KINDS, Reference, Schema

MAX_REFERENCES: Final = 100


class Query:
    """The parameters of the query. Unknown ones are ignored, as in Confluent's registry."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._given = dict(pairs)

    def flag(self, name: str) -> bool:
        """Return whether the parameter is "true", in upper or lower case."""
        return self.text(name).lower() == "true"

    def text(self, name: str) -> str:
        """Return the text of a parameter, empty by default."""
        return self._given.get(name, "")

    def number(self, name: str, default: int) -> int:
        """Return a parameter as a number, or the default if it is missing or not a number."""
        try:
            return int(self._given[name][:12])
        except (KeyError, ValueError):
            return default


class Body:
    """The JSON object of the body. A null value counts as missing."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = {name: value for name, value in given.items() if value is not None}

    def get(self, name: str) -> Any:
        """Return a value, or None."""
        return self._given.get(name)

    def check_only(self, name: str, what: str) -> None:
        """Raise RegistryError if the body has any other key."""
        others = sorted(self._given.keys() - {name})
        if others:
            message = f"{what} can only be {name!r} here, and not {others[0][:50]!r}; nothing was changed"
            raise RegistryError(errors.NOT_PERMITTED, message)


def proposed(body: Body) -> Proposed:
    """Return the schema of a body. Raises RegistryError."""
    for name in ("ruleSet", "metadata"):
        if body.get(name):
            raise RegistryError(errors.INVALID_RULE_SET, f"this registry has no {name}; nothing was registered")
    kind, text = body.get("schemaType") or AVRO, body.get("schema")
    if kind not in KINDS:
        raise InvalidSchemaError(f"the schemaType {kind!r:.50} is none of {', '.join(KINDS)}")
    if not isinstance(text, str) or not text.strip():
        raise InvalidSchemaError("the request has no schema, which is a text")
    return Proposed(Schema(kind, text, _references(body.get("references") or [])), _whole(body, "version"), _id(body))


def _id(body: Body) -> int | None:
    number = _whole(body, "id")
    return None if number == -1 else number


def _whole(body: Body, name: str) -> int | None:
    number = body.get(name)
    if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
        raise RegistryError(errors.INVALID_VERSION, f"the {name} {number!r:.50} is not a number")
    return number


def _references(given: Any) -> tuple[Reference, ...]:
    if not isinstance(given, list) or len(given) > MAX_REFERENCES:
        raise InvalidSchemaError(f"the references are a list of at most {MAX_REFERENCES}")
    return tuple(_reference(each) for each in given)


def _reference(given: Any) -> Reference:
    if not isinstance(given, dict):
        raise InvalidSchemaError("a reference is an object with name, subject and version")
    name, subject, version = given.get("name"), given.get("subject"), given.get("version")
    if not isinstance(name, str) or not isinstance(subject, str) or not isinstance(version, int):
        raise InvalidSchemaError("a reference is an object with a name and a subject, which are texts, and a version")
    return Reference(name, subject, version)
