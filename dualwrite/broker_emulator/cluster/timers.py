"""Periodic work of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dualwrite.broker_emulator.clock import Timer

if TYPE_CHECKING:
    from dualwrite.broker_emulator.cluster.cluster import Cluster


class ConfiguredTimers:
    """Periodic work with intervals from broker settings; a timer restarts when its setting is altered."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._running: dict[str, tuple[int, Timer, Callable[[], None]]] = {}
        cluster.on_config_change.append(self._apply_config)

    def every(self, setting: str, work: Callable[[], None]) -> None:
        """Call `work` periodically, every `setting` milliseconds: a field of `BrokerConfig`."""
        interval_ms: int = getattr(self._cluster.config, setting)
        self._running[setting] = (interval_ms, self._cluster.clock.call_every(interval_ms, work), work)

    def _apply_config(self) -> None:
        for setting, (interval_ms, timer, work) in list(self._running.items()):
            if getattr(self._cluster.config, setting) != interval_ms:
                timer.cancel()
                self.every(setting, work)

    def cancel(self) -> None:
        """Cancel all timers."""
        for _, timer, _ in self._running.values():
            timer.cancel()
        self._running.clear()
        self._cluster.on_config_change.remove(self._apply_config)
