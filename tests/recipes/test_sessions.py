"""Sessions that the application itself commits, as without dual writes."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from dualwrite.errors import (
    ConfigError,
    FencedError,
    IllegalStateError,
    InvalidRecordError,
    OutcomeUnknown,
    TransactionDoomedError,
    TransactionEndedInsideError,
)
from dualwrite.outcome import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.sqlalchemy.sessions import current_dual_write, dual_write_sessions, send
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.scenario import AtPoint, InjectedError, Scenario, losing_the_commit
from tests.recipes.pools import make_pool
from tests.recipes.steps import break_a_statement
from tests.support.conditions import until
from tests.support.databases import SqliteDatabase, event_bodies, events
from tests.support.event_class import Event
from tests.support.threads import in_threads
from tests.support.topics import read_topic

Sessions = sessionmaker[Session]


@pytest.fixture
def sessions(scenario: Scenario, writer: DualWriter) -> Sessions:
    made = sessionmaker(scenario.database.engine)
    dual_write_sessions(made, writer)
    return made


def put(session: Session, scenario: Scenario, number: int) -> None:
    """One event to both sides."""
    session.add(Event(number))
    send(session, scenario.topic, key="k", value=str(number))


# ---- as without dual writes -----------------------------------------------------------------------------------


def test_every_form_of_a_transaction(scenario: Scenario, sessions: Sessions) -> None:
    with sessions.begin() as session:
        put(session, scenario, 1)
    with sessions() as session:
        with session.begin():
            put(session, scenario, 2)
        put(session, scenario, 3)
        with session.begin(nested=True):
            put(session, scenario, 4)
        session.commit()
        session.begin()
        put(session, scenario, 5)
        transaction = session.get_transaction()
        assert transaction is not None
        transaction.commit()
        put(session, scenario, 6)
        session.begin_nested()
        put(session, scenario, 7)
        session.commit()  # through the savepoint, which it releases
    scenario.assert_both_sides_agree("1", "2", "3", "4", "5", "6", "7")


def test_nothing_of_a_transaction_is_left_to_the_garbage_collector(scenario: Scenario, sessions: Sessions) -> None:
    gc.collect()
    gc.disable()
    try:
        with sessions() as session:
            for end in (session.commit, session.rollback):
                put(session, scenario, 1)
                connection = weakref.ref(session.connection())
                end()
                assert connection() is None
    finally:
        gc.enable()
    scenario.assert_both_sides_agree("1")


def test_sessions_without_records_are_ordinary(scenario: Scenario, writer: DualWriter, sessions: Sessions) -> None:
    with sessions() as session:
        session.add(Event(1))
        session.commit()
        assert session.get_one(Event, 1).body == "1"
        session.commit()
    assert writer.state is SlotState.NEW
    assert not scenario.emulator.transactions()
    assert scenario.row().is_empty


def test_objects_are_expired_and_hooks_are_called_as_always(scenario: Scenario, sessions: Sessions) -> None:
    called: list[str] = []
    with sessions() as session:
        for name in ("before_commit", "after_commit"):
            event.listen(session, name, lambda session, name=name: called.append(name))
        event.listen(session, "after_transaction_end", lambda session, transaction: called.append("end"))
        one = Event(1)
        session.add(one)
        send(session, scenario.topic, value="1")
        event.listen(session, "after_commit", lambda session: called.append(str(scenario.row().is_empty)))
        session.commit()
        assert called == ["before_commit", "end", "after_commit", "False", "end"]
        assert sa.inspect(one).expired
        assert one.body == "1"
    with sessionmaker(scenario.database.engine, expire_on_commit=False)() as kept:
        assert not sa.inspect(kept.get_one(Event, 1)).expired


@pytest.mark.parametrize("ending", ["rollback", "close", "reset", "invalidate", "exception"])
def test_records_of_an_uncommitted_transaction_are_dropped(scenario: Scenario, sessions: Sessions, ending: str) -> None:
    with sessions() as session:
        put(session, scenario, 1)
        write = current_dual_write(session)
        if ending == "exception":
            with pytest.raises(InjectedError), session.begin_nested():
                session.rollback()
                raise InjectedError
        else:
            getattr(session, ending)()
        assert write.outcome is Outcome.ROLLED_BACK
        with pytest.raises(IllegalStateError, match="has ended"):
            write.send(scenario.topic, value="late")
        put(session, scenario, 2)
        session.commit()
    scenario.assert_both_sides_agree("2")


def test_a_failed_flush_drops_the_records(scenario: Scenario, sessions: Sessions) -> None:
    with sessions() as session:
        put(session, scenario, 1)
        session.commit()
        session.expunge_all()
        put(session, scenario, 1)
        with pytest.raises(sa.exc.IntegrityError):
            session.commit()
        session.rollback()
        put(session, scenario, 2)
        session.commit()
    scenario.assert_both_sides_agree("1", "2")


def test_a_scoped_session(scenario: Scenario, writer: DualWriter) -> None:
    session = scoped_session(sessionmaker(scenario.database.engine))
    dual_write_sessions(session, writer)
    session.add(Event(1))
    send(session, scenario.topic, value="1")
    session.commit()
    session.remove()
    scenario.assert_both_sides_agree("1")


def test_a_class_of_sessions_and_sessions_that_were_made_before(scenario: Scenario, writer: DualWriter) -> None:
    class OurSession(Session):
        pass

    earlier = OurSession(scenario.database.engine)
    dual_write_sessions(OurSession, writer)
    dual_write_sessions(OurSession, writer)
    with earlier, sessionmaker(scenario.database.engine, class_=OurSession)() as later:
        for number, session in enumerate((earlier, later), start=1):
            put(session, scenario, number)
            session.commit()
    scenario.assert_both_sides_agree("1", "2")


def test_tables_that_are_bound_one_by_one(scenario: Scenario, writer: DualWriter) -> None:
    sessions = sessionmaker(binds={Event: scenario.database.engine})
    dual_write_sessions(sessions, writer)
    with sessions() as session:
        put(session, scenario, 1)
        session.commit()
    scenario.assert_both_sides_agree("1")


# ---- hooks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", ["before_flush", "after_flush", "after_flush_postexec", "before_commit"])
def test_a_session_hook_may_send(scenario: Scenario, sessions: Sessions, hook: str) -> None:
    def send_once(session: Session, *arguments: object) -> None:
        if not sent:
            sent.append(send(session, scenario.topic, value="1"))

    sent: list[object] = []
    event.listen(sessions, hook, send_once)
    with sessions() as session:
        session.add(Event(1))
        session.commit()
    scenario.assert_both_sides_agree("1")


@pytest.fixture
def _every_new_event_is_sent(scenario: Scenario) -> Iterator[None]:
    def send_it(mapper: object, connection: sa.Connection, target: Event) -> None:
        session = sa.orm.object_session(target)
        assert session is not None
        send(session, scenario.topic, value=target.body)

    event.listen(Event, "after_insert", send_it)
    yield
    event.remove(Event, "after_insert", send_it)


@pytest.mark.usefixtures("_every_new_event_is_sent")
def test_a_mapper_event_may_send(scenario: Scenario, sessions: Sessions, writer: DualWriter) -> None:
    """Also inside the commit, whose flush is the first that the database hears of it; and inside a writer's block."""
    with sessions() as session:
        session.add(Event(1))
        session.commit()
        session.add(Event(2))
        with session.begin_nested() as part:
            session.add(Event(3))
            session.flush()
            part.rollback()
        session.commit()
    with writer.transaction() as tx:
        tx.session.add(Event(4))
    scenario.assert_both_sides_agree("1", "2", "4")


