"""How databases find waiting blocks: by the index, however wrong the statistics of the tables are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import psycopg
import pytest
import sqlalchemy as sa

from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.store import Sent
from dualwrite.recipes.postgres.transaction import _schema
from dualwrite.recipes.sql.outbox_statements import PostgresOutbox
from dualwrite.recipes.sql.outbox_steps import OUTBOX_TABLE
from dualwrite.recipes.sql.pinned_tables import Pin, PinnedTables
from dualwrite.recipes.sqlalchemy.outbox_table import create_outbox_table
from dualwrite.recipes.sqlalchemy.state_table import create_state_table
from dualwrite.recipes.sqlalchemy.steps import OnMySql
from dualwrite.testing.postgres import PostgresServer
from tests.crash.psycopg_scenario import conninfo_of
from tests.recipes.outboxes import forgetful
from tests.support.databases import MariaDbDatabase, PostgresDatabase
from tests.support.servers.mariadb import MariaDbServer

__all__ = ["forgetful"]  # a fixture

ID: Final = "pool-outbox-0"
MOST_BYTES: Final = 8_388_608
BLOCKS: Final = 3_000
OTHER_THAN_BY_INDEX: Final = {"Seq Scan", "Bitmap Heap Scan", "Sort", "Incremental Sort"}


@pytest.fixture
def connection(postgres_server: PostgresServer, postgres: PostgresDatabase) -> Iterator[psycopg.Connection]:
    as_superuser = postgres_server.url.set(database=postgres.url.database)
    with psycopg.connect(conninfo_of(as_superuser), autocommit=True) as opened:
        opened.execute(f"DROP TABLE IF EXISTS {OUTBOX_TABLE}".encode())
        opened.execute(_schema("outbox_schema.sql").encode())
        opened.execute(f"ALTER TABLE {OUTBOX_TABLE} SET (autovacuum_enabled = off)".encode())
        yield opened
        opened.execute(f"DROP TABLE {OUTBOX_TABLE}".encode())


def fill(connection: psycopg.Connection, blocks: int) -> None:
    records = "SELECT %s, 1, repeat('x', 100)::bytea FROM generate_series(1, %s)"
    connection.execute(f"INSERT INTO {OUTBOX_TABLE} (transactional_id, stored_at_ms, records) {records}", [ID, blocks])


class Explaining:
    """`Statements` that explain each statement before they execute it."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        self.met: set[str] = set()
        """The kinds of nodes in all plans."""

    async def rows(self, sql: str, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        statement = _for_psycopg(sql, values)
        ((plan,),) = self._connection.execute(b"EXPLAIN (FORMAT JSON) " + statement, values)
        self.met |= set(_nodes(plan if isinstance(plan, list) else json.loads(plan)))
        return self._connection.execute(statement, values).fetchall()

    async def changed(self, sql: str, values: Mapping[str, Any]) -> int:
        ((_, *_),) = await self.rows(f"WITH changed AS ({sql} RETURNING 1) SELECT count(*) FROM changed", values)
        return 1

    async def has_outbox_table(self) -> bool:
        return True


def _for_psycopg(sql: str, values: Mapping[str, Any]) -> bytes:
    for name in sorted(values, key=len, reverse=True):
        sql = sql.replace(f":{name}", f"%({name})s")
    return sql.encode()


def _nodes(plan: Any) -> Iterator[str]:
    if isinstance(plan, list):
        for each in plan:
            yield from _nodes(each)
    elif isinstance(plan, dict):
        if plan.get("Relation Name") or "Sort" in plan.get("Node Type", ""):
            yield plan["Node Type"]
        for each in plan.values():
            yield from _nodes(each)


async def has_ended(transactional_id: str, seq: int) -> bool:
    raise AssertionError("no COMMIT was lost")


def publish(connection: psycopg.Connection) -> set[str]:
    """Read two batches, keep the first and delete the second, as a publisher does. Return how their rows were found."""
    explaining: Any = Explaining(connection)
    outbox = PostgresOutbox(explaining, has_ended)

    async def steps() -> None:
        for is_bounded in (True, False):
            _, blocks = await outbox.waiting(ID, max_bytes=MOST_BYTES)
            assert len(blocks) == 1_000
            sent = Sent(PreparedTxnState("7:0"), [0] * len(blocks)) if is_bounded else None
            await outbox.publish(ID, blocks, kept_as=sent)

    with connection.transaction():
        blocking.run(steps())
    met: set[str] = explaining.met
    return met


@pytest.mark.parametrize("columns", [True, False], ids=["columns analyzed", "columns unknown"])
@pytest.mark.parametrize("rows", [0, 1, 100, 1_000, 100_000_000])
@pytest.mark.usefixtures("forgetful")
def test_statistics_that_are_wrong(connection: psycopg.Connection, rows: int, columns: bool) -> None:
    fill(connection, BLOCKS)
    if columns:
        connection.execute("ANALYZE")
    doctored = "UPDATE pg_class SET reltuples = %s, relpages = greatest(relpages, 50) WHERE relname LIKE %s"
    connection.execute(doctored, [rows, "kafka_transaction_%"])
    assert not publish(connection) & OTHER_THAN_BY_INDEX
    assert connection.execute("SHOW enable_seqscan").fetchone() == ("on",)


@pytest.mark.parametrize(("blocks", "believed"), [(500, None), (100, 0), (500, 0), (500, 100)])
def test_innodb_waits_for_no_block_of_another_id(
    mariadb_server: MariaDbServer, blocks: int, believed: int | None
) -> None:
    database = MariaDbDatabase(mariadb_server)
    engine = sa.create_engine(database.url, connect_args={"init_command": "SET innodb_lock_wait_timeout = 1"})
    pin = Pin(PinnedTables(str(database.url.database), f"`{database.url.database}`"))
    create_state_table(engine)
    create_outbox_table(engine)
    with engine.begin() as filling:
        add(filling, pin, "b", blocks + 1)
    if believed is not None:
        with sa.create_engine(mariadb_server.url, poolclass=sa.NullPool).begin() as root:
            believe(root, str(database.url.database), believed)
    with engine.begin() as above, engine.begin() as below, engine.begin() as publishing:
        outbox = OnMySql(publishing, pin).outbox
        add(above, pin, "a", 1)
        add(below, pin, "c", 1)
        _, waiting = blocking.run(outbox.waiting("b", max_bytes=MOST_BYTES))
        blocking.run(outbox.publish("b", waiting[:blocks]))
        add(above, pin, "a", 1)
        add(below, pin, "c", 1)
    with engine.connect() as reading:
        query = f"SELECT transactional_id, count(*) FROM {OUTBOX_TABLE} WHERE seq > 0 AND records <> '' GROUP BY 1"
        found = reading.exec_driver_sql(query).all()
    assert sorted(map(tuple, found)) == [("a", 2), ("b", 1), ("c", 2)]
    engine.dispose()
    database.close()


def add(connection: sa.Connection, pin: Pin, transactional_id: str, blocks: int) -> None:
    outbox = OnMySql(connection, pin).outbox
    for number in range(blocks):
        blocking.run(outbox.append(transactional_id, b"%08d" % number))


def believe(root: sa.Connection, database: str, rows: int) -> None:
    """Have InnoDB believe that the table has so many rows, each with a key of its own."""
    for table, column in (("table", "n_rows"), ("index", "stat_value")):
        change = f"UPDATE mysql.innodb_{table}_stats SET {column} = {rows} WHERE database_name = '{database}'"
        root.exec_driver_sql(change)
    root.exec_driver_sql(f"FLUSH TABLE `{database}`.{OUTBOX_TABLE}")
