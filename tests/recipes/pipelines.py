"""An input topic, a table, an output topic, and the pipelines between them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.producer import Producer
from dualwrite.recipes.consume.consume import (
    ConsumedRecord,
    ConsumeTransformWrite,
    OffsetsInDatabase,
    OffsetsInTransaction,
)
from dualwrite.recipes.consume.consumed_offsets import OffsetPlace
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.sqlalchemy.writer import DualTransaction, DualWriter
from tests.support.conditions import until
from tests.support.consumers import LIBRARIES, Consumers
from tests.support.databases import Database, event_bodies, events, unique
from tests.support.topics import read_topic

PARTITIONS = 2


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    config = BrokerConfig(offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1)
    with Emulator(config=config, topics={"in": PARTITIONS, "out": 1}) as running:
        yield running


class Ends:
    """One input topic, and what was made of it: in a table, and in one output topic."""

    def __init__(self, emulator: Emulator, database: Database) -> None:
        self.emulator = emulator
        self.database = database

    def fill(self, *values: str) -> None:
        with Producer(bootstrap_servers=self.emulator.bootstrap_servers) as producer:
            for number, value in enumerate(values):
                producer.send("in", value, partition=number % PARTITIONS)
            producer.flush()

    def assert_carried(self, *values: str) -> None:
        assert sorted(event_bodies(self.database)) == sorted(values)
        assert sorted(value for _, value in read_topic(self.emulator.bootstrap_servers, "out")) == sorted(values)


class Site(Ends):
    """One input topic, one table, one output topic, and the pipelines between them."""

    def __init__(self, emulator: Emulator, database: Database, library: Consumers, place: str) -> None:
        super().__init__(emulator, database)
        self._library = library
        self._place = place
        self._to_close: list[Any] = []

    @property
    def place(self) -> OffsetPlace:
        return OffsetsInDatabase(self.database.engine) if self._place == "database" else OffsetsInTransaction()

    def writer(self, pause: PauseHook | None = None, **settings: Any) -> DualWriter:
        writer = DualWriter(
            self.database.engine,
            bootstrap_servers=self.emulator.bootstrap_servers,
            transactional_id=unique("mover"),
            pause=pause,
            **settings,
        )
        self._to_close.append(writer)
        return writer

    def consumer(self) -> Any:
        consumer = self._library(self.emulator.bootstrap_servers, "movers")
        self._to_close.insert(0, consumer)
        return consumer

    def pipeline(self, handle: Any = None, writer: Any = None, **options: Any) -> ConsumeTransformWrite:
        return ConsumeTransformWrite(
            writer or self.writer(), self.consumer(), ["in"], handle or copy, offsets=self.place, **options
        )

    def close(self) -> None:
        for each in reversed(self._to_close):
            each.close()


def copy(tx: DualTransaction, record: ConsumedRecord) -> None:
    assert record.value is not None
    insert(tx, record.value.decode())
    tx.send("out", record.value)


def insert(tx: DualTransaction, body: str) -> None:
    """No constraint keeps a second row of the same record out."""
    tx.connection.execute(sa.insert(events), {"id": next(_numbers), "event_key": "k", "body": body})


_numbers = itertools.count()


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Consumers:
    return LIBRARIES[request.param]


@pytest.fixture(params=["database", "transaction"])
def site(request: pytest.FixtureRequest, emulator: Emulator, sqlite: Database, library: Consumers) -> Iterator[Site]:
    made = Site(emulator, sqlite, library, request.param)
    yield made
    made.close()


def carry(pipeline: ConsumeTransformWrite, count: int) -> None:
    """Step until so many records were taken over.

    Each poll may take ten seconds and ends with the first record: if one ends between a rebalance and its start as a
    member, kafka-python loses its assignment for good, and the coordinator gives it up only after its session.
    """
    done = 0

    def enough() -> bool:
        nonlocal done
        done += pipeline.step(10_000)
        return done >= count

    until(enough)
    assert done == count
