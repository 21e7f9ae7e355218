"""Helpers for tests of repair: a sink on a broker of each tier, and ways in which Kafka aborts decided transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import sqlalchemy as sa

from dualwrite.admin import TransactionAdmin
from dualwrite.broker_emulator import Emulator, VirtualClock
from dualwrite.guarantee import Tier
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.producer import Producer
from spark_sink.driver.finisher import CommitSummary
from spark_sink.driver.protocol import Sink
from spark_sink.options import SinkOptions
from spark_sink.pause_points import Pause, PausePoint
from spark_sink.store.attempt_states import LIVE, AttemptStatus
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.tables import AttemptRow, BatchStatus, StoreTables
from tests.spark.kafka_world import TIERS, KafkaWorld
from tests.spark.sink_model import QUERY, Stalling, task
from tests.spark.store_engines import sqlite_engine
from tests.support.conditions import until

SCHEMA: Final = pa.schema([("key", pa.string()), ("value", pa.string())])
FOREIGN: Final = "foreign"
"""The value of records that another program writes under a transactional id of the sink."""

TIMEOUT_MS: Final = 60_000
BOUNDED: Final = (Tier.BOUNDED, Tier.BOUNDED_V1)
EIGHT_DAYS_MS: Final = 8 * 24 * 3_600_000


class RepairSite:
    """A sink `s`, on a topic `orders` of two partitions, whose processes sleep, die and wake up as tests say."""

    def __init__(self, world: KafkaWorld, engine: sa.Engine) -> None:
        self.world = world
        self.emulator = world.emulator
        self.engine = engine
        self.store = CommitStore(engine)
        self.options: SinkOptions = world.options(
            txn__mode="auto", txn__timeoutMs=TIMEOUT_MS, commit__retries=2, kafka__client__id="sink"
        )

    def sink(self, pause: Pause | None = None, **options: Any) -> Sink:
        """Return a sink of a new process."""
        given = {"txn__mode": "auto", "txn__timeoutMs": TIMEOUT_MS, "commit__retries": 2} | options
        side = self.world.side(pause=pause, **given)
        return Sink(self.world.options(**given), self.store, side, pause=pause, sleep=lambda seconds: None)

    def write(self, batch_id: int, *values: str, pause: Pause | None = None, **options: Any) -> CommitSummary:
        """Write a batch with a partition for each value, by a new process."""
        sink = self.sink(pause, **options)
        plan = sink.plan(SCHEMA, query_id=QUERY)
        results = [
            sink.write(plan, task(batch_id, number), iter([pa.record_batch({"key": [value], "value": [value]})]))
            for number, value in enumerate(values)
        ]
        return sink.commit(results, query_id=QUERY, batch_id=batch_id, offsets_digest="input")

    def writing(self, batch_id: int, *values: str, **options: Any) -> Stalling:
        """Return a process that is going to write a batch."""
        return Stalling(lambda me: self.write(batch_id, *values, pause=me.reach, **options))

    def writing_to_both(self, batch_id: int, *values: str) -> Stalling:
        """Return a process that writes a batch of one transaction, with each value in a partition of its own."""
        rows = pa.record_batch({"value": values, "partition": pa.array(range(len(values)), pa.int32())})

        def write(me: Stalling) -> CommitSummary:
            sink = self.sink(me.reach)
            plan = sink.plan(rows.schema, query_id=QUERY)
            result = sink.write(plan, task(batch_id, 0), iter([rows]))
            return sink.commit([result], query_id=QUERY, batch_id=batch_id, offsets_digest="input")

        return Stalling(write)

    def decided(self, *values: str, batch_id: int = 0) -> Stalling:
        """Leave a decided batch, by a process that sleeps before it commits anything in Kafka."""
        return self.writing(batch_id, *values).until(PausePoint.AFTER_DECISION)

    def finishing(self) -> Stalling:
        """Return a process that is going to complete decided batches."""
        return Stalling(lambda me: self.sink(me.reach).finish())

    def finish(self) -> CommitSummary:
        """Complete decided batches, in a new process."""
        return self.sink().finish()

    # ---- observations ---------------------------------------------------------------------------------------

    def attempts(self, *statuses: AttemptStatus) -> list[AttemptRow]:
        return self.store.attempts("s", statuses or tuple(AttemptStatus))

    def pairs(self) -> dict[str, PreparedTxnState]:
        """Return the prepared states that are to be committed, by attempt id."""
        committing = self.attempts(AttemptStatus.COMMITTING)
        return {each.attempt_id: PreparedTxnState(each.prepared_state) for each in committing}

    def committed(self) -> list[str]:
        """Return the sink's values that consumers with read_committed see."""
        return [value for value in self.world.committed() if value != FOREIGN]

    def assert_agreed(self, *values: str) -> None:
        """Check that all batches are done, Kafka has each of these values once, and no transaction is open."""
        assert self.committed() == sorted(values)
        assert self.store.attempts("s", LIVE) == []
        assert {batch.status for batch in self.store.batches("s")} <= {BatchStatus.DONE}
        assert self.world.open_ids() == []

    def backup(self) -> dict[sa.Table, list[dict[str, Any]]]:
        """Return the store's attempts and decisions."""
        tables = StoreTables(None)
        with self.engine.connect() as connection:
            return {
                table: [dict(row) for row in connection.execute(sa.select(table)).mappings()]
                for table in (tables.attempt, tables.batch)
            }

    def restore(self, backup: Mapping[sa.Table, list[dict[str, Any]]]) -> None:
        """Let the store go back to a backup."""
        with self.engine.begin() as connection:
            for table, rows in backup.items():
                connection.execute(sa.delete(table))
                connection.execute(sa.insert(table), rows)

    def delete_records(self, *partitions: int) -> None:
        """Delete the records of these partitions, as retention does."""
        self._delete_before(dict.fromkeys(partitions, -1))

    def delete_first(self, count: int) -> None:
        """Delete as many records and markers at the beginning of the one partition that has any."""
        (partition,) = (number for number in (0, 1) if self.emulator.records("orders", number, read_committed=False))
        self._delete_before({partition: count})

    def _delete_before(self, offsets: Mapping[int, int]) -> None:
        from kafka import TopicPartition as KafkaPartition
        from kafka.admin import KafkaAdminClient

        admin: Any = KafkaAdminClient(bootstrap_servers=self.emulator.bootstrap_servers)
        try:
            admin.delete_records({KafkaPartition("orders", number): offset for number, offset in offsets.items()})
        finally:
            admin.close()


