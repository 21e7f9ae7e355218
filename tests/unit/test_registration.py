"""Partitions and groups of a transaction before transaction.version 2: the registry, and the requests it leads to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dualwrite.client import messages as m
from dualwrite.client.pacing import Backoff
from dualwrite.client.records.record import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from dualwrite.client.transactions.manager import TransactionManager
from dualwrite.client.transactions.recovery import RAISE_CHECKS
from dualwrite.client.transactions.states import ProducerState
from dualwrite.errors import AbortableError, Api, FatalError, FencedError

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
GROUP = ConsumerGroupMetadata("g")
OFFSETS = {TopicPartition("in", 0): OffsetAndMetadata(5)}
V1 = m.BrokerFeatures(0, dict.fromkeys(Api, (0, 4)), 1)
V2 = V1._replace(versions=dict.fromkeys(Api, (0, 12)), transaction_version=2)


class Driver:
    """A producer without two-phase commit on a cluster of version 1, in a transaction; its sender and its clock."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.manager = TransactionManager(
            transactional_id="tid",
            transaction_timeout_ms=60_000,
            two_phase_commit=False,
            backoff=Backoff(100, 1000),
        )
        operation = self.manager.init_transactions(False)
        self.expect(m.FindCoordinator(m.CoordinatorType.TRANSACTION, "tid"), m.FindCoordinatorResponse(0, 1, "h", 1))
        self.expect(m.ApiVersions(), V1)
        self.expect(m.InitProducerId("tid", 60_000, False, False), m.InitProducerIdResponse(0, 42, 7))
        self.manager.acknowledge(operation)
        self.begin()

    def begin(self) -> None:
        self.manager.begin_transaction()
        self.manager.accepted()

    def poll(self, *, delivered: bool = False) -> m.Request | None:
        outgoing = self.manager.poll(self.now_ms, delivered=delivered)
        return None if outgoing is None else outgoing.request

    def answer(self, answer: m.Response) -> None:
        self.manager.on_response(answer, self.now_ms)

    def expect(self, request: m.Request, answer: m.Response, *, delivered: bool = True) -> None:
        assert self.poll(delivered=delivered) == request
        self.answer(answer)

    def add(self, *partitions: TopicPartition, code: int = 0, epoch: int = 7) -> None:
        for partition in partitions:
            assert not self.manager.may_produce_to(*partition, 0, 0)
        assert self.manager.wants_partitions
        self.expect(
            m.AddPartitionsToTxn("tid", 42, epoch, partitions),
            m.AddPartitionsToTxnResponse(dict.fromkeys(partitions, code)),
            delivered=False,
        )

    def end(self, *, committed: bool, epoch: int = 7) -> m.EndTxn:
        return m.EndTxn("tid", 42, epoch, committed, 1)


@pytest.mark.parametrize("codes", [(29, 55), (55, 120)])
def test_of_two_partitions_the_one_that_is_refused_decides(codes: tuple[int, int]) -> None:
    driver = Driver()
    for partition in (P0, P1):
        driver.manager.may_produce_to(*partition, 0, 0)
    driver.expect(
        m.AddPartitionsToTxn("tid", 42, 7, (P0, P1)),
        m.AddPartitionsToTxnResponse(dict(zip((P0, P1), codes, strict=True))),
        delivered=False,
    )
    assert driver.manager.state is ProducerState.ABORTABLE_ERROR
    assert type(driver.manager.error) is AbortableError


def test_partitions_that_the_response_omits_are_added_later() -> None:
    driver = Driver()
    for partition in (P0, P1):
        driver.manager.may_produce_to(*partition, 0, 0)
    request = m.AddPartitionsToTxn("tid", 42, 7, (P0, P1))
    driver.expect(request, m.AddPartitionsToTxnResponse({P0: 0}), delivered=False)
    assert driver.poll() is None, "only after a back-off"
    driver.now_ms += 1000
    assert isinstance(driver.poll(), m.FindCoordinator)
    driver.answer(m.FindCoordinatorResponse(0, 1, "h", 1))
    driver.expect(request, m.AddPartitionsToTxnResponse({P0: 0, P1: 0}), delivered=False)
    assert driver.manager.may_produce_to(*P1, 0, 0)


def lose_the_answer(driver: Driver) -> None:
    driver.manager.may_produce_to(*P0, 0, 0)
    assert driver.poll() is not None
    driver.manager.on_no_response(driver.now_ms)
    driver.now_ms += 100
    driver.manager.fail_abortable(AbortableError("given up"))


