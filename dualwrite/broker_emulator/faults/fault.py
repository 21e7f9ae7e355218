"""Which requests a fault means, and the faults that are in place.

Faults may be added, watched, released and removed from any thread. A broker without faults pays one attribute read
per request.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dualwrite.broker_emulator.condition_notifier import ConditionNotifier
from dualwrite.broker_emulator.faults.actions import Action, CrashBefore, Delay, Hold, Reorder
from dualwrite.broker_emulator.faults.checks import check
from dualwrite.broker_emulator.faults.gate import Gate
from dualwrite.broker_emulator.faults.selectors import folded, group_ids, names_partition, transactional_ids
from dualwrite.broker_emulator.pause_points import PausePoint

if TYPE_CHECKING:
    from dualwrite.broker_emulator.api.call import Call

_MARKER_APIS = ("27", "writetxnmarkers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Which requests are meant, and what happens to them. A selector that is None accepts everything.

    The first `skip` matching requests pass unharmed; after them `count` are hit (every one, when None).
    `action` None only observes: matching requests are counted and served as usual, however many there are.

    The markers that coordinators send to partition leaders are WriteTxnMarkers requests too, one for each partition,
    though they travel inside the process: a fault that names this API meets them. To its sender, one that was lost or
    not answered has timed out, which makes the coordinator send it again.
    """

    action: Action | None = None
    api: str | int | None = None
    """An API key, or its name in the case of Kafka's protocol guide ("EndTxn") or of this package ("end_txn")."""
    point: PausePoint | None = None
    """Instead of requests: the coordinator's passing of this instant. It can be held, delayed, or crash its node."""
    client_id: str | None = None
    transactional_id: str | None = None
    group: str | None = None
    topic: str | None = None
    partition: int | None = None
    node: int | None = None
    """The node that got the request; at a pause point, the coordinator's."""
    predicate: Callable[[Any], bool] | None = None
    """Sees the decoded request (kio's type for its version), or a pause point's context; runs in the emulator's
    thread."""
    count: int | None = 1
    skip: int = 0

    @property
    def meets_markers(self) -> bool:
        """Whether this is about WriteTxnMarkers, and so about those inside the process too."""
        return self.api is not None and folded(self.api) in _MARKER_APIS

    def accepts(self, call: Call) -> bool:
        """Whether `call` is one of the requests that this fault means."""
        return (
            self.point is None
            and (self.api is None or folded(self.api) in (folded(call.api.key), folded(call.api.schema_name)))
            and (self.client_id is None or self.client_id == call.client_id)
            and (self.node is None or self.node == call.node.node_id)
            and (self.transactional_id is None or self.transactional_id in transactional_ids(call))
            and (self.group is None or self.group in group_ids(call))
            and ((self.topic is None and self.partition is None) or names_partition(call, self.topic, self.partition))
            and (self.predicate is None or self.predicate(call.request))
        )

    def accepts_passing(self, point: PausePoint, context: Mapping[str, Any]) -> bool:
        """Whether the coordinator's passing of `point` is one that this fault means."""
        selectors = {
            "node_id": self.node,
            "transactional_id": self.transactional_id,
            "topic": self.topic,
            "partition": self.partition,
        }
        return (
            self.point is point
            and all(value is None or context.get(name) == value for name, value in selectors.items())
            and (self.predicate is None or self.predicate(context))
        )


