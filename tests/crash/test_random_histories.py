"""Random histories end with both sides equal, every caller told the truth, and nothing left open.

HISTORIES=1000 makes that many per database, and other ones each time.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.testing.postgres import PostgresServer
from tests.crash.histories import (
    IDS_OF_PROCESSES,
    LOCK_TIMEOUT_MS,
    Advance,
    History,
    Hit,
    Kill,
    Start,
    Step,
    Strike,
    Task,
)
from tests.support.databases import Database, PostgresDatabase, SqliteDatabase

MANY = int(os.environ.get("HISTORIES", "0"))

processes = st.integers(0, len(IDS_OF_PROCESSES) - 1)
QUARRELLING = [
    (first, second)
    for first, second in itertools.permutations(range(len(IDS_OF_PROCESSES)), 2)
    if IDS_OF_PROCESSES[first] == IDS_OF_PROCESSES[second]
]
tasks = st.sampled_from([Task.WRITE] * 4 + [Task.WRITE_DATABASE_ONLY, Task.RECOVER])
points = st.sampled_from(PausePoint)
# Some histories are drawn more often than chance would: an id changes hands because its owner lost the row lock, or a
# database goes away with the response to a commit.
strikes = st.one_of(
    st.lists(st.sampled_from(Strike), max_size=2),
    st.just([Strike.DATABASE_CUT]),
    st.sampled_from([[Strike.COMMIT_ANSWER_LOST, Strike.DATABASE_AWAY], [Strike.COMMIT_LOST, Strike.DATABASE_AWAY]]),
)


@st.composite
def episodes(draw: st.DrawFn) -> list[Step]:
    """Steps and faults of one process in a row; a process that is left standing goes on in another episode."""
    process = draw(processes)
    steps: list[Step] = []
    if draw(st.integers(0, 3)):  # else it goes on from where it stands
        steps += [Start(process, draw(tasks)), Advance(process, draw(points))]
    steps += [Hit(process, strike) for strike in draw(strikes)]
    return steps + draw(ends_of(process))


def ends_of(process: int) -> st.SearchStrategy[list[Step]]:
    ends: list[list[Step]] = [[Advance(process, None)], [Kill(process)], []]
    return st.sampled_from(ends)


@st.composite
def quarrels(draw: st.DrawFn) -> list[Step]:
    """One process stops at a point, another one takes its transactional id over, and the first goes on.

    The first stops more often where it is about to act upon its knowledge, the second where it leaves most to others.
    """
    first, second = draw(st.sampled_from(QUARRELLING))
    stops = st.one_of(points, st.sampled_from([PausePoint.AFTER_LOCK, PausePoint.BEFORE_DATABASE_COMMIT]))
    steps: list[Step] = [Start(first, draw(tasks)), Advance(first, draw(stops))]
    steps += [Hit(first, strike) for strike in draw(strikes)]
    if draw(st.booleans()):
        steps.append(Advance(first, None))
    stops = st.one_of(points, st.just(PausePoint.AFTER_DATABASE_COMMIT))
    steps += [Start(second, draw(tasks)), Advance(second, draw(stops)), *draw(ends_of(second))]
    return [*steps, Hit(first, Strike.DATABASE_BACK), Advance(first, None)]


histories = st.lists(st.one_of(episodes(), quarrels()), min_size=2, max_size=10).map(
    lambda several: [step for one in several for step in one]
)


def default_size(examples: int) -> settings:
    return settings(
        max_examples=MANY or examples,
        derandomize=not MANY,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        print_blob=True,
    )


@pytest.fixture(scope="module")
def broker() -> Iterator[Emulator]:
    with Emulator() as emulator:
        yield emulator


@contextmanager
def clients_of(database: Database) -> Iterator[list[Database]]:
    clients = [database, *(database.another_client() for _ in IDS_OF_PROCESSES)]
    yield clients
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def sqlite_clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Database]]:
    directory = Path(tmp_path_factory.mktemp("histories"))
    # One process runs at a time, so a wait for another's write lock is in vain.
    with clients_of(SqliteDatabase(directory, busy_timeout_s=LOCK_TIMEOUT_MS / 1000)) as clients:
        yield clients


@pytest.fixture(scope="module")
def postgres_clients(postgres_server: PostgresServer) -> Iterator[list[Database]]:
    with clients_of(PostgresDatabase(postgres_server)) as clients:
        yield clients


def live_through(history: History, steps: list[Step]) -> None:
    for step in steps:
        history.take(step)
    history.come_right()


@pytest.mark.timeout(0 if MANY else 120)
@default_size(50)
@given(steps=histories)
def test_a_history_on_sqlite_comes_right(broker: Emulator, sqlite_clients: list[Database], steps: list[Step]) -> None:
    live_through(History(sqlite_clients, broker), steps)


@pytest.mark.timeout(0 if MANY else 120)
@default_size(20)
@given(steps=histories)
def test_a_history_on_postgres_comes_right(
    broker: Emulator, postgres_clients: list[Database], steps: list[Step]
) -> None:
    live_through(History(postgres_clients, broker), steps)


@pytest.mark.timeout(0 if MANY else 120)
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@default_size(20)
@given(steps=histories)
def test_a_history_of_both_kinds_of_writers_comes_right(
    broker: Emulator, postgres_clients: list[Database], driver: str, steps: list[Step]
) -> None:
    live_through(History(postgres_clients, broker, driver_of_half=driver), steps)
