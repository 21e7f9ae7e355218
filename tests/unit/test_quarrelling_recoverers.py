"""Two recoverers, a live owner and the broker's timeout, in random orders: the outcomes that each may report.

The database holds the stored producer id and epoch, so every process that reads it wants to commit. Then only the
broker's timeout may abort the transaction, and no process may report a false outcome: neither committed nor lost.
"""

from __future__ import annotations

import random

import pytest

from dualwrite.client import messages as m
from dualwrite.client.operations import Operation
from dualwrite.client.pacing import Backoff
from dualwrite.client.transactions.manager import TransactionManager
from dualwrite.client.transactions.states import ProducerState
from dualwrite.errors import Api, FencedError, OutcomeUnknown, PreparedTransactionLost
from dualwrite.prepared_state import PreparedTxnState

HISTORIES = 200
FIRST_EPOCHS = (5, 32764, 32765, 32766)


class Coordinator:
    """One transactional id by the rules of transaction.version 1 or 2: take-overs, ends and timeouts."""

    def __init__(self, version: int, epoch: int) -> None:
        self.version = version
        self.state, self.producer_id, self.epoch = "Ongoing", 42, epoch
        self.previous = (-1, -1)
        self.aborted_by: list[str] = []
        self.fate = "open"

    @property
    def pair(self) -> tuple[int, int]:
        return self.producer_id, self.epoch

    def answer(self, request: m.Request) -> m.Response:
        match request:
            case m.FindCoordinator():
                return m.FindCoordinatorResponse(0, 1, "h", 1)
            case m.ApiVersions():
                return m.BrokerFeatures(0, dict.fromkeys(Api, (0, 5)), self.version)
            case m.DescribeTransaction():
                return m.DescribeTransactionResponse(0, self.state, *self.pair, 1000)
            case m.InitProducerId():
                return self._initialise()
            case m.EndTxn():
                return self._end(request)
        raise AssertionError(request)

    def _initialise(self) -> m.InitProducerIdResponse:
        if self.state.startswith("Prepare"):
            return m.InitProducerIdResponse(51)
        if self.state == "Ongoing":
            self.abort("a takeover")
            return m.InitProducerIdResponse(51)
        if self.epoch >= 32766:
            self.producer_id, self.epoch = self.producer_id + 1, -1
        self.epoch += 1
        self.state, self.previous = "Empty", (-1, -1)
        return m.InitProducerIdResponse(0, *self.pair)

    def _end(self, request: m.EndTxn) -> m.EndTxnResponse:
        asked = (request.producer_id, request.producer_epoch)
        to = "Commit" if request.committed else "Abort"
        known = self.pair if self.version == 1 else self.previous
        if asked == known and self.state != "Ongoing":  # the same once more
            if self.state.startswith("Prepare"):
                return m.EndTxnResponse(51)
            same = self.state == f"Complete{to}"
            if not same:
                return m.EndTxnResponse(48)
            return m.EndTxnResponse(0, *(self.pair if self.version == 2 else (-1, -1)))
        if asked != self.pair:
            return m.EndTxnResponse(49 if asked[0] != self.producer_id else 90)
        if self.state != "Ongoing":
            return m.EndTxnResponse(48)
        self.previous = asked
        if self.version == 2:
            self.epoch += 1
        self.state, self.fate = f"Prepare{to}", "committed" if request.committed else "aborted"
        return m.EndTxnResponse(0, *(self._completes_as if self.version == 2 else (-1, -1)))

    def abort(self, by: str) -> None:
        self.aborted_by.append(by)
        self.fate, self.previous = "aborted", self.pair
        self.epoch += 1
        self.state = "PrepareAbort"

    def write_markers(self) -> None:
        if self.state.startswith("Prepare"):
            if self.version == 2:
                self.producer_id, self.epoch = self._completes_as
            self.state = self.state.replace("Prepare", "Complete")

    @property
    def _completes_as(self) -> tuple[int, int]:
        """Complete at the last epoch, which is only for markers, as another producer id (KAFKA-20090)."""
        return (self.producer_id + 1, 0) if self.epoch > 32766 else self.pair


