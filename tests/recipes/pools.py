"""A pool in tests: what it writes, and what its leases are in the database."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from dualwrite.recipes.lease_table import create_lease_table, kafka_transaction_lease
from dualwrite.recipes.pool import DualTransaction, DualWriterPool
from tests.crash.scenario import Scenario
from tests.support.databases import Database, events
from tests.support.topics import read_topic

QUIET_LEASE_MS = 600_000
"""So long that no heartbeat, sweep or expiry happens during a test that does not ask for it."""


def make_pool(
    scenario: Scenario,
    *,
    database: Database | None = None,
    engine: sa.Engine | None = None,
    prefix: str = "",
    **settings: Any,
) -> DualWriterPool:
    return DualWriterPool(
        engine or (database or scenario.database).engine,
        prefix=prefix or prefix_of(scenario),
        bootstrap_servers=scenario.emulator.bootstrap_servers,
        **{"lease_ms": QUIET_LEASE_MS, "lock_timeout_ms": 10_000, "max_block_ms": 20_000, **settings},
    )


def prefix_of(scenario: Scenario) -> str:
    """`scenario.transactional_id` is the pool's first slot."""
    return scenario.transactional_id.removesuffix("-0")


def write(pool: DualWriterPool, scenario: Scenario, number: int) -> DualTransaction:
    """One event on both sides."""
    with pool.transaction() as tx:
        put(tx, scenario, number)
    return tx


def put(tx: DualTransaction, scenario: Scenario, number: int) -> None:
    tx.session.execute(sa.insert(events), {"id": number, "event_key": "k", "body": str(number)})
    tx.send(scenario.topic, value=str(number), key="k")


def written(scenario: Scenario) -> set[str]:
    """What is on both sides. Fails where they differ, or where a record is there twice."""
    engine = sa.create_engine(scenario.database.url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        in_table = sorted(connection.scalars(sa.select(events.c.body)))
    in_topic = sorted(value for _, value in read_topic(scenario.emulator.bootstrap_servers, scenario.topic))
    assert in_table == in_topic
    return set(in_table)


class LeaseTable:
    """The leases as an operator would change them, past every pool."""

    def __init__(self, scenario: Scenario) -> None:
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
        """As if nobody held any."""
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
