"""One dual write: the handle that its user holds, and how far its steps have come.

Users see `DualWrite`. The steps in `coordinator.py` and `pool/coordinator.py` work on `DualWriteProgress`: a database
transaction, the buffered records, and the state row and outcome as far as they are known.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from dualwrite.client.transactions.states import WHAT_NEXT, Call
from dualwrite.errors import (
    WHAT_TO_DO,
    ErrorClass,
    IllegalStateError,
    InvalidRecordError,
    KafkaError,
    TransactionDoomedError,
)
from dualwrite.outcome import Outcome, note_outcome, outcome_of
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.buffer import BufferedRecord, RecordBuffer
from dualwrite.recipes.core.store import DatabaseTransaction, StoredBlock
from dualwrite.recipes.core.waiting import Uninterrupted, direct

NOTHING_PREPARED: Final = PreparedTxnState()

ENDED_PAST: Final = (
    "Something other than the dual write ended its database transaction, and the rest was rolled back: Kafka has none "
    "of its records, but if a COMMIT ended it, the database keeps its changes. Compare both sides, and let the dual "
    "write end its transaction"
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resolution:
    """The outcome of a transaction that was left open, or of a commit whose response was lost.

    `prepared_state` is the producer id and epoch in question; empty if nothing was open.
    """

    transactional_id: str
    prepared_state: PreparedTxnState
    outcome: Outcome


def found_in(*resolutions: Resolution) -> list[Resolution]:
    return [each for each in resolutions if each.outcome is not Outcome.NOTHING]


class DualWriteProgress:
    """How far a dual write has come; written by the coordinators, read by the handle."""

    __slots__ = (
        "added",
        "bounded_ms",
        "database",
        "locked_row",
        "outcome",
        "prepared_state",
        "records",
        "sends_since_s",
        "transactional_id",
        "uninterrupted",
    )

    def __init__(self, database: DatabaseTransaction, records: RecordBuffer, uninterrupted: Uninterrupted) -> None:
        self.database: Final = database
        self.records: Final = records
        self.uninterrupted: Final = uninterrupted
        self.transactional_id: str | None = None
        self.locked_row = NOTHING_PREPARED
        """The content of the state row when it was locked."""
        self.prepared_state = NOTHING_PREPARED
        self.sends_since_s = 0.0
        self.added: StoredBlock | None = None
        """The place in the outbox that the records were given."""
        self.bounded_ms: int | None = None
        """How long after its first record Kafka aborts the prepared transaction; None if it never does."""
        self.outcome: Outcome | None = None


class DualWrite:
    """One dual write: a database transaction, and the records that become visible with it."""

    def __init__(
        self, database: DatabaseTransaction, records: RecordBuffer, uninterrupted: Uninterrupted = direct
    ) -> None:
        self.progress: Final = DualWriteProgress(database, records, uninterrupted)
        """For the steps of the dual write; not for users."""

    @property
    def transactional_id(self) -> str | None:
        """The id under which the records are sent; None before that, and for a dual write without records."""
        return self.progress.transactional_id

    @property
    def prepared_state(self) -> PreparedTxnState:
        """The producer id and epoch that this dual write left in the state row; empty before it was prepared."""
        return self.progress.prepared_state

    @property
    def outcome(self) -> Outcome | None:
        """COMMITTED, STORED or ROLLED_BACK once known; None before, and while a lost commit is unresolved.

        STORED: the database has committed, and its records wait in the outbox of a pool to be published.

        It is also set when this process resolves a lost commit later, for example at the next dual write under the id.
        """
        return self.progress.outcome

    def tell(self, error: BaseException) -> None:
        """Set `error.outcome`; an interruption, such as CancelledError, also gets a note for its reader."""
        if isinstance(error, TransactionDoomedError) and error.__cause__ is not None:
            note_outcome(error, outcome_of(error.__cause__))
        note_outcome(error, self._ended_as)
        say_of_block(error)
        if isinstance(error, Exception):
            return
        note = self._outcome_note()
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)

    @property
    def _ended_as(self) -> Outcome:
        """The outcome of a block that has ended, as far as it can be said."""
        progress = self.progress
        if progress.outcome is not None:
            return progress.outcome
        database = progress.database
        return Outcome.UNKNOWN if database.commit_was_sent or database.was_ended_past else Outcome.ROLLED_BACK

    def _outcome_note(self) -> str:
        progress = self.progress
        if progress.outcome is Outcome.ROLLED_BACK:
            return "The dual write is rolled back: neither database nor Kafka is changed."
        if progress.outcome is Outcome.COMMITTED:
            return f"The dual write {progress.prepared_state} of {progress.transactional_id!r} is committed anyway."
        if progress.outcome is Outcome.STORED:
            return f"The dual write of {progress.transactional_id!r} is committed anyway; its records wait for Kafka."
        if progress.database.was_ended_past:
            return f"{ENDED_PAST}."
        if progress.added is not None:
            return (
                f"The database commit that adds the dual write to the outbox {progress.transactional_id!r} was sent "
                "and got no response: the pool queries its outcome in the background."
            )
        if progress.prepared_state.is_empty:
            return "The database commit was sent and got no response; without records, no row shows its outcome."
        return (
            f"The database commit of dual write {progress.prepared_state} of {progress.transactional_id!r} was sent "
            "and got no response: recover(), or the next use of the id, reads its outcome and completes Kafka's side."
        )

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> BufferedRecord:
        """Add one record to this dual write; the arguments are those of `Producer.send`.

        It is kept until the block ends, sent right before the database commits, and visible only if the database
        commits. Raises InvalidRecordError or TransactionTooLargeError, which doom the block even if they are swallowed,
        and IllegalStateError after the block has ended, which includes `before_commit` hooks.
        """
        try:
            record = self.progress.records.send(topic, value, key, headers, partition, timestamp_ms)
        except BaseException as error:
            self._doom(error)
            raise
        self._assert_still_open()
        return record

    def send_offsets(self, offsets: Mapping[Any, Any] | Iterable[Any], group_metadata: Any) -> None:
        """Commit consumed offsets as part of this dual write (KIP-447); see `Producer.send_offsets_to_transaction`."""
        try:
            self.progress.records.send_offsets(offsets, group_metadata)
        except BaseException as error:
            self._doom(error)
            raise
        self._assert_still_open()

    def _assert_still_open(self) -> None:
        if self.progress.records.is_closed:
            raise IllegalStateError(_ENDED_MEANWHILE)

    def _doom(self, error: BaseException) -> None:
        self.progress.database.doom(error)
        note_outcome(error, Outcome.ROLLED_BACK)  # a doomed block can only roll back


async def flush_block(write: DualWriteProgress) -> bool:
    """Flush the database transaction and close the buffer at the end of a block. Return whether it has records."""
    database, records = write.database, write.records
    await database.flush()
    records.close()  # records sent by a hook inside COMMIT would come after the state was written
    return bool(records)


async def commit_database_alone(write: DualWriteProgress) -> None:
    """Commit a dual write without records: an ordinary database transaction, unknown to Kafka and the state row."""
    try:
        await write.database.commit()
    except BaseException:
        try:
            await roll_back_database(write)
        finally:
            if write.database.commit_was_sent:
                write.outcome = None  # no row shows the outcome
        raise
    write.outcome = Outcome.COMMITTED


async def commit_at_end(
    write: DualWriteProgress, commit_records: Callable[[DualWriteProgress], Awaitable[None]]
) -> None:
    """Commit a transaction whose owner decides when it ends; without Kafka if no record is left."""
    if write.records:
        await commit_records(write)
    else:
        await flush_block(write)
        await commit_database_alone(write)


async def roll_back_database(write: DualWriteProgress) -> None:
    """Close the buffer and roll the database transaction back, even if the caller is interrupted."""
    write.records.close()
    await write.uninterrupted(_roll_back_database(write))


async def _roll_back_database(write: DualWriteProgress) -> None:
    await write.database.rollback()
    note_rollback(write)


def note_rollback(write: DualWriteProgress) -> None:
    """Note that the database transaction was rolled back; log an error if the block's own had ended before."""
    if write.database.was_ended_past:
        _log.error("%s (%d records)", ENDED_PAST, len(write.records))
    else:
        write.outcome = Outcome.ROLLED_BACK


