"""The manifest beside the prepared state, on each backend: it comes and goes with the state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from dualwrite.errors import StateRowError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.store import Database, DatabaseTransaction
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualWriter
from dualwrite.recipes.sqlalchemy.events import watch
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyDatabase
from tests.crash.psycopg_scenario import conninfo_of
from tests.support.databases import MariaDbDatabase, PostgresDatabase, SqliteDatabase
from tests.support.key_value_stores import in_directory

EMPTY = PreparedTxnState()
FIRST = PreparedTxnState("42:7")
SECOND = PreparedTxnState("42:8")
ID = 'it\'s \\ an "odd" id; -- %s :id {mark} COMMIT ключ \u2028 😀'.ljust(255, "x")  # as long as it may be
ODD = """{"topic": "it's \\\\ %s :id :mark kafka_transaction_state; COMMIT; -- $$ E'\\'"}"""
LONG = "'\\" * 30_000  # 60,000 bytes, the most that a manifest may have
NOWHERE = "127.0.0.1:1"


# ---- the backends ---------------------------------------------------------------------------------------------------


def _on(engine: sa.Engine) -> SqlAlchemyDatabase:
    watch(engine)
    return SqlAlchemyDatabase(engine, create_table=True)


@contextmanager
def _on_sqlalchemy(kind: Callable[[Any], Any], server: str, request: pytest.FixtureRequest) -> Iterator[Database]:
    made = kind(request.getfixturevalue(server))
    yield _on(made.engine)
    made.close()


@contextmanager
def _unheard_of(request: pytest.FixtureRequest) -> Iterator[Database]:
    path: Path = request.getfixturevalue("tmp_path")
    engine = sa.create_engine(f"sqlite:///{path}/other.db")
    engine.dialect.name = "unheard-of"
    yield _on(engine)
    engine.dispose()


@contextmanager
def _psycopg(request: pytest.FixtureRequest) -> Iterator[Database]:
    made = PostgresDatabase(request.getfixturevalue("postgres_server"))
    with writer_on(made) as writer:
        yield writer.backend.database
    made.close()


@contextmanager
def _rocksdb(request: pytest.FixtureRequest) -> Iterator[Database]:
    store = in_directory(request.getfixturevalue("tmp_path"))
    with store.writer(bootstrap_servers=NOWHERE, transactional_id=ID) as writer:
        yield writer.backend.database
    store.close()


BACKENDS: dict[str, Callable[[pytest.FixtureRequest], AbstractContextManager[Database]]] = {
    "postgres": partial(_on_sqlalchemy, PostgresDatabase, "postgres_server"),
    "mariadb": partial(_on_sqlalchemy, MariaDbDatabase, "mariadb_server"),
    "sqlite": partial(_on_sqlalchemy, SqliteDatabase, "tmp_path"),
    "unheard-of": _unheard_of,
    "psycopg": _psycopg,
    "rocksdb": _rocksdb,
}


@pytest.fixture(params=BACKENDS)
def place(request: pytest.FixtureRequest) -> Iterator[Database]:
    with BACKENDS[request.param](request) as database:
        blocking.run(database.ensure_row(ID))
        yield database


def writer_on(database: PostgresDatabase, **settings: Any) -> PsycopgDualWriter:
    return PsycopgDualWriter(
        conninfo_of(database.url), bootstrap_servers=NOWHERE, transactional_id=ID, lock_timeout_ms=60_000, **settings
    )


@contextmanager
def transaction(place: Database) -> Iterator[DatabaseTransaction]:
    """One transaction, rolled back at the end unless it was committed."""
    begun = blocking.run(place.begin())
    try:
        yield begun
    finally:
        blocking.run(begun.rollback())
        blocking.run(begun.close())


def put(place: Database, previous: PreparedTxnState, new: PreparedTxnState, manifest: str) -> None:
    with transaction(place) as begun:
        assert blocking.run(begun.lock(ID, timeout_ms=10_000)) == previous
        blocking.run(begun.write(ID, previous=previous, new=new, manifest=manifest))
        blocking.run(begun.commit())


def row(place: Database) -> tuple[PreparedTxnState, str]:
    """The state and the manifest, read under the lock."""
    with transaction(place) as begun:
        return blocking.run(begun.lock(ID, timeout_ms=10_000)), blocking.run(begun.read_manifest(ID))


# ---- on each --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("manifest", ["m", ODD, LONG], ids=["short", "odd", "long"])
def test_the_manifest_is_committed_with_the_state(place: Database, manifest: str) -> None:
    put(place, EMPTY, FIRST, manifest)
    assert row(place) == (FIRST, manifest)


# ---- where there are rows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["postgres", "mariadb", "sqlite", "psycopg"], indirect=True)
def test_a_deleted_row_has_no_manifest(place: Database) -> None:
    with transaction(place) as begun, pytest.raises(StateRowError, match="no row"):
        blocking.run(begun.read_manifest("another"))


# ---- psycopg: in the message of COMMIT ------------------------------------------------------------------------------


@pytest.fixture
def on_psycopg(postgres: PostgresDatabase) -> Iterator[Database]:
    with writer_on(postgres) as writer:
        database = writer.backend.database
        blocking.run(database.ensure_row(ID))
        yield database


@pytest.mark.parametrize("manifest", ["m", ODD, LONG], ids=["short", "odd", "long"])
@pytest.mark.parametrize(
    "setting",
    ["client_encoding = 'SJIS'", "client_encoding = 'LATIN1'", "standard_conforming_strings = off"],
)
def test_the_manifest_is_committed_with_the_state_at_every_setting(
    on_psycopg: Database, manifest: str, setting: str
) -> None:
    with transaction(on_psycopg) as begun:
        blocking.run(begun.lock(ID, timeout_ms=None))
        blocking.run(begun.write(ID, previous=EMPTY, new=FIRST, manifest=manifest))
        connection_of(begun).execute(f"SET LOCAL {setting}")
        blocking.run(begun.commit())
    assert row(on_psycopg) == (FIRST, manifest)


def test_until_then_the_manifest_of_the_earlier_pair_stays(on_psycopg: Database) -> None:
    put(on_psycopg, EMPTY, FIRST, "first")
    with transaction(on_psycopg) as begun:
        blocking.run(begun.lock(ID, timeout_ms=None))
        blocking.run(begun.write(ID, previous=FIRST, new=SECOND, manifest="second"))
        assert blocking.run(begun.read_manifest(ID)) == "first"
    assert row(on_psycopg) == (FIRST, "first")


async def test_an_asynchronous_commit_carries_the_manifest_too(
    postgres: PostgresDatabase, on_psycopg: Database
) -> None:
    async with AsyncPsycopgDualWriter(
        conninfo_of(postgres.url), bootstrap_servers=NOWHERE, transactional_id=ID
    ) as writer:
        database = writer.backend.database
        await database.ensure_row(ID)
        begun = await database.begin()
        await begun.lock(ID, timeout_ms=None)
        await begun.write(ID, previous=EMPTY, new=FIRST, manifest=ODD)
        await begun.commit()
        await begun.close()
    assert row(on_psycopg) == (FIRST, ODD)


def connection_of(begun: DatabaseTransaction) -> psycopg.Connection[Any]:
    connection: Any = begun
    connection = connection.connection
    assert isinstance(connection, psycopg.Connection)
    return connection
