"""Processes that stall at any pause point of a batch, and resume after others have continued."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pyarrow as pa
import pytest

from dualwrite.errors import KafkaError
from dualwrite.prepared_state import PreparedTxnState
from spark_sink.errors import SinkError, SinkFencedError
from spark_sink.handoff import Plan, TaskOutcome
from spark_sink.pause_points import PausePoint
from spark_sink.store.attempt_states import LIVE, AttemptStatus
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.retired_slots import RetiredSlots
from spark_sink.store.topic import operations
from tests.spark.fake_kafka import FakeKafkaSide
from tests.spark.sink_model import QUERY, SCHEMA, Stalling, World, new_store, partitioned, run_batch, task
from tests.spark.spark_model import Query
from tests.spark.store_engines import engine_on
from tests.spark.topic_stores import AnyStore, memory_store

BATCHES = [[1, 2, 3, 4], [5, 6]]
EVERYTHING = [value for batch in BATCHES for value in batch]
NEW_STALLS_AT = range(1, 40)


@pytest.fixture(scope="module", params=["sqlite", "postgres", "mariadb", "topic"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyStore]:
    if request.param == "topic":
        yield memory_store()
        return
    with engine_on(request.param, request, tmp_path_factory.mktemp("store")) as engine:
        yield new_store(engine)


def first_batch(world: World) -> Stalling:
    """Run an application for batch 0 only."""

    def call(me: Stalling) -> None:
        run_batch(world.process(me.reach), 0, BATCHES[0])

    return Stalling(call)


def query(world: World, *, committed: int = 0) -> Stalling:
    """Run an application for all batches from this one on."""
    return Stalling(lambda me: Query(world, BATCHES, me.reach, committed=committed).run())


def writer(world: World, plan: Plan, partition: int = 0, batch_id: int = 0) -> Stalling:
    """Run a task that writes the first half of a batch."""
    values = partitioned(BATCHES[batch_id], 2)[partition]
    return Stalling(lambda me: world.process(me.reach).write(plan, batch_id, partition, values))


def assert_ended_well(stalled: Stalling) -> None:
    assert stalled.is_over
    assert stalled.error is None or isinstance(stalled.error, SinkError | KafkaError), stalled.error


def points_of_first_batch(store: AnyStore) -> int:
    count = 0
    stalling = first_batch(World(store))
    while not stalling.until(1).is_over:
        count += 1
    return count


def test_an_application_sleeps_anywhere_while_another_is_anywhere(sqlite_store: CommitStore) -> None:
    for slept_at in range(1, points_of_first_batch(sqlite_store) + 1):
        for stalls_at in NEW_STALLS_AT[slept_at % 9 :: 9]:
            world = World(sqlite_store)
            old = first_batch(world).until(slept_at)
            new = query(world).until(stalls_at)
            assert_ended_well(old.go_on())
            assert_ended_well(new.go_on())
            world.process().plan()  # the next plan ends all leftovers of zombies
            world.assert_exactly_once(EVERYTHING)


def test_an_application_that_wakes_up_twice(sqlite_store: CommitStore) -> None:
    """The two drivers take turns, a few steps each."""
    for step in range(1, 12):
        world = World(sqlite_store)
        old, new = first_batch(world).until(step), query(world)
        while not (old.is_over and new.is_over):
            for application in (new, old):
                if not application.is_over:
                    application.until(1 + step % 4)
        assert_ended_well(old)
        assert_ended_well(new)
        Query(world, BATCHES).run()
        world.assert_exactly_once(EVERYTHING)


def test_a_loser_that_sleeps_anywhere_until_the_next_batch_is_anywhere(sqlite_store: CommitStore) -> None:
    """Spark lets every `write` run to its end, and calls no abort for a losing attempt."""
    for slept_at in range(1, 9):
        for stalls_at in NEW_STALLS_AT[slept_at % 4 : 22 : 4]:
            world = World(sqlite_store)
            process = world.process()
            plan = process.plan()
            loser = writer(world, plan).until(slept_at)
            results = [process.write(plan, 0, n, part) for n, part in enumerate(partitioned(BATCHES[0], 2))]
            process.commit(results, 0, BATCHES[0])
            new = query(world, committed=1).until(stalls_at)
            assert_ended_well(loser.go_on())
            assert_ended_well(new.go_on())  # a task that has not begun yet when the loser takes its id over is retried
            world.assert_exactly_once(EVERYTHING)


# ---- the zombies that taught the rules, on each database -----------------------------------------------------


def was_aborted_against_the_decision(world: World) -> bool:
    """Return whether the transaction of an attempt that is to be committed was aborted; it can be repaired."""
    decided = world.store.attempts(world.options.sink_id, [AttemptStatus.COMMITTING])
    return any(PreparedTxnState(each.prepared_state) in world.broker.aborted for each in decided)


@pytest.mark.parametrize("rule", ["keeps_what_is_prepared", "asks_after_opening"])
def test_without_either_rule_an_attempt_is_aborted_against_the_decision(
    store: AnyStore, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """This shows that the tests above would fail if ids of aborted attempts were leased again."""
    monkeypatch.setattr(RetiredSlots, "retire", lambda *args: None)
    monkeypatch.setattr(operations, "_retired", lambda *args: [])
    monkeypatch.setattr(FakeKafkaSide, rule, False)
    world = World(store)
    zombie = writer(world, world.process().plan()).until(PausePoint.AFTER_LEASE)
    committer = first_batch(world).until(PausePoint.AFTER_DECISION)
    zombie.go_on()
    assert was_aborted_against_the_decision(world)
    committer.go_on()


def test_a_finisher_that_does_not_check_again(store: AnyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(store)
    old = first_batch(world).until(PausePoint.AFTER_DECISION)
    run_batch(world.process(), 0, BATCHES[0])
    new = query(world, committed=1).until(PausePoint.AFTER_DECISION)
    monkeypatch.setattr(FakeKafkaSide, "asks_before_ending", False)
    old.go_on()
    assert was_aborted_against_the_decision(world)
    new.go_on()


@pytest.mark.parametrize("leaves_it_to_the_row", [True, False])
def test_a_repair_whose_attempt_is_marked_lost_before_the_replacement(
    store: AnyStore, monkeypatch: pytest.MonkeyPatch, leaves_it_to_the_row: bool
) -> None:
    """Only the row decides which attempts are published again; a repair that ignores it makes lost records visible."""
    monkeypatch.setattr(FakeKafkaSide, "commits_only_what_the_row_names", leaves_it_to_the_row)
    world = World(store)
    committer = first_batch(world).until(PausePoint.AFTER_DECISION)
    world.broker.drop(f"{world.options.sink_id}-0-0")
    decided = store.attempts(world.options.sink_id, [AttemptStatus.COMMITTING])
    judged = {each.attempt_id: PreparedTxnState(each.prepared_state) for each in decided if each.partition_id == 0}
    committer.until(PausePoint.BEFORE_REPLACEMENT)
    assert store.mark_lost(world.options.sink_id, judged, "by hand") == 1
    committer.go_on()
    assert sorted(world.broker.committed) == ([2, 4] if leaves_it_to_the_row else [1, 2, 3, 4])


def test_a_plan_that_slept_before_ending_the_attempts_it_condemned(store: AnyStore) -> None:
    world = World(store)
    loser = world.process()
    loser.write(loser.plan(), 0, 0, BATCHES[0])
    old = first_batch(world).until(PausePoint.AFTER_GENERATION)
    new = first_batch(world).until(PausePoint.AFTER_DECISION)

    assert isinstance(old.go_on().error, SinkFencedError)
    assert new.go_on().error is None
    world.assert_exactly_once(BATCHES[0])


def test_a_plan_logs_the_attempts_it_completes(store: AnyStore, caplog: pytest.LogCaptureFixture) -> None:
    world = World(store)
    process = world.process()
    process.write(process.plan(), 0, 2, BATCHES[0])
    first_batch(world).until(PausePoint.AFTER_DECISION).kill()
    with caplog.at_level(logging.INFO, "spark_sink"):
        world.process().plan()
        world.process().plan()
    of_batch, of_all = (each.message for each in caplog.records if each.name.startswith("spark_sink"))
    sink, records = world.options.sink_id, len(BATCHES[0])
    assert re.fullmatch(
        rf"sink {sink}, batch 0 of {QUERY}, which was decided \d+\.\d s before this plan: "
        rf"attempts=2 committed=2 repaired=0 records={records} table_rows=0 complete_ms=\d+",
        of_batch,
    )
    assert of_all == f"sink {sink}: completed the leftovers of an earlier batch: committed=2 repaired=0 aborted=0"


@pytest.mark.parametrize("batches_since", [0, 1])
def test_a_task_whose_first_row_comes_after_the_decision(store: AnyStore, batches_since: int) -> None:
    """Hours may pass between its first read of the store and its lease, and there is no pause point."""
    world = World(store)
    process = world.process()
    plan = process.plan()

    def rows() -> Iterator[pa.RecordBatch]:
        process.commit([process.write(plan, 0, 0, BATCHES[0])], 0, BATCHES[0])
        for batch_id in range(1, 1 + batches_since):
            run_batch(process, batch_id, BATCHES[batch_id])
        yield pa.record_batch([pa.array(["1"])], schema=SCHEMA)

    late = world.process().sink
    if batches_since:
        with pytest.raises(SinkFencedError):
            late.write(plan, task(0, 0), rows())
    else:
        assert late.write(plan, task(0, 0), rows()).outcome is TaskOutcome.SKIPPED
    world.assert_exactly_once(EVERYTHING[: 4 + 2 * batches_since])


def test_an_older_driver_cannot_decide_nor_undo(store: AnyStore) -> None:
    world = World(store)
    old, new = world.process(), world.process()
    old_plan = old.plan()
    old_results = [old.write(old_plan, 0, 0, BATCHES[0])]
    new_plan = new.plan()
    new_results = [new.write(new_plan, 0, 0, BATCHES[0])]

    with pytest.raises(SinkFencedError, match="another driver has taken over"):
        old.commit(old_results, 0, BATCHES[0])
    with pytest.raises(SinkFencedError):
        old.write(old_plan, 0, 1, [9])
    old.abort(old_results, 0)
    assert len(store.attempts(world.options.sink_id, [AttemptStatus.PREPARED])) == 1

    assert new.commit(new_results, 0, BATCHES[0]).decided_anew
    with pytest.raises(SinkFencedError):
        old.commit(old_results, 0, BATCHES[0])  # of a decided batch, too
    world.assert_exactly_once(BATCHES[0])


def test_speculative_attempts_have_ids_of_their_own(store: AnyStore) -> None:
    world = World(store)
    process = world.process()
    plan = process.plan()
    losers = [writer(world, plan).until(PausePoint.AFTER_SEND) for _ in range(3)]
    winner = process.write(plan, 0, 0, BATCHES[0])
    ids = {attempt.transactional_id for attempt in store.attempts(world.options.sink_id, LIVE)}
    assert ids == {f"{world.options.sink_id}-0-{slot}" for slot in range(4)}

    assert process.commit([winner], 0, BATCHES[0]).aborted == 3
    assert all(isinstance(loser.go_on().error, KafkaError) for loser in losers)
    world.assert_exactly_once(BATCHES[0])
    run_batch(process, 1, BATCHES[1])
    assert len(world.broker.known_ids) == 4 + 1  # partition 1 has its first one
