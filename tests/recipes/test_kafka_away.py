"""Blocks while no broker can be reached: refused soon, then at once and without the database, until Kafka is back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from dualwrite.broker_emulator import Emulator, Error, Fault
from dualwrite.errors import KafkaUnreachableError, PoolTimeoutError
from dualwrite.recipes.core import blocking, settings
from dualwrite.recipes.core.availability import Availability
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.sqlalchemy.sessions import dual_write_sessions, send
from tests.crash.scenario import AtPoint
from tests.crash.styles import INSERT
from tests.recipes.heard import Heard
from tests.recipes.pools import QUIET_LEASE_MS
from tests.support.conditions import until
from tests.support.databases import PostgresDatabase, event_bodies, unique
from tests.support.topics import read_topic
from tests.support.writers import KINDS, closed, entered, got

COORDINATOR_LOAD_IN_PROGRESS = 14
LONG_MS = 60_000
"""Longer than a test may take: no wait of the old kind may end by itself."""

REFUSED = "neither side was changed: Kafka cannot be reached since"
MOST_REFUSALS = 50
LOST_WITHIN_S = settings._UNREACHABLE_TIMEOUT_MS / 1000
"""The least that a block waits which does not know yet that Kafka is away."""

ENOUGH_S = 20.0

_COMMON: dict[str, Any] = {"max_block_ms": LONG_MS, "lock_timeout_ms": LONG_MS}
_POOL: dict[str, Any] = {"acquire_timeout_ms": LONG_MS, "lease_ms": QUIET_LEASE_MS, **_COMMON}


class World:
    """A database, a broker that can be gone, and the contents of both."""

    def __init__(self, database: PostgresDatabase, emulator: Emulator) -> None:
        self.database = database
        self.emulator = emulator
        self.topic = unique("topic")
        self.name = unique("away")
        emulator.create_topic(self.topic)

    def lose_kafka(self) -> None:
        for node_id in self.emulator.living_nodes:
            self.emulator.crash_node(node_id)

    def bring_kafka_back(self) -> None:
        self.emulator.start_node(0)

    def assert_both_sides_have(self, *numbers: int) -> None:
        expected = [str(number) for number in numbers]
        in_topic = [value for _, value in read_topic(self.emulator.bootstrap_servers, self.topic)]
        assert (event_bodies(self.database), sorted(in_topic, key=int)) == (expected, expected)

    def idle_in_transaction(self) -> set[tuple[Any, ...]]:
        """Return each transaction of the writers that waits for its client."""
        query = (
            "SELECT pid, xact_start FROM pg_stat_activity "
            "WHERE state LIKE 'idle in transaction%' AND usename = current_user AND pid <> pg_backend_pid()"
        )
        with self.database.aside.connect() as connection:
            return {tuple(row) for row in connection.execute(sa.text(query))}


@dataclass(frozen=True)
class How:
    """A kind of writer, alone with its id or with a pool of them."""

    kind: str
    is_pool: bool = False

    def __str__(self) -> str:
        return f"{self.kind}-pool" if self.is_pool else self.kind


class Face:
    """A writer or pool of one kind, by the same names."""

    def __init__(self, world: World, how: How, pause: AtPoint | None = None) -> None:
        self.world = world
        self.pause = pause
        self.kind = KINDS[how.kind]
        self.runner = asyncio.Runner() if self.kind.is_awaited else None
        self.source = self.kind.source(world.database.engine.url)
        given = {"prefix": world.name, **_POOL} if how.is_pool else {"transactional_id": world.name, **_COMMON}
        self.writer = self.kind.writer(
            self.source, pause=pause, bootstrap_servers=world.emulator.bootstrap_servers, **given
        )

    @property
    def availability(self) -> Availability:
        writer = self.writer
        found: Availability = (writer.pool if writer.is_pool else writer.coordinator.owned).availability
        return found

    def write(self, number: int) -> None:
        self.run(self._write(number))

    async def _write(self, number: int) -> None:
        async with entered(self.writer.transaction()) as tx:
            await got(self.kind.execute(tx, INSERT.format(number)))
            tx.send(self.world.topic, value=str(number), key="k")

    def run(self, steps: Coroutine[Any, Any, None]) -> None:
        blocking.run(steps) if self.runner is None else self.runner.run(steps)

    def breathe(self) -> None:
        """Let the background go on for a moment."""
        time.sleep(0.01) if self.runner is None else self.runner.run(asyncio.sleep(0.01))

    def close(self) -> None:
        self.run(closed(self.writer, self.source))
        if self.runner is not None:
            self.runner.close()


class SessionsOfAWriter(Face):
    """Their transactions begin by themselves, so that they are refused by their commit."""

    def write(self, number: int) -> None:
        sessions = sessionmaker(self.source)
        dual_write_sessions(sessions, self.writer)
        with sessions.begin() as session:
            session.execute(sa.text(INSERT.format(number)))
            send(session, self.world.topic, value=str(number), key="k")


SQLALCHEMY: Final = How("sqlalchemy")
SQLALCHEMY_POOL: Final = How("sqlalchemy", is_pool=True)
PSYCOPG_POOL: Final = How("psycopg", is_pool=True)
SESSIONS: Final = How("sqlalchemy sessions")
POOLS: Final = [SQLALCHEMY_POOL, PSYCOPG_POOL]
BEFORE_THE_TRANSACTION: Final = [
    *(SQLALCHEMY, How("psycopg-awaited"), How("asyncpg-alone")),
    *(*POOLS, How("sqlalchemy-awaited", is_pool=True)),
]
BLOCKING: Final = [SQLALCHEMY, How("psycopg"), *POOLS]

parametrized = pytest.mark.parametrize("how", [*BEFORE_THE_TRANSACTION, SESSIONS], ids=str)


@pytest.fixture
def world(postgres: PostgresDatabase, emulator: Emulator) -> World:
    return World(postgres, emulator)


@contextmanager
def face_of(how: How, world: World, pause: AtPoint | None = None) -> Iterator[Face]:
    face = SessionsOfAWriter(world, SQLALCHEMY, pause) if how is SESSIONS else Face(world, how, pause)
    try:
        yield face
    finally:
        face.close()


def refused(face: Face, number: int) -> KafkaUnreachableError:
    """Return the error of a block that was refused, in the words of a block."""
    with pytest.raises(
        KafkaUnreachableError, match="neither side was changed: Kafka cannot be reached since"
    ) as raised:
        face.write(number)
    assert "Connection refused" in str(raised.value)
    for call in ("transaction()", "transactions()", "max.block.ms"):
        assert call not in str(raised.value)
        assert call not in str(raised.value.__cause__)
    return raised.value


def write_when_kafka_is_back(face: Face, number: int) -> None:
    """Repeat the block, as its application does."""
    deadline_s = time.monotonic() + ENOUGH_S
    while True:
        with suppress(KafkaUnreachableError):
            face.write(number)
            return
        assert time.monotonic() < deadline_s, "the return of Kafka was not noticed"
        face.breathe()


@parametrized
def test_refused_until_kafka_is_back(world: World, how: How) -> None:
    with face_of(how, world) as face:
        face.write(1)
        world.lose_kafka()
        refused(face, 2)
        assert not world.idle_in_transaction()
        first = refused(face, 3)
        assert refused(face, 4).since_s >= first.since_s
        world.bring_kafka_back()
        write_when_kafka_is_back(face, 5)
        assert face.availability.away is None
        face.write(6)
    world.assert_both_sides_have(1, 5, 6)


@parametrized
def test_kafka_is_away_from_the_beginning(world: World, how: How) -> None:
    world.lose_kafka()
    with face_of(how, world) as face:
        refused(face, 1)
        assert not world.idle_in_transaction()
        world.bring_kafka_back()
        write_when_kafka_is_back(face, 2)
    world.assert_both_sides_have(2)


@pytest.mark.parametrize("how", BEFORE_THE_TRANSACTION, ids=str)
def test_refused_without_a_database_transaction(world: World, how: How, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: Any, **__: Any) -> Any:
        raise AssertionError("a database transaction was about to begin")

    with face_of(how, world) as face:
        face.write(1)
        world.lose_kafka()
        refused(face, 2)
        with monkeypatch.context() as patched:
            patched.setattr(type(face.writer.backend), "begin", begin)
            began_s = time.monotonic()
            for number in range(MOST_REFUSALS):
                refused(face, number)
            assert time.monotonic() - began_s < MOST_REFUSALS * LOST_WITHIN_S


@pytest.mark.parametrize("how", BLOCKING, ids=str)
def test_under_load_no_transaction_stays_open(world: World, how: How) -> None:
    """Writers in threads go on and on: from the moment at which Kafka is gone until it is back, and after it."""
    written: list[int] = []
    ended = threading.Event()
    threads = 4 if how in POOLS else 1

    def write_on(first: int) -> None:
        number = first
        while not ended.is_set():
            number += threads
            try:
                face.write(number)
            except KafkaUnreachableError:
                time.sleep(0.001)
            else:
                written.append(number)

    with face_of(how, world) as face, ThreadPoolExecutor(threads) as executor:
        done = [executor.submit(write_on, first) for first in range(threads)]
        until(lambda: len(written) > 20)
        world.lose_kafka()
        for _ in range(20):
            waiting = world.idle_in_transaction()
            until(lambda: waiting.isdisjoint(world.idle_in_transaction()), ENOUGH_S)  # noqa: B023 - called in this round
        before = len(written)
        world.bring_kafka_back()
        until(lambda: len(written) > before + 20)
        ended.set()
        for each in done:
            each.result()
        face.writer.recover()
    world.assert_both_sides_have(*sorted(written))


@pytest.mark.parametrize("how", POOLS, ids=str)
def test_blocks_that_wait_for_a_slot(world: World, how: How, monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold their transactions as well. They are refused before the block that has the slot ends."""
    monkeypatch.setitem(_POOL, "max_writers", 1)
    held = threading.Event()

    def hold() -> None:
        held.wait(ENOUGH_S)

    def go_on_when_the_other_is_refused() -> None:
        note_change()
        waiting.result(ENOUGH_S)

    with face_of(how, world, AtPoint(PausePoint.AFTER_BEGIN, hold)) as face, ThreadPoolExecutor(2) as executor:
        note_change = face.availability.on_change
        face.availability.on_change = go_on_when_the_other_is_refused
        first = executor.submit(refused, face, 1)
        until(lambda: face.writer.status.in_use == 1)
        waiting = executor.submit(refused, face, 2)
        until(lambda: face.writer.status.waiting == 1)
        world.lose_kafka()
        held.set()
        first.result(ENOUGH_S)
        assert face.writer.status.timeouts_total == 0


