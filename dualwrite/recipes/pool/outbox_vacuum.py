"""Vacuums the table of an outbox while this process publishes it.

The publisher reads the oldest rows, and the index leads it past every row deleted since the last VACUUM. At thousands
of blocks per second that takes longer than all else, because autovacuum comes round only once a minute.
"""

from __future__ import annotations

import logging
from typing import Final

from dualwrite.recipes.core.store import OutboxDatabase
from dualwrite.recipes.pool.runtime import Background, Runtime

_log = logging.getLogger(__name__)

_NOT_VACUUMED: Final = "%s: the outbox was not vacuumed: %s"

BLOCKS_TO_VACUUM: Final = 10_000
"""After how many published blocks to vacuum again."""


class OutboxVacuum:
    """Vacuums in the background, where it delays no batch."""

    def __init__(self, name: str, *, database: OutboxDatabase, runtime: Runtime) -> None:
        self._name = name
        self._database = database
        self._runtime = runtime
        self._vacuumed_after = 0
        self.background: Background | None = None
        """The last VACUUM, which may be in progress."""

    def note_published(self, blocks: int) -> None:
        """Note how many blocks this process has published since it became the publisher."""
        if blocks < self._vacuumed_after:
            self._vacuumed_after = 0
        has_ended = self.background is None or self.background.has_ended
        if blocks >= self._vacuumed_after + BLOCKS_TO_VACUUM and has_ended:
            try:
                self.background = self._runtime.spawn(f"{self._name}-vacuum", self._vacuum)
            except RuntimeError as error:  # no thread can be started now
                _log.debug(_NOT_VACUUMED, self._name, error)
            else:
                self._vacuumed_after = blocks

    async def _vacuum(self) -> None:
        try:
            await self._database.vacuum_outbox()
        except Exception as error:  # autovacuum does it later, and a database that is away is reported elsewhere
            _log.debug(_NOT_VACUUMED, self._name, error)
