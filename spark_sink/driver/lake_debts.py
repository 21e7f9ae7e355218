"""What a sink owes to a Delta or Iceberg table, paid by its driver: at a plan, and after a decision.

Also where the options name no such table any more: what was decided for one is owed to it.
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
    """The debts of one sink. The modules for such tables are loaded only if there is one."""

    def __init__(self, sink_id: str, store: SinkStore, pause: Pause, sleep: Callable[[float], None]) -> None:
        self._sink_id = sink_id
        self._store = store
        self._pause = pause
        self._sleep = sleep

    @cached_property
    def publisher(self) -> Publisher:
        """Publishes what is owed."""
        from spark_sink.lake.publishing import Publisher

        schema = self._store.schema
        return Publisher(self._sink_id, self._store.lake, schema=schema, pause=self._pause, sleep=self._sleep)

    def settle(self) -> None:
        """Pay, and delete the files of what is condemned. Raises what `pay` does."""
        if self._store.lake.row(self._sink_id) is not None:
            self.pay()
            self._clean()

    def pay(self) -> None:
        """Publish what is owed. Raises what `Publisher.publish` does; then it stays owed."""
        self.publisher.publish()

    def try_to_pay(self) -> None:
        """Do the same; log what went wrong, so that an error before it is raised."""
        try:
            self.pay()
        except Exception:
            _log.warning(
                "sink %s: what is decided could not be added to its table; the next plan does it",
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
