"""Pause points: named instants inside the broker at which a test can hold a request or a coordinator.

A point that is not held costs one attribute read. Points are named by the members of `PausePoint`; `docs/` and the
tests of faults use the same names.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class ConditionNotifier:
    """State that changes, and the tasks that wait for a condition on it. Runs in the emulator's loop."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def notify(self) -> None:
        """Make every waiting task check its condition again; call after a change."""
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, is_reached: Callable[[], bool]) -> None:
        """Wait until `is_reached` returns true; it is called again after every change."""
        while not is_reached():
            changed = asyncio.get_running_loop().create_future()
            self._waiting.append(changed)
            await changed


class PausePoint(StrEnum):
    """The points at which a broker can be held, in the order in which a transaction passes them."""

    BEFORE_VERIFICATION = "before-verification"  # a partition leader is about to ask the coordinator (KIP-890)
    AFTER_VERIFICATION = "after-verification"  # it has the response and has not appended yet
    BEFORE_STATE_APPEND = "before-state-append"  # Empty or Ongoing record
    AFTER_STATE_APPEND = "after-state-append"
    BEFORE_PREPARE_APPEND = "before-prepare-append"
    AFTER_PREPARE_APPEND = "after-prepare-append"
    BEFORE_MARKER = "before-marker"  # one partition's marker; context holds topic and partition
    AFTER_MARKER = "after-marker"
    BEFORE_COMPLETE_APPEND = "before-complete-append"
    AFTER_COMPLETE_APPEND = "after-complete-append"
    BEFORE_TOMBSTONE_APPEND = "before-tombstone-append"  # the id has expired
    BEFORE_LOAD = "before-load"  # a coordinator has become leader of an internal partition and is loading it


Match = Callable[[Mapping[str, Any]], bool]


def match_all(context: Mapping[str, Any]) -> bool:
    """Match every context: the default of a hold."""
    return True


@dataclass(slots=True, eq=False)
class Hold:
    """One held point; created by `PausePoints.hold`, ended by `release`."""

    hold_id: int
    point: PausePoint
    match: Match
    ended: Callable[[Hold], None]
    """Called by `release`."""
    hits: int = 0
    waiting: int = 0
    """The number of tasks that wait here now."""
    changes: ConditionNotifier = field(default_factory=ConditionNotifier)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        """Release every task that waits here, now and later. Idempotent."""
        self.released.set()
        self.ended(self)

    async def until_hit(self, hits: int = 1) -> None:
        """Wait until the point has been reached `hits` times."""
        await self.changes.until(lambda: self.hits >= hits)

    async def wait(self) -> None:
        """Wait until released."""
        self.hits += 1
        self.waiting += 1
        self.changes.notify()
        try:
            await self.released.wait()
        finally:
            self.waiting -= 1


class PointFaults(Protocol):
    """The faults that act at pause points (`faults.Faults`)."""

    points_changed: Callable[[], None]
    """Called after `meets_points` may have changed. Set by `PausePoints`."""

    @property
    def meets_points(self) -> bool:
        """Whether a fault may act at a point."""

    async def pass_point(self, point: PausePoint, context: Mapping[str, Any]) -> None:
        """Let the faults act on a task that passes a point."""


class PausePoints:
    """The held points of one emulator, and the faults at its points. Must be used in the emulator's loop."""

    __slots__ = ("_faults", "_hold_ids", "_holds", "_lock", "active")

    def __init__(self, faults: PointFaults | None = None) -> None:
        self.active = False
        """Whether a hold or a fault can act at any point; otherwise callers skip `reach`."""
        self._hold_ids = itertools.count(1)
        self._holds: list[Hold] = []
        self._faults = faults
        self._lock = threading.Lock()  # faults change in any thread, and the latest state must win
        if faults is not None:
            faults.points_changed = self._update_active
            self._update_active()

    def _update_active(self) -> None:
        with self._lock:
            self.active = bool(self._holds) or (self._faults is not None and self._faults.meets_points)

    def hold(self, point: PausePoint, match: Match | None = None) -> Hold:
        """Hold `point` for contexts that `match` accepts (all, when None) until released."""
        hold = Hold(next(self._hold_ids), point, match or match_all, self._ended)
        self._holds.append(hold)
        self._update_active()
        return hold

    def _ended(self, hold: Hold) -> None:
        if hold in self._holds:
            self._holds.remove(hold)
            self._update_active()

    @property
    def holds(self) -> list[Hold]:
        """The unreleased holds, oldest first."""
        return list(self._holds)

    async def reach(self, point: PausePoint, **context: Any) -> None:
        """Wait while `point` is held for `context` (transactional_id, producer_id, topic, partition, ...)."""
        for hold in list(self._holds):
            if hold.point is point and not hold.released.is_set() and hold.match(context):
                await hold.wait()
        if self._faults is not None and self._faults.meets_points:
            await self._faults.pass_point(point, context)
