"""How the commit store connects: it holds nothing when idle, waits for a full database, and gives a silent one up."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import sqlalchemy as sa

from dualwrite.testing.server_unavailable import ServerUnavailableError
from spark_sink.errors import StoreUnavailableError
from spark_sink.options import StoreOptions
from spark_sink.pause_points import PausePoint
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.connections import Connecting, IdleFreePool, engine_for
from spark_sink.store.silence import Wait, Watch
from spark_sink.store.watched_psycopg import WatchedConnection
from tests.pgbouncer.conftest import behind  # noqa: F401  a fixture
from tests.spark.sink_model import World, new_store
from tests.support.conditions import until
from tests.support.databases import unique
from tests.support.postgres_pair import PostgresNode, new_root
from tests.support.servers.pgbouncer import PgBouncer
from tests.support.unavailable import skip

WITHIN_S: Final = 60
LIMIT_MS: Final = 2_000


@pytest.fixture(scope="module")
def node() -> Iterator[PostgresNode]:
    root = new_root()
    try:
        made = PostgresNode(root / "node")
    except ServerUnavailableError as error:
        skip(error)
    made.initialise()
    made.start()
    yield made
    made.crash()
    shutil.rmtree(root)


@pytest.fixture
def role(node: PostgresNode) -> str:
    """A role with a database of its own, in which the store's tables are."""
    name = unique("role").replace("-", "_")
    node.ask(f"CREATE ROLE {name} LOGIN")
    node.ask(f"CREATE DATABASE {name} OWNER {name}")
    engine = sa.create_engine(node.url.set(username=name, database=name), poolclass=sa.NullPool)
    new_store(engine)
    return name


def options(url: sa.URL, **changes: Any) -> StoreOptions:
    return StoreOptions(url=url.render_as_string(hide_password=False), url_env=None, schema=None, **changes)


