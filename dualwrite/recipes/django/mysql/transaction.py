"""The transaction of a Django connection to MySQL or MariaDB, for the steps on SQLAlchemy.

The application's statements come from Django's cursors, and `guard.py` tracks them. At the end the steps of
`recipes/sqlalchemy` lock the state row, write it and commit, on the same connection of the driver.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.django.mysql.guard import Guard
from dualwrite.recipes.sqlalchemy.drivers import ended_past_sqlalchemy
from dualwrite.recipes.sqlalchemy.events import watch
from dualwrite.recipes.sqlalchemy.mysql_row_lock import MARK_IS_GONE, undone_by
from dualwrite.recipes.sqlalchemy.transaction import SqlAlchemyTransaction


def engine_on(driver: Any, like: sa.Engine) -> sa.Engine:
    """Return an engine whose only connection is opened and closed by Django."""
    pool = sa.StaticPool(lambda: driver, dialect=like.dialect, reset_on_return=None)
    engine = sa.Engine(pool, like.dialect, like.url)
    watch(engine)
    return engine


class GuardedTransaction(SqlAlchemyTransaction):
    """The transaction that Django has begun on the connection of an engine made by `engine_on`."""

    def __init__(self, engine: sa.Engine, records: RecordBuffer) -> None:
        connection = engine.connect()
        failure = undone_by(connection.connection.driver_connection, connection)
        super().__init__(connection, engine, records, owned=True)
        self._guard = Guard(self.driver, records, failure)
        self._guard.start()

    def assert_intact(self) -> None:
        self._guard.assert_intact()
        super().assert_intact()

    def doom(self, error: BaseException) -> None:
        self._records.refuse(error)

    @property
    def holds_back(self) -> bool:
        """Return True: `flush` is needed, although no statement is held back."""
        return True

    def flush(self) -> None:
        """Take the connection over from the application. Raises TransactionEndedInsideError for SET autocommit."""
        self._guard.stop()
        if self.driver.get_autocommit():
            raise ended_past_sqlalchemy(self.connection, MARK_IS_GONE)

    def let_go(self) -> None:
        """Give the driver's connection back to Django as it is, and send nothing; harmless when repeated."""
        self._guard.stop()
        self.before_rollback()
        if not self.connection.closed:  # by an end that was interrupted right behind it
            self.connection.connection.close()  # returns it to the pool of one; SQLAlchemy's own close sends ROLLBACK

    def rollback(self) -> None:
        """Roll back, if necessary by dropping the connection. Raises only errors of signal handlers."""
        self._guard.stop()
        super().rollback()
