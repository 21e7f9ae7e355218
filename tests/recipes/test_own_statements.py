"""Our statements use none of the adapters that the application has registered, and no encoding of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import psycopg2.extensions  # type: ignore[import-untyped]
import pytest
import sqlalchemy as sa
from psycopg import sql
from psycopg.adapt import Loader
from psycopg.rows import dict_row
from psycopg.types.string import StrDumper
from pymysql.constants import FIELD_TYPE
from sqlalchemy import event

from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.delivery import Delivery, Direct, Outbox
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from dualwrite.recipes.recovery.service import RecoveryService
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.crash.psycopg_scenario import PsycopgScenario, conninfo_of
from tests.crash.scenario import Scenario
from tests.recipes.faces import INSERT
from tests.support.conditions import until
from tests.support.databases import Database, PostgresDatabase, unique
from tests.support.topics import read_topic


class _Loader(Loader):
    def load(self, data: Any) -> str:
        return f"loaded {bytes(data).decode()}"


class _Dumper(StrDumper):
    def dump(self, obj: str) -> bytes:
        return b"dumped"


def _of_psycopg(connection: Any, record: object) -> None:
    for name in ("text", "varchar", "bpchar", "name", "int4", "int8", "bool", "bytea"):
        connection.adapters.register_loader(name, _Loader)
    connection.adapters.register_dumper(str, _Dumper)


def _of_psycopg2(connection: Any, record: object) -> None:
    loaded = psycopg2.extensions.new_type(
        psycopg2.extensions.UNICODE.values, "LOADED", lambda value, cursor: f"loaded {value}"
    )
    psycopg2.extensions.register_type(loaded, connection)


def _of_pymysql(connection: Any, record: object) -> None:
    texts = (FIELD_TYPE.VAR_STRING, FIELD_TYPE.STRING, FIELD_TYPE.BLOB)
    connection.decoders = {**connection.decoders, **dict.fromkeys(texts, lambda value: f"loaded {value}")}
    connection.encoders = {**connection.encoders, str: lambda value, mapping=None: "'dumped'"}


_REGISTERED: dict[str, Callable[[Any, object], None]] = {
    "psycopg": _of_psycopg,
    "psycopg2": _of_psycopg2,
    "pymysql": _of_pymysql,
}


@pytest.fixture(params=["psycopg", "psycopg2", "pymysql"])
def adapted(request: pytest.FixtureRequest, store: Database) -> Iterator[sa.Engine]:
    """An engine of an application that has adapters of its own for texts, and for more."""
    url = store.url
    if (request.param == "pymysql") is (url.get_dialect().name == "postgresql"):
        pytest.skip("a driver of the other database")
    engine = sa.create_engine(url.set(drivername=f"{url.get_backend_name()}+{request.param}"))
    engine.connect().close()  # SQLAlchemy's own first queries are no statements of ours
    engine.dispose()
    event.listen(engine, "connect", _REGISTERED[request.param])
    yield engine
    engine.dispose()


@pytest.mark.parametrize("delivery", [None, Direct(), Direct(when_kafka_is_away="store"), Outbox(linger_ms=1)], ids=str)
def test_our_own_statements_use_nothing_of_the_application(
    store: Database, emulator: Emulator, adapted: sa.Engine, delivery: Delivery | None
) -> None:
    scenario = Scenario(store, emulator)
    kafka = emulator.bootstrap_servers
    writer: DualWriter
    if delivery is None:
        writer = DualWriter(adapted, transactional_id=scenario.transactional_id, bootstrap_servers=kafka)
    else:
        writer = DualWriter(adapted, prefix=unique("pool"), delivery=delivery, bootstrap_servers=kafka)
    with writer:
        for number in (1, 2):
            with writer.transaction() as tx:
                tx.connection.exec_driver_sql(f"INSERT INTO events VALUES ({number}, 'k', '{number}')")
                tx.send(scenario.topic, key="k", value=str(number))
        until(lambda: len(read_topic(kafka, scenario.topic)) == 2)
        writer.recover()
        with adapted.connect() as connection:  # other statements have the application's adapters as before
            assert connection.exec_driver_sql("SELECT CAST('a' AS CHAR)").scalar() == "loaded a"
    scenario.assert_both_sides_agree("1", "2")
    report = RecoveryService(adapted, prefix="", bootstrap_servers=kafka).recover()
    assert not report.left


# ---- on psycopg alone -----------------------------------------------------------------------------------------------


def _with_adapters(conninfo: str) -> psycopg.Connection[Any]:
    connection = psycopg.connect(conninfo, row_factory=dict_row)
    _of_psycopg(connection, None)
    return connection


def _in_sql_ascii(conninfo: str) -> psycopg.Connection[Any]:
    return psycopg.connect(conninfo, client_encoding="SQL_ASCII")


def _in_latin1(conninfo: str) -> psycopg.Connection[Any]:
    return psycopg.connect(conninfo, client_encoding="LATIN1")


@pytest.mark.parametrize("connect", [_with_adapters, _in_sql_ascii, _in_latin1])
@pytest.mark.parametrize(
    "settings", [{"transactional_id": "é"}, {"prefix": "é"}, {"prefix": "é", "delivery": Outbox(linger_ms=1)}]
)
def test_on_psycopg_too(
    postgres: PostgresDatabase,
    emulator: Emulator,
    settings: dict[str, Any],
    connect: Callable[[str], psycopg.Connection[Any]],
) -> None:
    scenario = PsycopgScenario(postgres, emulator)
    kafka = emulator.bootstrap_servers
    source = partial(connect, conninfo_of(postgres.url))
    with PsycopgDualWriter(source, bootstrap_servers=kafka, **settings) as writer:
        for number in (1, 2):
            with writer.transaction() as tx:
                tx.connection.execute(sql.SQL(INSERT.format(number)))
                tx.send(scenario.topic, key="k", value=str(number))
        writer.recover()
    scenario.assert_both_sides_agree("1", "2")
