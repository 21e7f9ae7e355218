"""`DualWriter`: write a database and Kafka in one decision, with SQLAlchemy.

    writer = DualWriter(engine, bootstrap_servers="127.0.0.1:9092", transactional_id="orders-1")
    with writer.transaction() as tx:
        tx.session.add(Order(...))
        tx.send("orders", key=..., value=...)

What happens when the block ends, and why it is safe: `dualwrite.recipes.core.coordinator`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from dualwrite.errors import IllegalStateError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.buffer import DEFAULT_MAX_BUFFERED_BYTES, RecordBuffer
from dualwrite.recipes.core.coordinator import DualWrite, DualWriteCoordinator, Resolution
from dualwrite.recipes.core.kafka_participant import BlockingKafkaSide
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.core.settings import Confirm, KafkaSettings, check_engine, follows_later
from dualwrite.recipes.core.shield import direct
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.sqlalchemy.adapter import SqlAlchemyDatabase
from dualwrite.recipes.sqlalchemy.transaction import Bind, SqlAlchemyTransaction, watch
from dualwrite.recipes.transactional.transactional import OpenBlocks, Transactional

__all__ = ["DualTransaction", "DualWriter", "Resolution"]

ResultT = TypeVar("ResultT")


class DualTransaction(DualWrite):
    """One dual write; what `DualWriter.transaction()` yields."""

    def __init__(self, work: SqlAlchemyTransaction, database: SqlAlchemyDatabase, records: RecordBuffer) -> None:
        super().__init__(database.transaction(work), records)
        self._work = work
        work.write = self

    @property
    def session(self) -> Session:
        """The Session of this dual write. Raises IllegalStateError where it runs on a bare Connection."""
        if self._work.session is None:
            raise IllegalStateError("this dual write runs on a Connection; use tx.connection")
        return self._work.session

    @property
    def connection(self) -> sa.Connection:
        """The Connection whose transaction is the decision; within `session.begin_nested()` it is in the savepoint."""
        return self._work.connection if self._work.session is None else self._work.session.connection()

    @contextmanager
    def savepoint(self) -> Iterator[Self]:
        """A part that may fail by itself: an exception undoes what was written and sent inside, and is raised.

        Whoever catches it outside goes on with the rest of the dual write. May be nested.
        """
        with (self._work.session or self._work.connection).begin_nested():
            yield self


class DualWriter:
    """Atomic writes to one database and to Kafka, one at a time, under one transactional id.

    `engine` is where the decision is taken and where the table `kafka_transaction_state` lives (created when missing
    unless `create_table=False`). `lock_timeout_ms` is how long the row may stay locked by another process (None: as
    long as the database is set to), `resolve_timeout_ms` how long a database that does not answer after COMMIT is
    asked again, and `max_buffered_bytes` how much the records of one dual write may take in memory.
    `producer_settings` are the producer's, by Kafka's names with underscores.

    With `confirm="database"` a dual write returns when the database has committed, which decides it: Kafka's commit is
    on its way then, and its records become readable a little later. It is waited for by the next dual write that has
    records, by `recover()` and by `close()`; until then the state is CONFIRMING and `in_doubt` names it.

    Two living writers with one transactional id are safe but useless: each fences the other. Use one id per
    concurrent writer. Not for use by several threads at once.
    """

    def __init__(
        self,
        engine: sa.Engine,
        *,
        transactional_id: str,
        session_factory: Callable[[], Session] | None = None,
        lock_timeout_ms: int | None = 60_000,
        resolve_timeout_ms: int = 30_000,
        max_buffered_bytes: int = DEFAULT_MAX_BUFFERED_BYTES,
        create_table: bool = True,
        schema: str | None = None,
        confirm: Confirm = "kafka",
        pause: PauseHook | None = None,
        **producer_settings: Any,
    ) -> None:
        check_engine(engine, sa.Engine, "create_engine")
        watch(engine)
        self._engine = engine
        settings = KafkaSettings(transactional_id, producer_settings)
        self._serializers = settings.serializers
        self._producer_settings = settings.producer
        self._session_factory = session_factory or (lambda: Session(engine))
        self._max_buffered_bytes = max_buffered_bytes
        self._blocks = OpenBlocks()
        self._database = SqlAlchemyDatabase(engine, create_table=create_table, schema=schema)
        self._writes = DualWriteCoordinator(
            settings.transactional_id,
            database=self._database,
            kafka=BlockingKafkaSide(settings.producer),
            sleep=blocking.sleep,
            lock_timeout_ms=lock_timeout_ms,
            resolve_timeout_ms=resolve_timeout_ms,
            kafka_follows_later=follows_later(confirm),
            pause=pause,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def transactional_id(self) -> str:
        """The name that this writer was given, by which the database knows its row."""
        return self._writes.transactional_id

    @property
    def kafka_transactional_id(self) -> str | None:
        """What Kafka sees of it: with the suffix of the database. None before the first use, which asks for that."""
        return self._writes.kafka_transactional_id

    @property
    def state(self) -> SlotState:
        """What this writer knows about its transactional id."""
        return self._writes.state

    @property
    def in_doubt(self) -> PreparedTxnState:
        """The dual write that the database committed and whose Kafka commit is not confirmed yet; else empty.

        The next `transaction()` with records, or `recover()`, here or in any process, completes it first. In state
        FENCED that is for the process that took the id over, or for a new DualWriter.
        """
        return self._writes.in_doubt

    @contextmanager
    def transaction(self, bind: Bind | None = None) -> Iterator[DualTransaction]:
        """Run a block as one dual write: leaving it commits both sides, an exception rolls back both.

        `bind` is a Session or Connection of the caller's, on the writer's engine; its transaction is committed or
        rolled back with the block. Without it the writer opens a Session of its own and closes it at the end.

        Records are kept until the block ends, and sent right before the database commits. Those that were sent inside
        a savepoint (`session.begin_nested()`) that is rolled back are dropped with it. A record that is refused at
        `send` dooms the block like a failed statement, even if its error is swallowed.

        Raises what the block raises; InvalidRecordError, AbortableError, RowLockTimeoutError, FencedError,
        KafkaTimeoutError and the database's own errors, after which neither side was changed; OutcomeUnknown where the
        database commit was sent and nobody could be asked what became of it. A block without records is an ordinary
        database transaction, of which Kafka hears nothing: if its commit gets no answer, the database's error is
        raised with `tx.outcome` None, and only the caller's data can tell.
        """
        with self._writes.exclusively():
            blocking.run(self._writes.get_ready())
            tx = self._begin(bind)
            try:
                try:
                    with self._blocks.inside(tx):
                        yield tx
                except BaseException:
                    blocking.run(self._writes.roll_back(tx))
                    raise
                blocking.run(self._writes.commit(tx))
            finally:
                tx._records.close()
                tx._work.close()

    def _begin(self, bind: Bind | None) -> DualTransaction:
        records = self._new_buffer()
        bound = self._session_factory() if bind is None else bind
        return DualTransaction(
            SqlAlchemyTransaction(bound, self._engine, records, owned=bind is None), self._database, records
        )

    # -- the dual writes of sessions that are committed elsewhere (sessions.py) ---------------------------------

    _leases_at_commit = False
    _uninterrupted = staticmethod(direct)

    def _carry_out(self, steps: Coroutine[Any, Any, ResultT]) -> ResultT:
        return blocking.run(steps)

    async def _ready_for_sessions(self) -> None:
        await self._writes.ensure_row()

    def _new_buffer(self) -> RecordBuffer:
        return RecordBuffer(self._max_buffered_bytes, self._serializers)

    async def _commit_of_session(self, write: DualWrite) -> None:
        with self._writes.in_turn():
            await self._writes.commit(write)

    @property
    def transactional(self) -> Transactional:
        """Decorates a function whose call is a dual write: `@writer.transactional`, or with settings; see there."""
        return Transactional(self)

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
        blocking.run(self._writes.close())
