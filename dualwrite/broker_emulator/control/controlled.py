"""What the endpoints work on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from dualwrite.broker_emulator.cluster.cluster import Cluster
from dualwrite.broker_emulator.cluster.operations import Operations
from dualwrite.broker_emulator.control.fault_book import FaultBook


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