@contextmanager
def repair_site(
    tier: Tier, directory: Path, *, clock: VirtualClock | None = None, **settings: Any
) -> Iterator[RepairSite]:
    """Yield a sink on a broker of that tier, with a clock that stands still and a store on SQLite."""
    with (
        sqlite_engine(directory) as engine,
        Emulator(topics={"orders": 2}, config=TIERS[tier], clock=clock or VirtualClock(), **settings) as emulator,
    ):
        emulator.set_config({"retention.ms": "-1"}, topic="orders")  # an id expires before the records do
        world = KafkaWorld(emulator)
        yield RepairSite(world, engine)
        world.faults.clear()
        world.close()


# ---- ways in which a transaction ends without its owner -------------------------------------------------------------


class Way(StrEnum):
    """A way in which the sink's transactions end without it, and the trace that it leaves."""

    TIMEOUT = "the broker's timeout"
    OPERATOR = "an operator aborts them"
    INITIALISED = "another program initialises the ids, which erases the trace"
    USED = "another program commits transactions of its own under the ids"
    EXPIRED = "an operator aborts them, and then the ids expire"


def ways_of(tier: Tier, *ways: Way) -> list[Way]:
    """Return the possible ways on brokers of a tier; without a bound, time aborts no transaction."""
    return [way for way in ways or tuple(Way) if way is not Way.TIMEOUT or tier in BOUNDED]


def let_end(site: RepairSite, way: Way) -> None:
    """Let all open transactions of the sink's ids be aborted in that way."""
    _WAYS[way](site)
    site.world.settle()


def _by_timeout(site: RepairSite) -> None:
    site.emulator.advance_clock(TIMEOUT_MS + 20_000)
    until(lambda: not site.world.open_ids())


def _by_operator(site: RepairSite) -> None:
    with TransactionAdmin(bootstrap_servers=site.emulator.bootstrap_servers) as admin:
        for transactional_id in site.world.open_ids():
            admin.force_terminate_transaction(transactional_id)


def _ids(site: RepairSite) -> Sequence[str]:
    return sorted({attempt.transactional_id for attempt in site.attempts()})


def _by_initialising(site: RepairSite) -> None:
    for transactional_id in _ids(site):
        with Producer(bootstrap_servers=site.emulator.bootstrap_servers, transactional_id=transactional_id) as producer:
            producer.init_transactions()


def _by_using(site: RepairSite) -> None:
    for transactional_id in _ids(site):
        with Producer(bootstrap_servers=site.emulator.bootstrap_servers, transactional_id=transactional_id) as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("orders", FOREIGN, partition=0)


def _by_operator_and_expiry(site: RepairSite) -> None:
    _by_operator(site)
    site.world.settle()
    site.emulator.advance_clock(EIGHT_DAYS_MS)
    until(lambda: not site.emulator.transactions())


_WAYS: Final[dict[Way, Callable[[RepairSite], None]]] = {
    Way.TIMEOUT: _by_timeout,
    Way.OPERATOR: _by_operator,
    Way.INITIALISED: _by_initialising,
    Way.USED: _by_using,
    Way.EXPIRED: _by_operator_and_expiry,
}
