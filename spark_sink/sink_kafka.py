"""The port through which the protocol uses Kafka; `completion.py` and `task_transaction.py` carry it out.

One rule makes transactional ids reusable, and both halves of the port keep it: *an id is always taken over with
`init_transactions(keep_prepared_txn=True)`, then the attempt's row is read again, and only then is anything completed*.
Taking over fences whoever had the id but decides nothing (below tier 1 it only looks). Whoever slept between lease and
initialisation finds that its row has moved on, and leaves what it sees alone: it may be the prepared transaction of the
id's next holder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from dualwrite.prepared_state import PreparedTxnState

if TYPE_CHECKING:
    import pyarrow as pa


class TaskTransaction(Protocol):
    """The Kafka transaction of one attempt; lives in one task worker, in one thread."""

    def write(self, rows: pa.RecordBatch) -> None:
        """Encode and send the Kafka columns of these rows."""

    @property
    def records(self) -> int:
        """How many were sent."""

    @property
    def bytes(self) -> int:
        """How many bytes of keys and values were sent."""

    def prepare(self) -> PreparedTxnState:
        """Flush, and promise that it can be committed."""

    def abort(self) -> None:
        """Best effort, never raises: whatever remains open is aborted by whoever finishes this attempt."""

    def close(self) -> None:
        """Let go; a prepared transaction stays as it is. Never raises."""


class Verdict(Enum):
    """What the store wants of an attempt's transaction."""

    COMMIT = "commit"
    ABORT = "abort"


@dataclass(frozen=True)
class Claim:
    """An attempt whose transaction is to be ended."""

    attempt_id: str
    transactional_id: str
    verdict: Verdict
    prepared_state: PreparedTxnState
    """Empty unless it was prepared."""


class Ending(Enum):
    """What became of a claim."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    LOST = "the broker had aborted a transaction that was decided"
    LEFT = "somebody else has ended it, or is about to"
    FAILED = "not ended; to be repeated"


@dataclass(frozen=True)
class Ended:
    """The ending of one claim; `error` for LOST and FAILED, with the facts."""

    ending: Ending
    error: Exception | None = None


class SinkKafka(Protocol):
    """Kafka, as PLAN, WRITE, COMMIT, ABORT and FINISH need it."""

    def open(self, transactional_id: str, still_mine: Callable[[], bool]) -> TaskTransaction:
        """Take the id over, ask `still_mine` (which reads the attempt's row), abort what was left, and begin.

        Raises AttemptCondemnedError where `still_mine` says no; nothing was decided about what is there then.
        """

    def end(
        self, claims: Sequence[Claim], still_wanted: Callable[[Collection[str]], Collection[str]]
    ) -> Mapping[str, Ended]:
        """End the transactions of all claims, in parallel; by attempt id.

        `still_wanted` is asked after the ids were taken over and before anything is completed: of these attempt ids,
        which have the same verdict still? The others are LEFT. One failure does not stop the others.
        """

    def close(self) -> None:
        """Let go of connections. Never raises."""
