"""Which database owns a transactional id, and which table decides it: two databases, two schemas, copies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.cli.root import cli
from dualwrite.errors import ConfigError, DatabaseMovedError, IllegalStateError, StateRowError, StateTableError
from dualwrite.outcome import Outcome
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.database_identity import DatabaseIdentity
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from dualwrite.recipes.recovery.adoption import adopt
from dualwrite.recipes.recovery.service import Action, RecoveryService
from dualwrite.recipes.sql.identity_table import found_identity
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyDatabase, create_state_table
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from dualwrite.testing.postgres import PostgresServer
from tests.crash.psycopg_scenario import conninfo_of
from tests.crash.scenario import Crash, crash_at
from tests.support.databases import MariaDbDatabase, PostgresDatabase, events, unique
from tests.support.servers.mariadb import MariaDbServer
from tests.support.topics import read_topic
from tests.support.writers import KINDS, Kind, closed, entered, got

TOPIC = "events"


@pytest.fixture
def servers(emulator: Emulator) -> str:
    emulator.create_topic(TOPIC)
    return emulator.bootstrap_servers


@pytest.fixture
def tenants(postgres_server: PostgresServer) -> Iterator[sa.URL]:
    """Create a database with the schemas a and b, and a role that sees both."""
    url = postgres_server.create_database(named("tenants"))
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for schema in ("a", "b"):
            connection.exec_driver_sql(f"CREATE SCHEMA {schema}")
            connection.exec_driver_sql(f"CREATE TABLE {schema}.items (body text)")
    yield url
    engine.dispose()


def named(kind: str) -> str:
    return unique(kind).replace("-", "_")


def in_schema(url: sa.URL, *schemas: str) -> sa.URL:
    return url.update_query_dict({"options": f"-csearch_path={','.join(schemas)}"})


def engine_of(url: sa.URL) -> sa.Engine:
    return sa.create_engine(url, poolclass=sa.NullPool)


def rows(url: sa.URL, schema: str) -> list[str]:
    """Return the states in the rows of a schema."""
    with engine_of(url).connect() as connection:
        found = connection.exec_driver_sql(f"SELECT prepared_transaction_state FROM {schema}.kafka_transaction_state")
        return list(found.scalars())


def in_topic(servers: str) -> list[str]:
    return sorted(value for _, value in read_topic(servers, TOPIC))


# ---- two databases, one id ------------------------------------------------------------------------------------------


def sqlite(directory: Path, name: str) -> sa.Engine:
    engine = sa.create_engine(f"sqlite:///{directory / name}", poolclass=sa.NullPool)
    events.metadata.create_all(engine)
    return engine


def test_a_database_does_not_abort_the_decision_of_another_under_the_same_id(servers: str, tmp_path: Path) -> None:
    ours, theirs = sqlite(tmp_path, "ours"), sqlite(tmp_path, "theirs")
    settings: dict[str, Any] = {"bootstrap_servers": servers, "transactional_id": "orders-1"}
    writer = DualWriter(ours, pause=crash_at(PausePoint.AFTER_DATABASE_COMMIT), **settings)
    with pytest.raises(Crash), writer.transaction() as tx:
        tx.send(TOPIC, value="decided")
    with DualWriter(theirs, **settings) as other:
        other.recover()
        with other.transaction() as tx:
            tx.send(TOPIC, value="theirs")
    with DualWriter(ours, **settings) as again:
        assert [found.outcome for found in again.recover()] == [Outcome.COMMITTED]
        assert again.transactional_id == "orders-1"
        assert again.kafka_transactional_id != other.kafka_transactional_id
        assert str(again.kafka_transactional_id).startswith("orders-1.")
    assert in_topic(servers) == ["decided", "theirs"]


def test_recovery_reports_ids_of_other_databases_and_leaves_them(servers: str, tmp_path: Path) -> None:
    ours, theirs = sqlite(tmp_path, "ours"), sqlite(tmp_path, "theirs")
    create_state_table(ours)
    settings: dict[str, Any] = {"bootstrap_servers": servers, "transactional_id": "orders-1"}
    writer = DualWriter(theirs, pause=crash_at(PausePoint.AFTER_DATABASE_COMMIT), **settings)
    with pytest.raises(Crash), writer.transaction() as tx:
        tx.send(TOPIC, value="decided")
    with RecoveryService(ours, prefix="orders-", bootstrap_servers=servers, min_age_ms=0) as service:
        (found,) = service.recover().found
    assert (found.action, found.changed, found.transactional_id) == (
        Action.NO_ROW,
        False,
        str(writer.kafka_transactional_id),
    )
    assert "another database" in str(found.error)
    named = [str(writer.kafka_transactional_id)]  # as an operator reads it in Kafka's tools
    with RecoveryService(theirs, transactional_ids=named, bootstrap_servers=servers, min_age_ms=0) as service:
        (found,) = service.recover().found
    assert (found.action, found.changed, found.transactional_id) == (Action.COMMIT, True, "orders-1")
    assert in_topic(servers) == ["decided"]


def test_a_name_with_a_decision_is_not_taken_for_the_id_of_another_application(servers: str, tmp_path: Path) -> None:
    ours, theirs = sqlite(tmp_path, "ours"), sqlite(tmp_path, "theirs")
    for engine, body in ((ours, "first"), (theirs, "second")):
        with (
            DualWriter(engine, bootstrap_servers=servers, transactional_id="orders-1") as writer,
            writer.transaction() as tx,
        ):
            tx.send(TOPIC, value=body)
    with RecoveryService(ours, force_terminate=["orders-1"], bootstrap_servers=servers, min_age_ms=0) as service:
        assert service.recover().found == ()


# ---- which table ----


def test_two_tables_that_one_role_sees_are_refused_by_name(servers: str, tenants: sa.URL) -> None:
    for schema in ("a", "b"):
        create_state_table(engine_of(tenants), schema)
    settings: dict[str, Any] = {"bootstrap_servers": servers, "transactional_id": "t"}
    for make in (
        lambda: DualWriter(engine_of(in_schema(tenants, "a")), **settings),
        lambda: PsycopgDualWriter(conninfo_of(in_schema(tenants, "a")), **settings),
    ):
        with make() as writer, pytest.raises(StateTableError, match=r"a\.kafka.*b\.kafka.*schema=") as raised:
            writer.recover()
        assert "nothing was written" in str(raised.value)


def test_a_temporary_or_unlogged_table_is_no_state_table(servers: str, tenants: sa.URL) -> None:
    create_state_table(engine_of(tenants), "a")
    with engine_of(tenants).begin() as connection:
        connection.exec_driver_sql("ALTER TABLE a.kafka_transaction_state SET UNLOGGED")
    writer = DualWriter(engine_of(tenants), schema="a", bootstrap_servers=servers, transactional_id="t")
    with writer, pytest.raises(StateTableError, match="unlogged"):
        writer.recover()


@pytest.mark.parametrize("named", [{"transactional_id": "t"}, {"prefix": "p", "max_writers": 1}], ids=["id", "pool"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_block_that_sets_search_path_decides_in_the_pinned_table(
    servers: str, tenants: sa.URL, kind: Kind, named: dict[str, Any]
) -> None:
    """And its own statements go where it says."""
    create_state_table(engine_of(tenants), "b")

    async def write_two() -> None:
        source = kind.source(in_schema(tenants, "b"))
        writer = kind.writer(source, bootstrap_servers=servers, schema="a", **named)
        for number in range(2):
            async with entered(writer.transaction()) as tx:
                await got(kind.execute(tx, "SET search_path = b"))
                await got(kind.execute(tx, f"INSERT INTO items VALUES ('{number}')"))
                tx.send(TOPIC, value=str(number))
        await closed(writer, source)

    asyncio.run(write_two()) if kind.is_awaited else blocking.run(write_two())
    assert in_topic(servers) == ["0", "1"]
    (row,) = rows(tenants, "a")
    assert row
    assert rows(tenants, "b") == []
    with engine_of(tenants).connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM b.items").scalar() == 2


def test_a_schema_by_role_by_url_and_by_translation(servers: str, tenants: sa.URL) -> None:
    """Each tenant has ids of its own, and neither sees the other's table."""
    admin = engine_of(tenants)
    found: dict[str, str] = {}
    for schema in ("a", "b"):
        role = named("tenant")
        with admin.begin() as connection:
            connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN PASSWORD '{role}'")
            connection.exec_driver_sql(f"GRANT ALL ON SCHEMA {schema} TO {role}")
            connection.exec_driver_sql(f"ALTER ROLE {role} SET search_path = {schema}")
        by_role = tenants.set(username=role, password=role)
        for url in (by_role, in_schema(by_role, schema)):
            with DualWriter(engine_of(url), bootstrap_servers=servers, transactional_id="t") as writer:
                with writer.transaction() as tx:
                    tx.send(TOPIC, value=schema)
                found[schema] = str(writer.kafka_transactional_id)
        translated = engine_of(by_role).execution_options(schema_translate_map={None: schema})
        with DualWriter(translated, bootstrap_servers=servers, transactional_id="t") as writer:
            writer.recover()
            assert writer.kafka_transactional_id == found[schema]
    assert found["a"] != found["b"]
    assert in_topic(servers) == ["a", "a", "b", "b"]


