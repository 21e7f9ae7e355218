"""Group commit with each library, in threads and in tasks: the same scripts, and the same outcomes."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import (
    GroupGivenUpError,
    IllegalStateError,
    KafkaUnreachableError,
    OutcomeUnknown,
    PoolTimeoutError,
    TransactionDoomedError,
    TransactionEndedInsideError,
)
from dualwrite.recipes.asyncpg import driver
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.pool.group_settings import GroupCommit
from dualwrite.testing.network_proxy import NetworkProxy
from dualwrite.testing.postgres import PostgresServer
from tests.crash import group_worker
from tests.crash.group_styles import (
    PATIENCE_S,
    STYLES,
    AsyncpgTasks,
    Member,
    OrdinaryError,
    PsycopgThreads,
    SqlAlchemyThreads,
    Style,
    TaskStyle,
)
from tests.crash.group_worker import LEASE_MS, PATIENT
from tests.crash.killed import run_until_killed
from tests.crash.psycopg_scenario import PsycopgScenario
from tests.crash.scenario import POINTS_AFTER_THE_DECISION, AtPoint
from tests.recipes.pools import QUIET_LEASE_MS, drop_idle_connections, prefix_of, written
from tests.support.conditions import until
from tests.support.databases import PostgresDatabase, event_bodies, unique
from tests.support.topics import read_topic

Open = Callable[..., Style]


@pytest.fixture
def scenario(postgres_server: PostgresServer, emulator: Emulator) -> Iterator[PsycopgScenario]:
    database = PostgresDatabase(postgres_server)
    yield PsycopgScenario(database, emulator, transactional_id=f"{unique('group')}-0")
    database.close()


@pytest.fixture(params=STYLES, ids=lambda style: style.__name__)
def open_style(request: pytest.FixtureRequest, scenario: PsycopgScenario) -> Iterator[Open]:
    with ExitStack() as stack:

        def open_one(group_commit: GroupCommit = PATIENT, *, url: sa.URL | None = None, **settings: Any) -> Style:
            given = {"lease_ms": QUIET_LEASE_MS, "lock_timeout_ms": 60_000, "max_block_ms": 60_000, **settings}
            style: Style = request.param(
                url or scenario.database.engine.url,
                scenario.topic,
                group_commit,
                prefix=prefix_of(scenario),
                bootstrap_servers=scenario.emulator.bootstrap_servers,
                **given,
            )
            return stack.enter_context(style)

        yield open_one


def in_order(scenario: PsycopgScenario) -> list[str]:
    return [value for _, value in read_topic(scenario.emulator.bootstrap_servers, scenario.topic)]


def test_blocks_that_come_together_are_committed_together(scenario: PsycopgScenario, open_style: Open) -> None:
    members = open_style().together([[] for _ in range(8)])
    assert [member.error for member in members] == [None] * 8
    assert {member.outcome for member in members} == {Outcome.COMMITTED}
    assert len({(member.tx.group, member.tx.transactional_id, member.tx.prepared_state) for member in members}) == 1
    assert in_order(scenario) == [str(number) for number in range(8)]
    assert written(scenario) == {str(number) for number in range(8)}
    scenario.assert_nothing_open()


@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "between", "last"])
@pytest.mark.parametrize(
    ("failure", "error"),
    [
        ("raise", OrdinaryError),
        ("bad", (psycopg.Error, asyncpg.PostgresError, sa.exc.DBAPIError)),
        ("swallow", TransactionDoomedError),
        ("refused", TransactionDoomedError),
        ("commit", (TransactionDoomedError, TransactionEndedInsideError)),
        ("rollback", (TransactionDoomedError, TransactionEndedInsideError)),
        ("rollback try rollback try", (TransactionDoomedError, TransactionEndedInsideError)),
    ],
)
def test_a_block_that_fails_fails_by_itself(
    scenario: PsycopgScenario, open_style: Open, failure: str, error: Any, place: int
) -> None:
    scripts: list[list[str]] = [[], [], []]
    scripts[place] = failure.split()
    members = open_style().together(scripts)
    failed = members.pop(place)
    assert isinstance(failed.error, error), failed.error
    assert failed.outcome is Outcome.ROLLED_BACK
    assert [(member.error, member.outcome) for member in members] == [(None, Outcome.COMMITTED)] * 2
    assert written(scenario) == {"0", "1", "2"} - {str(place)}
    scenario.assert_nothing_open()


@pytest.mark.parametrize("open_style", [AsyncpgTasks], indirect=True)
@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "between", "last"])
@pytest.mark.parametrize(
    "failure",
    [
        "swallow a limit of time",
        "swallow a cancellation",
        "swallow a failed source of a COPY",
        "swallow a failed sink of a COPY",
        "swallow a wrong value of a COPY",
        "swallow a failed source of many",
    ],
)
def test_a_block_that_swallows_an_error_of_asyncpg_fails_by_itself(
    scenario: PsycopgScenario, open_style: Open, failure: str, place: int
) -> None:
    """The server says that the transaction has failed with the next statement, which is one of the next block."""
    scripts: list[list[str]] = [[], [], []]
    scripts[place] = [failure]
    members = open_style().together(scripts)
    failed = members.pop(place)
    assert isinstance(failed.error, TransactionDoomedError), failed.error
    assert failed.outcome is Outcome.ROLLED_BACK
    assert [(member.error, member.outcome) for member in members] == [(None, Outcome.COMMITTED)] * 2
    assert written(scenario) == {"0", "1", "2"} - {str(place)}
    scenario.assert_nothing_open()


@pytest.mark.parametrize("open_style", [AsyncpgTasks], indirect=True)
@pytest.mark.parametrize("failure", ["swallow a limit of time", "swallow a cancellation"])
def test_a_cancel_request_without_an_answer_takes_the_group_with_it(
    postgres_server: PostgresServer,
    scenario: PsycopgScenario,
    open_style: Open,
    failure: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It might cancel a statement of the next block."""
    monkeypatch.setattr(driver, "_ROLLBACK_S", 0.05)
    answers = threading.Event()
    with NetworkProxy.for_database(postgres_server.url) as proxy:

        def hold_up(request: bytes) -> bool:
            if request[4:8] == _CANCEL_REQUEST:
                answers.wait(PATIENCE_S)
            return False

        proxy.cut_at(hold_up)
        style = open_style(url=proxy.through(scenario.database.url))
        members = style.together([[], [failure], []])
        answers.set()
        assert isinstance(members[0].error, IllegalStateError)
        assert "statement was in progress; neither" in str(members[0].error)
        assert isinstance(members[1].error, TransactionDoomedError)
        assert [member.outcome for member in members] == [Outcome.ROLLED_BACK] * 2 + [Outcome.COMMITTED]
        assert members[2].error is None
    assert written(scenario) == {"2"}
    scenario.assert_nothing_open()


