"""Faults: add, list, wait for, release, remove."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, make_dataclass
from functools import reduce
from http import HTTPStatus
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, get_args, get_type_hints

from dualwrite.broker_emulator.control.endpoint import ControlledEmulator, Endpoint
from dualwrite.broker_emulator.control.errors import bad_request, conflict, not_found
from dualwrite.broker_emulator.control.request_fields import RequestFields, plain
from dualwrite.broker_emulator.control.shapes import TAG, AtLeast, AtMost
from dualwrite.broker_emulator.faults.actions import Action
from dualwrite.broker_emulator.faults.fault import Fault
from dualwrite.broker_emulator.faults.registry import FaultHandle
from dualwrite.broker_emulator.pause_points import PausePoint

_JSON_KINDS: Mapping[str, Any] = {
    "code": Annotated[int | str, "Kafka's number or name of an error, such as 51 or CONCURRENT_TRANSACTIONS."],
    "duration_ms": Annotated[int, AtLeast(0)],
    "after_requests": Annotated[int, AtLeast(0)],
}
"""The JSON types of actions' fields that differ from Python's or have a bound."""


def _shape(action: type[Any]) -> Any:
    """Return the JSON shape of an action: `type`, the name of its class, followed by its own fields."""
    kinds = {**get_type_hints(action), **_JSON_KINDS}
    summary, _, _ = (action.__doc__ or "").partition("\n\n")
    return make_dataclass(
        action.__name__,
        [
            (TAG, Literal[action.__name__]),
            *((each.name, kinds[each.name], field(default=each.default)) for each in fields(action)),
        ],
        namespace={"__doc__": summary},
        frozen=True,
        slots=True,
        kw_only=True,
    )


_ACTIONS: Mapping[str, Callable[..., Action]] = {action.__name__: action for action in get_args(Action)}

# derived at run time, so that an action is declared once; type checkers see Any
if TYPE_CHECKING:
    ActionShape: TypeAlias = Any
else:
    ActionShape = reduce(or_, map(_shape, _ACTIONS.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFault:
    """The requests that the fault selects, and its action on them. An omitted selector accepts every request."""

    action: Annotated[ActionShape | None, "The effect on the requests; without it, they are only counted."] = None
    api: Annotated[str | int | None, "An API's name or key, such as EndTxn or 26."] = None
    point: Annotated[PausePoint | None, "Instead of requests: a coordinator that passes this pause point."] = None
    client_id: str | None = None
    transactional_id: str | None = None
    group: str | None = None
    topic: str | None = None
    partition: Annotated[int, AtLeast(0)] | None = None
    node: Annotated[int, AtLeast(0)] | None = None
    request: Annotated[
        dict[str, Any] | None,
        "The values that fields of the decoded request must have, by Kafka's names in snake case, such as committed or "
        "producer_id; at a pause point, fields of its context.",
    ] = None
    count: Annotated[int | None, "How many matching requests are hit; null: every one until the fault is removed."] = 1
    skip: Annotated[int, AtLeast(0), "How many matching requests pass before the first hit."] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultView:
    """A fault, and its effects so far."""

    fault_id: int
    action: dict[str, Any] | None
    selectors: Annotated[dict[str, Any], "The selectors that were given, with count and skip."]
    hits: Annotated[int, "How many requests were hit, or, without an action, counted."]
    held: Annotated[int, "How many requests, responses or copies are waiting for a release now."]
    unsent: Annotated[int, "How many responses were never sent."]
    is_in_place: Annotated[bool, "Whether the fault may still hit requests."]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultList:
    """Faults in the order in which they were added; the first matching fault with an action decides."""

    faults: tuple[FaultView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsentList:
    """Responses that no client received: responses to copies of requests, and dropped responses."""

    unsent: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """The number of removed faults."""

    removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPath:
    """A fault that was added."""

    fault_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultWait:
    """The conditions to wait for; all that are given must hold."""

    hits: Annotated[int, AtLeast(1), "At least this many requests were hit."] | None = None
    held: Annotated[int, AtLeast(1), "At least this many are waiting for a release."] | None = None
    unsent: Annotated[int, AtLeast(1), "At least this many responses were not sent."] | None = None
    timeout_ms: Annotated[int, AtLeast(0), AtMost(60_000)] = 10_000


_GONE_TIMEOUT_S: Final = 1.0

_SELECTORS = tuple(each.name for each in fields(NewFault) if each.name not in ("action", "request"))


def view(controlled: ControlledEmulator, handle: FaultHandle) -> FaultView:
    """Return the view of a fault."""
    return FaultView(
        fault_id=handle.fault_id,
        action=_shown_action(handle.fault.action),
        selectors=_shown_selectors(handle.fault),
        hits=handle.hits,
        held=handle.held,
        unsent=len(handle.unsent),
        is_in_place=controlled.known_faults.is_in_place(handle),
    )


def _shown_action(action: Action | None) -> dict[str, Any] | None:
    if action is None:
        return None
    return {
        TAG: type(action).__name__,
        **{each.name: plain(getattr(action, each.name)) for each in fields(action)},
    }


def _shown_selectors(fault: Fault) -> dict[str, Any]:
    given = {name: getattr(fault, name) for name in _SELECTORS}
    shown = {name: value for name, value in given.items() if value is not None or name == "count"}
    if isinstance(fault.predicate, RequestFields):
        shown["request"] = dict(fault.predicate.wanted)
    elif fault.predicate is not None:
        shown["predicate"] = "a Python function"
    return shown


async def add(controlled: ControlledEmulator, body: NewFault) -> FaultView:
    try:
        fault = _fault(body)
        return view(controlled, controlled.known_faults.add(fault))
    except ValueError as error:
        raise bad_request(str(error)) from None


def _fault(body: NewFault) -> Fault:
    selectors = {name: getattr(body, name) for name in _SELECTORS}
    wanted = None if body.request is None else RequestFields.of(body.api, body.point, body.request)
    return Fault(action=_action(body.action), predicate=wanted, **selectors)


def _action(shape: Any) -> Action | None:
    if shape is None:
        return None
    arguments = {each.name: getattr(shape, each.name) for each in fields(shape) if each.name != TAG}
    return _ACTIONS[shape.type](**arguments)


async def list_all(controlled: ControlledEmulator) -> FaultList:
    return FaultList(faults=tuple(view(controlled, handle) for handle in controlled.known_faults.all()))


def _find(controlled: ControlledEmulator, path: FaultPath) -> FaultHandle:
    handle = controlled.known_faults.find(path.fault_id)
    if handle is None:
        known = [str(handle.fault_id) for handle in controlled.known_faults.all()]
        raise not_found(f"there is no fault {path.fault_id}", known)
    return handle


async def show(controlled: ControlledEmulator, path: FaultPath) -> FaultView:
    return view(controlled, _find(controlled, path))


async def unsent(controlled: ControlledEmulator, path: FaultPath) -> UnsentList:
    return UnsentList(unsent=tuple(plain(response) for response in _find(controlled, path).unsent))


async def wait(controlled: ControlledEmulator, path: FaultPath, query: FaultWait) -> FaultView:
    handle = _find(controlled, path)
    if query.hits is query.held is query.unsent is None:
        raise bad_request("give at least one condition to wait for", ["hits", "held", "unsent"])

    def is_reached() -> bool:
        return (
            handle.hits >= (query.hits or 0)
            and handle.held >= (query.held or 0)
            and len(handle.unsent) >= (query.unsent or 0)
        )

    try:
        async with asyncio.timeout(query.timeout_ms / 1000):
            await handle.until(is_reached)
    except TimeoutError:
        now = f"{handle.hits} hits, {handle.held} held, {len(handle.unsent)} unsent"
        raise conflict(f"not within {query.timeout_ms} ms; fault {handle.fault_id} has {now}", "not-reached") from None
    return view(controlled, handle)


async def release(controlled: ControlledEmulator, path: FaultPath) -> FaultView:
    handle = _find(controlled, path)
    hits = handle.hits
    handle.release()
    await _until_gone(handle, hits)
    return view(controlled, handle)


async def _until_gone(handle: FaultHandle, hits: int) -> None:
    """Wait until the released requests have continued, so that the view no longer counts them; new ones may arrive."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_GONE_TIMEOUT_S):
            await handle.until(lambda: handle.held == 0 or handle.hits > hits)


