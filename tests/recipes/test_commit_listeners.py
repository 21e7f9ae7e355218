"""Listeners of SQLAlchemy's event "commit" that undo a dual write past SQLAlchemy, right before COMMIT is sent.

PostgreSQL answers COMMIT of a failed transaction with ROLLBACK, which is no error, and most drivers do not report it. A
listener may also be called after ours. In any case, both sides are written, or neither is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker
from sqlalchemy.util import await_only

from dualwrite import Outbox
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import IllegalStateError, TransactionDoomedError, TransactionEndedInsideError
from dualwrite.outcome import Outcome
from dualwrite.recipes.sqlalchemy.sessions import dual_write_sessions, send
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from dualwrite.recipes.sqlalchemy.writer_async import AsyncDualWriter
from tests.crash.awaited import AwaitedWriter
from tests.crash.scenario import InjectedError, Scenario
from tests.recipes.outboxes import assert_published, outbox_pool, settings_for
from tests.support.awaited_databases import awaited_through_faults
from tests.support.databases import (
    Database,
    MariaDbDatabase,
    PostgresDatabase,
    SqliteDatabase,
    event_bodies,
    events,
    unique,
)
from tests.support.topics import read_topic

DATABASES: Final = {
    "psycopg": "postgres",
    "psycopg2": "postgres",
    "pymysql": "mariadb",
    "sqlite": "sqlite",
    "psycopg_async": "postgres",
    "asyncpg": "postgres",
    "aiosqlite": "sqlite",
}

Fault = tuple[str, ...]

UNDONE: Final[dict[str, Fault]] = {
    "fails": ("SELECT * FROM no_such_table",),
    "rolls back": ("ROLLBACK",),
    "goes on": ("ROLLBACK", "BEGIN"),
}
ERRORS: Final = (TransactionDoomedError, TransactionEndedInsideError, sa.exc.DBAPIError)


# ---- tools ----------------------------------------------------------------------------------------------------------


class Site:
    """A database and a broker, and an engine of one driver whose listener sends a statement at COMMIT."""

    def __init__(self, driver: str, database: Any, emulator: Emulator, runner: asyncio.Runner) -> None:
        self.scenario = Scenario(database, emulator, transactional_id=f"{unique('commit')}-0")
        self.driver = driver
        self.sends: Fault = ()
        self._runner = runner
        self._is_awaited = driver in ("psycopg_async", "asyncpg", "aiosqlite")
        self.engine: Any
        if self._is_awaited:
            self.engine = awaited_through_faults(database, driver.removesuffix("_async"))
            self._listened = self.engine.sync_engine
        else:
            self.engine = self._listened = sa.create_engine(_url(driver, database))

    def listen(self) -> None:
        sa.event.listen(self._listened, "commit", self._on_commit)

    def _on_commit(self, connection: sa.Connection) -> None:
        driver: Any = connection.connection.driver_connection
        for sql in self.sends:
            with suppress(Exception):  # for which the application does not care
                if self._is_awaited:
                    await_only(driver.execute(sql))
                else:
                    driver.cursor().execute(sql)

    @contextmanager
    def writer(self, **settings: Any) -> Iterator[Any]:
        """Open a writer; one of asyncio has the blocking names."""
        scenario = self.scenario
        kind: Any = AsyncDualWriter if self._is_awaited else DualWriter
        made = scenario.make(kind, self.engine, **{"pause": None, **settings})
        with AwaitedWriter(self._runner, made) if self._is_awaited else made as writer:
            yield writer

    @contextmanager
    def pool(self, **settings: Any) -> Iterator[Any]:
        make: Any = AsyncDualWriter if self._is_awaited else DualWriter
        made = make(self.engine, **settings)
        with AwaitedWriter(self._runner, made) if self._is_awaited else made as pool:
            yield pool

    @contextmanager
    def listened(self, opened: AbstractContextManager[Any], *, is_first: bool) -> Iterator[Any]:
        """Open a writer or a pool, and listen before it does, or after."""
        if is_first:
            self.listen()
        with opened as writer:
            if not is_first:
                self.listen()
            yield writer

    def put(self, tx: Any, number: int) -> None:
        """Write one event to the table and to the topic."""
        self.insert(tx, number)
        tx.send(self.scenario.topic, key="k", value=str(number))

    def insert(self, tx: Any, number: int) -> None:
        """Write one event to the table alone."""
        insert = sa.insert(events).values(id=number, event_key="k", body=str(number))
        if self._is_awaited:
            self._runner.run(tx.session.execute(insert))
        else:
            tx.session.execute(insert)

    def write(self, writer: Any, number: int, sends: Fault = ()) -> Outcome | None:
        """Write a block at whose COMMIT the listener sends a statement. Return its outcome."""
        self.sends = sends
        with suppress(*ERRORS):
            with writer.transaction() as tx:
                self.put(tx, number)
        self.sends = ()
        outcome: Outcome | None = tx.outcome
        return outcome

    def assert_written(self, *numbers: int) -> None:
        expected = [str(number) for number in numbers]
        in_topic = [value for _, value in read_topic(self.scenario.emulator.bootstrap_servers, self.scenario.topic)]
        assert (event_bodies(self.scenario.database), in_topic) == (expected, expected)
        self.scenario.assert_nothing_open()

    def after(self, sends: Fault) -> Outcome | None:
        """The outcome of a block that a listener has undone: PostgreSQL cannot tell a ROLLBACK from a COMMIT."""
        return None if self.is_postgres and sends[0] == "ROLLBACK" else Outcome.ROLLED_BACK

    @property
    def is_postgres(self) -> bool:
        return DATABASES[self.driver] == "postgres"

    def close(self) -> None:
        if self._is_awaited:
            self._runner.run(self.engine.dispose())
        else:
            self.engine.dispose()


def _url(driver: str, database: Any) -> sa.URL:
    url: sa.URL = database.url
    return url.set(drivername="postgresql+psycopg2") if driver == "psycopg2" else url


def opened(driver: str, request: pytest.FixtureRequest) -> Database:
    if DATABASES[driver] == "sqlite":
        return SqliteDatabase(request.getfixturevalue("tmp_path"))
    if DATABASES[driver] == "mariadb":
        return MariaDbDatabase(request.getfixturevalue("mariadb_server"))
    return PostgresDatabase(request.getfixturevalue("postgres_server"))


@pytest.fixture(params=DATABASES)
def site(request: pytest.FixtureRequest, emulator: Emulator) -> Iterator[Site]:
    database = opened(request.param, request)
    with asyncio.Runner() as runner:
        made = Site(request.param, database, emulator, runner)
        yield made
        made.close()
    database.close()


POSTGRES = pytest.mark.parametrize(
    "site", [name for name, kind in DATABASES.items() if kind == "postgres"], indirect=True
)
ORDER = pytest.mark.parametrize("is_first", [True, False], ids=["before ours", "after ours"])


# ---- undone by a listener -------------------------------------------------------------------------------------------


@ORDER
def test_a_refused_block_is_rolled_back_on_both_sides(site: Site, is_first: bool) -> None:
    written = [0]
    with site.listened(site.writer(), is_first=is_first) as writer:
        assert site.write(writer, 0) is Outcome.COMMITTED
        for number, sends in enumerate(UNDONE.values(), start=1):
            if sends is UNDONE["fails"] and not site.is_postgres:
                continue  # a statement that fails undoes nothing there but itself
            assert site.write(writer, 10 * number, sends) is site.after(sends), sends
            assert site.write(writer, number) is Outcome.COMMITTED, sends
            written.append(number)
    site.assert_written(*written)


@ORDER
def test_a_listener_that_undoes_nothing_has_no_influence(site: Site, is_first: bool) -> None:
    with site.listened(site.writer(), is_first=is_first) as writer:
        for number, sends in enumerate([(), ("SELECT 1",)], start=1):
            assert site.write(writer, number, sends) is Outcome.COMMITTED
    site.assert_written(1, 2)


@POSTGRES
@ORDER
def test_a_block_with_an_outbox(site: Site, is_first: bool) -> None:
    site.scenario.transactional_id = f"{unique('commit')}-outbox-0"
    with site.listened(site.pool(**settings_for(site.scenario, Outbox(publishes=False))), is_first=is_first) as pool:
        assert site.write(pool, 0) is Outcome.STORED
        for number, sends in enumerate(UNDONE.values(), start=1):
            assert site.write(pool, 10 * number, sends) is Outcome.ROLLED_BACK, sends
            assert site.write(pool, number) is Outcome.STORED, sends
    with outbox_pool(site.scenario) as publisher:
        publisher.recover()
    assert_published(site.scenario, *range(len(UNDONE) + 1))


@pytest.mark.parametrize("site", ["psycopg"], indirect=True)
@ORDER
@pytest.mark.parametrize("sends", [("COMMIT",), ("COMMIT", "BEGIN"), ("COMMIT AND CHAIN",)], ids=" ".join)
def test_a_block_with_an_outbox_that_a_listener_commits(site: Site, sends: Fault, is_first: bool) -> None:
    site.scenario.transactional_id = f"{unique('commit')}-outbox-0"
    with site.listened(site.pool(**settings_for(site.scenario)), is_first=is_first) as pool:
        assert site.write(pool, 1) is Outcome.STORED
        assert site.write(pool, 2, sends) is Outcome.STORED
        assert_published(site.scenario, 1, 2)


@pytest.mark.parametrize("site", ["psycopg"], indirect=True)
@ORDER
@pytest.mark.parametrize("sends", [("COMMIT",), ("ROLLBACK",)], ids=["commits", "rolls back"])
def test_a_listener_ends_a_block_with_an_outbox_and_fails(site: Site, sends: Fault, is_first: bool) -> None:
    """COMMIT was not requested by then, and may have been sent all the same."""
    site.scenario.transactional_id = f"{unique('commit')}-outbox-0"

    def fail(connection: sa.Connection) -> None:
        if site.sends:
            raise InjectedError

    with site.listened(site.pool(**settings_for(site.scenario)), is_first=is_first) as pool:
        sa.event.listen(site.engine, "commit", fail)
        assert site.write(pool, 1) is Outcome.STORED
        site.sends = sends
        with suppress(InjectedError), pool.transaction() as tx:
            site.put(tx, 2)
        site.sends = ()
        assert tx.outcome is (Outcome.STORED if sends == ("COMMIT",) else Outcome.ROLLED_BACK)
        assert_published(site.scenario, *((1, 2) if sends == ("COMMIT",) else (1,)))


@POSTGRES
@ORDER
def test_a_block_without_records(site: Site, is_first: bool) -> None:
    """The outcome of the block must not be COMMITTED."""
    with site.listened(site.writer(), is_first=is_first) as writer:
        assert site.write(writer, 1) is Outcome.COMMITTED
        with pytest.raises(ERRORS), writer.transaction() as tx:
            site.insert(tx, 2)
            site.sends = UNDONE["fails"]
        assert tx.outcome is Outcome.ROLLED_BACK
        site.sends = ()
    site.assert_written(1)


# ---- left by a listener ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("site", ["psycopg", "psycopg2", "pymysql", "sqlite"], indirect=True)
@pytest.mark.parametrize("sends", [(), ("ROLLBACK", "BEGIN"), ("COMMIT",)], ids=["nothing", "rolls back", "commits"])
def test_a_listener_refuses_the_commit_of_a_connection_that_goes_on(site: Site, sends: Fault) -> None:
    """SQLAlchemy takes the transaction for ended; later statements on the connection commit none of it."""
    refuses: list[bool] = []

    def refuse(connection: sa.Connection) -> None:
        if refuses:
            refuses.clear()
            raise InjectedError

    site.listen()
    sa.event.listen(site.engine, "commit", refuse)
    with site.writer() as writer:
        assert site.write(writer, 1) is Outcome.COMMITTED
        with site.engine.connect() as connection:
            with suppress(*ERRORS, InjectedError), writer.transaction(connection) as tx:
                tx.connection.execute(sa.insert(events), {"id": 2, "event_key": "k", "body": "2"})
                tx.send(site.scenario.topic, key="k", value="2")
                refuses.append(True)
                site.sends = sends
            site.sends = ()
            is_committed = sends == ("COMMIT",) and not site.is_postgres  # there the state travels with COMMIT
            assert tx.outcome is (Outcome.COMMITTED if is_committed else Outcome.ROLLED_BACK)
            connection.rollback()
            connection.execute(sa.text("SELECT 1"))
            connection.commit()
        assert site.write(writer, 3) is Outcome.COMMITTED
    in_table = event_bodies(site.scenario.database)
    assert in_table == (["1", "2", "3"] if sends == ("COMMIT",) else ["1", "3"])
    in_topic = [value for _, value in read_topic(site.scenario.emulator.bootstrap_servers, site.scenario.topic)]
    assert in_topic == (["1", "2", "3"] if is_committed else ["1", "3"])


@pytest.mark.parametrize("site", ["psycopg", "psycopg2", "pymysql", "sqlite"], indirect=True)
def test_a_listener_refuses_the_commit_of_a_session(site: Site) -> None:
    """The connection goes back to the pool, and its next user commits none of the block's rows."""
    refuses: list[bool] = []

    def refuse(connection: sa.Connection) -> None:
        if refuses:
            refuses.clear()
            raise InjectedError

    sa.event.listen(site.engine, "commit", refuse)
    sessions = sessionmaker(site.engine)
    with site.writer() as writer:
        dual_write_sessions(sessions, writer)
        assert site.write(writer, 1) is Outcome.COMMITTED
        with pytest.raises(InjectedError), sessions() as session:
            session.execute(sa.insert(events), {"id": 2, "event_key": "k", "body": "2"})
            send(session, site.scenario.topic, key="k", value="2")
            refuses.append(True)
            session.commit()
        with site.engine.connect() as connection:
            connection.execute(sa.text("SELECT 1"))
            connection.commit()
        assert site.write(writer, 3) is Outcome.COMMITTED
    site.assert_written(1, 3)


