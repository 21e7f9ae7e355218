"""The commit store of the Spark sink: a decision that Kafka knows is not lost with a crash or a failover."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pytest
import sqlalchemy as sa

from dualwrite.errors import NotDurableError
from dualwrite.prepared_state import PreparedTxnState
from spark_sink.driver.finisher import StoredClaims
from spark_sink.errors import SinkError, StoreWentBackError
from spark_sink.store.attempt_states import AttemptStatus, Prepared, Verdict
from spark_sink.store.commit_store import CommitStore
from tests.durability.test_synchronous_commit_off import url_with_it_off
from tests.spark.sink_model import Process, World, new_store
from tests.support.conditions import until
from tests.support.postgres_pair import PostgresNode, PostgresPair

WITHIN_S: Final = 60
WAITING: Final = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
_numbers = itertools.count(1)


@contextmanager
def store_on(url: sa.URL) -> Iterator[CommitStore]:
    """Open the store as the command line does: with an engine of its own making."""
    engine = sa.create_engine(url)
    try:
        yield CommitStore(engine)
    finally:
        engine.dispose()


def with_tables(url: sa.URL) -> sa.URL:
    """Make the tables, durably."""
    engine = sa.create_engine(url.update_query_dict({"options": "-csynchronous_commit=on"}))
    new_store(engine)
    engine.dispose()
    return url


def crash(node: PostgresNode) -> None:
    node.crash()
    node.start()


# ---- synchronous_commit=off ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["role", "database", "url", "in the block"])
def test_a_crash_right_after_phase_two_loses_neither_side(way: str, one_node: PostgresNode) -> None:
    url = with_tables(url_with_it_off(one_node, way, f"store_{next(_numbers)}"))
    with store_on(url) as store:
        world = World(store)
        process = world.process()
        plan = process.plan()
        results = [process.write(plan, 0, 0, [1, 2]), process.write(plan, 0, 1, [3])]
        insert = process._insert([1, 2, 3])
        assert insert is not None

        def write_and_lower(connection: sa.Connection, batch_id: int) -> None:
            insert(connection, batch_id)
            if way == "in the block":
                connection.exec_driver_sql("SET LOCAL synchronous_commit = off")

        process.sink.commit(results, query_id="query-1", batch_id=0, offsets_digest="input", sql_fn=write_and_lower)
    assert sorted(world.broker.committed) == [1, 2, 3]
    crash(one_node)
    with store_on(url) as store:
        world.store = store
        replay(world, {0: [1, 2], 1: [3]})
        world.assert_exactly_once([1, 2, 3])


def replay(world: World, rows: dict[int, list[int]]) -> None:
    """Run the whole batch again, as Spark does at the next start."""
    process = world.process()
    plan = process.plan()
    results = [process.write(plan, 0, partition, values) for partition, values in rows.items()]
    process.commit(results, 0, [value for values in rows.values() for value in values])


def test_a_crash_after_any_step_loses_no_part_of_the_decision(one_node: PostgresNode) -> None:
    url = with_tables(url_with_it_off(one_node, "role", f"store_{next(_numbers)}"))

    def kept(store: CommitStore, sink_id: str) -> tuple[Any, ...]:
        found = store.sinks(), store.attempts(sink_id), store.batches(sink_id)
        crash(one_node)
        store.engine.dispose()
        assert (store.sinks(), store.attempts(sink_id), store.batches(sink_id)) == found
        return found

    with store_on(url) as store:
        world = World(store)
        sink_id, process = world.options.sink_id, world.process()
        plan = process.plan()
        kept(store, sink_id)
        loser = process.write(plan, 0, 0, [1])
        kept(store, sink_id)
        process.abort([loser], 0)
        _, attempts, _ = kept(store, sink_id)
        assert [attempt.status for attempt in attempts] == [AttemptStatus.ABORTED]
        process.write(process.plan(), 0, 0, [1])
        store.condemn(sink_id)
        _, attempts, _ = kept(store, sink_id)
        assert AttemptStatus.ABORTING in {attempt.status for attempt in attempts}
        result = process.write(process.plan(), 0, 0, [1])
        process.commit([result], 0, [1])
        kept(store, sink_id)
        world.assert_exactly_once([1])


# ---- a standby that is away ------------------------------------------------------------------------------------------


def decided_and_not_durable(world: World, process: Process, pair: PostgresPair) -> None:
    """Cancel the wait of the COMMIT that decides: it shows on the primary, and the standby does not have it."""
    results = [process.write(process.plan(), 0, 0, [1, 2])]
    pair.standby.crash()
    with waited_for(pair, lambda: process.commit(results, 0, [1, 2])) as committing:
        with pytest.raises(NotDurableError):
            committing.result(WITHIN_S)
    assert sorted(world.rows) == [1, 2]


@contextmanager
def waited_for(pair: PostgresPair, steps: Callable[[], object]) -> Iterator[Future[object]]:
    """Run `steps` in a thread, and cancel each wait for the standby."""
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(steps)

        def is_over() -> bool:
            pair.primary.ask(f"SELECT count(pg_cancel_backend(pid)) {WAITING}")
            return running.done()

        until(is_over, WITHIN_S)
        yield running


@pytest.mark.parametrize("way", ["finish", "plan", "recover"])
def test_kafka_is_not_told_of_a_visible_but_not_durable_decision(way: str, pair: PostgresPair) -> None:
    with_tables(pair.primary.url)
    with store_on(pair.primary.url) as store, store_on(pair.primary.url) as other:
        world = World(store)
        decided_and_not_durable(world, world.process(), pair)
        assert world.broker.committed == []
        world.store = other
        successor = world.process()

        def recover() -> None:
            claims = other.claims(world.options.sink_id, tuple(Verdict))
            successor.kafka.end(claims, StoredClaims(other, world.options.sink_id, claims))

        ways: dict[str, Callable[[], object]] = {
            "finish": successor.sink.finish,
            "plan": successor.plan,
            "recover": recover,
        }
        with waited_for(pair, ways[way]) as running, pytest.raises(NotDurableError):
            running.result(WITHIN_S)
        assert world.broker.committed == []
    with store_on(pair.fail_over().url) as after:
        world.store = after
        replay(world, {0: [1, 2]})
        world.assert_exactly_once([1, 2])


def test_kafka_is_told_once_the_standby_has_it(pair: PostgresPair) -> None:
    with_tables(pair.primary.url)
    with store_on(pair.primary.url) as store:
        world = World(store)
        decided_and_not_durable(world, world.process(), pair)
        pair.start_standby()
        world.process().sink.finish()
        assert sorted(world.broker.committed) == [1, 2]
    with store_on(pair.fail_over().url) as after:
        world.store = after
        replay(world, {0: [1, 2]})
        world.assert_exactly_once([1, 2])


def test_kafka_is_not_told_of_a_visible_but_not_durable_replacement(pair: PostgresPair) -> None:
    """Another finisher has published a transaction again, and the wait of its COMMIT was cancelled."""
    with_tables(pair.primary.url)
    with store_on(pair.primary.url) as store, store_on(pair.primary.url) as other:
        world = World(store, commit_retries=0)
        sink_id, process = world.options.sink_id, world.process()
        results = [process.write(process.plan(), 0, 0, [1, 2])]
        (name,) = world.broker.open_ids
        world.broker.down_ids = {name}
        with pytest.raises(SinkError):
            process.commit(results, 0, [1, 2])
        (claim,) = other.claims(sink_id)
        rows = StoredClaims(other, sink_id, [claim])
        assert rows.still_wanted([claim.attempt_id])[claim.attempt_id].state == claim.prepared_state
        pair.standby.crash()
        anew = Prepared(PreparedTxnState("1:77"), "manifest")
        replace = partial(store.replace, sink_id, claim.attempt_id, claim.prepared_state, anew)
        with waited_for(pair, replace) as replacing, pytest.raises(NotDurableError):
            replacing.result(WITHIN_S)
        assert other.still_wanted({claim.attempt_id: Verdict.COMMIT}, [claim.attempt_id])[claim.attempt_id] == anew
        with waited_for(pair, lambda: rows.still_wanted([claim.attempt_id])) as reading:
            with pytest.raises(NotDurableError):
                reading.result(WITHIN_S)
        pair.start_standby()
        assert rows.still_wanted([claim.attempt_id]) == {claim.attempt_id: anew}


# ---- asynchronous failover -------------------------------------------------------------------------------------------


def test_a_failover_that_loses_a_decision_is_refused_until_accepted(pair: PostgresPair) -> None:
    """Kafka knows a decision that the asynchronous standby does not have."""
    with_tables(pair.primary.url)
    with store_on(pair.primary.url) as store:
        world = World(store)
        process = world.process()
        results = [process.write(process.plan(), 0, 0, [1, 2])]
        pair.standby.crash()
        pair.primary.configure("synchronous_standby_names = ''\n")
        crash(pair.primary)
        store.engine.dispose()
        process.commit(results, 0, [1, 2])
        assert sorted(world.broker.committed) == [1, 2]
    with store_on(pair.fail_over().url) as after:
        world.store = after
        for _ in range(2):
            with pytest.raises(StoreWentBackError):
                replay(world, {0: [1, 2]})
        assert sorted(world.broker.committed) == [1, 2]
        assert world.rows == []
        assert after.acknowledge_lost(world.options.sink_id, "query-1", 0)
        assert not after.acknowledge_lost(world.options.sink_id, "query-1", 0)
        replay(world, {0: [1, 2]})
        assert sorted(world.rows) == [1, 2]
        assert sorted(world.broker.committed) == [1, 1, 2, 2], "the second copy that was accepted"