_CANCEL_REQUEST = (80877102).to_bytes(4, "big")


@pytest.mark.parametrize("then", [[], ["raise"]], ids=["ends", "fails"])
def test_a_block_that_undoes_its_neighbour_takes_the_group_with_it(
    scenario: PsycopgScenario, open_style: Open, then: list[str]
) -> None:
    members = open_style().together([[], [], ["steal", *then], []])
    assert [type(member.error) for member in members[:2]] == [TransactionEndedInsideError] * 2
    assert isinstance(members[2].error, OrdinaryError if then else TransactionEndedInsideError)
    assert [member.outcome for member in members] == [Outcome.ROLLED_BACK] * 3 + [Outcome.COMMITTED]
    assert written(scenario) == {"3"}
    scenario.assert_nothing_open()


def test_a_part_of_a_block_that_fails(scenario: PsycopgScenario, open_style: Open) -> None:
    members = open_style().together([["part"], ["part"], []])
    assert [member.error for member in members] == [None] * 3
    assert written(scenario) == {"0", "1", "2"}


@pytest.mark.parametrize("last", [["put"], ["send"], ["pass"], ["raise"]], ids=lambda script: script[0])
def test_blocks_that_send_no_statement(scenario: PsycopgScenario, open_style: Open, last: list[str]) -> None:
    scripts = [["hold"], ["send"], ["pass"], ["raise"], ["put"], ["send"], last]
    members = open_style().waiting(scripts)
    members[0].hold.set()
    failed = [member.number for member in members if isinstance(member.error, OrdinaryError)]
    assert failed == ([3, 6] if last == ["raise"] else [3])
    assert [member.number for member in members if member.outcome is not Outcome.COMMITTED] == failed
    assert event_bodies(scenario.database) == (["4", "6"] if last == ["put"] else ["4"])
    assert in_order(scenario) == ["1", "4", "5", *(["6"] if last in (["put"], ["send"]) else [])]
    scenario.assert_nothing_open()


