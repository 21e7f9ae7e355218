"""Group commit with Sessions: what a Session says and hears in a block, and what it does after a rollback there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa
from psycopg import pq
from sqlalchemy import event
from sqlalchemy.orm import Session, registry, sessionmaker

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import TransactionDoomedError, TransactionEndedInsideError
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.sqlalchemy.writer import DualTransaction
from dualwrite.testing.postgres import PostgresServer
from tests.crash.group_styles import INSERT, Member, OrdinaryError, SqlAlchemyThreads
from tests.crash.group_worker import PATIENT
from tests.crash.psycopg_scenario import PsycopgScenario
from tests.crash.scenario import AtPoint
from tests.recipes.pools import QUIET_LEASE_MS, prefix_of, written
from tests.support.databases import PostgresDatabase, events, unique
from tests.support.narrowing import current

Do = Callable[[DualTransaction], None]


@pytest.fixture
def scenario(postgres_server: PostgresServer, emulator: Emulator) -> Iterator[PsycopgScenario]:
    database = PostgresDatabase(postgres_server)
    yield PsycopgScenario(database, emulator, transactional_id=f"{unique('group')}-0")
    database.close()


def style_on(scenario: PsycopgScenario, **settings: Any) -> SqlAlchemyThreads:
    return SqlAlchemyThreads(
        scenario.database.engine.url,
        scenario.topic,
        PATIENT,
        prefix=prefix_of(scenario),
        bootstrap_servers=scenario.emulator.bootstrap_servers,
        lease_ms=QUIET_LEASE_MS,
        **settings,
    )


@pytest.mark.parametrize("point", [PausePoint.BEFORE_DATABASE_COMMIT, None], ids=["rolled back", "committed"])
def test_hooks_of_a_session_follow_the_decision_of_its_group(
    scenario: PsycopgScenario, point: PausePoint | None
) -> None:
    """`before_commit` comes when the block ends, `after_commit` and `after_rollback` when the group is decided."""
    engine = sa.create_engine(scenario.database.engine.url.set(drivername="postgresql+psycopg"))
    sessions = sessionmaker(engine)
    heard: list[tuple[str, bool]] = []
    members: list[Any] = []

    def hear(name: str, session: Session) -> None:
        (member,) = [member for member in members if member.info["session"] is session]
        heard.append((name, member.outcome is not None))

    def remember(member: Any) -> None:
        member.info["session"] = member.tx.session
        members.append(member)

    for name in ("before_commit", "after_commit", "after_rollback"):
        event.listen(sessions, name, partial(hear, name))

    def fail() -> None:
        raise OrdinaryError

    pause = AtPoint(point or PausePoint.AFTER_INIT, fail, armed=point is not None)
    with style_on(scenario, session_factory=sessions, pause=pause) as style:
        style.on_begin = remember
        ended = style.together([[], [], []])
    assert [type(member.error) for member in ended] == [OrdinaryError if point else type(None)] * 3
    expected = [("before_commit", False)] * 3 + [("after_rollback" if point else "after_commit", True)] * 3
    assert heard == expected
    engine.dispose()


def test_a_savepoint_travels_with_the_first_statement_of_its_block(scenario: PsycopgScenario) -> None:
    """Nothing else differs from a savepoint that SQLAlchemy sends."""
    seen: list[Any] = []
    savepoints: list[Any] = []

    def look(member: Member) -> None:
        connection, session = member.tx.connection, member.tx.session
        status = connection.connection.driver_connection.pgconn.transaction_status
        nested = connection.in_nested_transaction(), session.in_nested_transaction()
        with session.begin_nested():
            session.execute(sa.text("SELECT 1"))
            inside = connection.in_nested_transaction(), session.in_nested_transaction()
        seen.append((status, nested, inside))
        connection.exec_driver_sql("SELECT 1")

    with style_on(scenario) as style:
        event.listen(style.engine, "savepoint", lambda connection, name: savepoints.append(name))
        style.write(9)
        style.on_begin = look
        style.together([[], [], []])
    first = (current(pq.TransactionStatus.IDLE), (False, False), (True, True))
    later = (current(pq.TransactionStatus.ACTIVE), (True, False), (True, True))
    assert seen == [first, later, later]
    assert savepoints == [None] * 5
    assert written(scenario) == {"9", "0", "1", "2"}


# ---- a block that goes on after it has rolled itself back ------------------------------------------------------------


class Event:
    def __init__(self, number: int) -> None:
        self.id = number
        self.event_key = self.body = str(number)


registry().map_imperatively(Event, events)

_INSERT = INSERT.format(77)


def roll_back(tx: DualTransaction) -> None:
    tx.session.rollback()


def fail_a_flush(tx: DualTransaction) -> None:
    tx.session.add(Event(0))  # the row of the first block
    with pytest.raises(sa.exc.IntegrityError):
        tx.session.flush()
    tx.session.rollback()


def roll_back_its_savepoint(tx: DualTransaction) -> None:
    savepoint = tx.connection.get_nested_transaction()
    assert savepoint is not None
    savepoint.rollback()
    tx.session.close()


def write_again(tx: DualTransaction) -> None:
    tx.session.execute(sa.text(_INSERT))


def write_again_and_again(tx: DualTransaction) -> None:
    for _ in range(3):
        with pytest.raises(TransactionEndedInsideError):
            write_again(tx)
        tx.session.rollback()


def write_in_a_savepoint(tx: DualTransaction) -> None:
    with tx.session.begin_nested():
        write_again(tx)


def write_on_the_connection(tx: DualTransaction) -> None:
    tx.connection.exec_driver_sql(_INSERT)


def write_by_another_session(tx: DualTransaction) -> None:
    with Session(tx.connection) as other:
        other.execute(sa.text(_INSERT))


def write_past_sqlalchemy(tx: DualTransaction) -> None:
    driver: Any = tx.connection.connection.driver_connection
    driver.execute(_INSERT)


@pytest.mark.parametrize("place", [1, 2], ids=["second", "third"])
@pytest.mark.parametrize("undo", [roll_back, fail_a_flush, roll_back_its_savepoint])
@pytest.mark.parametrize(
    "go_on",
    [
        write_again,
        write_again_and_again,
        write_in_a_savepoint,
        write_on_the_connection,
        write_by_another_session,
        write_past_sqlalchemy,
    ],
)
def test_a_block_that_goes_on_after_it_has_rolled_itself_back(
    scenario: PsycopgScenario, undo: Do, go_on: Do, place: int
) -> None:
    """What it writes then is in no savepoint of its own, and what it rolls back then would be its neighbour's."""

    def misbehave(member: Member) -> None:
        if member.number == place:
            undo(member.tx)
            go_on(member.tx)

    scripts = [["put", "hold"], ["put"], ["put"], ["put"]]
    scripts[place] = ["pass"]
    with style_on(scenario) as style:
        style.on_begin = misbehave
        members = style.waiting(scripts)
        members[0].hold.set()
        failed = members.pop(place)
        assert isinstance(failed.error, TransactionEndedInsideError | TransactionDoomedError)
        assert failed.outcome is Outcome.ROLLED_BACK
        assert [(member.error, member.outcome) for member in members] == [(None, Outcome.COMMITTED)] * 3
    assert written(scenario) == {"0", "1", "2", "3"} - {str(place)}
    scenario.assert_nothing_open()


def test_a_block_that_releases_its_savepoint_takes_the_group_with_it(scenario: PsycopgScenario) -> None:
    def release(member: Member) -> None:
        if member.number == 1:
            member.tx.connection.exec_driver_sql(_INSERT)
            member.tx.connection.get_nested_transaction().commit()

    with style_on(scenario) as style:
        style.on_begin = release
        members = style.waiting([["put", "hold"], ["pass"], ["put"]])
        members[0].hold.set()
        ended = TransactionEndedInsideError
        assert [type(member.error) for member in members] == [ended, ended, type(None)]
        assert [member.outcome for member in members] == [
            *(Outcome.ROLLED_BACK, Outcome.ROLLED_BACK),
            Outcome.COMMITTED,
        ]
    assert written(scenario) == {"2"}
    scenario.assert_nothing_open()
