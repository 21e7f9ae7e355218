"""The producer's states, as literal tables.

`CALLS` maps calls of the application to the state after them, `EVENTS` responses of Kafka. Nothing else changes a
producer's state, and a combination that is not in a table is not allowed. `BLOCK_EXITS` has the effect, in each state,
of leaving a `with producer.transaction():` block by an exception.

KIP-98 (transactions), KIP-890 (abortable errors, an epoch per transaction), KIP-939 (prepared transactions).
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class _Key(Enum):
    """Enum members as keys of the tables: Enum's own hash is a Python function and takes longer than the look-up."""

    __hash__ = object.__hash__


class ProducerState(_Key):
    """The state of a producer. The names are those of Kafka's own client, the values are parts of sentences."""

    UNINITIALIZED = "not initialised"
    INITIALIZING = "initialising"
    READY = "ready, with no transaction open"
    IN_TRANSACTION = "in a transaction"
    PREPARED_TRANSACTION = "prepared"
    COMMITTING_TRANSACTION = "committing"
    ABORTING_TRANSACTION = "aborting"
    ABORTABLE_ERROR = "in a transaction that failed and can only be aborted"
    FATAL_ERROR = "failed for good"
    CLOSED = "closed"


class Call(_Key):
    """The calls of an application; the values are the public names."""

    INIT_TRANSACTIONS = "init_transactions()"
    BEGIN_TRANSACTION = "begin_transaction()"
    SEND = "send()"
    SEND_OFFSETS = "send_offsets_to_transaction()"
    PREPARE_TRANSACTION = "prepare_transaction()"
    COMMIT_TRANSACTION = "commit_transaction()"
    ABORT_TRANSACTION = "abort_transaction()"
    COMPLETE_BY_COMMIT = "complete_transaction() with the prepared state"
    COMPLETE_BY_ABORT = "complete_transaction() with another state than the prepared one"
    COMPLETE_BY_TAKEOVER = "complete_transaction() if InitProducerId was put off until the stored state is known"
    COMPLETE_BEFORE = "complete_transaction() with a state that was completed before, leaving the id to other producers"
    COMPLETE_LOST = "complete_transaction() with a state whose transaction Kafka aborted"
    FENCE_OTHERS = "the second phase of the take-over"
    DESCRIBE = "the description of the transactional id between transactions"
    CLOSE = "close()"


class Event(_Key):
    """The events that follow from Kafka's responses, or from the lack of them."""

    INITIALIZED = "the transactional id is ours and nothing is ongoing"
    FOUND_PREPARED = "the transactional id is ours and a transaction of its past is ongoing (KIP-939)"
    INIT_REFUSED = "permission refused; the call may be repeated"
    FLUSHED_FOR_PREPARE = "every record of the transaction is stored"
    ENDED = "the transaction is over"
    STORED_IS_COMMITTED = "the transaction that was found is committed; the transactional id is not ours yet"
    FOUND_IS_ENDED = "the transaction that was found is over, and the transactional id is left to other producers"
    LOST = "Kafka aborted the transaction after it was prepared"
    ABORTABLE_FAILURE = "the transaction cannot be committed any more"
    FATAL_FAILURE = "the producer cannot go on"


_S = ProducerState

CALLS: Final[dict[tuple[ProducerState, Call], ProducerState]] = {
    (_S.UNINITIALIZED, Call.INIT_TRANSACTIONS): _S.INITIALIZING,
    (_S.READY, Call.BEGIN_TRANSACTION): _S.IN_TRANSACTION,
    # KIP-939: after a recovery that found nothing ongoing, completing is a no-op (the manager checks for that)
    (_S.READY, Call.COMPLETE_BY_COMMIT): _S.READY,
    (_S.READY, Call.COMPLETE_BY_ABORT): _S.READY,
    (_S.IN_TRANSACTION, Call.SEND): _S.IN_TRANSACTION,
    (_S.IN_TRANSACTION, Call.SEND_OFFSETS): _S.IN_TRANSACTION,
    # the flush makes it prepared, see FLUSHED_FOR_PREPARE
    (_S.IN_TRANSACTION, Call.PREPARE_TRANSACTION): _S.IN_TRANSACTION,
    (_S.IN_TRANSACTION, Call.COMMIT_TRANSACTION): _S.COMMITTING_TRANSACTION,
    (_S.IN_TRANSACTION, Call.ABORT_TRANSACTION): _S.ABORTING_TRANSACTION,
    (_S.PREPARED_TRANSACTION, Call.COMMIT_TRANSACTION): _S.COMMITTING_TRANSACTION,
    (_S.PREPARED_TRANSACTION, Call.ABORT_TRANSACTION): _S.ABORTING_TRANSACTION,
    (_S.PREPARED_TRANSACTION, Call.COMPLETE_BY_COMMIT): _S.COMMITTING_TRANSACTION,
    (_S.PREPARED_TRANSACTION, Call.COMPLETE_BY_ABORT): _S.ABORTING_TRANSACTION,
    (_S.ABORTABLE_ERROR, Call.ABORT_TRANSACTION): _S.ABORTING_TRANSACTION,
    # Without KeepPreparedTxn, InitProducerId has to wait until the stored state was compared with the description.
    (_S.READY, Call.COMPLETE_BY_TAKEOVER): _S.INITIALIZING,
    (_S.PREPARED_TRANSACTION, Call.COMPLETE_BY_TAKEOVER): _S.INITIALIZING,
    (_S.READY, Call.COMPLETE_BEFORE): _S.UNINITIALIZED,
    (_S.READY, Call.COMPLETE_LOST): _S.UNINITIALIZED,
    (_S.PREPARED_TRANSACTION, Call.COMPLETE_LOST): _S.UNINITIALIZED,
    # between the phases of a take-over, the process that holds the lock of the stored pair checks that it still does
    (_S.INITIALIZING, Call.FENCE_OTHERS): _S.INITIALIZING,
    (_S.READY, Call.FENCE_OTHERS): _S.READY,
    (_S.READY, Call.DESCRIBE): _S.READY,
    **{(state, Call.CLOSE): _S.CLOSED for state in ProducerState},
}

