"""The cause of a failed step: a record goes to `poison` for its own faults only, and then always."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.errors import (
    AbortableError,
    FencedError,
)
from dualwrite.recipes.consume import steps as consume_steps
from dualwrite.recipes.consume.consume import ConsumedRecord, ConsumeTransformWrite
from dualwrite.recipes.sqlalchemy.writer import DualTransaction
from tests.recipes.pipelines import Site, carry, copy, insert
from tests.recipes.pipelines import library as library
from tests.recipes.pipelines import site as site
from tests.support.conditions import until
from tests.support.databases import event_bodies
from tests.support.topics import read_topic
from tests.unit.test_consume_errors import of_postgres

VALUES = "abcdefghij"


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    """A broker whose output topic takes small records only."""
    config = BrokerConfig(offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1)
    with Emulator(config=config, topics={"in": 2}) as running:
        running.create_topic("out", 1, {"max.message.bytes": "1000"})
        yield running


@pytest.fixture(autouse=True)
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_steps, "_FIRST_PAUSE_S", 0.001)


TROUBLE = {
    "lock timeout": "55P03",
    "deadlock": "40P01",
    "serialization failure": "40001",
    "statement timeout": "57014",
    "disk full": "53100",
    "read-only after a failover": "25006",
    "shutdown": "57P01",
}


@pytest.mark.parametrize("sqlstate", TROUBLE.values(), ids=TROUBLE)
def test_trouble_of_the_database_is_waited_for_and_no_record_is_set_aside(site: Site, sqlstate: str) -> None:
    site.fill(*VALUES)
    troubles = [True] * 3

    def handle(tx: DualTransaction, record: ConsumedRecord) -> None:
        if troubles:
            troubles.pop()
            raise of_postgres(sqlstate)
        copy(tx, record)

    carry(site.pipeline(handle, poison=unexpected), len(VALUES))
    assert troubles == []
    site.assert_carried(*VALUES)


def unexpected(tx: DualTransaction, record: ConsumedRecord, error: Exception) -> None:
    raise AssertionError(f"{record} was set aside") from error


def test_trouble_that_stays_is_raised(site: Site) -> None:
    site.fill(*VALUES)
    asked = 0

    def handle(tx: DualTransaction, record: ConsumedRecord) -> None:
        nonlocal asked
        asked += 1
        raise of_postgres("53100")

    pipeline = site.pipeline(handle, poison=unexpected)
    with pytest.raises(sa.exc.OperationalError):
        until(lambda: pipeline.step(10_000) > 0)
    assert asked == 6
    site.assert_carried()


def test_a_lock_of_another_is_waited_for(site: Site) -> None:
    """SQLite's own, at the first statement of the block."""
    site.fill("a", "b")
    pipeline = site.pipeline(poison=unexpected)
    carry(pipeline, 2)
    site.fill("c", "d")
    other = site.database.engine.connect()
    other.exec_driver_sql("BEGIN IMMEDIATE")
    waited = []

    async def pause(seconds: float) -> None:
        waited.append(seconds)
        other.rollback()

    pipeline._steps._sleep = pause
    sa.event.listen(site.database.engine, "checkout", lambda driver, *_: driver.execute("PRAGMA busy_timeout = 10"))
    carry(pipeline, 2)
    other.close()
    site.assert_carried("a", "b", "c", "d")


def set_aside(tx: DualTransaction, record: ConsumedRecord, error: Exception) -> None:
    assert record.value is not None
    insert(tx, f"set aside {record.value.decode()}: {type(error).__name__}")


def without(pipeline: ConsumeTransformWrite, site: Site, expected: dict[str, str]) -> None:
    """All records but the expected ones go through, which are in the table with their errors."""
    carry(pipeline, len(VALUES))
    good = [value for value in VALUES if value not in expected]
    aside = [f"set aside {value}: {name}" for value, name in expected.items()]
    assert sorted(event_bodies(site.database)) == sorted([*good, *aside])
    assert sorted(value[:1] for _, value in read_topic(site.emulator.bootstrap_servers, "out")) == good


