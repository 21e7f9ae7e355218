"""Add the decided batches of a sink to its Delta or Iceberg table: at a plan, and after a decision.

This also works if the options no longer name such a table: the batches that were decided for one stay owed to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from dualwrite.errors import DualWriteError
from spark_sink.pause_points import Pause
from spark_sink.store.sink_store import SinkStore

if TYPE_CHECKING:
    from spark_sink.lake.publishing import Publisher

_log = logging.getLogger("spark_sink")


class LakeDebts:
    """The owed batches of one sink. The modules for Delta and Iceberg are loaded only if there are any."""

    def __init__(self, sink_id: str, store: SinkStore, pause: Pause, sleep: Callable[[float], None]) -> None:
        self._sink_id = sink_id
        self._store = store
        self._pause = pause
        self._sleep = sleep

    @cached_property
    def publisher(self) -> Publisher:
        """Publishes the owed batches."""
        from spark_sink.lake.publishing import Publisher

        schema = self._store.schema
        return Publisher(self._sink_id, self._store.lake, schema=schema, pause=self._pause, sleep=self._sleep)

    def settle(self) -> None:
        """Publish the owed batches, and delete the files of condemned attempts. Raises as `pay` does."""
        if self._store.lake.row(self._sink_id) is not None:
            self.pay()
            self._clean()

    def pay(self) -> None:
        """Publish the owed batches. Raises as `Publisher.publish` does; then they stay owed."""
        self.publisher.publish()

    def try_to_pay(self) -> None:
        """Do the same, but log a failure, so that the error that came before it is raised."""
        try:
            self.pay()
        except Exception:
            _log.warning(
                "sink %s: decided files could not be added to its table; the next plan adds them",
                self._sink_id,
                exc_info=True,
            )

    def _clean(self) -> None:
        from spark_sink.lake.janitor import Janitor

        failures: tuple[type[Exception], ...] = (DualWriteError, OSError, *self._store.errors)
        try:
            Janitor(self._sink_id, self._store.lake, schema=self._store.schema).clean()
        except failures:
            _log.warning("sink %s: the files of given up attempts are deleted later", self._sink_id, exc_info=True)