def test_a_connection_that_is_lost_between_two_blocks(scenario: PsycopgScenario, open_style: Open) -> None:
    members = open_style().waiting([["put", "hold"], ["put"], ["put"]])
    scenario.database.cut()
    members[0].hold.set()
    assert members[0].error is not None
    assert [member.error for member in members[1:]] == [None, None]
    assert [member.outcome for member in members] == [Outcome.ROLLED_BACK, Outcome.COMMITTED, Outcome.COMMITTED]
    assert written(scenario) == {"1", "2"}
    scenario.assert_nothing_open()


@pytest.mark.parametrize("first", ["put", "send", "part"])
def test_a_connection_that_is_lost_with_the_savepoint_of_a_block(
    scenario: PsycopgScenario, open_style: Open, first: str
) -> None:
    """The block hears of it with its first statement, at the latest at its end, or runs in another group."""
    style = open_style()
    members = style.waiting([["put", "hold"], [first], ["put"]])
    assert isinstance(scenario.database, PostgresDatabase)
    scenario.database.proxy.cut_at(lambda request: b"SAVEPOINT dualwrite_block_1" in request)
    members[0].hold.set()
    lost = members[: 2 if style.sends_savepoints_ahead else 1]
    assert [member for member in members if member.error is not None] == lost
    assert {member.outcome for member in lost} == {Outcome.ROLLED_BACK}
    rows = [str(member.number) for member in members if member not in lost and "put" in member.script]
    assert event_bodies(scenario.database) == rows
    scenario.assert_nothing_open()


def test_what_a_block_sees_of_its_neighbours(open_style: Open) -> None:
    count = "SELECT count(*) FROM events"
    style = open_style()
    members = style.together([[count], ["raise"], [count]])
    assert [member.seen for member in members] == [[[(1,)]], [], [[(2,)]]]
    assert style.write(9, count, alone=True).seen == [[(2,)]]


def test_settings_do_not_leak_into_the_next_block(open_style: Open) -> None:
    shown = "SHOW statement_timeout"
    limited = "SELECT set_config('statement_timeout', '77s', true)"
    members = open_style().together([[limited], [shown], ["SELECT 1"]])
    assert [member.error for member in members] == [None] * 3
    assert members[1].seen == [[("0",)]]
    assert members[0].tx.group != members[1].tx.group == members[2].tx.group


@pytest.mark.parametrize("point", list(PausePoint))
def test_an_error_at_a_point_is_that_of_all_blocks(
    scenario: PsycopgScenario, open_style: Open, point: PausePoint
) -> None:
    def fail() -> None:
        raise OrdinaryError

    style = open_style(pause=AtPoint(point, fail), max_writers=2)
    members = style.together([[], [], []])
    assert [type(member.error) for member in members] == [OrdinaryError] * 3
    style.write(3)
    until(lambda: not style.pool.status.set_aside, PATIENCE_S)  # the background commits Kafka's side of what is decided
    is_decided = point in POINTS_AFTER_THE_DECISION
    assert {member.outcome for member in members} == {Outcome.COMMITTED if is_decided else Outcome.ROLLED_BACK}
    assert written(scenario) == {"3", *({"0", "1", "2"} if is_decided else ())}
    scenario.assert_nothing_open()


def test_a_block_of_its_own_beside_a_group(scenario: PsycopgScenario, open_style: Open) -> None:
    style = open_style()
    held = style.start(0, "put", "hold")
    assert held.holds.wait(PATIENCE_S)
    alone = style.write(1, alone=True)
    assert alone.tx.group is None
    held.hold.set()
    assert held.error is None
    assert held.tx.group is not None
    assert in_order(scenario) == ["1", "0"]


