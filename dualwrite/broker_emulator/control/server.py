"""The server of the control port: route a request to its endpoint, validate its inputs, send the response.

It runs in the emulator's own event loop, so no state changes between a check and the action that relies on it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl

from dualwrite.broker_emulator.control.endpoint import Content, ControlledEmulator, Endpoint, Routes
from dualwrite.broker_emulator.control.endpoints import ENDPOINTS
from dualwrite.broker_emulator.control.errors import ControlError, bad_request
from dualwrite.broker_emulator.control.http_connection import (
    JSON,
    HttpRequest,
    HttpResponse,
    error_response,
)
from dualwrite.broker_emulator.control.http_server import HttpServer
from dualwrite.broker_emulator.control.shapes import ShapeError, is_long, read, read_texts, write
from dualwrite.broker_emulator.log.segments import StorageError
from dualwrite.broker_emulator.text import did_you_mean

MAX_IN_PROGRESS: Final = 96
"""The number of requests that may wait at the same time, leaving connections for health checks and short requests."""
HEALTH: Final = "/v1/health"

ROUTES: Final = Routes(ENDPOINTS)


class ControlServer(HttpServer):
    """Listens on one address."""

    def __init__(self, controlled: ControlledEmulator, own_names: Collection[str]) -> None:
        super().__init__("the control port", own_names)
        self._controlled = controlled
        self._in_progress = 0

    async def respond(self, request: HttpRequest) -> HttpResponse:
        """Serve one request. Raises ControlError for an invalid or impossible request."""
        self.check_origin(request)
        path, _, query = request.target.partition("?")
        endpoint, named = _find(request.method, path)
        if isinstance(endpoint, HttpResponse):
            return endpoint
        inputs = _inputs(endpoint, named, query, request)
        result = await self._handled(endpoint, inputs)
        if isinstance(result, Content):
            return HttpResponse(endpoint.status, result.content_type, result.body)
        body = await asyncio.to_thread(_encoded, result) if is_long(result) else _encoded(result)
        return HttpResponse(endpoint.status, JSON, body)

    async def _handled(self, endpoint: Endpoint, inputs: Mapping[str, Any]) -> Any:
        """Return the result of a request. Limits waiting requests, which would use up all connections."""
        if self._in_progress >= MAX_IN_PROGRESS and endpoint.template != HEALTH:
            raise ControlError(HTTPStatus.SERVICE_UNAVAILABLE, "busy", "too many requests are waiting")
        self._in_progress += 1
        try:
            return await endpoint.handle(self._controlled, **inputs)
        except StorageError as error:
            raise ControlError(HTTPStatus.INSUFFICIENT_STORAGE, "storage", str(error)) from None
        finally:
            self._in_progress -= 1


def _encoded(result: Any) -> bytes:
    return json.dumps(write(result), ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _find(method: str, path: str) -> tuple[Endpoint | HttpResponse, dict[str, str]]:
    try:
        found = ROUTES.at(path)
    except UnicodeDecodeError:
        raise bad_request(f"the path {path} is not UTF-8") from None
    if not found:
        templates = ROUTES.templates
        message = f"unknown path {path}{did_you_mean(path, templates)}"
        raise ControlError(HTTPStatus.NOT_FOUND, "unknown-path", message, templates)
    allowed = [*found, *(["HEAD"] if "GET" in found else [])]
    chosen = found.get("GET" if method == "HEAD" else method)
    if chosen is None:
        message = f"{path} supports {', '.join(allowed)}, not {method}"
        error = ControlError(HTTPStatus.METHOD_NOT_ALLOWED, "wrong-method", message, allowed)
        return error_response(error, {"Allow": ", ".join(allowed)}), {}
    return chosen


def _inputs(endpoint: Endpoint, named: Mapping[str, str], query: str, request: HttpRequest) -> dict[str, Any]:
    try:
        inputs = _texts(endpoint, named, query)
        shape = endpoint.shape_of("body")
        if shape is not None:
            inputs["body"] = read(shape, _json(request))
        elif request.body:
            raise bad_request(f"{request.method} {endpoint.template} has no body")
    except ShapeError as error:
        raise bad_request(str(error), error.known) from None
    return inputs


def _texts(endpoint: Endpoint, named: Mapping[str, str], query: str) -> dict[str, Any]:
    inputs: dict[str, Any] = {}
    path_shape, query_shape = endpoint.shape_of("path"), endpoint.shape_of("query")
    if path_shape is not None:
        inputs["path"] = read_texts(path_shape, named, "path")
    parameters = _parameters(query)
    if query_shape is not None:
        inputs["query"] = read_texts(query_shape, parameters, "query")
    elif parameters:
        raise bad_request(
            f"{endpoint.template} has no query parameters: {', '.join(map(repr, parameters))} is not known"
        )
    return inputs


def _parameters(query: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict", max_num_fields=50)
    except ValueError as error:
        raise bad_request(f"the query must be name=value&...: {error}") from None
    for name, value in pairs:
        if name in parameters:
            raise bad_request(f"the query names {name!r} twice")
        parameters[name] = value
    return parameters


def _json(request: HttpRequest) -> Any:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.body and content_type != JSON:
        message = f"a body needs the header Content-Type: {JSON} (curl --json), not {content_type or 'nothing'!r}"
        raise ControlError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", message)
    if not request.body:
        return {}
    try:
        return json.loads(request.body.decode(), object_pairs_hook=_no_name_twice, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}", code="malformed-json") from None


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read_object = dict(pairs)
    if len(read_object) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return read_object


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")
