"""A pool of connections over a network of the test's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dualwrite.client.error_texts import LastError
from dualwrite.client.pacing import Backoff
from dualwrite.client.wire.frames import Framer
from dualwrite.client.wire.pool import ConnectionPool
from dualwrite.client.wire.topology import Topology


def pool_over(
    network: Any,
    bootstrap: Sequence[tuple[str, int]],
    clock_ms: Callable[[], float],
    *,
    backoff_ms: tuple[int, int] = (50, 1000),
    request_timeout_ms: int = 30_000,
    on_change: Callable[[], None] = lambda: None,
) -> ConnectionPool:
    """Return a pool whose connections `network.connect` makes."""
    return ConnectionPool(
        bootstrap=bootstrap,
        topology=Topology(),
        framer=Framer("c"),
        connector=network,
        request_timeout_ms=request_timeout_ms,
        max_per_node=1,
        new_backoff=lambda: Backoff(*backoff_ms),
        clock_ms=clock_ms,
        last_error=LastError(),
        on_change=on_change,
    )
