"""The matrix of faults for every kind of writer beside `DualWriter`: on drivers, of asyncio, and of sessions.

All of it with `PsycopgDualWriter` and `AsyncpgDualWriter`; of each other kind, what differs there. Lost commits
are here for `DualWriter`, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash.asyncpg_scenario import asyncpg_scenario
from tests.crash.awaited import awaited_scenario
from tests.crash.matrix import (
    RESOLVERS,
    FaultKind,
    Survivor,
    cancel,
    cases_with_predecessors,
    check_a_cancellation,
    check_a_commit_that_is_lost_with_the_database,
    check_a_fault_at_a_point,
    check_a_fault_of_a_ready_writer,
    check_a_kill_at_a_point,
    check_a_lost_commit,
)
from tests.crash.of_async_sessions import AwaitedSessionScenario
from tests.crash.of_sessions import SessionScenario, Way
from tests.crash.psycopg_scenario import PsycopgScenario, awaited_psycopg_scenario
from tests.crash.scenario import (
    POINTS_AFTER_LOCK,
    POINTS_AFTER_THE_DECISION,
    AnyScenario,
    AtPoint,
    Predecessor,
    Scenario,
)
from tests.support.databases import PostgresDatabase, SqliteDatabase

P = PausePoint

ON_DRIVERS: Final = ("psycopg", "asyncpg")
AWAITED: Final = ("awaited psycopg", "awaited asyncpg", "awaited aiosqlite")
"""`AsyncDualWriter` on each of its drivers."""
SESSIONS: Final = tuple(f"sessions on {name} by {way}" for name in ("postgres", "sqlite") for way in Way)
ASYNC_SESSIONS: Final = ("AsyncSessions psycopg", "AsyncSessions asyncpg", "AsyncSessions aiosqlite")

_Scenarios = Callable[[Any, Emulator], AbstractContextManager[AnyScenario]]
_BLOCKING: Final[dict[str, Callable[[Any, Emulator], AnyScenario]]] = {
    "psycopg": PsycopgScenario,
    "postgres": Scenario,
    "sqlite": Scenario,
}
_ENTERED: Final[dict[str, _Scenarios]] = {
    "asyncpg": asyncpg_scenario,
    "awaited psycopg alone": awaited_psycopg_scenario,
}


@pytest.fixture
def scenario(request: pytest.FixtureRequest, emulator: Emulator, tmp_path: Path) -> Iterator[AnyScenario]:
    name: str = request.param
    lite = "sqlite" in name
    database = SqliteDatabase(tmp_path) if lite else PostgresDatabase(request.getfixturevalue("postgres_server"))
    if name in _BLOCKING:
        yield _BLOCKING[name](database, emulator)
    elif name in SESSIONS:
        yield SessionScenario(database, emulator, way=Way(name.partition(" by ")[2]))
    else:
        made = AwaitedSessionScenario if name in ASYNC_SESSIONS else None
        with (
            _ENTERED[name](database, emulator)
            if name in _ENTERED
            else awaited_scenario(database, emulator, name.partition(" ")[2], made=made)
        ) as scenario:
            yield scenario
    database.close()


Case = tuple[Any, ...]


def of_each(names: str, *cases: Collection[Case]) -> pytest.MarkDecorator:
    rows = [case if "," in names else case[0] for table in cases for case in table]
    return pytest.mark.parametrize(names, rows, indirect=["scenario"])


def each(*dimensions: Collection[Any]) -> list[Case]:
    """Return all combinations; a tuple in a dimension is several columns."""
    return [tuple(_columns(row)) for row in product(*dimensions)]


def _columns(row: Case) -> Iterator[Any]:
    for value in row:
        if isinstance(value, tuple):
            yield from value
        else:
            yield value


# ---- points -----------------------------------------------------------------------------------------------------

EVERYWHERE: Final = cases_with_predecessors()
COMMITTED: Final = [(point, Predecessor.COMMITTED) for point in P]
HEART: Final = (P.AFTER_LOCK, P.AFTER_PREPARE, P.BEFORE_DATABASE_COMMIT, P.AFTER_DATABASE_COMMIT)
"""Where drivers differ most: how they lose a connection inside the take-over, before and after the decision."""
OF_A_READY_WRITER: Final = (*POINTS_AFTER_LOCK, *POINTS_AFTER_THE_DECISION)

BEFORE_COMMIT: Final = [(point, Predecessor.COMMITTED) for point in HEART]
WITHOUT_PREPARE: Final = [case for case in BEFORE_COMMIT if case[0] is not P.AFTER_PREPARE]

# ---- faults -----------------------------------------------------------------------------------------------------

SAME, NEW = Survivor.SAME_WRITER, Survivor.NEW_WRITER
OF_THE_DATABASE: Final = [(fault, SAME) for fault in (FaultKind.DATABASE_CUT, FaultKind.DATABASE_ANSWER_LOST)]
ALL_FAULTS: Final = [(fault, SAME) for fault in FaultKind]
# Kafka's faults on a new writer do not concern the recipe.
BY_ANOTHER: Final = [
    (fault, NEW) for fault in (FaultKind.EXCEPTION, FaultKind.DATABASE_CUT, FaultKind.DATABASE_ANSWER_LOST)
]
ANY_COMMIT: Final = [
    (fault, SAME) for fault in (FaultKind.EXCEPTION, FaultKind.DATABASE_ANSWER_LOST, FaultKind.BROKER_CUT)
]
"""Faults that end differently; the others take the same way through a writer, by any kind of commit."""


@of_each(
    "scenario, point, predecessor, fault, survivor",
    each(ON_DRIVERS, EVERYWHERE, ALL_FAULTS + BY_ANOTHER),
    each(AWAITED[:1], EVERYWHERE, ALL_FAULTS),
    each(AWAITED[1:], BEFORE_COMMIT, ALL_FAULTS),
    each(["awaited psycopg alone"], COMMITTED, OF_THE_DATABASE),
    each(SESSIONS + ASYNC_SESSIONS[:1], COMMITTED, ANY_COMMIT),
    each(ASYNC_SESSIONS[1:], WITHOUT_PREPARE, ANY_COMMIT),
)
def test_a_fault_at_a_point(
    scenario: AnyScenario, point: PausePoint, predecessor: Predecessor, fault: FaultKind, survivor: Survivor
) -> None:
    check_a_fault_at_a_point(scenario, point, predecessor, fault, survivor)


@of_each(
    "scenario, point, fault, survivor",
    each(ON_DRIVERS, OF_A_READY_WRITER, [*ALL_FAULTS, (FaultKind.EXCEPTION, NEW)]),
    each(["awaited psycopg alone"], OF_A_READY_WRITER, OF_THE_DATABASE),
)
def test_a_fault_at_a_point_of_a_ready_writer(
    scenario: AnyScenario, point: PausePoint, fault: FaultKind, survivor: Survivor
) -> None:
    check_a_fault_of_a_ready_writer(scenario, point, fault, survivor)


# ---- kills ------------------------------------------------------------------------------------------------------

_WORKERS: Final[dict[str, tuple[str, ...]]] = {
    "psycopg": ("--psycopg", "blocking"),
    "asyncpg": ("--asyncpg",),
    "awaited psycopg alone": ("--psycopg", "awaited"),
    **{name: ("--awaited", name.partition(" ")[2]) for name in AWAITED},
    **{name: ("--sessions", name.partition(" by ")[2]) for name in SESSIONS},
}
"""The options of the process that is killed."""

_IN_TURN: Final = [(SESSIONS[2 * lite + (at + lite) % 2], point) for lite in (0, 1) for at, point in enumerate(P)]
"""Each point is met in both ways, one per database: a process takes its time to start."""


@of_each(
    "scenario, point, predecessor",
    each(ON_DRIVERS, COMMITTED),
    each(["awaited psycopg alone"], [(point, Predecessor.COMMITTED) for point in HEART[2:]]),
    each(AWAITED[:1], BEFORE_COMMIT),
    each(AWAITED[1:], [(P.AFTER_DATABASE_COMMIT, Predecessor.COMMITTED)]),
    each(_IN_TURN, [Predecessor.ROLLED_BACK]),
)
def test_a_kill_at_a_point(
    scenario: AnyScenario, point: PausePoint, predecessor: Predecessor, request: pytest.FixtureRequest
) -> None:
    check_a_kill_at_a_point(scenario, point, predecessor, *_worker(request))


@of_each("scenario, point", each(ON_DRIVERS, OF_A_READY_WRITER))
def test_a_kill_at_a_point_of_a_ready_writer(
    scenario: AnyScenario, point: PausePoint, request: pytest.FixtureRequest
) -> None:
    check_a_kill_at_a_point(scenario, point, Predecessor.COMMITTED, *_worker(request), "--ready")


def _worker(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return _WORKERS[request.node.callspec.params["scenario"]]


# ---- cancellations ----------------------------------------------------------------------------------------------


@of_each(
    "scenario, point, predecessor",
    each(ASYNC_SESSIONS[:1], COMMITTED),
    each(ASYNC_SESSIONS[1:], WITHOUT_PREPARE),
)
def test_a_session_cancelled_at_a_point(scenario: AnyScenario, point: PausePoint, predecessor: Predecessor) -> None:
    """A block is cancelled at every suspension in `test_cancellation.py`."""
    scenario.leave_behind(predecessor)
    hook = AtPoint(point, cancel)
    with scenario.writer(hook) as writer:
        check_a_cancellation(scenario, writer, hook, may_be_unresolved=scenario.points_before_commit_request)


# ---- lost commits -------------------------------------------------------------------------------------------------

OF_BLOCKS: Final = ("postgres", "sqlite", *ON_DRIVERS)


@pytest.mark.parametrize("applied", [True, False])
@of_each("scenario", each(OF_BLOCKS + SESSIONS + ASYNC_SESSIONS))
def test_the_outcome_is_found_at_once_where_the_database_answers(scenario: AnyScenario, applied: bool) -> None:
    check_a_lost_commit(scenario, applied=applied)


@pytest.mark.usefixtures("asks_twice")
@pytest.mark.parametrize("applied", [True, False])
@of_each(
    "scenario, resolver, has_row",
    each(OF_BLOCKS + SESSIONS, RESOLVERS, [False]),
    each(ASYNC_SESSIONS, ["resolve", "next write"], [True]),  # to make it, one would open a connection that is not lost
)
def test_the_outcome_is_unknown_until_the_database_is_back(
    scenario: AnyScenario, resolver: str, has_row: bool, applied: bool
) -> None:
    """The next session has begun its transaction before it commits: the lost commit is found out under its lock."""
    check_a_commit_that_is_lost_with_the_database(scenario, resolver, applied=applied, has_row=has_row)
