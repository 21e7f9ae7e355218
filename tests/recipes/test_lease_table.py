"""Leases in their table, on each database."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.leases import Lease
from dualwrite.recipes.sql.lease_statements import TableLeases
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyDatabase, create_state_table
from dualwrite.recipes.sqlalchemy.tables import kafka_transaction_lease
from tests.support.databases import Database

LEASE_MS = 60_000


def leases_of(database: Database, owner: str, *, prefix: str = "p", lease_ms: int = LEASE_MS) -> TableLeases:
    store = SqlAlchemyDatabase(database.engine, create_table=True)
    return TableLeases(store, prefix=prefix, owner=owner, lease_ms=lease_ms)


@pytest.fixture
def ours(database: Database) -> TableLeases:
    return leases_of(database, "us")


@pytest.fixture
def theirs(database: Database) -> TableLeases:
    return leases_of(database, "them")


def every(leases: TableLeases) -> list[Lease]:
    return blocking.run(leases.every_lease())


def test_a_lease_excludes_others_until_it_is_released(ours: TableLeases, theirs: TableLeases) -> None:
    assert blocking.run(ours.add(0))
    assert not blocking.run(theirs.add(0))
    assert every(theirs) == [Lease(0, free=False, expired=False)]
    blocking.run(theirs.release(0))
    assert every(theirs) == [Lease(0, free=False, expired=False)]
    blocking.run(ours.release(0))
    (lease,) = every(theirs)
    assert lease == Lease(0, free=True, expired=False)
    assert blocking.run(theirs.claim(lease))
    assert not blocking.run(ours.claim(lease))


def test_a_lease_that_was_abandoned_is_expired_at_once(ours: TableLeases, theirs: TableLeases) -> None:
    blocking.run(ours.add(0))
    blocking.run(ours.abandon(0))
    (lease,) = every(theirs)
    assert lease == Lease(0, free=False, expired=True)
    assert blocking.run(theirs.claim(lease))
    assert not blocking.run(ours.claim(lease))
    assert blocking.run(ours.renew({0})) == set()
    assert blocking.run(theirs.renew({0, 1})) == {0}


def test_the_clock_is_the_databases_and_counts_milliseconds_since_1970(database: Database, ours: TableLeases) -> None:
    blocking.run(ours.add(0))
    table = kafka_transaction_lease
    with database.engine.connect() as connection:
        connection.execute(sa.text("SELECT 1"))
        expires_at_ms = connection.scalar(sa.select(table.c.expires_at_ms))
    assert expires_at_ms is not None
    with sa.create_engine("sqlite://").connect() as elsewhere:
        now_ms = elsewhere.scalar(sa.text("SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000"))
    assert now_ms is not None
    assert 0 <= expires_at_ms - now_ms <= LEASE_MS + 1000


def test_rows_of_the_state_table_without_a_lease_are_adopted(database: Database, ours: TableLeases) -> None:
    blocking.run(ours.adopt())  # neither table is there
    create_state_table(database.engine)
    store = SqlAlchemyDatabase(database.engine)
    for transactional_id in ("p-0", "p-3", "p-x", "p_-1", "q-1", "p-eu-2", "p", "P-5", "p-07"):
        blocking.run(store.ensure_row(transactional_id))
    blocking.run(ours.add(3))
    blocking.run(ours.adopt())
    blocking.run(ours.adopt())
    assert every(ours) == [Lease(0, free=False, expired=True), Lease(3, free=False, expired=False)]


def test_prefixes_are_compared_exactly(database: Database) -> None:
    for prefix in ("orders", "Orders", "orders-eu", "order%"):
        assert blocking.run(leases_of(database, "us", prefix=prefix).add(0))
    for prefix in ("orders", "Orders", "orders-eu", "order%"):
        assert blocking.run(leases_of(database, "us", prefix=prefix).renew({0})) == {0}
