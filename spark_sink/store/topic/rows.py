"""The rows of one sink as the operations read them. Pure; the columns are those of the SQL store (`../tables.py`)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from typing import Final, overload

from dualwrite.prepared_state import PreparedTxnState
from spark_sink.store import rules
from spark_sink.store.attempt_states import LIVE, AttemptStatus, Claim, Prepared
from spark_sink.store.tables import AttemptRow, BatchRow, BatchStatus, SinkRow
from spark_sink.store.topic.records import Row
from spark_sink.store.topic.state import SinkState

SINK: Final = "sink"
BATCH: Final = "batch"
ATTEMPT: Final = "attempt"
RETIRED: Final = "retired"

THE_SINK: Final = ""
"""The key of the only row of the table SINK."""


def batch_key(query_id: str, batch_id: int) -> str:
    """Return the key of a decided batch."""
    return f"{batch_id}/{query_id}"


class SinkRows:
    """The rows of one sink."""

    def __init__(self, sink_id: str, state: SinkState) -> None:
        self.sink_id: Final = sink_id
        self._state = state
        sink = state.rows(SINK).get(THE_SINK)
        self.exists: Final = sink is not None
        self.generation: Final[int | None] = None if sink is None else sink["generation"]
        self.query_id: Final[str | None] = None if sink is None else sink["query_id"]

    def sink(self) -> SinkRow | None:
        """Return the row of the sink."""
        row = self._state.rows(SINK).get(THE_SINK)
        return (
            None if row is None else SinkRow(self.sink_id, row["generation"], row["query_id"], _when(row["updated_at"]))
        )

    # ---- batches --------------------------------------------------------------------------------------------

    def batches(self, statuses: Collection[BatchStatus] = tuple(BatchStatus)) -> list[BatchRow]:
        """Return the decided batches, the newest first."""
        rows = [self._batch(row) for row in self._state.rows(BATCH).values() if row["status"] in statuses]
        return sorted(rows, key=lambda row: (row.generation, row.batch_id), reverse=True)

    def found(self, query_id: str, batch_id: int) -> BatchRow | None:
        """Return the decision of the batch, or of a higher version of its batch job.

        Raises CheckpointMismatchError if it was deleted and a newer one of its query exists.
        """
        nearest = self.nearest(query_id, batch_id)
        if not rules.is_decided(query_id, batch_id, nearest) or nearest is None:
            return None
        return self._batch(self._state.rows(BATCH)[batch_key(query_id, nearest)])

    def nearest(self, query_id: str, batch_id: int) -> int | None:
        """Return the oldest decided batch of the query from this one on."""
        return min((each for each in self._batch_ids(query_id) if each >= batch_id), default=None)

    def newest(self, query_id: str) -> int | None:
        """Return the last decided batch of a query."""
        return max(self._batch_ids(query_id), default=None)

    def _batch_ids(self, query_id: str) -> list[int]:
        return [row["batch_id"] for row in self._state.rows(BATCH).values() if row["query_id"] == query_id]

    def _batch(self, row: Row) -> BatchRow:
        return BatchRow(
            sink_id=self.sink_id,
            query_id=row["query_id"],
            batch_id=row["batch_id"],
            status=BatchStatus(row["status"]),
            generation=row["generation"],
            attempts=row["n_attempts"],
            records=row["n_records"],
            offsets_digest=row["offsets_digest"],
            decided_at=_when(row["decided_at"]),
            done_at=_when(row["done_at"]),
            acknowledged_at=_when(row["acknowledged_at"]),
            content_digest=row.get("content_digest"),
        )

    # ---- attempts -------------------------------------------------------------------------------------------

    def attempts(self, statuses: Collection[AttemptStatus] = tuple(AttemptStatus)) -> list[AttemptRow]:
        """Return the attempts, ordered by generation and partition."""
        rows = [self._attempt(row) for row in self._state.rows(ATTEMPT).values() if row["status"] in statuses]
        return sorted(rows, key=lambda row: (row.generation, row.partition_id, row.created_at))

    def statuses(self, query_id: str, batch_id: int) -> dict[str, AttemptStatus]:
        """Return the statuses of the attempts of a batch."""
        return {
            attempt_id: AttemptStatus(row["status"])
            for attempt_id, row in self._state.rows(ATTEMPT).items()
            if (row["query_id"], row["batch_id"]) == (query_id, batch_id)
        }

    def live(self) -> list[AttemptRow]:
        """Return the attempts that lease an id, by partition."""
        return sorted(self.attempts(LIVE), key=lambda row: row.partition_id)

    def attempt(self, attempt_id: str) -> AttemptRow | None:
        """Return the attempt with this id."""
        row = self._state.rows(ATTEMPT).get(attempt_id)
        return None if row is None else self._attempt(row)

    def prepared(self, attempt: AttemptRow) -> Prepared:
        """Return the transaction of an attempt, with its manifest."""
        manifest = self._state.rows(ATTEMPT)[attempt.attempt_id]["manifest"]
        return Prepared(PreparedTxnState(attempt.prepared_state), manifest or "")

    def claims(self) -> tuple[Claim, ...]:
        """Return the transactions that have to be completed in Kafka."""
        return rules.claims_of(self.live())

    def leasable(self, partition_id: int) -> rules.Leasable:
        """Return the slots of the partition that may be leased."""
        row = self._state.rows(RETIRED).get(str(partition_id))
        return rules.Leasable() if row is None else rules.Leasable(row["first_slot"], row.get("spare_slot"))

    def _attempt(self, row: Row) -> AttemptRow:
        return AttemptRow(
            attempt_id=row["attempt_id"],
            sink_id=self.sink_id,
            query_id=row["query_id"],
            batch_id=row["batch_id"],
            generation=row["generation"],
            partition_id=row["partition_id"],
            task_attempt_id=row["task_attempt_id"],
            host=row["host"],
            transactional_id=row["txn_id"],
            prepared_state=row["prepared_state"],
            records=row["n_records"],
            status=AttemptStatus(row["status"]),
            detail=row["detail"],
            created_at=_when(row["created_at"]),
            updated_at=_when(row["updated_at"]),
        )


@overload
def _when(time_ms: int) -> dt.datetime: ...
@overload
def _when(time_ms: None) -> None: ...
def _when(time_ms: int | None) -> dt.datetime | None:
    return None if time_ms is None else moment(time_ms)


def moment(time_ms: int) -> dt.datetime:
    """Return a time of the leader's clock."""
    return dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)
