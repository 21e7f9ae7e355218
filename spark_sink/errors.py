"""What the sink raises. Each says what was wrong, what state things are in, and what to do next."""

from __future__ import annotations

from dualwrite.errors import DualWriteError


class SinkError(DualWriteError):
    """Base of everything the sink raises by itself."""


class SinkOptionError(SinkError, ValueError):
    """An option, a column or a type is wrong. Raised before any transaction exists."""


class SinkFencedError(SinkError):
    """Another driver has planned with this `sinkId` since; this one may not go on. Nothing of its batch is visible."""


class CheckpointMismatchError(SinkError):
    """The checkpoint is not the one that this sink's decided batches belong to."""


class AttemptCondemnedError(SinkError):
    """This attempt of a task was given up by the driver; its transaction is aborted, and Spark may try again."""


class BatchLostError(SinkError):
    """The broker dropped a transaction of a batch that was decided. Nothing is guessed: an operator must look."""


class DecisionUnknownError(SinkError):
    """The COMMIT of a decision got no answer, and the database cannot be asked now. The next plan reads what it was."""


class StoreUnavailableError(SinkError):
    """The commit store's database cannot be reached. What was decided stays so, and nothing else becomes visible."""


class DualTableError(SinkError):
    """The table does not take the rows of this batch. Nothing of the batch is visible, in the table or in Kafka."""


class JavaError(SinkError):
    """There is no Java that Spark can run on."""


class SourceReadError(SinkError):
    """Kafka did not give what the source asked for. Nothing was lost: the next start of the query goes on there."""


class SourceDataLossError(SourceReadError):
    """What the query was to read next is not in Kafka any more, and `failOnDataLoss` is true."""
