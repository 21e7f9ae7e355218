"""The current state of a transactional producer. Only the tables of `states` change it, and each change is logged.

The log: DEBUG for changes that follow from a call of the application, INFO and WARNING for those that make a
transaction or the producer unusable. The application gets these as exceptions too.
"""

from __future__ import annotations

import logging
from typing import Final

from dualwrite.client.late_log import LateLog
from dualwrite.client.transactions.states import CALLS, EVENTS, WHAT_NEXT, Call, Event, ProducerState
from dualwrite.errors import IllegalStateError, InvalidTxnStateError, KafkaError
from dualwrite.prepared_state import PreparedTxnState

COMPLETE_TRANSACTION: Final = "complete_transaction()"

_NO_OPS: Final = (Call.COMPLETE_BY_COMMIT, Call.COMPLETE_BY_ABORT)
_LEVELS: Final = {ProducerState.ABORTABLE_ERROR: logging.INFO, ProducerState.FATAL_ERROR: logging.WARNING}

_log = logging.getLogger(__name__)


class StateMachine:
    """State, producer id and epoch, and the error of a failed producer.

    Invariant: `state` changes only as the tables `CALLS` and `EVENTS` allow.
    """

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id: Final = transactional_id
        self.late_log: Final = LateLog()
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

    def enter(self, call: Call) -> None:
        """Change to the state that a call of the application leads to; raise if it is not allowed in this state."""
        state = CALLS.get((self.state, call))
        if state is None:
            raise self._not_allowed(call)
        if call in _NO_OPS and state is ProducerState.READY and not self.nothing_to_complete:
            raise InvalidTxnStateError(
                f"nothing is prepared, so {COMPLETE_TRANSACTION} has nothing to complete: {self.standing}; "
                f"{WHAT_NEXT[self.state]}"
            )
        self._change(state, call)

    def happen(self, event: Event, error: KafkaError | None = None) -> None:
        """Change to the state that a response of Kafka, or the lack of one, leads to."""
        self._change(EVENTS[self.state, event], event, error)

    def _change(self, after: ProducerState, cause: Call | Event, error: KafkaError | None = None) -> None:
        before, self.state = self.state, after
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
