"""What the commit store says while an application runs, and what a dead one has left in it."""

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
    """Batches that a death has left: decided ones will be rolled forward, undecided ones back."""

    decided: int
    undecided: int


class StoreWatch:
    """One connection that reads outside of any transaction, for questions that are asked every millisecond."""

    def __init__(self, engine: sa.Engine) -> None:
        self._connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    def newest_work(self) -> tuple[object, ...]:
        """Something that changes with every attempt of a task."""
        return tuple(self._connection.execute(_NEWEST_WORK, {"sink": SINK_ID}).one())

    def is_in_doubt(self) -> bool:
        """Whether a batch is decided and Kafka does not know all of it."""
        return bool(self._connection.scalar(_IN_DOUBT, {"sink": SINK_ID}))

    def left(self) -> Left:
        decided = self._connection.scalar(_IN_DOUBT, {"sink": SINK_ID})
        undecided = self._connection.scalar(_UNDECIDED, {"sink": SINK_ID})
        return Left(decided or 0, undecided or 0)

    def close(self) -> None:
        self._connection.close()
