"""A pool that is closed makes one more attempt at transactions in doubt, for as long as its caller waits."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.broker_emulator import DropRequest, Emulator, Error, Fault
from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.errors import OutcomeUnknown, RowLockTimeoutError
from dualwrite.guarantee import Tier
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.pool import maintenance
from dualwrite.recipes.pool.maintenance import PoolMaintenance
from dualwrite.recipes.sqlalchemy.state_table import kafka_transaction_state
from dualwrite.recipes.sqlalchemy.tables import kafka_transaction_lease
from dualwrite.testing.postgres import PostgresServer
from tests.crash.killed import run_until_killed
from tests.crash.scenario import AtPoint
from tests.producer.tiers import BOUNDED, LONG_AFTER_MS, TIERS
from tests.recipes.pools import QUIET_LEASE_MS, drop_idle_connections
from tests.recipes.test_kafka_away import PSYCOPG_POOL, SQLALCHEMY_POOL, Face, How, World
from tests.support.conditions import until
from tests.support.databases import PostgresDatabase
from tests.support.threads import in_threads
from tests.support.writers import KINDS, got

TRANSACTION_ABORTABLE = 120
HANGS_S = 1.0
"""The time that a caller of `close` grants where Kafka does not respond."""
LONG_S = 20.0
"""Much less than `max_block_ms`, for which a call of Kafka waits, and more than a noisy machine needs."""

PATIENT: dict[str, Any] = {"max_block_ms": 60_000, "lock_timeout_ms": 60_000, "lease_ms": QUIET_LEASE_MS}

POOLS = [How(kind, is_pool=True) for kind in KINDS if kind not in ("psycopg-awaited", "asyncpg")]


@contextmanager
def world_of(server: PostgresServer, tier: Tier) -> Iterator[World]:
    database = PostgresDatabase(server)
    with Emulator(config=TIERS[tier], clock=VirtualClock()) as emulator:
        yield World(database, emulator)
    database.close()


@pytest.fixture
def world(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[World]:
    with world_of(postgres_server, request.param) as made:
        yield made


def on(*tiers: Tier) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("world", tiers, ids=[tier.name for tier in tiers], indirect=True)


@pytest.fixture(autouse=True)
def tries_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an attempt that fails, the background waits for longer than a test takes."""
    monkeypatch.setattr(maintenance, "backoff_s", lambda *_: 3_600.0)


class FirstAttempt:
    """Lets the first attempt to complete a block fail, and counts the others."""

    def __init__(self) -> None:
        self.locks = 0

    def __call__(self, point: PausePoint) -> None:
        if point is PausePoint.AFTER_LOCK:
            self.locks += 1
            if self.locks == 2:
                raise RowLockTimeoutError("the first attempt of the background has failed")


def let_background_try(face: Face) -> None:
    deadline_s = time.monotonic() + LONG_S
    while not face.writer.status.background_failures_total:
        assert time.monotonic() < deadline_s, "the background has not tried"
        face.breathe()


def pool_in_doubt(how: How, world: World) -> Face:
    """Return a pool that has decided event 1 without Kafka's confirmation, and whose background waits."""
    pause: Any = FirstAttempt()
    face = Face(world, how, pause)
    world.emulator.faults.add(Fault(api="EndTxn", action=Error(TRANSACTION_ABORTABLE)))
    face.write(1)
    let_background_try(face)
    assert face.writer.status.set_aside == (f"{world.name}-0",)
    return face


def let_kafka_hang(world: World, *apis: str) -> None:
    """Leave requests without a response: by default, those of a take-over on any tier."""
    for api in apis or ("InitProducerId", "EndTxn"):
        world.emulator.faults.add(Fault(api=api, action=DropRequest(), count=None))


def close_within(face: Face, timeout_s: float) -> None:
    face.run(got(face.writer.close(timeout_s)))


def leases_of(world: World) -> list[tuple[bool, int]]:
    """Return for each slot whether it has an owner, and when its lease ends."""
    table = kafka_transaction_lease
    query = sa.select(table.c.owner, table.c.expires_at_ms).where(table.c.prefix == world.name).order_by(table.c.slot)
    with world.database.aside.connect() as connection:
        return [(row.owner is not None, row.expires_at_ms) for row in connection.execute(query)]