@pytest.mark.parametrize("how", BLOCKING, ids=str)
def test_after_the_decision_the_block_is_committed(world: World, how: How) -> None:
    pause = AtPoint(PausePoint.AFTER_DATABASE_COMMIT, world.lose_kafka)
    with face_of(how, world, pause) as face:
        face.write(1)
        assert event_bodies(world.database) == ["1"]
        refused(face, 2)
        world.bring_kafka_back()
        write_when_kafka_is_back(face, 3)
        if how in POOLS:  # another id may have carried this block, and a pool that is closed leaves the other in doubt
            until(lambda: not face.writer.status.set_aside)
    world.assert_both_sides_have(1, 3)


@pytest.mark.parametrize("how", POOLS, ids=str)
def test_the_status_of_a_pool_and_the_gauge_say_since_when(world: World, how: How, heard: Heard) -> None:
    with face_of(how, world) as face:
        face.write(1)
        assert (face.writer.status.kafka_away_since_s, face.writer.status.kafka_problem) == (None, None)
        assert heard.points("dualwrite.kafka.away") == []
        before_s = time.time()
        world.lose_kafka()
        refused(face, 2)
        status = face.writer.status
        assert before_s - 1 < status.kafka_away_since_s <= time.time()
        assert "Connection refused" in status.kafka_problem
        (told,) = heard.points("dualwrite.kafka.away")
        assert 0 <= told.value <= time.time() - status.kafka_away_since_s
        world.bring_kafka_back()
        write_when_kafka_is_back(face, 3)
        assert face.writer.status.kafka_away_since_s is None
        assert heard.points("dualwrite.kafka.away") == []
        world.lose_kafka()
        refused(face, 4)
    assert heard.points("dualwrite.kafka.away") == []  # a closed pool knows nothing any more
    world.bring_kafka_back()
    world.assert_both_sides_have(1, 3)