async def remove(controlled: ControlledEmulator, path: FaultPath) -> FaultView:
    handle = _find(controlled, path)
    hits = handle.hits
    controlled.known_faults.remove(handle)
    await _until_gone(handle, hits)
    return view(controlled, handle)


async def remove_all(controlled: ControlledEmulator) -> Removed:
    handles = controlled.known_faults.all()
    for handle in handles:
        controlled.known_faults.remove(handle)
    return Removed(removed=len(handles))


_ONE = "/v1/faults/{fault_id}"
_MISSING = (HTTPStatus.NOT_FOUND,)

ENDPOINTS = (
    Endpoint("GET", "/v1/faults", list_all, "All faults, with their hits"),
    Endpoint("POST", "/v1/faults", add, "Put a fault in place", status=HTTPStatus.CREATED),
    Endpoint("DELETE", "/v1/faults", remove_all, "Remove all faults, and release everything that they hold"),
    Endpoint("GET", _ONE, show, "One fault", _MISSING),
    Endpoint("DELETE", _ONE, remove, "Remove a fault, and release everything that it holds", _MISSING),
    Endpoint(
        "GET",
        _ONE + "/wait",
        wait,
        "Wait until a number of requests were hit, are held, or have unsent responses",
        (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT),
    ),
    Endpoint("GET", _ONE + "/unsent", unsent, "The responses that were never sent", _MISSING),
    Endpoint("POST", _ONE + "/release", release, "Release everything that the fault holds now", _MISSING),
)