def expire_leases(world: World) -> None:
    with world.database.aside.begin() as connection:
        connection.execute(sa.update(kafka_transaction_lease).values(expires_at_ms=0))


def recover_anew(world: World) -> None:
    """Recover in another process."""
    another = Face(world, SQLALCHEMY_POOL)
    another.writer.recover()
    another.close()


ONE_TIER = on(Tier.KEEP_PREPARED)
OF_THREADS_AND_TASKS = pytest.mark.parametrize("how", [PSYCOPG_POOL, How("sqlalchemy-awaited", is_pool=True)], ids=str)


def each_pool_or_tier(*tiers: Tier) -> pytest.MarkDecorator:
    """Run with each pool on the first tier, and with one pool on the others: tiers do not concern its library."""
    cases = [*((tiers[0], how) for how in POOLS), *((tier, PSYCOPG_POOL) for tier in tiers[1:])]
    ids = [f"{tier.name}-{how}" for tier, how in cases]
    return pytest.mark.parametrize(("world", "how"), cases, ids=ids, indirect=["world"])


EVERYWHERE = each_pool_or_tier(Tier.KEEP_PREPARED, *BOUNDED)


@EVERYWHERE
def test_both_sides_agree_right_after_close(world: World, how: How) -> None:
    pool_in_doubt(how, world).close()
    world.assert_both_sides_have(1)
    ((has_owner, _),) = leases_of(world)
    assert not has_owner


@each_pool_or_tier(*BOUNDED)
def test_records_aborted_by_kafka_are_published_again(world: World, how: How) -> None:
    face = pool_in_doubt(how, world)
    world.emulator.advance_clock(LONG_AFTER_MS)
    until(lambda: not any(each.state == "Ongoing" for each in world.emulator.transactions()))
    face.close()
    world.assert_both_sides_have(1)


@EVERYWHERE
def test_kafka_hangs(world: World, how: How, caplog: pytest.LogCaptureFixture) -> None:
    face = pool_in_doubt(how, world)
    let_kafka_hang(world)
    began_s = time.monotonic()
    close_within(face, HANGS_S)
    assert time.monotonic() - began_s < LONG_S
    assert f"transactional id {world.name}-0 is closed while" in caplog.text
    assert leases_of(world) == [(True, 0)]  # others may recover it at once
    world.emulator.faults.clear()
    recover_anew(world)
    world.assert_both_sides_have(1)


@ONE_TIER
@OF_THREADS_AND_TASKS
def test_no_time_is_left(world: World, how: How, caplog: pytest.LogCaptureFixture) -> None:
    close_within(pool_in_doubt(how, world), 0)
    assert f"transactional id {world.name}-0 is closed while" in caplog.text
    assert leases_of(world) == [(True, 0)]
    recover_anew(world)
    world.assert_both_sides_have(1)


@ONE_TIER
@OF_THREADS_AND_TASKS
def test_kafka_is_known_to_be_away(world: World, how: How) -> None:
    face = pool_in_doubt(how, world)
    world.lose_kafka()
    with pytest.raises(Exception, match="neither side was changed: Kafka cannot be reached"):
        face.write(2)
    locks = face.pause.locks  # type: ignore[union-attr]
    face.close()
    assert face.pause.locks == locks  # type: ignore[union-attr]
    assert leases_of(world)[0] == (True, 0)
    world.bring_kafka_back()
    recover_anew(world)
    world.assert_both_sides_have(1)


@EVERYWHERE
def test_a_process_that_has_the_slot_by_now_is_not_fenced(world: World, how: How) -> None:
    face = pool_in_doubt(how, world)
    expire_leases(world)
    other = Face(world, how)
    other.write(2)  # under the slot, which is recovered first
    face.close()
    other.write(3)
    assert other.writer.status.moved_total == 0
    other.close()
    world.assert_both_sides_have(1, 2, 3)


