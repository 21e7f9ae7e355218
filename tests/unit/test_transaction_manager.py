"""The transaction manager, event by event: the next request, and the effect of each response. No sockets."""

from __future__ import annotations

import pytest

from dualwrite.client import messages as m
from dualwrite.client.operations import Operation
from dualwrite.client.pacing import Backoff
from dualwrite.client.records.record import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from dualwrite.client.transactions.manager import TransactionManager
from dualwrite.client.transactions.states import ProducerState
from dualwrite.errors import (
    AbortableError,
    Api,
    CommitOutcomeUnknown,
    DualWriteError,
    FatalError,
    FencedCommitOutcomeUnknown,
    FencedError,
    OutcomeUnknown,
    PreparedTransactionLost,
    UnsupportedByBrokerError,
)
from dualwrite.guarantee import Tier
from dualwrite.prepared_state import MAX_PRODUCER_ID, PreparedTxnState

NODE = 3
FIND = m.FindCoordinator(m.CoordinatorType.TRANSACTION, "t")
OFFSETS = {TopicPartition("in", 0): OffsetAndMetadata(5)}
GROUP = ConsumerGroupMetadata("g")
KIP_939 = m.BrokerFeatures(0, dict.fromkeys(Api, (0, 12)), 2)
NO_TIMEOUT = 2**31 - 1


class Driver:
    """A stand-in for the sender, with a clock that only the test advances."""

    def __init__(self, *, two_phase_commit: bool = True) -> None:
        self.manager = TransactionManager(
            transactional_id="t",
            transaction_timeout_ms=60_000,
            two_phase_commit=two_phase_commit,
            backoff=Backoff(100, 1000),
        )
        self.now_ms = 1000.0
        self.knows_features = False

    def next(self, *, delivered: bool = True) -> m.Request | None:
        outgoing = self.manager.poll(self.now_ms, delivered=delivered)
        return None if outgoing is None else outgoing.request

    def answer(self, answer: m.Response) -> None:
        self.manager.on_response(answer, self.now_ms)

    def find_coordinator(self) -> None:
        assert self.next() == FIND
        self.answer(m.FindCoordinatorResponse(0, NODE, "h", 1))
        if not self.knows_features:
            self.knows_features = True
            assert self.next() == m.ApiVersions()
            self.answer(KIP_939)

    def initialised(self, *, keep: bool = False, answer: m.InitProducerIdResponse | None = None) -> Driver:
        self.manager.init_transactions(keep)
        self.find_coordinator()
        if keep:
            self.look()
        assert self.next() is not None
        self.answer(answer or m.InitProducerIdResponse(0, 42, 7))
        self.manager.init_transactions(keep)  # hear how it ended
        return self

    def look(self, state: str = "Ongoing", producer_epoch: int = 7) -> None:
        """Initialise. The id is described first, because KeepPreparedTxn leaves it Empty if nothing is open."""
        assert self.next() == m.DescribeTransaction("t")
        self.answer(m.DescribeTransactionResponse(0, state, 42, producer_epoch, 5))

    def sent(self) -> Driver:
        """Begin a transaction with one acknowledged record."""
        self.manager.begin_transaction()
        self.manager.check_send()
        self.manager.accepted()
        assert self.manager.may_produce
        self.manager.produced()
        return self

    def end_txn(self, *, epoch: int = 7, committed: bool = True) -> m.EndTxn:
        return m.EndTxn("t", 42, epoch, committed)


def error_of(operation: Operation) -> DualWriteError:
    assert operation.done
    assert operation.error is not None
    return operation.error


# ---- initialisation ---------------------------------------------------------------------------------------------


def test_recovery_at_the_epoch_limit_ends_with_the_pair_that_was_handed_out() -> None:
    """KIP-939, example B: the recovering client may be handed 73/MAX."""
    driver = Driver().initialised(keep=True, answer=m.InitProducerIdResponse(0, 73, 32767, 42, 32766))
    driver.manager.complete_transaction(PreparedTxnState("42:32766"))
    assert driver.next() == m.EndTxn("t", 73, 32767, True)
    driver.answer(m.EndTxnResponse(0, 85, 0))
    assert (driver.manager.producer_id, driver.manager.producer_epoch) == (85, 0)


