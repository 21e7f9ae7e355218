"""What the endpoints operate on: one running emulator, and the faults that clients may still ask about."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from dualwrite.broker_emulator.cluster.cluster import Cluster
from dualwrite.broker_emulator.cluster.operations import Operations
from dualwrite.broker_emulator.faults import Fault, FaultHandle, Faults

MAX_USED_UP: Final = 1000


class FaultBook:
    """Faults by their ids."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._added: dict[int, FaultHandle] = {}

    def add(self, fault: Fault) -> FaultHandle:
        """Put a fault in place. Of those that are used up, the oldest is forgotten when there are too many.

        Raises ValueError for one that can never mean anything.
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
        """In the order in which they were added."""
        known = {**self._added, **{handle.fault_id: handle for handle in self._faults.live}}
        return [known[fault_id] for fault_id in sorted(known)]

    def find(self, fault_id: int) -> FaultHandle | None:
        """The fault of an id, if it is known."""
        return next((handle for handle in self.all() if handle.fault_id == fault_id), None)

    def remove(self, handle: FaultHandle) -> None:
        """Take a fault away, let everything go that it holds, and forget it."""
        self._added.pop(handle.fault_id, None)
        handle.remove()

    def is_in_place(self, handle: FaultHandle) -> bool:
        """Whether requests may still be hit."""
        return handle in self._faults.live and not handle.is_spent


@dataclass(slots=True)
class Controlled:
    """One running emulator. Everything here runs in its loop."""

    cluster: Cluster
    operations: Operations
    bootstrap_servers: str
    start_node: Callable[[int], Awaitable[None]]
    fault_book: FaultBook = field(init=False)

    def __post_init__(self) -> None:
        self.fault_book = FaultBook(self.cluster.faults)
