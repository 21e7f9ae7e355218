"""The current state of a transactional producer. Only the tables of `states` change it, and each change is logged.

The log: DEBUG for changes that follow from a call of the application, INFO and WARNING for those that make a
transaction or the producer unusable. The application gets these as exceptions too.
"""

from __future__ import annotations

import logging
from typing import Final

from dualwrite.client.late_log import LateLog
from dualwrite.client.operations import Operation, PendingCall
from dualwrite.client.transactions.open_transaction import NOT_PREPARED, GroupOffsets, OpenTransaction
from dualwrite.client.transactions.states import CALLS, ENDS_THE_CALL, EVENTS, WHAT_NEXT, Call, Event, ProducerState
from dualwrite.errors import IllegalStateError, InvalidTxnStateError, KafkaError
from dualwrite.prepared_state import PreparedTxnState

COMPLETE_TRANSACTION: Final = "complete_transaction()"

_NO_OPS: Final = (Call.COMPLETE_BY_COMMIT, Call.COMPLETE_BY_ABORT)
_LEVELS: Final = {ProducerState.ABORTABLE_ERROR: logging.INFO, ProducerState.FATAL_ERROR: logging.WARNING}

_log = logging.getLogger(__name__)


class StateMachine:
    """State, pending call and open transaction, producer id and epoch, and the error of a failed producer.

    Invariant: `state` changes only as the tables `CALLS` and `EVENTS` allow, and together with the pending call: no
    function is called between their assignments, so the exception of a signal's handler cannot separate them.
    """

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id: Final = transactional_id
        self.late_log: Final = LateLog()
        self.pending: Final = PendingCall()
        self.transaction: Final = OpenTransaction()
        self.state = ProducerState.UNINITIALIZED
        self.producer_id = -1
        self.producer_epoch = -1
        self.nothing_to_complete = False
        """Whether init_transactions(keep_prepared_txn=True) found nothing: completing is a no-op then (KIP-939)."""
        self.error: KafkaError | None = None
        """Why the transaction or the producer failed, while it is failed."""

    @property
    def standing(self) -> str:
        """The producer's transactional id and state, as part of a sentence."""
        return f"the producer of transactional id {self.transactional_id!r} is {self.state.value}"

    @property
    def pair(self) -> PreparedTxnState:
        """The producer id and epoch; empty while there is none."""
        return PreparedTxnState.of(producer_id=self.producer_id, producer_epoch=self.producer_epoch)

    def adopt(self, pair: PreparedTxnState) -> None:
        """Use another producer id and epoch. Sequences restart with it, because the accumulator compares the pair."""
        self.producer_id = pair.producer_id
        self.producer_epoch = pair.producer_epoch

    def consequence(self, event: Event) -> str:
        """Return the consequence of a failed batch for the producer, as the end of a sentence."""
        after = EVENTS.get((self.state, event), ProducerState.FATAL_ERROR)
        return f"; transactional id {self.transactional_id!r} is now {after.value}: {WHAT_NEXT[after]}"

    def allowed(self, call: Call) -> ProducerState:
        """Return the state that a call of the application leads to; raise if it is not allowed in this state."""
        state = CALLS.get((self.state, call))
        if state is None:
            raise self._not_allowed(call)
        if call in _NO_OPS and state is ProducerState.READY and not self.nothing_to_complete:
            raise InvalidTxnStateError(
                f"nothing is prepared, so {COMPLETE_TRANSACTION} has nothing to complete: {self.standing}; "
                f"{WHAT_NEXT[self.state]}"
            )
        return state

    def start(
        self, call: Call, name: str, argument: object, *, is_over: bool = False, error: KafkaError | None = None
    ) -> Operation:
        """Begin a call that is allowed here: it is pending in the state that it leads to, in place of any other.

        `is_over`: it has nothing to wait for, and ends with `error`.
        """
        after = self.allowed(call)
        operation = Operation(name, argument, done=is_over, error=error)
        offsets = argument if isinstance(argument, GroupOffsets) else None
        before, transaction, replaced = self.state, self.transaction, self.pending.unfinished
        refusal = None if replaced is None else IllegalStateError(f"{replaced.name} was replaced by {name}")
        self.pending.operation = operation
        self.state = after
        if offsets is not None:
            transaction.offsets.current = offsets
            transaction.has_records = transaction.has_offsets = True
        if replaced is not None:
            transaction.offsets.current = None
            replaced.error = refusal
            replaced.done = True
            replaced.notify()
        self._note_change(before, call, None)
        return operation

    def enter(self, after: ProducerState, call: Call) -> None:
        """Change to the state that a call leads to which has ended with that."""
        before = self.state
        self.state = after
        self.nothing_to_complete = False
        self._note_change(before, call, None)

    def happen(self, event: Event, error: KafkaError | None = None) -> None:
        """Change to the state that a response of Kafka, or the lack of one, leads to; the pending call has ended then.

        An abortable failure leaves nothing of the transaction that a commit could use.
        """
        after = EVENTS[self.state, event]
        operation = self.pending.unfinished if event in ENDS_THE_CALL else None
        before, transaction = self.state, self.transaction
        self.state = after
        if event is Event.ABORTABLE_FAILURE:
            transaction.failed = True
            transaction.prepared_state = NOT_PREPARED
            transaction.offsets.current = None
            if self.error is None:
                self.error = error
        elif event is Event.FATAL_FAILURE:
            transaction.offsets.current = None
            self.error = error
        if operation is not None:
            operation.error = error
            operation.done = True
            operation.notify()
        self._note_change(before, event, error)

    def _note_change(self, before: ProducerState, cause: Call | Event, error: KafkaError | None) -> None:
        after = self.state
        level = _LEVELS.get(after, logging.DEBUG)
        if before is after or not _log.isEnabledFor(level):
            return
        self.late_log.note(
            _log,
            level,
            "transactional id %s: %s -> %s by %s (producer id %d, epoch %d)%s",
            self.transactional_id,
            before.name,
            after.name,
            cause.name,
            self.producer_id,
            self.producer_epoch,
            "" if error is None else f": {error}",
        )

    def _not_allowed(self, call: Call) -> Exception:
        if self.error is not None and self.state in (ProducerState.ABORTABLE_ERROR, ProducerState.FATAL_ERROR):
            return self._same_error_again(call, self.error)
        sentence = f"{call.value} is not allowed while {self.standing}; {WHAT_NEXT[self.state]}"
        return InvalidTxnStateError(sentence) if call in _NO_OPS else IllegalStateError(sentence)

    def _same_error_again(self, call: Call, error: KafkaError) -> Exception:
        if call is Call.INIT_TRANSACTIONS and self.state is ProducerState.ABORTABLE_ERROR:
            return IllegalStateError(
                f"{call.value} is no longer allowed while {self.standing}; {WHAT_NEXT[self.state]}"
            )
        again = error.reworded(f"{call.value}: {self.standing}; {WHAT_NEXT[self.state]}. Cause: {error}")
        again.__cause__ = error
        return again