def test_a_pools_timeout_says_that_kafka_keeps_slots_aside(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is reachable and completes nothing: blocks are committed, and their slots cannot be used again."""
    for name, value in {"max_writers": 1, "max_block_ms": 2000}.items():
        monkeypatch.setitem(_POOL, name, value)
    with face_of(PSYCOPG_POOL, world) as face:
        loading = world.emulator.faults.add(Fault(api="EndTxn", action=Error(COORDINATOR_LOAD_IN_PROGRESS), count=None))
        face.write(1)
        face.write(2)
        until(lambda: face.writer.status.last_background_error is not None)
        face.writer.pool._acquire_timeout_ms = 100
        with pytest.raises(PoolTimeoutError, match="Kafka keeps them from being resolved: KafkaTimeoutError: "):
            face.write(3)
        loading.remove()
        until(lambda: not face.writer.status.set_aside)
    world.assert_both_sides_have(1, 2)


@pytest.mark.parametrize("how", BLOCKING, ids=str)
def test_elections_and_a_stopped_node_of_three_do_not_count_as_away(postgres: PostgresDatabase, how: How) -> None:
    with Emulator(nodes=3) as emulator:
        world = World(postgres, emulator)
        with face_of(how, world) as face:
            for number in range(4):
                face.write(number)
                emulator.move_leader(world.topic, 0, emulator.living_nodes[number % 2])
            for number, node_id in enumerate((0, 1), start=4):
                emulator.crash_node(node_id)
                face.write(number)
            assert face.availability.away is None
            world.assert_both_sides_have(*range(6))


def test_recover_finds_kafka_away(world: World) -> None:
    with face_of(SQLALCHEMY, world) as face:
        world.lose_kafka()
        with pytest.raises(KafkaUnreachableError, match=r"^Kafka cannot be reached since"):
            face.writer.recover()
        assert face.availability.is_away
        assert face.writer.state is SlotState.NEW
        world.bring_kafka_back()
        until(lambda: not face.availability.is_away)
        assert face.writer.recover() == []
