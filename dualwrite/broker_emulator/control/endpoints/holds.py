"""Pause points: hold one, wait until somebody is there, release."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, fields
from http import HTTPStatus
from typing import Annotated, Any

from dualwrite.broker_emulator.control.controlled import Controlled
from dualwrite.broker_emulator.control.endpoint import Endpoint
from dualwrite.broker_emulator.control.errors import conflict, not_found
from dualwrite.broker_emulator.control.shapes import AtLeast, AtMost
from dualwrite.broker_emulator.pause_points import Hold, PausePoint, match_all


@dataclass(frozen=True, slots=True, kw_only=True)
class NewHold:
    """Which pause point is held, and for whom. A selector that is not given accepts everything."""

    point: PausePoint
    transactional_id: str | None = None
    producer_id: int | None = None
    topic: str | None = None
    partition: int | None = None
    node: Annotated[int | None, "The node that the coordinator, or the partition's leader, is on."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldView:
    """A held pause point."""

    hold_id: int
    point: PausePoint
    selectors: Annotated[dict[str, Any], "Those that were given."]
    hits: Annotated[int, "How often it was reached."]
    waiting: Annotated[int, "How many wait there at this moment."]


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldList:
    """The pause points that are held, and all that there are."""

    holds: tuple[HoldView, ...]
    points: Annotated[tuple[PausePoint, ...], "All, in the order in which one transaction meets them."]


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldPath:
    """A held pause point."""

    hold_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldWait:
    """How often it was reached, and how long that may take."""

    hits: Annotated[int, AtLeast(1)] = 1
    timeout_ms: Annotated[int, AtLeast(0), AtMost(60_000)] = 10_000


@dataclass(frozen=True, slots=True)
class ContextMatch:
    """Accepts contexts in which each of these has this value."""

    wanted: Mapping[str, Any]

    def __call__(self, context: Mapping[str, Any]) -> bool:
        return all(context.get(_IN_CONTEXT.get(name, name)) == value for name, value in self.wanted.items())


_IN_CONTEXT = {"node": "node_id"}


def view(hold: Hold) -> HoldView:
    """A held pause point as it is shown."""
    selectors: dict[str, Any] = {}
    if isinstance(hold.match, ContextMatch):
        selectors = dict(hold.match.wanted)
    elif hold.match is not match_all:
        selectors = {"predicate": "a function of the test's own"}
    return HoldView(hold_id=hold.hold_id, point=hold.point, selectors=selectors, hits=hold.hits, waiting=hold.waiting)


async def add(controlled: Controlled, body: NewHold) -> HoldView:
    given = {field.name: getattr(body, field.name) for field in fields(body) if field.name != "point"}
    wanted = {name: value for name, value in given.items() if value is not None}
    return view(controlled.cluster.pause_points.hold(body.point, ContextMatch(wanted)))


async def list_all(controlled: Controlled) -> HoldList:
    return HoldList(holds=tuple(view(hold) for hold in controlled.cluster.pause_points.holds), points=tuple(PausePoint))


def _find(controlled: Controlled, path: HoldPath) -> Hold:
    holds = {hold.hold_id: hold for hold in controlled.cluster.pause_points.holds}
    if path.hold_id not in holds:
        raise not_found(f"there is no hold {path.hold_id}: it was released, or never made", map(str, holds))
    return holds[path.hold_id]


async def show(controlled: Controlled, path: HoldPath) -> HoldView:
    return view(_find(controlled, path))


async def wait(controlled: Controlled, path: HoldPath, query: HoldWait) -> HoldView:
    hold = _find(controlled, path)
    try:
        async with asyncio.timeout(query.timeout_ms / 1000):
            await hold.until_hit(query.hits)
    except TimeoutError:
        now = f"was reached {hold.hits} times"
        raise conflict(f"not within {query.timeout_ms} ms; {hold.point} {now}", "not-reached") from None
    return view(hold)


async def release(controlled: Controlled, path: HoldPath) -> HoldView:
    hold = _find(controlled, path)
    hold.release()
    await asyncio.sleep(0)  # who waited there has gone when this is answered
    return view(hold)


_ONE = "/v1/holds/{hold_id}"
_MISSING = (HTTPStatus.NOT_FOUND,)

ENDPOINTS = (
    Endpoint("GET", "/v1/holds", list_all, "The pause points that are held, and all that there are"),
    Endpoint("POST", "/v1/holds", add, "Hold everybody who reaches a pause point", status=HTTPStatus.CREATED),
    Endpoint("GET", _ONE, show, "One held pause point", _MISSING),
    Endpoint("GET", _ONE + "/wait", wait, "Wait until it was reached", (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)),
    Endpoint("POST", _ONE + "/release", release, "Let everybody go who waits there, now and later", _MISSING),
)
