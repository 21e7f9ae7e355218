"""Read the commit store while an application runs, and after it was killed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from examples.flights_spark.job import SINK_ID

_NEWEST_WORK: Final = sa.text("SELECT count(*), max(created_at) FROM dw_attempt WHERE sink_id = :sink")
_IN_DOUBT: Final = sa.text("SELECT count(*) FROM dw_batch WHERE sink_id = :sink AND status = 'COMMIT'")
_UNDECIDED: Final = sa.text(
    "SELECT count(DISTINCT batch_id) FROM dw_attempt WHERE sink_id = :sink AND status IN ('OPEN', 'PREPARED')"
)


@dataclass(frozen=True, slots=True)
class Left:
    """The open batches that a killed application left: decided ones will be rolled forward, undecided ones back."""

    decided: int
    undecided: int


class StoreWatch:
    """Reads the store outside of any transaction, on one connection, fast enough for polling every millisecond."""

    def __init__(self, engine: sa.Engine) -> None:
        self._connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    def newest_work(self) -> tuple[object, ...]:
        """Return a value that changes with every attempt of a task."""
        return tuple(self._connection.execute(_NEWEST_WORK, {"sink": SINK_ID}).one())

    def is_in_doubt(self) -> bool:
        """Return whether a batch is decided and not all of its transactions are committed in Kafka."""
        return bool(self._connection.scalar(_IN_DOUBT, {"sink": SINK_ID}))

    def left(self) -> Left:
        decided = self._connection.scalar(_IN_DOUBT, {"sink": SINK_ID})
        undecided = self._connection.scalar(_UNDECIDED, {"sink": SINK_ID})
        return Left(decided or 0, undecided or 0)

    def close(self) -> None:
        self._connection.close()