def test_a_translation_of_the_block_does_not_redirect_the_state_table(servers: str, tenants: sa.URL) -> None:
    create_state_table(engine_of(tenants), "b")
    engine = engine_of(tenants)
    writer = DualWriter(engine, bootstrap_servers=servers, transactional_id="t", schema="a")
    translated = engine.execution_options(schema_translate_map={None: "b", "a": "b"})
    with writer, translated.connect() as connection, writer.transaction(connection) as tx:
        tx.send(TOPIC, value="x")
    assert rows(tenants, "b") == []


@pytest.mark.parametrize("kind", ["sqlalchemy", "psycopg"])
def test_a_recreated_table_is_reported(servers: str, tenants: sa.URL, kind: str) -> None:
    url = in_schema(tenants, "a")
    settings: dict[str, Any] = {"bootstrap_servers": servers, "transactional_id": "t", "schema": "a"}
    writer: Any = (
        DualWriter(engine_of(url), **settings)
        if kind == "sqlalchemy"
        else PsycopgDualWriter(conninfo_of(url), **settings)
    )
    with writer:
        with writer.transaction() as tx:
            tx.send(TOPIC, value="first")
        with engine_of(tenants).begin() as connection:
            connection.exec_driver_sql("DROP TABLE a.kafka_transaction_state")
        with pytest.raises(StateTableError, match="dropped"), writer.transaction() as tx:
            tx.send(TOPIC, value="without a table")
        create_state_table(engine_of(tenants), "a")
        blocking.run(SqlAlchemyDatabase(engine_of(tenants), "a").ensure_row("t"))
        with pytest.raises(StateTableError, match="replaced"), writer.transaction() as tx:
            tx.send(TOPIC, value="with another table")
    assert in_topic(servers) == ["first"]


