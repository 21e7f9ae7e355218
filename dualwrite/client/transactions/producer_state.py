"""Where a transactional producer stands. Only the tables of `states` change it, and each change is logged."""

from __future__ import annotations

from typing import Final

from dualwrite.client.transactions.state_log import log_change
from dualwrite.client.transactions.states import CALLS, EVENTS, WHAT_NEXT, Call, Event, ProducerState
from dualwrite.errors import IllegalStateError, InvalidTxnStateError, KafkaError

COMPLETE_TRANSACTION: Final = "complete_transaction()"

_NO_OPS: Final = (Call.COMPLETE_BY_COMMIT, Call.COMPLETE_BY_ABORT)


class StateMachine:
    """State, identity, and why it failed if it did."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id: Final = transactional_id
        self.state = ProducerState.UNINITIALIZED
        self.producer_id = -1
        self.producer_epoch = -1
        # after init_transactions(keep_prepared_txn=True) found nothing, completing is a no-op (KIP-939)
        self._nothing_to_complete = False
        self._error: KafkaError | None = None

    @property
    def error(self) -> KafkaError | None:
        """Why the transaction or the producer failed, while it is failed."""
        return self._error

    @property
    def standing(self) -> str:
        """Whose state this is and which, as a part of a sentence."""
        return f"the producer of transactional id {self.transactional_id!r} is {self.state.value}"

    def consequence(self, event: Event) -> str:
        """What a batch's fate means for the producer, as the end of a sentence."""
        after = EVENTS.get((self.state, event), ProducerState.FATAL_ERROR)
        return f"; transactional id {self.transactional_id!r} is now {after.value}: {WHAT_NEXT[after]}"

    def _enter(self, call: Call) -> None:
        """A call of the application. Raises what tells it why it may not be made now."""
        state = CALLS.get((self.state, call))
        if state is None:
            raise self._not_allowed(call)
        if call in _NO_OPS and state is ProducerState.READY and not self._nothing_to_complete:
            raise InvalidTxnStateError(
                f"nothing is prepared, so {COMPLETE_TRANSACTION} has nothing to complete: {self.standing}; "
                f"{WHAT_NEXT[self.state]}"
            )
        self._change(state, call)

    def _happen(self, event: Event, error: KafkaError | None = None) -> None:
        """Something that Kafka said, or did not say."""
        self._change(EVENTS[self.state, event], event, error)

    def _change(self, state: ProducerState, cause: Call | Event, error: KafkaError | None = None) -> None:
        before, self.state = self.state, state
        log_change(self.transactional_id, before, state, cause, (self.producer_id, self.producer_epoch), error)

    def _not_allowed(self, call: Call) -> Exception:
        if self._error is not None and self.state in (ProducerState.ABORTABLE_ERROR, ProducerState.FATAL_ERROR):
            return self._the_error_again(call, self._error)
        sentence = f"{call.value} is not allowed while {self.standing}; {WHAT_NEXT[self.state]}"
        return InvalidTxnStateError(sentence) if call in _NO_OPS else IllegalStateError(sentence)

    def _the_error_again(self, call: Call, error: KafkaError) -> Exception:
        if call is Call.INIT_TRANSACTIONS and self.state is ProducerState.ABORTABLE_ERROR:
            return IllegalStateError(
                f"{call.value} is not allowed any more while {self.standing}; {WHAT_NEXT[self.state]}"
            )
        again = error.reworded(f"{call.value}: {self.standing}; {WHAT_NEXT[self.state]}. Cause: {error}")
        again.__cause__ = error
        return again
