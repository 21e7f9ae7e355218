"""`PsycopgDualWriter` without crashes: what `test_every_connection.py` does not say of all drivers."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

import psycopg
import pytest
from psycopg import sql
from psycopg_pool import ConnectionPool
from sqlalchemy.orm import sessionmaker

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import (
    ConfigError,
    IllegalStateError,
    TransactionDoomedError,
    TransactionEndedInsideError,
)
from dualwrite.outcome import Outcome, outcome_of
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.psycopg.transaction import PsycopgTransaction
from dualwrite.recipes.psycopg.writer import PsycopgDualTransaction, PsycopgDualWriter
from dualwrite.recipes.sql.identity_table import found_identity
from dualwrite.recipes.sqlalchemy.sessions import dual_write_sessions
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.psycopg_scenario import INSERT, PsycopgScenario, conninfo_of, write_psycopg_events
from tests.crash.scenario import (
    POINTS_BEFORE_COMMIT_REQUEST,
    AtPoint,
    InjectedError,
    Predecessor,
    Seen,
    event_texts,
    write_events,
)
from tests.support.databases import PostgresDatabase
from tests.support.strikes import strike


@pytest.fixture
def scenario(postgres: PostgresDatabase, emulator: Emulator) -> PsycopgScenario:
    return PsycopgScenario(postgres, emulator)


@pytest.fixture
def writer(scenario: PsycopgScenario) -> Iterator[PsycopgDualWriter]:
    with scenario.writer() as made:
        yield made


@pytest.fixture(params=[True, False], ids=["autocommit", "transactional"])
def connection(request: pytest.FixtureRequest, scenario: PsycopgScenario) -> Iterator[psycopg.Connection]:
    """Open a connection of the caller."""
    with psycopg.connect(conninfo_of(scenario.database.url), autocommit=request.param) as made:
        yield made


def put(tx: PsycopgDualTransaction, scenario: PsycopgScenario, number: int) -> None:
    """One event to both sides."""
    tx.connection.execute(INSERT, (number, str(number)))
    tx.send(scenario.topic, key="k", value=str(number))


def break_a_statement(connection: psycopg.Connection) -> None:
    """Violate the primary key of event 1."""
    connection.execute(INSERT, (1, "again"))


# -- where connections come from --


def test_a_failure_to_close_does_not_replace_the_error_of_a_block(
    scenario: PsycopgScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot_close() -> None:
        raise OSError("no more files")

    with writer_on(lambda: psycopg.connect(conninfo_of(scenario.database.url)), scenario) as writer:
        with pytest.raises(InjectedError) as caught, writer.transaction() as tx:
            monkeypatch.setattr(tx.connection, "close", cannot_close)
            raise InjectedError
    assert any("no more files" in note for note in caught.value.__notes__)
    assert outcome_of(caught.value) is Outcome.ROLLED_BACK


def writer_on(database: Any, scenario: PsycopgScenario, **settings: Any) -> PsycopgDualWriter:
    return PsycopgDualWriter(
        database,
        transactional_id=scenario.transactional_id,
        bootstrap_servers=scenario.emulator.bootstrap_servers,
        **settings,
    )


@pytest.mark.parametrize(("threshold", "prepared"), [(None, False), (1, True)])
def test_a_writer_prepares_statements_if_allowed(
    scenario: PsycopgScenario, threshold: int | None, prepared: bool
) -> None:
    """Through a pooler, the name of a prepared statement may be that of another client's."""
    with writer_on(conninfo_of(scenario.database.url), scenario, prepare_threshold=threshold) as writer:
        for number in range(3):
            with writer.transaction() as tx:
                put(tx, scenario, number)
                ours = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'INSERT INTO events%'"
                found = tx.connection.execute(ours).fetchall()[0][0]
    assert (found > 0) is prepared


@pytest.mark.parametrize("wrong", [-1, True, "5"])
def test_a_threshold_that_is_no_number(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="prepare_threshold takes None or a whole number"):
        PsycopgDualWriter("", transactional_id="t", bootstrap_servers="127.0.0.1:1", prepare_threshold=wrong)


