"""An exception strikes a block anywhere: both sides stay equal, nothing stays in use, and the next block works.

No row may stay locked until the garbage collector comes.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.sqlalchemy.sessions import dual_write_sessions, send
from tests.crash.psycopg_scenario import PsycopgScenario, conninfo_of
from tests.crash.scenario import AnyScenario, Scenario
from tests.recipes.away import AWAY
from tests.recipes.pools import make_pool, put, write, written
from tests.support.conditions import until
from tests.support.databases import Database, PostgresDatabase, SqliteDatabase, events, unique
from tests.support.strikes import KINDS, OURS, WITH_SQLALCHEMY, Strike, explained, strike

# A strike where `blocking.run` begins leaves it the coroutine that it was given, which nothing has begun.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine 'Block[.].* was never awaited:RuntimeWarning")

PARTS: Final = 4
"""All places are struck in so many tests, none of which takes long; `make test` strikes at fewer."""


@dataclass
class Face:
    """A writer, and a way to write one event with it."""

    scenario: AnyScenario
    make: Callable[[], Any]
    write: Callable[[Any, int], object]
    inside: tuple[str, ...] = OURS
    """The code that is struck."""
    is_away: bool = False
    """Whether blocks are struck while Kafka is away."""
    number: int = 0
    struck: dict[str, str] = field(default_factory=dict)
    """The place of the strike, by the struck event."""

    @contextmanager
    def without_kafka(self, writer: Any) -> Iterator[None]:
        """Let Kafka be away, if blocks are to be struck then; its blocks are published afterwards."""
        if not self.is_away:
            yield
            return
        self.scenario.emulator.crash_node(0)
        self.write(writer, self.next())  # which notices that
        yield
        self.scenario.emulator.start_node(0)
        until(lambda: not writer.status.is_diverted)

    def next(self) -> int:
        self.number += 1
        return self.number

    def counted(self, act: Callable[[], object]) -> int:
        """Return the number of places."""
        with Strike(inside=self.inside) as counted:
            act()
        return counted.places

    def strike(self, at: int | str, act: Callable[[], object]) -> str:
        """Strike, and let no row stay locked, even before garbage is collected. Return where."""
        kind = KINDS[at % 2] if isinstance(at, int) else KINDS[0]
        with without_garbage_collection():
            where = strike(at, act, kind, self.inside)
            with explained(where):
                assert_no_row_is_locked(self.scenario)
        return where

    def strike_next(self, at: int | str, writer: Any) -> str:
        """Strike the next block. Return where."""
        number = self.next()
        where = self.struck[str(number)] = self.strike(at, partial(self.write, writer, number))
        return where


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def assert_no_row_is_locked(scenario: AnyScenario) -> None:
    if scenario.database.engine.dialect.name == "postgresql":
        with psycopg.connect(conninfo_of(scenario.database.url)) as connection:
            until(partial(_can_lock, connection))  # the server may not have read yet that a connection was closed


def _can_lock(connection: psycopg.Connection[Any]) -> bool:
    try:
        connection.execute("SELECT 1 FROM kafka_transaction_state FOR UPDATE NOWAIT")
    except psycopg.errors.LockNotAvailable:
        return False
    finally:
        connection.rollback()
    return True


def without_pool(scenario: Any) -> Any:
    return scenario.writer(engine=sa.create_engine(scenario.database.url, poolclass=sa.NullPool))


def pool_of(scenario: AnyScenario) -> Any:
    return make_pool(scenario, max_writers=2, acquire_timeout_ms=5_000)


def diverted_pool_of(scenario: AnyScenario) -> Any:
    return make_pool(scenario, max_writers=2, acquire_timeout_ms=5_000, **AWAY)


def write_alone(writer: Any, scenario: AnyScenario, number: int) -> None:
    with writer.transaction() as tx:
        put(tx, scenario, number)


_given: Final[dict[str, Any]] = {}
"""The caller's connections, by topic."""


def write_on_given(writer: Any, scenario: AnyScenario, number: int) -> None:
    """Write on a connection that the caller keeps, and rolls back after an error."""
    given = _given.get(scenario.topic)
    if given is None or given.closed:  # a struck statement leaves a connection that cannot be used again
        url = scenario.database.url
        is_psycopg = isinstance(scenario, PsycopgScenario)
        _given[scenario.topic] = given = (
            psycopg.connect(conninfo_of(url)) if is_psycopg else scenario.database.engine.connect()
        )
    struck: BaseException | None = None
    try:
        with writer.transaction(given) as tx:
            put(tx, scenario, number)
    except BaseException as error:
        struck = error.with_traceback(None)  # which keeps a block alive whose `__exit__` was not begun
    if struck is not None:
        if not given.closed:
            given.rollback()
        raise struck