EVENTS: Final[dict[tuple[ProducerState, Event], ProducerState]] = {
    (_S.INITIALIZING, Event.INITIALIZED): _S.READY,
    (_S.INITIALIZING, Event.FOUND_PREPARED): _S.PREPARED_TRANSACTION,
    (_S.INITIALIZING, Event.INIT_REFUSED): _S.UNINITIALIZED,
    (_S.IN_TRANSACTION, Event.FLUSHED_FOR_PREPARE): _S.PREPARED_TRANSACTION,
    (_S.IN_TRANSACTION, Event.ABORTABLE_FAILURE): _S.ABORTABLE_ERROR,
    (_S.ABORTABLE_ERROR, Event.ABORTABLE_FAILURE): _S.ABORTABLE_ERROR,
    (_S.COMMITTING_TRANSACTION, Event.ENDED): _S.READY,
    (_S.COMMITTING_TRANSACTION, Event.STORED_IS_COMMITTED): _S.INITIALIZING,
    (_S.COMMITTING_TRANSACTION, Event.FOUND_IS_ENDED): _S.UNINITIALIZED,
    (_S.COMMITTING_TRANSACTION, Event.LOST): _S.UNINITIALIZED,
    (_S.COMMITTING_TRANSACTION, Event.ABORTABLE_FAILURE): _S.ABORTABLE_ERROR,
    (_S.ABORTING_TRANSACTION, Event.ENDED): _S.READY,
    (_S.ABORTING_TRANSACTION, Event.FOUND_IS_ENDED): _S.UNINITIALIZED,
    # a record that fails while its transaction is being aborted changes nothing
    (_S.ABORTING_TRANSACTION, Event.ABORTABLE_FAILURE): _S.ABORTING_TRANSACTION,
    **{(state, Event.FATAL_FAILURE): _S.FATAL_ERROR for state in ProducerState if state is not _S.CLOSED},
}

ENDS_THE_CALL: Final = frozenset(Event) - {Event.STORED_IS_COMMITTED}
"""The events with which the pending call has ended."""

# Advice to an application in each state, for error messages.
WHAT_NEXT: Final[dict[ProducerState, str]] = {
    _S.UNINITIALIZED: "call init_transactions() first",
    _S.INITIALIZING: "repeat init_transactions() with the same argument until it returns",
    _S.READY: "call begin_transaction() to open a transaction",
    _S.IN_TRANSACTION: "send, then prepare, commit or abort",
    _S.PREPARED_TRANSACTION: "call complete_transaction() with the state that the database holds, or commit or abort",
    _S.COMMITTING_TRANSACTION: "repeat the call that commits until it returns",
    _S.ABORTING_TRANSACTION: "repeat the call that aborts until it returns",
    _S.ABORTABLE_ERROR: "call abort_transaction() and start again",
    _S.FATAL_ERROR: "close this producer and create a new one",
    _S.CLOSED: "create a new producer",
}


class BlockExit(NamedTuple):
    """Whether to abort the transaction, and a note about it for the exception that leaves the block."""

    abort: bool
    note: str | None = None


_ABORT: Final = BlockExit(abort=True)
_NOTHING_OPEN: Final = BlockExit(abort=False)

# A transaction that only this producer knows is aborted. One that may be decided already, by a database or at the
# coordinator, is left alone: aborting it would be a guess.
BLOCK_EXITS: Final[dict[ProducerState, BlockExit]] = {
    _S.UNINITIALIZED: _NOTHING_OPEN,
    _S.INITIALIZING: _NOTHING_OPEN,
    _S.READY: _NOTHING_OPEN,
    _S.IN_TRANSACTION: _ABORT,
    _S.ABORTABLE_ERROR: _ABORT,
    _S.ABORTING_TRANSACTION: _ABORT,
    _S.PREPARED_TRANSACTION: BlockExit(
        abort=False,
        note="the transaction stays prepared, because the decision may have been stored: call complete_transaction() "
        "with the state that the database holds",
    ),
    _S.COMMITTING_TRANSACTION: BlockExit(
        abort=False,
        note="the commit has no outcome yet and may still take effect: repeat the call that commits until it returns; "
        "it joins the commit that is under way",
    ),
    _S.FATAL_ERROR: _NOTHING_OPEN,
    _S.CLOSED: _NOTHING_OPEN,
}


def abort_failed_note(error: BaseException) -> str:
    """Return a note for the exception that left the block, after the abort failed with `error`."""
    return f"the transaction could not be aborted: {error}"
