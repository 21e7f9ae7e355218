"""A stateful test of a producer without sockets against a model of a broker, over an unreliable network.

The producer is the real `TransactionManager` and `Accumulator`, driven by the rules of the sender. The broker is the
coordinator's table of KIP-890 and KIP-939 in a few lines. Requests are lost, delayed, duplicated and overtaken; leaders
and coordinators move; the broker aborts transactions that take too long; another producer takes over; the process dies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dualwrite.client import messages as m
from dualwrite.client.operations import Operation
from dualwrite.client.pacing import Backoff
from dualwrite.client.records.accumulator import Accumulator
from dualwrite.client.records.delivery import DeliveryResult, delivery_result
from dualwrite.client.records.partition_queue import Batch
from dualwrite.client.records.record import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from dualwrite.client.records.value_batch import records_factory
from dualwrite.client.transactions.manager import TransactionManager
from dualwrite.client.transactions.states import Event, ProducerState
from dualwrite.errors import (
    AbortableError,
    DeliveryError,
    DualWriteError,
    FatalError,
    IllegalStateError,
    KafkaError,
    OutcomeUnknown,
)
from dualwrite.prepared_state import PreparedTxnState
from tests.support.proof_only import examples

S = ProducerState
PID = 42
PARTITIONS = 2
NODES = 2
GROUP = ConsumerGroupMetadata("g")
MAX_IN_FLIGHT = 3
SOME = st.lists(st.integers(0, PARTITIONS - 1), max_size=6)
RARELY = st.integers(0, 5).map(lambda number: number == 0)


OFFERED: dict[int, dict[int, tuple[int, int]]] = {
    2: {0: (0, 13), 22: (0, 6), 24: (0, 5), 25: (0, 4), 26: (0, 5), 28: (0, 5), 65: (0, 0)},
    0: {0: (0, 11), 22: (0, 5), 24: (0, 5), 25: (0, 4), 26: (0, 4), 28: (0, 4), 65: (0, 0)},
}


# ---- the broker --------------------------------------------------------------------------------------------------


@dataclass
class Sequences:
    """A partition's memory of the producer."""

    epoch: int = -1
    next: int = 0
    recent: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Sent:
    """A batch as it was when it was sent."""

    partition: int
    epoch: int
    sequence: int
    values: tuple[int, ...]


