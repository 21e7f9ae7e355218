"""`PsycopgDualWriter`: write PostgreSQL and Kafka in one decision, with psycopg and nothing above it.

    writer = PsycopgDualWriter("dbname=shop", bootstrap_servers="127.0.0.1:9092", transactional_id="orders-1")
    with writer.transaction() as tx:
        tx.connection.execute("INSERT INTO orders VALUES (%s, %s)", (1, "lamp"))
        tx.send("orders", key=..., value=...)

What happens when the block ends, and why it is safe: `dualwrite.recipes.core.coordinator`. Table and statements are
those of `DualWriter` on PostgreSQL, so both may use one transactional id, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psycopg

from dualwrite.errors import IllegalStateError
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.buffer import DEFAULT_MAX_BUFFERED_BYTES, RecordBuffer
from dualwrite.recipes.core.coordinator import DualWrite, Resolution
from dualwrite.recipes.core.kafka_participant import BlockingKafkaSide
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.core.settings import Confirm
from dualwrite.recipes.core.shield import direct
from dualwrite.recipes.psycopg.adapter import PsycopgTransaction
from dualwrite.recipes.psycopg.writer_base import PsycopgWriterBase

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

__all__ = ["PsycopgDualTransaction", "PsycopgDualWriter", "Resolution"]


class PsycopgDualTransaction(DualWrite):
    """One dual write; what `PsycopgDualWriter.transaction()` yields."""

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
        """A part that may fail by itself: an exception undoes what was written and sent inside, and is raised.

        Whoever catches it outside goes on with the rest of the dual write. May be nested.
        """
        with self.connection.transaction():
            yield self


def blocking_connection(connection: Any) -> psycopg.Connection[Any] | None:
    """One of the caller's, if any. Raises IllegalStateError for something else."""
    if connection is not None and not isinstance(connection, psycopg.Connection):
        raise IllegalStateError(
            f"this dual write runs on a psycopg.Connection, not on {connection!r}; nothing was written"
        )
    return connection


class TransactionScope:
    """A dual write that somebody else ends; what interrupts it hears how, and what it opened is given back."""

    __slots__ = ("_beginning", "_database", "_tx")

    def __init__(self, beginning: Coroutine[Any, Any, tuple[PsycopgTransaction, RecordBuffer]]) -> None:
        self._beginning = beginning

    def __enter__(self) -> PsycopgDualTransaction:
        self._database, records = blocking.run(self._beginning)
        self._tx = PsycopgDualTransaction(self._database, records)
        return self._tx

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._tx._records.close()
            if not self._database.close_at_once():
                blocking.run(self._database.close())
        except BaseException as failed:
            self._tx.tell(failed)
            raise
        if error is not None:
            self._tx.tell(error)


class PsycopgDualWriter(PsycopgWriterBase):
    """Atomic writes to one PostgreSQL and to Kafka, one at a time, under one transactional id.

    `database` is where the decision is taken and where the table `kafka_transaction_state` lives (created when missing
    unless `create_table=False`): a conninfo, of which one connection is opened and kept; a pool, which stays the
    caller's; or a function that makes a connection, which is closed after use. `lock_timeout_ms` is how long the row
    may stay locked by another process (None: as long as the database is set to), `resolve_timeout_ms` how long a
    database that does not answer after COMMIT is asked again, and `max_buffered_bytes` how much the records of one dual
    write may take in memory. `producer_settings` are the producer's, by Kafka's names with underscores.

    Raises ConfigError. Two living writers with one transactional id are safe but useless: each fences the other. Use
    one id per concurrent writer. Not for use by several threads at once.
    """

    def __init__(
        self,
        database: str | ConnectionPool[Any] | Callable[[], psycopg.Connection[Any]],
        *,
        transactional_id: str,
        lock_timeout_ms: int | None = 60_000,
        resolve_timeout_ms: int = 30_000,
        max_buffered_bytes: int = DEFAULT_MAX_BUFFERED_BYTES,
        create_table: bool = True,
        schema: str | None = None,
        confirm: Confirm = "kafka",
        pause: PauseHook | None = None,
        **producer_settings: Any,
    ) -> None:
        super().__init__(
            database,
            connect=psycopg.Connection.connect,
            kafka_side=BlockingKafkaSide,
            sleep=blocking.sleep,
            uninterrupted=direct,
            transactional_id=transactional_id,
            lock_timeout_ms=lock_timeout_ms,
            resolve_timeout_ms=resolve_timeout_ms,
            max_buffered_bytes=max_buffered_bytes,
            create_table=create_table,
            schema=schema,
            confirm=confirm,
            pause=pause,
            producer_settings=producer_settings,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def transaction(self, connection: psycopg.Connection[Any] | None = None) -> Iterator[PsycopgDualTransaction]:
        """Run a block as one dual write: leaving it commits both sides, an exception rolls back both.

        `connection` is one of the caller's, to the writer's database, in autocommit mode or not; its whole transaction
        is committed or rolled back with the block, what it did before included. Without it the writer takes one from
        where its connections come from.

        Records are kept until the block ends, and sent right before the database commits. Those that were sent inside
        a savepoint (`connection.transaction()`, or SAVEPOINT as a statement of its own) that is rolled back are dropped
        with it. A record that is refused at `send` dooms the block like a failed statement, even if its error is
        swallowed.

        Raises what the block raises; IllegalStateError for a connection whose COMMIT is not ours to send; RecipeErrors,
        InvalidRecordError, AbortableError, FencedError, KafkaTimeoutError and psycopg's own errors, after which neither
        side was changed; OutcomeUnknown where the database commit was sent and nobody could be asked what became of it.
        A block without records is an ordinary database transaction, of which Kafka hears nothing: if its commit gets no
        answer, psycopg's error is raised with `tx.outcome` None, and only the caller's data can tell.
        """
        with self._writes.exclusively():
            blocking.run(self._writes.get_ready())
            with TransactionScope(self._begin(blocking_connection(connection))) as tx:
                try:
                    yield tx
                except BaseException:
                    blocking.run(self._writes.roll_back(tx))
                    raise
                blocking.run(self._writes.commit(tx))

    def recover(self) -> Resolution:
        """Complete what a crash left open under this transactional id, by the row; harmless at any time.

        A living owner of the id is fenced by it. Several processes may do it at once: the row lock makes them queue
        and the later ones find nothing to do. Raises RowLockTimeoutError while a database transaction holds the row.
        """
        with self._writes.exclusively():
            return blocking.run(self._writes.recover())

    def resolve(self) -> Resolution:
        """Find out what became of the commit that raised OutcomeUnknown, and complete Kafka accordingly.

        Raises OutcomeUnknown again while the database cannot be asked, or where a later dual write of another process
        has replaced the row. With nothing unresolved it does what `recover()` does.
        """
        return self.recover()

    def close(self) -> None:
        """Give up the transactional id. What is in doubt stays so, safely, until the id is next used or recovered."""
        blocking.run(self._close())
