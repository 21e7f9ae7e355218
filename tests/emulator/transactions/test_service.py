"""The coordinator's shell: appends and their failures, markers, failover, scans, inspection."""

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
from dualwrite.broker_emulator.transactions.inspection import matching
from dualwrite.broker_emulator.transactions.ports import Marker
from dualwrite.broker_emulator.transactions.service import TransactionCoordinator

from .fake_cluster import FakeCluster, until, until_state

TXN = "txn-1"
T0, T1, T2 = (TopicPartition("t", partition) for partition in range(3))


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


async def begin(
    coordinator: TransactionCoordinator,
    *partitions: TopicPartition,
    timeout_ms: int = 60_000,
    two_pc: bool = False,
    version: int = 2,
) -> tuple[int, int]:
    response = await coordinator.init_producer_id(TXN, timeout_ms, enable_2pc=two_pc)
    assert response.error is ErrorCode.none
    pair = (response.producer_id, response.producer_epoch)
    if partitions:
        assert await coordinator.add_partitions(TXN, *pair, partitions, transaction_version=version) is ErrorCode.none
    return pair


def marker(pid: int, epoch: int, *, commit: bool, coordinator_epoch: int = 0, version: int = 2) -> Marker:
    return Marker(pid, epoch, coordinator_epoch, commit, version)


# --- ownership -------------------------------------------------------------------------------------------------------


@in_loop
async def test_an_id_of_another_coordinator() -> None:
    coordinator = FakeCluster().coordinator(leader_epoch=None)
    assert (await coordinator.init_producer_id(TXN, 1000)).error == 16
    assert await coordinator.add_partitions(TXN, 1, 1, [T0], transaction_version=0) == 16
    assert (await coordinator.end_txn(TXN, 1, 1, commit=True, transaction_version=2)).error == 16
    assert coordinator.verify_partitions(TXN, 1, 1, [T0]) == {T0: 16}
    assert coordinator.describe(TXN).error == 16
    assert (await coordinator.init_producer_id(TXN, 0)).error == 50  # which is looked at before


@pytest.mark.parametrize("transactional_id", [None, ""])
@in_loop
async def test_requests_without_an_id(transactional_id: str | None) -> None:
    coordinator = FakeCluster().coordinator()
    assert await coordinator.add_partitions(transactional_id, 1, 1, [T0], transaction_version=0) == 42
    assert (await coordinator.end_txn(transactional_id, 1, 1, commit=True, transaction_version=2)).error == 42
    assert coordinator.verify_partitions(transactional_id, 1, 1, [T0]) == {T0: 42}
    assert coordinator.describe("").error == 42


@in_loop
async def test_idempotent_producers_get_a_fresh_pid_each_time() -> None:
    cluster = FakeCluster()
    coordinator, other = cluster.coordinator(leader_epoch=None), cluster.coordinator(1, leader_epoch=None)
    assert await coordinator.init_producer_id(None, 0, producer_id=7, producer_epoch=3) == (0, 0, 0, -1, -1)
    assert await coordinator.init_producer_id(None, 0) == (0, 1, 0, -1, -1)
    assert await other.init_producer_id(None, 0) == (0, 1000, 0, -1, -1)  # a block of its own


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


# --- a transaction ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [(T0,), (T0, T1, T2)])
@pytest.mark.parametrize("commit", [True, False])
@in_loop
async def test_every_partition_gets_its_marker_and_then_the_id_completes(
    partitions: tuple[TopicPartition, ...], commit: bool
) -> None:
    cluster = FakeCluster()
    coordinator = cluster.coordinator(leader_epoch=9)
    pid, epoch = await begin(coordinator, *partitions)
    response = await coordinator.end_txn(TXN, pid, epoch, commit=commit, transaction_version=2)
    assert response == (0, pid, epoch + 1)
    await until_state(coordinator, TXN, "CompleteCommit" if commit else "CompleteAbort")
    expected = marker(pid, epoch + 1, commit=commit, coordinator_epoch=9)
    assert sorted(cluster.leaders.sent, key=lambda sent: sent[0]) == [(partition, expected) for partition in partitions]


@in_loop
async def test_markers_of_an_end_without_bump_carry_the_same_epoch() -> None:
    cluster = FakeCluster()
    coordinator = cluster.coordinator()
    pid, epoch = await begin(coordinator, T0)
    assert await coordinator.end_txn(TXN, pid, epoch, commit=True, transaction_version=0) == (0, -1, -1)
    await until_state(coordinator, TXN, "CompleteCommit")
    assert cluster.leaders.sent == [(T0, marker(pid, epoch, commit=True, version=0))]


