"""The shared context of a transactional producer's calls, responses and take-over, and their failures.

`TransactionContext` has it all. `Coordinators` and `Exchange` are its part towards the brokers: where requests go, the
one in flight, and when the next one may be sent.
"""

from __future__ import annotations

from typing import Final

from dualwrite.client import messages as m
from dualwrite.client.operations import Operation
from dualwrite.client.pacing import Backoff
from dualwrite.client.producer_port import Outgoing
from dualwrite.client.transactions.earlier import EarlierTransactions
from dualwrite.client.transactions.errors import RETRIED, commit_outcome_unknown, refusal_sentence
from dualwrite.client.transactions.initialisation import Initialisation, Step
from dualwrite.client.transactions.open_transaction import NOT_PREPARED
from dualwrite.client.transactions.producer_state import StateMachine
from dualwrite.client.transactions.states import EVENTS, Call, Event, ProducerState
from dualwrite.errors import (
    Api,
    ErrorClass,
    FatalError,
    IllegalStateError,
    KafkaError,
    error_class,
    exception_for,
)
from dualwrite.guarantee import Guarantee
from dualwrite.prepared_state import PreparedTxnState

FINISHED: Final = (ProducerState.FATAL_ERROR, ProducerState.CLOSED)
PRODUCING: Final = (ProducerState.IN_TRANSACTION, ProducerState.COMMITTING_TRANSACTION)

_ENDS_THE_PRODUCER: Final = frozenset({ErrorClass.FENCED, ErrorClass.UNSUPPORTED, ErrorClass.FATAL})


class Coordinators:
    """The transaction coordinator, and the coordinator of the group whose offsets go with the transaction.

    Invariant: a node is known only after a FindCoordinator response without an error, and until a response says that it
    is no longer the coordinator. A request for an unknown coordinator is replaced by FindCoordinator.
    """

    __slots__ = ("_group", "_transactional_id", "of_transaction")

    def __init__(self, transactional_id: str) -> None:
        self._transactional_id: Final = transactional_id
        self.of_transaction: int | None = None
        """Node id of the transaction coordinator, if known."""
        self._group: tuple[str, int] | None = None

    def of_group(self, group_id: str) -> int | None:
        """Return the node id of the group's coordinator, if known."""
        return self._group[1] if self._group is not None and self._group[0] == group_id else None

    def to_transaction(self, request: m.Request) -> Outgoing:
        """Address `request` to the transaction coordinator; return FindCoordinator while that is unknown."""
        if self.of_transaction is None:
            return Outgoing(m.FindCoordinator(m.CoordinatorType.TRANSACTION, self._transactional_id), m.ANY_NODE)
        return Outgoing(request, self.of_transaction)

    def find_group(self, group_id: str) -> Outgoing:
        """Return the FindCoordinator request for a group."""
        return Outgoing(m.FindCoordinator(m.CoordinatorType.GROUP, group_id), m.ANY_NODE)

    def learn(self, request: m.FindCoordinator, response: m.FindCoordinatorResponse) -> None:
        """Store the coordinator that a response without an error names."""
        if request.key_type is m.CoordinatorType.TRANSACTION:
            self.of_transaction = response.node_id
        else:
            self._group = (request.key, response.node_id)

    def forget(self, api: Api) -> None:
        """Forget the coordinator that requests of `api` go to: it has moved, or its node cannot be reached."""
        if api is Api.TXN_OFFSET_COMMIT:
            self._group = None
        else:
            self.of_transaction = None


