"""The OpenAPI 3.1 document, generated from the table that routes and validates requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from http import HTTPStatus
from typing import Any, Final

from dualwrite.broker_emulator.control.endpoint import Endpoint
from dualwrite.broker_emulator.control.shapes import field_kinds, required, schema

_ERROR: Final = {
    "type": "object",
    "description": "An error.",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "string", "description": "The kind of error, for programs."},
                "message": {"type": "string", "description": "A message for people."},
                "known": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "The valid names, where the request has an unknown one.",
                },
            },
            "required": ["code", "message"],
        }
    },
    "required": ["error"],
}
_JSON: Final = "application/json"


@cache
def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the complete document."""
    definitions: dict[str, Any] = {"ErrorResponse": _ERROR}
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.template, {})[endpoint.method.lower()] = _operation(endpoint, definitions)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Control port of the broker emulator",
            "version": "1",
            "description": "Faults, pause points, time, nodes and state of a Kafka broker emulator. An unknown name is "
            "an error that names it.",
        },
        "paths": paths,
        "components": {"schemas": dict(sorted(definitions.items()))},
    }


def _operation(endpoint: Endpoint, definitions: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": _operation_id(endpoint), "summary": endpoint.summary}
    parameters = [
        parameter
        for place in ("path", "query")
        for parameter in _parameters(place, endpoint.shape_of(place), definitions)
    ]
    if parameters:
        operation["parameters"] = parameters
    body = endpoint.shape_of("body")
    if body is not None:
        content = {_JSON: {"schema": schema(body, definitions)}}
        operation["requestBody"] = {"required": bool(required(body)), "content": content}
    operation["responses"] = {
        str(int(endpoint.status)): {"description": endpoint.summary, "content": _success(endpoint, definitions)},
        **{str(int(status)): _error(status) for status in (HTTPStatus.BAD_REQUEST, *endpoint.errors)},
    }
    return operation


def _operation_id(endpoint: Endpoint) -> str:
    words = re.findall(r"[a-z0-9]+", endpoint.template.removeprefix("/v1"))
    return "_".join([endpoint.method.lower(), *(words or ["page"])])


def _parameters(place: str, shape: type | None, definitions: dict[str, Any]) -> list[dict[str, Any]]:
    if shape is None:
        return []
    return [
        {
            "name": name,
            "in": place,
            "required": place == "path" or name in required(shape),
            "schema": schema(kind, definitions),
        }
        for name, kind in field_kinds(shape).items()
    ]


def _success(endpoint: Endpoint, definitions: dict[str, Any]) -> dict[str, Any]:
    if endpoint.content_type != _JSON:
        return {endpoint.content_type: {"schema": {"type": "string"}}}
    return {_JSON: {"schema": schema(endpoint.hints["return"], definitions)}}


def _error(status: HTTPStatus) -> dict[str, Any]:
    content = {_JSON: {"schema": {"$ref": "#/components/schemas/ErrorResponse"}}}
    return {"description": status.phrase, "content": content}
