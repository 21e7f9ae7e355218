"""The rows of the commit store, as whoever asks it gets to see them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from enum import StrEnum

from spark_sink.attempt.states import AttemptStatus
from spark_sink.sink_kafka import Claim


class BatchStatus(StrEnum):
    """How far a decided batch is. A batch without a row is not decided."""

    COMMIT = "COMMIT"
    """Decided; not every Kafka transaction has followed."""
    DONE = "DONE"
    LOST = "LOST"
    """The broker had dropped one of its transactions: an operator must look."""


@dataclass(frozen=True)
class SinkRow:
    """One sink, and who may write to it."""

    sink_id: str
    generation: int
    query_id: str | None
    """The checkpoint that it belongs to; None before one was seen, and for batch jobs only."""
    updated_at: dt.datetime


@dataclass(frozen=True)
class BatchRow:
    """One decision."""

    sink_id: str
    query_id: str
    batch_id: int
    status: BatchStatus
    generation: int
    attempts: int
    records: int
    offsets_digest: str | None
    decided_at: dt.datetime
    done_at: dt.datetime | None
    acknowledged_at: dt.datetime | None
    """When an operator said of a LOST batch that the query may go on."""

    @property
    def is_closed(self) -> bool:
        """Whether nobody has to do anything about it any more."""
        return self.status is BatchStatus.DONE or self.acknowledged_at is not None


@dataclass(frozen=True)
class AttemptRow:
    """One attempt of one task."""

    attempt_id: str
    sink_id: str
    query_id: str
    batch_id: int
    generation: int
    partition_id: int
    task_attempt_id: int
    host: str
    transactional_id: str
    prepared_state: str
    """Empty unless it was prepared."""
    records: int
    status: AttemptStatus
    detail: str | None
    """Of a LOST one: what Kafka had answered."""
    created_at: dt.datetime
    updated_at: dt.datetime


@dataclass(frozen=True)
class Lease:
    """What a task was given: a row of its own, and a transactional id that no other live attempt has."""

    attempt_id: str
    transactional_id: str


@dataclass(frozen=True)
class Planned:
    """A new generation, and what the older ones have left."""

    generation: int
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Decision:
    """What the committer asks the store to decide."""

    sink_id: str
    query_id: str
    batch_id: int
    generation: int | None
    """The one all results agree on; None where there is no result at all."""
    winners: tuple[str, ...]
    """Attempt ids, in the order of their partitions."""
    records: int
    staged_rows: int
    skipped: bool
    """Whether a task found the batch decided."""
    offsets_digest: str | None


@dataclass(frozen=True)
class Decided:
    """The decision stands."""

    anew: bool
    """False: it stood before."""
    records: int
    claims: tuple[Claim, ...] = field(default=())
    """What is to be ended now: the winners', the losers', and whatever else was left."""