class Exchange:
    """The manager's exchange with the brokers, one request at a time.

    Invariant: there is at most one request in flight, and none is sent before `retry_at_ms`. A request that got no
    response, or a retriable error, is followed by the same request.
    """

    __slots__ = ("backoff", "init_unanswered", "request", "retry_at_ms", "step")

    def __init__(self, backoff: Backoff) -> None:
        self.backoff = backoff
        self.request: m.Request | None = None
        """The request in flight."""
        self.step: Step | None = None
        """The step of taking the id over that the request in flight carries out, if it is one."""
        self.retry_at_ms = 0.0
        """When the next request may be sent; 0.0: at once."""
        self.init_unanswered = False
        """Whether an InitProducerId went without a response: it may arrive late, and fence this producer itself."""

    @property
    def commit_in_flight(self) -> bool:
        """Whether the request in flight is EndTxn(commit)."""
        return isinstance(self.request, m.EndTxn) and self.request.committed

    def end(self) -> tuple[m.Request | None, Step | None]:
        """Return the request in flight and its step; from now on there is none."""
        request, step = self.request, self.step
        self.request = self.step = None
        return request, step

    def retry_later(self, now_ms: float, error_code: int | None = None) -> None:
        """Wait for the back-off before the next request."""
        self.retry_at_ms = now_ms + self.backoff.failed(error_code)