# ---- the errors of a producer in the words of a block, whose user has no producer to call ---------------------------

_REPEAT: Final = "repeat the block"
_ENDED_MEANWHILE: Final = (
    "this dual write was ended while another thread sent in it, which is sent with it or not at all: let the block "
    "wait for its threads"
)

_CALLS: Final[dict[str, str]] = {
    Call.INIT_TRANSACTIONS.value: "taking the transactional id over",
    Call.BEGIN_TRANSACTION.value: "beginning the transaction",
    Call.SEND_OFFSETS.value: "sending the consumed offsets",
    Call.PREPARE_TRANSACTION.value: "preparing the transaction",
    Call.COMMIT_TRANSACTION.value: "committing the transaction",
    Call.ABORT_TRANSACTION.value: "aborting the transaction",
    "complete_transaction()": "completing the transaction",
    "flush()": "sending all records",
}
"""Descriptions of a producer's calls, in place of its own words."""

_ADVICE: Final[dict[str, str]] = {
    **dict.fromkeys(WHAT_NEXT.values(), _REPEAT),
    WHAT_TO_DO[ErrorClass.ABORTABLE]: _REPEAT,
    WHAT_TO_DO[ErrorClass.REFUSED]: "grant it, then repeat the block",
    WHAT_TO_DO[ErrorClass.FENCED]: (
        "with a pool, repeat the block; with one id, make a new writer only if there is no other with it"
    ),
    WHAT_TO_DO[ErrorClass.UNSUPPORTED]: "change the configuration, or the broker",
    WHAT_TO_DO[ErrorClass.FATAL]: _REPEAT,
    "repeat the same call until it returns": _REPEAT,
    "init_transactions() or, for a dual write, with ": "",
    "repeat the call": _REPEAT,
    "Nothing is decided": "Kafka has decided nothing",
    **{f"repeat {call}": _REPEAT for call in _CALLS},
}
"""The remedies and the state for the user of a block, in place of those for a producer."""

