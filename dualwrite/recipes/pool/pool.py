"""`DualWriterPool`: dual writes by many threads and processes at once, each under a transactional id of its own.

    pool = DualWriterPool(engine, prefix="orders", bootstrap_servers="127.0.0.1:9092")

    def handle(order):  # in any thread
        with pool.transaction() as tx:
            tx.session.add(Order(...))
            tx.send("orders", key=..., value=...)

What happens when a block ends, and why it is safe: `dualwrite.recipes.core.coordinator`; what the pool adds to it:
`dualwrite.recipes.pool.coordinator`, and docs/pool.md.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.buffer import DEFAULT_MAX_BUFFERED_BYTES, RecordBuffer
from dualwrite.recipes.core.coordinator import DualWrite, Resolution, roll_back_database
from dualwrite.recipes.core.kafka_participant import BlockingKafkaSide
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.core.settings import Confirm, check_engine
from dualwrite.recipes.core.shield import direct
from dualwrite.recipes.pool.coordinator import PoolCoordinator
from dualwrite.recipes.pool.forks import BeginsAnewInChildren
from dualwrite.recipes.pool.isolation import keeps_a_snapshot, locks_whole_database
from dualwrite.recipes.pool.runtime import ThreadRuntime
from dualwrite.recipes.pool.settings import PoolSettings
from dualwrite.recipes.pool.status import PoolStatus
from dualwrite.recipes.sqlalchemy.adapter import SqlAlchemyDatabase
from dualwrite.recipes.sqlalchemy.background_engine import FirstConnection, background_engine
from dualwrite.recipes.sqlalchemy.lease_table import SqlAlchemyLeases
from dualwrite.recipes.sqlalchemy.tables import schema_for
from dualwrite.recipes.sqlalchemy.transaction import Bind, SqlAlchemyTransaction, watch
from dualwrite.recipes.sqlalchemy.writer import DualTransaction
from dualwrite.recipes.transactional.transactional import OpenBlocks, Transactional

__all__ = ["DualTransaction", "DualWriterPool", "PoolStatus", "Resolution"]

ResultT = TypeVar("ResultT")


class DualWriterPool(BeginsAnewInChildren):
    """Atomic writes to one database and to Kafka by up to `max_writers` threads of this process at a time.

    The transactional ids are `prefix-0`, `prefix-1`, and so on; the processes of an application, which share the
    prefix, share them out by leases in the table `kafka_transaction_lease` (created when missing, as
    `kafka_transaction_state` is, unless `create_table=False`). So any number of processes may come and go: the ids
    of one that is gone are recovered in the background `lease_ms` after its last sign of life, and used again. A
    block needs an id only when it ends, and only if it has records.

    `acquire_timeout_ms` is how long a block waits for an id. The other settings are `DualWriter`'s.

    May be used by several threads. After a fork the child has a pool of its own; blocks that were running stay with
    the parent.
    """

    def __init__(
        self,
        engine: sa.Engine,
        *,
        prefix: str,
        max_writers: int = 8,
        acquire_timeout_ms: int = 30_000,
        lease_ms: int = 15_000,
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
        self._settings = PoolSettings(
            prefix,
            max_writers=max_writers,
            acquire_timeout_ms=acquire_timeout_ms,
            lease_ms=lease_ms,
            lock_timeout_ms=lock_timeout_ms,
            resolve_timeout_ms=resolve_timeout_ms,
            confirm=confirm,
            pause=pause,
            producer_settings=producer_settings,
        )
        watch(engine)
        self._producer_settings = producer_settings
        self._engine = engine
        self._first_connection = FirstConnection(engine)
        self._session_factory = session_factory or (lambda: Session(engine))
        self._max_buffered_bytes = max_buffered_bytes
        self._create_table = create_table
        self._schema = schema_for(engine, schema)
        self._blocks = OpenBlocks()
        self._live()

    def _begin_life(self) -> None:
        settings = self._settings
        engine = self._background_engine = background_engine(self._engine)
        watch(engine)
        self._database = SqlAlchemyDatabase(engine, create_table=self._create_table, schema=self._schema)
        leases = SqlAlchemyLeases(
            engine,
            prefix=settings.prefix,
            owner=settings.new_owner(),
            lease_ms=settings.lease_ms,
            create_table=self._create_table,
            schema=self._schema,
        )
        self._writes = PoolCoordinator(
            settings,
            leases=leases,
            new_writes=settings.writes_maker(
                database=self._database, new_kafka=BlockingKafkaSide, sleep=blocking.sleep
            ),
            runtime=ThreadRuntime(),
            leases_inside_blocks=not locks_whole_database(engine.dialect),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def prefix(self) -> str:
        """What the transactional ids of this pool begin with; a dash and a number follow."""
        return self._settings.prefix

    @property
    def status(self) -> PoolStatus:
        """What goes on now, and the sums since the pool was made. Cheap, and from any thread."""
        return self._writes.status()

    @contextmanager
    def transaction(self, bind: Bind | None = None) -> Iterator[DualTransaction]:
        """Run a block as one dual write: leaving it commits both sides, an exception rolls back both.

        As `DualWriter.transaction`, in any thread. A transactional id is taken when the block ends and has records; on
        SQLite, and where the database connection keeps a snapshot (REPEATABLE READ and above), before its first
        statement. Whoever waits for one is served in the order of asking.

        Raises in addition PoolTimeoutError where no id became free in time, and IllegalStateError after `close()`. A
        dual write whose id was lost to another process before the decision goes on under another one, and raises
        FencedError only where that happens again and again.
        """
        writes = self._writes
        self._first_connection.make()
        with writes.block() as block:
            if locks_whole_database(self._engine.dialect):
                blocking.run(writes.take_slot(block))
            tx = self._begin(bind)
            try:
                try:
                    if keeps_a_snapshot(tx._work.connection):
                        blocking.run(writes.take_slot(block))
                    with self._blocks.inside(tx):
                        yield tx
                    writes.assert_of_this_process()
                except BaseException:
                    blocking.run(roll_back_database(tx))
                    raise
                blocking.run(writes.commit(block, tx))
            except BaseException as error:
                tx.tell(error)
                raise
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

    _leases_at_commit = True
    _uninterrupted = staticmethod(direct)

    def _carry_out(self, steps: Coroutine[Any, Any, ResultT]) -> ResultT:
        return blocking.run(steps)

    async def _ready_for_sessions(self) -> None:
        self._first_connection.make()

    def _new_buffer(self) -> RecordBuffer:
        return RecordBuffer(self._max_buffered_bytes, self._settings.serializers)

    async def _commit_of_session(self, write: DualWrite) -> None:
        writes = self._writes
        with writes.block() as block:
            await writes.commit(block, write)

    @property
    def transactional(self) -> Transactional:
        """Decorates a function whose call is a dual write: `@pool.transactional`, or with settings; see there."""
        return Transactional(self)

    def recover(self) -> list[Resolution]:
        """Complete what was left open under the ids of this prefix that no living process has; harmless at any time.

        What that was, and what became of it. The background does the same all the time. It learns that a process is
        dead from its lease, so at most `lease_ms` after it died. Raises what the first that could not be resolved
        now raised, after all others were seen to.
        """
        self._first_connection.make()
        return blocking.run(self._writes.recover())

    def close(self, timeout_s: float = 30.0) -> None:
        """Let no block begin, wait `timeout_s` seconds at the most for those that run, and give all ids back.

        Idempotent. What is in doubt stays so, safely, and is recovered by the other processes, or the next one.
        """
        blocking.run(self._writes.close(timeout_s))
        if self._background_engine is not self._engine:
            self._background_engine.dispose()