@in_loop
async def test_markers_of_a_recovered_transaction_carry_its_own_pair() -> None:
    cluster = FakeCluster()
    coordinator = cluster.coordinator()
    pid, epoch = await begin(coordinator, T0, two_pc=True)
    response = await coordinator.init_producer_id(TXN, 0, enable_2pc=True, keep_prepared=True)
    assert response == (0, pid, epoch + 1, pid, epoch)
    assert coordinator.describe(TXN)[2:7] == ("Ongoing", 2147483647, 1_000_000, pid, epoch)
    assert (await coordinator.end_txn(TXN, pid, epoch + 1, commit=True, transaction_version=2)) == (0, pid, epoch + 2)
    await until_state(coordinator, TXN, "CompleteCommit")
    assert cluster.leaders.sent == [(T0, marker(pid, epoch + 1, commit=True))]


@in_loop
async def test_an_empty_abort_needs_no_marker() -> None:
    cluster = FakeCluster()
    coordinator = cluster.coordinator()
    pid, epoch = await begin(coordinator)
    assert await coordinator.end_txn(TXN, pid, epoch, commit=False, transaction_version=2) == (0, pid, epoch + 1)
    await until_state(coordinator, TXN, "CompleteAbort")
    assert cluster.leaders.sent == []


@in_loop
async def test_everything_waits_while_a_record_is_being_appended() -> None:
    cluster = FakeCluster()
    coordinator = cluster.coordinator()
    pid, epoch = await begin(coordinator, T0)
    cluster.log.gate.clear()
    adding = asyncio.create_task(coordinator.add_partitions(TXN, pid, epoch, [T1], transaction_version=2))
    await asyncio.sleep(0)
    assert (await coordinator.end_txn(TXN, pid, epoch, commit=True, transaction_version=2)).error == 51
    assert (await coordinator.init_producer_id(TXN, 1000)).error == 51
    assert await coordinator.add_partitions(TXN, pid, epoch, [T0], transaction_version=2) == 51
    assert coordinator.verify_partitions(TXN, pid, epoch, [T0, T1]) == {T0: 0, T1: 120}
    cluster.log.gate.set()
    assert await adding == 0
    assert coordinator.verify_partitions(TXN, pid, epoch, [T0, T1]) == {T0: 0, T1: 0}


@in_loop
async def test_the_response_does_not_wait_for_the_markers_but_the_next_transaction_does() -> None:
    cluster = FakeCluster()
    coordinator = cluster.coordinator()
    pid, epoch = await begin(coordinator, T0, T1)
    cluster.leaders.gate.clear()
    assert (await coordinator.end_txn(TXN, pid, epoch, commit=True, transaction_version=2)).error == 0
    await until(lambda: len(cluster.leaders.sent) == 2)
    assert await coordinator.add_partitions(TXN, pid, epoch + 1, [T0], transaction_version=2) == 51
    assert (await coordinator.end_txn(TXN, pid, epoch, commit=True, transaction_version=2)).error == 51
    assert coordinator.describe(TXN).state == "PrepareCommit"
    cluster.leaders.gate.set()
    await until_state(coordinator, TXN, "CompleteCommit")
    assert (await coordinator.end_txn(TXN, pid, epoch, commit=True, transaction_version=2)) == (0, pid, epoch + 1)


# --- appends that fail -----------------------------------------------------------------------------------------------

APPEND_FAILURES = [(3, 15), (7, 15), (19, 15), (20, 15), (6, 16), (56, 16), (10, -1), (18, -1), (2, 2)]


