"""The periodic work on all logs: retention and compaction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from dualwrite.broker_emulator.clock import Clock
from dualwrite.broker_emulator.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


class LogMaintenance:
    """Deletes old segments and compacts, one log after the other."""

    def __init__(self, clock: Clock, logs: Callable[[], Iterable[PartitionLog]]) -> None:
        self._clock = clock
        self._logs = logs
        self._compaction: asyncio.Task[None] | None = None

    def delete_old_segments(self) -> None:
        """Apply retention to every log."""
        now_ms = self._clock.now_ms()
        for log in self._logs():
            log.delete_old_segments(now_ms)

    def compact(self) -> None:
        """Start compacting every log with enough to compact, unless a run is under way."""
        if self._compaction is None or self._compaction.done():
            self._compaction = asyncio.get_running_loop().create_task(self._compact())

    async def finished(self) -> None:
        """Wait for the compaction that is under way, if there is one."""
        if self._compaction is not None:
            await self._compaction

    async def _compact(self) -> None:
        now_ms = self._clock.now_ms()
        for log in list(self._logs()):
            try:
                for _ in log.compact(now_ms):
                    await asyncio.sleep(0)  # clients first
            except Exception:  # whatever is wrong with one log, the others are compacted
                logger.exception("%s-%d cannot be compacted", log.topic, log.partition)