def test_a_record_after_the_commit_comes_too_late(scenario: Scenario, sessions: Sessions) -> None:
    with sessions() as session:
        put(session, scenario, 1)
        event.listen(session, "after_commit", lambda session: send(session, scenario.topic, value="late"))
        with pytest.raises(sa.exc.InvalidRequestError, match="committed"):
            session.commit()
    scenario.assert_both_sides_agree("1")


@pytest.mark.parametrize("error", [InjectedError, KeyboardInterrupt])
def test_a_hook_that_fails_before_the_commit(
    scenario: Scenario, sessions: Sessions, error: type[BaseException]
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    with sessions() as session:
        put(session, scenario, 1)
        event.listen(session, "before_commit", fail, once=True)
        with pytest.raises(error):
            session.commit()
        session.rollback()
        event.listen(scenario.database.engine, "commit", fail, once=True)
        put(session, scenario, 2)
        write = current_dual_write(session)
        with pytest.raises(error):
            session.commit()
        session.rollback()
        assert write.outcome is Outcome.ROLLED_BACK
        put(session, scenario, 3)
        session.commit()
    scenario.assert_both_sides_agree("3")


# ---- savepoints -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_record", ["before", "inside"])
def test_a_savepoint_takes_its_records_back(scenario: Scenario, sessions: Sessions, first_record: str) -> None:
    """Also if the very first record is inside it, so that the savepoint was set before the buffer existed."""
    with sessions() as session:
        if first_record == "before":
            put(session, scenario, 1)
            scenario.expected.append("1")
        with session.begin_nested() as outer:
            put(session, scenario, 2)
            with session.begin_nested():
                put(session, scenario, 3)
            outer.rollback()
        with session.begin_nested():
            put(session, scenario, 4)
        session.commit()
    scenario.assert_both_sides_agree("4")


def test_a_savepoint_takes_back_a_record_sent_before_its_first_statement(
    scenario: Scenario, sessions: Sessions
) -> None:
    with sessions() as session:
        dual = current_dual_write(session)
        with session.begin_nested() as savepoint:
            dual.send(scenario.topic, key="k", value="1")
            session.add(Event(1))
            session.flush()
            savepoint.rollback()
        put(session, scenario, 2)
        session.commit()
    scenario.assert_both_sides_agree("2")


def test_a_savepoint_before_everything_else(scenario: Scenario, sessions: Sessions) -> None:
    """SQLite's driver would begin the transaction with it, and RELEASE would commit its rows."""
    with sessions() as session:
        with session.begin_nested():
            put(session, scenario, 1)
        session.rollback()
        with session.begin_nested():
            put(session, scenario, 2)
        session.commit()
    scenario.assert_both_sides_agree("2")


@pytest.mark.parametrize("decide", ["commit", "rollback"])
@pytest.mark.parametrize("mode", ["create_savepoint", "rollback_only", "conditional_savepoint", "control_fully"])
def test_a_session_that_joins_a_transaction_leaves_the_decision_to_that_transaction(
    scenario: Scenario, sessions: Sessions, mode: Any, decide: str
) -> None:
    """As test suites do, which roll everything back: the decision is the COMMIT that the database gets."""
    sessions().commit()
    with scenario.database.engine.connect() as connection:
        outer = connection.begin()
        with sessions(bind=connection, join_transaction_mode=mode) as session:
            put(session, scenario, 1)
            session.commit()
            if mode != "control_fully":
                put(session, scenario, 2)
                session.rollback() if mode == "create_savepoint" else session.commit()
        if outer.is_active:
            getattr(outer, decide)()
    if mode == "control_fully" or decide == "commit":
        scenario.expected += ["1"] if mode in ("control_fully", "create_savepoint") else ["1", "2"]
    scenario.assert_both_sides_agree()


# ---- a COMMIT without a response ------------------------------------------------------------------------------


def test_after_a_lost_commit_that_took_effect_the_session_is_as_after_any_commit(scenario: Scenario) -> None:
    """The objects of the Session are in the database, and later changes to them must get there too."""
    lose = AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, lambda: scenario.database.lose_commit(applied=True))
    sessions = sessionmaker(scenario.database.engine)
    committed: list[Session] = []
    event.listen(sessions, "after_commit", committed.append)
    with scenario.writer(lose) as writer, sessions() as session:
        dual_write_sessions(sessions, writer)
        one = Event(1)
        session.add(one)
        send(session, scenario.topic, value="1")
        session.commit()
        assert committed == [session]
        assert sa.inspect(one).persistent
        one.body = "one"
        send(session, scenario.topic, value="again")
        session.commit()
        assert session.scalar(sa.select(events.c.body)) == "one"


