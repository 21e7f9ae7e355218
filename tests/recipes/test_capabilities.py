"""Features by database: `@transactional` beyond SQLAlchemy, and the refusals, which quote the table."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from dualwrite import Direct, dual_write_sessions
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import ConfigError, IllegalStateError
from dualwrite.outcome import Outcome
from dualwrite.recipes.capabilities import CANNOT, BackendName, Feature, assert_can
from dualwrite.recipes.psycopg.writer import PsycopgDualTransaction
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualWriter
from dualwrite.recipes.stores.rocksdb import RocksDbDualTransaction
from tests.crash.key_value_scenario import KeyValueScenario
from tests.crash.psycopg_scenario import INSERT, AwaitedPsycopgScenario, PsycopgScenario
from tests.support.databases import PostgresDatabase
from tests.support.key_value_stores import RocksDbStore, in_directory


@pytest.fixture
def scenario(postgres: PostgresDatabase, emulator: Emulator) -> PsycopgScenario:
    return PsycopgScenario(postgres, emulator)


@pytest.fixture
def awaited_scenario(postgres: PostgresDatabase, emulator: Emulator) -> Iterator[AwaitedPsycopgScenario]:
    made = AwaitedPsycopgScenario(postgres, emulator)
    yield made
    made.runner.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksDbStore]:
    made = in_directory(tmp_path)
    yield made
    made.close()


def put(tx: PsycopgDualTransaction, scenario: PsycopgScenario, number: int) -> None:
    tx.connection.execute(INSERT, (number, str(number)))
    tx.send(scenario.topic, key="k", value=str(number))


# ---- @transactional -----------------------------------------------------------------------------------------------


def test_calls_on_rocksdb_join_and_have_no_savepoints(store: RocksDbStore, emulator: Emulator) -> None:
    scenario = KeyValueScenario(store, emulator)
    with scenario.writer() as writer:

        @writer.transactional
        def place(tx: RocksDbDualTransaction, value: int) -> None:
            tx.put("lamps", value)
            tx.send(scenario.topic, key="k", value=str(value))

        with writer.transaction():
            place(1)
        assert store.db["lamps"] == 1
        with pytest.raises(ConfigError) as refused:
            writer.transactional(inside="savepoint")
    assert CANNOT[BackendName.ROCKSDB, Feature.SAVEPOINTS] in str(refused.value)


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


# ---- the table ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("backend", "feature"), CANNOT)
def test_a_refusal_says_why(backend: BackendName, feature: Feature) -> None:
    with pytest.raises(ConfigError) as refused:
        assert_can(backend, feature)
    assert str(refused.value) == f"{backend} cannot carry {feature}: {CANNOT[backend, feature]}"


def test_sessions_need_a_writer_on_sqlalchemy(scenario: PsycopgScenario) -> None:
    sessions = sessionmaker(sa.create_engine("sqlite://"))
    writer: Any = scenario.writer()
    with writer, pytest.raises(ConfigError, match="psycopg cannot carry dual_write_sessions: only SQLAlchemy has"):
        dual_write_sessions(sessions, writer)


@pytest.mark.parametrize("setting", [{"delivery": Direct()}, {"create_table": False}, {"schema": "other"}])
def test_settings_of_tables_are_refused_where_there_are_none(
    store: RocksDbStore, emulator: Emulator, setting: dict[str, Any]
) -> None:
    (name,) = setting
    says = CANNOT[BackendName.ROCKSDB, Feature.DELIVERY] if name == "delivery" else f"{name} cannot be set here"
    with pytest.raises(ConfigError) as refused:
        KeyValueScenario(store, emulator).writer(**setting)
    assert says in str(refused.value)
