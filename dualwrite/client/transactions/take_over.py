"""The take-over of a transactional id, and the completion of its previous owner's transaction.

`initialisation` plans the steps and `recovery` has the decision tables; this module carries them out and changes the
producer's state accordingly.
"""

from __future__ import annotations

from typing import Final

from dualwrite.client import messages as m
from dualwrite.client.operations import Operation
from dualwrite.client.transactions.context import TransactionContext
from dualwrite.client.transactions.errors import (
    RETRIED,
    end_not_described,
    id_taken_over,
    overtaken,
    still_prepared_by_keep,
    taken_meanwhile,
)
from dualwrite.client.transactions.initialisation import Step, described
from dualwrite.client.transactions.recovery import (
    REFUSALS,
    TRANSACTIONAL_ID_NOT_FOUND,
    AfterRefusal,
    Described,
    DescribedState,
    Recovery,
    SecondDescription,
    Settling,
    find,
)
from dualwrite.client.transactions.states import Call, Event, ProducerState
from dualwrite.errors import Api, ErrorClass, KafkaError, error_class
from dualwrite.prepared_state import PreparedTxnState

ENDED_BY_ANOTHER_CODES: Final = (47, 48, 49, 90)
"""Refusals of EndTxn after which DescribeTransactions may show how another producer ended a prepared transaction:
INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED."""

INVALID_TXN_STATE: Final = 48
CONCURRENT_TRANSACTIONS: Final = 51

_KEEPING: Final = (Step.TRY_KEEP, Step.PROBE_KEEP)
_KEEP_IS_SUPPORTED_CODES: Final = (42, 90)
"""Responses to KeepPreparedTxn with a pair that no producer has, from a broker that supports it: INVALID_REQUEST, as in
KIP-939, or PRODUCER_FENCED."""


