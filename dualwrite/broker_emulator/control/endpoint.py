"""The table of endpoints: one `Endpoint` per method and path, for routing, validation and the OpenAPI document.

Endpoints operate on a `ControlledEmulator`: a running emulator, and the faults that clients may still query.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from http import HTTPStatus
from typing import Any, Final, Generic, TypeVar, get_type_hints
from urllib.parse import unquote

from dualwrite.broker_emulator.cluster.cluster import Cluster
from dualwrite.broker_emulator.cluster.operations import Operations
from dualwrite.broker_emulator.faults.fault import Fault
from dualwrite.broker_emulator.faults.registry import FaultHandle, Faults

MAX_USED_UP: Final = 1000


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


E = TypeVar("E", bound=Endpoint)


class Routes(Generic[E]):
    """All endpoints, found by path."""

    def __init__(self, endpoints: Sequence[E]) -> None:
        self.endpoints = tuple(endpoints)

    @property
    def templates(self) -> list[str]:
        """The path templates of all endpoints."""
        return list(dict.fromkeys(endpoint.template for endpoint in self.endpoints))

    def at(self, path: str) -> dict[str, tuple[E, dict[str, str]]]:
        """Return the endpoints of a path by method, each with its path values. Raises UnicodeDecodeError."""
        parts = path.split("/")
        found = ((endpoint, endpoint.match(parts)) for endpoint in self.endpoints)
        return {endpoint.method: (endpoint, named) for endpoint, named in found if named is not None}


class KnownFaults:
    """Faults by id: all live ones, and those added over HTTP until they are removed."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._added: dict[int, FaultHandle] = {}

    def add(self, fault: Fault) -> FaultHandle:
        """Put a fault in place; if too many are known, forget the oldest spent one.

        Raises ValueError for a fault that can never select a request or have an effect.
        """
        handle = self._faults.add(fault)
        self._added[handle.fault_id] = handle
        if len(self._added) > MAX_USED_UP:
            live = set(self._faults.live)
            oldest = next((other for other in self._added.values() if other not in live), None)
            if oldest is not None:
                del self._added[oldest.fault_id]
        return handle

    def all(self) -> list[FaultHandle]:
        """Return every known fault, in the order in which they were added."""
        known = {**self._added, **{handle.fault_id: handle for handle in self._faults.live}}
        return [known[fault_id] for fault_id in sorted(known)]

    def find(self, fault_id: int) -> FaultHandle | None:
        """Return the fault with this id, or None if it is unknown."""
        return next((handle for handle in self.all() if handle.fault_id == fault_id), None)

    def remove(self, handle: FaultHandle) -> None:
        """Remove a fault, release the requests that it holds, and forget it."""
        self._added.pop(handle.fault_id, None)
        handle.remove()

    def is_in_place(self, handle: FaultHandle) -> bool:
        """Return whether the fault may still hit requests."""
        return handle in self._faults.live and not handle.is_spent


@dataclass(slots=True)
class ControlledEmulator:
    """One running emulator. Use it in the emulator's event loop only."""

    cluster: Cluster
    operations: Operations
    bootstrap_servers: str
    start_node: Callable[[int], Awaitable[None]]
    known_faults: KnownFaults = field(init=False)

    def __post_init__(self) -> None:
        self.known_faults = KnownFaults(self.cluster.faults)
