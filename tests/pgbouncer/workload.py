"""Dual writes by all kinds of pools through a PgBouncer in transaction mode, from threads and tasks of this process.

A seeded director may cut connections meanwhile. Afterwards comes calm: table and topic are compared record by record,
each caller must have been told the truth, and no slot may be stuck.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import asyncpg
import psycopg
import psycopg_pool
import sqlalchemy as sa

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.errors import DualWriteError, IllegalStateError, OutcomeUnknown
from dualwrite.outcome import Outcome
from dualwrite.recipes.asyncpg.driver import ERRORS as ASYNCPG_ERRORS
from dualwrite.recipes.asyncpg.writer import AsyncpgDualWriter
from dualwrite.recipes.core import blocking
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualWriter
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.psycopg_scenario import conninfo_of
from tests.crash.scenario import OrdinaryError
from tests.support.conditions import until
from tests.support.servers.pgbouncer import PgBouncer
from tests.support.threads import in_threads
from tests.support.topics import read_topic
from tests.support.writers import entered, got

TOPIC: Final = "bounced"
INSERT: Final = "INSERT INTO bounced_events VALUES (%s)"
WRITERS: Final = 3
CALM_S: Final = 60
_PAUSE_S: Final = (0.3, 1.5)
_EXPECTED: Final[tuple[type[Exception], ...]] = (
    DualWriteError,
    sa.exc.SQLAlchemyError,
    psycopg.Error,
    psycopg_pool.PoolTimeout,
    *ASYNCPG_ERRORS,
)

events = sa.Table("bounced_events", sa.MetaData(), sa.Column("body", sa.String(80), primary_key=True))


@dataclass
class Tally:
    """Counts of events, for people."""

    told: Counter[str] = field(default_factory=Counter)
    strikes: Counter[str] = field(default_factory=Counter)
    rows: int = 0


class Workload:
    """One kind of pool under load."""

    def __init__(self, pooler: PgBouncer, direct: sa.Engine, emulator: Emulator, seed: int) -> None:
        self._pooler = pooler
        self._direct = direct
        self._emulator = emulator
        self._seed = seed
        self._is_over = threading.Event()
        self._told: dict[str, tuple[Outcome | None, list[str]]] = {}
        self._mistakes: list[str] = []
        self.prefix = f"bounced-{uuid.uuid4().hex[:8]}"
        self.tally = Tally()

    def settings(self) -> dict[str, Any]:
        return {
            "prefix": self.prefix,
            "max_writers": WRITERS,
            "bootstrap_servers": self._emulator.bootstrap_servers,
            "acquire_timeout_ms": 10_000,
            "lease_ms": 2_000,
            "lock_timeout_ms": 60_000,
            "resolve_timeout_ms": 60_000,
            "max_block_ms": 60_000,
        }

    def run(self, kind: str, seconds: float, *, strike: bool) -> None:
        """`kind` is one of `KINDS`."""
        with ThreadPoolExecutor(1) as executor:
            found = KINDS[kind]
            load = executor.submit(asyncio.run if found.is_awaited else blocking.run, self._write(found))
            try:
                self._rage(seconds, strike=strike)
            finally:
                self._is_over.set()
            load.result(CALM_S)
        self._come_right()

    # ---- the restless phase ---------------------------------------------------------------------------------

    def _rage(self, seconds: float, *, strike: bool) -> None:
        chance = random.Random(self._seed)
        strikes: dict[str, Callable[[], object]] = {
            "cut": self._pooler.cut,
            "kill": self._pooler.kill_clients,
            "renew": self._pooler.renew_connections,
        }
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            time.sleep(min(chance.uniform(*_PAUSE_S), max(0.0, end_s - time.monotonic())))
            if strike:
                what = chance.choice(sorted(strikes))
                self.tally.strikes[what] += 1
                strikes[what]()
        until(lambda: self.tally.told["committed"] > 0, CALM_S)

    async def _write(self, kind: Kind) -> None:
        source = await got(kind.source(self._pooler.url))
        try:
            async with entered(kind.writer(source, **self.settings())) as writer:
                await _all(kind, [self._write_on(kind, writer, number) for number in range(2 * WRITERS)])
        finally:
            if isinstance(source, sa.Engine):
                source.dispose()
            elif not isinstance(source, str):
                await got(source.close())

    async def _write_on(self, kind: Kind, writer: Any, number: int) -> None:
        chance = random.Random(f"{self._seed}/{number}")
        count = 0
        while not self._is_over.is_set():
            count += 1
            with self._heard(f"{number}/{count}") as heard:
                async with entered(writer.transaction()) as tx:
                    heard.tx = tx
                    await _put(kind, heard, "a")
                    with suppress(OrdinaryError):
                        async with entered(tx.savepoint()):
                            await _put(kind, heard, "b")
                            if chance.random() < 0.3:
                                heard.bodies.pop()
                                raise OrdinaryError
                    await _put(kind, heard, "c")
                    if chance.random() < 0.1:
                        raise OrdinaryError
            await (asyncio.sleep if kind.is_awaited else blocking.sleep)(0.05 if heard.has_failed else 0)

    @contextmanager
    def _heard(self, name: str) -> Iterator[_Heard]:
        """Notes the reported outcome of the dual write of that name."""
        heard = _Heard(name)
        outcome: Outcome | None = Outcome.ROLLED_BACK
        try:
            yield heard
            outcome = Outcome.COMMITTED
        except OrdinaryError:
            pass
        except IllegalStateError as error:
            self._mistakes.append(f"{name}: {error!r}")
        except _EXPECTED as error:
            heard.has_failed = True
            self.tally.told[f"{type(error).__name__}: {str(error)[:150]}"] += 1
            if heard.tx is not None and heard.tx.outcome is not None:
                outcome = heard.tx.outcome
            elif isinstance(error, OutcomeUnknown):
                outcome = None
        except Exception as error:
            self._mistakes.append(f"{name}: {error!r}")
        self._told[name] = outcome, heard.bodies
        self.tally.told[str(outcome)] += 1

    # ---- the calm phase -------------------------------------------------------------------------------------

    def _come_right(self) -> None:
        assert not self._mistakes, self._mistakes[:3]
        with DualWriter(self._direct, **self.settings()) as pool:
            pool.recover()
            until(lambda: not pool.status.set_aside, CALM_S)
        until(lambda: not self._open_transactions(), CALM_S)
        with self._direct.connect() as connection:
            in_table = sorted(connection.scalars(sa.select(events.c.body)))
        in_topic = sorted(value for _, value in read_topic(self._emulator.bootstrap_servers, TOPIC))
        assert len(in_topic) == len(set(in_topic)), "a record is in the topic twice"
        only_one = sorted(set(in_table) ^ set(in_topic))
        assert not only_one, f"{len(only_one)} are on one side only, such as {only_one[:5]}"
        self._assert_callers_were_told_the_truth(set(in_table))
        self.tally.rows = len(in_table)

    def _open_transactions(self) -> list[str]:
        over = {"Empty", "CompleteCommit", "CompleteAbort", "Dead"}
        return [each.transactional_id for each in self._emulator.transactions() if each.state not in over]

    def _assert_callers_were_told_the_truth(self, in_table: set[str]) -> None:
        by_name: dict[str, set[str]] = {}
        for body in in_table:
            by_name.setdefault(body.rpartition("/")[0], set()).add(body)
        assert by_name.keys() <= self._told.keys(), "there are rows of nobody"
        for name, (outcome, bodies) in self._told.items():
            there = by_name.get(name, set())
            assert there in (set(), set(bodies)), f"a part of {name}: {there} of {bodies}"
            assert outcome is None or (outcome is Outcome.COMMITTED) is bool(there), f"{name} was told {outcome}"


@dataclass
class _Heard:
    name: str
    tx: Any = None
    bodies: list[str] = field(default_factory=list)
    has_failed: bool = False


async def _all(kind: Kind, writing: list[Coroutine[Any, Any, None]]) -> None:
    if kind.is_awaited:
        await asyncio.gather(*writing)
    else:
        in_threads(*(partial(blocking.run, each) for each in writing))


async def _put(kind: Kind, heard: _Heard, suffix: str) -> None:
    body = f"{heard.name}/{suffix}"
    await got(kind.insert(heard.tx.connection, body))
    heard.tx.send(TOPIC, key=heard.name, value=body)
    heard.bodies.append(body)


def _insert(connection: Any, body: str) -> Any:
    return connection.execute(INSERT, (body,))


def _insert_by_sqlalchemy(connection: sa.Connection, body: str) -> Any:
    return connection.execute(sa.insert(events), {"body": body})


def _insert_by_asyncpg(connection: Any, body: str) -> Any:
    return connection.execute(INSERT.replace("%s", "$1"), body)


@dataclass(frozen=True)
class Kind:
    """A class of writers, the source that it takes, and how a connection of that source inserts."""

    writer: Callable[..., Any]
    source: Callable[[sa.URL], Any] = conninfo_of
    insert: Callable[[Any, str], Any] = _insert
    is_awaited: bool = False


def _engine(url: sa.URL) -> sa.Engine:
    return sa.create_engine(url, pool_size=2 * WRITERS, pool_pre_ping=True, connect_args={"prepare_threshold": None})


def _psycopg_pool(url: sa.URL) -> psycopg_pool.ConnectionPool[Any]:
    return psycopg_pool.ConnectionPool(
        conninfo_of(url), min_size=1, max_size=WRITERS, kwargs={"prepare_threshold": None}, open=True
    )


def _asyncpg_pool(url: sa.URL) -> Any:
    return asyncpg.create_pool(conninfo_of(url), min_size=0, max_size=WRITERS, statement_cache_size=0)


KINDS: Final[dict[str, Kind]] = {
    "sqlalchemy": Kind(DualWriter, _engine, _insert_by_sqlalchemy),
    "psycopg": Kind(PsycopgDualWriter),
    "psycopg_pool": Kind(PsycopgDualWriter, _psycopg_pool),
    "tasks": Kind(AsyncPsycopgDualWriter, is_awaited=True),
    "asyncpg": Kind(AsyncpgDualWriter, conninfo_of, _insert_by_asyncpg, is_awaited=True),
    "asyncpg_pool": Kind(AsyncpgDualWriter, _asyncpg_pool, _insert_by_asyncpg, is_awaited=True),
}
