"""The table of endpoints: one `Endpoint` per method and path, for routing, validation and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Any, get_type_hints
from urllib.parse import unquote


@dataclass(frozen=True, slots=True)
class Content:
    """A response that is not JSON."""

    content_type: str
    body: bytes


@dataclass(frozen=True)
class Endpoint:
    """One method of one path.

    `handle` takes the controlled emulator and any of `path`, `query` and `body`; its annotations define the shapes of
    these and of the response. A GET changes nothing, so it is cancelled when its client disconnects.
    """

    method: str
    template: str
    """The path, with the fields of `path` in braces."""
    handle: Callable[..., Awaitable[Any]]
    summary: str
    errors: Sequence[HTTPStatus] = ()
    """Error statuses besides 400 for an invalid request."""
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "application/json"

    @cached_property
    def hints(self) -> Mapping[str, Any]:
        """The annotations of `handle`."""
        return get_type_hints(self.handle, include_extras=True)

    def shape_of(self, name: str) -> type | None:
        """Return the dataclass of `path`, `query` or `body`, or None if `handle` has no such parameter."""
        shape: type | None = self.hints.get(name)
        return shape

    @cached_property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.template.split("/"))

    def match(self, parts: Sequence[str]) -> dict[str, str] | None:
        """Return the values of the names in braces, or None if the path does not match."""
        if len(parts) != len(self.parts):
            return None
        named: dict[str, str] = {}
        for expected, part in zip(self.parts, parts, strict=True):
            if expected.startswith("{") and part:
                named[expected[1:-1]] = unquote(part, errors="strict")
            elif expected != part:
                return None
        return named


class Routes:
    """All endpoints, found by path."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints = tuple(endpoints)

    @property
    def templates(self) -> list[str]:
        """The path templates of all endpoints."""
        return list(dict.fromkeys(endpoint.template for endpoint in self.endpoints))

    def at(self, path: str) -> dict[str, tuple[Endpoint, dict[str, str]]]:
        """Return the endpoints of a path by method, each with its path values. Raises UnicodeDecodeError."""
        parts = path.split("/")
        found = ((endpoint, endpoint.match(parts)) for endpoint in self.endpoints)
        return {endpoint.method: (endpoint, named) for endpoint, named in found if named is not None}
