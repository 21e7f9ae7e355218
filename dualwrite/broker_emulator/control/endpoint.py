"""What can be asked, as a table: one `Endpoint` per method and path, from which is routed, checked and described."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Any, get_type_hints
from urllib.parse import unquote


@dataclass(frozen=True, slots=True)
class Content:
    """An answer that is no JSON."""

    content_type: str
    body: bytes


@dataclass(frozen=True)
class Endpoint:
    """One thing that can be asked.

    `handle` takes the controlled emulator and any of `path`, `query` and `body`; what these hold and what is answered
    is said by its annotations. A GET changes nothing, so it is given up when its client is gone.
    """

    method: str
    template: str
    """The path, with the names of `path` in braces."""
    handle: Callable[..., Awaitable[Any]]
    summary: str
    errors: Sequence[HTTPStatus] = ()
    """What may be answered instead, beside 400 for what is not understood."""
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "application/json"

    @cached_property
    def hints(self) -> Mapping[str, Any]:
        """The annotations of `handle`."""
        return get_type_hints(self.handle, include_extras=True)

    def takes(self, name: str) -> type | None:
        """The dataclass of `path`, `query` or `body`; None where it takes none."""
        shape: type | None = self.hints.get(name)
        return shape

    @cached_property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.template.split("/"))

    def match(self, parts: Sequence[str]) -> dict[str, str] | None:
        """What the path says for the names in braces; None where it is not this one."""
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
    """All endpoints."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.endpoints = tuple(endpoints)

    @property
    def templates(self) -> list[str]:
        """Every path that there is."""
        return list(dict.fromkeys(endpoint.template for endpoint in self.endpoints))

    def at(self, path: str) -> dict[str, tuple[Endpoint, dict[str, str]]]:
        """What can be asked at a path, by method. Raises UnicodeDecodeError for a path that is no UTF-8."""
        parts = path.split("/")
        found = ((endpoint, endpoint.match(parts)) for endpoint in self.endpoints)
        return {endpoint.method: (endpoint, named) for endpoint, named in found if named is not None}