def write_in_session(writer: Any, scenario: AnyScenario, number: int) -> None:
    made = sessionmaker(scenario.database.engine)
    dual_write_sessions(made, writer)
    with made() as session:
        session.execute(sa.insert(events), {"id": number, "event_key": "k", "body": str(number)})
        send(session, scenario.topic, value=str(number), key="k")
        session.commit()


def write_by_pool(pool: Any, scenario: AnyScenario, number: int) -> None:
    write(pool, scenario, number)


FACES: Final[dict[str, tuple[type[Any], Callable[[Any], Any], Callable[[Any, Any, int], object]]]] = {
    "sqlite": (Scenario, lambda scenario: scenario.writer(), write_alone),
    "postgres": (Scenario, lambda scenario: scenario.writer(), write_alone),
    "no-pool": (Scenario, without_pool, write_alone),
    "psycopg": (PsycopgScenario, lambda scenario: scenario.writer(), write_alone),
    "pool": (Scenario, pool_of, write_by_pool),
    "psycopg-pool": (PsycopgScenario, pool_of, write_by_pool),
    "diverted": (Scenario, diverted_pool_of, write_by_pool),
    "psycopg-diverted": (PsycopgScenario, diverted_pool_of, write_by_pool),
    "diverted-away": (Scenario, diverted_pool_of, write_by_pool),
    "psycopg-diverted-away": (PsycopgScenario, diverted_pool_of, write_by_pool),
    "given": (Scenario, lambda scenario: scenario.writer(), write_on_given),
    "psycopg-given": (PsycopgScenario, lambda scenario: scenario.writer(), write_on_given),
    "session": (Scenario, lambda scenario: scenario.writer(), write_in_session),
    "session-pool": (Scenario, pool_of, write_in_session),
}


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path) -> Iterator[Face]:
    kind, make, written_by = FACES[request.param]
    is_sqlite = request.param == "sqlite"
    database: Database = (
        SqliteDatabase(tmp_path) if is_sqlite else PostgresDatabase(request.getfixturevalue("postgres_server"))
    )
    scenario = kind(database, emulator, transactional_id=f"{unique('struck')}-0")
    # An exception inside SQLAlchemy's QueuePool loses a place of it (tests/unit/test_sqlalchemy_internals.py).
    inside = WITH_SQLALCHEMY if request.param == "no-pool" else OURS
    yield Face(
        scenario,
        lambda: make(scenario),
        lambda writer, number: written_by(writer, scenario, number),
        inside,
        is_away=request.param.endswith("-away"),
    )
    if (given := _given.pop(scenario.topic, None)) is not None:
        given.close()
    database.close()


def assert_nothing_in_use(writer: Any) -> None:
    if writer.is_pool:
        assert (writer.status.in_use, writer.status.waiting, writer.pool.registry.blocks) == (0, 0, 0)
        coordinators = [slot.coordinator for slot in writer.pool.registry.all_slots()]
    else:
        coordinators = [writer.coordinator]
    until(lambda: all(not each.users._queue for each in coordinators))  # the background may resolve some
    assert writer.blocks.current is None


def assert_agreed(face: Face) -> None:
    """Both sides are equal, and no connection is in a transaction."""
    seen = written(face.scenario)
    assert {str(number) for number in range(1, face.number + 1)} - seen <= face.struck.keys()
    if face.scenario.database.engine.dialect.name == "postgresql":
        with psycopg.connect(conninfo_of(face.scenario.database.url), autocommit=True) as connection:
            until(lambda: not connection.execute(_IN_TRANSACTION).fetchall())


_IN_TRANSACTION = (
    "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
)


def strike_blocks(face: Face, stride: int, first: int = 1, *, is_in_question: bool = False) -> int:
    """Strike a block at some places, from the first one on, while the writer has its id. Return how many there are.

    `is_in_question`: whether the block has to ask first how the COMMIT of the one before has ended.
    """

    def get_ready() -> None:
        if is_in_question:
            assert face.strike_next("PsycopgCommitMessage.send", writer)

    with closing(face.make()) as writer:
        face.write(writer, face.next())
        get_ready()
        with face.without_kafka(writer):
            places = face.counted(lambda: face.write(writer, face.next()))
            for at in range(first, places + 1, stride):
                get_ready()
                where = face.strike_next(at, writer)
                with explained(where):
                    assert_nothing_in_use(writer)
                    face.write(writer, face.next())
    assert_agreed(face)
    return places


def strike_recoveries(face: Face, stride: int) -> None:
    """Strike `recover` at each place, or at some of them, where a COMMIT got no response."""
    with closing(face.make()) as writer:
        face.write(writer, face.next())
        face.strike_next("PsycopgCommitMessage.send", writer)
        for at in range(1, face.counted(writer.recover) + 1, stride):
            face.strike_next("PsycopgCommitMessage.send", writer)
            where = face.strike(at, writer.recover)
            with explained(where):
                assert_nothing_in_use(writer)
                writer.recover()
                face.write(writer, face.next())
    assert_agreed(face)


