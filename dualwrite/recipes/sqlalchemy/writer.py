"""The writer on SQLAlchemy for threads: `DualWriter`, with one transactional id or, as a pool, with many.

    writer = DualWriter(engine, bootstrap_servers="127.0.0.1:9092", transactional_id="orders-1")
    with writer.transaction() as tx:
        tx.session.add(Order(...))
        tx.send("orders", key=..., value=...)

    pool = DualWriter(engine, prefix="orders", bootstrap_servers="127.0.0.1:9092")

    def handle(order):  # in any thread
        with pool.transaction() as tx:
            ...

How a block ends, and why that is safe: `dualwrite.recipes.core.coordinator`; for a pool, also
`dualwrite.recipes.pool.coordinator` and docs/pool.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self, Unpack, overload

import sqlalchemy as sa
from sqlalchemy.orm import Session

from dualwrite.errors import IllegalStateError
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.dual_write import DualWrite, Resolution
from dualwrite.recipes.core.settings import check_engine
from dualwrite.recipes.core.waiting import THREADS
from dualwrite.recipes.pool.settings import ids_in
from dualwrite.recipes.pool.status import PoolStatus
from dualwrite.recipes.sqlalchemy.adapter import SqlAlchemyBackend
from dualwrite.recipes.sqlalchemy.binding import Bind
from dualwrite.recipes.sqlalchemy.drivers import here
from dualwrite.recipes.sqlalchemy.state_table import SqlAlchemyDatabase
from dualwrite.recipes.sqlalchemy.transaction import SqlAlchemyTransaction
from dualwrite.recipes.writer import ThreadWriter
from dualwrite.settings import WriterPoolSettings, WriterSettings

__all__ = ["DualTransaction", "DualWriter", "PoolStatus", "Resolution"]


class DualTransaction(DualWrite):
    """One dual write, as yielded by `DualWriter.transaction()`."""

    def __init__(self, transaction: SqlAlchemyTransaction, database: SqlAlchemyDatabase, records: RecordBuffer) -> None:
        super().__init__(database.transaction(transaction), records)
        self._transaction = transaction
        self._session = transaction.session
        transaction.write = self

    @property
    def session(self) -> Session:
        """The Session of this dual write. Raises IllegalStateError on a bare Connection."""
        if self._session is None:
            raise IllegalStateError("this dual write runs on a Connection; use tx.connection")
        return self._session

    @property
    def connection(self) -> sa.Connection:
        """The Connection whose transaction is the decision; within `session.begin_nested()` it is in the savepoint."""
        return self._transaction.connection if self._session is None else self._session.connection()

    @contextmanager
    def savepoint(self) -> Iterator[Self]:
        """Begin a part that may fail by itself: an exception undoes its writes and records, and is raised.

        Code that catches it outside goes on with the rest of the dual write. May be nested.
        """
        with (self._session or self._transaction.connection).begin_nested():
            yield self


class DualWriter(ThreadWriter[Bind, DualTransaction]):
    """Atomic writes to one database and to Kafka, under one transactional id, or under a pool of them.

    `engine` is the database that decides and that has the table `kafka_transaction_state` (created when missing unless
    `create_table=False`). `lock_timeout_ms` limits how long the row may stay locked by another process (None: the
    database's own limit), `resolve_timeout_ms` how long a database that does not respond after COMMIT is queried again,
    and `max_buffered_bytes` how much memory the records of one dual write may take. Other settings are producer
    settings, under Kafka's names with underscores.

    `delivery=Direct(when_kafka_is_away="store")` lets the database store the records of blocks that cannot reach Kafka;
    later uses of the id publish them (docs/dual-write.md).

    `session_factory` makes the Sessions of blocks, a `sessionmaker` for instance. By default the objects of a block
    stay readable after it (`expire_on_commit=False`).

    With `transactional_id`, one dual write runs at a time, and threads must not share the writer. Two live writers with
    one transactional id are safe but useless: each fences the other. Use one id per concurrent writer.

    With `prefix` it is a pool: up to `max_writers` threads of this process run dual writes at a time. The ids are
    `prefix-0`, `prefix-1`, and so on; the processes of an application use the same prefix and divide the ids among
    themselves by leases in the table `kafka_transaction_lease`, which is created like the other one. So processes may
    come and go: the ids of a dead process are recovered in the background `lease_ms` after it last renewed its leases.
    A block needs an id only when it ends, and only if it has records; it waits for one up to `acquire_timeout_ms`. May
    be used by several threads. After a fork the child has a separate pool; running blocks stay with the parent.

    Raises ConfigError, also unless exactly one of `transactional_id` and `prefix` is given.
    """

    backend: SqlAlchemyBackend[Bind, DualTransaction]

    @overload
    def __init__(
        self,
        engine: sa.Engine,
        *,
        transactional_id: str,
        session_factory: Callable[[], Session] | None = None,
        **settings: Unpack[WriterSettings],
    ) -> None: ...

    @overload
    def __init__(
        self,
        engine: sa.Engine,
        *,
        prefix: str,
        session_factory: Callable[[], Session] | None = None,
        **settings: Unpack[WriterPoolSettings],
    ) -> None: ...

    def __init__(
        self, engine: sa.Engine, *, session_factory: Callable[[], Session] | None = None, **settings: Any
    ) -> None:
        check_engine(engine, sa.Engine, "create_engine")
        ids = ids_in(settings)
        backend = SqlAlchemyBackend[Bind, DualTransaction](
            engine,
            new_session=session_factory or (lambda: Session(engine, expire_on_commit=False)),
            behind=lambda bound: bound,
            handle=DualTransaction,
            waiting=THREADS,
            carry=here,
            carry_out=blocking.run,
            settings=ids.writing,
            is_pool=ids.is_pool,
        )
        super().__init__(backend, ids)

    def transaction(self, bind: Bind | None = None) -> AbstractContextManager[DualTransaction]:
        """Run a block as one dual write: leaving it commits both sides, an exception rolls back both.

        `bind` is a Session or Connection on the writer's engine that the caller owns; its transaction is committed or
        rolled back with the block. Without it the writer opens a new Session and closes it at the end.

        Records are kept until the block ends, and sent right before the database commits. Records sent inside a
        savepoint (`session.begin_nested()`) that is rolled back are dropped with it. A record that is refused at `send`
        dooms the block like a failed statement, even if its error is swallowed.

        Raises the block's own exception; InvalidRecordError, AbortableError, RowLockTimeoutError, FencedError,
        KafkaTimeoutError and the database's own errors, after which neither side was changed; OutcomeUnknown if the
        database commit was sent and its outcome cannot be read. A block without records is an ordinary database
        transaction, of which Kafka is not notified: if its commit gets no response, the database's error is raised with
        `tx.outcome` None, and only the caller's data shows the outcome.

        A pool takes a transactional id when the block ends and has records; on SQLite, and if the database connection
        keeps a snapshot (REPEATABLE READ and above), before its first statement. Waiting blocks get ids in the order of
        their requests. Also raises PoolTimeoutError if no id became free in time, and IllegalStateError after
        `close()`. A dual write whose id was lost to another process before the decision goes on under another id, and
        raises FencedError only if that happens repeatedly.
        """
        return self.scope(bind)
