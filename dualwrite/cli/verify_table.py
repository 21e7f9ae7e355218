"""The table of `dualwrite verify`: a row for each version of each key; version 0 is its lock and its counter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import sqlalchemy as sa

from dualwrite.verify.history import Change, RowAtRest

_LENGTH: Final = 120


class VerifiedTable:
    """The table of one run."""

    def __init__(self, name: str, schema: str | None) -> None:
        self._table = sa.Table(
            name,
            sa.MetaData(),
            sa.Column("event_key", sa.String(_LENGTH), primary_key=True),
            sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("body", sa.String(_LENGTH), nullable=False),
            sa.Column("newest", sa.BigInteger, nullable=False),
            schema=schema,
            mysql_engine="InnoDB",
            mariadb_engine="InnoDB",
        )

    @property
    def name(self) -> str:
        """The table's name with its schema."""
        return self._table.fullname

    def create(self, engine: sa.Engine, keys: Iterable[str]) -> None:
        """Create the table, with row 0 of each key. Raises the driver's error if it exists."""
        self._table.create(engine)
        with engine.begin() as connection:
            zeros = [{"event_key": key, "version": 0, "body": "", "newest": 0} for key in keys]
            connection.execute(sa.insert(self._table), zeros)

    def drop(self, engine: sa.Engine) -> None:
        """Drop the table if it exists."""
        self._table.drop(engine, checkfirst=True)

    def put(self, connection: sa.Connection, change: Change) -> Change | None:
        """Lock a key, add its next version, and return its previous one."""
        table = self._table
        key = table.c.event_key == change.key
        connection.execute(sa.update(table).where(key, table.c.version == 0).values(newest=table.c.newest + 1))
        version = connection.execute(sa.select(table.c.newest).where(key, table.c.version == 0)).scalar_one()
        # With a lock, as a snapshot of MySQL's REPEATABLE READ may be older than the lock of this key.
        before = sa.select(table.c.body).where(key, table.c.version == version - 1).with_for_update()
        read = connection.execute(before).scalar_one_or_none()
        row = {"event_key": change.key, "version": version, "body": change.value, "newest": 0}
        connection.execute(sa.insert(table).values(row))
        return Change(change.key, read) if read else None

    def read(self, engine: sa.Engine) -> list[RowAtRest]:
        """Return all versions."""
        columns = self._table.c
        with engine.connect() as connection:
            found = connection.execute(sa.select(columns.event_key, columns.body, columns.version))
            return [RowAtRest(key, body, version) for key, body, version in found if version > 0]