def test_short_blocks_do_not_wait_for_a_slow_one(scenario: PsycopgScenario, open_style: Open) -> None:
    style = open_style(GroupCommit(max_groups=1, slow_block_ms=1))
    slow = style.start(0, "put", "hold")
    assert slow.holds.wait(PATIENCE_S)
    for number in (1, 2, 3):
        style.write(number)
    slow.hold.set()
    assert slow.error is None
    assert written(scenario) == {"0", "1", "2", "3"}


def test_a_group_whose_block_takes_too_long_is_given_up(scenario: PsycopgScenario, open_style: Open) -> None:
    style = open_style(GroupCommit(max_groups=1, slow_block_ms=600_000, max_block_ms=1_000))
    first = style.start(0, "put", "hold")
    assert first.holds.wait(PATIENCE_S)
    late = style.start(1, "put", "hold", "put")
    until(lambda: style.groups.waiting == 1, PATIENCE_S)
    first.hold.set()
    assert isinstance(first.error, GroupGivenUpError)
    assert first.outcome is Outcome.ROLLED_BACK
    late.hold.set()
    assert late.error is not None
    assert late.outcome is Outcome.ROLLED_BACK
    style.write(2)
    assert written(scenario) == {"2"}
    scenario.assert_nothing_open()


def test_a_deadlock_takes_one_block_and_not_its_group(scenario: PsycopgScenario, open_style: Open) -> None:
    style = open_style(GroupCommit(max_groups=2, slow_block_ms=1, max_block_ms=600_000))
    style.write(100, "put")
    style.write(200, "put")
    lock = "SELECT id FROM events WHERE id = {} FOR UPDATE"
    one = style.start(0, "put", lock.format(100), "hold", lock.format(200))
    assert one.holds.wait(PATIENCE_S)
    two = style.start(1, "put", lock.format(200), "hold", lock.format(100))
    assert two.holds.wait(PATIENCE_S)
    one.hold.set()
    two.hold.set()
    failed = [member for member in (one, two) if member.error is not None]
    assert len(failed) == 1
    assert "deadlock detected" in str(failed[0].error)
    assert written(scenario) == {"100", "200", str(1 - failed[0].number)}
    scenario.assert_nothing_open()


def test_who_gets_no_turn_in_time_hears_why(scenario: PsycopgScenario, open_style: Open) -> None:
    style = open_style(acquire_timeout_ms=2_000)
    style.write(9)
    held = style.start(0, "put", "hold")
    assert held.holds.wait(PATIENCE_S)
    assert isinstance(style.start(1).error, PoolTimeoutError)
    held.hold.set()
    assert held.error is None
    assert written(scenario) == {"9", "0"}


def test_blocks_that_wait_for_their_turn_are_counted(scenario: PsycopgScenario, open_style: Open) -> None:
    style = open_style()
    style.write(9)
    held = style.start(0, "put", "hold")
    assert held.holds.wait(PATIENCE_S)
    waiting = [style.start(1), style.start(2)]
    until(lambda: style.pool.status.waiting == 2, PATIENCE_S)
    held.hold.set()
    assert [member.error for member in [held, *waiting]] == [None, None, None]
    assert style.pool.status.waiting == 0
    assert written(scenario) == {"9", "0", "1", "2"}


_REFUSES_ONE_AT_COMMIT = """
    CREATE FUNCTION refuse_one() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'one too many' USING ERRCODE = 'check_violation'; END $$;
    CREATE CONSTRAINT TRIGGER refuse_one AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.body = '1') EXECUTE FUNCTION refuse_one()
"""


def test_a_deferred_constraint_that_fails_at_commit_takes_the_group_with_it(
    scenario: PsycopgScenario, open_style: Open
) -> None:
    with scenario.database.engine.begin() as connection:
        connection.exec_driver_sql(_REFUSES_ONE_AT_COMMIT)
    style = open_style()
    members = style.together([[], [], []])
    refused = (psycopg.errors.CheckViolation, asyncpg.CheckViolationError, sa.exc.IntegrityError)
    assert all(isinstance(member.error, refused) for member in members)
    assert {member.outcome for member in members} == {Outcome.ROLLED_BACK}
    assert written(scenario) == set()
    assert style.write(7).outcome is Outcome.COMMITTED
    assert written(scenario) == {"7"}
    scenario.assert_nothing_open()