@pytest.mark.parametrize(("failure", "response"), APPEND_FAILURES)
@in_loop
async def test_a_failed_append_leaves_the_id_as_it_was(failure: int, response: int) -> None:
    cluster = FakeCluster()
    coordinator = cluster.coordinator()
    fail = [ErrorCode(failure)]
    cluster.log.responses += fail
    assert await coordinator.init_producer_id(TXN, 1000) == (response, -1, -1, -1, -1)
    assert coordinator.describe(TXN).error == 105
    pid, epoch = await begin(coordinator)
    cluster.log.responses += fail
    assert await coordinator.add_partitions(TXN, pid, epoch, [T0], transaction_version=2) == response
    assert coordinator.describe(TXN).state == "Empty"
    assert await coordinator.add_partitions(TXN, pid, epoch, [T0], transaction_version=2) == 0
    cluster.log.responses += fail
    assert await coordinator.end_txn(TXN, pid, epoch, commit=True, transaction_version=2) == (response, -1, -1)
    assert coordinator.describe(TXN)[2:] == ("Ongoing", 60_000, 1_000_000, pid, epoch, (T0,))
    cluster.log.responses += fail
    assert (await coordinator.init_producer_id(TXN, 1000)).error == response
    assert coordinator.describe(TXN)[2:] == ("Ongoing", 60_000, 1_000_000, pid, epoch, (T0,))
    assert cluster.leaders.sent == []
    assert await coordinator.end_txn(TXN, pid, epoch, commit=True, transaction_version=2) == (0, pid, epoch + 1)


@in_loop
async def test_completion_is_appended_until_it_succeeds() -> None:
    cluster = FakeCluster()
    coordinator = cluster.coordinator()
    pair = await begin(coordinator, T0)
    cluster.log.responses += [ErrorCode.none, ErrorCode.not_enough_replicas, ErrorCode.request_timed_out]
    assert (await coordinator.end_txn(TXN, *pair, commit=True, transaction_version=2)).error == 0
    await until_state(coordinator, TXN, "CompleteCommit")
    assert len(cluster.leaders.sent) == 1
    assert cluster.log.responses == []


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


# --- markers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [3, 6, 7, 19, 20, 56])
@in_loop
async def test_a_marker_is_sent_until_it_is_taken(error: int) -> None:
    cluster = FakeCluster()
    coordinator = cluster.coordinator()
    pair = await begin(coordinator, T0, T1)
    cluster.leaders.responses[T1] = [ErrorCode(error), ErrorCode(error)]
    await coordinator.end_txn(TXN, *pair, commit=True, transaction_version=2)
    await until(lambda: coordinator.describe(TXN).topic_partitions == (T1,))
    await until_state(coordinator, TXN, "CompleteCommit")
    assert [sent[0] for sent in cluster.leaders.sent].count(T1) == 3
    assert [sent[0] for sent in cluster.leaders.sent].count(T0) == 1


@pytest.mark.parametrize("response", [ErrorCode(43), ErrorCode(35), None])
@in_loop
async def test_a_partition_that_cannot_take_a_marker_is_dropped(response: ErrorCode | None) -> None:
    cluster = FakeCluster()
    coordinator = cluster.coordinator()
    pair = await begin(coordinator, T0, T1)
    cluster.leaders.responses[T1] = [response]
    await coordinator.end_txn(TXN, *pair, commit=True, transaction_version=2)
    await until_state(coordinator, TXN, "CompleteCommit")
    assert len(cluster.leaders.sent) == 2


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
    expected = marker(pid, epoch + 1, commit=True, coordinator_epoch=1)
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


# --- failover --------------------------------------------------------------------------------------------------------


@in_loop
async def test_failover_between_prepare_and_markers() -> None:
    """Race 6: the new coordinator sends the markers, with its own coordinator epoch and the same producer epoch."""
    cluster = FakeCluster()
    old, new = cluster.coordinator(0, 3), cluster.coordinator(1, leader_epoch=None)
    pid, epoch = await begin(old, T0)
    hold = cluster.pause_points.hold(PausePoint.AFTER_PREPARE_APPEND)
    ending = asyncio.create_task(old.end_txn(TXN, pid, epoch, commit=True, transaction_version=2))
    await hold.until_hit()
    old.unload_partition(0)
    new.load_partition(0, 4)
    assert new.describe(TXN).state == "PrepareCommit"
    assert (await new.end_txn(TXN, pid, epoch, commit=True, transaction_version=2)).error == 51
    await until_state(new, TXN, "CompleteCommit")
    hold.release()
    assert (await ending).error == 16
    assert cluster.leaders.sent == [(T0, marker(pid, epoch + 1, commit=True, coordinator_epoch=4))]
    assert await new.end_txn(TXN, pid, epoch, commit=True, transaction_version=2) == (0, pid, epoch + 1)


