"""Time as a test controls it: the broker's clock, advanced if it is virtual, and pause points, held and released."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.broker_emulator.control.endpoint import ControlledEmulator, Endpoint
from dualwrite.broker_emulator.control.errors import conflict, not_found
from dualwrite.broker_emulator.control.shapes import AtLeast, AtMost
from dualwrite.broker_emulator.pause_points import Hold, PausePoint, match_all


@dataclass(frozen=True, slots=True, kw_only=True)
class NewHold:
    """The pause point to hold, and the transactions to hold there. An omitted selector accepts every transaction."""

    point: PausePoint
    transactional_id: str | None = None
    producer_id: int | None = None
    topic: str | None = None
    partition: int | None = None
    node: Annotated[int | None, "The node of the coordinator, or of the partition's leader."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldView:
    """A held pause point."""

    hold_id: int
    point: PausePoint
    selectors: Annotated[dict[str, Any], "The selectors that were given."]
    hits: Annotated[int, "How often it was reached."]
    waiting: Annotated[int, "How many are waiting there now."]


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldList:
    """The held pause points, and the names of all pause points."""

    holds: tuple[HoldView, ...]
    points: Annotated[tuple[PausePoint, ...], "All, in the order in which a transaction passes them."]


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldPath:
    """A held pause point."""

    hold_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldWait:
    """The number of times that the pause point must be reached, and the time limit."""

    hits: Annotated[int, AtLeast(1)] = 1
    timeout_ms: Annotated[int, AtLeast(0), AtMost(60_000)] = 10_000


@dataclass(frozen=True, slots=True)
class ContextMatch:
    """A predicate: each of these names has this value in the context of a pause point."""

    wanted: Mapping[str, Any]

    def __call__(self, context: Mapping[str, Any]) -> bool:
        return all(context.get(_IN_CONTEXT.get(name, name)) == value for name, value in self.wanted.items())


_IN_CONTEXT = {"node": "node_id"}


def hold_view(hold: Hold) -> HoldView:
    """Return the view of a held pause point."""
    selectors: dict[str, Any] = {}
    if isinstance(hold.match, ContextMatch):
        selectors = dict(hold.match.wanted)
    elif hold.match is not match_all:
        selectors = {"predicate": "a Python function"}
    return HoldView(hold_id=hold.hold_id, point=hold.point, selectors=selectors, hits=hold.hits, waiting=hold.waiting)


async def add(controlled: ControlledEmulator, body: NewHold) -> HoldView:
    given = {field.name: getattr(body, field.name) for field in fields(body) if field.name != "point"}
    wanted = {name: value for name, value in given.items() if value is not None}
    return hold_view(controlled.cluster.pause_points.hold(body.point, ContextMatch(wanted)))


async def list_holds(controlled: ControlledEmulator) -> HoldList:
    return HoldList(
        holds=tuple(hold_view(hold) for hold in controlled.cluster.pause_points.holds), points=tuple(PausePoint)
    )


def _find_hold(controlled: ControlledEmulator, path: HoldPath) -> Hold:
    holds = {hold.hold_id: hold for hold in controlled.cluster.pause_points.holds}
    if path.hold_id not in holds:
        raise not_found(f"there is no hold {path.hold_id}: it was released, or never existed", map(str, holds))
    return holds[path.hold_id]


async def show_hold(controlled: ControlledEmulator, path: HoldPath) -> HoldView:
    return hold_view(_find_hold(controlled, path))


async def wait(controlled: ControlledEmulator, path: HoldPath, query: HoldWait) -> HoldView:
    hold = _find_hold(controlled, path)
    try:
        async with asyncio.timeout(query.timeout_ms / 1000):
            await hold.until_hit(query.hits)
    except TimeoutError:
        message = f"not within {query.timeout_ms} ms; {hold.point} was reached {hold.hits} times"
        raise conflict(message, "not-reached") from None
    return hold_view(hold)


async def release(controlled: ControlledEmulator, path: HoldPath) -> HoldView:
    hold = _find_hold(controlled, path)
    hold.release()
    await asyncio.sleep(0)  # all held tasks have continued when the response is sent
    return hold_view(hold)


_ONE = "/v1/holds/{hold_id}"
_MISSING = (HTTPStatus.NOT_FOUND,)


_STEP_MS: Final = 600_000
_SLICE_S: Final = 0.005
"""The virtual and the real time that pass before clients, and work started by timers, are served in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockView:
    """The broker's time."""

    kind: Annotated[Literal["system", "virtual"], "A virtual clock stands still until it is advanced."]
    now_ms: Annotated[int, "Milliseconds since the Unix epoch."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """How far to advance the clock."""

    duration_ms: Annotated[int, AtLeast(0), AtMost(366 * 86_400_000)]


def clock_view(controlled: ControlledEmulator) -> ClockView:
    """Return the view of the clock."""
    clock = controlled.cluster.clock
    return ClockView(kind="virtual" if isinstance(clock, VirtualClock) else "system", now_ms=clock.now_ms())


async def show_clock(controlled: ControlledEmulator) -> ClockView:
    return clock_view(controlled)


async def advance(controlled: ControlledEmulator, body: Advance) -> ClockView:
    clock = controlled.cluster.clock
    if not isinstance(clock, VirtualClock):
        raise conflict("the clock is the machine's; only a virtual clock (--clock virtual) can be advanced")
    served_ms, served_s = clock.now_ms(), time.monotonic()
    for _ in clock.passing(body.duration_ms):
        if clock.now_ms() - served_ms >= _STEP_MS or time.monotonic() - served_s >= _SLICE_S:
            await asyncio.sleep(0)
            served_ms, served_s = clock.now_ms(), time.monotonic()
    await asyncio.sleep(0)
    return clock_view(controlled)


ENDPOINTS = (
    Endpoint("GET", "/v1/holds", list_holds, "The held pause points, and the names of all"),
    Endpoint(
        "POST", "/v1/holds", add, "Hold a pause point: block everything that reaches it", status=HTTPStatus.CREATED
    ),
    Endpoint("GET", _ONE, show_hold, "One held pause point", _MISSING),
    Endpoint(
        "GET",
        _ONE + "/wait",
        wait,
        "Wait until a held pause point is reached",
        (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT),
    ),
    Endpoint(
        "POST",
        _ONE + "/release",
        release,
        "Release a pause point for everything that waits there or reaches it later",
        _MISSING,
    ),
    Endpoint("GET", "/v1/clock", show_clock, "The broker's time"),
    Endpoint(
        "POST",
        "/v1/clock/advance",
        advance,
        "Advance a virtual clock; the response is sent after every timer that became due has run",
        (HTTPStatus.CONFLICT,),
    ),
)
