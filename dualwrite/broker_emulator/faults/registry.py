"""The faults in place, and the handles by which tests watch, release and remove them.

Faults may be added, watched, released and removed from any thread. Without faults, a request costs one attribute read.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dualwrite.broker_emulator.faults.actions import CrashBefore, Delay, Hold, Reorder
from dualwrite.broker_emulator.faults.fault import Fault, check
from dualwrite.broker_emulator.pause_points import ConditionNotifier, PausePoint

if TYPE_CHECKING:
    from dualwrite.broker_emulator.messages.call import Call


class FaultHandle:
    """A fault in place: counts its hits, releases the requests that it holds, removes it."""

    def __init__(self, faults: Faults, fault: Fault, fault_id: int) -> None:
        self.fault = fault
        self.fault_id = fault_id
        self.gate = Gate()
        self.pair: ReorderedPair | None = None
        """The pair of `Reorder` that waits for its second request."""
        self._faults = faults
        self._changed = threading.Condition()
        self._seen = 0
        self._hits = 0
        self._held = 0
        self._unsent: list[Any] = []
        self._changes = ConditionNotifier()

    # for tests

    @property
    def hits(self) -> int:
        """The number of requests that the fault has hit or, without an action, observed."""
        return self._hits

    @property
    def held(self) -> int:
        """The number of requests, responses or copies that now wait for `release`."""
        return self._held

    @property
    def unsent(self) -> list[Any]:
        """Responses that no client received: responses to copies of requests, and dropped responses."""
        return list(self._unsent)

    def wait(self, hits: int = 1, timeout_s: float = 60.0) -> None:
        """Block until the fault has hit `hits` requests. Raises TimeoutError after `timeout_s`."""
        self._wait(lambda: self._hits, hits, "hits", timeout_s)

    def wait_held(self, count: int = 1, timeout_s: float = 60.0) -> None:
        """Block until `count` requests are waiting for `release`. Raises TimeoutError after `timeout_s`."""
        self._wait(lambda: self._held, count, "held", timeout_s)

    def wait_unsent(self, count: int = 1, timeout_s: float = 60.0) -> list[Any]:
        """Block until there are `count` unsent responses, and return them. Raises TimeoutError."""
        self._wait(lambda: len(self._unsent), count, "unsent responses", timeout_s)
        return self.unsent

    def _wait(self, reached: Callable[[], int], count: int, what: str, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while reached() < count:
                if not self._changed.wait(deadline_s - time.monotonic()) and time.monotonic() >= deadline_s:
                    raise TimeoutError(f"{reached()} of {count} {what} after {timeout_s} s: {self.fault}")

    def release(self) -> None:
        """Release everything that waits now. The fault stays in place for the rest of its count."""
        gate, self.gate = self.gate, Gate()
        gate.open()

    def remove(self) -> None:
        """Remove the fault and release everything that it holds. Idempotent."""
        self._faults.remove(self)
        self.release()

    # for the broker's loop

    def take(self) -> bool:
        """Count a matching request, and return whether the fault hits it."""
        with self._changed:
            self._seen += 1
            if self._seen <= self.fault.skip or self.is_spent:
                return False
            self._hits += 1
            self._notify()
        return True

    def _notify(self) -> None:
        """Wake the threads and tasks that wait for a count."""
        self._changed.notify_all()
        self._changes.notify()

    async def until(self, is_reached: Callable[[], bool]) -> None:
        """Wait until `is_reached` returns True; it is called again after each change of a count."""
        await self._changes.until(is_reached)

    @property
    def is_spent(self) -> bool:
        """Whether the fault has hit `count` requests. A fault that only observes is never spent."""
        fault = self.fault
        return fault.action is not None and fault.count is not None and self._hits >= fault.count

    async def hold(self) -> None:
        """Wait for `release`."""
        gate = self.gate
        self._count_held(+1)
        try:
            await gate.passed()
        finally:
            self._count_held(-1)

    def _count_held(self, change: int) -> None:
        with self._changed:
            self._held += change
            self._notify()
        self._faults.is_holding(self, self._held > 0)

    def keep_unsent(self, response: Any) -> None:
        """Keep a response that is not sent."""
        with self._changed:
            self._unsent.append(response)
            self._notify()


class ReorderedPair:
    """Two requests, the second of which is applied first."""

    def __init__(self) -> None:
        self.second_applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.first_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class LateCopy:
    """The copy of a request, to be applied after `remaining` further requests."""

    handle: FaultHandle
    call: Call
    remaining: int


class Faults:
    """The faults of one emulator, in the order in which they were added; the first match with an action decides.

    `active`, `meets_markers` and `meets_points` say whether any fault can apply to requests, to markers inside the
    process, or to pause points.
    """

    def __init__(self) -> None:
        self.active = False
        self.meets_markers = False
        self.meets_points = False
        self.crash_node: Callable[[int], None] = _no_node_to_crash
        """Crashes a node, in the emulator's loop. Set by the cluster."""
        self.points_changed: Callable[[], None] = _do_nothing
        """Called in any thread when `meets_points` may have changed. Set by the pause points."""
        self._lock = threading.Lock()
        self._fault_ids = itertools.count(1)
        self._handles: tuple[FaultHandle, ...] = ()
        self._holding: dict[FaultHandle, None] = {}
        self._late: tuple[LateCopy, ...] = ()
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, fault: Fault) -> FaultHandle:
        """Put `fault` in place for requests that arrive from now on.

        Raises ValueError for an impossible selector or action, such as a misspelled API.
        """
        check(fault)
        with self._lock:
            handle = FaultHandle(self, fault, next(self._fault_ids))
            self._set(handles=(*self._handles, handle))
        return handle

    @property
    def live(self) -> list[FaultHandle]:
        """The faults in place, and spent faults that still hold requests, in the order of their ids."""
        with self._lock:
            return sorted({*self._handles, *self._holding}, key=lambda handle: handle.fault_id)

    def is_holding(self, handle: FaultHandle, is_holding: bool) -> None:
        """Record whether requests wait for the handle's release."""
        with self._lock:
            if is_holding:
                self._holding[handle] = None
            else:
                self._holding.pop(handle, None)

    def remove(self, handle: FaultHandle) -> None:
        """Remove the fault without releasing the requests that it holds (`FaultHandle.remove` does both)."""
        with self._lock:
            self._set(handles=tuple(other for other in self._handles if other is not handle))

    def clear(self) -> None:
        """Remove every fault and release everything that the faults hold."""
        for handle in self.live:
            handle.remove()

    def _set(self, *, handles: tuple[FaultHandle, ...] | None = None, late: tuple[LateCopy, ...] | None = None) -> None:
        self._handles = self._handles if handles is None else handles
        self._late = self._late if late is None else late
        faults = [handle.fault for handle in self._handles]
        self.active = bool(self._late) or any(fault.point is None for fault in faults)
        self.meets_markers = any(fault.meets_markers for fault in faults)
        self.meets_points = any(fault.point is not None for fault in faults)
        self.points_changed()

    # for the broker's loop

    def take(self, call: Call) -> FaultHandle | None:
        """Return the fault that acts on `call`, or None. Counts the call there and at observing faults before it."""
        return self._take(lambda fault: fault.accepts(call))

    def _take(self, accepts: Callable[[Fault], bool]) -> FaultHandle | None:
        for handle in self._handles:
            if handle.pair is None and handle.is_spent:
                continue
            if accepts(handle.fault) and (handle.pair is not None or handle.take()):
                if handle.is_spent and not isinstance(handle.fault.action, Reorder):
                    self.remove(handle)
                if handle.fault.action is not None:
                    return handle
        return None

    async def pass_point(self, point: PausePoint, context: Mapping[str, Any]) -> None:
        """Apply the first fault that selects the coordinator at `point`."""
        taken = self._take(lambda fault: fault.accepts_passing(point, context))
        if taken is None:
            return
        match taken.fault.action:
            case Hold():
                await taken.hold()
            case Delay(duration_ms):
                await asyncio.sleep(duration_ms / 1000)
            case CrashBefore():
                self.crash_node(context["node_id"])
                await asyncio.sleep(0)  # a crashed node does not return from here

    def copy_later(self, handle: FaultHandle, call: Call, after_requests: int) -> None:
        """Apply `call` again after `after_requests` further requests."""
        with self._lock:
            self._set(late=(*self._late, LateCopy(handle, call, after_requests)))

    def due_copies(self) -> list[LateCopy]:
        """Count an applied request, and return the copies that are due now."""
        for late in self._late:
            late.remaining -= 1
        due = [late for late in self._late if late.remaining <= 0]
        if due:
            with self._lock:
                self._set(late=tuple(late for late in self._late if late.remaining > 0))
        return due

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in a task of its own, independent of the connection that caused it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _do_nothing() -> None:
    pass


def _no_node_to_crash(node_id: int) -> None:
    raise RuntimeError(f"cannot crash node {node_id}: the faults belong to no cluster")


class Gate:
    """A barrier in the emulator's loop that any thread may open. Closed until `open` is called."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[asyncio.Future[None]] = []
        self._is_open = False

    async def passed(self) -> None:
        """Wait until the gate is open."""
        with self._lock:
            if self._is_open:
                return
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
        await waiting

    def open(self) -> None:
        """Let all tasks pass, now and later. Idempotent."""
        with self._lock:
            self._is_open = True
            waiting, self._waiting = self._waiting, []
        for future in waiting:
            loop = future.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_let_pass, future)


def _let_pass(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
