"""Interleavings of clients, zombies, retries, timeouts, failed appends and failovers, found by Hypothesis.

The decisions are driven one step at a time: a decision stays pending until the append is made, fails, or is lost or
kept by a failover; markers come in any order. Requests come from the clients that hold a pair, and from the network at
any later time, any number of times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.topics.topics import TopicPartition
from dualwrite.broker_emulator.transactions import transitions
from dualwrite.broker_emulator.transactions.coordinator import EndTxnResult
from dualwrite.broker_emulator.transactions.init_producer_id import InitProducerIdResult
from dualwrite.broker_emulator.transactions.metadata import NO_PAIR, ProducerPair, TransactionMetadata
from dualwrite.broker_emulator.transactions.states import COMPLETE_STATES, PREPARE_STATES, TransactionState
from dualwrite.broker_emulator.transactions.transitions import Transition
from tests.support.proof_only import examples

from .simulated_id import MAX, SimulatedId, fresh_at

PARTITIONS = [TopicPartition("t", number) for number in range(3)]


class EndRequest(NamedTuple):
    """A request on the network, to be delivered now, later, or again."""

    pair: ProducerPair
    commit: bool


@dataclass
class InFlight:
    """A decision whose record is being appended, and the response to the client after success."""

    transition: Transition
    init: tuple[ProducerPair, InitProducerIdResult] | None = None
    end: tuple[EndRequest, EndTxnResult] | None = None


@dataclass
class History:
    """An observer's conclusions from the log and the responses alone."""

    latest_client_epoch: dict[int, int] = field(default_factory=dict)
    latest_producer_epoch: dict[int, int] = field(default_factory=dict)
    outcomes: dict[ProducerPair, TransactionState] = field(default_factory=dict)  # by the pair on the markers
    ended_by: dict[ProducerPair, bool] = field(default_factory=dict)  # client pair -> committed
    fenced: set[ProducerPair] = field(default_factory=set)
    held: set[ProducerPair] = field(default_factory=set)


