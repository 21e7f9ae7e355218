"""The table `kafka_transaction_redo` on SQLAlchemy's databases, as described in `sql/redo_statements.py`.

The files `redo_schema.sql` and `redo_schema_mysql.sql` create the same table by hand.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import IntegrityError

from dualwrite.errors import ConfigError
from dualwrite.recipes.core.store import MAX_TRANSACTIONAL_ID_LENGTH
from dualwrite.recipes.sql.postgres_steps import Pin
from dualwrite.recipes.sql.redo_statements import (
    INSERT_HEAD,
    REDO_TABLE,
    SELECT_HEAD,
)
from dualwrite.recipes.sqlalchemy.engines import is_mysql
from dualwrite.recipes.sqlalchemy.mysql_row_lock import lock_wait_limit
from dualwrite.recipes.sqlalchemy.own_statements import own_text
from dualwrite.recipes.sqlalchemy.tables import create_missing, exact_text, need_table, pinned_tables, schema_for

_DIALECTS: Final = ("postgresql", "mysql", "mariadb", "sqlite")

kafka_transaction_redo = sa.Table(
    REDO_TABLE,
    sa.MetaData(),
    sa.Column("transactional_id", exact_text(MAX_TRANSACTIONAL_ID_LENGTH), primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("stored_at_ms", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("newest_seq", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("stored_bytes", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("records", sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb"), nullable=True),
    mysql_engine="InnoDB",  # regardless of the server's default: most other engines have no transactions
    mariadb_engine="InnoDB",
)


def create_redo_table(engine: sa.Engine, schema: str | None = None) -> None:
    """Create `kafka_transaction_redo` if it is missing, beside the state table. Safe in several processes at once."""
    schema = schema_for(engine, schema)
    with engine.connect() as connection:
        pinned = pinned_tables(connection, schema)
    create_missing(engine, kafka_transaction_redo, schema if pinned is None else pinned.schema)


def prepare_to_store(engine: sa.Engine, pin: Pin, transactional_id: str, *, create_table: bool) -> None:
    """Create the row of an id with seq 0, and the table if that is allowed.

    Raises StateRowError if the table is missing, ConfigError for a database whose statements are not known.
    """
    if engine.dialect.name not in _DIALECTS:
        raise ConfigError(
            f"storing records needs one of the databases {', '.join(_DIALECTS)}, not {engine.dialect.name}: "
            "leave delivery at Direct()"
        )
    need_table(engine, pin.located, kafka_transaction_redo, create=create_table, option=" --redo")
    pin.has_redo_table = True
    values = {"id": transactional_id}
    try:
        with engine.begin() as connection:
            if connection.execute(own_text(pin.sql(SELECT_HEAD)), values).first() is None:
                with lock_wait_limit(connection) if is_mysql(connection.dialect) else nullcontext():
                    connection.execute(own_text(pin.sql(INSERT_HEAD)), values)
    except IntegrityError:
        pass  # another process created it at the same moment