class FaultHandle:
    """A fault in place."""

    def __init__(self, faults: Faults, fault: Fault, fault_id: int) -> None:
        self.fault = fault
        self.fault_id = fault_id
        self.gate = Gate()
        self.pair: ReorderedPair | None = None
        """The pair of `Reorder` whose second request is awaited."""
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
        """How many requests this fault has hit (or, without an action, observed)."""
        return self._hits

    @property
    def held(self) -> int:
        """How many requests, answers or copies wait for `release` at this moment."""
        return self._held

    @property
    def unsent(self) -> list[Any]:
        """Responses that no client saw: to copies of requests, and those that were dropped."""
        return list(self._unsent)

    def wait(self, hits: int = 1, timeout_s: float = 10.0) -> None:
        """Block until `hits` requests were hit. Raises TimeoutError after `timeout_s`."""
        self._wait(lambda: self._hits, hits, "hits", timeout_s)

    def wait_held(self, count: int = 1, timeout_s: float = 10.0) -> None:
        """Block until `count` requests wait for `release`. Raises TimeoutError after `timeout_s`."""
        self._wait(lambda: self._held, count, "held", timeout_s)

    def wait_unsent(self, count: int = 1, timeout_s: float = 10.0) -> list[Any]:
        """Block until there are `count` responses that no client saw, and give them. Raises TimeoutError."""
        self._wait(lambda: len(self._unsent), count, "unsent responses", timeout_s)
        return self.unsent

    def _wait(self, reached: Callable[[], int], count: int, what: str, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while reached() < count:
                if not self._changed.wait(deadline_s - time.monotonic()) and time.monotonic() >= deadline_s:
                    raise TimeoutError(f"{reached()} of {count} {what} after {timeout_s} s: {self.fault}")

    def release(self) -> None:
        """Let everything go that waits now. The fault stays in place for what its count leaves."""
        gate, self.gate = self.gate, Gate()
        gate.open()

    def remove(self) -> None:
        """Take the fault away and let everything go; harmless when it is gone already."""
        self._faults.remove(self)
        self.release()

    # for the broker's loop

    def take(self) -> bool:
        """Whether a matching request is hit, counting it."""
        with self._changed:
            self._seen += 1
            if self._seen <= self.fault.skip or self.is_spent:
                return False
            self._hits += 1
            self._tell()
        return True

    def _tell(self) -> None:
        """Wake up whoever waits for a count, in other threads and in the loop."""
        self._changed.notify_all()
        self._changes.notify()

    async def until(self, is_reached: Callable[[], bool]) -> None:
        """Wait until `is_reached`, which is asked again whenever one of the counts has changed."""
        await self._changes.until(is_reached)

    @property
    def is_spent(self) -> bool:
        """Whether `count` requests have been hit. A fault that only observes is never used up."""
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
            self._tell()
        self._faults.is_holding(self, self._held > 0)

    def keep_unsent(self, response: Any) -> None:
        """Remember a response that goes to nobody."""
        with self._changed:
            self._unsent.append(response)
            self._tell()


class ReorderedPair:
    """Two requests of which the second is applied first."""

    def __init__(self) -> None:
        self.second_applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.first_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class LateCopy:
    """The copy of a request that waits until others were applied."""

    handle: FaultHandle
    call: Call
    remaining: int


class Faults:
    """The faults of one emulator, in the order in which they were added; the first that acts decides.

    `active`, `meets_markers` and `meets_points` say whether a request, a marker inside the process or a pause point
    needs to be looked at at all.
    """

    def __init__(self) -> None:
        self.active = False
        self.meets_markers = False
        self.meets_points = False
        self.crash_node: Callable[[int], None] = _no_node_to_crash
        """How a node is crashed, in the emulator's loop. Set by the cluster."""
        self.points_changed: Callable[[], None] = _nobody_to_tell
        """Called in any thread when `meets_points` may have changed. Set by the pause points."""
        self._lock = threading.Lock()
        self._fault_ids = itertools.count(1)
        self._handles: tuple[FaultHandle, ...] = ()
        self._holding: dict[FaultHandle, None] = {}
        self._late: tuple[LateCopy, ...] = ()
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, fault: Fault) -> FaultHandle:
        """Put `fault` in place for requests that arrive from now on.

        Raises ValueError for a selector or an action that can never mean anything, such as a misspelled API.
        """
        check(fault)
        with self._lock:
            handle = FaultHandle(self, fault, next(self._fault_ids))
            self._set(handles=(*self._handles, handle))
        return handle

    @property
    def live(self) -> list[FaultHandle]:
        """The faults that are in place, and those that are used up and still hold something, as they were added."""
        with self._lock:
            return sorted({*self._handles, *self._holding}, key=lambda handle: handle.fault_id)

    def is_holding(self, handle: FaultHandle, is_holding: bool) -> None:
        """Whether something waits for the handle's release."""
        with self._lock:
            if is_holding:
                self._holding[handle] = None
            else:
                self._holding.pop(handle, None)

    def remove(self, handle: FaultHandle) -> None:
        """Take `handle`'s fault away, without letting go what it holds (`FaultHandle.remove` does both)."""
        with self._lock:
            self._set(handles=tuple(other for other in self._handles if other is not handle))

    def clear(self) -> None:
        """Take every fault away and let everything go."""
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
        """The fault that decides what happens to `call`; counts it there and on every observing one before."""
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
        """Do to the coordinator at `point` what the first fault says that means it."""
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
                await asyncio.sleep(0)  # from which a dead node does not return

    def copy_later(self, handle: FaultHandle, call: Call, after_requests: int) -> None:
        """Have `call` applied again when `after_requests` more were."""
        with self._lock:
            self._set(late=(*self._late, LateCopy(handle, call, after_requests)))

    def due_copies(self) -> list[LateCopy]:
        """Count one applied request; the copies whose turn that makes it."""
        for late in self._late:
            late.remaining -= 1
        due = [late for late in self._late if late.remaining <= 0]
        if due:
            with self._lock:
                self._set(late=tuple(late for late in self._late if late.remaining > 0))
        return due

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` beside the connection that caused it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _nobody_to_tell() -> None:
    pass


def _no_node_to_crash(node_id: int) -> None:
    raise RuntimeError(f"no cluster to crash node {node_id} of")
