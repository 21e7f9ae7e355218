"""The HTTP server of the registry: routes a request to its endpoint, and gives errors Confluent's form."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl

from dualwrite.broker_emulator.control.endpoint import Routes
from dualwrite.broker_emulator.control.errors import ControlError, bad_request
from dualwrite.broker_emulator.control.http_connection import JSON, HttpRequest, HttpResponse
from dualwrite.broker_emulator.control.http_server import HttpServer
from dualwrite.broker_emulator.schema_registry.endpoints import ENDPOINTS, RegistryEndpoint
from dualwrite.broker_emulator.schema_registry.errors import RegistryError
from dualwrite.broker_emulator.schema_registry.request import Body, Query
from dualwrite.broker_emulator.schema_registry.service import RegistryService

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
ROUTES: Final = Routes(ENDPOINTS)

_TAKEN: Final = (CONTENT_TYPE, "application/vnd.schemaregistry+json", JSON, "application/octet-stream", "")
_MAX_PARAMETERS: Final = 50


class SchemaRegistryServer(HttpServer):
    """Listens on one address."""

    def __init__(self, service: RegistryService, own_names: Collection[str]) -> None:
        super().__init__("the schema registry", own_names, _error_response)
        self._service = service

    def close(self) -> None:
        """Stop listening, close all connections, and abandon the running decision."""
        super().close()
        self._service.stop()

    async def respond(self, request: HttpRequest) -> HttpResponse:
        """Serve one request. Raises ControlError if it is not part of this API; other errors become responses."""
        self.check_origin(request)
        path, _, query = request.target.partition("?")
        endpoint, named = _find(request.method, path)
        try:
            if endpoint.operation is not None:
                self._service.check_access(request.peer_host, endpoint.operation)
            inputs = _inputs(endpoint, named, query, request)
            return _response(HTTPStatus.OK, await endpoint.handle(self._service, **inputs))
        except RegistryError as error:
            return _response(HTTPStatus(error.status), {"error_code": error.code, "message": error.message})


def _response(status: HTTPStatus, body: Any, headers: Mapping[str, str] | None = None) -> HttpResponse:
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    return HttpResponse(status, CONTENT_TYPE, text.encode("utf-8", "replace"), headers or {})


def _error_response(error: ControlError, headers: Mapping[str, str]) -> HttpResponse:
    return _response(error.status, {"error_code": int(error.status), "message": error.message}, headers)


def _find(method: str, path: str) -> tuple[RegistryEndpoint, dict[str, str]]:
    try:
        found = ROUTES.at(path if path == "/" else path.removesuffix("/"))
    except UnicodeDecodeError:
        raise bad_request(f"the path {path} is not UTF-8") from None
    if not found:
        raise ControlError(HTTPStatus.NOT_FOUND, "unknown-path", f"HTTP 404 Not Found: this registry has no {path}")
    chosen = found.get("GET" if method == "HEAD" else method)
    if chosen is None:
        message = f"HTTP 405 Method Not Allowed: {path} supports {', '.join(found)}"
        raise ControlError(HTTPStatus.METHOD_NOT_ALLOWED, "wrong-method", message)
    return chosen


def _inputs(endpoint: RegistryEndpoint, named: Mapping[str, str], query: str, request: HttpRequest) -> dict[str, Any]:
    inputs: dict[str, Any] = {}
    if "path" in endpoint.hints:
        inputs["path"] = named
    if "query" in endpoint.hints:
        inputs["query"] = _query(query)
    if "body" in endpoint.hints:
        inputs["body"] = _body(request)
    return inputs


def _query(query: str) -> Query:
    try:
        return Query(parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=_MAX_PARAMETERS))
    except ValueError as error:
        raise bad_request(f"the query must be name=value&...: {error}") from None


def _body(request: HttpRequest) -> Body:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type not in _TAKEN:
        message = f"a body needs the header Content-Type: {CONTENT_TYPE}, not {content_type!r:.100}"
        raise ControlError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", message)
    try:
        given = json.loads(request.body.decode() or "{}")
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise bad_request("the body must be a JSON object")
    return Body(given)
