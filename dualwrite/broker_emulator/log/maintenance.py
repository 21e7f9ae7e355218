"""The periodic work on all logs: retention and compaction."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from dualwrite.broker_emulator.log.segment import StorageError

if TYPE_CHECKING:
    from dualwrite.broker_emulator.cluster.cluster import Cluster

logger = logging.getLogger(__name__)


class LogMaintenance:
    """Deletes old segments and compacts, one log after the other."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._compaction: asyncio.Task[None] | None = None

    def delete_old_segments(self) -> None:
        """Apply retention to every log."""
        now_ms = self._cluster.clock.now_ms()
        for partition in self._cluster.partitions():
            partition.log.delete_old_segments(now_ms)

    def compact(self) -> None:
        """Begin to compact every log that is worth it, unless that is under way."""
        if self._compaction is None or self._compaction.done():
            self._compaction = asyncio.get_running_loop().create_task(self._compact())

    async def _compact(self) -> None:
        now_ms = self._cluster.clock.now_ms()
        for partition in list(self._cluster.partitions()):
            try:
                for _ in partition.log.compact(now_ms):
                    await asyncio.sleep(0)  # clients first
            except (StorageError, ValueError):
                logger.exception("%s cannot be compacted", partition.name)