# ---- the ends of a transaction ----------------------------------------------------------------------------------


def test_a_broker_that_keeps_and_does_not_fence_is_refused() -> None:
    """As apache/kafka#22704 has it: the ongoing pair is given out as that of the new producer too."""
    driver = Driver()
    operation = driver.manager.init_transactions(True)
    driver.find_coordinator()
    driver.look()
    assert driver.next() is not None
    driver.answer(m.InitProducerIdResponse(0, 42, 7, 42, 7))
    error = error_of(operation)
    assert isinstance(error, UnsupportedByBrokerError)
    assert "KAFKA-20739" in str(error)
    assert driver.next() is None, "nothing is completed"


def test_an_abort_is_compared_before_anything_is_kept() -> None:
    """KeepPreparedTxn would leave Empty, and no pair to compare."""
    driver = Driver()
    manager = driver.manager
    found = manager.init_transactions(True)
    driver.find_coordinator()
    driver.look("CompleteAbort", 8)
    assert driver.next() == m.InitProducerId("t", NO_TIMEOUT, True, True, MAX_PRODUCER_ID, 0)
    driver.answer(m.InitProducerIdResponse(42))
    assert found.error is None
    assert manager.guarantee.tier is Tier.KEEP_PREPARED
    manager.acknowledge(found)
    lost = manager.complete_transaction(PreparedTxnState("42:7"))
    assert isinstance(error_of(lost), PreparedTransactionLost)
    assert driver.next() is None


def test_an_abort_of_another_transaction_is_followed_by_the_keeping_request() -> None:
    driver = Driver()
    manager = driver.manager
    found = manager.init_transactions(True)
    driver.find_coordinator()
    driver.look("CompleteAbort", 8)
    driver.next()
    driver.answer(m.InitProducerIdResponse(42))
    manager.acknowledge(found)
    completed = manager.complete_transaction(PreparedTxnState("42:5"))
    assert driver.next() == m.InitProducerId("t", NO_TIMEOUT, True, True)
    driver.answer(m.InitProducerIdResponse(0, 42, 9))
    assert completed.error is None
    assert (manager.state, manager.producer_epoch) == (ProducerState.READY, 9)


def test_backoff_doubles_up_to_its_limit_and_starts_over() -> None:
    driver = Driver().initialised().sent()
    driver.manager.commit_transaction()
    waits = []
    for _ in range(6):
        driver.next()
        driver.answer(m.EndTxnResponse(51))
        assert driver.manager.retry_at_ms is not None
        waits.append(driver.manager.retry_at_ms - driver.now_ms)
        driver.now_ms = driver.manager.retry_at_ms
    assert waits == [20, 200, 400, 800, 1000, 1000]


# ---- offsets ----------------------------------------------------------------------------------------------------


def offsets_in_flight(driver: Driver) -> Operation:
    operation = driver.manager.send_offsets(OFFSETS, GROUP)
    assert driver.next() == m.FindCoordinator(m.CoordinatorType.GROUP, "g")
    driver.answer(m.FindCoordinatorResponse(0, 5, "h", 1))
    assert driver.next() == m.TxnOffsetCommit("t", 42, 7, GROUP, OFFSETS)
    return operation


@pytest.mark.parametrize("codes", [(25, 0), (14, 82)])
def test_offsets_of_one_partition_that_cannot_be_committed(codes: tuple[int, ...]) -> None:
    driver = Driver().initialised()
    driver.manager.begin_transaction()
    operation = offsets_in_flight(driver)
    driver.answer(m.TxnOffsetCommitResponse(codes))
    assert type(error_of(operation)) is AbortableError


def test_offsets_that_the_response_omits_are_committed_again() -> None:
    driver = Driver().initialised()
    driver.manager.begin_transaction()
    operation = offsets_in_flight(driver)
    driver.answer(m.TxnOffsetCommitResponse(()))
    assert not operation.done