class TakeOver:
    """The take-over of one producer's transactional id: ends when the producer owns the id or leaves it to another.

    Invariant: a transaction that another producer may have decided is compared with the stored pair before it is
    changed; and the initialisation ends only when no step of the take-over is left.
    """

    def __init__(self, context: TransactionContext) -> None:
        self._context: Final = context
        self._initialisation: Final = context.initialisation
        self.fences_later = False
        """Whether the second phase of the take-over waits for `fence_others()`."""
        self.described: Described | None = None
        """The result of the application's last `describe()`."""
        self.refused_with: int | None = None
        """Why the commit of a prepared transaction was refused, until DescribeTransactions shows its end."""

    # ---- calls of the application ---------------------------------------------------------------------------

    def complete(
        self,
        recovery: Recovery,
        name: str,
        stored: PreparedTxnState | None,
        *,
        take_over: bool = True,
        fence_others: bool = True,
    ) -> Operation:
        """Complete the described transaction, without KeepPreparedTxn. `stored` None: no pair was given."""
        context = self._context
        joined = context.join(name, stored)
        if joined is not None:
            return joined
        found = self._initialisation.found
        assert found is not None
        self.fences_later = self._initialisation.is_checked_between = not fence_others
        context.transaction.leaves_id = False
        if recovery is Recovery.LOST:
            assert stored is not None
            return self._leave(Call.COMPLETE_LOST, name, stored, self._initialisation.lost(stored, found))
        if recovery is Recovery.COMMIT:
            context.adopt(found.pair)
            context.transaction.leaves_id = not take_over
            return context.start(Call.COMPLETE_BY_COMMIT, name, stored)
        if take_over or not self._may_leave_id(found, stored):
            context.adopt(self._initialisation.decide(stored or PreparedTxnState()))
            return context.start(Call.COMPLETE_BY_TAKEOVER, name, stored)
        if found.state is DescribedState.ONGOING:
            context.adopt(found.pair)
            context.transaction.leaves_id = True
            return context.start(Call.COMPLETE_BY_ABORT, name, stored)
        return self._leave(Call.COMPLETE_BEFORE, name, stored, None)

    def _leave(self, call: Call, name: str, stored: PreparedTxnState | None, error: KafkaError | None) -> Operation:
        """Leave the id without a request: after a loss, the next recovery must see the same."""
        operation = self._context.start(call, name, stored, is_over=True, error=error)
        self._context.leave_id()
        return operation

    def _may_leave_id(self, found: Described, stored: PreparedTxnState | None) -> bool:
        """Return whether EndTxn alone, or no request at all, ends the transaction and stops the producer that began it.

        From transaction.version 2 an abort raises the epoch (KIP-890), which fences that producer; before, it does not.
        If no transaction is open and a pair is stored, the dual write was prepared and has been committed, so its
        producer has finished. Without a stored pair, the producer may be about to begin its transaction.
        """
        if found.state is DescribedState.ONGOING:
            return self._initialisation.is_v2
        return bool(stored)

    def fence_others(self) -> Operation:
        """Begin the second phase of a take-over; see `TransactionManager.fence_others`."""
        context = self._context
        joined = context.join(Call.FENCE_OTHERS.value, None)
        if joined is not None:
            return joined
        context.allowed(Call.FENCE_OTHERS)
        self.fences_later = False
        self._continue()
        is_over = context.state is not ProducerState.INITIALIZING
        return context.start(Call.FENCE_OTHERS, Call.FENCE_OTHERS.value, None, is_over=is_over)

    def committed(self, by_another: Described | None = None) -> None:
        """Continue after a commit. `by_another`: the description of the id after another producer committed.

        If that transaction was begun by this producer, which had the id, the other one has taken the id over since.
        Until its markers are written, a partition would add records with the old pair to the committed transaction.
        """
        context = self._context
        if self._initialisation.found is None or context.transaction.leaves_id:
            if by_another is None or context.transaction.leaves_id:
                context.ended()
            else:
                self._committed_and_fenced(by_another)
            return
        if by_another is None:
            self._initialisation.committed(context.pair)
        else:
            context.adopt(self._initialisation.decide(context.transaction.prepared_state, by_another))
        context.happen(Event.STORED_IS_COMMITTED)
        context.forget_transaction()
        self._continue()

    def _committed_and_fenced(self, by_another: Described) -> None:
        """Let the commit succeed, and refuse every later call."""
        context = self._context
        context.forget_transaction()
        context.pending.finish(None)
        context.fail_fatal(id_taken_over(context.transactional_id, context.pair, by_another))

    # ---- responses to the steps -----------------------------------------------------------------------------

    def on_features(self, response: m.BrokerFeatures, now_ms: float) -> None:
        """Plan the take-over by the coordinator's features."""
        context = self._context
        if response.error_code:
            context.failed_with(Api.API_VERSIONS, response.error_code, now_ms)
            return
        context.exchange.backoff.succeeded()
        refusal = self._initialisation.take_features(response)
        if refusal is not None:
            context.fail_fatal(refusal)

    def on_initialised(self, step: Step | None, response: m.InitProducerIdResponse, now_ms: float) -> None:
        """Use the producer id and epoch of an InitProducerId, or handle its refusal."""
        if response.error_code:
            if step in _KEEPING and self._on_refused_keep(step, response.error_code):
                return
            self._failed(Api.INIT_PRODUCER_ID, response.error_code, now_ms)
            return
        self._context.exchange.backoff.succeeded()
        if step in _KEEPING:
            self._on_kept(response)
            return
        self._took_over(DescribedState.EMPTY, response.producer_id, response.producer_epoch)

    def on_pair_spent(self, response: m.EndTxnResponse, now_ms: float) -> None:
        """Use the epoch that EndTxn(abort) has raised."""
        if response.error_code:
            self._failed(Api.END_TXN, response.error_code, now_ms)
            return
        self._context.exchange.backoff.succeeded()
        self._took_over(DescribedState.COMPLETE_ABORT, response.producer_id, response.producer_epoch)

    def _took_over(self, state: DescribedState, producer_id: int, producer_epoch: int) -> None:
        """Adopt the raised epoch of a step, which leaves the id in `state`."""
        pair = PreparedTxnState.of(producer_id=producer_id, producer_epoch=producer_epoch)
        self._context.adopt(pair)
        self._initialisation.took_over(state, pair)
        self._continue()

    def _continue(self) -> None:
        """End the initialisation if no step is left; else the next step follows with the next `poll()`."""
        context = self._context
        if context.state is not ProducerState.INITIALIZING or self._initialisation.steps:
            return
        if self.fences_later:
            context.pending.finish(None)
        elif not self._initialisation.begin_second_phase():
            context.initialised()

    def _failed(self, api: Api, error_code: int, now_ms: float) -> None:
        context = self._context
        if self._initialisation.found is not None and error_code in ENDED_BY_ANOTHER_CODES:
            refusal = context.refusal(api, error_code, ErrorClass.FENCED)
            context.fail_fatal(taken_meanwhile(refusal, error_code))
            return
        context.failed_with(api, error_code, now_ms)

    def _on_refused_keep(self, step: Step | None, error_code: int) -> bool:
        """Continue without KeepPreparedTxn if the refusal allows that; return whether it was handled."""
        context = self._context
        if step is Step.PROBE_KEEP and error_code in _KEEP_IS_SUPPORTED_CODES:
            context.exchange.backoff.succeeded()
            self._on_nothing_open(self._initialisation.take_support_of_keep())
            return True
        taken = self._initialisation.take_refused_keep(error_code)
        if isinstance(taken, KafkaError):
            context.fail_fatal(taken)
            return True
        return taken

    def _on_kept(self, response: m.InitProducerIdResponse) -> None:
        context = self._context
        ongoing = PreparedTxnState.of(
            producer_id=response.ongoing_producer_id, producer_epoch=response.ongoing_producer_epoch
        )
        pair = PreparedTxnState.of(producer_id=response.producer_id, producer_epoch=response.producer_epoch)
        context.adopt(pair)
        if ongoing == pair:
            context.fail_fatal(still_prepared_by_keep(context.transactional_id, ongoing))
            return
        decided = self._initialisation.found
        if not self._initialisation.take_kept(ongoing=not ongoing.is_empty):
            return
        if decided is None and ongoing.is_empty:
            context.nothing_to_complete = self._initialisation.keep
            context.initialised()
        elif decided is None:
            context.found_prepared(ongoing)
        elif ongoing.is_empty:
            self._continue()
        else:
            now = Described(DescribedState.ONGOING, ongoing, -1)
            context.fail_fatal(overtaken(context.transactional_id, now, stored_is_committed=False))

    # ---- descriptions ---------------------------------------------------------------------------------------

    def on_described(self, step: Step | None, response: m.DescribeTransactionResponse, now_ms: float) -> None:
        """Continue with the response of DescribeTransactions, by the step that requested it."""
        if response.error_code not in (0, TRANSACTIONAL_ID_NOT_FOUND):
            self._on_not_described(response.error_code, now_ms)
            return
        context = self._context
        context.exchange.backoff.succeeded()
        now = described(response)
        if step is Step.DESCRIBE:
            self._on_first_description(now)
        elif step is Step.SETTLE:
            self._on_settling_description(now, now_ms)
        elif step is Step.DESCRIBE_AGAIN:
            self._on_second_description(now, now_ms)
        elif self.refused_with is not None:
            self._on_cause_described(self.refused_with, now)
        elif now.is_ending:  # its pair is not the final one
            context.exchange.retry_later(now_ms, CONCURRENT_TRANSACTIONS)
        else:
            self.described = now
            context.pending.finish(None)

    def _on_first_description(self, now: Described) -> None:
        if not self._initialisation.take_description(now):
            return
        if now.state is DescribedState.ONGOING:
            self._context.found_prepared(now.pair)
        else:
            self._on_nothing_open(now)

    def _on_nothing_open(self, found: Described) -> None:
        """End the initialisation with a pair to compare with the stored one; the id is not this producer's yet."""
        context = self._context
        context.adopt(found.pair)
        context.nothing_to_complete = True
        context.initialised()

    def _on_second_description(self, now: Described, now_ms: float) -> None:
        context = self._context
        decided = self._initialisation.found
        comparison = self._initialisation.take_second_description(now)
        if comparison is SecondDescription.WAIT:
            context.exchange.retry_later(now_ms, CONCURRENT_TRANSACTIONS)
        elif comparison is SecondDescription.OVERTAKEN:
            is_committed = decided is not None and decided.is_committed
            context.fail_fatal(overtaken(context.transactional_id, now, stored_is_committed=is_committed))
        elif self._initialisation.found is not None:
            context.adopt(self._initialisation.found.pair)

    def _on_settling_description(self, now: Described, now_ms: float) -> None:
        context = self._context
        following = self._initialisation.take_settling_description(context.pair, now)
        if following is Settling.TAKEN_OVER:
            context.fail_fatal(id_taken_over(context.transactional_id, context.pair, now))
        elif following in (Settling.DESCRIBE_AGAIN, Settling.AWAIT_RAISE):
            context.exchange.retry_later(now_ms)

    def on_reopened_ended(self, response: m.EndTxnResponse, now_ms: float) -> None:
        """Continue after the abort of a transaction that a late request of this producer had opened."""
        if response.error_code not in (0, INVALID_TXN_STATE):  # 48: it was over already
            self._context.failed_with(Api.END_TXN, response.error_code, now_ms)
            return
        self._context.exchange.backoff.succeeded()
        self._initialisation.ended_reopened()

    def _on_not_described(self, error_code: int, now_ms: float) -> None:
        context, refused_with = self._context, self.refused_with
        if refused_with is None or error_class(Api.DESCRIBE_TRANSACTIONS, error_code) in RETRIED:
            context.failed_with(Api.DESCRIBE_TRANSACTIONS, error_code, now_ms)
            return
        self.refused_with = None  # no broker knows its end: only the refusal itself is known
        context.failed_with(Api.END_TXN, refused_with, now_ms)

    def _on_cause_described(self, refused_with: int, now: Described) -> None:
        """Handle the refused commit of a prepared transaction, now that the id was described."""
        self.refused_with = None
        context = self._context
        prepared = context.transaction.prepared_state
        after = REFUSALS[find(prepared, now, self._initialisation.transaction_version)]
        if after is AfterRefusal.COMMITTED:
            self.committed(now)
        elif after is AfterRefusal.LOST:
            context.happen(Event.LOST, self._initialisation.lost(prepared, now))
            context.leave_id()
        else:
            refusal = context.refusal(Api.END_TXN, refused_with, ErrorClass.FENCED)
            context.fail_fatal(end_not_described(refusal, refused_with, prepared, now))