def test_a_pool_gets_its_connection_back_as_it_was(scenario: PsycopgScenario) -> None:
    with ConnectionPool(conninfo_of(scenario.database.url), min_size=1, max_size=1, timeout=60) as pool:
        with writer_on(pool, scenario) as writer:
            for _ in range(2):
                with pytest.raises(TransactionDoomedError), writer.transaction() as tx:
                    put(tx, scenario, 1)
                    with pytest.raises(psycopg.errors.UniqueViolation):
                        break_a_statement(tx.connection)
        with pool.connection() as connection:
            assert "commit" not in vars(connection)
            assert connection.cursor_factory is psycopg.Cursor
            connection.execute("SELECT 1")


def test_the_transaction_is_as_the_connection_says(
    scenario: PsycopgScenario, writer: PsycopgDualWriter, connection: psycopg.Connection
) -> None:
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.deferrable = False
    with writer.transaction(connection) as tx:
        assert tx.connection.execute("SHOW transaction_isolation").fetchone() == ("repeatable read",)
        put(tx, scenario, 1)
    connection.read_only = True
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), writer.transaction(connection) as tx:
        tx.send(scenario.topic, value="2")
    scenario.assert_both_sides_agree("1")


# -- savepoints --


def roll_back(transaction: psycopg.Transaction) -> None:
    """Raise the error that ends the block of `transaction` and no other."""
    raise psycopg.Rollback(transaction)


def test_a_refused_commit_is_not_undone_by_a_savepoint(scenario: PsycopgScenario, writer: PsycopgDualWriter) -> None:
    with pytest.raises(TransactionDoomedError), writer.transaction() as tx:
        with pytest.raises(TransactionEndedInsideError), tx.savepoint():
            tx.connection.commit()
        put(tx, scenario, 4)
    scenario.assert_both_sides_agree()


def test_a_rollback_that_leaves_several_savepoints(scenario: PsycopgScenario, writer: PsycopgDualWriter) -> None:
    with writer.transaction() as tx:
        put(tx, scenario, 1)
        with tx.connection.transaction() as outer:
            put(tx, scenario, 2)
            with tx.connection.transaction():
                put(tx, scenario, 3)
                roll_back(outer)
        put(tx, scenario, 4)
    scenario.assert_both_sides_agree("1", "4")


def test_savepoints_as_statements(scenario: PsycopgScenario, writer: PsycopgDualWriter) -> None:
    with writer.transaction() as tx:
        execute = tx.connection.execute
        put(tx, scenario, 1)
        execute("/* one */ SAVEPOINT Mine")
        put(tx, scenario, 2)
        execute(sql.SQL("ROLLBACK TO SAVEPOINT {}").format(sql.Identifier("mine")))
        put(tx, scenario, 3)
        execute(b"-- two\nrollback to mine")
        tx.connection.cursor().execute('SAVEPOINT "Other"')
        put(tx, scenario, 4)
        execute('RELEASE "Other"')
        put(tx, scenario, 5)
    scenario.assert_both_sides_agree("1", "4", "5")


@pytest.mark.parametrize("at", ["_Savepoint.body", "_Savepoint.has_succeeded", "_Savepoint.end"])
def test_an_interrupted_end_of_a_savepoint_dooms_the_block(
    scenario: PsycopgScenario, writer: PsycopgDualWriter, at: str
) -> None:
    with pytest.raises(TransactionDoomedError), writer.transaction() as tx:
        put(tx, scenario, 1)

        def part() -> None:
            with tx.savepoint():
                put(tx, scenario, 2)

        assert strike(at, part)
    scenario.assert_both_sides_agree()


# -- ends of the transaction --


@pytest.mark.parametrize(
    "send",
    [
        lambda cursor: cursor.executemany("SAVEPOINT s", [()]),
        lambda cursor: list(cursor.stream("SAVEPOINT s")),
        lambda cursor: cursor.copy("SAVEPOINT s").__enter__(),
    ],
    ids=["executemany", "stream", "copy"],
)
def test_savepoints_by_other_methods_are_refused(
    scenario: PsycopgScenario, writer: PsycopgDualWriter, send: Callable[[Any], object]
) -> None:
    with pytest.raises(IllegalStateError, match="by a method other than execute"), writer.transaction() as tx:
        put(tx, scenario, 1)
        send(tx.connection.cursor())
    scenario.assert_both_sides_agree()


def test_a_template_string_is_read_as_psycopg_sends_it(scenario: PsycopgScenario, writer: PsycopgDualWriter) -> None:
    template = pytest.importorskip("string.templatelib").Template
    with pytest.raises(TransactionEndedInsideError), writer.transaction() as tx:
        put(tx, scenario, 1)
        tx.connection.execute(template("COMMIT"))
    scenario.assert_both_sides_agree()


