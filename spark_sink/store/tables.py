"""The tables of the commit store, on any database, and how they come to be there."""

from __future__ import annotations

import datetime as dt
from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from dualwrite.recipes.sqlalchemy.tables import exact_text

SINK_ID_LENGTH: Final = 100
QUERY_ID_LENGTH: Final = 255
_TRANSACTIONAL_ID_LENGTH: Final = 150
"""A sink id, two numbers and two hyphens."""
DETAIL_LENGTH: Final = 1000

_CREATION_TRIES: Final = 10


class StoreTables:
    """`dw_sink`, `dw_batch` and `dw_attempt`, in a schema of the database or in its default one.

    There are no indexes besides the keys: on MySQL a crash could leave a table without an index that has a statement of
    its own.
    """

    def __init__(self, schema: str | None) -> None:
        self.schema: Final = schema
        self.metadata: Final = sa.MetaData(schema=schema)
        self.sink: Final = self._table(
            "dw_sink",
            sa.Column("sink_id", exact_text(SINK_ID_LENGTH), primary_key=True),
            sa.Column("generation", sa.BigInteger, nullable=False),
            sa.Column("query_id", exact_text(QUERY_ID_LENGTH), nullable=True),
            _now("updated_at"),
        )
        self.batch: Final = self._table(
            "dw_batch",
            sa.Column("sink_id", exact_text(SINK_ID_LENGTH), primary_key=True),
            sa.Column("query_id", exact_text(QUERY_ID_LENGTH), primary_key=True),
            sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("status", sa.String(12), nullable=False),
            sa.Column("generation", sa.BigInteger, nullable=False),
            sa.Column("n_attempts", sa.Integer, nullable=False),
            sa.Column("n_records", sa.BigInteger, nullable=False),
            sa.Column("offsets_digest", sa.String(128), nullable=True),
            _now("decided_at"),
            sa.Column("done_at", sa.DateTime(timezone=True), nullable=True),
            sa.Column("acknowledged_at", sa.DateTime(timezone=True), nullable=True),
        )
        self.attempt: Final = self._table(
            "dw_attempt",
            sa.Column("attempt_id", exact_text(36), primary_key=True),
            sa.Column("sink_id", exact_text(SINK_ID_LENGTH), nullable=False),
            sa.Column("query_id", exact_text(QUERY_ID_LENGTH), nullable=False),
            sa.Column("batch_id", sa.BigInteger, nullable=False),
            sa.Column("generation", sa.BigInteger, nullable=False),
            sa.Column("partition_id", sa.Integer, nullable=False),
            sa.Column("task_attempt_id", sa.BigInteger, nullable=False),
            sa.Column("host", sa.String(255), nullable=False),
            sa.Column("txn_id", exact_text(_TRANSACTIONAL_ID_LENGTH), nullable=False),
            sa.Column("live_txn_id", exact_text(_TRANSACTIONAL_ID_LENGTH), nullable=True),
            sa.Column("prepared_state", sa.String(64), nullable=False, server_default=""),
            sa.Column("n_records", sa.BigInteger, nullable=False, server_default=sa.text("0")),
            sa.Column("status", sa.String(12), nullable=False),
            sa.Column("detail", sa.String(DETAIL_LENGTH), nullable=True),
            _now("created_at"),
            _now("updated_at"),
            # Leases an id to one live attempt (NULL, which equals nothing, when it is terminal), and finds them. Ids
            # begin with their sink's and end with two numbers, so that two sinks never have the same one.
            sa.UniqueConstraint("sink_id", "live_txn_id", name="dw_attempt_lease"),
        )

    def _table(self, name: str, *parts: sa.schema.SchemaItem) -> sa.Table:
        # InnoDB whatever the server's default is: others have no transactions.
        return sa.Table(name, self.metadata, *parts, mysql_engine="InnoDB", mariadb_engine="InnoDB")

    def create(self, engine: sa.Engine) -> None:
        """Create what is missing; safe when several processes do it at once, or one died half-way."""
        for _ in range(_CREATION_TRIES):
            try:
                self.metadata.create_all(engine)
            except (IntegrityError, ProgrammingError, OperationalError):
                # Two processes created a table in the same instant. The loser looks again, and creates what the winner
                # has not reached yet: MySQL commits each table by itself.
                if self.exist(engine):
                    return
            else:
                return
        self.metadata.create_all(engine)

    def exist(self, engine: sa.Engine) -> bool:
        """Whether all of them are there."""
        inspector = sa.inspect(engine)
        return all(inspector.has_table(table.name, schema=self.schema) for table in self.metadata.sorted_tables)


def _now(name: str) -> sa.Column[dt.datetime]:
    """By the database's clock, for people who look; nothing depends on it."""
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now())
