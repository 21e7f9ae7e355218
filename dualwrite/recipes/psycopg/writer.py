"""The writers on psycopg for threads, with one transactional id and with a pool of them; SQLAlchemy is not needed.

    writer = PsycopgDualWriter("dbname=shop", bootstrap_servers="127.0.0.1:9092", transactional_id="orders-1")
    with writer.transaction() as tx:
        tx.connection.execute("INSERT INTO orders VALUES (%s, %s)", (1, "lamp"))
        tx.send("orders", key=..., value=...)

    pool = PsycopgDualWriterPool("dbname=shop", prefix="orders", bootstrap_servers="127.0.0.1:9092")

    def handle(order):  # in any thread
        with pool.transaction() as tx:
            ...

What happens when the block ends, and why it is safe: `dualwrite.recipes.core.coordinator`. Tables, statements, ids and
leases are those of `DualWriter` and `DualWriterPool` on PostgreSQL, so that writers of both kinds may use one
transactional id, one after the other, and pools of both kinds may share a prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Self, Unpack

import psycopg

from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.dual_write import DualWrite, Resolution
from dualwrite.recipes.core.waiting import THREADS
from dualwrite.recipes.pool.settings import PoolSettings
from dualwrite.recipes.pool.status import PoolStatus
from dualwrite.recipes.postgres.backend import PostgresOneIdBackend, PostgresPoolBackend
from dualwrite.recipes.psycopg.backend import BLOCKING
from dualwrite.recipes.psycopg.transaction import PsycopgTransaction
from dualwrite.recipes.writer import OneId, OneIdWriter, PooledWriter
from dualwrite.settings import WriterPoolSettings, WriterSettings

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

__all__ = ["PoolStatus", "PsycopgDualTransaction", "PsycopgDualWriter", "PsycopgDualWriterPool", "Resolution"]


class PsycopgDualTransaction(DualWrite):
    """One dual write; what `transaction()` of a `PsycopgDualWriter` or a `PsycopgDualWriterPool` yields."""

    def __init__(self, transaction: PsycopgTransaction, records: RecordBuffer) -> None:
        super().__init__(transaction, records)
        self._connection = transaction.connection

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """The connection whose transaction is the decision. `connection.transaction()` inside is a savepoint."""
        assert isinstance(self._connection, psycopg.Connection)
        return self._connection

    @contextmanager
    def savepoint(self) -> Iterator[Self]:
        """Begin a part that may fail by itself: an exception undoes what was written and sent inside, and is raised.

        Code that catches it outside goes on with the rest of the dual write. May be nested.
        """
        with self.connection.transaction():
            yield self


class PsycopgDualWriter(OneIdWriter[psycopg.Connection[Any], PsycopgDualTransaction]):
    """Atomic writes to one PostgreSQL and to Kafka, one at a time, under one transactional id.

    `database` is the database that decides and that has the table `kafka_transaction_state` (created when missing
    unless `create_table=False`): a conninfo, of which one connection is opened and kept; a pool, which the
    caller closes; or a function that makes a connection, which is closed after use. Connections that the writer makes
    prepare a statement once it was executed `prepare_threshold` times (None, for poolers: never). `lock_timeout_ms` is
    how long the row may stay locked by another process (None: as long as the database is set to), `resolve_timeout_ms`
    how long a database that does not respond after COMMIT is queried again, and `max_buffered_bytes` how much memory
    the records of one dual write may take. `producer_settings` are producer settings, under Kafka's names with
    underscores.

    Raises ConfigError. Two live writers with one transactional id are safe but useless: each fences the other. Use
    one id per concurrent writer. Not for use by several threads at once.
    """

    def __init__(
        self,
        database: str | ConnectionPool[Any] | Callable[[], psycopg.Connection[Any]],
        *,
        transactional_id: str,
        prepare_threshold: int | None = None,
        **settings: Unpack[WriterSettings],
    ) -> None:
        one_id = OneId(transactional_id, settings)
        backend = PostgresOneIdBackend[psycopg.Connection[Any], PsycopgDualTransaction](
            database,
            driver=BLOCKING.preparing(prepare_threshold),
            handle=PsycopgDualTransaction,
            waiting=THREADS,
            **one_id.writing.tables,
        )
        super().__init__(backend, one_id)

    def transaction(
        self, connection: psycopg.Connection[Any] | None = None
    ) -> AbstractContextManager[PsycopgDualTransaction]:
        """Run a block as one dual write: leaving it commits both sides, an exception rolls back both.

        `connection` is a connection of the caller to the writer's database, in autocommit mode or not; its whole
        transaction is committed or rolled back with the block, including its earlier statements. Without it the writer
        uses one of its own connections.

        Records are kept until the block ends, and sent right before the database commits. Those that were sent inside
        a savepoint (`connection.transaction()`, or a SAVEPOINT statement) that is rolled back are dropped
        with it. A record that is refused at `send` dooms the block like a failed statement, even if its error is
        swallowed.

        Raises what the block raises; IllegalStateError for a connection whose COMMIT is not ours to send; RecipeErrors,
        InvalidRecordError, AbortableError, FencedError, KafkaTimeoutError and psycopg's own errors, after which neither
        side was changed; OutcomeUnknown if the database commit was sent and its outcome cannot be read.
        A block without records is an ordinary database transaction, unknown to Kafka: if its commit gets no
        response, psycopg's error is raised with `tx.outcome` None, and only the caller's data shows the outcome.
        """
        return self.scope(connection)


class PsycopgDualWriterPool(PooledWriter[psycopg.Connection[Any], PsycopgDualTransaction]):
    """Atomic writes to one PostgreSQL and to Kafka by up to `max_writers` threads of this process at a time.

    `database` is where blocks get their connections: a conninfo, of which up to `max_writers` connections are kept; a
    pool, which the caller closes; or a function that makes a connection, which is closed after use. The
    background uses separate connections to the same database, which do not count towards a pool.

    `prepare_threshold` is that of `PsycopgDualWriter`; prefix, leases and the other settings are those of
    `DualWriterPool`.

    May be used by several threads. After a fork the child has a separate pool; running blocks stay with the
    parent. With a `psycopg_pool`, create a new one in the child, and a new writer pool on it.
    """

    def __init__(
        self,
        database: str | ConnectionPool[Any] | Callable[[], psycopg.Connection[Any]],
        *,
        prefix: str,
        prepare_threshold: int | None = None,
        **settings: Unpack[WriterPoolSettings],
    ) -> None:
        pool = PoolSettings(prefix, settings)
        backend = PostgresPoolBackend[psycopg.Connection[Any], PsycopgDualTransaction](
            database,
            driver=BLOCKING.preparing(prepare_threshold),
            handle=PsycopgDualTransaction,
            waiting=THREADS,
            max_writers=pool.max_writers,
            **pool.writing.tables,
        )
        super().__init__(backend, pool)

    def transaction(
        self, connection: psycopg.Connection[Any] | None = None
    ) -> AbstractContextManager[PsycopgDualTransaction]:
        """Run a block as one dual write: leaving it commits both sides, an exception rolls back both.

        As `PsycopgDualWriter.transaction`, in any thread. A transactional id is taken when the block ends and has
        records; if the connection keeps a snapshot (REPEATABLE READ and above), before the transaction begins.
        Blocks that wait for one get it in the order of their requests.

        Also raises PoolTimeoutError if no id became free in time, and IllegalStateError after `close()`. A dual write
        whose id was lost to another process before the decision goes on under another id, and raises FencedError
        only if that happens repeatedly.
        """
        return self.scope(connection)
