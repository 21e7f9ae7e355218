"""Blocks that are stored while Kafka is away, with the writers for asyncio; pools and Sessions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualWriter
from dualwrite.recipes.sqlalchemy.sessions import current_dual_write, dual_write_sessions, send
from tests.crash.conftest import AnyAwaited
from tests.crash.conftest import awaited as awaited
from tests.crash.matrix import cancel
from tests.crash.psycopg_scenario import INSERT, awaited_psycopg_scenario, conninfo_of
from tests.crash.scenario import AtPoint, Scenario, event_texts
from tests.recipes.pools import QUIET_LEASE_MS, prefix_of
from tests.recipes.test_stored_blocks import AWAY, kafka_away, noticed, published, stored_rows, write
from tests.support.conditions import until
from tests.support.databases import Database, PostgresDatabase, event_bodies, unique
from tests.support.event_class import Event
from tests.support.topics import read_topic


@pytest.mark.parametrize("point", [PausePoint.AFTER_LOCK, PausePoint.BEFORE_DATABASE_COMMIT])
def test_a_cancellation_while_a_block_is_stored(awaited: AnyAwaited, emulator: Emulator, point: PausePoint) -> None:
    cancels = AtPoint(point, cancel, armed=False)
    writer: Any
    with awaited.writer(cancels, **AWAY) as writer:
        with kafka_away(emulator):
            assert write(awaited, writer, 1).outcome is Outcome.STORED
            cancels.arm()
            seen = awaited.write_events(writer, 2)
            assert isinstance(seen.error, asyncio.CancelledError)
            if seen.outcome is None:
                writer.recover()
            bodies = event_texts("2")
            awaited.expected += bodies if bodies[0] in event_bodies(awaited.database) else []
        published(writer)
        assert write(awaited, writer, 3).outcome is Outcome.COMMITTED
    assert stored_rows(awaited) == []
    awaited.assert_both_sides_agree()


# ---- a pool ---------------------------------------------------------------------------------------------------------


def test_the_blocks_of_a_pool_are_stored_and_published(postgres: PostgresDatabase, emulator: Emulator) -> None:
    with awaited_psycopg_scenario(postgres, emulator) as scenario:
        scenario.transactional_id = f"{unique('pool')}-0"

        async def write(pool: AsyncPsycopgDualWriter, number: int) -> Outcome | None:
            async with pool.transaction() as tx:
                await tx.connection.execute(INSERT, (number, str(number)))
                tx.send(scenario.topic, key="k", value=str(number))
            return tx.outcome

        async def run() -> None:
            async with AsyncPsycopgDualWriter(
                conninfo_of(postgres.engine.url),
                prefix=prefix_of(scenario),
                bootstrap_servers=emulator.bootstrap_servers,
                lease_ms=QUIET_LEASE_MS,
                **AWAY,
            ) as pool:
                assert await write(pool, 0) is Outcome.COMMITTED
                emulator.crash_node(0)
                found = await asyncio.gather(*(write(pool, number) for number in range(1, 20)))
                assert set(found) == {Outcome.STORED}
                emulator.start_node(0)
                await noticed(pool.pool.availability)
                await asyncio.to_thread(until, lambda: not pool.status.is_diverted)

        scenario.run(run())
        in_topic = [value for _, value in read_topic(emulator.bootstrap_servers, scenario.topic)]
        assert sorted(in_topic) == sorted(event_bodies(postgres))
        assert len(in_topic) == 20


# ---- Sessions -------------------------------------------------------------------------------------------------------


def test_the_sessions_of_an_application_are_stored_and_published(database: Database, emulator: Emulator) -> None:
    scenario = Scenario(database, emulator)
    with scenario.writer(**AWAY) as writer:
        sessions = sessionmaker(database.engine)
        dual_write_sessions(sessions, writer)

        def put(number: int) -> Outcome | None:
            with sessions() as session:
                session.add(Event(number))
                send(session, scenario.topic, key="k", value=str(number))
                write = current_dual_write(session)
                session.commit()
            scenario.expected.append(str(number))
            return write.outcome

        assert put(1) is Outcome.COMMITTED
        with kafka_away(emulator):
            assert [put(number) for number in (2, 3)] == [Outcome.STORED] * 2
        until(lambda: not writer.coordinator.owned.availability.is_away)
        assert put(4) is Outcome.STORED
        assert stored_rows(scenario) == []
        assert put(5) is Outcome.COMMITTED
    scenario.assert_both_sides_agree()


# ---- stored contents ------------------------------------------------------------------------------------------------


def test_a_record_is_published_as_it_was_sent(database: Database, emulator: Emulator) -> None:
    scenario = Scenario(database, emulator)
    with scenario.writer(**AWAY) as writer, kafka_away(emulator), writer.transaction() as tx:
        tx.connection.execute(sa.select(1))
        tx.send(scenario.topic, None, b"\0key", {"h": b"1", "null": None}, partition=0, timestamp_ms=4711)
    with scenario.writer(**AWAY) as writer:
        writer.recover()
    (record,) = emulator.records(scenario.topic)
    assert (record.value, record.key, record.timestamp) == (None, b"\0key", 4711)
    assert list(record.headers) == [("h", b"1"), ("null", None)]
