"""JSON in schemas: read with limits, written in one form."""

from __future__ import annotations

import json
from typing import Any, Final

from dualwrite.broker_emulator.schema_registry.errors import InvalidSchemaError

MAX_DEPTH: Final = 64
"""How deep types may be nested in a schema; deeper ones are refused rather than followed."""


def loads(text: str) -> Any:
    """Read JSON. Raises InvalidSchemaError if it is none, or nested too deep."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidSchemaError(f"the schema is not JSON: {error}") from None


def compact(value: Any, *, sort: bool = False) -> str:
    """Write JSON without white space. Raises InvalidSchemaError if it is nested too deep."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=sort)
    except RecursionError:
        raise InvalidSchemaError("the schema is nested too deep") from None


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