@pytest.mark.usefixtures("asks_twice")
def test_a_commit_after_one_with_an_unknown_outcome_is_rolled_back(scenario: Scenario) -> None:
    lose = losing_the_commit(scenario.database, applied=True, and_database=True)
    sessions = sessionmaker(scenario.database.engine)
    older = scenario.writer(lose)
    dual_write_sessions(sessions, older)
    with sessions() as session:
        put(session, scenario, 1)
        with pytest.raises(OutcomeUnknown) as caught:
            session.commit()
        assert not hasattr(caught.value, "__notes__")
    scenario.expected.append("1")
    scenario.database.come_back()
    with scenario.writer() as newer:
        assert scenario.write(newer, 2).error is None
        with sessions() as session:
            put(session, scenario, 3)
            write = current_dual_write(session)
            with pytest.raises(OutcomeUnknown) as caught:
                session.commit()
            assert "an earlier dual write" in caught.value.__notes__[0]
            assert write.outcome is Outcome.ROLLED_BACK
            session.rollback()
            put(session, scenario, 3)
            with pytest.raises(FencedError):
                session.commit()
            session.rollback()
        dual_write_sessions(sessions, newer)  # the last one counts
        with sessions.begin() as session:
            put(session, scenario, 30)
    scenario.assert_both_sides_agree("30")