@ONE_TIER
@pytest.mark.parametrize("how", [SQLALCHEMY_POOL, PSYCOPG_POOL], ids=str)
def test_the_database_is_away(world: World, how: How, caplog: pytest.LogCaptureFixture) -> None:
    face = pool_in_doubt(how, world)
    world.database.refuse_new_connections()
    drop_idle_connections(face.writer)
    face.close()
    assert f"transactional id {world.name}-0 is closed while" in caplog.text
    world.database.come_back()
    expire_leases(world)
    recover_anew(world)
    world.assert_both_sides_have(1)


@ONE_TIER
@pytest.mark.parametrize("how", [how for how in POOLS if KINDS[how.kind].is_awaited], ids=str)
def test_a_task_that_is_cancelled_closes_its_pool(world: World, how: How) -> None:
    face = pool_in_doubt(how, world)
    entered = asyncio.Event()

    async def used() -> None:
        async with face.writer, face.writer.transaction() as tx:
            entered.set()
            tx.send(world.topic, value="2", key="k")
            await asyncio.Event().wait()

    async def cancelled() -> None:
        task = asyncio.create_task(used())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    face.run(cancelled())
    world.assert_both_sides_have(1)
    face.close()


@ONE_TIER
@pytest.mark.parametrize(("how", "hangs"), [(SQLALCHEMY_POOL, True), (PSYCOPG_POOL, False)], ids=str)
def test_a_pool_that_is_closed_while_the_interpreter_ends(world: World, how: How, hangs: bool) -> None:
    """No thread can be started then."""
    script = f"""
import atexit
import sqlalchemy as sa
from types import SimpleNamespace
from dualwrite.recipes.pool import maintenance
from tests.recipes import test_closing as tested

maintenance.backoff_s = lambda *_: 3_600.0
servers = SimpleNamespace(bootstrap_servers={world.emulator.bootstrap_servers!r})
url = sa.make_url({world.database.url.render_as_string(hide_password=False)!r})
database = SimpleNamespace(engine=sa.create_engine(url), url=url)
world = SimpleNamespace(emulator=servers, database=database, topic={world.topic!r}, name={world.name!r})
face = tested.Face(world, tested.How({how.kind!r}, is_pool=True), tested.FirstAttempt())
face.write(1)
tested.until(lambda: face.writer.status.background_failures_total)
atexit.register(face.writer.close, {HANGS_S if hangs else LONG_S})
input("in doubt")
"""
    world.emulator.faults.add(Fault(api="EndTxn", action=Error(TRANSACTION_ABORTABLE)))
    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.read(len("in doubt")) == "in doubt"
        if hangs:
            let_kafka_hang(world)
        _, errors = process.communicate("\n", timeout=LONG_S)
    assert process.returncode == 0, errors
    if hangs:
        assert leases_of(world) == [(True, 0)]
        world.emulator.faults.clear()
        recover_anew(world)
    world.assert_both_sides_have(1)


@ONE_TIER
@pytest.mark.usefixtures("asks_twice")
@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("how", [SQLALCHEMY_POOL, PSYCOPG_POOL], ids=str)
def test_a_commit_without_a_response_is_resolved(world: World, how: How, applied: bool) -> None:
    def lose_commit_and_database() -> None:
        world.database.lose_commit(applied=applied)
        world.database.refuse_new_connections()
        drop_idle_connections(face.writer)

    face = Face(world, how, AtPoint(PausePoint.BEFORE_DATABASE_COMMIT, lose_commit_and_database))
    with pytest.raises(OutcomeUnknown):
        face.write(1)
    let_background_try(face)
    world.database.come_back()
    face.close()
    world.assert_both_sides_have(*([1] if applied else []))
    assert not any(each.state == "Ongoing" for each in world.emulator.transactions())