class TransactionContext(StateMachine):
    """The shared state of a transactional producer, and the ways in which a transaction, an id or the producer ends.

    Invariant: each of these ends changes the state by the tables, forgets or marks the open transaction, and finishes
    the pending call. A producer fails with `CommitOutcomeUnknown` as long as a commit that was sent may take effect.
    """

    def __init__(
        self,
        *,
        transactional_id: str,
        transaction_timeout_ms: int,
        two_phase_commit: bool,
        accepts_bound: bool,
        backoff: Backoff,
    ) -> None:
        super().__init__(transactional_id)
        self.two_phase_commit: Final = two_phase_commit
        self.earlier: Final = EarlierTransactions()
        self.exchange: Final = Exchange(backoff)
        self.coordinators: Final = Coordinators(transactional_id)
        self.initialisation: Final = Initialisation(
            transactional_id=transactional_id,
            two_phase_commit=two_phase_commit,
            accepts_bound=accepts_bound,
            transaction_timeout_ms=transaction_timeout_ms,
        )
        self._guarantee: Guarantee | None = None

    # ---- the guarantee --------------------------------------------------------------------------------------

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee on the broker that was found; `IllegalStateError` before `init_transactions()`."""
        if self._guarantee is None:
            raise IllegalStateError(f"the guarantee is known after init_transactions(): {self.standing}")
        return self._guarantee

    @property
    def bounded_ms(self) -> int | None:
        """How long a prepared transaction lasts; None if unlimited, or unknown yet."""
        return None if self._guarantee is None or not self.two_phase_commit else self._guarantee.bounded_ms

    def follow_version(self) -> None:
        """Adopt the cluster's transaction.version. Only between transactions: an open one keeps its version."""
        if self.initialisation.follow_version():
            self._guarantee = self.initialisation.guarantee

    # ---- the pending call -----------------------------------------------------------------------------------

    def start(
        self, call: Call, name: str, argument: object, *, is_over: bool = False, error: KafkaError | None = None
    ) -> Operation:
        """Begin a call that is allowed here; failures of an earlier one do not delay it."""
        self.exchange.backoff.succeeded()
        self.exchange.retry_at_ms = 0.0
        return super().start(call, name, argument, is_over=is_over, error=error)

    def join(self, name: str, argument: object) -> Operation | None:
        """Return the same call made before, if it is pending; raise `IllegalStateError` if another one is."""
        return None if self.pending.operation is None else self.pending.join(name, argument, self.standing)

    # ---- ends -----------------------------------------------------------------------------------------------

    def initialised(self) -> None:
        """End the initialisation: a transaction may be begun."""
        self.forget_transaction()
        self._guarantee = self.initialisation.guarantee
        self.happen(Event.INITIALIZED)

    def found_prepared(self, prepared: PreparedTxnState) -> None:
        """End the initialisation with a prepared transaction of an earlier producer, which the application decides."""
        self.transaction.prepared_state = prepared
        self.transaction.has_records = self.transaction.reached_kafka = True
        self.transaction.stored.are_known = False
        self._guarantee = self.initialisation.guarantee
        self.happen(Event.FOUND_PREPARED)

    def ended(self) -> None:
        """End the transaction: it is committed or aborted."""
        transaction = self.transaction
        if transaction.leaves_id:
            self.happen(Event.FOUND_IS_ENDED)
            self.leave_id()
            return
        aborting = self.state is ProducerState.ABORTING_TRANSACTION
        if aborting and transaction.reached_kafka and not self.initialisation.is_v2:
            # batches that were given up left gaps in their sequences (KIP-360); version 2 has a new epoch by now
            self.initialisation.raise_epoch()
        self.forget_transaction()
        self.follow_version()
        self.happen(Event.ENDED)

    def leave_id(self) -> None:
        """Leave the transactional id to the next producer that takes it over: this one has no open transaction."""
        self.forget_transaction()
        self.adopt(NOT_PREPARED)
        self.nothing_to_complete = False

    def forget_transaction(self) -> None:
        """Forget the open transaction and why it failed."""
        self.transaction.clear()
        self.earlier.clear()
        self.error = None

    # ---- failures -------------------------------------------------------------------------------------------

    def fail_abortable(self, error: KafkaError) -> None:
        """Fail the transaction: a part of it is lost, so it can only be aborted."""
        if (self.state, Event.ABORTABLE_FAILURE) not in EVENTS:
            self.fail_fatal(FatalError(f"unexpected while the producer is {self.state.value}: {error}"))
            return
        if self.state is ProducerState.ABORTING_TRANSACTION:
            return
        self.happen(Event.ABORTABLE_FAILURE, error)

    def fail_fatal(self, error: KafkaError) -> None:
        """Fail the producer for good."""
        if self.state not in FINISHED:
            self.happen(Event.FATAL_FAILURE, self.or_outcome_unknown(error))

    @property
    def commit_may_take_effect(self) -> bool:
        """Whether a commit was sent without a response that says that it has no effect."""
        return self.exchange.commit_in_flight or self.transaction.commit_may_take_effect

    def or_outcome_unknown(self, error: KafkaError) -> KafkaError:
        """Return `CommitOutcomeUnknown`, caused by `error`, if a commit that was sent may take effect; else `error`."""
        if not self.commit_may_take_effect:
            return error
        return commit_outcome_unknown(error, self.transactional_id, self.transaction.prepared_state)

    def failed_with(self, api: Api, error_code: int, now_ms: float, *, resource: str | None = None) -> None:
        """Retry the request, or fail the transaction or the producer, as the error code's class says.

        `resource` is the request's subject, unless that is the transactional id.
        """
        error_kind = error_class(api, error_code)
        if error_kind in RETRIED:
            self.exchange.retry_later(now_ms, error_code)
            if api is Api.INIT_PRODUCER_ID:
                self.initialisation.failed_to_take_over()
            if error_kind is ErrorClass.RETRIABLE_AFTER_LOOKUP:
                self.coordinators.forget(api)
            return
        transaction = self.transaction
        # A prepared transaction may be decided already: no response is a reason to abort it, nor may close() (KIP-939).
        may_abort = self.state in PRODUCING and transaction.prepared_state.is_empty
        if error_kind is ErrorClass.ABORTABLE and may_abort and not transaction.commit_may_take_effect:
            self.fail_abortable(exception_for(api, error_code, self.refusal(api, error_code, error_kind, resource)))
        elif error_kind is ErrorClass.REFUSED and self.state is ProducerState.INITIALIZING:
            error = exception_for(api, error_code, self.refusal(api, error_code, error_kind, resource))
            self.happen(Event.INIT_REFUSED, error)
        elif error_kind in _ENDS_THE_PRODUCER:
            self.fail_fatal(exception_for(api, error_code, self.refusal(api, error_code, error_kind, resource)))
        else:
            sentence = self.refusal(api, error_code, ErrorClass.FATAL, resource)
            self.fail_fatal(FatalError(sentence, error_code=error_code))

    def refusal(self, api: Api, error_code: int, taken_as: ErrorClass, resource: str | None = None) -> str:
        """Return the sentence with the reason of a refusal and advice; see `refusal_sentence`."""
        return refusal_sentence(
            api,
            error_code,
            transactional_id=self.transactional_id,
            resource=resource,
            state=self.state,
            taken_as=taken_as,
            init_unanswered=self.exchange.init_unanswered,
            requests_two_phase_commit=self.initialisation.requests_two_phase_commit,
        )
