"""The transactional producer without its sockets: says which request is next, and is told each answer.

It knows no threads, no clock and no bytes. Its owner calls it under one lock, passes the time in (milliseconds of any
monotonic clock), carries `poll()`'s requests to a broker, and comes back with the answer or with its absence.

KIP-98 transactions, KIP-890 (transaction.version 2: partitions join by Produce, EndTxn v5 brings the next epoch),
KIP-939 two-phase commit (a prepared transaction outlives its producer and is found again by its identity).
Taking a transactional id over is in `initialisation`, what an old broker wants to know beforehand in `registration`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from dualwrite.client import messages as m
from dualwrite.client.backoff import Backoff
from dualwrite.client.producer_port import Outgoing
from dualwrite.client.records.record import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from dualwrite.client.transactions.coordinators import Coordinators
from dualwrite.client.transactions.errors import (
    RETRIED,
    commit_outcome_unknown,
    decisive_code,
    end_not_told,
    offsets_may_go_back,
    overtaken,
    refusal_sentence,
    still_prepared_by_keep,
    taken_meanwhile,
    taken_over,
)
from dualwrite.client.transactions.initialisation import Initialisation, Step, described
from dualwrite.client.transactions.operations import Operation
from dualwrite.client.transactions.pending_call import PendingCall
from dualwrite.client.transactions.producer_state import COMPLETE_TRANSACTION, StateMachine
from dualwrite.client.transactions.recovery import (
    REFUSALS,
    TRANSACTIONAL_ID_NOT_FOUND,
    AfterRefusal,
    Described,
    DescribedState,
    Recovery,
    SecondLook,
    find,
)
from dualwrite.client.transactions.settling import Settling
from dualwrite.client.transactions.states import CALLS, EVENTS, Call, Event, ProducerState
from dualwrite.client.transactions.txn_partitions import Registration
from dualwrite.errors import (
    NETWORK_EXCEPTION,
    Api,
    ErrorClass,
    FatalError,
    IllegalStateError,
    InvalidTxnStateError,
    KafkaError,
    error_class,
    exception_for,
)
from dualwrite.guarantee import Guarantee
from dualwrite.prepared_state import PreparedTxnState

# Calls that decide nothing, so that abort_transaction() may take the place of one that timed out.
_REPLACED_BY_ABORT: Final = frozenset({Call.PREPARE_TRANSACTION.value, Call.SEND_OFFSETS.value})

# Asked several times per transaction: Python 3.11 takes longer to read a member from its Enum than to call a function.
_READY: Final = ProducerState.READY
_IN_TRANSACTION: Final = ProducerState.IN_TRANSACTION
_PREPARE: Final = Call.PREPARE_TRANSACTION.value
_DESCRIBE: Final = Call.DESCRIBE.value

_PRODUCING: Final = (ProducerState.IN_TRANSACTION, ProducerState.COMMITTING_TRANSACTION)
_ENDING: Final = (ProducerState.COMMITTING_TRANSACTION, ProducerState.ABORTING_TRANSACTION)
_BEFORE_PREPARED: Final = (ProducerState.READY, ProducerState.IN_TRANSACTION)
_RESTING: Final = (ProducerState.READY, ProducerState.PREPARED_TRANSACTION, ProducerState.INITIALIZING)
_FINISHED: Final = (ProducerState.FATAL_ERROR, ProducerState.CLOSED)
_DROPPING: Final = (ProducerState.ABORTABLE_ERROR, ProducerState.ABORTING_TRANSACTION, *_FINISHED)

_ENDS_THE_PRODUCER: Final = frozenset({ErrorClass.FENCED, ErrorClass.UNSUPPORTED, ErrorClass.FATAL})

# Refusals of EndTxn after which it may take effect all the same: its record may be replicated later, or is written and
# the coordinator has moved. UNKNOWN_SERVER_ERROR, REQUEST_TIMED_OUT, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR.
_MAY_TAKE_EFFECT: Final = (-1, 7, 15, 16)

# Refusals of EndTxn after which DescribeTransactions may tell who ended a prepared transaction, and how:
# INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED.
_ENDED_BY_ANOTHER: Final = (47, 48, 49, 90)
_INVALID_TXN_STATE: Final = 48
_CONCURRENT_TRANSACTIONS: Final = 51

_KEEPING: Final = (Step.TRY_KEEP, Step.PROBE_KEEP)
_KEEP_IS_SUPPORTED: Final = (42, 90)
"""To KeepPreparedTxn with a pair that nobody has: INVALID_REQUEST, as KIP-939 has it, or PRODUCER_FENCED."""

# What changes a transaction whenever it arrives.
_MAY_COME_LATE: Final = (m.EndTxn, m.AddPartitionsToTxn, m.AddOffsetsToTxn, m.TxnOffsetCommit)


class _Offsets(NamedTuple):
    group: ConsumerGroupMetadata
    offsets: Mapping[TopicPartition, OffsetAndMetadata]


class TransactionManager(StateMachine):
    """One transactional id, one producer."""

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
        super().__init__(transactional_id)
        self.two_phase_commit: Final = two_phase_commit
        self.prepared_txn_state = PreparedTxnState()
        self.has_records = False
        self._initialisation = Initialisation(
            transactional_id=transactional_id,
            two_phase_commit=two_phase_commit,
            accepts_bound=accepts_bound,
            transaction_timeout_ms=transaction_timeout_ms,
        )
        self._registration = Registration()
        self._guarantee: Guarantee | None = None
        self._sent_to_kafka = False
        self._failed = False
        # An EndTxn that commits was sent and may have taken effect: until an answer says how it ended, no error may
        # say that the transaction failed.
        self._commit_unanswered = False
        # why the commit of a prepared transaction was refused, until DescribeTransactions has told what became of it
        self._refused_with: int | None = None
        self._leaves_id = False
        # positions of this transaction whose request got no answer, and so may be stored once more
        self._late_offsets: dict[tuple[str, TopicPartition], OffsetAndMetadata] = {}
        # what is stored of this transaction, to be sent once more before EndTxn where an earlier one may come late
        self._stored_offsets: deque[_Offsets] = deque()
        self._repeats_offsets = False
        self._init_unanswered = False
        self._owns_later = False
        self.described: Described | None = None
        self._step_in_flight: Step | None = None
        self._features_max_age_ms = features_max_age_ms
        self._features_due_ms = 0.0
        self._pending = PendingCall()
        self._offsets: _Offsets | None = None
        self._coordinators = Coordinators(transactional_id)
        self._in_flight: m.Request | None = None
        self._backoff = backoff
        self._retry_at_ms = 0.0

    # ---- what the application calls -------------------------------------------------------------------------

    def init_transactions(self, keep_prepared_txn: bool) -> Operation:
        """Take the transactional id over, and finish or (keep) find what its past left open."""
        joined = self._join(Call.INIT_TRANSACTIONS.value, keep_prepared_txn)
        if joined is not None:
            return joined
        self._enter(Call.INIT_TRANSACTIONS)
        self._initialisation.begin(keep_prepared_txn)
        return self._start(Call.INIT_TRANSACTIONS.value, keep_prepared_txn)

    def begin_transaction(self) -> None:
        """Open a transaction; Kafka hears of it with the first record."""
        self._refuse_other_than_pending(Call.BEGIN_TRANSACTION)
        self._enter(Call.BEGIN_TRANSACTION)
        refusal = self._initialisation.refuse_tier()
        if refusal is not None:
            self.fail_fatal(refusal)
            raise refusal
        self._initialisation.before_transaction()
        self._nothing_to_complete = False

    def check_send(self) -> None:
        """Raises unless a record may be sent now."""
        if self.state is not ProducerState.IN_TRANSACTION or self._pending.exists:
            self._refuse_other_than_pending(Call.SEND)
            self._enter(Call.SEND)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: ConsumerGroupMetadata
    ) -> Operation:
        """Make consumed positions part of the transaction."""
        argument = _Offsets(group, offsets)
        joined = self._join(Call.SEND_OFFSETS.value, argument)
        if joined is not None:
            return joined
        self._enter(Call.SEND_OFFSETS)
        operation = self._start(Call.SEND_OFFSETS.value, argument)
        if self._may_go_back(argument):
            self.fail_abortable(offsets_may_go_back(self.transactional_id, group.group_id))
            return operation
        self._offsets = argument
        self.has_records = True
        return operation

    def _may_go_back(self, wanted: _Offsets) -> bool:
        """Whether earlier positions of this transaction, sent and not answered, may be stored after these."""
        return any(
            self._late_offsets.get((wanted.group.group_id, partition), offset) != offset
            for partition, offset in wanted.offsets.items()
        )

    def prepare_transaction(self) -> Operation:
        """Promise that the transaction can be committed: everything is stored once this ends. No request of its own."""
        joined = self._join(Call.PREPARE_TRANSACTION.value, None)
        if joined is not None:
            return joined
        if not self.two_phase_commit:
            raise InvalidTxnStateError(
                "prepare_transaction() needs two-phase commit: set transaction.two.phase.commit.enable=true"
            )
        self._enter(Call.PREPARE_TRANSACTION)
        return self._start(Call.PREPARE_TRANSACTION.value, None)

    def commit_transaction(self) -> Operation:
        """Flush and commit."""
        name = Call.COMMIT_TRANSACTION.value
        if self._is_found:
            return self._recover(Recovery.COMMIT, name, None)
        return self._end(Call.COMMIT_TRANSACTION, name, None)

    def abort_transaction(self) -> Operation:
        """Drop what is unsent and abort."""
        pending = self._pending.operation
        if pending is not None and pending.name in _REPLACED_BY_ABORT:
            self._enter(Call.ABORT_TRANSACTION)
            self._offsets = None
            self._pending.finish(IllegalStateError(f"{pending.name} was replaced by abort_transaction()"))
            return self._start(Call.ABORT_TRANSACTION.value, None)
        if self._is_found:
            return self._recover(Recovery.TAKE_OVER, Call.ABORT_TRANSACTION.value, None)
        return self._end(Call.ABORT_TRANSACTION, Call.ABORT_TRANSACTION.value, None)

    def complete_transaction(
        self, prepared: PreparedTxnState, *, take_over: bool = True, own: bool = True
    ) -> Operation:
        """Commit if `prepared` names the prepared transaction, else abort it (KIP-939).

        Without `take_over`, what was found is ended by its own pair alone where that will do, without InitProducerId.
        Without `own`, the id is this producer's alone only after `own()`.
        """
        recovery = self._initialisation.recovery(prepared)
        if recovery is not None and self.state in _RESTING:
            self._owns_later = not own
            return self._recover(recovery, COMPLETE_TRANSACTION, prepared, take_over=take_over)
        call = Call.COMPLETE_BY_COMMIT if prepared == self.prepared_txn_state else Call.COMPLETE_BY_ABORT
        return self._end(call, COMPLETE_TRANSACTION, prepared)

    def own(self) -> Operation:
        """After `complete_transaction(own=False)`: fence whoever was answered as this producer was."""
        joined = self._join(Call.OWN.value, None)
        if joined is not None:
            return joined
        self._enter(Call.OWN)
        operation = self._start(Call.OWN.value, None)
        if self.state is ProducerState.INITIALIZING:
            self._owns_later = False
            self._go_on_taking_over()
        else:
            self._pending.finish(None)
        return operation

    def describe(self) -> Operation:
        """Between transactions: ask what Kafka says of the transactional id, for `described`."""
        joined = self._join(Call.DESCRIBE.value, None)
        if joined is not None:
            return joined
        self._enter(Call.DESCRIBE)
        self.described = None
        return self._start(Call.DESCRIBE.value, None)

    @property
    def is_current(self) -> bool:
        """Whether nobody has used the id since this producer, as `describe()` found it."""
        return self.described is not None and self.described.pair == self._pair

    @property
    def _is_found(self) -> bool:
        """Whether what is prepared was found by DescribeTransactions, and the transactional id is not ours yet."""
        return self.state is ProducerState.PREPARED_TRANSACTION and self._initialisation.found is not None

    def _recover(
        self, recovery: Recovery, name: str, stored: PreparedTxnState | None, *, take_over: bool = True
    ) -> Operation:
        """Complete what was found, without KeepPreparedTxn."""
        joined = self._join(name, stored)
        if joined is not None:
            return joined
        found = self._initialisation.found
        assert found is not None
        if recovery is Recovery.LOST:
            assert stored is not None
            self._enter(Call.COMPLETE_LOST)
            operation = self._start(name, stored)
            self._lose(stored, found)
            return operation
        if recovery is Recovery.COMMIT:
            self._enter(Call.COMPLETE_BY_COMMIT)
            self._adopt_pair(found.pair)
            self._leaves_id = not take_over
        elif take_over or not self._may_leave_id(found, stored):
            self._enter(Call.COMPLETE_BY_TAKEOVER)
            self._adopt_pair(self._initialisation.decide(stored or PreparedTxnState()))
        elif found.state is DescribedState.ONGOING:
            self._enter(Call.COMPLETE_BY_ABORT)
            self._adopt_pair(found.pair)
            self._leaves_id = True
        else:
            self._enter(Call.COMPLETE_BEFORE)
            operation = self._start(name, stored)
            self._leave_id()
            return operation
        return self._start(name, stored)

    def _may_leave_id(self, found: Described, stored: PreparedTxnState | None) -> bool:
        """Whether what is not to be committed is over, and its writer fenced, without InitProducerId.

        An abort raises the epoch (KIP-890) but before transaction.version 2. What was committed before had been
        prepared, so its writer is done; one that is to be aborted and is not open yet may be about to begin.
        """
        if found.state is DescribedState.ONGOING:
            return self._initialisation.is_v2
        return bool(stored)

    def _lose(self, stored: PreparedTxnState, found: Described) -> None:
        """A prepared transaction was aborted. Nothing is sent: it must be seen by whoever recovers next, too."""
        error = self._initialisation.lost(stored, found)
        self._forget_transaction()
        self._adopt(-1, -1)
        self._nothing_to_complete = False
        self._pending.finish(error)

    def _found_is_ended(self) -> None:
        self._leaves_id = False
        self._happen(Event.FOUND_IS_ENDED)
        self._leave_id()

    def _leave_id(self) -> None:
        """Whoever wants the id takes it over; nothing of this producer is open."""
        self._forget_transaction()
        self._adopt(-1, -1)
        self._nothing_to_complete = False
        self._pending.finish(None)

    def operation_before_close(self) -> Operation | None:
        """An open transaction is aborted, one that is being ended is waited for; a prepared one is left alone."""
        pending = self._pending.operation
        if self.state is ProducerState.ABORTABLE_ERROR or (
            self.state is ProducerState.IN_TRANSACTION and (pending is None or pending.name in _REPLACED_BY_ABORT)
        ):
            if self._pending.unfinished is None:
                self._pending.forget()
            return self.abort_transaction()
        return self._pending.unfinished

    def close(self, error: KafkaError) -> None:
        """No more calls; whoever waits hears `error`."""
        self._change(CALLS[self.state, Call.CLOSE], Call.CLOSE)
        if self._pending.unfinished is not None:
            self._pending.finish(self._or_outcome_unknown(error))
        self._pending.forget()

    def _end(self, call: Call, name: str, argument: PreparedTxnState | None) -> Operation:
        joined = self._join(name, argument)
        if joined is not None:
            return joined
        self._enter(call)
        operation = self._start(name, argument)
        if self.state is ProducerState.READY:
            self._pending.finish(None)
        return operation

    # ---- what is pending ------------------------------------------------------------------------------------

    def _start(self, name: str, argument: object) -> Operation:
        self._backoff.succeeded()
        self._retry_at_ms = 0.0
        return self._pending.start(name, argument)

    def _join(self, name: str, argument: object) -> Operation | None:
        return self._pending.join(name, argument, self.standing) if self._pending.exists else None

    def _refuse_other_than_pending(self, call: Call) -> None:
        if self._pending.exists:
            self._pending.refuse_another(call.value, self.standing)

    def interrupt(self, error: KafkaError) -> None:
        """Nobody is to wait for what is pending; it goes on, and the same call joins it."""
        self._pending.interrupt(error, self.standing)

    def heard(self, operation: Operation) -> None:
        """The caller has the outcome of `operation`."""
        self._pending.heard(operation)

    def _ended(self) -> None:
        if self._leaves_id:
            self._found_is_ended()
            return
        if not self._initialisation.is_v2 and self._sent_to_kafka and self.state is ProducerState.ABORTING_TRANSACTION:
            # batches that were given up left gaps in their sequences (KIP-360); version 2 has a new epoch by now
            self._initialisation.raise_epoch()
        self._happen(Event.ENDED)
        self._forget_transaction()
        self._follow_version()
        self._pending.finish(None)

    def _forget_transaction(self) -> None:
        self.prepared_txn_state = PreparedTxnState()
        self.has_records = self._sent_to_kafka = self._failed = self._commit_unanswered = False
        self._offsets = None
        if self._late_offsets:
            self._late_offsets.clear()
            self._repeats_offsets = True
        if self._stored_offsets:
            self._stored_offsets.clear()
        self._error = None
        self._registration.clear()

    def _follow_version(self) -> None:
        """Between transactions only: a transaction is one of the version that it began with (KIP-890)."""
        if self._initialisation.follow_version():
            self._guarantee = self._initialisation.guarantee

    def fail_abortable(self, error: KafkaError) -> None:
        """Something of this transaction is lost: it cannot be committed."""
        if (self.state, Event.ABORTABLE_FAILURE) not in EVENTS:
            self.fail_fatal(FatalError(f"unexpected while the producer is {self.state.value}: {error}"))
            return
        if self.state is ProducerState.ABORTING_TRANSACTION:
            return
        self._happen(Event.ABORTABLE_FAILURE, error)
        self._failed = True
        self._offsets = None
        self.prepared_txn_state = PreparedTxnState()
        self._error = self._error or error
        self._pending.finish(error)

    def fail_fatal(self, error: KafkaError) -> None:
        """The producer is finished."""
        if self.state in _FINISHED:
            return
        error = self._or_outcome_unknown(error)
        self._happen(Event.FATAL_FAILURE, error)
        self._offsets = None
        self._error = error
        self._pending.finish(error)

    def _or_outcome_unknown(self, error: KafkaError) -> KafkaError:
        """The end of the producer, unless it leaves open whether a commit took effect: then that, because of it."""
        on_its_way = isinstance(self._in_flight, m.EndTxn) and self._in_flight.committed
        if not (on_its_way or self._commit_unanswered):
            return error
        return commit_outcome_unknown(error, self.transactional_id, self.prepared_txn_state)

    # ---- requests -------------------------------------------------------------------------------------------

    @property
    def may_produce(self) -> bool:
        """Whether batches may be sent now."""
        return self.state in _PRODUCING and not self._initialisation.steps

    @property
    def transaction_version(self) -> int:
        """The one of the open transaction; between two, that of the next one."""
        return self._initialisation.transaction_version

    @property
    def guarantee(self) -> Guarantee:
        """What holds on the broker that was found; `IllegalStateError` before `init_transactions()`."""
        if self._guarantee is None:
            raise IllegalStateError(f"the guarantee is known after init_transactions(): {self.standing}")
        return self._guarantee

    @property
    def bounded_ms(self) -> int | None:
        """How long a prepared transaction lasts; None where it has no limit, or nothing is known of one."""
        return None if self._guarantee is None or not self.two_phase_commit else self._guarantee.bounded_ms

    def may_produce_to(self, topic: str, partition: int) -> bool:
        """Whether the partition is in the transaction; before transaction.version 2 it is added first."""
        return self._initialisation.is_v2 or self._registration.may_write(topic, partition)

    @property
    def wants_partitions(self) -> bool:
        """Whether partitions are to be added before they may be written to."""
        return self._registration.has_wanted

    @property
    def drops_unsent(self) -> bool:
        """Whether records that are not sent yet never will be."""
        return self.state in _DROPPING

    @property
    def retry_at_ms(self) -> float | None:
        """When `poll()` wants to be called again though nothing happened."""
        return self._retry_at_ms or None

    def accepted(self) -> None:
        """A record was accepted from the application."""
        self.has_records = True

    def produced(self) -> None:
        """A batch is on its way: from here on Kafka may know the transaction."""
        self._sent_to_kafka = True

    def produce_unanswered(self) -> None:
        """A batch was sent and not answered: it is sent again, and the first one may arrive late."""
        self._initialisation.note_unanswered()

    def poll(self, now_ms: float, *, delivered: bool, in_flight: bool = False) -> Outgoing | None:
        """The next request, if there is one to send now.

        `delivered`: no record is waiting or on its way; `in_flight`: some are on their way.
        """
        if self._in_flight is not None or now_ms < self._retry_at_ms:
            return None
        self._retry_at_ms = 0.0
        if delivered:
            self.settle_without_kafka()
        outgoing = self._next_request(delivered, now_ms)
        if outgoing is not None:
            self._in_flight = outgoing.request
        return outgoing

    def settle_without_kafka(self) -> None:
        """With nothing waiting or on its way: what was to be prepared is, and what Kafka never heard of is over.

        EndTxn for a transaction without partitions would be refused (KAFKA-18401).
        """
        if self.state is _IN_TRANSACTION:
            if self._pending.is_waiting_for(_PREPARE):
                self._prepared()
        elif self._ends and not self._sent_to_kafka and not self._bumps_by_abort:
            self._ended()

    @property
    def _bumps_by_abort(self) -> bool:
        """Whether a failed transaction that Kafka never heard of is aborted there all the same, for another epoch."""
        return self._failed and self._initialisation.is_v2 and not self._initialisation.steps

    def _prepared(self) -> None:
        self._happen(Event.FLUSHED_FOR_PREPARE)
        # A stored pair is compared with what Kafka describes, so it must name a transaction that Kafka knows.
        if self._sent_to_kafka:
            self.prepared_txn_state = self._pair
        self._pending.finish(None)

    @property
    def _pair(self) -> PreparedTxnState:
        return PreparedTxnState.of(producer_id=self.producer_id, producer_epoch=self.producer_epoch)

    @property
    def next_prepared_state(self) -> PreparedTxnState:
        """What the open transaction, or else the next one, will be prepared as; empty where that is not known yet."""
        is_known = self.two_phase_commit and self._initialisation.is_v2 and not self._initialisation.steps
        return self._pair if is_known and self.state in _BEFORE_PREPARED else PreparedTxnState()

    @property
    def _ends(self) -> bool:
        return self.state in _ENDING

    def _next_request(self, delivered: bool, now_ms: float) -> Outgoing | None:
        if self._refused_with is not None or (self.state is _READY and self._pending.is_waiting_for(_DESCRIBE)):
            return self._coordinators.to_transaction(m.DescribeTransaction(self.transactional_id))
        if self._initialisation.steps and self._steps_are_due:
            return self._step_request(self._initialisation.steps[0])
        if self._registration.has_wanted and self.state in _PRODUCING:
            return self._add_partitions_request()
        if self._offsets is not None:
            return self._offsets_request(self._offsets)
        if self._ends and delivered:
            if self._must_repeat_offsets:
                self._offsets = self._stored_offsets.popleft()
                return self._offsets_request(self._offsets)
            return self._coordinators.to_transaction(
                self._end_txn(committed=self.state is ProducerState.COMMITTING_TRANSACTION)
            )
        coordinator = self._coordinators.of_transaction
        if self.state is _READY and now_ms >= self._features_due_ms and coordinator is not None:
            return Outgoing(m.ApiVersions(), coordinator)
        return None

    @property
    def _must_repeat_offsets(self) -> bool:
        """Whether offsets are to be sent again right before EndTxn.

        The group coordinator of Kafka 3.9 and older refuses a late TxnOffsetCommit of an earlier epoch, and forgets
        what is pending for the producer id meanwhile. Of a prepared transaction nothing may fail any more.
        """
        is_plain_commit = self.state is ProducerState.COMMITTING_TRANSACTION and self.prepared_txn_state.is_empty
        return self._repeats_offsets and bool(self._stored_offsets) and is_plain_commit

    @property
    def _steps_are_due(self) -> bool:
        if self.state is ProducerState.INITIALIZING:
            return True
        # of a transaction that was found and is being committed, the steps come afterwards
        return self.has_records and self.state in _PRODUCING and self.prepared_txn_state.is_empty

    def _step_request(self, step: Step) -> Outgoing:
        outgoing = self._coordinators.to_transaction(self._initialisation.request(step, self._pair))
        if not isinstance(outgoing.request, m.FindCoordinator):
            self._step_in_flight = step
        return outgoing

    def _add_partitions_request(self) -> Outgoing:
        self._sent_to_kafka = True
        wanted = self._registration.wanted
        return self._coordinators.to_transaction(
            m.AddPartitionsToTxn(self.transactional_id, self.producer_id, self.producer_epoch, wanted)
        )

    def _end_txn(self, *, committed: bool) -> m.EndTxn:
        return m.EndTxn(
            self.transactional_id, self.producer_id, self.producer_epoch, committed, self.transaction_version
        )

    def _offsets_request(self, offsets: _Offsets) -> Outgoing:
        group_id = offsets.group.group_id
        coordinator = self._coordinators.of_group(group_id)
        if coordinator is None:
            return self._coordinators.find_group(group_id)
        self._sent_to_kafka = True
        pair = self.producer_id, self.producer_epoch
        if not (self._initialisation.is_v2 or self._registration.has_group(group_id)):
            return self._coordinators.to_transaction(m.AddOffsetsToTxn(self.transactional_id, *pair, group_id))
        request = m.TxnOffsetCommit(
            self.transactional_id, *pair, offsets.group, offsets.offsets, self.transaction_version
        )
        return Outgoing(request, coordinator)

    # ---- answers --------------------------------------------------------------------------------------------

    def on_response(self, answer: m.Response, now_ms: float) -> None:
        """What the broker said to the request that is in flight."""
        request, self._in_flight = self._in_flight, None
        step, self._step_in_flight = self._step_in_flight, None
        if self.state in _FINISHED:
            return
        match request, answer:
            case m.FindCoordinator(), m.FindCoordinatorResponse():
                self._on_coordinator(request, answer, now_ms)
            case m.ApiVersions(), m.BrokerFeatures():
                self._on_features(step, answer, now_ms)
            case m.InitProducerId(), m.InitProducerIdResponse():
                self._on_initialised(step, answer, now_ms)
            case m.DescribeTransaction(), m.DescribeTransactionResponse():
                self._on_described(step, answer, now_ms)
            case m.AddPartitionsToTxn(), m.AddPartitionsToTxnResponse():
                self._on_partitions_added(answer, now_ms)
            case m.AddOffsetsToTxn(), m.AddOffsetsToTxnResponse():
                self._on_offsets_added(request, answer, now_ms)
            case m.EndTxn(), m.EndTxnResponse() if step is Step.SPEND_PAIR:
                self._on_pair_spent(answer, now_ms)
            case m.EndTxn(), m.EndTxnResponse() if step is Step.END_REOPENED:
                self._on_reopened_ended(answer, now_ms)
            case m.EndTxn(), m.EndTxnResponse():
                self._on_ended(request, answer, now_ms)
            case m.TxnOffsetCommit(), m.TxnOffsetCommitResponse():
                self._on_offsets(answer, now_ms)
            case _:
                raise AssertionError(f"{answer!r} does not answer {request!r}")

    def on_no_response(self, now_ms: float, *, sent: bool = True) -> None:
        """The request that is in flight may have been carried out, if it was `sent`. The same one is asked again."""
        request, self._in_flight = self._in_flight, None
        step, self._step_in_flight = self._step_in_flight, None
        if request is None:
            raise AssertionError("no request is in flight")
        if self.state in _FINISHED:
            return
        if sent:
            self._note_unanswered(request, step)
        if isinstance(request, m.ApiVersions) and step is None:
            self._features_due_ms = now_ms + self._features_max_age_ms  # a look in passing, which nobody waits for
            self._coordinators.forget(Api.API_VERSIONS)
            return
        self._failed_with(m.API_OF[type(request)], NETWORK_EXCEPTION, now_ms)

    def _note_unanswered(self, request: m.Request, step: Step | None) -> None:
        """It may be carried out at any time from now on."""
        if isinstance(request, m.EndTxn) and request.committed:
            self._commit_unanswered = True
        if isinstance(request, m.TxnOffsetCommit):
            group_id = request.group.group_id
            self._late_offsets |= {(group_id, name): offset for name, offset in request.offsets.items()}
        if isinstance(request, m.InitProducerId):
            self._init_unanswered = True
        if step is Step.RAISE_EPOCH:
            self._initialisation.raise_unanswered()
        elif step is None and isinstance(request, _MAY_COME_LATE):
            self._initialisation.note_unanswered()

    def on_unsupported(self, error: KafkaError) -> None:
        """The broker does not speak what the request in flight needs."""
        self._in_flight = self._step_in_flight = None
        self.fail_fatal(error)

    def _on_coordinator(self, request: m.FindCoordinator, answer: m.FindCoordinatorResponse, now_ms: float) -> None:
        if answer.error_code:
            self._failed_with(Api.FIND_COORDINATOR, answer.error_code, now_ms, resource=request.key)
        else:
            self._coordinators.learn(request, answer)

    def _on_features(self, step: Step | None, answer: m.BrokerFeatures, now_ms: float) -> None:
        self._features_due_ms = now_ms + self._features_max_age_ms
        if step is None:
            if not answer.error_code:
                self._initialisation.note_version(answer.transaction_version)
                if self.state is ProducerState.READY:
                    self._follow_version()
            return
        if answer.error_code:
            self._failed_with(Api.API_VERSIONS, answer.error_code, now_ms)
            return
        self._backoff.succeeded()
        refusal = self._initialisation.take_features(answer)
        if refusal is not None:
            self.fail_fatal(refusal)

    def _on_initialised(self, step: Step | None, answer: m.InitProducerIdResponse, now_ms: float) -> None:
        if answer.error_code:
            if step in _KEEPING and self._on_refused_keep(step, answer.error_code):
                return
            self._failed_to_take_over(Api.INIT_PRODUCER_ID, answer.error_code, now_ms)
            return
        self._backoff.succeeded()
        if step in _KEEPING:
            self._on_kept(answer)
            return
        self._took_over(DescribedState.EMPTY, answer.producer_id, answer.producer_epoch)

    def _took_over(self, state: DescribedState, producer_id: int, producer_epoch: int) -> None:
        """A step has raised the epoch."""
        self._adopt(producer_id, producer_epoch)
        self._initialisation.took_over(state, self._pair)
        self._go_on_taking_over()

    def _go_on_taking_over(self) -> None:
        if self.state is not ProducerState.INITIALIZING or self._initialisation.steps:
            return
        if self._owns_later:
            self._pending.finish(None)
        elif not self._initialisation.own():
            self._initialised()

    def _failed_to_take_over(self, api: Api, error_code: int, now_ms: float) -> None:
        if self._initialisation.found is not None and error_code in _ENDED_BY_ANOTHER:
            refusal = self._sentence(api, error_code, None, ErrorClass.FENCED)
            self.fail_fatal(taken_meanwhile(refusal, error_code))
            return
        self._failed_with(api, error_code, now_ms)

    def _on_refused_keep(self, step: Step | None, error_code: int) -> bool:
        if step is Step.PROBE_KEEP and error_code in _KEEP_IS_SUPPORTED:
            self._backoff.succeeded()
            self._on_nothing_open(self._initialisation.take_support_of_keep())
            return True
        taken = self._initialisation.take_refused_keep(error_code)
        if isinstance(taken, KafkaError):
            self.fail_fatal(taken)
            return True
        return taken

    def _on_kept(self, answer: m.InitProducerIdResponse) -> None:
        found = PreparedTxnState.of(
            producer_id=answer.ongoing_producer_id, producer_epoch=answer.ongoing_producer_epoch
        )
        self._adopt(answer.producer_id, answer.producer_epoch)
        if found == self._pair:
            self.fail_fatal(still_prepared_by_keep(self.transactional_id, found))
            return
        decided = self._initialisation.found
        if not self._initialisation.take_kept(ongoing=not found.is_empty):
            return
        if decided is None and found.is_empty:
            self._nothing_to_complete = self._initialisation.keep
            self._initialised()
        elif decided is None:
            self._found(found)
        elif found.is_empty:
            self._go_on_taking_over()
        else:
            now = Described(DescribedState.ONGOING, found, -1)
            self.fail_fatal(overtaken(self.transactional_id, now, stored_is_committed=False))

    def _initialised(self) -> None:
        self._happen(Event.INITIALIZED)
        self._forget_transaction()
        self._guarantee = self._initialisation.guarantee
        self._pending.finish(None)

    def _found(self, prepared: PreparedTxnState) -> None:
        self._happen(Event.FOUND_PREPARED)
        self.prepared_txn_state = prepared
        self.has_records = self._sent_to_kafka = True
        self._guarantee = self._initialisation.guarantee
        self._pending.finish(None)

    def _on_described(self, step: Step | None, answer: m.DescribeTransactionResponse, now_ms: float) -> None:
        if answer.error_code not in (0, TRANSACTIONAL_ID_NOT_FOUND):
            self._on_not_described(answer.error_code, now_ms)
            return
        self._backoff.succeeded()
        now = described(answer)
        if step is Step.DESCRIBE:
            self._on_first_look(now)
        elif step is Step.SETTLE:
            self._on_look(now, now_ms)
        elif step is Step.LOOK_AGAIN:
            self._on_second_look(now, now_ms)
        elif self._refused_with is not None:
            self._on_cause_described(now, now_ms)
        elif now.is_ending:  # its pair is not the last word
            self._retry_at_ms = now_ms + self._backoff.failed(_CONCURRENT_TRANSACTIONS)
        else:
            self.described = now
            self._pending.finish(None)

    def _on_first_look(self, now: Described) -> None:
        if not self._initialisation.take_description(now):
            return
        if now.state is DescribedState.ONGOING:
            self._found(now.pair)
        else:
            self._on_nothing_open(now)

    def _on_nothing_open(self, found: Described) -> None:
        """What is to be compared with the stored pair; the id is not ours yet."""
        self._adopt_pair(found.pair)
        self._nothing_to_complete = True
        self._initialised()

    def _on_second_look(self, now: Described, now_ms: float) -> None:
        decided = self._initialisation.found
        look = self._initialisation.take_second_look(now)
        if look is SecondLook.WAIT:
            self._retry_at_ms = now_ms + self._backoff.failed(_CONCURRENT_TRANSACTIONS)
        elif look is SecondLook.OVERTAKEN:
            is_committed = decided is not None and decided.is_committed
            self.fail_fatal(overtaken(self.transactional_id, now, stored_is_committed=is_committed))
        elif self._initialisation.found is not None:
            self._adopt_pair(self._initialisation.found.pair)

    def _on_look(self, now: Described, now_ms: float) -> None:
        following = self._initialisation.take_look(self._pair, now)
        if following is Settling.TAKEN_OVER:
            self.fail_fatal(taken_over(self.transactional_id, self._pair, now))
        elif following in (Settling.LOOK_AGAIN, Settling.AWAIT_RAISE):
            self._retry_at_ms = now_ms + self._backoff.failed()

    def _on_reopened_ended(self, answer: m.EndTxnResponse, now_ms: float) -> None:
        if answer.error_code not in (0, _INVALID_TXN_STATE):  # 48: it was over already
            self._failed_with(Api.END_TXN, answer.error_code, now_ms)
            return
        self._backoff.succeeded()
        self._initialisation.ended_reopened()

    def _on_not_described(self, error_code: int, now_ms: float) -> None:
        refused_with = self._refused_with
        if refused_with is None or error_class(Api.DESCRIBE_TRANSACTIONS, error_code) in RETRIED:
            self._failed_with(Api.DESCRIBE_TRANSACTIONS, error_code, now_ms)
            return
        self._refused_with = None  # nobody can tell what became of it: the refusal itself is what is known
        self._failed_with(Api.END_TXN, refused_with, now_ms)

    def _on_cause_described(self, now: Described, now_ms: float) -> None:
        """A commit of what was prepared was refused; `now` may tell why."""
        refused_with, self._refused_with = self._refused_with, None
        assert refused_with is not None
        prepared = self.prepared_txn_state
        verdict = REFUSALS[find(prepared, now, self.transaction_version)]
        if verdict is AfterRefusal.COMMITTED:
            self._committed(now)
        elif verdict is AfterRefusal.LOST:
            self._happen(Event.LOST)
            self._lose(prepared, now)
        else:
            refusal = self._sentence(Api.END_TXN, refused_with, None, ErrorClass.FENCED)
            self.fail_fatal(end_not_told(refusal, refused_with, prepared, now))

    def _on_partitions_added(self, answer: m.AddPartitionsToTxnResponse, now_ms: float) -> None:
        error_code = decisive_code(Api.ADD_PARTITIONS_TO_TXN, tuple(answer.error_codes.values()))
        if error_code:
            refused = [f"{name}-{index}" for (name, index), code in answer.error_codes.items() if code == error_code]
            self._failed_with(Api.ADD_PARTITIONS_TO_TXN, error_code, now_ms, resource=", ".join(refused))
            return
        self._backoff.succeeded()
        self._registration.add_partitions(answer.error_codes)

    def _on_offsets_added(self, request: m.AddOffsetsToTxn, answer: m.AddOffsetsToTxnResponse, now_ms: float) -> None:
        if answer.error_code:
            self._failed_with(Api.ADD_OFFSETS_TO_TXN, answer.error_code, now_ms, resource=request.group_id)
            return
        self._backoff.succeeded()
        self._registration.add_group(request.group_id)

    def _on_pair_spent(self, answer: m.EndTxnResponse, now_ms: float) -> None:
        if answer.error_code:
            self._failed_to_take_over(Api.END_TXN, answer.error_code, now_ms)
            return
        self._backoff.succeeded()
        self._took_over(DescribedState.COMPLETE_ABORT, answer.producer_id, answer.producer_epoch)

    def _on_ended(self, request: m.EndTxn, answer: m.EndTxnResponse, now_ms: float) -> None:
        if answer.error_code:
            if request.committed and answer.error_code in _MAY_TAKE_EFFECT:
                self._commit_unanswered = True
            self._on_end_refused(request, answer.error_code, now_ms)
            return
        self._backoff.succeeded()
        if answer.producer_id != -1:
            self._adopt(answer.producer_id, answer.producer_epoch)
        if request.committed:
            self._committed()
        else:
            self._ended()

    def _committed(self, by_another: Described | None = None) -> None:
        """`by_another`: as it was described after somebody else had done it."""
        if self._initialisation.found is None:
            self._ended()
            return
        if self._leaves_id:
            self._found_is_ended()
            return
        if by_another is None:
            self._initialisation.committed(self._pair)
        else:
            self._adopt_pair(self._initialisation.decide(self.prepared_txn_state, by_another))
        self._happen(Event.STORED_IS_COMMITTED)
        self._forget_transaction()
        self._go_on_taking_over()

    def _on_end_refused(self, request: m.EndTxn, error_code: int, now_ms: float) -> None:
        prepared = not self.prepared_txn_state.is_empty
        if request.committed and prepared and error_code in _ENDED_BY_ANOTHER and self._initialisation.describes:
            self._refused_with = error_code
        elif self._had_nothing_to_abort(request, error_code):
            self._ended()
        else:
            self._failed_with(Api.END_TXN, error_code, now_ms)

    def _had_nothing_to_abort(self, request: m.EndTxn, error_code: int) -> bool:
        """Before version 2 an abort is refused where no partition was added, and whether one was may not be known."""
        is_old = not self._initialisation.is_v2 and not self._registration.confirmed
        return is_old and not request.committed and error_code == _INVALID_TXN_STATE

    def _adopt(self, producer_id: int, producer_epoch: int) -> None:
        """A new pair; sequences restart with it, because the accumulator sees that the pair is another one."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch

    def _adopt_pair(self, pair: PreparedTxnState) -> None:
        self._adopt(pair.producer_id, pair.producer_epoch)

    def _on_offsets(self, answer: m.TxnOffsetCommitResponse, now_ms: float) -> None:
        error_code = decisive_code(Api.TXN_OFFSET_COMMIT, answer.error_codes)
        if self._offsets is None:
            return  # the transaction failed or is being aborted; its offsets do not matter any more
        if error_code:
            self._failed_with(Api.TXN_OFFSET_COMMIT, error_code, now_ms, resource=self._offsets.group.group_id)
            return
        self._backoff.succeeded()
        stored, self._offsets = self._offsets, None
        if self.state is not _IN_TRANSACTION:
            return  # sent once more before EndTxn, whose answer is waited for
        if not self._initialisation.is_v2:
            self._stored_offsets.append(stored)
        self._pending.finish(None)

    def _failed_with(self, api: Api, error_code: int, now_ms: float, *, resource: str | None = None) -> None:
        """`resource` is what the request was about, where that is not the transactional id."""
        what = error_class(api, error_code)
        if what in RETRIED:
            self._retry_at_ms = now_ms + self._backoff.failed(error_code)
            if api is Api.INIT_PRODUCER_ID:
                self._initialisation.failed_to_take_over()
            if what is ErrorClass.RETRIABLE_AFTER_LOOKUP:
                self._coordinators.forget(api)
            return
        # What was prepared may be decided already: no answer is a reason to abort it, and close() must not (KIP-939).
        may_abort = self.state in _PRODUCING and self.prepared_txn_state.is_empty
        if what is ErrorClass.ABORTABLE and may_abort and not self._commit_unanswered:
            self.fail_abortable(exception_for(api, error_code, self._sentence(api, error_code, resource, what)))
        elif what is ErrorClass.REFUSED and self.state is ProducerState.INITIALIZING:
            error = exception_for(api, error_code, self._sentence(api, error_code, resource, what))
            self._happen(Event.INIT_REFUSED)
            self._pending.finish(error)
        elif what in _ENDS_THE_PRODUCER:
            self.fail_fatal(exception_for(api, error_code, self._sentence(api, error_code, resource, what)))
        else:
            sentence = self._sentence(api, error_code, resource, ErrorClass.FATAL)
            self.fail_fatal(FatalError(sentence, error_code=error_code))

    def _sentence(self, api: Api, error_code: int, resource: str | None, what: ErrorClass) -> str:
        return refusal_sentence(
            api,
            error_code,
            transactional_id=self.transactional_id,
            resource=resource,
            state=self.state,
            taken_as=what,
            init_unanswered=self._init_unanswered,
            asks_for_two_phase_commit=self._initialisation.asks_for_two_phase_commit,
        )
