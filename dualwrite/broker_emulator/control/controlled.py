"""What the endpoints operate on: a running emulator, and the faults that clients may still query."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from dualwrite.broker_emulator.cluster.cluster import Cluster
from dualwrite.broker_emulator.cluster.operations import Operations
from dualwrite.broker_emulator.faults import Fault, FaultHandle, Faults

MAX_USED_UP: Final = 1000


class KnownFaults:
    """Faults by id: all live ones, and those added over HTTP until they are removed."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._added: dict[int, FaultHandle] = {}

    def add(self, fault: Fault) -> FaultHandle:
        """Put a fault in place; if too many are known, forget the oldest one that is used up.

        Raises ValueError for a fault that can never select or do anything.
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
        """Return the fault with this id, or None if it is not known."""
        return next((handle for handle in self.all() if handle.fault_id == fault_id), None)

    def remove(self, handle: FaultHandle) -> None:
        """Remove a fault, release everything that it holds, and forget it."""
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
