"""Helpers for tests of pools: writing through a pool, and reading and changing its leases in the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg_pool import ConnectionPool

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.recipes.postgres.backend import PostgresBackend
from dualwrite.recipes.psycopg.writer import PsycopgDualTransaction, PsycopgDualWriter
from dualwrite.recipes.sqlalchemy.tables import create_lease_table, kafka_transaction_lease
from dualwrite.recipes.sqlalchemy.writer import DualTransaction, DualWriter
from tests.crash.psycopg_scenario import INSERT, PsycopgScenario, conninfo_of
from tests.crash.scenario import AnyScenario, Scenario
from tests.support.databases import Database, events, unique
from tests.support.topics import read_topic

QUIET_LEASE_MS = 600_000
"""So long that no heartbeat or expiry disturbs a test, and no sweep but the first.

That one comes at some time after the first block has begun. Where a fault must strike a block and not the background,
`recover()` comes before the first block: then the background sends no query until its next heartbeat.
"""

AnyPool = DualWriter | PsycopgDualWriter
AnyWrite = DualTransaction | PsycopgDualTransaction

Source = Any
"""The source of a pool's connections: an engine, or the parameter of psycopg's pools."""


@pytest.fixture
def scenario(request: pytest.FixtureRequest, database: Database, emulator: Emulator) -> AnyScenario:
    """For pools on each database, and on psycopg alone."""
    on_psycopg = request.node.callspec.params["database"] == "psycopg"
    return (PsycopgScenario if on_psycopg else Scenario)(database, emulator, transactional_id=f"{unique('pool')}-0")


def make_pool(
    scenario: AnyScenario,
    *,
    database: Database | None = None,
    source: Source = None,
    prefix: str = "",
    **settings: Any,
) -> AnyPool:
    """Return a pool of the scenario's kind, on its database or on another client of it."""
    engine = (database or scenario.database).engine
    given: dict[str, Any] = {
        "prefix": prefix or prefix_of(scenario),
        "bootstrap_servers": scenario.emulator.bootstrap_servers,
        "lease_ms": QUIET_LEASE_MS,
        "lock_timeout_ms": 60_000,
        "max_block_ms": 60_000,
        **settings,
    }
    if isinstance(scenario, PsycopgScenario):
        return PsycopgDualWriter(source or conninfo_of(engine.url), **given)
    return DualWriter(source or engine, **given)


def drop_idle_connections(pool: AnyPool) -> None:
    """Drop the connections of the pool's background, present and coming."""
    if isinstance(pool, PsycopgDualWriter):
        assert isinstance(pool.backend, PostgresBackend)
        background: Any = pool.backend.background
        background._most = 0
        for kept in background._kept:
            kept.close()
    else:
        pool.backend.background_engine.dispose()


@contextmanager
def narrow_source(scenario: AnyScenario, connections: int) -> Iterator[Source]:
    """Limit the number of connections for blocks."""
    url = scenario.database.url
    if isinstance(scenario, PsycopgScenario):
        with ConnectionPool(conninfo_of(url), min_size=0, max_size=connections, timeout=5, open=True) as pool:
            yield pool
    else:
        yield sa.create_engine(url, pool_size=connections, max_overflow=0, pool_timeout=5)


def isolated_source(scenario: AnyScenario, level: str) -> Source:
    """Return a source whose connections have this isolation level."""
    if not isinstance(scenario, PsycopgScenario):
        return scenario.database.engine.execution_options(isolation_level=level)

    url = scenario.database.engine.url
    if level == "SERIALIZABLE":  # set as for a role, or for the whole server
        options = f"{url.query['options']} -cdefault_transaction_isolation=serializable"
        return psycopg.conninfo.make_conninfo(conninfo_of(url), options=options)

    def connect() -> psycopg.Connection[Any]:
        connection = psycopg.connect(conninfo_of(url))
        connection.set_isolation_level(psycopg.IsolationLevel[level.replace(" ", "_")])
        return connection

    return connect


def prefix_of(scenario: AnyScenario) -> str:
    """`scenario.transactional_id` is the pool's first slot."""
    return scenario.transactional_id.removesuffix("-0")


def write(pool: AnyPool, scenario: AnyScenario, number: int) -> AnyWrite:
    """One event on both sides."""
    with pool.transaction() as tx:
        put(tx, scenario, number)
    return tx


def put(tx: AnyWrite, scenario: AnyScenario, number: int) -> None:
    if isinstance(tx, PsycopgDualTransaction):
        tx.connection.execute(INSERT, (number, str(number)))
    else:
        tx.connection.execute(sa.insert(events), {"id": number, "event_key": "k", "body": str(number)})
    tx.send(scenario.topic, value=str(number), key="k")


def read(tx: AnyWrite, query: str) -> None:
    """Let the transaction read a row."""
    if isinstance(tx, PsycopgDualTransaction):
        tx.connection.execute(query)
    else:
        tx.session.execute(sa.text(query)).all()


def written(scenario: AnyScenario) -> set[str]:
    """Return the events in both table and topic. Fails if they differ, or if a record is there twice."""
    engine = sa.create_engine(scenario.database.url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        in_table = sorted(connection.scalars(sa.select(events.c.body)))
    in_topic = sorted(value for _, value in read_topic(scenario.emulator.bootstrap_servers, scenario.topic))
    assert in_table == in_topic
    return set(in_table)


class LeaseTable:
    """The leases as an operator would change them, past every pool."""

    def __init__(self, scenario: AnyScenario) -> None:
        self._engine = sa.create_engine(scenario.database.url, poolclass=sa.NullPool)
        self._prefix = prefix_of(scenario)
        create_lease_table(self._engine)

    def change(self, **values: Any) -> None:
        table = kafka_transaction_lease
        with self._engine.begin() as connection:
            connection.execute(sa.update(table).where(table.c.prefix == self._prefix).values(values))

    def jump_clock(self, milliseconds: int) -> None:
        """As if the database's clock had jumped."""
        self.change(expires_at_ms=kafka_transaction_lease.c.expires_at_ms - milliseconds)

    def expire(self) -> None:
        self.change(expires_at_ms=0)

    def free(self) -> None:
        """Release all leases."""
        self.change(owner=None)

    def empty(self) -> None:
        with self._engine.begin() as connection:
            connection.execute(sa.delete(kafka_transaction_lease))

    def add(self, slot: int, owner: str | None, *, prefix: str = "") -> None:
        values = {"prefix": prefix or self._prefix, "slot": slot, "owner": owner, "expires_at_ms": 0}
        with self._engine.begin() as connection:
            connection.execute(sa.insert(kafka_transaction_lease), values)

    def owners(self) -> dict[int, str | None]:
        table = kafka_transaction_lease
        with self._engine.connect() as connection:
            rows = connection.execute(sa.select(table.c.slot, table.c.owner).where(table.c.prefix == self._prefix))
            return {row.slot: row.owner for row in rows}
