"""Each input record is in the table and in the output topic exactly once, whichever part fails in between."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator import Emulator, Error, Fault
from dualwrite.errors import AbortableError, ConfigError, PartitionTakenOverError
from dualwrite.producer import ConsumerGroupMetadata, TopicPartition
from dualwrite.recipes.consume.consume import (
    ConsumedRecord,
    OffsetsInDatabase,
    OffsetsInTransaction,
    adapter_of,
)
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.sqlalchemy.writer import DualTransaction, DualWriter
from tests.crash.scenario import AtPoint, InjectedError, fail
from tests.recipes.pipelines import PARTITIONS, Site, carry, copy, insert
from tests.recipes.pipelines import emulator as emulator
from tests.recipes.pipelines import library as library
from tests.recipes.pipelines import site as site
from tests.support.conditions import until
from tests.support.consumers import Consumers, confluent_kafka
from tests.support.databases import Database, event_bodies, events

GROUP = ConsumerGroupMetadata("movers")


def test_a_pipeline_and_its_successor_continue_at_the_writes(site: Site) -> None:
    site.fill("a", "b", "c")
    first = site.pipeline(max_records=2)
    carry(first, 3)
    site.assert_carried("a", "b", "c")
    site._to_close[0].close()
    del site._to_close[0]
    site.fill("d", "e")
    carry(site.pipeline(), 2)
    site.assert_carried("a", "b", "c", "d", "e")


def test_records_of_a_raising_handler_are_read_again(site: Site) -> None:
    site.fill("a", "b", "c")
    failures = ["its batch", "alone"]

    def handle(tx: DualTransaction, record: ConsumedRecord) -> None:
        copy(tx, record)
        if record.value == b"c" and failures:
            raise RuntimeError(f"failed in {failures.pop(0)}")

    pipeline = site.pipeline(handle)
    with pytest.raises(RuntimeError, match="failed in alone"):
        until(lambda: pipeline.step(10_000) < 0)
    until(lambda: (pipeline.step(10_000), len(event_bodies(site.database)) >= 3)[1])
    site.assert_carried("a", "b", "c")


def test_a_write_that_raised_after_its_decision_is_not_repeated(site: Site) -> None:
    site.fill("a", "b", "c")
    pipeline = site.pipeline(writer=site.writer(AtPoint(PausePoint.AFTER_DATABASE_COMMIT, fail)))
    with pytest.raises(InjectedError):
        until(lambda: pipeline.step(10_000) < 0)
    until(lambda: (pipeline.step(10_000), len(event_bodies(site.database)) >= 3)[1])
    site.fill("d")
    carry(pipeline, 1)
    site.assert_carried("a", "b", "c", "d")


def test_records_of_a_write_refused_by_kafka_are_read_again(site: Site) -> None:
    site.fill("a", "b")
    fault = site.emulator.faults.add(Fault(api="Produce", topic="out", action=Error("INVALID_RECORD"), count=None))
    pipeline = site.pipeline()
    with pytest.raises(AbortableError):
        carry(pipeline, 2)
    fault.remove()
    assert event_bodies(site.database) == []
    carry(pipeline, 2)
    site.assert_carried("a", "b")


def test_a_poison_record_is_set_aside_by_a_dual_write_of_its_own(site: Site) -> None:
    site.fill("a", "bad", "c", "d")
    told: list[tuple[bytes | None, str]] = []

    def handle(tx: DualTransaction, record: ConsumedRecord) -> None:
        copy(tx, record)
        if record.value == b"bad":
            raise ValueError("cannot be read")

    def set_aside(tx: DualTransaction, record: ConsumedRecord, error: Exception) -> None:
        told.append((record.value, str(error)))
        insert(tx, "set aside")
        tx.send("out", "set aside")

    carry(site.pipeline(handle, poison=set_aside), 4)
    assert told == [(b"bad", "cannot be read")]
    site.assert_carried("a", "set aside", "c", "d")


class Interrupted:
    """A writer with an action before its first block, as while its process sleeps between reading and writing."""

    is_pool = True  # the id is not recovered by the pipeline

    def __init__(self, writer: DualWriter, meanwhile: Callable[[], object]) -> None:
        self._writer = writer
        self.backend = writer.backend
        self.producer_settings = writer.producer_settings
        self._meanwhile: Callable[[], object] | None = meanwhile

    def transaction(self) -> AbstractContextManager[DualTransaction]:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return self._writer.transaction()


def test_a_consumer_that_lost_its_partitions_writes_nothing(site: Site) -> None:
    site.fill("a", "b")
    successor = site.pipeline()

    def lose() -> None:
        side: Any = zombie._steps._consumer
        side._consumer.unsubscribe()
        until(lambda: not side._consumer.poll(0) and not side._consumer.assignment())
        carry(successor, 2)
        zombie._steps._subscribed = False  # it wakes up, finds out, and joins again

    zombie = site.pipeline(writer=Interrupted(site.writer(), lose))
    done = 0

    def lost() -> bool:
        nonlocal done
        done += zombie.step(10_000)  # as patiently as `carry`
        return len(event_bodies(site.database)) >= 2

    until(lost)
    assert done == 0
    site.assert_carried("a", "b")
    site.fill("c", "d")

    def both() -> bool:
        zombie.step(1_000)
        successor.step(1_000)
        return len(event_bodies(site.database)) >= 4

    until(both)
    site.assert_carried("a", "b", "c", "d")


def test_a_consumer_that_knows_of_no_membership_writes_nothing() -> None:
    """The consumer's background heartbeats have found out; Kafka would accept such offsets."""
    tx: Any = None
    with pytest.raises(PartitionTakenOverError, match="no longer a member of group 'movers'"):
        blocking.run(OffsetsInTransaction().move(tx, GROUP, {TopicPartition("in", 0): 1}, {}))


