"""The errors of the sink. Each message states the fault, the resulting state, and the next step."""

from __future__ import annotations

from dualwrite.errors import DualWriteError


class SinkError(DualWriteError):
    """Base class of all errors that the sink defines."""


class SinkOptionError(SinkError, ValueError):
    """An option, a column or a type is wrong. Raised before any transaction exists."""


class SinkFencedError(SinkError):
    """Another driver has planned with this `sinkId` since; this one must stop. No part of its batch is visible."""


class CheckpointMismatchError(SinkError):
    """The checkpoint is not the one to which the decided batches of this sink belong."""


class AttemptCondemnedError(SinkError):
    """The driver has given up this attempt of a task; its transaction is aborted, and Spark may try again."""


class BatchLostError(SinkError):
    """Kafka aborted a transaction of a decided batch, and it cannot be published again. An operator must act."""


class StoreWentBackError(SinkError):
    """The commit store (database or topic) has lost a decision or an attempt, by a failover or a restore.

    Nothing was changed. The sink is stopped until an operator has compared both sides.
    """


class DecisionUnknownError(SinkError):
    """A decision got no response, and the commit store cannot be queried. The next plan finds the outcome."""


class StoreUnavailableError(SinkError):
    """The commit store cannot be reached. Decided batches stay decided; nothing else becomes visible."""


class CommitLogError(SinkError):
    """A call to the topic of the commit store did not succeed. An append may have happened, or may still happen."""

    def __init__(self, message: str, *, is_away: bool) -> None:
        """`is_away`: no broker has responded, or not in time."""
        super().__init__(message)
        self.is_away = is_away


class DualTableError(SinkError):
    """The table cannot store the rows of this batch. No part of the batch is visible, in the table or in Kafka."""


class JavaError(SinkError):
    """There is no Java that Spark can run on."""


class SourceReadError(SinkError):
    """Kafka did not return the requested records. Nothing was lost: the next start of the query continues there."""


class SourceDataLossError(SourceReadError):
    """The offsets that the query was to read next are no longer in Kafka, and `failOnDataLoss` is true."""
