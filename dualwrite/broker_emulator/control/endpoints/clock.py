"""The broker's clock: read it, and advance it if it is virtual."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Final, Literal

from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.broker_emulator.control.endpoint import ControlledEmulator, Endpoint
from dualwrite.broker_emulator.control.errors import conflict
from dualwrite.broker_emulator.control.shapes import AtLeast, AtMost

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


def view(controlled: ControlledEmulator) -> ClockView:
    """Return the view of the clock."""
    clock = controlled.cluster.clock
    return ClockView(kind="virtual" if isinstance(clock, VirtualClock) else "system", now_ms=clock.now_ms())


async def show(controlled: ControlledEmulator) -> ClockView:
    return view(controlled)


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
    return view(controlled)


ENDPOINTS = (
    Endpoint("GET", "/v1/clock", show, "The broker's time"),
    Endpoint(
        "POST",
        "/v1/clock/advance",
        advance,
        "Advance a virtual clock; the response is sent after every timer that became due has run",
        (HTTPStatus.CONFLICT,),
    ),
)
