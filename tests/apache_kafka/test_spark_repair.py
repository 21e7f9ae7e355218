"""A decided Spark batch that real brokers abort is published again, once; a committed one never is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.admin import TransactionAdmin
from dualwrite.producer import Producer
from spark_sink.driver.completion import Completion
from spark_sink.driver.recovery import Action, SinkRecovery
from spark_sink.pause_points import PausePoint
from spark_sink.store.attempt_states import AttemptStatus
from spark_sink.store.tables import BatchStatus
from tests.spark.applications import ApplicationWorld
from tests.spark.store_engines import sqlite_engine

from .clusters import Cluster
from .conftest import NewName
from .reading import create_topics, read_committed

TIMEOUT_MS = 2_000


class World(ApplicationWorld):
    """Applications on a real cluster, whose sink is named after the test."""

    cluster: Cluster
    sink_id: str

    @property
    def given(self) -> dict[str, str]:
        timeout = {"txn.timeoutMs": str(TIMEOUT_MS)} if self.cluster.is_bounded else {}
        return {"txn.mode": "auto", "commit.retries": "3", **timeout}

    @property
    def ids(self) -> list[str]:
        return sorted({attempt.transactional_id for attempt in self.store.attempts(self.sink_id)})

    def let_abort(self) -> None:
        """Wait for the broker's timeout, or abort by force where there is none."""
        for transactional_id in self.ids:
            if not self.cluster.is_bounded:
                with TransactionAdmin(bootstrap_servers=self.bootstrap_servers) as admin:
                    admin.force_terminate_transaction(transactional_id)
            self.cluster.wait_for_state(transactional_id, "CompleteAbort")

    def values(self) -> list[str]:
        """Return the values that a consumer with read_committed gets, once no transaction is completing."""
        for transactional_id in self.ids:
            self.cluster.wait_until_settled(transactional_id)
        found = read_committed({"bootstrap.servers": self.bootstrap_servers}, self.topic)
        return sorted(value.decode() for value in found)

    def recovery(self, admin: TransactionAdmin) -> SinkRecovery:
        settings = {
            "bootstrap.servers": self.bootstrap_servers,
            "transaction.two.phase.commit.enable": True,
            "accept.bounded.guarantee": True,
        }
        completion = Completion(settings, parallelism=4, step_timeout_ms=30_000)
        return SinkRecovery(self.store, completion, admin, sink_ids=[self.sink_id], min_age_ms=0)

    def assert_done(self, *values: str) -> None:
        assert self.values() == sorted(values)
        assert {attempt.status for attempt in self.store.attempts(self.sink_id)} == {AttemptStatus.COMMITTED}
        assert {batch.status for batch in self.store.batches(self.sink_id)} == {BatchStatus.DONE}


@pytest.fixture
def world(cluster: Cluster, new_name: NewName, tmp_path: Path) -> Iterator[World]:
    topic = new_name("topic")
    create_topics(cluster.bootstrap_servers, topic)
    with sqlite_engine(tmp_path) as engine:
        made = World(engine, cluster.bootstrap_servers, topic)
        made.cluster, made.sink_id = cluster, new_name("sink").replace("-", "_")
        yield made


def test_the_batchs_own_commit_repairs(world: World) -> None:
    """The repair is slower than the broker's timeout."""
    world.write_beside(world.sink_id, 0, [["a", "b"], ["c"]], PausePoint.AFTER_DECISION, world.let_abort, **world.given)
    world.assert_done("a", "b", "c")


def test_the_command_repairs_and_says_so_before(world: World) -> None:
    world.write(world.sink_id, 0, [["a", "b"], ["c"]], die_at=PausePoint.AFTER_DECISION, **world.given)
    world.let_abort()
    with TransactionAdmin(bootstrap_servers=world.bootstrap_servers) as admin:
        recovery = world.recovery(admin)
        for report, changed in ((recovery.plan(), False), (recovery.recover(), True)):
            found = {(each.transactional_id, each.action, each.changed) for each in report.found}
            assert found == {(each, Action.REPAIR, changed) for each in world.ids}
    world.assert_done("a", "b", "c")


def test_a_repair_that_dies_before_it_commits_and_is_aborted_is_repaired(world: World) -> None:
    world.write(world.sink_id, 0, [["a", "b"]], die_at=PausePoint.AFTER_DECISION, **world.given)
    world.let_abort()
    world.write(world.sink_id, 1, [["c"]], die_at=PausePoint.AFTER_REPLACEMENT, **world.given)
    world.let_abort()
    world.write(world.sink_id, 1, [["c"]], die_at=None, **world.given)
    world.assert_done("a", "b", "c")


def test_committed_records_of_a_forgotten_id_are_not_published_again(world: World) -> None:
    world.write(world.sink_id, 0, [["a"], ["b"]], die_at=PausePoint.BEFORE_STATUSES, **world.given)
    for transactional_id in world.ids:
        world.cluster.wait_until_settled(transactional_id)
        with Producer(bootstrap_servers=world.bootstrap_servers, transactional_id=transactional_id) as producer:
            producer.init_transactions()
    world.write(world.sink_id, 1, [["c"]], die_at=None, **world.given)
    world.assert_done("a", "b", "c")


def test_an_abort_by_another_program_without_a_trace_is_repaired(world: World) -> None:
    world.write(world.sink_id, 0, [["a"], ["b"]], die_at=PausePoint.AFTER_DECISION, **world.given)
    for transactional_id in world.ids:
        with Producer(bootstrap_servers=world.bootstrap_servers, transactional_id=transactional_id) as producer:
            producer.init_transactions()
    world.write(world.sink_id, 1, [["c"]], die_at=None, **world.given)
    world.assert_done("a", "b", "c")


def test_a_given_up_task_takes_its_id_over_when_the_batch_is_decided(world: World) -> None:
    """The process was suspended after its last check, so its InitProducerId aborts any open transaction."""
    world.write(world.sink_id, 0, [["a"]], die_at=PausePoint.AFTER_SEND, **world.given)
    (given_up,) = world.ids

    def wake_up() -> None:
        world.forget_manifests()  # nothing is published again
        with Producer(bootstrap_servers=world.bootstrap_servers, transactional_id=given_up) as producer:
            producer.init_transactions()

    world.write_beside(world.sink_id, 0, [["a"]], PausePoint.AFTER_DECISION, wake_up, **world.given)
    assert world.values() == ["a"]
    found = {attempt.transactional_id: attempt.status for attempt in world.store.attempts(world.sink_id)}
    assert found.pop(given_up) is AttemptStatus.ABORTED
    assert set(found.values()) == {AttemptStatus.COMMITTED}
