"""One transactional id driven through the pure decisions, with the log it leaves: no loop, no sockets, no clock."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.config import TWO_PHASE_COMMIT_TIMEOUT_MS
from dualwrite.broker_emulator.topics.topics import TopicPartition
from dualwrite.broker_emulator.transactions import coordinator, init_producer_id, transitions
from dualwrite.broker_emulator.transactions.coordinator import EndTxnResult
from dualwrite.broker_emulator.transactions.init_producer_id import InitProducerIdRequest, InitProducerIdResult
from dualwrite.broker_emulator.transactions.metadata import NO_PAIR, CoordinatorRules, ProducerPair, TransactionMetadata
from dualwrite.broker_emulator.transactions.states import COMPLETE_STATES, PREPARE_STATES, TransactionState
from dualwrite.broker_emulator.transactions.transaction_log import decode_value, encode_value, value_version
from dualwrite.broker_emulator.transactions.transitions import Transition

MAX = 32767
TXN = "txn-1"
T0 = TopicPartition("t", 0)
KIP = CoordinatorRules()


def metadata(state: TransactionState, pid: int = 42, epoch: int = 5, **fields: Any) -> TransactionMetadata:
    """Return an id in `state` under transaction version 2, nothing pending; epoch - 1 ended the last transaction."""
    is_open = state is TransactionState.ONGOING or state in PREPARE_STATES
    values: dict[str, Any] = {
        "timeout_ms": 60_000,
        "client_transaction_version": 2,
        "last_producer_epoch": epoch - 1,
        "previous_producer_id": pid if state in COMPLETE_STATES else -1,
        "topic_partitions": frozenset({T0}) if is_open else frozenset(),
        "start_timestamp_ms": -1 if state is TransactionState.EMPTY else 900,
        "last_update_timestamp_ms": 1000,
        **fields,
    }
    return TransactionMetadata(transactional_id=TXN, producer_id=pid, producer_epoch=epoch, state=state, **values)


@dataclass
class SimulatedId:
    """Decides each request by `decide_*`, and otherwise applies the decision at once."""

    metadata: TransactionMetadata | None = None
    rules: CoordinatorRules = KIP
    new_producer_ids: Iterator[int] = field(default_factory=lambda: itertools.count(1000))
    now_ms: int = 10_000
    log: list[bytes] = field(default_factory=list)
    _offered: int | None = None

    @property
    def known(self) -> TransactionMetadata:
        assert self.metadata is not None
        return self.metadata

    def _new_producer_id(self) -> int:
        """Return the next new producer id: the same one until a transition has used it."""
        if not coordinator.needs_new_producer_id(self.metadata):
            return -1
        if self._offered is None:
            self._offered = next(self.new_producer_ids)
        return self._offered

    # --- decisions only ---

    def decide_init(
        self, expected: ProducerPair = NO_PAIR, *, keep: bool = False, timeout_ms: int = 60_000, two_pc: bool = False
    ) -> tuple[InitProducerIdResult, Transition | None]:
        request = InitProducerIdRequest(timeout_ms, expected, two_pc, keep)
        error = init_producer_id.check_init_request(TXN, request, self.rules)
        if error is not ErrorCode.none:
            return InitProducerIdResult(error), None
        decision = init_producer_id.decide_init_producer_id(
            TXN, self.metadata, request, self.rules, new_producer_id=self._new_producer_id(), now_ms=self.now_ms
        )
        return decision.response, decision.transition

    def decide_add(
        self, pair: ProducerPair, *partitions: TopicPartition, version: int = 2
    ) -> tuple[ErrorCode, Transition | None]:
        decision = coordinator.decide_add_partitions(
            self.metadata, pair, partitions or (T0,), self.rules, transaction_version=version, now_ms=self.now_ms
        )
        return decision.response, decision.transition

    def decide_end(
        self, pair: ProducerPair, *, commit: bool, version: int = 2
    ) -> tuple[EndTxnResult, Transition | None]:
        decision = coordinator.decide_end_txn(
            self.metadata,
            pair,
            self.rules,
            commit=commit,
            transaction_version=version,
            new_producer_id=self._new_producer_id(),
            now_ms=self.now_ms,
        )
        return decision.response, decision.transition

    # --- carried out at once ---

    def begin(self, transition: Transition) -> None:
        self.metadata = transition.during

    def apply(self, transition: Transition) -> None:
        self.log.append(encode_value(transition.after, value_version(self.rules.transaction_version)))
        self.metadata = transition.after
        if self._offered in (self.metadata.producer_id, self.metadata.next_producer_id):
            self._offered = None

    def fail(self, transition: Transition) -> None:
        self.metadata = transition.on_failure

    def init(self, *expected: int, **options: Any) -> InitProducerIdResult:
        response, transition = self.decide_init(ProducerPair(*expected) if expected else NO_PAIR, **options)
        if transition is not None:
            self.apply(transition)
        return response

    def add(self, pid: int, epoch: int, *partitions: TopicPartition, version: int = 2) -> ErrorCode:
        response, transition = self.decide_add(ProducerPair(pid, epoch), *partitions, version=version)
        if transition is not None:
            self.apply(transition)
        return response

    def end(self, pid: int, epoch: int, *, commit: bool, version: int = 2) -> EndTxnResult:
        response, transition = self.decide_end(ProducerPair(pid, epoch), commit=commit, version=version)
        if transition is not None:
            self.apply(transition)
        return response

    def decide_timeout(self) -> Transition | None:
        return coordinator.decide_timeout_abort(
            self.known, self.rules, new_producer_id=self._new_producer_id(), now_ms=self.now_ms
        )

    def reload(self) -> None:
        """Load the id from the log, as another coordinator does."""
        self.metadata = transitions.loaded(decode_value(TXN, self.log[-1])) if self.log else None


def fresh_at(pid: int, epoch: int) -> SimulatedId:
    """Return an id just initialised to (pid, epoch) in two-phase commit."""
    start = metadata(
        TransactionState.EMPTY,
        pid,
        epoch,
        last_producer_epoch=-1,
        timeout_ms=TWO_PHASE_COMMIT_TIMEOUT_MS,
        client_transaction_version=0,
    )
    return SimulatedId(start)
