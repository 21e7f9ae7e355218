"""The tables of an outbox: by `dualwrite init-db`, by Alembic, and by hand."""

from __future__ import annotations

import importlib.resources
from typing import Any

import pytest
import sqlalchemy as sa

from dualwrite.recipes.sqlalchemy.outbox_table import kafka_transaction_outbox
from dualwrite.recipes.sqlalchemy.state_table import create_state_table
from dualwrite.recipes.sqlalchemy.tables import kafka_transaction_lease
from tests.cli.conftest import Call, assert_one_line
from tests.cli.test_init_db import migrations as migrations
from tests.support.databases import Database

OUTBOX = "kafka_transaction_outbox"
NOT_FOR = "kafka_transaction_outbox is made for postgresql, mysql, mariadb, sqlite, not for mssql"


def url_of(database: Database) -> str:
    return database.url.render_as_string(hide_password=False)


def described(engine: sa.Engine, table: str) -> tuple[dict[str, tuple[Any, ...]], list[str]]:
    """Return the database's description of a table."""
    inspector = sa.inspect(engine)
    found = {
        column["name"]: (repr(column["type"]), column["nullable"], column["default"], column.get("identity"))
        for column in inspector.get_columns(table)
    }
    return found, inspector.get_pk_constraint(table)["constrained_columns"]


def test_the_tables_on_demand(call: Call, database: Database) -> None:
    assert OUTBOX not in call("init-db", "--database", url_of(database)).out
    done = call("init-db", "--database", url_of(database), "--outbox")
    assert done.out.splitlines()[-1] == f"{OUTBOX}: created"
    again = call("init-db", "--database", url_of(database), "--outbox", "--consumed-offsets")
    assert again.out.count("already existed") == 4
    assert (f"{OUTBOX}: already existed" in again.out, again.out.count("created")) == (True, 1)


@pytest.mark.parametrize(
    ("table", "file", "key"),
    [
        (kafka_transaction_outbox, "outbox_schema", ["transactional_id", "seq"]),
        (kafka_transaction_lease, "pool_schema", ["prefix", "slot"]),
    ],
    ids=["outbox", "lease"],
)
def test_the_ddl_and_the_file_and_the_table_are_the_same(
    call: Call, database: Database, table: sa.Table, file: str, key: list[str]
) -> None:
    create_state_table(database.engine)
    table.create(database.engine)
    expected = described(database.engine, table.name)
    dialect = database.url.get_backend_name()
    shown = call("init-db", "--sql", "--dialect", dialect, "--outbox").out.split(";")
    (ddl,) = [statement for statement in shown if table.name in statement]
    ways = [ddl]
    if dialect == "postgresql":
        text = importlib.resources.files("dualwrite.recipes.sql").joinpath(f"{file}.sql").read_text()
        ways.append(text.rstrip().rstrip(";"))
    for statement in ways:
        table.drop(database.engine)
        with database.engine.begin() as connection:
            connection.exec_driver_sql(statement)
        assert described(database.engine, table.name) == expected
    assert expected[1] == key


def test_another_database_has_no_outbox_table(call: Call) -> None:
    assert_one_line(call("init-db", "--sql", "--dialect", "mssql", "--outbox"), 2, NOT_FOR)
