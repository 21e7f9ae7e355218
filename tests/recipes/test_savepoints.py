"""A part of a dual write that may fail by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from dualwrite.errors import IllegalStateError, InvalidRecordError, TransactionDoomedError
from dualwrite.recipes.sqlalchemy import DualTransaction, DualWriter
from tests.crash.scenario import InjectedError, Scenario
from tests.recipes.steps import break_a_statement, put

Block = Iterator[DualTransaction]


@pytest.fixture(params=["session", "connection"])
def tx(request: pytest.FixtureRequest, scenario: Scenario, writer: DualWriter) -> Iterator[DualTransaction]:
    """A block that has written 1, and is committed after the test; the test goes on from there."""
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
    scenario.expected.append("1")
    scenario.assert_both_sides_agree()
