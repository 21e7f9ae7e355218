"""`dualwrite init-db`: create the tables that dual writes need, or print their DDL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import click
import sqlalchemy as sa
from sqlalchemy.engine import Dialect, make_url
from sqlalchemy.schema import CreateTable

from dualwrite.cli.connection import database, database_option, schema_option
from dualwrite.cli.groups import Command
from dualwrite.recipes.consume.consumed_offsets import create_offset_table
from dualwrite.recipes.sql.pinned_tables import checked_schema
from dualwrite.recipes.sqlalchemy.outbox_table import (
    assert_has_outboxes,
    create_outbox_table,
    kafka_transaction_outbox,
)
from dualwrite.recipes.sqlalchemy.state_table import create_state_table, kafka_transaction_state
from dualwrite.recipes.sqlalchemy.tables import (
    create_lease_table,
    in_schema,
    kafka_consumed_offset,
    kafka_transaction_database,
    kafka_transaction_lease,
)

TABLES: Final = {
    kafka_transaction_state: create_state_table,
    kafka_transaction_database: create_state_table,
    kafka_transaction_lease: create_lease_table,
}
"""The tables with the states of transactional ids, the database's identity, and the leases of pools."""

OF_OUTBOX: Final = {kafka_transaction_outbox: create_outbox_table}
"""The table with the records that wait to be published."""

OF_CONSUMERS: Final = {kafka_consumed_offset: create_offset_table}
"""The table with the positions of consumer groups, for `OffsetsInDatabase`."""


@click.command("init-db", cls=Command, short_help="Create the tables of dual writes.")
@database_option(required=False)
@schema_option
@click.option("--sql", is_flag=True, help="Print the DDL instead of running it; connects to nothing.")
@click.option(
    "--dialect",
    metavar="NAME",
    help="For --sql without --database: postgresql, mysql, mariadb, sqlite, mssql, oracle...",
)
@click.option(
    "--consumed-offsets",
    is_flag=True,
    help="Also create the table of OffsetsInDatabase, with the positions of consumers.",
)
@click.option(
    "--outbox",
    is_flag=True,
    help='Also create the table of outboxes: Outbox(), and Direct(when_kafka_is_away="store").',
)
def command(
    *,
    database_url: str | None,
    schema: str | None,
    sql: bool,
    dialect: str | None,
    consumed_offsets: bool,
    outbox: bool,
) -> None:
    """Create the tables of dual writes that are missing.

    For Alembic there is an operation: see docs/cli.md.
    """

    tables = TABLES | (OF_OUTBOX if outbox else {})
    tables |= OF_CONSUMERS if consumed_offsets else {}

    def create(engine: sa.Engine) -> None:
        for create_table in dict.fromkeys(tables.values()):
            create_table(engine, schema)

    of_schema = [in_schema(table, checked_schema(schema)) for table in tables]
    make_tables(of_schema, create, database_url, sql=sql, dialect=dialect)


def make_tables(
    tables: Sequence[sa.Table],
    create: Callable[[sa.Engine], object],
    database_url: str | None,
    *,
    sql: bool,
    dialect: str | None,
) -> None:
    """Create the missing tables, all of one schema, with `create`, and report them; or print the DDL."""
    if sql:
        click.echo(ddl(tables, dialect_of(database_url, dialect)), nl=False)
        return
    if dialect is not None:
        raise click.UsageError("--dialect is only for --sql; a database has its own")
    if database_url is None:
        raise click.UsageError("give --database, or --sql with --dialect")
    with database(database_url, may_be_created=True) as engine:
        existed = {table.name: sa.inspect(engine).has_table(table.name, schema=table.schema) for table in tables}
        create(engine)
    for name, is_old in existed.items():
        click.echo(f"{name}: {'already existed' if is_old else 'created'}")


def ddl(tables: Iterable[sa.Table], dialect: Dialect) -> str:
    """Return the statements that create the tables, each with a semicolon at its end."""
    tables = list(tables)
    if kafka_transaction_outbox.name in (table.name for table in tables):
        assert_has_outboxes(dialect)
    statements = [str(CreateTable(table).compile(dialect=dialect)).strip() for table in tables]
    lines = [line.rstrip() for statement in statements for line in f"{statement};".splitlines()]
    return "\n".join(lines).replace("\t", "    ") + "\n"


def dialect_of(database_url: str | None, name: str | None) -> Dialect:
    """Return the dialect of the name, else of the URL; its driver need not be installed."""
    if name is None and database_url is None:
        raise click.UsageError("--sql needs --dialect (or --database, to take that of the URL)")
    given = name if name is not None else make_url(database_url or "").get_backend_name()
    found: Dialect = make_url(f"{given}://").get_dialect()()
    return found
