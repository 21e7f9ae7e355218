"""`DualWriter` without crashes: what `test_every_writer.py` does not say of all writers."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.delivery import Outbox
from dualwrite.errors import (
    InvalidRecordError,
    TransactionEndedInsideError,
)
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.scenario import OrdinaryError, Scenario
from tests.recipes.pools import make_pool
from tests.recipes.steps import put
from tests.support.databases import SqliteDatabase, event_bodies, events
from tests.support.topics import read_topic


class Unprintable:
    def __str__(self) -> str:
        raise OrdinaryError


def test_nothing_of_a_block_is_left_to_the_garbage_collector(scenario: Scenario, writer: DualWriter) -> None:
    """Otherwise the collector would run more often, and free the block's connection late."""
    gc.collect()
    gc.disable()
    try:
        with writer.transaction() as tx:
            put(tx, scenario, 1)
            connection = weakref.ref(tx.connection)
        del tx
        assert connection() is None
    finally:
        gc.enable()
    scenario.assert_both_sides_agree("1")


def test_a_written_out_savepoint_that_begins_sqlites_transaction_commits_it(
    sqlite: SqliteDatabase, emulator: Emulator
) -> None:
    scenario = Scenario(sqlite, emulator)
    with scenario.writer() as writer:
        with pytest.raises(TransactionEndedInsideError, match="permanent"), writer.transaction() as tx:
            tx.connection.execute(sa.text("SAVEPOINT s"))
            put(tx, scenario, 1)
            tx.connection.execute(sa.text("RELEASE s"))
    assert read_topic(emulator.bootstrap_servers, scenario.topic) == []
    assert event_bodies(sqlite) == ["1"]
    assert scenario.row().is_empty


def test_serializers_are_called_once_when_a_record_is_sent(scenario: Scenario) -> None:
    asked: list[object] = []

    def serialize(value: object) -> bytes:
        asked.append(value)
        return str(value).encode()

    with scenario.writer(value_serializer=serialize) as writer:
        with writer.transaction() as tx:
            tx.connection.execute(sa.insert(events), {"id": 1, "event_key": "k", "body": "5"})
            tx.send(scenario.topic, key="k", value=5)
            assert asked == [5]
        assert asked == [5]
        with pytest.raises(InvalidRecordError, match="serializer failed"), writer.transaction() as tx:
            put(tx, scenario, 2)
            tx.send(scenario.topic, key="k", value=Unprintable())
    scenario.assert_both_sides_agree("5")


@pytest.mark.parametrize("of_class", [False, True], ids=["engine", "class"])
def test_a_pool_on_sqlite_whose_listener_sends_begin(tmp_path: Path, emulator: Emulator, of_class: bool) -> None:
    """SQLAlchemy's documentation recommends it. The background begins in the same way, and publishes."""
    database = SqliteDatabase(tmp_path)
    scenario = Scenario(database, emulator)
    engine = database.engine
    sa.event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    listens = sa.Engine if of_class else engine

    @sa.event.listens_for(listens, "begin")
    def begin(connection: sa.Connection) -> None:
        if connection.dialect is engine.dialect:
            connection.exec_driver_sql("BEGIN")

    try:
        with make_pool(scenario, delivery=Outbox()) as pool:
            assert isinstance(pool, DualWriter)
            with pool.transaction() as tx:
                put(tx, scenario, 1)
            pool.recover()
    finally:
        sa.event.remove(listens, "begin", begin)
    assert [value for _, value in read_topic(emulator.bootstrap_servers, scenario.topic)] == ["1"]