def strike_lives(face: Face, stride: int) -> int:
    """Strike the first block of a writer, which takes its id over, or its `close`, at each place or at some."""

    made: list[Any] = []

    def live(number: int) -> None:
        made.append(writer := face.make())
        face.write(writer, number)
        writer.close()

    places = face.counted(lambda: live(face.next()))
    for at in range(1, places + 1, stride):
        number = face.next()
        where = face.struck[str(number)] = face.strike(at, partial(live, number))
        with explained(where):
            for writer in made:
                writer.close()
            live(face.next())
        made.clear()
    assert_agreed(face)
    return places


def test_some_places_of_a_block(face: Face) -> None:
    assert strike_blocks(face, stride=29) > 100


IN_PARTS: Final = pytest.mark.parametrize("part", range(PARTS))


@IN_PARTS
def test_every_place_of_a_block(face: Face, part: int) -> None:
    strike_blocks(face, PARTS, 1 + part)


ON_ONE_ID: Final = pytest.mark.parametrize("face", ["postgres", "no-pool", "psycopg", "session"], indirect=True)


@ON_ONE_ID
def test_some_places_of_a_block_behind_a_lost_commit(face: Face) -> None:
    assert strike_blocks(face, stride=29, is_in_question=True) > 100


@ON_ONE_ID
@IN_PARTS
def test_every_place_of_a_block_behind_a_lost_commit(face: Face, part: int) -> None:
    strike_blocks(face, PARTS, 1 + part, is_in_question=True)


@ON_ONE_ID
def test_places_of_a_recovery(face: Face) -> None:
    strike_recoveries(face, stride=7)


@pytest.mark.parametrize("face", [name for name in FACES if not name.endswith("-away")], indirect=True)
def test_places_of_the_first_block_and_the_close(face: Face) -> None:
    strike_lives(face, stride=7)


@pytest.mark.parametrize("face", ["psycopg-diverted"], indirect=True)
def test_a_pool_goes_on_behind_a_strike_at_the_end_of_its_preparation(face: Face) -> None:
    with closing(face.make()) as writer:
        assert face.strike_next("IdUsers.leave", writer)
        face.write(writer, face.next())
    assert_agreed(face)


@pytest.mark.parametrize(
    "face", [name for name in FACES if name != "sqlite" and not name.endswith(("diverted", "-away"))], indirect=True
)
@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_that_strikes_while_begin_is_under_way(
    face: Face, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The signal's exception reaches the caller, in place of the error of a ROLLBACK before the response to BEGIN.

    With the pool of SQLAlchemy, it strikes the ping before BEGIN, and SQLAlchemy fails to go on. A Session begins at
    its caller's own statement, whose ping is SQLAlchemy's alone: there is none.
    """
    if request.node.callspec.params["face"].startswith("session"):
        monkeypatch.setattr(face.scenario.database.engine.pool, "_pre_ping", False)
    raised = kind("while BEGIN is under way")

    def handle(*_: object) -> None:
        raise raised

    def wait(under_way: Any, *_: Any, **__: Any) -> Any:
        try:
            next(under_way)  # sends the statement, BEGIN
        except StopIteration as ended:  # there was nothing to send
            return ended.value
        monkeypatch.undo()
        signal.raise_signal(signal.SIGUSR1)
        raise AssertionError("the handler raises")

    with closing(face.make()) as writer:
        face.write(writer, face.next())
        before = signal.signal(signal.SIGUSR1, handle)
        try:
            monkeypatch.setattr(psycopg.waiting, "wait", wait)
            with pytest.raises(kind) as caught:
                face.write(writer, face.next())
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert caught.value is raised
        face.write(writer, face.next())
    assert written(face.scenario) == {"1", "3"}


@pytest.mark.parametrize("face", ["postgres", "session", "given"], indirect=True)
def test_an_ordinary_transaction_behind_a_strike_at_the_end_of_commit(face: Face) -> None:
    """The connection's own COMMIT commits it, and not the message of the block before it."""
    with closing(face.make()) as writer:
        face.write(writer, face.next())
        where = face.strike_next("CommitMessage.__exit__", writer)
        given = _given.get(face.scenario.topic)
        with explained(where), given or face.scenario.database.engine.connect() as connection:
            connection.execute(sa.text("CREATE TABLE ordinary ()"))
            connection.commit()
        face.write(writer, face.next())
    with psycopg.connect(conninfo_of(face.scenario.database.url)) as look:
        found = look.execute("SELECT to_regclass('ordinary') IS NOT NULL").fetchone()
    assert found == (True,)
    assert_agreed(face)
