"""The writer on psycopg for threads, with one transactional id or a pool of them; SQLAlchemy is not needed.

    writer = PsycopgDualWriter("dbname=shop", bootstrap_servers="127.0.0.1:9092", transactional_id="orders-1")
    with writer.transaction() as tx:
        tx.connection.execute("INSERT INTO orders VALUES (%s, %s)", (1, "lamp"))
        tx.send("orders", key=..., value=...)

    pool = PsycopgDualWriter("dbname=shop", prefix="orders", bootstrap_servers="127.0.0.1:9092")

    def handle(order):  # in any thread
        with pool.transaction() as tx:
            ...

How a block ends, and why that is safe: `dualwrite.recipes.core.coordinator`. Tables, statements, ids and leases are
those of `DualWriter` on PostgreSQL. So writers of both kinds may use one transactional id, one after the other, and
pools of both kinds may share a prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeAlias, Unpack, overload

import psycopg

from dualwrite.recipes.core.dual_write import Resolution
from dualwrite.recipes.core.waiting import THREADS
from dualwrite.recipes.pool.settings import ids_in
from dualwrite.recipes.pool.status import PoolStatus
from dualwrite.recipes.postgres.backend import OnDriver, PostgresBackend
from dualwrite.recipes.psycopg.backend import PsycopgDriver
from dualwrite.recipes.writer import ThreadWriter
from dualwrite.settings import WriterPoolSettings, WriterSettings

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

__all__ = ["PoolStatus", "PsycopgDualTransaction", "PsycopgDualWriter", "Resolution"]

Source: TypeAlias = "str | ConnectionPool[Any] | Callable[[], psycopg.Connection[Any]]"
"""The sources of connections."""


class PsycopgDualTransaction(OnDriver[psycopg.Connection[Any]]):
    """One dual write, as yielded by `PsycopgDualWriter.transaction()`."""

    @contextmanager
    def savepoint(self) -> Iterator[Self]:
        """Begin a part that may fail by itself: an exception undoes its writes and records, and is raised.

        Code that catches it outside goes on with the rest of the dual write. May be nested.
        """
        with self.connection.transaction():
            yield self


class PsycopgDualWriter(ThreadWriter[psycopg.Connection[Any], PsycopgDualTransaction]):
    """`DualWriter` without SQLAlchemy: the same settings, tables, rules and errors, one transactional id or a pool.

    `database` is the database that decides: a conninfo, of which one connection (for a pool up to `max_writers`) is
    opened and kept; a connection pool, which the caller closes; or a function that makes a connection, which is closed
    after use. The background of a pool uses separate connections to the same database, which do not count towards a
    connection pool. The writer's own connections prepare a statement once it was executed `prepare_threshold` times
    (None, for poolers: never).

    After a fork, with a `psycopg_pool`: create a new one in the child, and a new writer on it.
    """

    backend: PostgresBackend[psycopg.Connection[Any], PsycopgDualTransaction]

    @overload
    def __init__(
        self,
        database: Source,
        *,
        transactional_id: str,
        prepare_threshold: int | None = None,
        **settings: Unpack[WriterSettings],
    ) -> None: ...

    @overload
    def __init__(
        self,
        database: Source,
        *,
        prefix: str,
        prepare_threshold: int | None = None,
        **settings: Unpack[WriterPoolSettings],
    ) -> None: ...

    def __init__(self, database: Source, *, prepare_threshold: int | None = None, **settings: Any) -> None:
        ids = ids_in(settings)
        backend = PostgresBackend[psycopg.Connection[Any], PsycopgDualTransaction](
            database,
            driver=PsycopgDriver(psycopg.Connection, prepare_threshold),
            handle=PsycopgDualTransaction,
            waiting=THREADS,
            settings=ids.writing,
            is_pool=ids.is_pool,
        )
        super().__init__(backend, ids)

    def transaction(
        self, connection: psycopg.Connection[Any] | None = None
    ) -> AbstractContextManager[PsycopgDualTransaction]:
        """Run a block as one dual write: leaving it commits both sides, an exception rolls back both.

        `connection` is a connection of the caller to the writer's database, in autocommit mode or not; its whole
        transaction is committed or rolled back with the block, including its earlier statements. Without it the writer
        uses one of its own connections.

        Records are kept until the block ends, and sent right before the database commits. Records sent inside a
        savepoint (`connection.transaction()`, or a SAVEPOINT statement) that is rolled back are dropped with it. A
        record that is refused at `send` dooms the block like a failed statement, even if its error is swallowed.

        Raises the block's own exception; IllegalStateError for a connection whose COMMIT is not ours to send;
        RecipeErrors, InvalidRecordError, AbortableError, FencedError, KafkaTimeoutError and psycopg's own errors, after
        which neither side was changed; OutcomeUnknown if the database commit was sent and its outcome cannot be read. A
        block without records is an ordinary database transaction, of which Kafka is not notified: if its commit gets no
        response, psycopg's error is raised with `tx.outcome` None, and only the caller's data shows the outcome.

        A pool takes its transactional id, and raises further errors, as `DualWriter.transaction` does; but if the
        connection keeps a snapshot, the id is taken before the transaction begins.
        """
        return self.scope(connection)