def test_a_consumer_of_another_cluster_keeps_its_offsets_in_the_database(emulator: Emulator, sqlite: Database) -> None:
    site = Site(emulator, sqlite, confluent_kafka, "transaction")
    site.fill("a")
    with Emulator(topics={"in": PARTITIONS, "out": 1}) as another:
        with DualWriter(sqlite.engine, transactional_id="there", bootstrap_servers=another.bootstrap_servers) as writer:
            with pytest.raises(ConfigError, match="no handler was called: use OffsetsInDatabase"):
                carry(site.pipeline(writer=writer), 1)
        site.close()
    site.assert_carried()


def test_the_database_is_away_while_partitions_are_assigned(
    emulator: Emulator, sqlite: Database, library: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(emulator, sqlite, library, "database")
    site.fill("a", "b", "c")
    first = site.pipeline()
    carry(first, 3)
    site._to_close.pop(0).close()
    site.fill("d")
    pipeline = site.pipeline()
    broken = [True, True]
    start = pipeline._steps._offsets.start

    async def unlucky(*arguments: Any) -> Any:
        if broken:
            broken.pop()
            raise sa.exc.OperationalError("SELECT", {}, Exception("away"))
        return await start(*arguments)

    monkeypatch.setattr(pipeline._steps._offsets, "start", unlucky)
    carry(pipeline, 1)
    assert broken == []
    site.assert_carried("a", "b", "c", "d")
    site.close()


def test_the_row_of_a_partition_fences_by_itself(emulator: Emulator, sqlite: Database) -> None:
    """Two consumers believe to have the partition, and the first row is made by the other one."""
    site = Site(emulator, sqlite, confluent_kafka, "database")
    site.fill("a")
    slow, quick = OffsetsInDatabase(sqlite.engine), OffsetsInDatabase(sqlite.engine)
    consumer = adapter_of(site.consumer())
    writer = site.writer()
    for offsets in (slow, quick):
        blocking.run(offsets.start(consumer, []))
    partition = TopicPartition("in", 0)
    with writer.transaction() as tx:
        blocking.run(quick.move(tx, GROUP, {partition: 1}, {}))
    with pytest.raises(PartitionTakenOverError, match="expected at no offset"), writer.transaction() as tx:
        blocking.run(slow.move(tx, GROUP, {partition: 1}, {}))
    blocking.run(slow.start(consumer, [partition]))
    with writer.transaction() as tx:
        quick.moved({partition: 1})
        blocking.run(quick.move(tx, GROUP, {partition: 5}, {}))
    with pytest.raises(PartitionTakenOverError, match="expected at 1"), writer.transaction() as tx:
        blocking.run(slow.move(tx, GROUP, {partition: 9}, {}))
    site.close()


def test_an_interruption_is_no_trouble_of_the_database(site: Site) -> None:
    """The handler of a signal may raise what a network raises too."""
    site.fill("a", "b")
    interruptions = [signal.SIGUSR1]

    def interrupt(*_: Any) -> None:
        raise TimeoutError("enough")

    def handle(tx: DualTransaction, record: ConsumedRecord) -> None:
        if interruptions:
            signal.raise_signal(interruptions.pop())
        copy(tx, record)

    pipeline = site.pipeline(handle)
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(TimeoutError, match="enough"):
            carry(pipeline, 2)
    finally:
        signal.signal(signal.SIGUSR1, before)
    carry(pipeline, 2)
    site.assert_carried("a", "b")


def refuse_at_commit(site: Site, refused: bytes) -> Callable[[DualTransaction, ConsumedRecord], None]:
    """Return a handler that sends nothing, and for one record violates a deferred constraint."""
    engine = site.database.engine
    sa.event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON"))
    engine.dispose()
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE parents (id INTEGER PRIMARY KEY)")
        connection.exec_driver_sql("CREATE TABLE children (of REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")

    def handle(tx: DualTransaction, record: ConsumedRecord) -> None:
        assert record.value is not None
        insert(tx, record.value.decode())
        if record.value == refused:
            tx.connection.exec_driver_sql("INSERT INTO children VALUES (1)")

    return handle


def test_a_record_that_the_database_refuses_at_commit_is_set_aside(site: Site) -> None:
    """The error of COMMIT, in a block that sends no record, does not say whether it was committed."""
    handle = refuse_at_commit(site, b"b")
    site.fill("a", "b", "c")
    aside: list[bytes | None] = []
    carry(site.pipeline(handle, poison=lambda tx, record, error: aside.append(record.value)), 3)
    assert aside == [b"b"]
    assert sorted(event_bodies(site.database)) == ["a", "c"]


def test_records_that_another_consumer_has_written_meanwhile_are_not_written_again(
    emulator: Emulator, sqlite: Database, library: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other consumer takes the partition over after the block has failed, and before its records are divided."""
    site = Site(emulator, sqlite, library, "database")
    handle = refuse_at_commit(site, b"c")
    aside: list[bytes | None] = []
    pipeline = site.pipeline(handle, poison=lambda tx, record, error: aside.append(record.value))
    site.fill("first")
    carry(pipeline, 1)
    read = OffsetsInDatabase.resume_positions

    async def take_over(self: OffsetsInDatabase, *given: Any) -> Any:
        if "a" not in event_bodies(sqlite):
            with sqlite.engine.begin() as connection:
                connection.exec_driver_sql('UPDATE kafka_consumed_offset SET next_offset = 2 WHERE "partition" = 0')
                connection.execute(sa.insert(events), {"id": 1_000_000, "event_key": "k", "body": "a"})
        return await read(self, *given)

    monkeypatch.setattr(OffsetsInDatabase, "resume_positions", take_over)
    site.fill("a", "other", "c")

    def all_are_written() -> bool:
        with suppress(sa.exc.IntegrityError):
            pipeline.step(10_000)
        return bool(aside) and len(event_bodies(sqlite)) >= 3

    until(all_are_written)
    assert aside == [b"c"]
    assert sorted(event_bodies(sqlite)) == ["a", "first", "other"]
    site.close()