def test_blocks_that_wait_hear_that_kafka_is_away(scenario: PsycopgScenario, open_style: Open) -> None:
    style = open_style()
    style.write(9)
    held = style.start(0, "put", "hold")
    assert held.holds.wait(PATIENCE_S)
    waits = style.start(1)
    until(lambda: style.groups.waiting == 1, PATIENCE_S)
    scenario.emulator.crash_node(0)
    failed = style.start(2, "put", alone=True)
    assert isinstance(failed.error, KafkaUnreachableError)
    assert isinstance(waits.error, KafkaUnreachableError)
    held.hold.set()
    assert isinstance(held.error, KafkaUnreachableError)
    scenario.emulator.start_node(0)
    assert waits.tx is None


@pytest.mark.parametrize("seed", range(3))
def test_any_mixture_leaves_both_sides_equal(scenario: PsycopgScenario, open_style: Open, seed: int) -> None:
    """Blocks that succeed, fail in every way and are cancelled, while connections of both sides break."""
    chance = random.Random(seed)
    steps = ["part", "send", "pass", "raise", "bad", "swallow", "refused", "rollback", "SELECT 1"]
    style = open_style(GroupCommit(max_groups=2), max_writers=4)
    ended: list[Member] = []

    def worker(name: int) -> None:
        for number in range(name * 100, name * 100 + 12):
            script = chance.sample(steps, chance.choice([0, 0, 1, 2]))
            member = style.start(number, *script[:1], "put", *script[1:])
            if isinstance(style, TaskStyle) and chance.random() < 0.15:
                assert member.future is not None
                member.future.cancel()
            with suppress(CancelledError):
                _ = member.error
            ended.append(member)
            if chance.random() < 0.03:
                scenario.database.cut()
            if chance.random() < 0.03:
                scenario.emulator.disconnect_clients()

    with ThreadPoolExecutor(8) as workers:
        list(workers.map(worker, range(8)))
    until(lambda: all(member.outcome is not None for member in ended if member.tx is not None), PATIENCE_S)
    until(lambda: style.groups.open == style.groups.waiting == 0, PATIENCE_S)
    until(partial(has_nothing_open, scenario), PATIENCE_S)  # what was in doubt is resolved in the background
    committed = [member for member in ended if member.outcome is Outcome.COMMITTED]
    assert len(committed) > 20
    records = Counter({str(member.number): 1 + member.script.count("send") for member in committed})
    assert Counter(in_order(scenario)) == records
    assert sorted(event_bodies(scenario.database)) == sorted(records)


def has_nothing_open(scenario: PsycopgScenario) -> bool:
    with suppress(AssertionError):
        scenario.assert_nothing_open()
        return True
    return False


# ---- a process that is killed, interrupted or closed ----------------------------------------------------------------


@pytest.mark.parametrize("point", list(PausePoint))
def test_a_process_that_is_killed_at_a_point(scenario: PsycopgScenario, open_style: Open, point: PausePoint) -> None:
    """Either all blocks of the group are on both sides, or none is; the one that failed never is."""
    successor = open_style(lease_ms=LEASE_MS)
    run_until_killed(
        group_worker.main,
        *("--style", type(successor).__name__, "--topic", scenario.topic, "--point", point),
        *("--database-url", scenario.database.url.render_as_string(hide_password=False)),
        *("--bootstrap-servers", scenario.emulator.bootstrap_servers, "--prefix", prefix_of(scenario)),
    )
    successor.write(9)
    recover = getattr(successor, "run", lambda found: found)

    def agrees() -> bool:
        recover(successor.pool.recover())
        return has_nothing_open(scenario)

    until(agrees, PATIENCE_S)
    is_decided = point in POINTS_AFTER_THE_DECISION
    assert written(scenario) == {"9", *({"1", "2", "4"} if is_decided else ())}


