"""Savepoints: a part of a dual write that may fail without failing the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from dualwrite.errors import (
    IllegalStateError,
    InvalidRecordError,
    TransactionDoomedError,
    TransactionEndedInsideError,
)
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.sqlalchemy.writer import DualTransaction, DualWriter
from tests.crash.scenario import InjectedError, Scenario
from tests.recipes.steps import break_a_statement, put
from tests.support.databases import SqliteDatabase, event_bodies, events
from tests.support.topics import read_topic


@pytest.fixture(params=["session", "connection"])
def tx(request: pytest.FixtureRequest, scenario: Scenario, writer: DualWriter) -> Iterator[DualTransaction]:
    """Open a block that has written 1, and commit it after the test."""
    with _bound(request.param, scenario) as bind, writer.transaction(bind) as tx:
        put(tx, scenario, 1)
        scenario.expected.append("1")
        yield tx
    scenario.assert_both_sides_agree()


@contextmanager
def _bound(kind: str, scenario: Scenario) -> Iterator[Session | sa.Connection]:
    if kind == "session":
        with Session(scenario.database.engine) as session:
            yield session
    else:
        with scenario.database.engine.connect() as connection:
            yield connection


def test_what_is_left_normally_is_part_of_the_write(scenario: Scenario, tx: DualTransaction) -> None:
    with tx.savepoint() as same:
        assert same is tx
        put(tx, scenario, 2)
    scenario.expected.append("2")


def test_an_exception_undoes_both_sides_and_is_raised(scenario: Scenario, tx: DualTransaction) -> None:
    with pytest.raises(InjectedError), tx.savepoint():
        put(tx, scenario, 2)
        raise InjectedError
    put(tx, scenario, 3)
    scenario.expected.append("3")


def test_a_failed_statement_costs_its_savepoint_only(scenario: Scenario, tx: DualTransaction) -> None:
    with pytest.raises(sa.exc.IntegrityError), tx.savepoint():
        put(tx, scenario, 2)
        break_a_statement(tx.connection.execute)


def test_a_refused_record_costs_its_savepoint_only(scenario: Scenario, tx: DualTransaction) -> None:
    with pytest.raises(InvalidRecordError), tx.savepoint():
        put(tx, scenario, 2)
        tx.send(scenario.topic, value=object())


def test_savepoints_inside_savepoints(scenario: Scenario, tx: DualTransaction) -> None:
    with tx.savepoint():
        put(tx, scenario, 2)
        with pytest.raises(InjectedError), tx.savepoint():
            put(tx, scenario, 3)
            with tx.savepoint():
                put(tx, scenario, 4)
            raise InjectedError
        put(tx, scenario, 5)
    scenario.expected += ["2", "5"]


def test_a_refused_record_that_is_swallowed_inside_its_savepoint_dooms_the_write(
    scenario: Scenario, writer: DualWriter
) -> None:
    with pytest.raises(TransactionDoomedError) as caught, writer.transaction() as tx:
        put(tx, scenario, 1)
        with tx.savepoint():
            put(tx, scenario, 2)
            with pytest.raises(InvalidRecordError) as refused:
                tx.send(scenario.topic, value=object())
    assert caught.value.__cause__ is refused.value
    scenario.assert_both_sides_agree()


def test_a_block_inside_a_block_is_refused_and_names_the_savepoint(scenario: Scenario, writer: DualWriter) -> None:
    with writer.transaction() as tx:
        put(tx, scenario, 1)
        with pytest.raises(IllegalStateError, match=r"tx\.savepoint\(\)"), writer.transaction():
            pass
    scenario.assert_both_sides_agree("1")


def test_a_write_whose_records_all_went_with_a_savepoint_does_not_need_kafka(
    scenario: Scenario, writer: DualWriter
) -> None:
    with writer.transaction() as tx:
        tx.session.execute(sa.insert(events), {"id": 1, "event_key": "k", "body": "1"})
        with pytest.raises(InjectedError), tx.savepoint():
            put(tx, scenario, 2)
            raise InjectedError
    assert (tx.outcome, tx.transactional_id, writer.state) == (Outcome.COMMITTED, None, SlotState.NEW)
    assert event_bodies(scenario.database) == ["1"]
    assert not scenario.emulator.transactions()


def test_a_write_of_records_only(scenario: Scenario, writer: DualWriter) -> None:
    with writer.transaction() as tx:
        tx.send(scenario.topic, value="1")
    assert str(scenario.row()) == str(tx.prepared_state)
    assert read_topic(scenario.emulator.bootstrap_servers, scenario.topic) == [("", "1")]


def test_a_block_that_only_reads(scenario: Scenario, writer: DualWriter) -> None:
    with writer.transaction() as tx:
        assert tx.session.scalars(sa.select(events.c.id)).all() == []
    assert (tx.outcome, writer.state) == (Outcome.COMMITTED, SlotState.NEW)
    assert scenario.row().is_empty
    assert not scenario.emulator.transactions()


def test_a_savepoint_before_everything_else(scenario: Scenario, writer: DualWriter) -> None:
    """SQLite's driver would begin the transaction with it, and RELEASE would commit its rows."""
    with writer.transaction() as tx, tx.savepoint():
        put(tx, scenario, 1)
    scenario.expected.append("1")
    with pytest.raises(InjectedError), writer.transaction() as tx:
        with tx.savepoint():
            put(tx, scenario, 2)
        raise InjectedError
    scenario.assert_both_sides_agree()


def test_a_written_out_savepoint_that_begins_sqlites_transaction_commits_it(
    scenario: Scenario, writer: DualWriter
) -> None:
    if not isinstance(scenario.database, SqliteDatabase):
        pytest.skip("other databases begin with BEGIN")
    with pytest.raises(TransactionEndedInsideError, match="permanent"), writer.transaction() as tx:
        tx.connection.execute(sa.text("SAVEPOINT s"))
        put(tx, scenario, 1)
        tx.connection.execute(sa.text("RELEASE s"))
    assert read_topic(scenario.emulator.bootstrap_servers, scenario.topic) == []
    assert event_bodies(scenario.database) == ["1"]
    assert scenario.row().is_empty