def _die_in_doubt(arguments: list[str]) -> None:
    kind, url, servers, topic, name, *numbers = arguments
    source = sa.make_url(url)
    world: Any = SimpleNamespace(
        emulator=SimpleNamespace(bootstrap_servers=servers),
        database=SimpleNamespace(engine=sa.create_engine(source), url=source),
        topic=topic,
        name=name,
    )
    committed = Barrier(len(numbers))

    def die() -> None:
        committed.wait(60)
        os.kill(os.getpid(), signal.SIGKILL)

    def write(number: str) -> None:
        pause = AtPoint(PausePoint.AFTER_DATABASE_COMMIT, die)
        Face(world, How(kind, is_pool=True), pause).write(int(number))

    in_threads(*(partial(write, number) for number in numbers))


def die_in_doubt(world: World, how: How, *numbers: int) -> None:
    """Write events by a process that is killed when the database has committed all of them."""
    url = world.database.url.render_as_string(hide_password=False)
    where = (url, world.emulator.bootstrap_servers, world.topic, world.name)
    run_until_killed(_die_in_doubt, how.kind, *where, *map(str, numbers))


def live_for_one_block(world: World, how: How, number: int) -> None:
    face = Face(world, how)
    face.write(number)
    face.close()


@pytest.fixture
def stopped_early(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a background come to its first sweep, or to its resolver, only when it is stopped."""
    place = getattr(request, "param", "resolve_once")
    original = getattr(PoolMaintenance, place)

    async def late(self: PoolMaintenance, *args: Any, **settings: Any) -> Any:
        while not self._stopped:
            await self._resolver_bell.wait(LONG_S)
        self._resolver_bell.ring()
        return await original(self, *args, **settings)

    monkeypatch.setattr(PoolMaintenance, place, late)


@ONE_TIER
@pytest.mark.parametrize(
    ("how", "stopped_early"),
    [
        (PSYCOPG_POOL, "resolve_once"),
        (SQLALCHEMY_POOL, "_resolve_for_ever"),
        pytest.param(How("sqlalchemy-awaited", is_pool=True), "resolve_once", marks=pytest.mark.proof),
    ],
    ids=str,
    indirect=["stopped_early"],
)
@pytest.mark.usefixtures("stopped_early")
def test_processes_of_one_block_complete_transactions_of_dead_processes(world: World, how: How) -> None:
    """Each completes one."""
    die_in_doubt(world, how, 1, 2)
    expire_leases(world)
    live_for_one_block(world, how, 3)
    assert [has_owner for has_owner, _ in leases_of(world)] == [False, True, False]
    live_for_one_block(world, how, 4)
    assert not any(has_owner for has_owner, _ in leases_of(world))
    world.assert_both_sides_have(1, 2, 3, 4)


@ONE_TIER
@pytest.mark.usefixtures("stopped_early")
@pytest.mark.parametrize("how", [SQLALCHEMY_POOL], ids=str)
def test_an_id_that_cannot_be_recovered_does_not_keep_other_ids_open(world: World, how: How) -> None:
    table = kafka_transaction_state
    die_in_doubt(world, how, 1, 2)
    expire_leases(world)
    is_first = table.c.transactional_id == f"{world.name}-0"
    of_first = sa.update(table).where(is_first)
    with world.database.aside.begin() as connection:
        pair = connection.scalar(sa.select(table.c.prepared_transaction_state).where(is_first))
        connection.execute(of_first.values(prepared_transaction_state="damaged"))
    live_for_one_block(world, how, 3)
    assert [has_owner for has_owner, _ in leases_of(world)] == [True, False, False]
    with world.database.aside.begin() as connection:
        connection.execute(of_first.values(prepared_transaction_state=pair))
    live_for_one_block(world, how, 4)
    world.assert_both_sides_have(1, 2, 3, 4)


@ONE_TIER
@pytest.mark.usefixtures("stopped_early")
@pytest.mark.parametrize("how", [SQLALCHEMY_POOL], ids=str)
def test_a_pool_that_is_closed_without_time_leaves_dead_processes_alone(world: World, how: How) -> None:
    die_in_doubt(world, how, 1)
    expire_leases(world)
    face = Face(world, how)
    face.write(2)
    close_within(face, 0)
    assert [has_owner for has_owner, _ in leases_of(world)] == [True, False]
    recover_anew(world)
    world.assert_both_sides_have(1, 2)
