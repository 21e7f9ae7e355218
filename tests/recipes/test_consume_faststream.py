"""`ExactlyOnce`, with a consumer that behaves as FastStream's may: it goes on behind errors, and loses partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import ConfigError, IllegalStateError, PartitionTakenOverError
from dualwrite.recipes.consume import faststream
from dualwrite.recipes.consume.consumed_offsets import OffsetsInDatabase
from dualwrite.recipes.consume.consumers import ConsumedRecord
from dualwrite.recipes.consume.faststream import ExactlyOnce
from dualwrite.recipes.consume.faststream_placing import Placing
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualTransaction, AsyncDualWriter
from tests.support.databases import SqliteDatabase, event_bodies, events, unique
from tests.support.topics import read_topic


class FakeConsumer:
    """One partition of a log whose records have these offsets, read from the position on."""

    group_id, member_id, group_instance_id = "billing", "m", None

    def __init__(self, offsets: Sequence[int]) -> None:
        self._offsets = offsets
        self.position = 0
        self.generation_id = 1
        self.failing_seeks = 0

    def seek(self, partition: Any, offset: int) -> None:
        if self.failing_seeks:
            self.failing_seeks -= 1
            raise RuntimeError("the partition is not assigned")
        self.position = offset

    def deliver(self, count: int = 1) -> Any:
        """Return the next message, and stand behind it, as FastStream does before its subscriber is called."""
        found = [offset for offset in self._offsets if offset >= self.position][:count]
        self.position = found[-1] + 1
        raw = tuple(SimpleNamespace(topic="in", partition=0, offset=offset, key=None, value=str(offset).encode(),
                                    headers=(), timestamp=0) for offset in found)  # fmt: skip
        return SimpleNamespace(raw_message=raw, consumer=self, committed=None)

    @property
    def is_at_end(self) -> bool:
        return self.position > self._offsets[-1]


class Subscribed(ExactlyOnce):
    """FastStream calls it twice: to parse a delivered message, and then to take it."""

    async def take(self, message: Any) -> None:
        await self.see(message)
        await super().take(message)

    async def see(self, message: Any) -> None:
        message.committed = (await self._parse(message.raw_message, parsed)).committed


async def parsed(raw: Any) -> Any:
    """Return a message that is not used."""
    return SimpleNamespace()


class Site:
    def __init__(self, database: SqliteDatabase, emulator: Emulator) -> None:
        self.database = database
        self.emulator = emulator
        self.topic = unique("out")
        self.fails: set[str] = set()
        emulator.create_topic(self.topic)

    async def handle(self, tx: AsyncDualTransaction, record: ConsumedRecord) -> None:
        body = (record.value or b"").decode()
        await tx.connection.execute(sa.insert(events), {"id": record.offset, "event_key": "k", "body": body})
        tx.send(self.topic, body)
        if body in self.fails:
            raise ValueError(body)

    @asynccontextmanager
    async def member(self, **options: Any) -> AsyncIterator[Subscribed]:
        engine = create_async_engine(self.database.url.set(drivername="sqlite+aiosqlite"))
        servers = self.emulator.bootstrap_servers
        async with AsyncDualWriter(engine, bootstrap_servers=servers, transactional_id=unique("member")) as writer:
            given = {"offsets": OffsetsInDatabase(engine), **options}
            member = Subscribed(writer, self.handle, group_id="billing", **given)
            member._placing.subscriber = SimpleNamespace(_broker_middlewares=())
            yield member
        await engine.dispose()

    def assert_written(self, *offsets: int) -> None:
        """Both sides have these records, once and in order."""
        expected = [str(offset) for offset in offsets]
        assert event_bodies(self.database) == expected
        assert [value for _, value in read_topic(self.emulator.bootstrap_servers, self.topic)] == expected


@pytest.fixture
def site(tmp_path: Path, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(faststream, "FIRST_PAUSE_S", 0)
    monkeypatch.setattr(Placing, "positions", AsyncMock(return_value={}))  # there is no log to look at
    database = SqliteDatabase(tmp_path)
    yield Site(database, emulator)
    database.close()


async def drain(member: ExactlyOnce, consumer: FakeConsumer, count: int = 1) -> None:
    while not consumer.is_at_end:
        await member.take(consumer.deliver(count))


@pytest.mark.parametrize("count", [1, 3])
async def test_each_record_is_written_once_although_others_read_it_again(site: Site, count: int) -> None:
    async with site.member() as first:
        await drain(first, FakeConsumer([0, 1, 2, 3]), count)
    async with site.member() as second:  # the group has no offsets in Kafka: it starts at the beginning
        consumer = FakeConsumer([0, 1, 2, 3, 4, 7, 8])  # a marker, and compacted records
        await second.take(consumer.deliver())
        assert consumer.position == 4  # skipped to the row
        await drain(second, consumer, count)
    site.assert_written(0, 1, 2, 3, 4, 7, 8)


@pytest.mark.parametrize("failing_seeks", [0, 1, 2])
async def test_nothing_behind_a_failed_record_is_written_first(site: Site, failing_seeks: int) -> None:
    """Its partition may be gone when the consumer is to be put back; the next record is compared with the row."""
    async with site.member() as member:
        consumer = FakeConsumer(range(6))
        for failing in ("0", "2"):
            site.fails = {failing}
            consumer.failing_seeks = failing_seeks
            with pytest.raises(ValueError, match=failing):
                await drain(member, consumer)
        site.fails.clear()
        await drain(member, consumer)
    site.assert_written(0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize("shared", [False, True])
async def test_of_two_consumers_one_writes(site: Site, shared: bool) -> None:
    """Also in one process, with one `OffsetsInDatabase`."""
    engine = create_async_engine(site.database.url.set(drivername="sqlite+aiosqlite"))
    options = {"offsets": OffsetsInDatabase(engine)} if shared else {}
    async with site.member(**options) as sleeper, site.member(**options) as successor:
        slow, fast = FakeConsumer([0, 1, 2, 3]), FakeConsumer([0, 1, 2, 3])
        await sleeper.take(slow.deliver())
        await drain(successor, fast)
        with pytest.raises(PartitionTakenOverError):
            await sleeper.take(slow.deliver())
        await drain(sleeper, slow)
    await engine.dispose()
    site.assert_written(0, 1, 2, 3)


@pytest.mark.parametrize("generations", [(1, 2), (-1, -1)], ids=["another", "not a member"])
async def test_a_new_generation_is_compared_with_the_rows(site: Site, generations: tuple[int, int]) -> None:
    """The partition was away, and comes back further on than where it was left."""
    async with site.member() as member:
        consumer = FakeConsumer([0, 1, 2, 3])
        consumer.generation_id = generations[0]
        await member.take(consumer.deliver())
        consumer.generation_id, consumer.position = generations[1], 3
        await drain(member, consumer)
    site.assert_written(0, 1, 2, 3)


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_a_message_that_did_not_reach_take_is_read_again(
    site: Site, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    """FastStream has logged an error, and goes on. A gap in the log behind the message is a different case."""
    async with site.member() as member:
        consumer = FakeConsumer([0, 1, 2, 5, 6])
        await member.take(consumer.deliver())
        for _ in range(times):
            await member.see(consumer.deliver(2))  # 1 and 2
            await member.take(consumer.deliver())
            assert consumer.position == 1
        await drain(member, consumer)
    site.assert_written(0, 1, 2, 5, 6)
    assert caplog.text.count("without reaching take()") == times - 1


async def test_a_dropped_message_of_a_partition_that_was_away_is_the_others(site: Site) -> None:
    async with site.member() as loser, site.member() as successor:
        slow, fast = FakeConsumer([0, 1, 2, 3]), FakeConsumer([0, 1, 2, 3])
        await loser.see(slow.deliver())
        await drain(successor, fast)
        slow.generation_id = 2
        await drain(loser, slow)
    site.assert_written(0, 1, 2, 3)


async def test_without_the_parser_nothing_is_taken(site: Site) -> None:
    async with site.member() as member:
        with pytest.raises(ConfigError, match="was not made by this ExactlyOnce"):
            await ExactlyOnce.take(member, FakeConsumer([0]).deliver())
    site.assert_written()


async def test_a_poison_record_is_set_aside_and_its_neighbours_are_written(site: Site) -> None:
    refused: list[int] = []

    async def poison(tx: AsyncDualTransaction, record: ConsumedRecord, error: Exception) -> None:
        refused.append(record.offset)

    async with site.member(poison=poison) as member:
        site.fails = {"1"}
        await drain(member, FakeConsumer([0, 1, 2]), 3)
        await drain(member, FakeConsumer([0, 1, 2]), 3)
    site.assert_written(0, 2)
    assert refused == [1]


async def test_a_message_is_divided_around_the_records_at_fault(site: Site) -> None:
    """So that each record is handled twice at most, but for those at fault."""
    handled: list[str] = []
    handle = site.handle

    async def counted(tx: AsyncDualTransaction, record: ConsumedRecord) -> None:
        handled.append((record.value or b"").decode())
        await handle(tx, record)

    async def poison(tx: AsyncDualTransaction, record: ConsumedRecord, error: Exception) -> None: ...

    site.handle = counted  # type: ignore[method-assign]
    async with site.member(poison=poison) as member:
        site.fails = {"3", "6"}
        await drain(member, FakeConsumer(range(8)), 8)
    site.assert_written(0, 1, 2, 4, 5, 7)
    assert "".join(handled) == "012301234564567"


async def test_without_poison_those_before_the_record_at_fault_are_written(site: Site) -> None:
    async with site.member() as member:
        consumer = FakeConsumer([0, 1, 2])
        site.fails = {"1"}
        for _ in range(2):
            with pytest.raises(ValueError, match="1"):
                await member.take(consumer.deliver(3))
            site.assert_written(0)
            assert consumer.position == 0  # put back; written records are skipped
        site.fails.clear()
        await drain(member, consumer, 3)
    site.assert_written(0, 1, 2)


async def test_a_second_message_of_a_partition_has_to_wait(site: Site) -> None:
    async with site.member() as member:
        consumer = FakeConsumer([0, 1, 2])
        first, second = consumer.deliver(), consumer.deliver()
        results = await asyncio.gather(member.take(first), member.take(second), return_exceptions=True)
        assert [type(result) for result in results] == [type(None), IllegalStateError]
        await drain(member, consumer)
    site.assert_written(0, 1, 2)


async def test_a_third_message_does_not_overtake_the_second_one_that_had_to_wait(site: Site) -> None:
    """A subscriber does not wait for `take`, and they have been delivered before the first one is written."""
    async with site.member() as member:
        consumer = FakeConsumer([0, 1, 2])
        first, second, third = consumer.deliver(), consumer.deliver(), consumer.deliver()
        await member.see(third)
        results = await asyncio.gather(member.take(first), member.take(second), return_exceptions=True)
        assert [type(result) for result in results] == [type(None), IllegalStateError]
        await ExactlyOnce.take(member, third)
        await drain(member, consumer)
    site.assert_written(0, 1, 2)