def raw(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], statement: str) -> None:
    """Execute past every check of a dual write."""
    connection.pgconn.exec_(statement.encode())


@pytest.mark.parametrize("ending", ["ROLLBACK", "COMMIT"])
def test_the_error_of_a_block_whose_transaction_was_ended_past_the_connection(
    scenario: PsycopgScenario, writer: PsycopgDualWriter, caplog: pytest.LogCaptureFixture, ending: str
) -> None:
    with pytest.raises(InjectedError) as caught, writer.transaction() as tx:
        put(tx, scenario, 1)
        raw(tx.connection, ending)
        raise InjectedError
    assert (tx.outcome, outcome_of(caught.value)) == (None, Outcome.UNKNOWN)
    assert "ended its database transaction" in caplog.text


_UNDER_THE_LOCK = [
    *((False, point, "ROLLBACK") for point in (PausePoint.AFTER_LOCK, PausePoint.AFTER_INIT, PausePoint.AFTER_PREPARE)),
    *((True, point, "ROLLBACK; BEGIN") for point in (PausePoint.AFTER_LOCK, *POINTS_BEFORE_COMMIT_REQUEST)),
]


@pytest.mark.parametrize(("is_ready", "point", "ending"), _UNDER_THE_LOCK)
def test_a_transaction_that_was_ended_under_the_lock(
    scenario: PsycopgScenario, connection: psycopg.Connection, is_ready: bool, point: PausePoint, ending: str
) -> None:
    """By a forked process, for instance: a read without the lock decides nothing, and the row stays as it was."""
    scenario.leave_behind(Predecessor.COMMITTED)
    hook = AtPoint(point, lambda: raw(connection, ending), armed=not is_ready)
    with scenario.writer(hook) as writer:
        if is_ready:
            assert scenario.write(writer, 1).error is None
            hook.arm()
        before = scenario.row()
        with pytest.raises(TransactionEndedInsideError), writer.transaction(connection) as tx:
            put(tx, scenario, 100)
        assert hook.struck
        assert scenario.row() == before
        assert scenario.write(writer, 2).error is None
    scenario.assert_both_sides_agree()


@pytest.mark.parametrize("point", [PausePoint.AFTER_LOCK, PausePoint.AFTER_PREPARE, PausePoint.BEFORE_DATABASE_COMMIT])
def test_a_statement_that_comes_after_the_end_of_the_block_is_refused(
    scenario: PsycopgScenario, connection: psycopg.Connection, point: PausePoint
) -> None:
    """Of a thread that the block has left behind: its row would have no record."""

    def come_late() -> None:
        with pytest.raises(IllegalStateError, match="has ended, so the statement was not sent"):
            connection.execute(INSERT, (7, "7"))
        with pytest.raises(IllegalStateError, match="has ended"), connection.cursor() as cursor:
            cursor.executemany(INSERT, [(8, "8")])

    with scenario.writer(AtPoint(point, come_late)) as writer:
        with writer.transaction(connection) as tx:
            put(tx, scenario, 1)
        assert tx.outcome is Outcome.COMMITTED
    scenario.assert_both_sides_agree("1")


