"""The dual write: all that an application has to write."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from dualwrite.outcome import Outcome
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from examples.flights.events import Event
from examples.flights.job import Job
from examples.flights.table import row_of


class DualWriteMethod:
    """Writes each group of events to the table and to the topic, or to neither."""

    def __init__(self, engine: sa.Engine, job: Job, pause: PauseHook) -> None:
        self._topic = job.topic
        self._writer = DualWriter(
            engine,
            transactional_id=job.transactional_id,
            bootstrap_servers=job.bootstrap_servers,
            pause=pause,
        )

    def recover(self) -> Outcome:
        """Complete the transaction of a killed predecessor, before the table is read."""
        return next((found.outcome for found in self._writer.recover()), Outcome.NOTHING)

    def write(self, events: Sequence[Event]) -> None:
        with self._writer.transaction() as tx:
            tx.session.add_all(map(row_of, events))
            for event in events:
                tx.send(self._topic, key=event.key, value=event.value)

    def close(self) -> None:
        self._writer.close()