_DO_NOT: Final = f"do not {_REPEAT}"
_COMMITTED: Final = " (the database has committed this block)"
_UNCHANGED: Final = ("either side", "either database", "othing was written")
"""Phrases by which errors say that the block changed nothing."""


def say_of_block(error: BaseException, repeat: str = _REPEAT) -> None:
    """Reword a producer's error, and its cause, for a block, with the state of both sides. May be repeated.

    `repeat` is the advice in place of repeating the block, where no block waits.
    """
    if not isinstance(error, KafkaError | InvalidRecordError) or not error.args:
        return
    cause, outcome = error.__cause__, error.outcome
    if isinstance(cause, KafkaError) and cause.args:
        cause.args = (_of_block(str(cause.args[0]), repeat, outcome), *cause.args[1:])
    said = _of_block(str(error.args[0]), repeat, outcome)
    if outcome.is_decided and _COMMITTED not in said:
        said += _COMMITTED
    elif outcome is Outcome.ROLLED_BACK and not any(words in said for words in _UNCHANGED):
        said = f"{said} (neither side was changed by this block)"
    error.args = (said, *error.args[1:])


def said_of_block(error: Exception, outcome: Outcome) -> str:
    """Return the text of a producer's error in the words of a block with that outcome, for the log."""
    return _of_block(str(error), _REPEAT, outcome)


def _of_block(said: str, repeat: str, outcome: Outcome) -> str:
    """Return the text of a producer's error in the words of a block."""
    for of_producer, of_block in (*_ADVICE.items(), *_CALLS.items()):
        said = said.replace(of_producer, of_block)
    if outcome.is_decided:
        return said.replace(f", then {_REPEAT}", "").replace(_DO_NOT, _REPEAT).replace(_REPEAT, _DO_NOT)
    return said.replace(_REPEAT, repeat)
