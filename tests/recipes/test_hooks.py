"""Hooks of SQLAlchemy that run inside the database commit, when most of a dual write is already settled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.event.api import _event_key
from sqlalchemy.orm import Session

from dualwrite.errors import IllegalStateError, TransactionDoomedError
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.sqlalchemy.events import watch
from dualwrite.recipes.sqlalchemy.writer import DualTransaction, DualWriter
from tests.crash.scenario import InjectedError, Scenario
from tests.recipes.steps import break_a_statement, put
from tests.support.databases import events


def insert_only(tx: DualTransaction, scenario: Scenario, number: int) -> None:
    tx.session.execute(sa.insert(events), {"id": number, "event_key": "k", "body": str(number)})


write = pytest.mark.parametrize("write", [put, insert_only])
Write = Callable[[DualTransaction, Scenario, int], None]


@write
def test_a_record_from_inside_the_commit_comes_too_late(scenario: Scenario, writer: DualWriter, write: Write) -> None:
    """The record would be in no transaction that is going to be committed."""
    with (
        pytest.raises(IllegalStateError, match="hooks that run inside the database commit"),
        writer.transaction() as tx,
    ):
        write(tx, scenario, 1)
        event.listen(tx.session, "before_commit", lambda session: tx.send(scenario.topic, value="1") and None)
    assert tx.outcome is Outcome.ROLLED_BACK
    assert writer.state is (SlotState.READY if write is put else SlotState.NEW), "without a record, Kafka is not asked"
    scenario.assert_both_sides_agree()


@write
def test_an_error_swallowed_inside_the_commit(scenario: Scenario, writer: DualWriter, write: Write) -> None:
    """A failed Postgres transaction would answer COMMIT with a silent rollback."""
    with writer.transaction() as tx:
        put(tx, scenario, 1)
    scenario.expected.append("1")

    def swallow(session: Session) -> None:
        with pytest.raises(sa.exc.IntegrityError):
            break_a_statement(session.execute)

    with pytest.raises(TransactionDoomedError), writer.transaction() as tx:
        write(tx, scenario, 2)
        event.listen(tx.session, "before_commit", swallow)
    assert tx.outcome is Outcome.ROLLED_BACK
    scenario.assert_both_sides_agree()


@pytest.mark.parametrize("error", [InjectedError, KeyboardInterrupt])
@write
def test_a_commit_that_was_never_sent_is_known_to_be_rolled_back(
    scenario: Scenario, writer: DualWriter, write: Write, error: type[BaseException]
) -> None:
    """Without asking the database, which may be away by now; and the caller's own session holds no lock any more."""

    def fail(session: Session) -> None:
        scenario.database.refuse_new_connections()
        raise error

    writer.recover()
    with Session(scenario.database.engine) as session:
        event.listen(session, "before_commit", fail, once=True)
        with pytest.raises(error), writer.transaction(session) as tx:
            write(tx, scenario, 1)
        assert not session.in_transaction()
    assert tx.outcome is Outcome.ROLLED_BACK
    assert writer.state is SlotState.READY
    scenario.database.come_back()
    scenario.assert_both_sides_agree()


def test_an_error_after_the_commit_does_not_undo_the_commit(
    scenario: Scenario, writer: DualWriter, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(session: Session) -> None:
        raise InjectedError

    with writer.transaction() as tx:
        put(tx, scenario, 1)
        event.listen(tx.session, "after_commit", fail)
    assert tx.outcome is Outcome.COMMITTED
    assert "is committed, although its commit raised" in caplog.text
    scenario.assert_both_sides_agree("1")


@pytest.mark.parametrize("of_class", [False, True])
def test_a_listener_that_translates_errors_hides_none(
    scenario: Scenario, of_class: bool, request: pytest.FixtureRequest
) -> None:
    """SQLAlchemy calls no listener behind one that raises."""

    def translate(context: sa.ExceptionContext) -> None:
        raise InjectedError from context.original_exception

    target: Any = sa.Engine if of_class else scenario.database.engine
    key = _event_key(target, "handle_error", translate)
    key.base_listen()  # `listen` would leave a mark on all dialects
    request.addfinalizer(key.remove)
    with scenario.writer() as writer:
        with pytest.raises(TransactionDoomedError), writer.transaction() as tx:
            put(tx, scenario, 1)
            with pytest.raises(InjectedError):
                tx.session.execute(sa.text("SELECT * FROM missing"))
    scenario.assert_both_sides_agree()


def test_dual_writes_leave_the_listeners_of_the_engine_alone(scenario: Scenario, writer: DualWriter) -> None:
    """Other threads iterate over them; a listener that comes or goes meanwhile turns their errors into others."""

    def listeners() -> list[object]:
        engine = scenario.database.engine
        return [*engine.dispatch.commit, *engine.dialect.dispatch.handle_error]

    before = listeners()
    with scenario.writer() as second, second.transaction() as tx:
        assert listeners() == before
        put(tx, scenario, 1)
    assert listeners() == before


def test_an_engine_at_the_address_of_a_deleted_one_is_watched(scenario: Scenario) -> None:
    """SQLAlchemy remembers listeners by id(), even those of a dead engine if its dialect still lives."""
    watched: list[sa.Dialect] = []
    addresses: set[int] = set()
    for _ in range(1000):
        engine = sa.create_engine("sqlite://")
        watch(engine)
        assert len(list(engine.dialect.dispatch.do_execute)) == 1
        if id(engine) in addresses:
            return
        addresses.add(id(engine))
        watched.append(engine.dialect)
    pytest.skip("no address came back")