def test_an_answer_about_offsets_of_an_aborted_transaction_is_of_no_interest() -> None:
    driver = Driver().initialised()
    driver.manager.begin_transaction()
    offsets_in_flight(driver)
    driver.manager.abort_transaction()
    assert driver.next() is None, "one request at a time"
    driver.answer(m.TxnOffsetCommitResponse((22,)))
    assert driver.next() == driver.end_txn(committed=False)


# ---- the end of the producer ------------------------------------------------------------------------------------


def test_close_waits_for_a_transaction_that_is_being_ended() -> None:
    driver = Driver().initialised().sent()
    operation = driver.manager.commit_transaction()
    assert driver.manager.operation_before_close() is operation


# ---- a commit that may have taken effect -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (90, FencedCommitOutcomeUnknown),
        (47, FencedCommitOutcomeUnknown),
        (48, CommitOutcomeUnknown),
        (53, CommitOutcomeUnknown),
        (120, CommitOutcomeUnknown),
        (-1, CommitOutcomeUnknown),
    ],
)
@pytest.mark.parametrize("first", [None, 7, 15, 16], ids=["no answer", "7", "15", "16"])
def test_an_end_after_an_unanswered_commit_does_not_claim_a_failure(
    code: int, expected: type[Exception], first: int | None
) -> None:
    driver = Driver().initialised().sent()
    operation = driver.manager.commit_transaction()
    driver.next()
    if first is None:
        driver.manager.on_no_response(driver.now_ms)
    else:
        driver.answer(m.EndTxnResponse(first))
    driver.now_ms += 100
    if first != 7:
        driver.find_coordinator()
    assert driver.next() == driver.end_txn()
    driver.answer(m.EndTxnResponse(code))
    error = error_of(operation)
    assert type(error) is expected
    assert isinstance(error, OutcomeUnknown)
    assert (error.transactional_id, error.prepared_state) == ("t", "")
    assert "outcome is unknown" in str(error)
    driver.manager.acknowledge(operation)
    with pytest.raises(expected, match="outcome is unknown"):
        driver.manager.abort_transaction()


@pytest.mark.parametrize("code", [14, 51])
def test_a_request_certainly_not_sent_leaves_nothing_unknown(code: int) -> None:
    driver = Driver().initialised().sent()
    operation = driver.manager.commit_transaction()
    for answer in (code, 90):
        driver.next()
        driver.answer(m.EndTxnResponse(answer))
        driver.now_ms += 100
    assert type(error_of(operation)) is FencedError


def test_a_commit_that_could_not_be_sent_is_not_unknown() -> None:
    driver = Driver().initialised().sent()
    operation = driver.manager.commit_transaction()
    driver.next()
    driver.manager.on_no_response(driver.now_ms, sent=False)
    driver.now_ms += 100
    driver.find_coordinator()
    driver.next()
    driver.answer(m.EndTxnResponse(90))
    assert type(error_of(operation)) is FencedError


def test_an_answered_commit_leaves_nothing_unknown_for_the_next_one() -> None:
    driver = Driver().initialised().sent()
    operation = driver.manager.commit_transaction()
    driver.next()
    driver.manager.on_no_response(driver.now_ms)
    driver.now_ms += 100
    driver.find_coordinator()
    driver.next()
    driver.answer(m.EndTxnResponse(0, 42, 8))
    driver.manager.acknowledge(operation)
    driver.sent()
    operation = driver.manager.commit_transaction()
    driver.next()
    driver.answer(m.EndTxnResponse(90))
    assert type(error_of(operation)) is FencedError


@pytest.mark.parametrize("sent", [True, False])
def test_closing_during_a_commit(sent: bool) -> None:
    driver = Driver().initialised().sent()
    operation = driver.manager.commit_transaction()
    if sent:
        driver.next()
    driver.manager.close(FatalError("closed"))
    assert isinstance(error_of(operation), OutcomeUnknown) is sent
