"""The error codes in an answer, found by a function that is generated for its type: most answers have none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.error_codes import NO_ERROR

ErrorsOf = Callable[[Any], list[ErrorCode]]


@cache
def errors_of(response_type: type[Any]) -> ErrorsOf:
    """A function that gives every error code of a response of this type but NONE."""
    lines = ["def errors(entity):", "    found = []", *_lines(response_type, "entity", 1), "    return found"]
    names: dict[str, Any] = {"NONE": NO_ERROR}
    exec(compile("\n".join(lines), f"<{__name__}>", "exec"), names)
    made: ErrorsOf = names["errors"]
    return made


def _lines(entity_type: type[Any], value: str, depth: int) -> list[str]:
    indent = "    " * depth
    lines = []
    for member in fields(entity_type):
        field = f"{value}.{member.name}"
        inner, is_array = _inner(member.type)
        if member.metadata.get("kafka_type") == "error_code" and not is_array:
            lines.append(f"{indent}if {field} is not NONE: found.append({field})")
        elif is_dataclass(inner):
            nested = _lines(inner, f"item{depth}", depth + 1)  # type: ignore[arg-type]  # a type, as annotations are
            if nested:
                items = f"{field} or ()" if is_array else f"() if {field} is None else ({field},)"
                lines += [f"{indent}for item{depth} in {items}:", *nested]
    return lines


def _inner(annotation: Any) -> tuple[Any, bool]:
    """What a field holds, and whether it is an array of it."""
    annotation = _without_none(annotation)
    if get_origin(annotation) is tuple:
        return _without_none(get_args(annotation)[0]), True
    return annotation, False


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) not in (UnionType, Union):
        return annotation
    return next(part for part in get_args(annotation) if part is not NoneType)
