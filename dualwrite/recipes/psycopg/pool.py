"""`PsycopgDualWriterPool`: dual writes by many threads and processes at once, with psycopg and nothing above it.

    pool = PsycopgDualWriterPool("dbname=shop", prefix="orders", bootstrap_servers="127.0.0.1:9092")

    def handle(order):  # in any thread
        with pool.transaction() as tx:
            tx.connection.execute("INSERT INTO orders VALUES (%s, %s)", (order, "lamp"))
            tx.send("orders", key=..., value=...)

Ids, leases and steps are those of `DualWriterPool` on PostgreSQL, so processes with either may share a prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import psycopg

from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.buffer import DEFAULT_MAX_BUFFERED_BYTES
from dualwrite.recipes.core.coordinator import Resolution, roll_back_database
from dualwrite.recipes.core.kafka_participant import BlockingKafkaSide
from dualwrite.recipes.core.pause_points import PauseHook
from dualwrite.recipes.core.settings import Confirm
from dualwrite.recipes.core.shield import direct
from dualwrite.recipes.pool.forks import BeginsAnewInChildren
from dualwrite.recipes.pool.runtime import ThreadRuntime
from dualwrite.recipes.pool.settings import PoolSettings
from dualwrite.recipes.pool.status import PoolStatus
from dualwrite.recipes.psycopg.pool_base import PsycopgPoolBase
from dualwrite.recipes.psycopg.writer import PsycopgDualTransaction, TransactionScope, blocking_connection

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

__all__ = ["PoolStatus", "PsycopgDualTransaction", "PsycopgDualWriterPool", "Resolution"]


class PsycopgDualWriterPool(PsycopgPoolBase, BeginsAnewInChildren):
    """Atomic writes to one PostgreSQL and to Kafka by up to `max_writers` threads of this process at a time.

    `database` is where blocks get their connections: a conninfo, of which up to `max_writers` connections are kept; a
    pool, which stays the caller's; or a function that makes a connection, which is closed after use. What is done
    beside the blocks has connections of its own, to the same place, which a pool does not count.

    Prefix, leases and the other settings are those of `DualWriterPool`.

    May be used by several threads. After a fork the child has a pool of its own; blocks that were running stay with
    the parent, and a `psycopg_pool` must be another one in the child, as must then this.
    """

    def __init__(
        self,
        database: str | ConnectionPool[Any] | Callable[[], psycopg.Connection[Any]],
        *,
        prefix: str,
        max_writers: int = 8,
        acquire_timeout_ms: int = 30_000,
        lease_ms: int = 15_000,
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
            runtime=ThreadRuntime,
            settings=PoolSettings(
                prefix,
                max_writers=max_writers,
                acquire_timeout_ms=acquire_timeout_ms,
                lease_ms=lease_ms,
                lock_timeout_ms=lock_timeout_ms,
                resolve_timeout_ms=resolve_timeout_ms,
                confirm=confirm,
                pause=pause,
                producer_settings=producer_settings,
            ),
            max_buffered_bytes=max_buffered_bytes,
            create_table=create_table,
            schema=schema,
        )
        self._live()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def transaction(self, connection: psycopg.Connection[Any] | None = None) -> Iterator[PsycopgDualTransaction]:
        """Run a block as one dual write: leaving it commits both sides, an exception rolls back both.

        As `PsycopgDualWriter.transaction`, in any thread. A transactional id is taken when the block ends and has
        records; where the connection keeps a snapshot (REPEATABLE READ and above), before the transaction begins.
        Whoever waits for one is served in the order of asking.

        Raises in addition PoolTimeoutError where no id became free in time, and IllegalStateError after `close()`. A
        dual write whose id was lost to another process before the decision goes on under another one, and raises
        FencedError only where that happens again and again.
        """
        writes = self._writes
        with writes.block() as block, TransactionScope(self._begin(block, blocking_connection(connection))) as tx:
            try:
                yield tx
                writes.assert_of_this_process()
            except BaseException:
                blocking.run(roll_back_database(tx))
                raise
            blocking.run(writes.commit(block, tx))

    def recover(self) -> list[Resolution]:
        """Complete what was left open under the ids of this prefix that no living process has; harmless at any time.

        As `DualWriterPool.recover`.
        """
        return blocking.run(self._writes.recover())

    def close(self, timeout_s: float = 30.0) -> None:
        """Let no block begin, wait `timeout_s` seconds at the most for those that run, and give all ids back.

        As `DualWriterPool.close`.
        """
        blocking.run(self._close(timeout_s))