# ---- several at once ------------------------------------------------------------------------------------------


def test_a_commit_that_would_wait_for_its_own_thread_is_refused_at_once(
    scenario: Scenario, writer: DualWriter, sessions: Sessions
) -> None:
    with writer.transaction() as tx:
        tx.send(scenario.topic, value="1")
        with sessions() as session:
            send(session, scenario.topic, value="2")
            with pytest.raises(IllegalStateError, match="of this same thread"):
                session.commit()
        tx.session.add(Event(1))
    scenario.assert_both_sides_agree("1")


def test_a_pool_commits_several_at_the_same_time(scenario: Scenario) -> None:
    if isinstance(scenario.database, SqliteDatabase):
        pytest.skip("one session at a time may write to SQLite anyway")
    both_inside = threading.Barrier(2)
    waited: set[int] = set()

    def meet(point: PausePoint) -> None:
        if point is PausePoint.BEFORE_DATABASE_COMMIT:
            both_inside.wait(60)
            waited.add(threading.get_ident())

    with make_pool(scenario, pause=meet) as pool:
        assert isinstance(pool, DualWriter)
        sessions = sessionmaker(scenario.database.engine)
        dual_write_sessions(sessions, pool)
        ids: set[str | None] = set()

        def write(number: int) -> None:
            with sessions() as session:
                put(session, scenario, number)
                dual = current_dual_write(session)
                session.commit()
                ids.add(dual.transactional_id)

        in_threads(lambda: write(1), lambda: write(2))
    assert len(waited) == len(ids) == 2


def test_a_pool_with_one_session_after_another(scenario: Scenario) -> None:
    with make_pool(scenario) as pool:
        assert isinstance(pool, DualWriter)
        sessions = sessionmaker(scenario.database.engine)
        if isinstance(scenario.database, SqliteDatabase):
            with pytest.raises(ConfigError, match="a pool could not lease an id"):
                dual_write_sessions(sessions, pool)
            return
        dual_write_sessions(sessions, pool)
        for number in (1, 2, 3):
            with sessions.begin() as session:
                put(session, scenario, number)
    scenario.assert_both_sides_agree("1", "2", "3")


# ---- guards ---------------------------------------------------------------------------------------------------


def test_a_session_of_a_block_adds_to_the_block(scenario: Scenario, sessions: Sessions, writer: DualWriter) -> None:
    with sessions() as session, writer.transaction(session) as tx:
        put(session, scenario, 1)
        assert current_dual_write(session) is tx
    with writer.transaction() as tx:
        put(tx.session, scenario, 2)  # of no sessionmaker
    scenario.assert_both_sides_agree("1", "2")


def test_no_block_around_records_that_are_there_already(
    scenario: Scenario, sessions: Sessions, writer: DualWriter
) -> None:
    writer.recover()
    with sessions() as session:
        put(session, scenario, 1)
        with pytest.raises(IllegalStateError, match="cannot decide a second one"), writer.transaction(session):
            pass
        session.rollback()
    scenario.assert_both_sides_agree()


def test_a_session_for_which_nobody_writes(scenario: Scenario) -> None:
    with Session(scenario.database.engine) as session, pytest.raises(IllegalStateError, match="dual_write_sessions"):
        send(session, scenario.topic, value="1")


@pytest.mark.parametrize("where", ["transaction", "savepoint"])
def test_a_refused_record_dooms_its_transaction(scenario: Scenario, sessions: Sessions, where: str) -> None:
    with sessions() as session:
        put(session, scenario, 1)
        if where == "savepoint":
            with pytest.raises(InvalidRecordError), session.begin_nested():
                send(session, scenario.topic, value=object())
        else:
            with pytest.raises(InvalidRecordError):
                send(session, scenario.topic, value=object())
            with pytest.raises(TransactionDoomedError):
                session.commit()
            session.rollback()
        session.commit()
    scenario.expected += ["1"] if where == "savepoint" else []
    scenario.assert_both_sides_agree()


def test_a_swallowed_statement_error_dooms_the_transaction(scenario: Scenario, sessions: Sessions) -> None:
    with sessions() as session:
        put(session, scenario, 1)
        session.commit()
        put(session, scenario, 2)
        session.flush()  # SQLAlchemy 2.0 does not flush before a text is executed
        with pytest.raises(sa.exc.IntegrityError):
            break_a_statement(session.execute)
        with pytest.raises(TransactionDoomedError):
            session.commit()
        session.rollback()
        with pytest.raises(sa.exc.IntegrityError):
            break_a_statement(session.execute)
        session.rollback()
        put(session, scenario, 3)
        session.commit()
    scenario.assert_both_sides_agree("1", "3")