@pytest.mark.parametrize("failed", [lose_the_answer, lambda driver: driver.add(P0, code=29)])
@pytest.mark.parametrize("code", [0, 48])
def test_an_abort_of_partitions_that_may_not_have_been_added(failed: Callable[[Driver], None], code: int) -> None:
    """Without a partition the broker has no transaction to abort and returns 48."""
    driver = Driver()
    driver.add(P0)
    driver.manager.produced()
    driver.manager.acknowledge(driver.manager.commit_transaction())
    driver.expect(driver.end(committed=True), m.EndTxnResponse(0))
    driver.manager.acknowledge(driver.manager.commit_transaction())
    driver.begin()
    failed(driver)
    operation = driver.manager.abort_transaction()
    request = driver.poll(delivered=True)
    if isinstance(request, m.FindCoordinator):
        driver.answer(m.FindCoordinatorResponse(0, 1, "h", 1))
        request = driver.poll(delivered=True)
    assert request == driver.end(committed=False)
    driver.answer(m.EndTxnResponse(code))
    assert operation.done
    assert operation.error is None
    assert driver.manager.state is ProducerState.READY


def test_an_abort_of_added_partitions_is_not_excused() -> None:
    driver = Driver()
    driver.add(P0)
    driver.manager.produced()
    operation = driver.manager.abort_transaction()
    driver.expect(driver.end(committed=False), m.EndTxnResponse(48))
    assert isinstance(operation.error, FatalError)


def test_an_error_names_the_own_late_initialisation() -> None:
    driver = Driver()
    driver.manager.fail_abortable(AbortableError("a record was lost"))
    driver.manager.produced()
    driver.manager.acknowledge(driver.manager.abort_transaction())
    driver.expect(driver.end(committed=False), m.EndTxnResponse(0))
    driver.manager.acknowledge(driver.manager.abort_transaction())
    driver.begin()
    driver.expect(m.DescribeTransaction("tid"), m.DescribeTransactionResponse(0, "CompleteAbort", 42, 7, -1))
    assert isinstance(driver.poll(), m.InitProducerId)
    driver.manager.on_no_response(driver.now_ms)
    for _ in range(RAISE_CHECKS):  # nothing has arrived, as far as can be seen
        driver.now_ms += 100
        if (request := driver.poll()) == m.FindCoordinator(m.CoordinatorType.TRANSACTION, "tid"):
            driver.answer(m.FindCoordinatorResponse(0, 1, "h", 1))
            request = driver.poll()
        assert request == m.DescribeTransaction("tid")
        driver.answer(m.DescribeTransactionResponse(0, "CompleteAbort", 42, 7, -1))
    driver.expect(m.InitProducerId("tid", 60_000, False, False, 42, 7), m.InitProducerIdResponse(0, 42, 8))
    driver.add(P0, code=90, epoch=8)
    with pytest.raises(FencedError, match="an InitProducerId of this producer itself"):
        driver.manager.begin_transaction()


def test_an_abort_while_the_epoch_is_being_raised_waits_for_nothing() -> None:
    driver = Driver()
    driver.add(P0)
    driver.manager.acknowledge(driver.manager.abort_transaction())
    driver.expect(driver.end(committed=False), m.EndTxnResponse(0))
    driver.manager.acknowledge(driver.manager.abort_transaction())
    driver.begin()
    driver.expect(m.DescribeTransaction("tid"), m.DescribeTransactionResponse(0, "CompleteAbort", 42, 7, -1))
    assert isinstance(driver.poll(), m.InitProducerId)
    operation = driver.manager.abort_transaction()
    driver.manager.settle_without_kafka()
    assert operation.done
    driver.manager.acknowledge(operation)
    driver.begin()
    assert driver.poll() is None, "one request at a time"
    driver.answer(m.InitProducerIdResponse(0, 42, 8))
    assert driver.manager.may_produce
    driver.add(P0, epoch=8)


@pytest.mark.parametrize("answered", [True, False])
def test_a_look_at_the_features_that_fails_disturbs_nothing(answered: bool) -> None:
    driver = Driver()
    operation = driver.manager.commit_transaction()
    driver.manager.settle_without_kafka()
    driver.manager.acknowledge(operation)
    driver.now_ms += 400_000
    assert driver.poll() == m.ApiVersions()
    if answered:
        driver.answer(V2._replace(error_code=35))
    else:
        driver.manager.on_no_response(driver.now_ms)
    assert driver.manager.transaction_version == 1
    assert driver.manager.retry_at_ms is None
    assert driver.poll() is None