class Broker:
    """Coordinator, leaders and group coordinator."""

    def __init__(self, version: int) -> None:
        self.version = version  # of transactions: 0, or 2
        self.last_epoch = -1  # before the last InitProducerId of the same producer (KIP-360)
        self.added: set[int] = set()
        self.group_added = False
        self.state = "Empty"
        self.epoch = 0
        self.client_epoch = 0  # differs from `epoch` while a kept transaction is ongoing (KIP-939)
        self.open: list[tuple[int, int]] = []
        self.open_offset: int | None = None
        self.committed: list[tuple[int, int]] = []
        self.committed_offset = 0
        self.coordinator = 0
        self.leaders = [0] * PARTITIONS
        self.sequences = [Sequences() for _ in range(PARTITIONS)]
        self.most_records = 100  # in a batch, for `max.message.bytes`

    def apply(self, node: int, request: m.Request | list[Sent]) -> Any:
        """Apply a request and return the response."""
        if isinstance(request, list):
            return [self._produce(node, sent) for sent in request]
        if isinstance(request, m.FindCoordinator):
            return m.FindCoordinatorResponse(0, self.coordinator, "h", 1)
        if isinstance(request, m.ApiVersions):
            return m.BrokerFeatures(0, OFFERED[self.version], self.version)
        if isinstance(request, m.TxnOffsetCommit):
            return m.TxnOffsetCommitResponse((self._offsets(request),))
        if isinstance(request, m.DescribeProducers):
            return self._describe_producers(node, request)
        if node != self.coordinator:
            return refusal(request, 16)
        match request:
            case m.InitProducerId():
                return self._init(request)
            case m.EndTxn():
                return self._end(request) if self.version == 2 else self._end_before_v2(request)
            case m.DescribeTransaction():
                return m.DescribeTransactionResponse(0, self.state, PID, self.epoch, 1)
            case m.AddPartitionsToTxn():
                code = self._add(request.producer_epoch)
                self.added |= {partition.partition for partition in request.partitions if code == 0}
                return m.AddPartitionsToTxnResponse(dict.fromkeys(request.partitions, code))
            case m.AddOffsetsToTxn():
                code = self._add(request.producer_epoch)
                self.group_added |= code == 0
                return m.AddOffsetsToTxnResponse(code)
        raise AssertionError(request)

    def _describe_producers(self, node: int, request: m.DescribeProducers) -> m.DescribeProducersResponse:
        written = {partition for partition, _ in self.open}
        return m.DescribeProducersResponse(
            {
                where: m.PartitionProducers(
                    0 if self.leaders[where.partition] == node else 6,
                    {PID: m.OpenAt(self.epoch, 0)} if where.partition in written else {},
                )
                for where in request.partitions
            }
        )

    def _add(self, epoch: int) -> int:
        if epoch != self.epoch:
            return 90
        self.state = "Ongoing"
        return 0

    def _init(self, request: m.InitProducerId) -> m.InitProducerIdResponse:
        if self.state == "Ongoing":
            if not request.keep_prepared_txn:
                self.abort()
                return m.InitProducerIdResponse(51)
            self.client_epoch += 1
            return m.InitProducerIdResponse(0, PID, self.client_epoch, PID, self.epoch)
        if request.producer_id != -1:
            if request.producer_epoch == self.last_epoch:
                return m.InitProducerIdResponse(0, PID, self.epoch)
            if request.producer_epoch != self.epoch:
                return m.InitProducerIdResponse(90)
            self.bump_epoch("Empty")
            self.last_epoch = request.producer_epoch
        else:
            self.bump_epoch("Empty")
        return m.InitProducerIdResponse(0, PID, self.epoch)

    def abort(self) -> None:
        """Abort the transaction as the broker does after its timeout: the epoch is bumped once (KAFKA-19367)."""
        self._finish(committed=False)

    def bump_epoch(self, state: str) -> None:
        self.state = state
        self.last_epoch = -1
        self.epoch = self.client_epoch = self.client_epoch + 1

    def _finish(self, *, committed: bool) -> None:
        if committed:
            self.committed += self.open
            self.committed_offset = self.committed_offset if self.open_offset is None else self.open_offset
        self._close()
        self.bump_epoch("CompleteCommit" if committed else "CompleteAbort")

    def _close(self) -> None:
        self.open, self.open_offset, self.added, self.group_added = [], None, set(), False

    def _end_before_v2(self, request: m.EndTxn) -> m.EndTxnResponse:
        """End the transaction without bumping the epoch."""
        wanted = "CompleteCommit" if request.committed else "CompleteAbort"
        if request.producer_epoch != self.epoch:
            return m.EndTxnResponse(90)
        if self.state == "Ongoing":
            if request.committed:
                self.committed += self.open
                self.committed_offset = self.committed_offset if self.open_offset is None else self.open_offset
            self._close()
            self.state = wanted
        return m.EndTxnResponse(0 if self.state == wanted else 48)

    def _end(self, request: m.EndTxn) -> m.EndTxnResponse:
        current = request.producer_epoch == self.client_epoch
        retry = request.producer_epoch == self.client_epoch - 1
        code = 90
        if self.state == "Ongoing":
            if current:
                self._finish(committed=request.committed)
                code = 0
        elif current:
            if request.committed:
                code = 48
            else:
                self.bump_epoch("CompleteAbort")
                code = 0
        elif retry and self.state == "CompleteCommit":
            code = 0 if request.committed else 48
        elif retry and self.state == "CompleteAbort":
            code = 90 if request.committed else 0
        return m.EndTxnResponse(code) if code else m.EndTxnResponse(0, PID, self.client_epoch)

    def _joins(self, epoch: int) -> bool:
        if epoch != self.epoch or (self.state != "Ongoing" and epoch != self.client_epoch):
            return False
        self.state = "Ongoing"
        return True

    def _offsets(self, request: m.TxnOffsetCommit) -> int:
        if self.version < 2 and request.producer_epoch == self.epoch and not self.group_added:
            return 120
        if not self._joins(request.producer_epoch):
            return 47
        ((_, offset),) = request.offsets.items()
        self.open_offset = offset.offset
        return 0

    def _produce(self, node: int, sent: Sent) -> int:
        if self.leaders[sent.partition] != node:
            return 6
        known = self.sequences[sent.partition]
        if self.version < 2 and sent.epoch == self.epoch and sent.partition not in self.added:
            return 120
        if sent.epoch < known.epoch or not self._joins(sent.epoch):
            return 47
        if len(sent.values) > self.most_records:
            return 10
        if known.epoch != sent.epoch:
            first = sent.sequence if known.epoch == -1 else 0  # a broker takes any from an unknown producer
            known = self.sequences[sent.partition] = Sequences(sent.epoch, first)
        if (sent.sequence, len(sent.values)) in known.recent:
            return 0
        if sent.sequence != known.next:
            return 45
        known.next += len(sent.values)
        known.recent = [*known.recent[-4:], (sent.sequence, len(sent.values))]
        self.open += [(sent.partition, value) for value in sent.values]
        return 0