def connections(node: PostgresNode, role: str) -> int:
    found = node.ask(f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{role}'")
    assert isinstance(found, int)
    return found


def whole_batch(world: World, batch_id: int = 0) -> None:
    process = world.process()
    plan = process.plan()
    process.commit([process.write(plan, batch_id, 0, [1, 2])], batch_id, [1, 2])


# ---- idle ------------------------------------------------------------------------------------------------------------


def test_a_process_that_is_idle_holds_no_connection(node: PostgresNode, role: str) -> None:
    store = CommitStore.open(options(node.url.set(username=role, database=role)))
    whole_batch(World(store))
    until(lambda: connections(node, role) == 0, 10)
    world = World(store)
    whole_batch(world)
    world.assert_exactly_once([1, 2])


def test_transactions_one_after_the_other_share_a_connection(node: PostgresNode, role: str) -> None:
    store = CommitStore.open(options(node.url.set(username=role, database=role)))
    made = []
    sa.event.listen(store.engine, "connect", lambda connection, record: made.append(connection))
    for _ in range(20):
        store.sinks()
    assert len(made) < 20


def test_a_connection_that_the_server_has_closed_is_not_used_again(node: PostgresNode, role: str) -> None:
    store = CommitStore.open(options(node.url.set(username=role, database=role)))
    for _ in range(5):
        store.sinks()
        node.ask(f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '{role}'")
        until(lambda: connections(node, role) == 0, 10)
        store.sinks()


# ---- a full database -------------------------------------------------------------------------------------------------


def test_a_full_database_is_waited_for(node: PostgresNode, role: str, caplog: pytest.LogCaptureFixture) -> None:
    """60 tasks at once, and connections for three of them."""
    node.ask(f"ALTER ROLE {role} CONNECTION LIMIT 3")
    given = options(node.url.set(username=role, database=role))
    world = World(CommitStore.open(given))
    plan = world.process().plan()
    together = threading.Barrier(60)

    def write(partition: int) -> Any:
        together.wait(WITHIN_S)
        return world.process().write(plan, 0, partition, [partition])

    with caplog.at_level(logging.WARNING, "spark_sink"), ThreadPoolExecutor(60) as threads:
        results = list(threads.map(write, range(60)))
    world.process().commit(results, 0, range(60))
    world.assert_exactly_once(range(60))
    assert "has no connection to give" in caplog.text


def test_a_full_database_is_given_up_in_the_end(node: PostgresNode, role: str) -> None:
    store = CommitStore.open(options(node.url.set(username=role, database=role), timeout_ms=1_000))
    world = World(store)
    node.ask(f"ALTER ROLE {role} CONNECTION LIMIT 0")
    with pytest.raises(StoreUnavailableError, match=r"too many connections.*The batch has not begun"):
        world.process().plan()


@pytest.mark.parametrize(
    ("message", "waits"),
    [
        ("FATAL:  sorry, too many clients already", True),
        ("FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute", True),
        ("FATAL:  no more connections allowed (max_client_conn)", True),
        ((1040, "Too many connections"), True),
        ('FATAL:  password authentication failed for user "x"', False),
        ('FATAL:  database "x" does not exist', False),
    ],
)
def test_only_a_full_database_is_waited_for(message: Any, waits: bool) -> None:
    class Dbapi:
        class Error(Exception):
            pass

    class Dialect:
        loaded_dbapi = Dbapi

        def __init__(self) -> None:
            self.calls = 0

        def connect(self, *arguments: Any, **keywords: Any) -> str:
            self.calls += 1
            if self.calls < 3:
                raise Dbapi.Error(*(message if isinstance(message, tuple) else (message,)))
            return "connected"

    slept: list[float] = []
    dialect: Any = Dialect()
    connect = Connecting(sa.make_url("mysql+pymysql://db/x"), options(sa.make_url("mysql://db/x")), sleep=slept.append)
    if waits:
        assert connect(dialect, None, [], {}) == "connected"
        assert len(slept) == 2
    else:
        with pytest.raises(Dbapi.Error):
            connect(dialect, None, [], {})
        assert slept == []


# ---- a silent database -----------------------------------------------------------------------------------------------


@contextmanager
def frozen(node: PostgresNode) -> Iterator[None]:
    """Stop every process of the server; its kernel goes on accepting connections and bytes."""
    assert node._process is not None
    postmaster = node._process.pid
    os.kill(postmaster, signal.SIGSTOP)
    stopped = [postmaster]
    try:
        for child in children_of(postmaster):
            with suppress(ProcessLookupError):  # it was about to end
                os.kill(child, signal.SIGSTOP)
                stopped.append(child)
        yield
    finally:
        for process_id in stopped:
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGCONT)


def children_of(process_id: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()]


@pytest.fixture
def impatient(node: PostgresNode, role: str) -> World:
    given = options(node.url.set(username=role, database=role), timeout_ms=LIMIT_MS, connect_timeout_ms=LIMIT_MS)
    return World(CommitStore.open(given), commit_retries=1)


@pytest.mark.parametrize(
    ("step", "kept"),
    [
        *((step, True) for step in ("plan", "write", "commit", "finish")),
        ("plan", False),
        *(pytest.param(step, False, marks=pytest.mark.proof) for step in ("write", "commit", "finish")),
    ],
)
def test_no_step_waits_for_ever_for_a_frozen_server(
    node: PostgresNode, impatient: World, step: str, kept: bool
) -> None:
    process = impatient.process()
    plan = process.plan()
    result = process.write(plan, 0, 0, [1, 2])
    steps: dict[str, Callable[[], object]] = {
        "plan": process.plan,
        "write": lambda: process.write(plan, 0, 1, [3]),
        "commit": lambda: process.commit([result], 0, [1, 2]),
        "finish": process.sink.finish,
    }
    if kept:
        impatient.store.sinks()
    else:
        impatient.database.engine.dispose()
    with frozen(node), ThreadPoolExecutor(1) as thread:
        error = thread.submit(steps[step]).exception(WITHIN_S)
    assert isinstance(error, StoreUnavailableError)
    whole_batch(impatient)
    impatient.assert_exactly_once([1, 2])


def test_a_server_that_freezes_at_the_decision_does_not_hide_its_outcome(
    node: PostgresNode, impatient: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The statements arrive when the server wakes up; the next start finds out their effect."""
    stop = threading.Event()
    frozen_now = threading.Event()

    def pause(point: PausePoint) -> None:
        if point is PausePoint.INSIDE_DECISION:
            stop.set()
            assert frozen_now.wait(WITHIN_S)

    process = impatient.process(pause)
    plan = process.plan()
    results = [process.write(plan, 0, 0, [1, 2])]
    with ThreadPoolExecutor(1) as thread:
        committing = thread.submit(lambda: process.commit(results, 0, [1, 2]))
        assert stop.wait(WITHIN_S)
        with frozen(node):
            frozen_now.set()
            error = committing.exception(WITHIN_S)
    assert isinstance(error, StoreUnavailableError)
    assert "has not responded" in caplog.text
    assert impatient.broker.committed == []
    until(
        lambda: (
            node.ask("SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid()") == 0
        )
    )
    whole_batch(impatient)
    impatient.assert_exactly_once([1, 2])


def test_a_lock_that_a_sleeping_driver_holds_is_not_waited_for_for_ever(node: PostgresNode, impatient: World) -> None:
    whole_batch(impatient)
    with impatient.database.engine.connect() as asleep:
        asleep.execute(sa.text("SELECT 1 FROM dw_sink FOR UPDATE"))
        with pytest.raises(StoreUnavailableError, match=rf"no response to a statement within {LIMIT_MS} ms"):
            impatient.process().plan()
    whole_batch(impatient, 1)


def test_a_wait_is_logged_after_seconds_and_ended_once_its_time_is_over(caplog: pytest.LogCaptureFixture) -> None:
    wait = Wait("COMMIT", 7, 60.0, 100.0)
    ended: list[int] = []
    for now_s, lines in ((104.0, 0), (105.0, 1), (134.0, 1), (136.0, 2), (159.0, 2)):
        wait.look(now_s, ended.append)
        assert len(caplog.records) == lines
    assert ended == []
    assert "has not responded to COMMIT for 5 s; it is given up after 60 s" in caplog.text
    wait.look(160.0, ended.append)
    wait.look(160.5, ended.append)
    assert wait.was_ended
    assert (ended, len(caplog.records)) == ([7, 7], 3)


def test_a_wait_ends_although_its_log_handler_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_sink.store.silence._log.error", _fail)
    ended: list[int] = []
    with pytest.raises(RuntimeError):
        Wait("COMMIT", 7, 60.0, 100.0).look(160.0, ended.append)
    assert ended == [7]


def test_a_thread_that_does_not_start_is_started_by_the_next_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Watch()
    first, second = (Wait("COMMIT", 7, 60.0, 100.0) for _ in range(2))
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", _fail)
        with pytest.raises(RuntimeError):
            looks.begin(first)
    seen: list[Wait] = []

    def look(wait: Wait, *_: object) -> None:
        seen.append(wait)
        _fail()

    monkeypatch.setattr(Wait, "look", look)
    looks.begin(second)
    until(lambda: len(seen) > 1)  # it goes on after a failure, too
    looks.end(second)
    assert set(seen) == {second}


def test_a_wait_that_a_signal_ends_as_it_begins_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would shut down the next socket that gets its number."""
    waits: set[Wait] = set()

    class Struck(Watch):
        def begin(self, wait: Wait) -> None:
            waits.add(wait)
            raise KeyboardInterrupt

        def end(self, wait: Wait) -> None:
            waits.remove(wait)

    connection: Any = SimpleNamespace(closed=False, pgconn=SimpleNamespace(socket=7), limit_ms=1_000)
    monkeypatch.setattr("spark_sink.store.watched_psycopg.watch", Struck)
    with pytest.raises(KeyboardInterrupt), WatchedConnection._watched(connection, "COMMIT"):
        pass
    assert waits == set()


def test_without_a_thread_connections_are_closed_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A commit on such a connection holds; not being able to keep the connection is no error."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'store.db'}", poolclass=IdleFreePool)
    pool = engine.pool
    assert isinstance(pool, IdleFreePool)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", _fail)
        with engine.begin() as connection:
            connection.execute(sa.text("CREATE TABLE t (n INTEGER)"))
        assert pool.idle == 0
    with engine.begin() as connection:
        assert sa.inspect(connection).has_table("t")
    until(lambda: pool.idle == 0)
    engine.dispose()


def _fail(*given: object, **named: object) -> None:
    raise RuntimeError("can't start new thread")


def test_a_statement_may_be_slow(node: PostgresNode, impatient: World) -> None:
    with impatient.database.engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT 1 FROM pg_sleep(0.5)")) == 1


# ---- PgBouncer -------------------------------------------------------------------------------------------------------


_NOTES_DURABILITY = (
    "CREATE TABLE decided (durability text)",
    "CREATE FUNCTION note_durability() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    " INSERT INTO decided VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$",
    "CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON dw_batch DEFERRABLE INITIALLY DEFERRED"
    " FOR EACH ROW EXECUTE FUNCTION note_durability()",
)
"""Notes the durability of each decision at its COMMIT, when deferred triggers are called."""


def test_many_tasks_behind_a_small_pgbouncer(behind: sa.URL) -> None:  # noqa: F811
    """In transaction mode each transaction may run on any of the server's three connections."""
    new_store(sa.create_engine(behind, poolclass=sa.NullPool))
    try:
        pooler = PgBouncer(behind, pool_size=3)
    except ServerUnavailableError as error:
        skip(error)
    with pooler:
        engine = sa.create_engine(behind, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"ALTER DATABASE {behind.database} SET synchronous_commit = off")
        store = CommitStore.open(options(pooler.url))
        store._make_ready()  # the commit that makes the tables decides nothing
        world = World(store)
        with engine.connect() as connection:
            for statement in _NOTES_DURABILITY:
                connection.exec_driver_sql(statement)
        for batch_id in range(3):
            plan = world.process().plan()
            with ThreadPoolExecutor(20) as threads:
                results = list(
                    threads.map(
                        lambda partition: world.process().write(plan, batch_id, partition, [20 * batch_id + partition]),  # noqa: B023
                        range(20),
                    )
                )
            world.process().commit(results, batch_id, range(20 * batch_id, 20 * batch_id + 20))
        world.assert_exactly_once(range(60))
        with engine.connect() as connection:
            assert set(connection.exec_driver_sql("SELECT durability FROM decided")) == {("on",)}


def test_an_unknown_error_is_not_hidden(node: PostgresNode, role: str) -> None:
    engine = engine_for(options(node.url.set(username="nobody_at_all", database=role)))
    with pytest.raises(sa.exc.OperationalError, match="nobody_at_all"):
        engine.connect()
