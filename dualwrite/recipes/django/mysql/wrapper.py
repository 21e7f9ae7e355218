"""Dual writes for Django backends on mysqlclient or PyMySQL."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from django.db import Error
from sqlalchemy.exc import DBAPIError

from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.database_errors import warn_of_drop
from dualwrite.recipes.django.mysql.guard import ReportingCursor, watch
from dualwrite.recipes.django.mysql.transaction import GuardedTransaction, engine_on
from dualwrite.recipes.django.transaction import Begun, Pool
from dualwrite.recipes.django.wrapper import DualWriteWrapper
from dualwrite.recipes.sqlalchemy.mysql_row_lock import forget_undone
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyDatabase, create_state_table
from dualwrite.recipes.sqlalchemy.tables import create_lease_table
from dualwrite.recipes.sqlalchemy.writer import DualWriter

_log = logging.getLogger(__name__)


class _PoolWithEngine(DualWriter):
    def close(self, timeout_s: float = 30.0) -> None:
        super().close(timeout_s)
        self.backend.engine.dispose()


class MySqlDualWrites(DualWriteWrapper):
    """A mixin for a `DatabaseWrapper` on MySQL or MariaDB; it comes first among the bases."""

    Database: Any
    """The module of the driver."""
    _engine: tuple[Any, sa.Engine] | None = None
    """The driver's connection, and the engine made for it."""

    def get_new_connection(self, conn_params: Any) -> Any:
        """Connect, with cursors that can be tracked once the first record is sent."""
        connection = super().get_new_connection(conn_params)
        watch(connection)
        return connection

    def create_cursor(self, name: Any = None) -> Any:
        self.has_just_decided = False
        return ReportingCursor(super().create_cursor(name))

    def new_writer_pool(self, settings: dict[str, Any]) -> Pool:
        return _PoolWithEngine(self._new_engine(), **settings)

    def begin_transaction(self, pool: Pool, records: RecordBuffer, *, publishes: bool) -> Begun:
        if publishes:
            blocking.run(pool.slots.get_ready_for_sessions())
        database = pool.backend.database
        assert isinstance(database, SqlAlchemyDatabase)
        return database.transaction(GuardedTransaction(self._engine_of_connection(pool), records))

    def _engine_of_connection(self, pool: Pool) -> sa.Engine:
        assert isinstance(pool, DualWriter)
        like = pool.backend.engine
        if (
            self._engine is None
            or self._engine[0] is not self.connection
            or self._engine[1].dialect is not like.dialect
        ):
            self._engine = self.connection, engine_on(self.connection, like)
        return self._engine[1]

    def new_engine(self) -> sa.Engine:
        return self._new_engine(poolclass=sa.NullPool)

    def _new_engine(self, **options: Any) -> sa.Engine:
        driver = "pymysql" if self.Database.__name__ == "pymysql" else "mysqldb"
        return sa.create_engine(
            f"mysql+{driver}://", module=self.Database, creator=self._connections(), pool_pre_ping=True, **options
        )

    def create_tables(self, schema_editor: Any, schema: str | None) -> None:
        engine = self.new_engine()
        create_state_table(engine, schema)
        create_lease_table(engine, schema)

    @property
    def is_lost(self) -> bool:
        return not self.connection.open

    @contextmanager
    def driver_errors(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            if error.orig is None:
                raise
            for note in getattr(error, "__notes__", ()):
                error.orig.add_note(note)
            raise error.orig from None

    def _set_autocommit(self, autocommit: bool) -> None:
        """Change autocommit, which takes a statement.

        `atomic()` does so after COMMIT. Ignore a connection lost in between: the commit already succeeded.
        """
        try:
            super()._set_autocommit(autocommit)  # type: ignore[misc]  # the stubs lack it
            forget_undone(self.connection)
        except Error as error:
            if not (autocommit and self.has_just_decided):
                raise  # at the start of a block too: Django would connect again, and go on without a transaction
            warn_of_drop(_log, None, "returning to autocommit after a commit", error)
            self.close_but_for_hooks()

    def _commit(self) -> None:
        super()._commit()
        if self.connection is not None:
            forget_undone(self.connection)

    def _rollback(self) -> None:
        super()._rollback()
        if self.connection is not None:
            forget_undone(self.connection)

    def _close(self) -> None:
        self._drop_dual_write()
        if self.connection is not None and not self.is_lost:  # both drivers refuse to close a closed connection
            super()._close()

    def _connections(self) -> Callable[[], Any]:
        """Return a function that connects like this wrapper, with the driver's own types."""
        like: Any = self.copy()

        def connect() -> Any:
            parameters = like.get_connection_params()
            parameters.pop("conv", None)
            return self.Database.connect(**parameters)

        return connect