# ---- requests in flight ------------------------------------------------------------------------------------------


@dataclass
class Flight:
    """A request in flight, or its response."""

    node: int
    request: m.Request | list[Sent]
    hear: Callable[[Any], None]
    answer: Any = None
    applied: bool = False


@dataclass
class Transaction:
    """The application's knowledge of a transaction."""

    values: list[tuple[int, int]] = field(default_factory=list)
    asked_to_commit: bool = False
    told: str | None = None  # "committed", "not committed", "unknown"


REFUSALS: dict[type, list[int]] = {
    m.FindCoordinator: [14, 15],
    m.InitProducerId: [7, 14, 15, 16, 51],
    m.EndTxn: [7, 14, 15, 16, 51],
    m.ApiVersions: [],
    m.DescribeTransaction: [14, 15, 16],
    m.DescribeProducers: [3, 6, 7],
    m.AddPartitionsToTxn: [3, 14, 15, 16, 51, 120],
    m.AddOffsetsToTxn: [14, 15, 16, 51, 120],
    m.TxnOffsetCommit: [3, 14, 15, 16, 51, 120, 22],
    list: [3, 6, 7, 14, 19, 20, 51, 56, 87, 120],
}


def refusal(request: m.Request | list[Sent], code: int) -> Any:
    match request:
        case m.FindCoordinator():
            return m.FindCoordinatorResponse(code)
        case m.InitProducerId():
            return m.InitProducerIdResponse(code)
        case m.EndTxn():
            return m.EndTxnResponse(code)
        case m.TxnOffsetCommit():
            return m.TxnOffsetCommitResponse((code,))
        case m.DescribeTransaction():
            return m.DescribeTransactionResponse(code)
        case m.DescribeProducers():
            refused = m.PartitionProducers(code, {})
            return m.DescribeProducersResponse(dict.fromkeys(request.partitions, refused))
        case m.AddPartitionsToTxn():
            return m.AddPartitionsToTxnResponse(dict.fromkeys(request.partitions, code))
        case m.AddOffsetsToTxn():
            return m.AddOffsetsToTxnResponse(code)
    assert isinstance(request, list)
    return [code] * len(request)


