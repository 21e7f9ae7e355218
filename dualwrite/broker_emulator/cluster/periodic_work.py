"""Periodic work: of the cluster, and on all logs (retention, compaction, the expiration of producers)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

from dualwrite.broker_emulator.clock import Clock, Timer
from dualwrite.broker_emulator.log.partition_log import PartitionLog
from dualwrite.broker_emulator.slices import Pace, Steps, Work

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


logger = logging.getLogger(__name__)

_AT_ONCE: Final = 1000
"""The number of logs that a round visits before it returns; it visits the others while clients are served."""
_DONE: Final = object()
_Visit: TypeAlias = Callable[[PartitionLog], Steps[None] | None]


class LogMaintenance:
    """Deletes old segments and compacts, one log after the other."""

    def __init__(self, clock: Clock, logs: Callable[[], Iterable[PartitionLog]]) -> None:
        self._clock = clock
        self._logs = logs
        self._compaction: asyncio.Task[None] | None = None
        self._retention = _Rounds()
        self._expiration = _Rounds()

    def delete_old_segments(self) -> None:
        """Apply retention to every log."""
        now_ms = self._clock.now_ms()
        self._retention.begin(list(self._logs()), lambda log: log.delete_old_segments(now_ms))

    def expire_producers(self) -> None:
        """Make every log forget the producers that have been idle for longer than their expiration time."""
        now_ms = self._clock.now_ms()
        self._expiration.begin(list(self._logs()), lambda log: log.expire_producers(now_ms))

    def compact(self) -> None:
        """Start compacting every log with enough to compact, unless a run is under way."""
        if self._compaction is None or self._compaction.done():
            self._compaction = asyncio.get_running_loop().create_task(self._compact())

    async def finished(self) -> None:
        """Wait for the running compaction, if there is one."""
        if self._compaction is not None:
            await self._compaction

    async def _compact(self) -> None:
        now_ms = self._clock.now_ms()
        pace = Pace()
        for log in list(self._logs()):
            await pace.keep()
            try:
                for _ in log.compact(now_ms):
                    await pace.keep()  # clients first
            except Exception:  # a fault of one log must not keep the others from being compacted
                logger.exception("%s-%d cannot be compacted", log.topic, log.partition)


class _Rounds:
    """One kind of work on every log, round after round; a running round is finished first."""

    def __init__(self) -> None:
        self._work: Work[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self, logs: list[PartitionLog], visit: _Visit) -> None:
        """Take the first step at the first logs now, and begin to visit the others."""
        if self._work is not None:
            self._work.finish()
        begun = [_visited(log, visit) for log in logs]
        unfinished = [steps for steps in begun[:_AT_ONCE] if next(steps, _DONE) is not _DONE]
        if unfinished or len(logs) > _AT_ONCE:
            self._work = Work(_each((*unfinished, *begun[_AT_ONCE:])))
            self._task = asyncio.get_running_loop().create_task(self._work.done_in_slices())


def _each(works: Iterable[Steps[None]]) -> Steps[None]:
    for steps in works:
        yield from steps
        yield


def _visited(log: PartitionLog, visit: _Visit) -> Steps[None]:
    try:
        yield from visit(log) or ()
    except Exception:
        logger.exception("maintenance of %s-%d failed; leaving the log as it is", log.topic, log.partition)
