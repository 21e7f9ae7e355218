"""Blocks on psycopg alone: entered once, dropped without an end; and Sessions, which need SQLAlchemy."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from dualwrite import dual_write_sessions
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import ConfigError, IllegalStateError
from dualwrite.outcome import Outcome
from dualwrite.recipes.psycopg.writer import PsycopgDualTransaction
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualWriter
from tests.crash.psycopg_scenario import INSERT, AwaitedPsycopgScenario, PsycopgScenario
from tests.support.databases import PostgresDatabase


@pytest.fixture
def scenario(postgres: PostgresDatabase, emulator: Emulator) -> PsycopgScenario:
    return PsycopgScenario(postgres, emulator)


@pytest.fixture
def awaited_scenario(postgres: PostgresDatabase, emulator: Emulator) -> Iterator[AwaitedPsycopgScenario]:
    made = AwaitedPsycopgScenario(postgres, emulator)
    yield made
    made.runner.close()


def put(tx: PsycopgDualTransaction, scenario: PsycopgScenario, number: int) -> None:
    tx.connection.execute(INSERT, (number, str(number)))
    tx.send(scenario.topic, key="k", value=str(number))


def test_a_block_is_entered_once(scenario: PsycopgScenario) -> None:
    with scenario.writer() as writer:
        block = writer.transaction()
        with block as tx:
            with pytest.raises(IllegalStateError, match="already running"):
                block.__enter__()
            put(tx, scenario, 1)
    scenario.assert_both_sides_agree("1")


async def test_a_block_in_a_loop_that_is_dropped_is_rolled_back(awaited_scenario: AwaitedPsycopgScenario) -> None:
    scenario = awaited_scenario

    async def is_written(writer: AsyncPsycopgDualWriter) -> bool:
        with suppress(IllegalStateError):
            async with writer.transaction() as another:
                await scenario.insert(another, 2, "2")
                another.send(scenario.topic, key="k", value="2")
            return True
        return False

    async with scenario.awaited_writer() as writer:
        block = writer.transaction()
        tx = await block.__aenter__()
        await scenario.insert(tx, 1, "1")
        tx.send(scenario.topic, key="k", value="1")
        del block
        gc.collect()
        async with asyncio.timeout(60):
            while tx.outcome is not Outcome.ROLLED_BACK:  # noqa: ASYNC110 - nothing could set an event
                await asyncio.sleep(0.01)
            while not await is_written(writer):  # noqa: ASYNC110 - the id is given back a moment later
                await asyncio.sleep(0.01)
    scenario.assert_both_sides_agree("2")


def test_sessions_need_a_writer_on_sqlalchemy(scenario: PsycopgScenario) -> None:
    sessions = sessionmaker(sa.create_engine("sqlite://"))
    writer: Any = scenario.writer()
    with writer, pytest.raises(ConfigError, match="takes a writer on SQLAlchemy, not PsycopgDualWriter"):
        dual_write_sessions(sessions, writer)