def test_use_of_another_database_inside_the_block(servers: str, mariadb_server: MariaDbServer) -> None:
    ours, theirs = MariaDbDatabase(mariadb_server), MariaDbDatabase(mariadb_server)
    create_state_table(theirs.engine)
    with DualWriter(ours.engine, bootstrap_servers=servers, transactional_id="t") as writer:
        with writer.transaction() as tx:
            tx.connection.exec_driver_sql(f"USE {theirs.url.database}")
            tx.send(TOPIC, value="x")
        writer.recover()
    with theirs.aside.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM kafka_transaction_state").scalar() == 0
    assert in_topic(servers) == ["x"]
    for database in (ours, theirs):
        database.close()


def test_a_temporary_table_of_sqlite(servers: str, tmp_path: Path) -> None:
    engine = sqlite(tmp_path, "ours")
    with DualWriter(engine, bootstrap_servers=servers, transactional_id="t") as writer:
        with writer.transaction() as tx:
            tx.connection.exec_driver_sql(
                "CREATE TEMPORARY TABLE kafka_transaction_state AS SELECT * FROM main.kafka_transaction_state"
            )
            tx.send(TOPIC, value="x")
        assert writer.recover() == []
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT prepared_transaction_state FROM kafka_transaction_state").scalar()


@pytest.mark.parametrize("schema", ["", 'a"b', "a:b", 5])
def test_an_invalid_schema_name_is_refused(schema: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="schema takes"):
        DualWriter(sqlite(tmp_path, "x"), bootstrap_servers="127.0.0.1:1", transactional_id="t", schema=schema)


# ---- copies ----


@pytest.fixture
def copy(postgres_server: PostgresServer, servers: str) -> tuple[sa.URL, sa.URL]:
    """Create a database with an in-doubt transaction, and a copy of it."""
    url = postgres_server.create_database(named("original"))
    writer = DualWriter(
        engine_of(url),
        bootstrap_servers=servers,
        transactional_id="t",
        pause=crash_at(PausePoint.AFTER_DATABASE_COMMIT),
    )
    with pytest.raises(Crash), writer.transaction() as tx:
        tx.send(TOPIC, value="decided")
    name = named("copy")
    with sa.create_engine(postgres_server.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool).connect() as c:
        c.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE {url.database}")
    return url, url.set(database=name)


