"""The tables of an outbox: by `dualwrite init-db`, by Alembic, and by hand."""

from __future__ import annotations

import importlib.resources
from typing import Any

import sqlalchemy as sa

from dualwrite.recipes.sqlalchemy.outbox_table import create_outbox_table, kafka_transaction_outbox
from dualwrite.recipes.sqlalchemy.state_table import create_state_table
from tests.cli.conftest import Call, assert_one_line
from tests.cli.test_init_db import migrations as migrations
from tests.support.databases import Database, PostgresDatabase

OUTBOX = "kafka_transaction_outbox"
NOT_FOR = "kafka_transaction_outbox is made for postgresql, mysql, mariadb, sqlite, not for mssql"


def url_of(database: Database) -> str:
    return database.url.render_as_string(hide_password=False)


def described(engine: sa.Engine) -> tuple[dict[str, tuple[Any, ...]], list[str]]:
    """Return the database's description of the table."""
    inspector = sa.inspect(engine)
    found = {
        column["name"]: (repr(column["type"]), column["nullable"], column["default"], column.get("identity"))
        for column in inspector.get_columns(OUTBOX)
    }
    return found, inspector.get_pk_constraint(OUTBOX)["constrained_columns"]


def test_the_tables_on_demand(call: Call, database: Database) -> None:
    assert OUTBOX not in call("init-db", "--database", url_of(database)).out
    done = call("init-db", "--database", url_of(database), "--outbox")
    assert done.out.splitlines()[-1] == f"{OUTBOX}: created"
    again = call("init-db", "--database", url_of(database), "--outbox", "--consumed-offsets")
    assert again.out.count("already existed") == 4
    assert (f"{OUTBOX}: already existed" in again.out, again.out.count("created")) == (True, 1)


def test_the_ddl_and_the_file_and_the_table_are_the_same(call: Call, database: Database) -> None:
    create_state_table(database.engine)
    create_outbox_table(database.engine)
    expected = described(database.engine)
    dialect = database.url.get_backend_name()
    file = f"outbox_schema{'' if dialect == 'postgresql' else f'_{dialect}'}.sql"
    text = (importlib.resources.files("dualwrite.recipes.sql") / file).read_text()
    shown = call("init-db", "--sql", "--dialect", dialect, "--outbox").out.split(";")
    (ddl,) = [statement for statement in shown if OUTBOX in statement]
    for statement in (text.rstrip().rstrip(";"), ddl):
        kafka_transaction_outbox.drop(database.engine)
        with database.engine.begin() as connection:
            connection.exec_driver_sql(statement)
        assert described(database.engine) == expected
    assert expected[1] == ["transactional_id", "seq"]


def test_init_db_creates_the_outbox_beside_the_state_table(call: Call, postgres: PostgresDatabase) -> None:
    database = postgres
    with database.engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA ours")
    call("init-db", "--database", url_of(database), "--schema", "ours", "--outbox")
    assert sa.inspect(database.engine).has_table(OUTBOX, schema="ours")
    assert not sa.inspect(database.engine).has_table(OUTBOX)


def test_another_database_has_no_outbox_table(call: Call) -> None:
    assert_one_line(call("init-db", "--sql", "--dialect", "mssql", "--outbox"), 2, NOT_FOR)