@pytest.mark.parametrize("style", [PsycopgThreads, SqlAlchemyThreads])
@pytest.mark.parametrize("point", list(PausePoint))
def test_an_interruption_of_the_thread_that_commits(
    scenario: PsycopgScenario, style: Callable[..., Any], point: PausePoint
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with style(
        scenario.database.engine.url,
        scenario.topic,
        PATIENT,
        prefix=prefix_of(scenario),
        bootstrap_servers=scenario.emulator.bootstrap_servers,
        lease_ms=QUIET_LEASE_MS,
        max_writers=2,
        pause=AtPoint(point, interrupt),
    ) as opened:
        members = opened.together([[], [], []])
        is_decided = point in POINTS_AFTER_THE_DECISION
        assert [type(member.error) for member in members] == [
            *([type(None) if is_decided else GroupGivenUpError] * 2),
            KeyboardInterrupt,
        ]
        assert {member.outcome for member in members} == {Outcome.COMMITTED if is_decided else Outcome.ROLLED_BACK}
        opened.write(3)
        until(lambda: not opened.pool.status.set_aside, PATIENCE_S)
    assert written(scenario) == {"3", *({"0", "1", "2"} if is_decided else ())}
    scenario.assert_nothing_open()


@pytest.mark.parametrize("open_style", [PsycopgThreads, SqlAlchemyThreads], indirect=True)
@pytest.mark.parametrize("applied", [True, False])
def test_an_outcome_that_is_unknown_is_unknown_to_all_blocks(
    scenario: PsycopgScenario, open_style: Open, applied: bool
) -> None:
    def lose_commit_and_database() -> None:
        scenario.database.lose_commit(applied=applied)
        scenario.database.refuse_new_connections()
        drop_idle_connections(style.pool)

    strike = AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, lose_commit_and_database, armed=False)
    style = open_style(pause=strike, resolve_timeout_ms=100, max_writers=2)
    style.pool.recover()  # so that the background, which sweeps as it begins, commits nothing after this
    style.write(9)
    strike.arm()
    members = style.together([[], [], []])
    assert [type(member.error) for member in members] == [OutcomeUnknown] * 3
    assert {member.outcome for member in members} == {None}
    scenario.database.come_back()
    expected = Outcome.COMMITTED if applied else Outcome.ROLLED_BACK
    until(lambda: {member.outcome for member in members} == {expected}, PATIENCE_S)
    style.write(3)
    assert written(scenario) == {"9", "3", *({"0", "1", "2"} if applied else ())}
    scenario.assert_nothing_open()


def test_closing_waits_for_those_who_have_asked(scenario: PsycopgScenario, open_style: Open) -> None:
    style = open_style()
    held = style.start(0, "put", "hold")
    assert held.holds.wait(PATIENCE_S)
    waits = style.start(1)
    until(lambda: style.groups.waiting == 1, PATIENCE_S)
    closing = style.closing()
    until(lambda: style.pool.coordinator.registry.is_closed, PATIENCE_S)
    refused = style.start(2)
    assert isinstance(refused.error, IllegalStateError)
    held.hold.set()
    assert [held.error, waits.error, closing.exception(PATIENCE_S)] == [None] * 3
    assert written(scenario) == {"0", "1"}


# ---- one worker -----------------------------------------------------------------------------------------------------


def round_trips(sent: bytes) -> int:
    """Return how many of PostgreSQL's messages wait for an answer; how a driver cuts them for the network may vary."""
    count = at = 0
    while at < len(sent):
        count += sent[at : at + 1] in (b"Q", b"S")  # Query and Sync
        at += 1 + int.from_bytes(sent[at + 1 : at + 5])
    assert at == len(sent)
    return count


def test_a_block_that_is_alone_costs_what_it_costs_by_itself(
    postgres_server: PostgresServer, scenario: PsycopgScenario, open_style: Open
) -> None:
    requests: list[bytes] = []
    with NetworkProxy.for_database(postgres_server.url) as proxy:

        def note(request: bytes) -> bool:
            requests.append(request)
            return False

        proxy.cut_at(note)
        style = open_style(url=proxy.through(scenario.database.url))
        for number in range(8):  # so that psycopg has prepared all statements, in both ways
            style.write(number)
            style.write(100 + number, alone=True)

        def count(first: int, *, alone: bool) -> int:
            del requests[:]
            for number in range(first, first + 5):
                style.write(number, alone=alone)
            return round_trips(b"".join(requests))

        assert count(10, alone=False) == count(20, alone=True)
        assert style.groups.open == 0