@pytest.mark.parametrize("site", ["psycopg", "psycopg2", "pymysql", "sqlite"], indirect=True)
def test_a_connection_that_was_detached_is_closed_with_its_transaction(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with site.writer() as writer:
        assert site.write(writer, 1) is Outcome.COMMITTED
        with site.engine.connect() as connection:
            connection.execute(sa.text("SELECT 1"))
            driver: Any = connection.connection.driver_connection
            connection.detach()
        assert "Exception during reset" not in caplog.text
        with pytest.raises(Exception, match=r"(?i)closed|\(0, ''\)"):  # as each driver says it
            driver.cursor().execute("SELECT 1")


@pytest.mark.parametrize("site", ["psycopg2", "pymysql", "sqlite"], indirect=True)
def test_replacing_do_commit_is_noticed(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """On PostgreSQL the state travels with COMMIT, so Kafka must not commit what it has not been told of."""
    with site.writer() as writer:
        assert site.write(writer, 1) is Outcome.COMMITTED
        do_commit = site.engine.dialect.do_commit
        site.engine.dialect.do_commit = lambda pooled: pooled.commit()
        if site.is_postgres:
            with pytest.raises(IllegalStateError, match="remove the replacement"):
                site.write(writer, 2)
            site.engine.dialect.do_commit = do_commit
            site.scenario.assert_nothing_open()
        else:
            assert site.write(writer, 2) is Outcome.COMMITTED
            assert "remove the replacement" in caplog.text
            site.assert_written(1, 2)