def test_a_copy_is_refused_before_anything_is_written_or_aborted(
    servers: str, emulator: Emulator, copy: tuple[sa.URL, sa.URL]
) -> None:
    original, copied = copy
    before = emulator.transactions()
    settings: dict[str, Any] = {"bootstrap_servers": servers, "transactional_id": "t"}
    for make in (
        lambda: DualWriter(engine_of(copied), **settings),
        lambda: PsycopgDualWriter(conninfo_of(copied), **settings),
    ):
        with make() as writer, pytest.raises(DatabaseMovedError, match=r"adopt --moved.*adopt --copied") as raised:
            writer.recover()
        assert raised.value.made_in != raised.value.found_in
    with (
        RecoveryService(engine_of(copied), prefix="", bootstrap_servers=servers) as service,
        pytest.raises(DatabaseMovedError),
    ):
        service.recover()
    assert emulator.transactions() == before
    with DualWriter(engine_of(original), **settings) as writer:
        assert [found.outcome for found in writer.recover()] == [Outcome.COMMITTED]
    assert in_topic(servers) == ["decided"]


def test_a_copy_that_is_adopted_as_copied_has_ids_of_its_own(servers: str, copy: tuple[sa.URL, sa.URL]) -> None:
    original, copied = copy
    said = CliRunner().invoke(cli, ["adopt", "--copied", "--database", copied.render_as_string(hide_password=False)])
    assert said.exit_code == 0, said.output
    assert "1 state rows were emptied" in said.output
    settings: dict[str, Any] = {"bootstrap_servers": servers, "transactional_id": "t"}
    with DualWriter(engine_of(copied), **settings) as writer:
        assert writer.recover() == []
        with writer.transaction() as tx:
            tx.send(TOPIC, value="of the copy")
    with DualWriter(engine_of(original), **settings) as first:
        assert [found.outcome for found in first.recover()] == [Outcome.COMMITTED]
        assert first.kafka_transactional_id != writer.kafka_transactional_id
    assert in_topic(servers) == ["decided", "of the copy"]


def test_a_copy_adopted_as_moved_completes_the_decisions_of_the_original(
    servers: str, copy: tuple[sa.URL, sa.URL]
) -> None:
    moved = copy[1]
    said = CliRunner().invoke(cli, ["adopt", "--moved", "--database", moved.render_as_string(hide_password=False)])
    assert said.exit_code == 0, said.output
    with PsycopgDualWriter(conninfo_of(moved), bootstrap_servers=servers, transactional_id="t") as writer:
        assert [found.outcome for found in writer.recover()] == [Outcome.COMMITTED]
    assert in_topic(servers) == ["decided"]


def test_nothing_is_adopted_where_nothing_was_moved(tenants: sa.URL) -> None:
    engine = engine_of(tenants)
    create_state_table(engine, "a")
    before = SqlAlchemyDatabase(engine, "a").identity()
    with pytest.raises(IllegalStateError, match="nothing was changed"):
        adopt(engine, "copied", schema="a")
    assert SqlAlchemyDatabase(engine, "a").identity() == before
    adopted = adopt(engine, "copied", schema="a", force=True)
    assert SqlAlchemyDatabase(engine, "a").identity().suffix == adopted.suffix != before.suffix


def test_decisions_without_the_identity_of_their_database(servers: str, tmp_path: Path) -> None:
    """As after a dump of the state table alone."""
    engine = sqlite(tmp_path, "ours")
    settings: dict[str, Any] = {"bootstrap_servers": servers, "transactional_id": "t"}
    with DualWriter(engine, **settings) as writer, writer.transaction() as tx:
        tx.send(TOPIC, value="x")
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM kafka_transaction_database")
    with DualWriter(engine, **settings) as writer, pytest.raises(StateRowError, match="holds decisions"):
        writer.recover()
    adopt(engine, "copied")
    with DualWriter(engine, **settings) as writer:
        assert writer.recover() == []


def test_a_process_decides_between_two_readings_of_another(servers: str, tmp_path: Path) -> None:
    """The other one has found no identity, and then finds a decision: not one without an identity."""
    engine = sqlite(tmp_path, "ours")
    with DualWriter(engine, bootstrap_servers=servers, transactional_id="t") as writer, writer.transaction() as tx:
        tx.send(TOPIC, value="x")
    made = SqlAlchemyDatabase(engine).identity()
    looks = mock.AsyncMock(wraps=found_identity, side_effect=[None, mock.DEFAULT])
    with mock.patch("dualwrite.recipes.sql.database.found_identity", looks):
        assert SqlAlchemyDatabase(engine).identity() == made


def test_concurrent_processes_agree_on_one_identity(postgres: PostgresDatabase) -> None:

    def first_use(_: int) -> DatabaseIdentity:
        create_state_table(postgres.aside)
        return SqlAlchemyDatabase(postgres.aside).identity()

    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(first_use, range(8)))
    assert len(found) == 1
