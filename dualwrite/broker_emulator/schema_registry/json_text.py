"""JSON in schemas: read with limits, written in one form."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from dualwrite.broker_emulator.schema_registry.errors import InvalidSchemaError

_LONGEST_PART: Final = 80
_LONGEST_PATH: Final = 240
MAX_DEPTH: Final = 64
"""Maximum depth of types in a schema; deeper schemas are refused."""


def loads(text: str) -> Any:
    """Read JSON. Raises InvalidSchemaError if the text is not JSON, or nested too deep."""
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise InvalidSchemaError(f"the schema is not JSON: {error}") from None


def compact(value: Any, *, sort: bool = False) -> str:
    """Write JSON without white space. Raises InvalidSchemaError if it is nested too deep."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=sort)
    except RecursionError:
        raise InvalidSchemaError("the schema is nested too deep") from None


def same(one: Any, other: Any) -> bool:
    """Return whether two values are the same JSON. Python's `==` is not enough: it says that `true` equals 1."""
    return one == other and compact(one, sort=True) == compact(other, sort=True)


def step(path: str, *parts: str) -> str:
    """Return the path of a part for messages, cut because names can be as long as a request."""
    return "/".join((path, *(part[:_LONGEST_PART] for part in parts)))[-_LONGEST_PATH:]


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:50]} is too large for a number")
    return number


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
