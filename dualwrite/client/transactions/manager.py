"""The transactional producer without sockets: it returns the next request, and is given each response.

No threads, no clock and no bytes. Its owner calls it under one lock, passes the time in (milliseconds of any monotonic
clock), sends the request that `poll()` returns, and reports the response or its absence.

KIP-98 transactions, KIP-890 (transaction.version 2: partitions join by Produce, and the EndTxn v5 response brings the
next epoch), KIP-939 two-phase commit (a prepared transaction outlives its producer, and is found by its producer id and
epoch). The parts, each with its own state: `take_over` (owning the transactional id), `open_transaction` (forgotten at
its end), `operations` (the pending call), `context` (the request in flight, and how a transaction and the producer
end).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dualwrite.client import messages as m
from dualwrite.client.operations import Operation
from dualwrite.client.pacing import Backoff
from dualwrite.client.producer_port import Outgoing
from dualwrite.client.records.record import ConsumerGroupMetadata, NoMember, OffsetAndMetadata, TopicPartition
from dualwrite.client.transactions.context import FINISHED, PRODUCING, TransactionContext
from dualwrite.client.transactions.errors import decisive_code, earlier_hangs, no_member, offsets_may_go_back
from dualwrite.client.transactions.initialisation import Step, described
from dualwrite.client.transactions.open_transaction import GroupOffsets
from dualwrite.client.transactions.producer_state import COMPLETE_TRANSACTION
from dualwrite.client.transactions.recovery import TRANSACTIONAL_ID_NOT_FOUND, CoordinatorMemory, Recovery
from dualwrite.client.transactions.states import CALLS, Call, Event, ProducerState
from dualwrite.client.transactions.take_over import (
    CONCURRENT_TRANSACTIONS,
    ENDED_BY_ANOTHER_CODES,
    INVALID_TXN_STATE,
    TakeOver,
)
from dualwrite.errors import (
    NETWORK_EXCEPTION,
    Api,
    ErrorClass,
    InvalidTxnStateError,
    KafkaError,
    error_class,
)
from dualwrite.prepared_state import PreparedTxnState

# Calls that decide nothing, so that abort_transaction() may take the place of one that timed out.
_REPLACED_BY_ABORT: Final = frozenset({Call.PREPARE_TRANSACTION.value, Call.SEND_OFFSETS.value})

# Read for each record or several times per transaction: Python 3.11 takes longer to read a member from its Enum than to
# call a function.
_IN_TRANSACTION: Final = ProducerState.IN_TRANSACTION
_READY: Final = ProducerState.READY
_COMMITTING: Final = ProducerState.COMMITTING_TRANSACTION
_PREPARED: Final = ProducerState.PREPARED_TRANSACTION
_COMMIT: Final = Call.COMMIT_TRANSACTION.value
_ABORT: Final = Call.ABORT_TRANSACTION.value
_PREPARE: Final = Call.PREPARE_TRANSACTION.value
_DESCRIBE: Final = Call.DESCRIBE.value

_ENDING: Final = (ProducerState.COMMITTING_TRANSACTION, ProducerState.ABORTING_TRANSACTION)
_BEFORE_PREPARED: Final = (ProducerState.READY, ProducerState.IN_TRANSACTION)
_BEFORE_COMPLETION: Final = (ProducerState.READY, ProducerState.PREPARED_TRANSACTION, ProducerState.INITIALIZING)
_DROPPING: Final = (ProducerState.ABORTABLE_ERROR, ProducerState.ABORTING_TRANSACTION, *FINISHED)

# Error codes of EndTxn after which it may still take effect: its record may be replicated later, or it was written and
# then the coordinator moved. UNKNOWN_SERVER_ERROR, REQUEST_TIMED_OUT, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR.
_MAY_TAKE_EFFECT: Final = (-1, 7, 15, 16)

# Requests that change a transaction whenever they arrive.
_MAY_COME_LATE: Final = (m.EndTxn, m.AddPartitionsToTxn, m.AddOffsetsToTxn, m.TxnOffsetCommit)


class TransactionManager(TransactionContext):
    """The producer of one transactional id.

    Invariant: `poll()` returns one request at a time, and only one that the state allows; EndTxn only when every record
    of the transaction is stored.
    """

    def __init__(
        self,
        *,
        transactional_id: str,
        transaction_timeout_ms: int,
        two_phase_commit: bool,
        accepts_bound: bool = False,
        features_max_age_ms: float = 300_000,
        backoff: Backoff,
    ) -> None:
        super().__init__(
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
            two_phase_commit=two_phase_commit,
            accepts_bound=accepts_bound,
            backoff=backoff,
        )
        self.acknowledge: Final = self.pending.acknowledge
        self._take_over = TakeOver(self)
        self._features_max_age_ms = features_max_age_ms
        self._features_due_ms = 0.0

    # ---- calls of the application ---------------------------------------------------------------------------

    def init_transactions(self, keep_prepared_txn: bool) -> Operation:
        """Take the transactional id over; end an open transaction or, with `keep_prepared_txn`, leave it open."""
        joined = self.join(Call.INIT_TRANSACTIONS.value, keep_prepared_txn)
        if joined is not None:
            return joined
        self.allowed(Call.INIT_TRANSACTIONS)
        self.leave_id()  # as an earlier call has, unless a signal interrupted it
        self.initialisation.begin(keep_prepared_txn)
        return self.start(Call.INIT_TRANSACTIONS, Call.INIT_TRANSACTIONS.value, keep_prepared_txn)

    def begin_transaction(self) -> None:
        """Open a transaction; Kafka learns of it with the first record."""
        if self.pending.operation is not None:
            self._refuse_while_pending(Call.BEGIN_TRANSACTION)
        after = self.allowed(Call.BEGIN_TRANSACTION)
        refusal = self.initialisation.refuse_tier()
        if refusal is not None:
            self.fail_fatal(refusal)
            raise refusal
        self.initialisation.before_transaction()
        self.enter(after, Call.BEGIN_TRANSACTION)

    def check_send(self) -> None:
        """Raise if no record may be sent now."""
        if self.state is not _IN_TRANSACTION or self.pending.operation is not None:
            self._refuse_while_pending(Call.SEND)
            self.allowed(Call.SEND)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> Operation:
        """Commit consumed offsets with the transaction."""
        argument = GroupOffsets(group, offsets)
        joined = self.join(Call.SEND_OFFSETS.value, argument)
        if joined is not None:
            return joined
        self.allowed(Call.SEND_OFFSETS)
        refusal: KafkaError | None = None
        if isinstance(group, NoMember):
            refusal = no_member(self.transactional_id, group.group_id)
        elif self.transaction.offsets.may_go_back(argument):
            refusal = offsets_may_go_back(self.transactional_id, group.group_id)
        if refusal is not None:
            self.fail_abortable(refusal)
            return Operation(Call.SEND_OFFSETS.value, argument, done=True, error=refusal)
        return self.start(Call.SEND_OFFSETS, Call.SEND_OFFSETS.value, argument)

    def prepare_transaction(self) -> Operation:
        """Promise that the transaction can be committed: when this ends, everything is stored. Sends no request."""
        joined = self.join(_PREPARE, None)
        if joined is not None:
            return joined
        if not self.two_phase_commit:
            raise InvalidTxnStateError(
                "prepare_transaction() needs two-phase commit: set transaction.two.phase.commit.enable=true"
            )
        return self.start(Call.PREPARE_TRANSACTION, _PREPARE, None)

    def commit_transaction(self) -> Operation:
        """Flush and commit."""
        if self.state is _PREPARED and self.initialisation.found is not None:
            return self._take_over.complete(Recovery.COMMIT, _COMMIT, None)
        return self._end(Call.COMMIT_TRANSACTION, _COMMIT, None)

    def abort_transaction(self) -> Operation:
        """Drop unsent records, and abort."""
        pending = self.pending.operation
        if pending is not None and pending.name in _REPLACED_BY_ABORT:
            return self.start(Call.ABORT_TRANSACTION, _ABORT, None)
        if self.state is _PREPARED and self.initialisation.found is not None:
            return self._take_over.complete(Recovery.TAKE_OVER, _ABORT, None)
        return self._end(Call.ABORT_TRANSACTION, _ABORT, None)

    def complete_transaction(
        self,
        prepared: PreparedTxnState,
        *,
        take_over: bool = True,
        fence_others: bool = True,
        is_over: bool = False,
    ) -> Operation:
        """Commit if `prepared` names the prepared transaction, else abort it (KIP-939).

        Without `take_over`, a transaction that was found is ended by its own producer id and epoch if that is enough,
        without InitProducerId. Without `fence_others`, the id is this producer's alone only after `fence_others()`.
        `is_over`: the log has proven how the transaction of `prepared` ended, so it is not lost, even if the
        description contradicts.
        """
        recovery = self.initialisation.recovery(prepared, is_over=is_over)
        if recovery is not None and self.state in _BEFORE_COMPLETION:
            return self._take_over.complete(
                recovery, COMPLETE_TRANSACTION, prepared, take_over=take_over, fence_others=fence_others
            )
        is_prepared = prepared == self.transaction.prepared_state
        return self._end(
            Call.COMPLETE_BY_COMMIT if is_prepared else Call.COMPLETE_BY_ABORT, COMPLETE_TRANSACTION, prepared
        )

    def fence_others(self) -> Operation:
        """Fence producers that got the same responses, after `complete_transaction(fence_others=False)`."""
        return self._take_over.fence_others()

    def describe(self) -> Operation:
        """Describe the transactional id, between transactions, for `is_current`."""
        joined = self.join(_DESCRIBE, None)
        if joined is not None:
            return joined
        self.allowed(Call.DESCRIBE)
        self._take_over.described = None
        return self.start(Call.DESCRIBE, _DESCRIBE, None)

    @property
    def memory(self) -> CoordinatorMemory:
        """The coordinator's memory, as `init_transactions(keep_prepared_txn=True)` has found it."""
        return self.initialisation.memory(self.transaction.prepared_state)

    @property
    def is_current(self) -> bool:
        """Whether `describe()` found this producer's id and epoch: no other producer has used the id since."""
        described = self._take_over.described
        return described is not None and described.pair == self.pair

    def operation_before_close(self) -> Operation | None:
        """Return the operation to wait for before closing, if any.

        An open transaction is aborted, one that is being ended is waited for; a prepared one is left alone.
        """
        pending = self.pending.operation
        if self.state is ProducerState.ABORTABLE_ERROR or (
            self.state is _IN_TRANSACTION and (pending is None or pending.name in _REPLACED_BY_ABORT)
        ):
            if self.pending.unfinished is None:
                self.pending.forget()
            return self.abort_transaction()
        return self.pending.unfinished

    def close(self, error: KafkaError) -> None:
        """Refuse all further calls; a waiting caller gets `error`."""
        if self.pending.unfinished is not None:
            self.pending.finish(self.or_outcome_unknown(error))
        self.pending.forget()
        self.enter(CALLS[self.state, Call.CLOSE], Call.CLOSE)

    def _end(self, call: Call, name: str, argument: PreparedTxnState | None) -> Operation:
        joined = self.join(name, argument)
        if joined is not None:
            return joined
        return self.start(call, name, argument, is_over=self.state is _READY)

    def _refuse_while_pending(self, call: Call) -> None:
        self.pending.refuse_another(call.value, self.standing)

    def interrupt(self, error: KafkaError) -> None:
        """End the wait for the pending call with `error`; it goes on, and the same call joins it."""
        effect = "The commit may have taken effect" if self.commit_may_take_effect else "Nothing is decided"
        self.pending.interrupt(error, f"{effect}: {self.standing}")

    # ---- the sender's reads and reports ---------------------------------------------------------------------

    @property
    def may_produce(self) -> bool:
        """Whether batches may be sent now."""
        return self.state in PRODUCING and not self.initialisation.steps

    @property
    def transaction_version(self) -> int:
        """The transaction.version of the open transaction; between two, that of the next one."""
        return self.initialisation.transaction_version

    @property
    def wants_partitions(self) -> bool:
        """Whether a request must be answered before partitions may be written to."""
        return bool(self.transaction.partitions.wanted) or self.earlier.is_wanted

    @property
    def drops_unsent(self) -> bool:
        """Whether unsent records are never going to be sent."""
        return self.state in _DROPPING

    @property
    def retry_at_ms(self) -> float | None:
        """When `poll()` must be called again even if nothing happens; None if it need not be."""
        return self.exchange.retry_at_ms or None

    @property
    def next_prepared_state(self) -> PreparedTxnState:
        """The future prepared state of the open transaction, or else of the next one; empty while unknown."""
        is_known = self.two_phase_commit and self.initialisation.is_v2 and not self.initialisation.steps
        return self.pair if is_known and self.state in _BEFORE_PREPARED else PreparedTxnState()

    def may_produce_to(self, topic: str, partition: int, leader: int, losses: int) -> bool:
        """Return whether the transaction may write to a partition, where no earlier one must be open.

        Before transaction.version 2 it is added to the transaction first.
        """
        if self.two_phase_commit and self.initialisation.describes:
            is_stored = self.transaction.stored.has(topic, partition)
            if not self.earlier.may_write(TopicPartition(topic, partition), (leader, losses), is_stored=is_stored):
                return False
        return self.initialisation.is_v2 or self.transaction.partitions.may_write(topic, partition)

    def accepted(self) -> None:
        """Note that a record was accepted from the application."""
        self.transaction.has_records = True

    def produced(self) -> None:
        """Note that a batch is on its way: from here on Kafka may know the transaction."""
        self.transaction.reached_kafka = True

    def stored(self, topic: str, partition: int, base_offset: int, record_count: int) -> None:
        """Note that a batch was acknowledged; offset -1: no broker knows where it is stored."""
        self.transaction.stored.add(topic, partition, base_offset, record_count)

    def produce_unanswered(self) -> None:
        """Note that a batch got no response: it is sent again, and the first request may arrive late."""
        self.initialisation.note_unanswered()

    # ---- requests -------------------------------------------------------------------------------------------

    def poll(self, now_ms: float, *, delivered: bool) -> Outgoing | None:
        """Return the next request, if there is one to send now; `delivered`: no record is waiting or on its way."""
        exchange = self.exchange
        if exchange.request is not None or now_ms < exchange.retry_at_ms:
            return None
        exchange.retry_at_ms = 0.0
        if delivered:
            self.settle_without_kafka()
        outgoing = self._next_request(delivered, now_ms)
        if outgoing is not None:
            exchange.request = outgoing.request
        return outgoing

    def settle_without_kafka(self) -> None:
        """With no record waiting or on its way: finish a prepare, and end a transaction that never reached Kafka.

        EndTxn for a transaction without partitions would be refused (KAFKA-18401).
        """
        if self.state is _IN_TRANSACTION:
            if self.pending.is_waiting_for(_PREPARE):
                # A stored pair is compared with Kafka's description, so it must name a transaction that Kafka knows.
                if self.transaction.reached_kafka:
                    self.transaction.prepared_state = self.pair
                self.happen(Event.FLUSHED_FOR_PREPARE)
        elif self.state in _ENDING and not self.transaction.reached_kafka and not self._must_raise_epoch_by_abort():
            self.ended()

    def _must_raise_epoch_by_abort(self) -> bool:
        """Return whether a failed transaction that never reached Kafka is aborted there anyway, to raise the epoch."""
        return self.transaction.failed and self.initialisation.is_v2 and not self.initialisation.steps

    def _next_request(self, delivered: bool, now_ms: float) -> Outgoing | None:
        state = self.state
        if self._take_over.refused_with is not None or (state is _READY and self.pending.is_waiting_for(_DESCRIBE)):
            return self.coordinators.to_transaction(m.DescribeTransaction(self.transactional_id))
        if self.initialisation.steps and self._steps_are_due:
            return self._step_request(self.initialisation.steps[0])
        if state in PRODUCING and (question := self.earlier.question()) is not None:
            if self.earlier.asks_coordinator:
                return self.coordinators.to_transaction(m.DescribeTransaction(self.transactional_id))
            return question
        transaction = self.transaction
        if transaction.partitions.wanted and state in PRODUCING:
            return self._add_partitions_request()
        if transaction.offsets.current is not None:
            return self._offsets_request(transaction.offsets.current)
        if state in _ENDING and delivered:
            # A prepared transaction must not fail, so its offsets are not sent again.
            offsets = transaction.offsets
            if offsets.must_repeat and state is _COMMITTING and transaction.prepared_state.is_empty:
                return self._offsets_request(offsets.next_repeated())
            return self._end_request(committed=state is _COMMITTING)
        coordinator = self.coordinators.of_transaction
        if state is _READY and now_ms >= self._features_due_ms and coordinator is not None:
            return Outgoing(m.ApiVersions(), coordinator)
        return None

    @property
    def _steps_are_due(self) -> bool:
        if self.state is ProducerState.INITIALIZING:
            return True
        # while a prepared transaction from a previous owner is being committed, the steps wait until it is complete
        transaction = self.transaction
        return transaction.has_records and self.state in PRODUCING and transaction.prepared_state.is_empty

    def _step_request(self, step: Step) -> Outgoing:
        outgoing = self.coordinators.to_transaction(self.initialisation.request(step, self.pair))
        if not isinstance(outgoing.request, m.FindCoordinator):
            self.exchange.step = step
        return outgoing

    def _add_partitions_request(self) -> Outgoing:
        self.transaction.reached_kafka = True
        wanted = tuple(self.transaction.partitions.wanted)
        return self.coordinators.to_transaction(
            m.AddPartitionsToTxn(self.transactional_id, self.producer_id, self.producer_epoch, wanted)
        )

    def _end_request(self, *, committed: bool) -> Outgoing:
        version = self.initialisation.transaction_version
        return self.coordinators.to_transaction(
            m.EndTxn(self.transactional_id, self.producer_id, self.producer_epoch, committed, version)
        )

    def _offsets_request(self, offsets: GroupOffsets) -> Outgoing:
        group_id = offsets.group.group_id
        coordinator = self.coordinators.of_group(group_id)
        if coordinator is None:
            return self.coordinators.find_group(group_id)
        self.transaction.reached_kafka = True
        pair = self.producer_id, self.producer_epoch
        if not (self.initialisation.is_v2 or self.transaction.partitions.has_group(group_id)):
            return self.coordinators.to_transaction(m.AddOffsetsToTxn(self.transactional_id, *pair, group_id))
        version = self.initialisation.transaction_version
        request = m.TxnOffsetCommit(self.transactional_id, *pair, offsets.group, offsets.offsets, version)
        return Outgoing(request, coordinator)

    # ---- responses ------------------------------------------------------------------------------------------

    def on_response(self, response: m.Response, now_ms: float) -> None:
        """Handle the response to the request in flight."""
        request, step = self.exchange.end()
        if self.state in FINISHED:
            return
        match request, response:
            case m.FindCoordinator(), m.FindCoordinatorResponse():
                self._on_coordinator(request, response, now_ms)
            case m.ApiVersions(), m.BrokerFeatures():
                self._on_features(step, response, now_ms)
            case m.InitProducerId(), m.InitProducerIdResponse():
                self._take_over.on_initialised(step, response, now_ms)
            case m.DescribeProducers(), m.DescribeProducersResponse():
                self._on_leader_asked(response, now_ms)
            case m.DescribeTransaction(), m.DescribeTransactionResponse() if self.earlier.asks_coordinator:
                self._on_coordinator_asked(response, now_ms)
            case m.DescribeTransaction(), m.DescribeTransactionResponse():
                self._take_over.on_described(step, response, now_ms)
            case m.AddPartitionsToTxn(), m.AddPartitionsToTxnResponse():
                self._on_partitions_added(request, response, now_ms)
            case m.AddOffsetsToTxn(), m.AddOffsetsToTxnResponse():
                self._on_offsets_added(request, response, now_ms)
            case m.EndTxn(), m.EndTxnResponse() if step is Step.SPEND_PAIR:
                self._take_over.on_pair_spent(response, now_ms)
            case m.EndTxn(), m.EndTxnResponse() if step is Step.END_REOPENED:
                self._take_over.on_reopened_ended(response, now_ms)
            case m.EndTxn(), m.EndTxnResponse():
                self._on_ended(request, response, now_ms)
            case m.TxnOffsetCommit(), m.TxnOffsetCommitResponse():
                self._on_offsets(request, response, now_ms)
            case _:
                raise AssertionError(f"{response!r} is not a response to {request!r}")

    def on_no_response(self, now_ms: float, *, sent: bool = True) -> None:
        """Send the request in flight again. If it was `sent`, the broker may execute it now or later."""
        request, step = self.exchange.end()
        if request is None:
            raise AssertionError("no request is in flight")
        if self.state in FINISHED:
            return
        if sent:
            self._note_unanswered(request, step)
        if isinstance(request, m.ApiVersions) and step is None:
            self._features_due_ms = now_ms + self._features_max_age_ms  # a refresh that no caller waits for
            self.coordinators.forget(Api.API_VERSIONS)
            return
        if isinstance(request, m.DescribeProducers):
            self.earlier.withdraw()
            self.exchange.retry_later(now_ms, NETWORK_EXCEPTION)
            return
        self.failed_with(m.API_OF[type(request)], NETWORK_EXCEPTION, now_ms)

    def _note_unanswered(self, request: m.Request, step: Step | None) -> None:
        """Note that a request got no response: it may be carried out at any time from now on."""
        if isinstance(request, m.EndTxn) and request.committed:
            self.transaction.commit_may_take_effect = True
        if isinstance(request, m.TxnOffsetCommit):
            self.transaction.offsets.note_unanswered(request)
        if isinstance(request, m.InitProducerId):
            self.exchange.init_unanswered = True
        if step is Step.RAISE_EPOCH:
            self.initialisation.raise_unanswered()
        elif step is None and isinstance(request, _MAY_COME_LATE):
            self.initialisation.note_unanswered()

    def on_unsupported(self, error: KafkaError) -> None:
        """Fail for good, unless the broker only cannot tell: it does not offer the version that the request needs."""
        request, _ = self.exchange.end()
        if isinstance(request, m.DescribeProducers):
            self.earlier.turn_off()
        else:
            self.fail_fatal(error)

    def _on_coordinator(self, request: m.FindCoordinator, response: m.FindCoordinatorResponse, now_ms: float) -> None:
        if response.error_code:
            self.failed_with(Api.FIND_COORDINATOR, response.error_code, now_ms, resource=request.key)
        else:
            self.coordinators.learn(request, response)

    def _on_features(self, step: Step | None, response: m.BrokerFeatures, now_ms: float) -> None:
        self._features_due_ms = now_ms + self._features_max_age_ms
        if step is not None:
            self._take_over.on_features(response, now_ms)
        elif not response.error_code:
            self.initialisation.note_version(response.transaction_version)
            if self.state is _READY:
                self.follow_version()

    def _on_leader_asked(self, response: m.DescribeProducersResponse, now_ms: float) -> None:
        asked = self.earlier.take(response, self.pair)
        if asked.hanging and self.state in PRODUCING:
            self.fail_abortable(earlier_hangs(self.transactional_id, self.producer_id, asked.hanging))
        elif asked.error_code:
            self.exchange.retry_later(now_ms, asked.error_code)
        else:
            self.exchange.backoff.succeeded()

    def _on_coordinator_asked(self, response: m.DescribeTransactionResponse, now_ms: float) -> None:
        error_code = response.error_code
        if error_code == TRANSACTIONAL_ID_NOT_FOUND or not (error_code or described(response).is_ending):
            self.earlier.coordinator_has_ended()
            return
        if error_class(Api.DESCRIBE_TRANSACTIONS, error_code) is ErrorClass.RETRIABLE_AFTER_LOOKUP:
            self.coordinators.forget(Api.DESCRIBE_TRANSACTIONS)
        self.exchange.retry_later(now_ms, error_code or CONCURRENT_TRANSACTIONS)

    def _on_partitions_added(
        self, request: m.AddPartitionsToTxn, response: m.AddPartitionsToTxnResponse, now_ms: float
    ) -> None:
        codes = dict.fromkeys(request.partitions, NETWORK_EXCEPTION) | dict(response.error_codes)
        error_code = decisive_code(Api.ADD_PARTITIONS_TO_TXN, tuple(codes.values()))
        if error_code:
            refused = [f"{name}-{index}" for (name, index), code in codes.items() if code == error_code]
            self.failed_with(Api.ADD_PARTITIONS_TO_TXN, error_code, now_ms, resource=", ".join(refused))
            return
        self.exchange.backoff.succeeded()
        self.transaction.partitions.add_partitions(response.error_codes)

    def _on_offsets_added(self, request: m.AddOffsetsToTxn, response: m.AddOffsetsToTxnResponse, now_ms: float) -> None:
        if response.error_code:
            self.failed_with(Api.ADD_OFFSETS_TO_TXN, response.error_code, now_ms, resource=request.group_id)
            return
        self.exchange.backoff.succeeded()
        self.transaction.partitions.add_group(request.group_id)

    def _on_ended(self, request: m.EndTxn, response: m.EndTxnResponse, now_ms: float) -> None:
        if response.error_code:
            if request.committed and response.error_code in _MAY_TAKE_EFFECT:
                self.transaction.commit_may_take_effect = True
            self._on_end_refused(request, response.error_code, now_ms)
            return
        self.exchange.backoff.succeeded()
        if response.producer_id != -1:
            self.producer_id = response.producer_id
            self.producer_epoch = response.producer_epoch
        if request.committed and self.initialisation.found is not None:
            self._take_over.committed()
        else:
            self.ended()

    def _on_end_refused(self, request: m.EndTxn, error_code: int, now_ms: float) -> None:
        prepared = not self.transaction.prepared_state.is_empty
        if request.committed and prepared and error_code in ENDED_BY_ANOTHER_CODES and self.initialisation.describes:
            self._take_over.refused_with = error_code
        elif self._had_nothing_to_abort(request, error_code):
            self.ended()
        else:
            self.failed_with(Api.END_TXN, error_code, now_ms)

    def _had_nothing_to_abort(self, request: m.EndTxn, error_code: int) -> bool:
        """Return whether an abort was refused only because the transaction has no partition.

        Before version 2 an abort is refused then, and whether a partition was added may not be known.
        """
        is_old = not self.initialisation.is_v2 and not self.transaction.partitions.confirmed
        return is_old and not request.committed and error_code == INVALID_TXN_STATE

    def _on_offsets(self, request: m.TxnOffsetCommit, response: m.TxnOffsetCommitResponse, now_ms: float) -> None:
        missing = [NETWORK_EXCEPTION] * (len(request.offsets) - len(response.error_codes))
        error_code = decisive_code(Api.TXN_OFFSET_COMMIT, (*response.error_codes, *missing))
        offsets = self.transaction.offsets
        stored = offsets.current
        if stored is None:
            return  # the transaction failed or is being aborted, and its offsets with it
        if error_code:
            self.failed_with(Api.TXN_OFFSET_COMMIT, error_code, now_ms, resource=stored.group.group_id)
            return
        self.exchange.backoff.succeeded()
        offsets.current = None
        if self.state is not _IN_TRANSACTION:
            return  # sent again before EndTxn, whose response the caller waits for
        if not self.initialisation.is_v2:
            offsets.note_stored(stored)
        self.pending.finish(None)
