"""`AsyncConsumeTransformWrite` with aiokafka; the counterpart of `test_consume.py` for the other libraries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import cycle
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from dualwrite.broker_emulator import BrokerConfig, Emulator
from dualwrite.errors import ConfigError
from dualwrite.recipes.consume.consume import ConsumeTransformWrite
from dualwrite.recipes.consume.consume_async import (
    AsyncConsumeTransformWrite,
    ConsumedRecord,
    OffsetsInDatabase,
    OffsetsInTransaction,
)
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualTransaction, AsyncDualWriter
from tests.crash.scenario import AtPoint
from tests.recipes.pipelines import PARTITIONS, Ends
from tests.support.awaited_databases import awaited_through_faults
from tests.support.consumers import aiokafka_consumer
from tests.support.databases import SqliteDatabase, event_bodies, events, unique
from tests.support.strikes import StruckExit
from tests.support.writers import got


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    config = BrokerConfig(
        offsets_topic_num_partitions=1, transaction_state_log_num_partitions=1, group_initial_rebalance_delay_ms=0
    )
    with Emulator(config=config, topics={"in": PARTITIONS, "out": 1}) as running:
        yield running


class Site(Ends):
    """One input topic, one table, one output topic, and the awaited pipelines between them."""

    def __init__(self, emulator: Emulator, database: SqliteDatabase, place: str, runner: asyncio.Runner) -> None:
        super().__init__(emulator, database)
        self.runner = runner
        self.place = place
        self.engine: AsyncEngine = awaited_through_faults(database, "aiosqlite")
        self._number = 0

    def writer(self, transactional_id: str = "", **settings: Any) -> AsyncDualWriter:
        return AsyncDualWriter(
            self.engine,
            bootstrap_servers=self.emulator.bootstrap_servers,
            transactional_id=transactional_id or unique("mover"),
            **settings,
        )

    @asynccontextmanager
    async def pipeline(
        self, handle: Any = None, writer: Any = None, auto_offset_reset: str = "earliest", **options: Any
    ) -> AsyncIterator[AsyncConsumeTransformWrite]:
        offsets = OffsetsInDatabase(self.engine) if self.place == "database" else OffsetsInTransaction()
        async with (
            writer or self.writer() as used,
            aiokafka_consumer(self.emulator.bootstrap_servers, "movers", auto_offset_reset=auto_offset_reset) as read,
        ):
            yield AsyncConsumeTransformWrite(used, read, ["in"], handle or self.copy, offsets=offsets, **options)

    async def copy(self, tx: AsyncDualTransaction, record: ConsumedRecord) -> None:
        assert record.value is not None
        await self.insert(tx, record.value.decode())
        tx.send("out", record.value)

    async def insert(self, tx: AsyncDualTransaction, body: str) -> None:
        """No constraint keeps a second row of the same record out."""
        self._number += 1
        await tx.connection.execute(sa.insert(events), {"id": self._number, "event_key": "k", "body": body})


@pytest.fixture(params=["database", "transaction"])
def site(request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path) -> Iterator[Site]:
    database = SqliteDatabase(tmp_path)
    with asyncio.Runner() as runner:
        made = Site(emulator, database, request.param, runner)
        yield made
        runner.run(made.engine.dispose())
    database.close()


async def carry(pipeline: AsyncConsumeTransformWrite, count: int) -> None:
    """Step until so many records were taken over."""
    done = 0
    while done < count:
        done += await pipeline.step(50)
    assert done == count


async def test_a_pipeline_and_its_successor_continue_at_the_writes(site: Site) -> None:
    site.fill("a", "b", "c")
    async with site.pipeline(max_records=2) as first:
        await carry(first, 3)
    await asyncio.to_thread(site.fill, "d", "e")
    async with site.pipeline() as second:
        await carry(second, 2)
    site.assert_carried("a", "b", "c", "d", "e")


class Interrupted:
    """A writer with an action before its first block, as while its task sleeps between reading and writing."""

    is_pool = True  # the id is not recovered by the pipeline

    def __init__(self, writer: AsyncDualWriter, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self._writer = writer
        self.backend = writer.backend
        self.producer_settings = writer.producer_settings
        self._meanwhile: Callable[[], Awaitable[None]] | None = meanwhile

    async def __aenter__(self) -> Interrupted:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._writer.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncDualTransaction]:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        async with self._writer.transaction() as tx:
            yield tx


async def test_a_consumer_that_lost_its_partitions_writes_nothing(site: Site) -> None:
    site.fill("a", "b")

    async def lose() -> None:
        zombie._steps._consumer._consumer.unsubscribe()  # type: ignore[attr-defined]
        await carry(successor, 2)
        zombie._steps._subscribed = False  # it wakes up, finds out, and joins again

    async with (
        site.pipeline() as successor,
        site.pipeline(writer=Interrupted(site.writer(), lose)) as zombie,
    ):
        done = 0
        while len(event_bodies(site.database)) < 2:
            done += await zombie.step(50)
        assert done == 0
        await asyncio.to_thread(site.fill, "c", "d")
        while len(event_bodies(site.database)) < 4:
            await zombie.step(50)
            await successor.step(50)
    site.assert_carried("a", "b", "c", "d")


async def test_a_successor_waits_for_transactions_in_doubt_or_continues_at_the_rows(site: Site) -> None:
    """As after a crash between the two commits. aiokafka by itself would read the records again."""

    def away() -> None:
        raise CrashError

    site.fill("a", "b")
    first = site.writer("one", pause=AtPoint(PausePoint.AFTER_DATABASE_COMMIT, away))
    async with site.pipeline(writer=first) as pipeline:
        with pytest.raises(CrashError):
            await carry(pipeline, 2)
    await asyncio.to_thread(site.fill, "c", "d")
    async with site.pipeline() as successor:
        for _ in range(4):
            if site.place == "transaction":
                assert await successor.step(50) == 0
        async with site.writer("one") as recovering:
            await recovering.recover()
        await carry(successor, 2)
    site.assert_carried("a", "b", "c", "d")


class CrashError(Exception):
    pass


@pytest.mark.parametrize("site", ["database"], indirect=True)
async def test_a_partition_without_any_offset_is_named(site: Site) -> None:
    site.fill("a")
    async with site.pipeline(auto_offset_reset="none") as pipeline:
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"has an offset of in-\d(, in-1)? for this group"):
                await carry(pipeline, 1)
    assert event_bodies(site.database) == []


async def test_records_of_a_poll_that_was_interrupted_are_read_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a partition that has no offset yet, by a signal when aiokafka has given them out."""
    site.fill("a", "b", "c", "d")
    async with site.pipeline(max_records=1) as pipeline:
        side: Any = pipeline._steps._consumer
        getmany = side._consumer.getmany
        strikes = cycle([True, False])

        async def struck(**named: Any) -> Any:
            found = await getmany(**named)
            if found and next(strikes):
                raise StruckExit
            return found

        monkeypatch.setattr(side._consumer, "getmany", struck)
        while len(event_bodies(site.database)) < 4:
            with suppress(StruckExit):
                await pipeline.step(50)
    site.assert_carried("a", "b", "c", "d")