class Interleavings(RuleBasedStateMachine):
    """One transactional id on a cluster with transaction version 2."""

    pairs: Bundle[ProducerPair] = Bundle("pairs")
    ends: Bundle[EndRequest] = Bundle("ends")

    def __init__(self) -> None:
        super().__init__()
        self.id = SimulatedId()
        self.history = History()
        self.in_flight: InFlight | None = None
        self.outstanding: set[TopicPartition] = set()
        self.at_append: TransactionMetadata | None = None

    @initialize(
        target=pairs,
        epoch=st.sampled_from([0, 0, MAX - 4, MAX - 3, MAX - 2, MAX - 1]),
        next_epoch=st.sampled_from([None, None, MAX - 2, MAX]),
        two_pc=st.booleans(),
    )
    def begin(self, epoch: int, next_epoch: int | None, two_pc: bool) -> ProducerPair:
        """Start with an idle id, or one with a transaction that was already recovered many times."""
        self.id = fresh_at(42, epoch)
        start = self.id.known if two_pc else self.id.known._replace(timeout_ms=10_000)
        if next_epoch is not None:
            start = transitions.added(start, [PARTITIONS[0]], transaction_version=2, now_ms=self.id.now_ms).after
            start = start._replace(next_producer_id=73, next_producer_epoch=next_epoch)
            self.history.held.add(start.producer_pair)
        self.history.held.add(start.client_pair)
        self.id.apply(Transition(start, start, start))
        self._appended(start)
        return start.client_pair

    # --- clients and the network ---

    @rule(
        target=pairs,
        keep=st.booleans(),
        two_pc=st.booleans(),
        timeout_ms=st.sampled_from([100, 10_000]),
        appended=st.booleans(),
    )
    def init(self, keep: bool, two_pc: bool, timeout_ms: int, appended: bool) -> MultipleResults[ProducerPair]:
        return self._init(NO_PAIR, keep, two_pc, timeout_ms, appended)

    @rule(target=pairs, pair=pairs, two_pc=st.booleans(), appended=st.booleans())
    def init_with_expected_pair(
        self, pair: ProducerPair, two_pc: bool, appended: bool
    ) -> MultipleResults[ProducerPair]:
        return self._init(pair, False, two_pc, 10_000, appended)

    def _init(
        self, expected: ProducerPair, keep: bool, two_pc: bool, timeout_ms: int, appended: bool
    ) -> MultipleResults[ProducerPair]:
        before = self.id.metadata
        response, transition = self.id.decide_init(expected, keep=keep, two_pc=two_pc, timeout_ms=timeout_ms)
        if before is not None and before.has_dual_identity and expected not in (NO_PAIR, before.client_pair):
            is_pending = before.pending_state is not None
            assert response.error is (ErrorCode.concurrent_transactions if is_pending else ErrorCode.producer_fenced)
            assert transition is None
        if transition is None:
            assert response.error is not ErrorCode.none
            return multiple()
        self._take(InFlight(transition, init=(expected, response)), appended)
        if not appended or response.error is not ErrorCode.none:
            return multiple()
        return multiple(ProducerPair(response.producer_id, response.producer_epoch))

    @rule(pair=pairs, partition=st.sampled_from(PARTITIONS), appended=st.booleans())
    def add(self, pair: ProducerPair, partition: TopicPartition, appended: bool) -> None:
        before = self.id.metadata
        response, transition = self.id.decide_add(pair, partition)
        if pair in self.history.fenced and before is not None:
            late_write = before.has_dual_identity and pair == before.producer_pair
            assert late_write or response is not ErrorCode.none
        if transition is not None:
            self._take(InFlight(transition), appended)

    @rule(target=ends, pair=pairs, commit=st.booleans())
    def ask_to_end(self, pair: ProducerPair, commit: bool) -> EndRequest:
        return EndRequest(pair, commit)

    @rule(target=pairs, request=ends, appended=st.booleans())
    def deliver_end(self, request: EndRequest, appended: bool) -> MultipleResults[ProducerPair]:
        response, transition = self.id.decide_end(request.pair, commit=request.commit)
        if transition is not None:
            assert request.pair not in self.history.fenced, "a fenced pair ended a transaction"
            self._take(InFlight(transition, end=(request, response)), appended)
            return multiple(ProducerPair(*response[1:])) if appended else multiple()
        if response.error is not ErrorCode.none:
            return multiple()
        # a retry: the same outcome as before, by the very pair that was used then
        assert self.history.ended_by[request.pair] == request.commit
        assert ProducerPair(*response[1:]) == self.id.known.producer_pair
        return multiple(ProducerPair(*response[1:]))

    @precondition(lambda self: self.in_flight is None and not self._is_decided())
    @rule(target=ends, partition=st.sampled_from(PARTITIONS), commit=st.booleans(), is_ended=st.booleans())
    def the_live_client_does_a_transaction(
        self, partition: TopicPartition, commit: bool, is_ended: bool
    ) -> MultipleResults[EndRequest]:
        """Run undisturbed; its requests may be delivered again later."""
        pair = self.id.known.client_pair
        self.add(pair, partition, True)
        request = EndRequest(pair, commit)
        if is_ended and self.id.known.state is TransactionState.ONGOING:
            self.deliver_end(request, True)
            self.outstanding.clear()
            self.complete(True)
        return multiple(request)

    # --- the server ---

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def append_succeeds(self) -> None:
        assert self.in_flight is not None
        in_flight, self.in_flight = self.in_flight, None
        self._carry_out(in_flight)

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def append_fails(self) -> None:
        assert self.in_flight is not None
        self.id.fail(self.in_flight.transition)
        self.in_flight = None

    @precondition(lambda self: bool(self.outstanding) and self.in_flight is None)
    @rule(data=st.data())
    def a_marker_is_acknowledged(self, data: st.DataObject) -> None:
        partition = data.draw(st.sampled_from(sorted(self.outstanding)))
        self.outstanding.discard(partition)
        self.id.metadata = transitions.acknowledged(self.id.known, {partition})

    @precondition(lambda self: self._is_decided() and not self.outstanding and self.in_flight is None)
    @rule(appended=st.booleans())
    def complete(self, appended: bool) -> None:
        self._take(InFlight(transitions.completed(self.id.known, self.id.now_ms)), appended)

    @precondition(lambda self: self.id.metadata is not None and self.in_flight is None)
    @rule(elapsed_ms=st.sampled_from([1, 50, 200, 20_000, 2**32]), appended=st.booleans())
    def time_passes_and_the_scan_runs(self, elapsed_ms: int, appended: bool) -> None:
        self.id.now_ms += elapsed_ms
        was_two_pc = self.id.known.is_two_phase_commit
        transition = self.id.decide_timeout()
        if transition is not None:
            assert not was_two_pc
            self._take(InFlight(transition), appended)

    @rule(appended=st.booleans())
    def failover(self, appended: bool) -> None:
        """Let the append in flight reach the log or not; the client gets no response either way."""
        if self.in_flight is not None and appended:
            self.id.apply(self.in_flight.transition)
            self._appended(self.id.known)
        self.in_flight = None
        self.id.reload()
        self.outstanding = set(self.id.known.topic_partitions) if self._is_decided() else set()

    # --- bookkeeping ---

    def _is_decided(self) -> bool:
        return self.id.metadata is not None and self.id.metadata.state in PREPARE_STATES

    def _take(self, in_flight: InFlight, appended: bool) -> None:
        assert self.in_flight is None, "decided while another transition was pending"
        self.id.begin(in_flight.transition)
        if appended:
            self._carry_out(in_flight)
        else:
            self.in_flight = in_flight

    def _carry_out(self, in_flight: InFlight) -> None:
        before = in_flight.transition.during
        self.id.apply(in_flight.transition)
        self._appended(self.id.known)
        if in_flight.init is not None:
            self._initialised(before, *in_flight.init)
        if in_flight.end is not None:
            _, response = in_flight.end
            self.history.held.add(ProducerPair(*response[1:]))

    def _initialised(self, before: TransactionMetadata, expected: ProducerPair, response: InitProducerIdResult) -> None:
        if response.error is not ErrorCode.none:
            return
        pair = ProducerPair(response.producer_id, response.producer_epoch)
        assert pair == self.id.known.client_pair
        assert expected != NO_PAIR or pair not in self.history.held, "two clients hold one identity"
        ongoing = ProducerPair(response.ongoing_producer_id, response.ongoing_producer_epoch)
        if ongoing != NO_PAIR:
            assert ongoing == before.producer_pair == self.id.known.producer_pair
        self.history.held.add(pair)

    def _appended(self, metadata: TransactionMetadata) -> None:
        """Check epochs, outcomes and fencing as a reader of the log sees them in each record."""
        history = self.history
        self.at_append = metadata
        client = metadata.client_pair if metadata.next_pair == NO_PAIR else metadata.next_pair
        for latest, (pid, epoch) in (
            (history.latest_client_epoch, client),
            (history.latest_producer_epoch, metadata.producer_pair),
        ):
            assert epoch >= latest.get(pid, 0), "an epoch went back"
            latest[pid] = epoch
        if metadata.state in PREPARE_STATES:
            self.outstanding = set(metadata.topic_partitions)
            self._decided(metadata)
        if metadata.state not in PREPARE_STATES:
            alive = metadata.client_pair
            history.fenced |= history.held - {alive}
            assert alive not in history.fenced, "an identity that was fenced is handed out again"

    def _decided(self, metadata: TransactionMetadata) -> None:
        history = self.history
        assert metadata.producer_pair not in history.outcomes, "one (pid, epoch) was decided twice"
        history.outcomes[metadata.producer_pair] = metadata.state
        client_pid = metadata.previous_producer_id if metadata.previous_producer_id != -1 else metadata.producer_id
        client = ProducerPair(client_pid, metadata.last_producer_epoch)
        assert client not in history.ended_by, "one client pair ended two transactions"
        history.ended_by[client] = metadata.state is TransactionState.PREPARE_COMMIT

    @invariant()
    def replaying_the_log_gives_what_is_in_memory(self) -> None:
        if self.id.metadata is None or not self.id.log:
            return
        reloaded = SimulatedId(log=self.id.log)
        reloaded.reload()
        live = self.id.metadata if self.in_flight is None else self.at_append
        assert live is not None
        if live.state in PREPARE_STATES:  # acknowledgements are not written
            assert reloaded.known.topic_partitions >= live.topic_partitions
            live = transitions.loaded(live)
            done = reloaded.known.topic_partitions - live.topic_partitions
            reloaded.metadata = transitions.acknowledged(reloaded.known, done)
        assert reloaded.known == live

    @invariant()
    def completion_follows_the_decision(self) -> None:
        if self.at_append is not None and self.at_append.state in COMPLETE_STATES:
            last = next(reversed(self.history.outcomes.values()))
            assert (last is TransactionState.PREPARE_COMMIT) == (
                self.at_append.state is TransactionState.COMPLETE_COMMIT
            )


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=examples(250), stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
