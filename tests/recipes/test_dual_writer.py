"""`DualWriter` without crashes: the meaning of a block, and harmless misuse."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker
from sqlalchemy.orm.exc import DetachedInstanceError

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import (
    DualWriteError,
    IllegalStateError,
    InvalidRecordError,
    KafkaTimeoutError,
    StateRowError,
    TransactionDoomedError,
    TransactionEndedInsideError,
    TransactionTooLargeError,
)
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.scenario import OrdinaryError, Scenario
from tests.recipes.steps import break_a_statement, put
from tests.support.databases import Database, events
from tests.support.narrowing import current
from tests.support.threads import in_threads
from tests.support.topics import read_topic


class Unprintable:
    def __str__(self) -> str:
        raise OrdinaryError


@contextmanager
def plain_session(engine: sa.Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


@contextmanager
def begun_session(engine: sa.Engine) -> Iterator[Session]:
    with Session(engine) as session, session.begin():
        yield session


@pytest.mark.parametrize("bind", [plain_session, begun_session, sa.Engine.connect, sa.Engine.begin])
def test_the_callers_own_session_or_connection(
    scenario: Scenario, writer: DualWriter, bind: Callable[[sa.Engine], AbstractContextManager[Session | sa.Connection]]
) -> None:
    with bind(scenario.database.engine) as bound, writer.transaction(bound) as tx:
        put(tx, scenario, 1)
    scenario.expected.append("1")
    with bind(scenario.database.engine) as bound, pytest.raises(OrdinaryError), writer.transaction(bound) as tx:
        put(tx, scenario, 2)
        raise OrdinaryError
    scenario.assert_both_sides_agree()


def test_what_the_session_did_before_the_block_belongs_to_it(scenario: Scenario, writer: DualWriter) -> None:
    if scenario.database.engine.dialect.name == "sqlite":
        writer.recover()  # makes the row: otherwise it would wait for the session's write lock
    with Session(scenario.database.engine) as session:
        session.execute(sa.insert(events), {"id": 1, "event_key": "k", "body": "1"})
        with writer.transaction(session) as tx:
            tx.send(scenario.topic, key="k", value="1")
    scenario.assert_both_sides_agree("1")


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


def test_the_outcome_and_the_state_that_was_stored(scenario: Scenario, writer: DualWriter) -> None:
    with writer.transaction() as tx:
        assert current(tx.outcome) is None
        assert current(tx.prepared_state).is_empty
        put(tx, scenario, 1)
    assert tx.outcome is Outcome.COMMITTED
    assert tx.prepared_state == scenario.row()
    assert tx.transactional_id == scenario.transactional_id
    with pytest.raises(IllegalStateError, match="ended"):
        tx.send(scenario.topic, value="late")


def test_where_a_record_is_stored_is_known_afterwards(scenario: Scenario, writer: DualWriter) -> None:
    with writer.transaction() as tx:
        records = [tx.send(scenario.topic, key="k", value=str(number)) for number in range(3)]
        with pytest.raises(IllegalStateError, match="at the end of the block"):
            _ = records[0].metadata
    assert [record.metadata.offset for record in records] == [0, 1, 2]


def test_each_dual_write_leaves_another_state(scenario: Scenario, writer: DualWriter) -> None:
    rows = []
    for number in range(3):
        with writer.transaction() as tx:
            put(tx, scenario, number)
        rows.append(scenario.row())
    assert len(set(rows)) == 3


def test_an_exception_is_the_callers_own_and_neither_side_is_written(scenario: Scenario, writer: DualWriter) -> None:
    mine = OrdinaryError("mine")
    with pytest.raises(OrdinaryError) as caught, writer.transaction() as tx:
        put(tx, scenario, 1)
        raise mine
    assert caught.value is mine
    assert tx.outcome is Outcome.ROLLED_BACK
    assert writer.state is SlotState.NEW
    assert scenario.emulator.transactions() == []
    scenario.assert_both_sides_agree()


def test_a_statement_error_that_ends_the_block_is_the_databases_own(scenario: Scenario, writer: DualWriter) -> None:
    with writer.transaction() as tx:
        put(tx, scenario, 1)
    scenario.expected.append("1")
    with pytest.raises(sa.exc.IntegrityError), writer.transaction() as tx:
        put(tx, scenario, 2)
        break_a_statement(tx.session.execute)
    scenario.assert_both_sides_agree()


@pytest.mark.parametrize("way", ["session", "connection"])
def test_a_swallowed_statement_error_ends_in_an_exception(scenario: Scenario, writer: DualWriter, way: str) -> None:
    with writer.transaction() as tx:
        put(tx, scenario, 1)
    scenario.expected.append("1")
    with pytest.raises(TransactionDoomedError) as caught, writer.transaction() as tx:
        put(tx, scenario, 2)
        with pytest.raises(sa.exc.IntegrityError):
            break_a_statement(tx.connection.execute if way == "connection" else tx.session.execute)
    assert isinstance(caught.value.__cause__, Exception)
    scenario.assert_both_sides_agree()


def test_an_error_that_a_savepoint_undid_is_no_error(scenario: Scenario, writer: DualWriter) -> None:
    with writer.transaction() as tx:
        put(tx, scenario, 1)
    with writer.transaction() as tx:
        put(tx, scenario, 2)
        with pytest.raises(sa.exc.IntegrityError), tx.session.begin_nested():
            break_a_statement(tx.session.execute)
        put(tx, scenario, 3)
    scenario.assert_both_sides_agree("1", "2", "3")


def test_a_savepoint_that_is_rolled_back_takes_its_records_with_it(scenario: Scenario, writer: DualWriter) -> None:
    with writer.transaction() as tx:
        put(tx, scenario, 1)
        with tx.session.begin_nested():
            put(tx, scenario, 2)
            with pytest.raises(OrdinaryError), tx.session.begin_nested():
                put(tx, scenario, 3)
                raise OrdinaryError
            put(tx, scenario, 4)
        outer = tx.session.begin_nested()
        put(tx, scenario, 5)
        with tx.session.begin_nested():
            put(tx, scenario, 6)
        outer.rollback()
        put(tx, scenario, 7)
    scenario.assert_both_sides_agree("1", "2", "4", "7")


def test_a_savepoint_that_is_rolled_back_before_its_first_statement(scenario: Scenario, writer: DualWriter) -> None:
    with writer.transaction() as tx:
        connection = tx.connection
        put(tx, scenario, 1)
        with pytest.raises(OrdinaryError), tx.session.begin_nested():
            tx.send(scenario.topic, value="only sent")
            raise OrdinaryError
        with pytest.raises(OrdinaryError), tx.session.begin_nested():
            connection.execute(sa.insert(events), {"id": 2, "event_key": "k", "body": "on the connection"})
            raise OrdinaryError
    scenario.assert_both_sides_agree("1")


def test_serializers_are_asked_once_and_when_a_record_is_sent(scenario: Scenario) -> None:
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


def test_more_records_than_may_be_kept(scenario: Scenario) -> None:
    with scenario.writer(max_buffered_bytes=10_000) as writer:
        with pytest.raises(TransactionTooLargeError, match="max_buffered_bytes=10000"), writer.transaction() as tx:
            put(tx, scenario, 1)
            tx.send(scenario.topic, value=b"x" * 9_900)
        with writer.transaction() as tx:
            put(tx, scenario, 2)
    scenario.assert_both_sides_agree("2")


@pytest.mark.parametrize("swallow", [True, False])
@pytest.mark.parametrize("way", ["session", "connection"])
def test_a_commit_inside_the_block_is_refused(scenario: Scenario, writer: DualWriter, way: str, swallow: bool) -> None:
    with pytest.raises(TransactionEndedInsideError), writer.transaction() as tx:
        put(tx, scenario, 1)
        try:
            (tx.session if way == "session" else tx.connection).commit()
        except TransactionEndedInsideError:
            if not swallow:
                raise
    scenario.assert_both_sides_agree()


@pytest.mark.filterwarnings("ignore:transaction already deassociated")
@pytest.mark.parametrize("way", ["session", "connection"])
def test_a_rollback_inside_the_block_is_found(scenario: Scenario, writer: DualWriter, way: str) -> None:
    with pytest.raises(TransactionEndedInsideError), writer.transaction() as tx:
        put(tx, scenario, 1)
        (tx.session if way == "session" else tx.connection).rollback()
        tx.send(scenario.topic, value="2")
    scenario.assert_both_sides_agree()


def test_one_dual_write_at_a_time(scenario: Scenario, writer: DualWriter) -> None:
    with writer.transaction() as tx:
        put(tx, scenario, 1)
        with pytest.raises(IllegalStateError, match="already carries a dual write"), writer.transaction():
            pass
        with pytest.raises(IllegalStateError, match="leave its block"):
            writer.close()
    scenario.assert_both_sides_agree("1")


def test_without_records_it_is_a_database_transaction(scenario: Scenario, writer: DualWriter) -> None:
    with writer.transaction() as tx:
        tx.session.execute(sa.insert(events), {"id": 1, "event_key": "k", "body": "1"})
    assert tx.outcome is Outcome.COMMITTED
    assert tx.prepared_state.is_empty
    assert tx.transactional_id is None
    assert scenario.row().is_empty
    assert scenario.emulator.transactions() == []
    with writer.transaction() as tx:
        put(tx, scenario, 2)
    assert scenario.row() == tx.prepared_state


def test_without_statements_it_is_a_kafka_transaction(scenario: Scenario, writer: DualWriter) -> None:
    with writer.transaction() as tx:
        tx.send(scenario.topic, key="k", value="1")
    assert read_topic(scenario.emulator.bootstrap_servers, scenario.topic) == [("k", "1")]


def test_a_refused_record_rolls_both_sides_back(scenario: Scenario, writer: DualWriter) -> None:
    with pytest.raises(DualWriteError), writer.transaction() as tx:
        put(tx, scenario, 1)
        tx.send(scenario.topic, value=b"x" * 5_000_000)
    with writer.transaction() as tx:
        put(tx, scenario, 2)
    scenario.assert_both_sides_agree("2")


def test_a_broker_that_is_away_changes_nothing(database: Database, emulator: Emulator) -> None:
    scenario = Scenario(database, emulator)
    writer = DualWriter(
        database.engine, bootstrap_servers="127.0.0.1:1", transactional_id=scenario.transactional_id, max_block_ms=300
    )
    with pytest.raises(KafkaTimeoutError), writer.transaction() as tx:
        put(tx, scenario, 1)
    assert writer.state is SlotState.NEW
    writer.close()
    with scenario.writer() as working:
        assert scenario.write(working, 2).error is None
    scenario.assert_both_sides_agree()


def test_the_table_is_not_created_behind_ones_back(database: Database, emulator: Emulator) -> None:
    with (
        DualWriter(
            database.engine,
            bootstrap_servers=emulator.bootstrap_servers,
            transactional_id="careful",
            create_table=False,
        ) as writer,
        pytest.raises(StateRowError, match="create_state_table"),
        writer.transaction(),
    ):
        pass


def test_a_deleted_row_is_told_and_nothing_is_written(scenario: Scenario, writer: DualWriter) -> None:
    with writer.transaction() as tx:
        put(tx, scenario, 1)
    scenario.expected.append("1")
    with scenario.database.engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM kafka_transaction_state"))
    with pytest.raises(StateRowError, match="was deleted"), writer.transaction() as tx:
        put(tx, scenario, 2)
    scenario.assert_both_sides_agree()


def test_a_closed_writer_says_so(scenario: Scenario, writer: DualWriter) -> None:
    writer.close()
    writer.close()
    with pytest.raises(IllegalStateError, match="closed"), writer.transaction():
        pass


def test_a_connection_has_no_session(scenario: Scenario, writer: DualWriter) -> None:
    writer.recover()
    with scenario.database.engine.connect() as connection, writer.transaction(connection) as tx:
        with pytest.raises(IllegalStateError, match=r"tx\.connection"):
            _ = tx.session


def test_many_writers_side_by_side(database: Database, emulator: Emulator) -> None:
    """Every writer has its own id, and neither waits for nor disturbs another (on SQLite they queue for the file)."""
    scenarios = [Scenario(database, emulator) for _ in range(4)]

    def write_ten(index: int) -> None:
        with scenarios[index].writer() as writer:
            for number in range(10):
                with writer.transaction() as tx:
                    put(tx, scenarios[index], index * 10 + number)

    in_threads(*(partial(write_ten, index) for index in range(4)))
    for scenario in scenarios:
        scenario.assert_nothing_open()
    with database.engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(events)) == 40


class Mapped(DeclarativeBase):
    """The classes of this file."""


class Event(Mapped):
    """A row of the table of the tests."""

    __table__ = events.to_metadata(Mapped.metadata)


def test_objects_are_readable_after_the_block(scenario: Scenario, writer: DualWriter) -> None:
    with writer.transaction() as tx:
        event: Any = Event(id=1, event_key="k", body="1")
        tx.session.add(event)
        tx.send(scenario.topic, key="k", value="1")
    assert (event.id, event.body) == (1, "1")
    with scenario.writer(session_factory=sessionmaker(scenario.database.engine)) as expiring:
        with expiring.transaction() as tx:
            event = Event(id=2, event_key="k", body="2")
            tx.session.add(event)
            tx.send(scenario.topic, key="k", value="2")
    with pytest.raises(DetachedInstanceError):
        event.body  # noqa: B018 - reading it is the test
    scenario.assert_both_sides_agree("1", "2")