class ProducerModel(RuleBasedStateMachine):
    """One transactional id; one producer at a time, besides mere recoverers."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1000.0
        self.zombies: list[Flight] = []
        self.transactions: list[Transaction] = []
        self.numbers = 0
        self.two_phase = False
        self.database = PreparedTxnState()
        self.decided: Transaction | None = None  # the database holds its prepared state
        self.requests = 0
        self.may_be_fenced = False

    @initialize(two_phase=st.booleans(), version=st.sampled_from([0, 2]))
    def start(self, two_phase: bool, version: int) -> None:
        self.two_phase = two_phase and version == 2
        self.broker = Broker(version)
        self._new_producer(keep=False)
        self._calm()

    def _new_producer(self, *, keep: bool) -> None:
        self.manager = TransactionManager(
            transactional_id="t",
            transaction_timeout_ms=60_000,
            two_phase_commit=self.two_phase,
            backoff=Backoff(100, 400),
        )
        self.accumulator = Accumulator(
            new_records=records_factory(transactional=True, batch_size=100),
            new_backoff=lambda: Backoff(100, 400),
            transactional=True,
            idempotent=True,
            batch_size=100,
            max_request_size=10_000,
            buffer_memory=1_000_000,
            linger_ms=5,
            delivery_timeout_ms=3_000,
            max_in_flight=MAX_IN_FLIGHT,
        )
        self.flights: list[Flight] = []
        self.leaders = list(self.broker.leaders)
        self.outgoing: Any = None
        self.values: dict[int, list[int]] = {}
        self.call: tuple[str, Operation] | None = None
        self.current: Transaction | None = None
        self.keep = keep
        self._call("init", lambda: self.manager.init_transactions(keep))

    # ---- the sender's part --------------------------------------------------------------------------------------

    def pump(self) -> None:
        manager, accumulator = self.manager, self.accumulator
        for batch in accumulator.expire(self.now_ms, lambda _: "the network"):
            assert batch.error is not None
            manager.fail_abortable(batch.error)
        if manager.drops_unsent:
            accumulator.drop_waiting(DeliveryError("not sent"))
        if self.outgoing is None:
            self.outgoing = manager.poll(self.now_ms, delivered=accumulator.incomplete == 0)
        while accumulator.active and manager.may_produce:
            drained = accumulator.drain(
                self.now_ms,
                self._leader_of,
                manager.producer_id,
                manager.producer_epoch,
            )
            if not drained:
                break
            manager.produced()
            for node, batches in drained.items():
                self._send_batches(node, batches)
        if self.outgoing is None and manager.wants_partitions:
            self.outgoing = manager.poll(self.now_ms, delivered=False)
        if self.outgoing is not None:
            outgoing, self.outgoing = self.outgoing, None
            self._send(max(outgoing.node_id, 0), outgoing.request, self._hear)

    def _leader_of(self, topic: str, partition: int) -> int:
        leader = self.leaders[partition]
        return leader if self.manager.may_produce_to(topic, partition, leader, 0) else -1

    def _send(self, node: int, request: Any, hear: Callable[[Any], None]) -> None:
        self.requests += 1
        self.flights.append(Flight(node, request, hear))

    def _send_batches(self, node: int, batches: list[Batch]) -> None:
        sent = [
            Sent(batch.partition, batch.producer_epoch, batch.base_sequence, self._values_of(batch))
            for batch in batches
        ]
        self._send(node, sent, lambda codes: self._settle(batches, codes))

    def _values_of(self, batch: Batch) -> tuple[int, ...]:
        if batch.whole is None:
            return tuple(self.values[id(batch)])
        return self._values_of(batch.whole)[batch.first_index :][: batch.record_count]

    def _hear(self, answer: Any) -> None:
        if answer is None:
            self.manager.on_no_response(self.now_ms)
        else:
            if isinstance(answer, m.DescribeProducersResponse):
                for where in answer.partitions:
                    self.leaders[where.partition] = self.broker.leaders[where.partition]
            self.manager.on_response(answer, self.now_ms)

    def _settle(self, batches: list[Batch], codes: list[int] | None) -> None:
        for index, batch in enumerate(batches):
            if batch.done:
                continue
            code = 13 if codes is None else codes[index]
            result = delivery_result(
                code, record_count=batch.record_count, unresolved_before=batch.queue.has_unresolved_before(batch)
            )
            if result is DeliveryResult.DELIVERED:
                self.accumulator.delivered(batch, 0, -1)
            elif result in (DeliveryResult.SEND_AGAIN, DeliveryResult.SEND_AGAIN_AFTER_LOOKUP):
                self.leaders[batch.partition] = self.broker.leaders[batch.partition]
                self.accumulator.send_again(batch, self.now_ms, code)
            elif result is DeliveryResult.SPLIT:
                self.accumulator.split(batch)
            else:
                assert result is DeliveryResult.LOST
                error = DeliveryError("refused" + self.manager.consequence(Event.ABORTABLE_FAILURE), error_code=code)
                self.accumulator.failed(batch, error)
                self.manager.fail_abortable(error)

    # ---- the application ----------------------------------------------------------------------------------------

    def _call(self, name: str, call: Callable[[], Operation]) -> None:
        assert self.call is None
        self.call = (name, call())
        self.accumulator.close_open_batches()
        self._see_outcome()

    def _see_outcome(self) -> None:
        self.pump()
        if self.call is None or not self.call[1].done:
            return
        (name, operation), self.call = self.call, None
        self.manager.acknowledge(operation)
        error = operation.error
        assert error is None or isinstance(error, KafkaError), error
        self._heard(name, error)

    def _heard(self, name: str, error: DualWriteError | None) -> None:
        transaction = self.current
        if name == "init":
            if error is None and self.manager.state is S.PREPARED_TRANSACTION:
                assert self.keep
            return
        assert transaction is not None
        if error is None and name in ("commit", "complete", "abort"):
            commits = name == "commit" or (name == "complete" and self.committing)
            self._told(transaction, "committed" if commits else "not committed")
            self.current = None
        elif isinstance(error, OutcomeUnknown):
            self._told(transaction, "unknown")
        elif isinstance(error, AbortableError | FatalError):
            self._told(transaction, "not committed")

    def _told(self, transaction: Transaction, told: str) -> None:
        if transaction is self.decided and told == "not committed":
            return  # an error, and the database says which way it goes
        transaction.told = transaction.told or told
        assert transaction.told == told
        if transaction is self.decided and told == "committed":
            self.decided = None

    def _may(self, *states: S) -> bool:
        return self.call is None and self.manager.state in states

    @precondition(lambda self: self._may(S.UNINITIALIZED))
    @rule()
    def init(self) -> None:
        self._call("init", lambda: self.manager.init_transactions(self.keep))

    @precondition(lambda self: self._may(S.READY))
    @rule(partitions=SOME)
    def begin(self, partitions: list[int]) -> None:
        self.manager.begin_transaction()
        self.current = Transaction()
        self.transactions.append(self.current)
        self.send(partitions, False)

    @precondition(lambda self: self._may(S.IN_TRANSACTION))
    @rule(partitions=SOME, close=st.booleans())
    def send(self, partitions: list[int], close: bool) -> None:
        assert self.current is not None
        for partition in partitions:
            self.manager.check_send()
            self.numbers += 1
            batch = self.accumulator.append("t", partition, 0, None, b"x", [], self.now_ms)
            assert batch is not None
            self.manager.accepted()
            self.values.setdefault(id(batch), []).append(self.numbers)
            self.keep_alive(batch)
            self.current.values.append((partition, self.numbers))
        if close:
            self.accumulator.close_open_batches()
        self.pump()

    def keep_alive(self, batch: Batch) -> None:
        """Keep the batch alive, so that no other batch gets the same id()."""
        self._batches = [*getattr(self, "_batches", []), batch]

    @precondition(lambda self: self._may(S.IN_TRANSACTION))
    @rule()
    def send_offsets(self) -> None:
        self.numbers += 1
        offsets = {TopicPartition("in", 0): OffsetAndMetadata(self.numbers)}
        self._call("offsets", lambda: self.manager.send_offsets(offsets, GROUP))

    @precondition(lambda self: self._may(S.IN_TRANSACTION) and self.two_phase)
    @rule()
    def prepare(self) -> None:
        self._call("prepare", self.manager.prepare_transaction)

    @precondition(lambda self: self._may(S.PREPARED_TRANSACTION) and self.current is not None and not self.decided)
    @rule()
    def decide(self) -> None:
        """Commit the database, which now holds the prepared state."""
        self.database = self.manager.transaction.prepared_state
        self.decided = self.current

    @precondition(lambda self: self._may(S.IN_TRANSACTION))
    @rule()
    def commit(self) -> None:
        assert self.current is not None
        self.current.asked_to_commit = True
        self._call("commit", self.manager.commit_transaction)

    @precondition(lambda self: self._may(S.PREPARED_TRANSACTION) and self.current is not None)
    @rule()
    def complete(self) -> None:
        self.committing = self.database == self.manager.transaction.prepared_state
        self._call("complete", lambda: self.manager.complete_transaction(self.database))

    @precondition(
        lambda self: (
            self._may(S.IN_TRANSACTION, S.ABORTABLE_ERROR)
            or (self._may(S.PREPARED_TRANSACTION) and not self.decided and self.current is not None)
        )
    )
    @rule(really=RARELY)
    def abort(self, really: bool) -> None:
        if really or self.manager.state is S.ABORTABLE_ERROR:
            self._call("abort", self.manager.abort_transaction)

    @precondition(lambda self: self.call is not None and self.call[0] in ("offsets", "prepare"))
    @rule(really=RARELY)
    def abort_instead(self, really: bool) -> None:
        """Abort after a call without a decision has timed out."""
        if not really:
            return
        self.call = None
        if self.manager.state in (S.IN_TRANSACTION, S.ABORTABLE_ERROR, S.PREPARED_TRANSACTION):
            try:
                self._call("abort", self.manager.abort_transaction)
            except IllegalStateError:
                raise AssertionError(f"abort is refused in {self.manager.state}") from None

    @precondition(lambda self: self.call is not None)
    @rule(really=RARELY)
    def another_call_is_refused(self, really: bool) -> None:
        if not really:
            return
        assert self.call is not None
        before = self.manager.state
        for call in (self.manager.begin_transaction, self.manager.check_send):
            try:
                call()
            except (IllegalStateError, KafkaError):
                continue
            raise AssertionError("allowed while the outcome of a call is unknown")
        assert self.manager.state is before

    @rule(really=RARELY)
    def the_process_dies(self, really: bool) -> None:
        """End the process: its requests stay in flight, and the next process follows the database."""
        if not really:
            return
        if self.current is not None and self.current is not self.decided and self.current.told is None:
            self.current.told = "unknown" if self.current.asked_to_commit else None
        self._drop(range(NODES), keep=True)
        self._new_producer(keep=self.two_phase)
        self.recovering = self.two_phase

    @precondition(lambda self: self._may(S.PREPARED_TRANSACTION) and self.current is None)
    @rule()
    def recover(self) -> None:
        operation = self.manager.complete_transaction(self.database)
        self.call = ("recover", operation)
        self.current = Transaction(told="unknown")
        self._see_recovery()

    def _see_recovery(self) -> None:
        self.pump()
        if self.call is not None and self.call[0] == "recover" and self.call[1].done:
            operation, self.call = self.call[1], None
            self.manager.acknowledge(operation)
            self.current = None
            if operation.error is None and self.decided is not None:
                self.decided.told = "committed"
                self.decided = None

    def _after_anything(self) -> None:
        if self.call is not None and self.call[0] == "recover":
            self._see_recovery()
        else:
            self._see_outcome()

    # ---- the network ------------------------------------------------------------------------------------------------

    @precondition(lambda self: any(not flight.applied for flight in self.flights))
    @rule(node=st.integers(0, NODES - 1), refuse=st.integers(-40, 9))
    def a_request_arrives(self, node: int, refuse: int) -> None:
        flight = next((flight for flight in self.flights if flight.node == node and not flight.applied), None)
        if flight is None:
            return
        self._apply(flight, refuse)

    def _apply(self, flight: Flight, refuse: int = -1) -> None:
        flight.applied = True
        codes = REFUSALS[type(flight.request)]
        if 0 <= refuse < len(codes):
            flight.answer = refusal(flight.request, codes[refuse])
            if codes[refuse] in (7, 15, 16, 20) and isinstance(flight.request, m.EndTxn | list):
                self.broker.apply(flight.node, flight.request)  # such a response does not exclude that
        else:
            flight.answer = self.broker.apply(flight.node, flight.request)

    @precondition(lambda self: any(flight.applied for flight in self.flights))
    @rule(node=st.integers(0, NODES - 1))
    def an_answer_arrives(self, node: int) -> None:
        flight = next((flight for flight in self.flights if flight.node == node), None)
        if flight is not None and flight.applied:
            self.flights.remove(flight)
            flight.hear(flight.answer)
            self._after_anything()

    @precondition(lambda self: self.flights or self.call is not None)
    @rule(count=st.integers(1, 12))
    def all_goes_well_for_a_while(self, count: int) -> None:
        for _ in range(count):
            if self.flights:
                flight = self.flights.pop(0)
                if not flight.applied:
                    self._apply(flight)
                flight.hear(flight.answer)
            elif self.call is not None:
                self.now_ms = max(self.now_ms, self._wake_at_ms() or 0)
            self._after_anything()

    @precondition(lambda self: self.flights)
    @rule(node=st.integers(0, NODES - 1), keep=st.booleans())
    def a_connection_breaks(self, node: int, keep: bool) -> None:
        for flight in self._drop([node], keep=keep):
            flight.hear(None)
        self._after_anything()

    def _drop(self, nodes: Any, *, keep: bool) -> list[Flight]:
        lost = [flight for flight in self.flights if flight.node in nodes]
        self.flights = [flight for flight in self.flights if flight not in lost]
        if keep and self.broker.version < 2:
            for flight in lost:  # later it would be taken for a part of the next transaction, which has the same epoch
                if not flight.applied:
                    self.broker.apply(flight.node, flight.request)
        elif keep:
            self.zombies += [Flight(f.node, f.request, f.hear) for f in lost if not f.applied]
        return lost

    @precondition(lambda self: self.zombies)
    @rule(index=st.integers(0, 20))
    def a_request_arrives_late(self, index: int) -> None:
        zombie = self.zombies.pop(index % len(self.zombies))
        self.may_be_fenced |= isinstance(zombie.request, m.InitProducerId)
        self.broker.apply(zombie.node, zombie.request)

    @precondition(lambda self: any(flight.applied for flight in self.flights))
    @rule(index=st.integers(0, 20))
    def a_request_arrives_twice(self, index: int) -> None:
        applied = [flight for flight in self.flights if flight.applied]
        flight = applied[index % len(applied)]
        if not isinstance(flight.request, m.InitProducerId):
            self.broker.apply(flight.node, flight.request)

    @rule(duration_ms=st.sampled_from([1, 6, 25, 25, 100, 100, 400, 400, 3_500]))
    def time_passes(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        self._after_anything()

    # ---- the cluster ------------------------------------------------------------------------------------------------

    @rule(really=RARELY)
    def the_coordinator_moves(self, really: bool) -> None:
        if really:
            self.broker.coordinator = 1 - self.broker.coordinator

    @rule(partition=st.integers(0, PARTITIONS - 1), really=RARELY)
    def a_leader_moves(self, partition: int, really: bool) -> None:
        if really:
            self.broker.leaders[partition] = 1 - self.broker.leaders[partition]

    @rule(most_records=st.sampled_from([1, 2, 100]))
    def the_topic_takes_other_batches(self, most_records: int) -> None:
        self.broker.most_records = most_records

    @precondition(lambda self: self.broker.state == "Ongoing" and not self.two_phase)
    @rule(really=RARELY)
    def the_broker_aborts_what_takes_too_long(self, really: bool) -> None:
        if really:
            self.may_be_fenced = True
            self.broker.abort()

    @precondition(lambda self: not self.two_phase)
    @rule(really=RARELY)
    def another_producer_takes_over(self, really: bool) -> None:
        if really:
            self._take_over()

    def _take_over(self) -> None:
        self.may_be_fenced = True
        if self.broker.state == "Ongoing":
            self.broker.abort()
        self.broker.bump_epoch("Empty")

    @precondition(lambda self: not self.two_phase and any(isinstance(f.request, m.EndTxn) for f in self.flights))
    @rule(takeover=st.booleans())
    def the_answer_to_an_end_is_lost(self, takeover: bool) -> None:
        flight = next(flight for flight in self.flights if isinstance(flight.request, m.EndTxn))
        if not flight.applied:
            self._apply(flight)
        if takeover:
            self._take_over()
        for lost in self._drop([flight.node], keep=False):
            lost.hear(None)
        self._after_anything()

    # ---- invariants -------------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_doubled_and_every_transaction_is_whole(self) -> None:
        committed = self.broker.committed
        assert len(set(committed)) == len(committed)
        for transaction in self.transactions:
            there = [record for record in committed if record in transaction.values]
            if there:
                for partition in range(PARTITIONS):
                    wanted = [record for record in transaction.values if record[0] == partition]
                    assert [record for record in there if record[0] == partition] == wanted
            if transaction.told == "committed":
                assert len(there) == len(transaction.values)
            if transaction.told == "not committed":
                assert not there

    @invariant()
    def work_goes_on_or_has_a_time_to_wake(self) -> None:
        if not hasattr(self, "manager") or self.call is None or self.call[1].done:
            return
        assert self.flights or self._wake_at_ms() is not None, self.manager.state

    def _wake_at_ms(self) -> float | None:
        times = [self.manager.retry_at_ms]
        if self.accumulator.active and self.manager.may_produce:
            times.append(self.accumulator.wake_at_ms(self.now_ms))
        return min((time for time in times if time is not None), default=None)

    def teardown(self) -> None:
        """Stop all faults: every call must end with few requests, and every decision must be completed."""
        if not hasattr(self, "manager"):
            return
        self.zombies.clear()
        self._calm()
        if self.decided is not None:
            self._drop(range(NODES), keep=False)
            self._new_producer(keep=True)
            self._calm()
            if self.manager.state is S.PREPARED_TRANSACTION:
                self.recover()
                self._calm()
            assert all(record in self.broker.committed for record in self._decided_values)
        self._one_more()
        self.nothing_is_doubled_and_every_transaction_is_whole()

    def _one_more(self) -> None:
        """Commit one more transaction, which must succeed unless this producer was fenced."""
        if self.manager.state is S.FATAL_ERROR:
            assert self.may_be_fenced, self.manager.error
            return
        if self.manager.state is S.PREPARED_TRANSACTION:
            return
        if self.manager.state in (S.IN_TRANSACTION, S.ABORTABLE_ERROR):
            self._call("abort", self.manager.abort_transaction)
            self._calm()
        if self.manager.state is S.READY:
            self.begin([0, 1, 0])
            self.commit()
            self._calm()
            assert self.may_be_fenced or self.transactions[-1].told == "committed", self.transactions[-1].told

    @property
    def _decided_values(self) -> list[tuple[int, int]]:
        return [] if self.decided is None else self.decided.values

    def _calm(self) -> None:
        before = self.requests
        for _ in range(200):
            self._after_anything()
            while self.flights:
                flight = self.flights.pop(0)
                if not flight.applied:
                    self._apply(flight)
                flight.hear(flight.answer)
                self._after_anything()
                assert self.requests - before < 150, f"spinning in {self.manager.state}: {flight.request}"
            if self.call is None:
                break
            wake_at_ms = self._wake_at_ms()
            assert wake_at_ms is not None, f"nothing will happen in {self.manager.state}"
            self.now_ms = max(self.now_ms + 0.5, wake_at_ms)
        assert self.call is None, f"{self.call[0]} does not end"


ProducerModel.TestCase.settings = settings(
    max_examples=examples(150),
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestProducerModel = ProducerModel.TestCase
