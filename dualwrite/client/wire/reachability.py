"""Wait until a broker can be reached again, over the connections that producers with equal settings share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dualwrite.client.messages import TopicMetadata
from dualwrite.client.monotonic import monotonic_ms
from dualwrite.client.wire.cluster import ClusterSettings, Lease, lease_cluster
from dualwrite.client.wire.connection import Connection
from dualwrite.errors import KafkaError

_LONGEST_PAUSE_S = 1.0


async def wait_until_reachable(settings: ClusterSettings, is_wanted: Callable[[], bool]) -> None:
    """Return when a broker of the cluster can be reached, or when no caller waits any longer.

    Attempts are as far apart as `reconnect.backoff.max.ms` says. A broker that refuses the login is reached.
    """
    lease = lease_cluster(settings, asyncio.get_running_loop())
    listener = _Listener()
    lease.serve(listener)
    try:
        while is_wanted() and not _is_reached(lease):
            await listener.wait_for_change(_pause_s(lease))
    finally:
        await lease.release()


def _is_reached(lease: Lease) -> bool:
    """Return whether a broker is connected or has refused the login; begin to connect to one."""
    return isinstance(lease.to_any(monotonic_ms()), Connection) or lease.refusal is not None


def _pause_s(lease: Lease) -> float:
    now_ms = monotonic_ms()
    wake_at_ms = lease.wake_at_ms(now_ms)
    return _LONGEST_PAUSE_S if wake_at_ms is None else min(_LONGEST_PAUSE_S, (wake_at_ms - now_ms) / 1000 + 0.0005)


class _Listener:
    """Hears of changes of the cluster."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    async def wait_for_change(self, timeout_s: float) -> None:
        """Wait until a connection is made or has failed, or the time limit has passed."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()

    def on_change(self) -> None:
        self._changed.set()

    def on_topic(self, topic: TopicMetadata) -> bool:
        """Return False: no topic is wanted."""
        return False

    def on_no_metadata(self, topics: tuple[str, ...], error: KafkaError) -> None:
        """Do nothing: no topic is wanted."""