class Process:
    """A producer that completes by the stored pair; it sends one request at a time and may lose the response."""

    def __init__(self, stored: PreparedTxnState, *, owner: bool = False) -> None:
        self.stored = stored
        self.now_ms = 0.0
        self.manager = TransactionManager(
            transactional_id="tid",
            transaction_timeout_ms=60_000,
            two_phase_commit=True,
            accepts_bound=True,
            backoff=Backoff(1, 1),
        )
        self.completing: Operation | None = None
        self.operation = self.manager.init_transactions(not owner)

    @classmethod
    def owner_of(cls, stored: PreparedTxnState, version: int) -> Process:
        """Create the process that prepared the transaction and is still alive."""
        process = cls(stored, owner=True)
        raised = 1 if version == 2 else 3  # by its initialisation, and before its transaction
        coordinator = Coordinator(version, stored.producer_epoch - raised)
        coordinator.state = "Empty"
        while not process.operation.done:
            process._ask(coordinator, lost=False)
        process.manager.acknowledge(process.operation)
        process.manager.begin_transaction()
        process.manager.accepted()
        while not process.manager.may_produce:
            process._ask(coordinator, lost=False)
        process.manager.produced()
        process.operation = process.manager.prepare_transaction()
        process.manager.settle_without_kafka()
        assert process.manager.transaction.prepared_state == stored
        return process

    @property
    def is_done(self) -> bool:
        return self.completing is not None and self.completing.done

    def step(self, coordinator: Coordinator, *, lost: bool) -> None:
        if self.operation.done and self.completing is None:
            self.manager.acknowledge(self.operation)
            self.completing = self.manager.complete_transaction(self.stored)
            return
        self._ask(coordinator, lost=lost)

    def _ask(self, coordinator: Coordinator, *, lost: bool) -> None:
        self.now_ms = max(self.now_ms, self.manager.retry_at_ms or 0.0)
        outgoing = self.manager.poll(self.now_ms, delivered=True)
        if outgoing is None:
            return
        answer = coordinator.answer(outgoing.request)
        if lost:
            self.manager.on_no_response(self.now_ms)
        else:
            self.manager.on_response(answer, self.now_ms)


@pytest.mark.parametrize("times_out", [False, True])
@pytest.mark.parametrize("first_epoch", FIRST_EPOCHS)
@pytest.mark.parametrize("version", [1, 2])
def test_no_process_reports_a_wrong_outcome(version: int, first_epoch: int, times_out: bool) -> None:
    said = set()
    for seed in range(HISTORIES):
        chance = random.Random(seed)
        coordinator = Coordinator(version, first_epoch)
        stored = PreparedTxnState(f"42:{first_epoch}")
        processes = [Process.owner_of(stored, version), Process(stored), Process(stored)]
        while not all(process.is_done for process in processes):
            event = chance.random()
            if event < 0.02 and times_out and coordinator.state == "Ongoing":
                coordinator.abort("the timeout")
            elif event < 0.2:
                coordinator.write_markers()
            else:
                waiting = [process for process in processes if not process.is_done]
                chance.choice(waiting).step(coordinator, lost=chance.random() < 0.1)
        assert coordinator.aborted_by in ([], ["the timeout"]) if times_out else coordinator.aborted_by == [], seed
        for process in processes:
            assert process.completing is not None
            error = process.completing.error
            said.add(type(error).__name__)
            if error is None:
                assert coordinator.fate == "committed", seed
            elif isinstance(error, PreparedTransactionLost):
                assert coordinator.fate == "aborted", seed
                assert process.manager.state is ProducerState.UNINITIALIZED
            else:
                assert isinstance(error, FencedError | OutcomeUnknown), (seed, error)
    assert "NoneType" in said
    assert ("PreparedTransactionLost" in said) is times_out