@in_loop
async def test_failover_after_some_markers() -> None:
    """Race 7: the list of partitions is that of the Prepare record, so acknowledged markers are sent again."""
    cluster = FakeCluster()
    old, new = cluster.coordinator(0, 3), cluster.coordinator(1, leader_epoch=None)
    pid, epoch = await begin(old, T0, T1)
    cluster.leaders.responses[T1] = [ErrorCode.not_leader_or_follower] * 1000
    await old.end_txn(TXN, pid, epoch, commit=False, transaction_version=2)
    await until(lambda: old.describe(TXN).topic_partitions == (T1,))
    old.unload_partition(0)
    cluster.leaders.responses.clear()
    cluster.leaders.sent.clear()
    new.load_partition(0, 4)
    assert new.describe(TXN).topic_partitions == (T0, T1)
    await until_state(new, TXN, "CompleteAbort")
    again = [sent[0] for sent in cluster.leaders.sent if sent[1].coordinator_epoch == 4]
    assert sorted(again) == [T0, T1]
    await until(lambda: not old.background_tasks)
    assert len(cluster.log.records[0]) == 4  # the old coordinator did not complete it as well


@in_loop
async def test_a_marker_of_the_old_coordinator_that_was_on_its_way() -> None:
    cluster = FakeCluster()
    old, new = cluster.coordinator(0, 3), cluster.coordinator(1, leader_epoch=None)
    pid, epoch = await begin(old, T0)
    hold = cluster.pause_points.hold(PausePoint.BEFORE_MARKER, lambda context: context["node_id"] == 0)
    await old.end_txn(TXN, pid, epoch, commit=True, transaction_version=2)
    await hold.until_hit()
    old.unload_partition(0)
    new.load_partition(0, 4)
    await until_state(new, TXN, "CompleteCommit")
    cluster.leaders.responses[T0] = [ErrorCode.transaction_coordinator_fenced]
    hold.release()
    await until(lambda: not old.background_tasks)
    assert [sent[1].coordinator_epoch for sent in cluster.leaders.sent] == [4, 3]
    assert new.describe(TXN).state == "CompleteCommit"


@in_loop
async def test_an_open_transaction_survives_and_its_timeout_counts_from_its_start() -> None:
    cluster = FakeCluster()
    old, new = cluster.coordinator(0, 3), cluster.coordinator(1, leader_epoch=None)
    pid, epoch = await begin(old, T0, timeout_ms=500)
    cluster.clock.advance(501)
    old.unload_partition(0)
    assert old.describe(TXN).error == 16
    new.load_partition(0, 4)
    assert new.describe(TXN)[2:] == ("Ongoing", 500, 1_000_000, pid, epoch, (T0,))
    new.abort_timed_out()
    await until_state(new, TXN, "CompleteAbort")


# --- scans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "marker_version"), [(2, 2), (0, 0)])
@in_loop
async def test_a_transaction_times_out_strictly_after_its_timeout(version: int, marker_version: int) -> None:
    cluster = FakeCluster(transaction_version=version)
    coordinator = cluster.coordinator()
    pid, epoch = await begin(coordinator, T0, timeout_ms=500, version=version)
    cluster.clock.advance(500)
    coordinator.abort_timed_out()
    assert not coordinator.background_tasks
    cluster.clock.advance(1)
    coordinator.abort_timed_out()
    await until_state(coordinator, TXN, "CompleteAbort")
    assert cluster.leaders.sent == [(T0, marker(pid, epoch + 1, commit=False, version=marker_version))]
    response = await coordinator.end_txn(TXN, pid, epoch, commit=True, transaction_version=version)
    assert response.error == 90
    assert await coordinator.add_partitions(TXN, pid, epoch, [T0], transaction_version=version) == 90


@in_loop
async def test_two_phase_commit_never_times_out() -> None:
    cluster = FakeCluster()
    coordinator = cluster.coordinator()
    await begin(coordinator, T0, timeout_ms=1, two_pc=True)
    cluster.clock.advance(10**12)
    coordinator.abort_timed_out()
    assert not coordinator.background_tasks
    assert coordinator.describe(TXN)[2:4] == ("Ongoing", 2147483647)


