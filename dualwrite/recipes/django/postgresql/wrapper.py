"""Dual writes for Django backends on psycopg 3: PostgreSQL's own, PostGIS, or one of the application."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Any, ClassVar, Final

import psycopg
import sqlalchemy as sa

from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.django.forks import abandon, in_each_child
from dualwrite.recipes.django.transaction import Begun, Pool
from dualwrite.recipes.django.wrapper import DualWriteWrapper
from dualwrite.recipes.psycopg.transaction import PsycopgDatabase, PsycopgTransaction
from dualwrite.recipes.psycopg.watched_cursor import watched_cursor
from dualwrite.recipes.psycopg.writer import PsycopgDualWriter
from dualwrite.recipes.sql.pinned_tables import Pin, PinnedTables, quoted

_FILES: Final = ("schema.sql", "pool_schema.sql")


class PostgresDualWrites(DualWriteWrapper):
    """A mixin for a `DatabaseWrapper` on psycopg 3; it comes first among the bases.

    Savepoints are tracked on the psycopg connection itself (`recipes/psycopg/connection_guard.py`), so that a literal
    `ROLLBACK TO` counts too.
    """

    _connection_pools: ClassVar[dict[str, Any]] = {}
    """By alias, the pools of `OPTIONS["pool"]`, since Django 5.1; ENGINEs without dual writes have other ones."""

    @classmethod
    def leave_pools(cls) -> None:
        """In a forked child, leave the parent's pools to the parent."""
        abandon(dict(cls._connection_pools))
        cls._connection_pools.clear()

    def get_new_connection(self, conn_params: Any) -> Any:
        """Connect, with cursors that can be tracked once the first record is sent."""
        connection = super().get_new_connection(conn_params)
        connection.cursor_factory = watched_cursor(connection.cursor_factory)
        return connection

    def new_writer_pool(self, settings: dict[str, Any]) -> Pool:
        return PsycopgDualWriter(self._connections(), **settings)

    def begin_transaction(self, pool: Pool, records: RecordBuffer, *, publishes: bool) -> Begun:
        if publishes:
            blocking.run(pool.slots.get_ready_for_sessions())
            database = pool.backend.database
            assert isinstance(database, PsycopgDatabase)
            return blocking.run(database.transaction(self.connection, records))
        transaction = PsycopgTransaction(self.connection, records, None, Pin())
        blocking.run(transaction.begin())
        return transaction

    def new_engine(self) -> sa.Engine:
        return sa.create_engine("postgresql+psycopg://", creator=self._connections(), poolclass=sa.NullPool)

    def create_tables(self, schema_editor: Any, schema: str | None) -> None:
        for file in _FILES:
            text = resources.files("dualwrite.recipes.sql").joinpath(file).read_text()
            schema_editor.execute(text if schema is None else PinnedTables(schema, quoted(schema)).sql(text), None)

    @property
    def is_lost(self) -> bool:
        return bool(self.connection.closed)

    def _connections(self) -> Callable[[], psycopg.Connection[Any]]:
        """Return a function that connects like this wrapper, with psycopg's cursors and types, outside all pools."""
        like: Any = self.copy()
        role = like.settings_dict["OPTIONS"].get("assume_role")

        def connect() -> psycopg.Connection[Any]:
            parameters = like.get_connection_params()  # anew each time: a password may be valid for minutes only
            for of_django in ("cursor_factory", "context"):
                parameters.pop(of_django, None)
            connection: psycopg.Connection[Any] = psycopg.connect(**parameters)
            if role:
                connection.execute(psycopg.sql.SQL("SET ROLE {}").format(psycopg.sql.Identifier(role)))
                connection.commit()
            return connection

        return connect


in_each_child(PostgresDualWrites.leave_pools)