UNSENDABLE: dict[str, tuple[bytes, Callable[[bytes], Any], str]] = {
    "the broker finds it too large": (b"dg", lambda value: value * 5_000, "DeliveryError"),
    "it is larger than the producer sends": (b"c", lambda value: value * 2_000_000, "InvalidRecordError"),
    "it is no bytes": (b"e", lambda value: object(), "InvalidRecordError"),
}


@pytest.mark.parametrize("why", UNSENDABLE)
def test_a_record_that_cannot_be_sent_is_set_aside(site: Site, why: str) -> None:
    """The error does not name the record: the batch is divided until it is alone."""
    bad, spoilt, error = UNSENDABLE[why]
    site.fill(*VALUES)

    def handle(tx: DualTransaction, record: ConsumedRecord) -> None:
        assert record.value is not None
        insert(tx, record.value.decode())
        tx.send("out", spoilt(record.value) if record.value in bad else record.value)

    without(site.pipeline(handle, poison=set_aside), site, dict.fromkeys(bad.decode(), error))


def test_a_record_that_cannot_be_serialized_is_set_aside(site: Site) -> None:
    site.fill(*VALUES)

    def serialize(value: bytes) -> bytes:
        if value == b"f":
            raise ValueError("not in the schema")
        return value

    writer = site.writer(value_serializer=serialize)
    without(site.pipeline(writer=writer, poison=set_aside), site, {"f": "InvalidRecordError"})


def test_a_record_refused_by_the_database_at_the_end_of_the_block_is_set_aside(site: Site) -> None:
    """A Session flushes when the block ends, so the error does not name the record."""
    site.fill(*VALUES)

    def handle(tx: DualTransaction, record: ConsumedRecord) -> None:
        assert record.value is not None
        copy(tx, record)
        if record.value == b"h":
            tx.session.connection().info["fails"] = True

    @sa.event.listens_for(site.database.engine, "before_cursor_execute")
    def refuse(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if "kafka_transaction_state" in statement and connection.info.pop("fails", False):
            raise sa.exc.IntegrityError("INSERT", {}, Exception("refused at the end"))

    without(site.pipeline(handle, poison=set_aside), site, {"h": "IntegrityError"})
    sa.event.remove(site.database.engine, "before_cursor_execute", refuse)


def test_a_batch_that_makes_too_much_is_made_smaller(site: Site) -> None:
    """The output of one record fits, that of ten does not; a record with too much output by itself is poison."""
    site.fill(*VALUES)
    writer = site.writer(max_buffered_bytes=2_500)

    def handle(tx: DualTransaction, record: ConsumedRecord) -> None:
        assert record.value is not None
        insert(tx, record.value.decode())
        tx.send("out", record.value * (3_000 if record.value == b"j" else 700))

    without(site.pipeline(handle, writer=writer, poison=set_aside), site, {"j": "TransactionTooLargeError"})


def test_a_record_that_is_too_large_without_poison(site: Site) -> None:
    site.fill("a")

    def handle(tx: DualTransaction, record: ConsumedRecord) -> None:
        insert(tx, "a")
        tx.send("out", b"a" * 5_000)

    pipeline = site.pipeline(handle)
    for _ in range(2):
        with pytest.raises(AbortableError, match="MESSAGE_SIZE_TOO_LARGE"):
            until(lambda: pipeline.step(10_000) > 0)
    site.assert_carried()


def test_a_failure_without_a_culprit_record_ends_the_step(site: Site) -> None:
    site.fill(*VALUES)

    def handle(tx: DualTransaction, record: ConsumedRecord) -> None:
        raise FencedError("another producer has taken over")

    pipeline = site.pipeline(handle, poison=unexpected)
    with pytest.raises(FencedError):
        until(lambda: pipeline.step(10_000) > 0)
    site.assert_carried()
