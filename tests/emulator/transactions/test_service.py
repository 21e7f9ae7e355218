"""The coordinator's shell where no request reaches it; the rest of it is tested in tests/emulator/wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from dualwrite.broker_emulator.cluster.topics import TopicPartition
from dualwrite.broker_emulator.pause_points import PausePoint
from dualwrite.broker_emulator.transactions import coordinator as decisions
from dualwrite.broker_emulator.transactions.ports import Marker
from dualwrite.broker_emulator.transactions.service import TransactionCoordinator

from .fake_cluster import FakeCluster, until, until_state

TXN = "txn-1"
T0, T1 = (TopicPartition("t", partition) for partition in range(2))


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def begin(
    coordinator: TransactionCoordinator, *partitions: TopicPartition, timeout_ms: int = 60_000
) -> tuple[int, int]:
    response = await coordinator.init_producer_id(TXN, timeout_ms)
    assert response.error is ErrorCode.none
    pair = (response.producer_id, response.producer_epoch)
    if partitions:
        assert await coordinator.add_partitions(TXN, *pair, partitions, transaction_version=2) is ErrorCode.none
    return pair


@in_loop
async def test_after_shutdown() -> None:
    cluster = FakeCluster()
    coordinator = cluster.coordinator()
    cluster.leaders.gate.clear()
    pair = await begin(coordinator, T0)
    assert (await coordinator.end_txn(TXN, *pair, commit=True, transaction_version=2)).error == 0
    await until(lambda: len(cluster.leaders.sent) == 1)
    await coordinator.shutdown()
    assert coordinator.describe(TXN).error == 15
    assert coordinator.list().error == 15
    assert (await coordinator.init_producer_id(TXN, 1000)).error == 16


@in_loop
async def test_an_append_that_outlives_the_leadership() -> None:
    cluster = FakeCluster()
    coordinator = cluster.coordinator()
    pair = await begin(coordinator, T0)
    cluster.log.gate.clear()
    ending = asyncio.create_task(coordinator.end_txn(TXN, *pair, commit=True, transaction_version=2))
    await asyncio.sleep(0)
    coordinator.unload_partition(0)
    cluster.log.gate.set()
    assert await ending == (16, -1, -1)
    assert cluster.leaders.sent == []


@pytest.mark.parametrize("response", [47, 52])
@in_loop
async def test_a_fenced_marker_stops_all_until_the_next_load(response: int) -> None:
    cluster = FakeCluster()
    coordinator = cluster.coordinator()
    pid, epoch = await begin(coordinator, T0, T1)
    cluster.leaders.responses[T0] = [ErrorCode(response)]
    cluster.leaders.responses[T1] = [ErrorCode(6)] * 1000
    await coordinator.end_txn(TXN, pid, epoch, commit=True, transaction_version=2)
    await until(lambda: not coordinator.background_tasks)
    assert coordinator.describe(TXN)[2:] == ("PrepareCommit", 60_000, 1_000_000, pid, epoch + 1, (T0, T1))
    assert (await coordinator.init_producer_id(TXN, 1000)).error == 51
    cluster.leaders.responses.clear()
    cluster.leaders.sent.clear()
    coordinator.load_partition(0, 1)
    await until_state(coordinator, TXN, "CompleteCommit")
    expected = Marker(pid, epoch + 1, coordinator_epoch=1, commit=True, transaction_version=2)
    assert sorted(cluster.leaders.sent, key=lambda sent: sent[0]) == [(T0, expected), (T1, expected)]


@in_loop
async def test_an_illegal_response_to_a_marker_is_reported() -> None:
    cluster = FakeCluster()
    coordinator = cluster.coordinator()
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))
    pair = await begin(coordinator, T0)
    cluster.leaders.responses[T0] = [ErrorCode.coordinator_not_available]
    await coordinator.end_txn(TXN, *pair, commit=True, transaction_version=2)
    await until(lambda: bool(reports))
    assert "coordinator_not_available" in str(reports[0]["exception"])
    assert coordinator.describe(TXN).state == "PrepareCommit"


@in_loop
async def test_an_abort_whose_append_failed_is_made_by_the_next_scan() -> None:
    cluster = FakeCluster()
    coordinator = cluster.coordinator()
    await begin(coordinator, T0, timeout_ms=500)
    cluster.clock.advance(501)
    cluster.log.responses.append(ErrorCode.not_enough_replicas)
    coordinator.abort_timed_out()
    await until(lambda: not coordinator.background_tasks)
    assert coordinator.describe(TXN).state == "Ongoing"
    coordinator.abort_timed_out()
    await until_state(coordinator, TXN, "CompleteAbort")


@in_loop
async def test_an_id_whose_tombstone_could_not_be_written_stays() -> None:
    cluster = FakeCluster(transactional_id_expiration_ms=1000)
    coordinator = cluster.coordinator()
    await begin(coordinator)
    cluster.clock.advance(1000)
    cluster.log.responses.append(ErrorCode.not_enough_replicas)
    coordinator.expire_transactional_ids()
    await until(lambda: not coordinator.background_tasks and not cluster.log.responses)
    assert coordinator.describe(TXN).state == "Empty"
    assert (await coordinator.init_producer_id(TXN, 1000)).error == 0


@in_loop
async def test_scans_check_only_ids_that_may_be_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred busy ids, and one that is left alone."""
    cluster = FakeCluster(transactional_id_expiration_ms=100_000)
    coordinator = cluster.coordinator()
    pairs = {}
    for name in [TXN, *(f"busy-{index}" for index in range(100))]:
        response = await coordinator.init_producer_id(name, 50_000)
        pairs[name] = (response.producer_id, response.producer_epoch)
    del pairs[TXN]
    looked_at: list[str] = []

    def noting(decide: Callable[..., bool]) -> Callable[..., bool]:
        def note(metadata: Any, *others: Any) -> bool:
            looked_at.append(metadata.transactional_id)
            return decide(metadata, *others)

        return note

    for name in ("has_timed_out", "has_expired"):
        monkeypatch.setattr(decisions, name, noting(getattr(decisions, name)))
    for _ in range(9):
        cluster.clock.advance(10_000)
        for name, pair in pairs.items():
            await coordinator.add_partitions(name, *pair, [T0], transaction_version=2)
            ended = await coordinator.end_txn(name, *pair, commit=True, transaction_version=2)
            pairs[name] = (ended.producer_id, ended.producer_epoch)
        coordinator.abort_timed_out()
        coordinator.expire_transactional_ids()
    assert sorted(looked_at) == sorted(pairs)  # when the first transactions would have timed out, and never again
    looked_at.clear()
    cluster.clock.advance(10_000)
    coordinator.expire_transactional_ids()
    assert sorted(looked_at) == sorted([*pairs, TXN])  # and the busy ones get a later deadline
    await until(lambda: not coordinator.background_tasks)
    assert coordinator.describe(TXN).error == 105
    coordinator.expire_transactional_ids()
    assert looked_at.count(TXN) == 2  # by the scan, and once more before the tombstone was written
    cluster.clock.advance(89_999)
    coordinator.expire_transactional_ids()
    assert not coordinator.background_tasks
    cluster.clock.advance(1)
    coordinator.expire_transactional_ids()
    await until(lambda: coordinator.list().transactions == ())


@in_loop
async def test_a_transaction_meets_the_pause_points_in_order() -> None:
    cluster = FakeCluster()
    coordinator = cluster.coordinator()
    met: list[str] = []

    def note(point: PausePoint) -> Callable[[Any], bool]:
        def match(context: Any) -> bool:
            met.append(f"{point} {context['state']} {context.get('partition', '')}".strip())
            return False

        return match

    for point in PausePoint:
        cluster.pause_points.hold(point, note(point))
    pair = await begin(coordinator, T0)
    await coordinator.end_txn(TXN, *pair, commit=True, transaction_version=2)
    await until_state(coordinator, TXN, "CompleteCommit")
    await until(lambda: not coordinator.background_tasks)
    assert met == [
        "before-state-append Empty",
        "after-state-append Empty",
        "before-state-append Ongoing",
        "after-state-append Ongoing",
        "before-prepare-append PrepareCommit",
        "after-prepare-append PrepareCommit",
        "before-marker PrepareCommit 0",
        "after-marker PrepareCommit 0",
        "before-complete-append CompleteCommit",
        "after-complete-append CompleteCommit",
    ]