@in_loop
async def test_commit_and_timeout_at_once() -> None:
    """Race 1: the first one to be pending wins, and the other is refused."""
    cluster = FakeCluster()
    coordinator = cluster.coordinator()
    pid, epoch = await begin(coordinator, T0, timeout_ms=500)
    cluster.clock.advance(501)
    cluster.log.gate.clear()
    ending = asyncio.create_task(coordinator.end_txn(TXN, pid, epoch, commit=True, transaction_version=2))
    await asyncio.sleep(0)
    coordinator.abort_timed_out()
    cluster.log.gate.set()
    assert await ending == (0, pid, epoch + 1)
    await until_state(coordinator, TXN, "CompleteCommit")


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
async def test_an_unused_id_expires_and_starts_over() -> None:
    cluster = FakeCluster(transactional_id_expiration_ms=1000)
    coordinator = cluster.coordinator()
    pid, epoch = await begin(coordinator)
    cluster.clock.advance(999)
    coordinator.expire_transactional_ids()
    assert not coordinator.background_tasks
    cluster.clock.advance(1)
    cluster.log.gate.clear()
    coordinator.expire_transactional_ids()
    await asyncio.sleep(0)
    assert coordinator.describe(TXN).error == 105
    assert coordinator.list().transactions == ()
    assert (await coordinator.init_producer_id(TXN, 1000)).error == 51  # race 9
    cluster.log.gate.set()
    await until(lambda: not coordinator.background_tasks)
    assert cluster.log.records[0][-1][1] is None
    assert (await coordinator.end_txn(TXN, pid, epoch, commit=True, transaction_version=2)).error == 49
    assert await coordinator.add_partitions(TXN, pid, epoch, [T0], transaction_version=2) == 49
    successor = cluster.coordinator(1, 1)
    assert successor.describe(TXN).error == 105
    response = await coordinator.init_producer_id(TXN, 1000, producer_id=pid, producer_epoch=epoch)
    assert response == (0, pid + 1, 0, -1, -1)


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
async def test_an_open_transaction_does_not_expire() -> None:
    cluster = FakeCluster(transactional_id_expiration_ms=1000)
    coordinator = cluster.coordinator()
    await begin(coordinator, T0, two_pc=True)
    cluster.clock.advance(10**9)
    coordinator.expire_transactional_ids()
    assert not coordinator.background_tasks


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


# --- inspection ------------------------------------------------------------------------------------------------------


@in_loop
async def test_describe_shows_the_fields_that_kafka_shows() -> None:
    coordinator = FakeCluster().coordinator()
    assert coordinator.describe(TXN).error == 105
    pid, epoch = await begin(coordinator)
    assert coordinator.describe(TXN) == (0, TXN, "Empty", 60_000, -1, pid, epoch, ())


async def _three_ids(cluster: FakeCluster) -> TransactionCoordinator:
    coordinator = cluster.coordinator()
    for name in ("orders-0", "orders-1", "bills"):
        response = await coordinator.init_producer_id(name, 60_000)
        if name != "bills":
            await coordinator.add_partitions(name, response.producer_id, 0, [T0], transaction_version=2)
        cluster.clock.advance(1000)
    return coordinator


@pytest.mark.parametrize(
    ("filters", "unknown", "names"),
    [
        ({}, (), ["orders-0", "orders-1", "bills"]),
        ({"state_filters": ["Ongoing"]}, (), ["orders-0", "orders-1"]),
        ({"state_filters": ["Ongoing", "Begun"]}, ("Begun",), ["orders-0", "orders-1"]),
        ({"state_filters": ["Begun"]}, ("Begun",), []),
        ({"producer_id_filters": [0, 2, 99]}, (), ["orders-0", "bills"]),
        ({"duration_filter_ms": 2999}, (), ["orders-0", "bills"]),
        ({"duration_filter_ms": 3000}, (), ["bills"]),  # strictly longer; ids that never began always pass
        ({"duration_filter_ms": -1}, (), ["orders-0", "orders-1", "bills"]),
        ({"pattern": "orders-.*"}, (), ["orders-0", "orders-1"]),
        ({"pattern": "orders"}, (), []),
        ({"pattern": ""}, (), ["orders-0", "orders-1", "bills"]),
        ({"pattern": "orders-.*", "producer_id_filters": [1]}, (), ["orders-1"]),
    ],
)
@in_loop
async def test_list(filters: dict[str, Any], unknown: tuple[str, ...], names: list[str]) -> None:
    coordinator = await _three_ids(FakeCluster())
    pattern = filters.pop("pattern", None)
    response = await matching(coordinator.list(**filters), pattern)
    assert (response.error, response.unknown_state_filters) == (0, unknown)
    assert [row.transactional_id for row in response.transactions] == names


@in_loop
async def test_list_rows_and_a_bad_pattern() -> None:
    coordinator = await _three_ids(FakeCluster())
    assert coordinator.list().transactions[0] == ("orders-0", 0, "Ongoing")
    assert (await matching(coordinator.list(), "(")).error == 128


# --- pause points ----------------------------------------------------------------------------------------------------


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