BREAKS_THE_PROMISE: dict[str, tuple[dict[str, Any], str]] = {
    "auto commit": ({"enable_auto_commit": True}, "commits offsets automatically"),
    "isolation": ({"isolation_level": "read_uncommitted"}, "may still be aborted"),
    "deserializer": ({"value_deserializer": bytes.decode}, "deserialize in the handler"),
    "group": ({"group_id": None}, "has no group"),
}
KAFKA_PYTHON = "kafka.KafkaConsumer", ConsumeTransformWrite, r"a kafka\.KafkaConsumer or a confluent_kafka\.Consumer"
AIOKAFKA = "aiokafka.AIOKafkaConsumer", AsyncConsumeTransformWrite, r"an aiokafka\.AIOKafkaConsumer"


@pytest.mark.filterwarnings("ignore:value_deserializer does not implement:DeprecationWarning")
@pytest.mark.parametrize(
    ("library", "setting"),
    [
        *((KAFKA_PYTHON, setting) for setting in BREAKS_THE_PROMISE if setting != "group"),
        *((AIOKAFKA, setting) for setting in BREAKS_THE_PROMISE),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
async def test_consumers_that_would_break_the_promise_are_refused(
    emulator: Emulator, library: tuple[str, Any, str], setting: str
) -> None:
    name, pipeline, takes = library
    given, said = BREAKS_THE_PROMISE[setting]
    safe = {"enable_auto_commit": False, "isolation_level": "read_committed", "group_id": "g"}
    consumer = resolve_name(name)(bootstrap_servers=emulator.bootstrap_servers, **(safe | given))
    with pytest.raises(ConfigError, match=said):
        pipeline(None, consumer, ["in"], None, offsets=OffsetsInTransaction())
    await got(getattr(consumer, "close", lambda: None)())
    with pytest.raises(ConfigError, match=f"takes {takes}"):
        pipeline(None, object(), ["in"], None, offsets=OffsetsInTransaction())