@pytest.mark.parametrize("order", ["record first", "second database first"])
def test_a_second_database_is_refused(scenario: Scenario, sessions: Sessions, tmp_path: Path, order: str) -> None:
    other = sa.create_engine(f"sqlite:///{tmp_path}/other.db")

    def go_there() -> None:
        session.connection(bind_arguments={"bind": other})

    def send_one() -> None:
        send(session, scenario.topic, value="1")

    first, second = (send_one, go_there) if order == "record first" else (go_there, send_one)
    with sessions() as session:
        first()
        with pytest.raises(IllegalStateError, match="second database"):
            second()
        if order == "record first":
            with pytest.raises(IllegalStateError, match="second database"):
                session.commit()
    scenario.assert_both_sides_agree()


def test_a_session_of_another_engine_is_refused(scenario: Scenario, sessions: Sessions, tmp_path: Path) -> None:
    other = sa.create_engine(f"sqlite:///{tmp_path}/other.db")
    with sessions(bind=other) as session, pytest.raises(IllegalStateError, match="another Engine"):
        send(session, scenario.topic, value="1")


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_transaction_that_was_ended_past_sqlalchemy(scenario: Scenario, sessions: Sessions, ending: str) -> None:
    with sessions() as session:
        session.add(Event(1))
        session.flush()
        send(session, scenario.topic, value="1")
        getattr(session.connection().connection, ending)()
        with pytest.raises(Exception, match="bypassing SQLAlchemy"):
            session.commit()
    assert scenario.row().is_empty
    scenario.assert_nothing_open()


@pytest.mark.parametrize("end", ["close", "rollback", "error"])
@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_session_whose_transaction_was_ended_elsewhere_reports_this_at_its_end(
    scenario: Scenario, sessions: Sessions, caplog: pytest.LogCaptureFixture, ending: str, end: str
) -> None:
    """A COMMIT there leaves the row without its record, and no later statement would reveal that."""
    session = sessions()
    put(session, scenario, 1)
    session.flush()
    write = current_dual_write(session)
    getattr(session.connection().connection, ending)()
    if end == "error":  # nothing replaces the error that is being handled
        with pytest.raises(InjectedError), session:
            raise InjectedError
    else:
        with pytest.raises(TransactionEndedInsideError, match="ended its database transaction") as caught:
            getattr(session, end)()
        assert caught.value.outcome is Outcome.UNKNOWN
    assert re.search(r"ended its database transaction.*\(1 records\)", caplog.text)
    assert write.outcome is None
    assert event_bodies(scenario.database) == (["1"] if ending == "commit" else [])
    put(session, scenario, 2)  # the Session can be used again
    session.commit()
    session.close()
    assert [value for _, value in read_topic(scenario.emulator.bootstrap_servers, scenario.topic)] == ["2"]


def test_a_closed_writer_leaves_ordinary_sessions_alone(scenario: Scenario, writer: DualWriter) -> None:
    sessions = sessionmaker(scenario.database.engine)
    dual_write_sessions(sessions, writer)
    writer.close()
    with sessions() as session:
        session.add(Event(1, "kept"))
        session.commit()
        put(session, scenario, 2)
        with pytest.raises(IllegalStateError, match="closed"):
            session.commit()
        session.rollback()
        assert session.scalars(sa.select(events.c.body)).all() == ["kept"]


@pytest.mark.parametrize("wrong", [Session(), object(), int])
def test_values_that_make_no_sessions_are_refused(writer: DualWriter, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="sessionmaker"):
        dual_write_sessions(wrong, writer)


def test_an_asynchronous_engine(writer: DualWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer.backend, "engine", create_async_engine("sqlite+aiosqlite://").sync_engine)
    with pytest.raises(ConfigError, match="AsyncDualWriter"):
        dual_write_sessions(sessionmaker(), writer)


def test_a_garbage_collected_session_drops_its_records(scenario: Scenario, sessions: Sessions) -> None:
    """The next one on its connection commits only its own records."""
    session = sessions()
    send(session, scenario.topic, value="never")
    forgotten = weakref.ref(current_dual_write(session))
    del session
    until(lambda: gc.collect() >= 0 and forgotten() is None)
    with sessions.begin() as other:
        put(other, scenario, 1)
    scenario.assert_both_sides_agree("1")