def test_a_connection_that_the_server_has_ended_gets_no_commit(
    scenario: PsycopgScenario, writer: PsycopgDualWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reason comes before the end of the stream; with that, the row need not be read."""
    writer.recover()
    genuine = PsycopgTransaction.commit
    sent: list[bool] = []

    async def ended_before(transaction: PsycopgTransaction) -> None:
        with psycopg.connect(conninfo_of(scenario.database.url)) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", (transaction.connection.info.backend_pid,))
        ended = select.poll()  # the proxy in between passes the end of the stream on later
        ended.register(transaction.connection.fileno(), select.POLLRDHUP)
        assert ended.poll(60_000)
        try:
            await genuine(transaction)
        finally:
            sent.append(transaction.commit_was_sent)

    with monkeypatch.context() as patched:
        patched.setattr(PsycopgTransaction, "commit", ended_before)
        with pytest.raises(psycopg.errors.AdminShutdown, match="administrator command"):
            with writer.transaction() as tx:
                put(tx, scenario, 1)
    assert sent == [False]
    assert tx.outcome is Outcome.ROLLED_BACK
    assert writer.state is SlotState.READY
    assert scenario.write(writer, 2).error is None
    scenario.assert_both_sides_agree()


def test_unfinished_calls_at_the_end_of_a_block_are_refused(
    scenario: PsycopgScenario, writer: PsycopgDualWriter
) -> None:
    for unfinished in (psycopg.Connection.transaction, psycopg.Connection.pipeline):
        with pytest.raises(IllegalStateError, match=r"ended inside connection\."), ExitStack() as stack:
            with writer.transaction() as tx:
                put(tx, scenario, 1)
                stack.enter_context(getattr(tx.connection, unfinished.__name__)())
    with pytest.raises(IllegalStateError, match="stream"), writer.transaction() as tx:
        put(tx, scenario, 1)
        rows = tx.connection.cursor().stream("SELECT generate_series(1, 10)")
        next(rows)
    assert scenario.write(writer, 2).error is None
    scenario.assert_both_sides_agree()


# -- connections whose COMMIT is not the decision --


def test_no_dual_write_in_a_two_phase_transaction(scenario: PsycopgScenario, writer: PsycopgDualWriter) -> None:
    with psycopg.connect(conninfo_of(scenario.database.url)) as connection:
        connection.tpc_begin("ours")
        with pytest.raises(IllegalStateError, match="tpc_begin"), writer.transaction(connection):
            pass
        connection.tpc_rollback()
        with pytest.raises(psycopg.ProgrammingError), writer.transaction(connection) as tx:
            put(tx, scenario, 1)
            tx.connection.tpc_begin("ours")
    scenario.assert_both_sides_agree()


def test_a_cursor_factory_that_is_no_class(
    scenario: PsycopgScenario, writer: PsycopgDualWriter, connection: psycopg.Connection
) -> None:
    connection.cursor_factory = lambda *arguments, **keywords: psycopg.Cursor(*arguments, **keywords)  # type: ignore
    with pytest.raises(IllegalStateError, match="cursor_factory"), writer.transaction(connection):
        pass


def test_a_block_is_entered_once(scenario: PsycopgScenario, writer: PsycopgDualWriter) -> None:
    block = writer.transaction()
    with block as tx:
        with pytest.raises(IllegalStateError, match="already running"):
            block.__enter__()
        put(tx, scenario, 1)
    scenario.assert_both_sides_agree("1")


def test_sessions_need_a_writer_on_sqlalchemy(writer: Any) -> None:
    with pytest.raises(ConfigError, match="takes a writer on SQLAlchemy, not PsycopgDualWriter"):
        dual_write_sessions(sessionmaker(), writer)


# -- together with DualWriter --


def test_blocking_and_asynchronous_writers_take_an_id_over_from_each_other(scenario: PsycopgScenario) -> None:
    def with_sqlalchemy() -> DualWriter:
        return scenario.make(DualWriter, scenario.database.engine, None)

    kinds: tuple[tuple[Callable[[], Any], Callable[[Any, str, int], Seen]], ...] = (
        (with_sqlalchemy, write_events),
        (scenario.writer, write_psycopg_events),
    )
    scenario.leave_behind(Predecessor.COMMITTED)
    for number in range(1, 5):
        make, write = kinds[number % 2]
        writer = make()
        assert write(writer, scenario.topic, number).error is None
        scenario.expected += event_texts(str(number))
        writer.close()
    with with_sqlalchemy() as older, scenario.writer() as newer:
        assert write_events(older, scenario.topic, 5).error is None
        assert write_psycopg_events(newer, scenario.topic, 6).error is None
        scenario.expected += [*event_texts("5"), *event_texts("6")]
        assert write_events(older, scenario.topic, 7).error is None  # its row is another one, so it takes over
        assert write_psycopg_events(newer, scenario.topic, 8).error is None
        scenario.expected += [*event_texts("7"), *event_texts("8")]
    scenario.assert_both_sides_agree()


# -- processes --


def test_an_identity_that_another_process_has_just_made(
    scenario: PsycopgScenario,
) -> None:
    with scenario.writer() as first:
        first.recover()
    looks = mock.AsyncMock(wraps=found_identity, side_effect=[None, mock.DEFAULT])
    with mock.patch("dualwrite.recipes.sql.database.found_identity", looks), scenario.writer() as second:
        assert scenario.write(second, 1).error is None
    assert looks.await_count == 2
    scenario.assert_both_sides_agree()
