"""The writers: two interfaces (for threads and for asyncio) over any backend and either slot policy.

Users call a face (`ThreadWriter`, `TaskWriter`). A `Backend` (SQLAlchemy, psycopg, a store of your own) begins the
database transaction of a block and creates the handle for the block. A slot policy determines the transactional id of
the block: with `OneId` the one given as `transactional_id=`, with `PoolSettings` a leased one, which begins with
`prefix=`. The public classes (`DualWriter`, `PsycopgDualWriter`, ...) are faces with a backend, and are defined in the
folders of their backends.

May import `core`, `pool` and `transactional.py`; knows no database library.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Protocol, Self, TypeVar, cast

from dualwrite.client.io_thread import this_process
from dualwrite.errors import IllegalStateError
from dualwrite.guarded import cleaning_up_after
from dualwrite.monkey_patches import assert_unpatched
from dualwrite.outcome import Outcome, note_outcome
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.coordinator import DualWriteCoordinator
from dualwrite.recipes.core.dual_write import DualWrite, DualWriteProgress, Resolution, say_of_block
from dualwrite.recipes.core.id_settings import OneId
from dualwrite.recipes.core.leases import Leases, outbox_prefix_of
from dualwrite.recipes.core.single_id import SingleId, UseByBlock
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.core.store import Database, OutboxDatabase
from dualwrite.recipes.core.waiting import Waiting
from dualwrite.recipes.pool.coordinator import PoolCoordinator, PooledBlock
from dualwrite.recipes.pool.outbox_publisher import OutboxPublisher
from dualwrite.recipes.pool.runtime import Runtime, TaskRuntime, ThreadRuntime
from dualwrite.recipes.pool.settings import PoolSettings
from dualwrite.recipes.pool.status import Counts, PoolStatus
from dualwrite.recipes.transactional import AsyncTransactional, Transactional

BindT_contra = TypeVar("BindT_contra", contravariant=True)
BindT = TypeVar("BindT")
TxT = TypeVar("TxT", bound=DualWrite)
TxT_co = TypeVar("TxT_co", bound=DualWrite, covariant=True)


Use = UseByBlock | PooledBlock
"""One block's use of a transactional id."""

Slots = SingleId | PoolCoordinator
"""A slot policy in operation: assigns transactional ids to the dual writes of one writer."""


class Backend(Protocol[BindT_contra, TxT_co]):
    """A database: begins its transactions and creates the handles for blocks."""

    @property
    def database(self) -> Database:
        """The database with the state rows; for a pool, a separate object in each process."""

    @property
    def waiting(self) -> Waiting: ...

    @property
    def has_savepoints(self) -> bool:
        """Whether its handles have a method `savepoint`."""

    async def begin(self, bind: BindT_contra | None, records: RecordBuffer, use: Use) -> TxT_co:
        """Begin the transaction of a block, on `bind` or on one of the backend's own connections.

        If the connection keeps a snapshot and `use.needs_slot_early`, call `use.take_slot` first. On an error, close
        everything that was opened here.
        """

    async def close(self) -> None:
        """Close the backend's open connections."""


class PoolBackend(Backend[BindT_contra, TxT_co], Protocol):
    """A database with leases."""

    def begin_life(self) -> None:
        """Create `database` for this process."""

    @property
    def outbox(self) -> OutboxDatabase:
        """`database`, with its outbox. Raises ConfigError if it cannot have one."""

    def leases(self, prefix: str, *, owner: str, lease_ms: int) -> Leases:
        """Return the leases of a prefix for a new owner, on connections of this process."""

    @property
    def leases_inside_blocks(self) -> bool:
        """Whether a lease can be taken while a block of this process holds uncommitted writes."""

    @property
    def connect_first(self) -> Callable[[], Awaitable[None]] | None:
        """A function to await before the first lease; None if there is none."""


# ---- blocks ------------------------------------------------------------------------------------------------------


class _Entered(Generic[TxT]):
    """The entry of a thread, and of its task if any, into a block."""

    __slots__ = ("blocks", "generation", "outer", "task", "thread", "tx")

    def __init__(self, blocks: Blocks[TxT], tx: TxT) -> None:
        self.blocks: Final = blocks
        self.tx: TxT | None = tx
        """None when the block has ended."""
        self.generation: Final = this_process.generation
        self.thread: Final = threading.get_ident()
        self.task = _current_task()
        self.outer: _Entered[Any] | None = _innermost.get()
        each: _Entered[Any] | None = self
        while each is not None:  # also behind open ones, because overlapping blocks may never leave an empty chain
            while (outer := each.outer) is not None and outer.tx is None:
                each.outer = outer.outer
            each = each.outer

    def leave(self) -> None:
        """Note the end of the block, in any thread and context; harmless when repeated."""
        self.tx = self.task = None


def _current_task() -> asyncio.Task[Any] | None:
    loop = asyncio._get_running_loop()  # noqa: SLF001 - in its `__all__`; `current_task` raises where no loop runs
    return None if loop is None else asyncio.current_task(loop)


_innermost: ContextVar[_Entered[Any] | None] = ContextVar("dualwrite_innermost_block", default=None)
"""Of all writers together, because contexts never give up a variable. The block may have ended."""


class Blocks(Generic[TxT]):
    """The current block of a writer in each thread, and in each task of a thread."""

    @property
    def current(self) -> TxT | None:
        """The innermost open block among those that this thread, or this task, has entered in this context.

        A context alone is not enough: tasks and threads that a block starts may inherit it, and must not be in the
        block, because two must not use one Session. Nor is a thread: frameworks enter a block in one thread of a pool
        and end it in another, and a task may wait inside the block of a writer for threads.
        """
        entered = _innermost.get()
        if entered is None:
            return None
        thread, task = threading.get_ident(), _current_task()
        while entered is not None:
            tx: TxT | None = entered.tx
            is_here = entered.thread == thread and (entered.task is None or entered.task is task)
            is_here &= entered.generation == this_process.generation  # a forked child inherits thread and context
            if tx is not None and is_here and entered.blocks is self:
                return tx
            entered = entered.outer
        return None


class Block(Generic[BindT, TxT]):
    """The beginning and the end of one block; the same for both faces."""

    __slots__ = ("_bind", "_records", "_tx", "_use", "_writer")

    def __init__(self, writer: _Writer[BindT, TxT], bind: BindT | None) -> None:
        self._writer = writer
        self._bind = bind
        self._records: RecordBuffer | None = None
        self._use: Use | None = None
        self._tx: TxT | None = None
        """Set from the beginning of its database transaction until that is closed."""

    async def begin(self) -> TxT:
        """Begin the block. An error raised here may be about an earlier dual write; this one is rolled back."""
        try:
            assert_unpatched()
            writer = self._writer
            use = self._use = writer.slots.new_use()
            try:
                use.enter()
                await use.get_ready()
                records = self._records = writer.new_records()
                tx = self._tx = await writer.backend.begin(self._bind, records, use)
                records.unwatch = None
            except BaseException:
                use.leave()
                raise
        except BaseException as error:
            note_outcome(error, Outcome.ROLLED_BACK)
            say_of_block(error)
            raise
        return tx

    async def end(self, error: BaseException | None) -> None:
        """Commit or roll back, close, and add a note about the outcome to an interrupting exception."""
        use, tx = self._use, self._tx
        assert use is not None, "the block has begun"
        assert tx is not None, "the block has begun"
        write = tx.progress
        first = error
        try:
            try:
                if error is None:
                    await use.commit(write)
                else:
                    await use.roll_back(write)
            except BaseException as failed:
                first = failed
                raise
            finally:
                if first is None:
                    await self._close(write)
                else:
                    with cleaning_up_after(first):
                        await self._close(write)
        except BaseException as failed:
            tx.tell(failed)
            raise
        finally:
            use.leave()
        if error is not None:
            tx.tell(error)

    async def _close(self, write: DualWriteProgress) -> None:
        write.records.close()
        if not write.database.close_at_once():
            await write.uninterrupted(write.database.close())
        self._tx = None

    async def abandon(self) -> None:
        """Roll back unless the database has decided, close, and release the id, whose next use completes the rest."""
        tx, use = self._tx, self._use
        if tx is not None:
            if tx.progress.outcome is None:
                await tx.progress.database.rollback()
            await self._close(tx.progress)
        elif self._records is not None and self._records.unwatch is not None:
            self._records.unwatch()
        if use is not None:
            use.leave()


def _not_entered(way: str, name: str) -> AttributeError:
    """Return the error for a block used in place of its dual write, which `as` provides."""
    return AttributeError(
        f"transaction() returns a block, and {name!r} belongs to its dual write: write `{way} writer.transaction() as "
        f"tx:` and use tx.{name} inside it",
        name=name,
    )


_ENTERED_TWICE: Final = "this block is already running; nothing was done: call transaction() for each block"


class _BlockingScope(Generic[TxT]):
    """A block of a thread."""

    __slots__ = ("_block", "_blocks", "_entered", "_is_open")

    def __init__(self, blocks: Blocks[TxT], block: Block[Any, TxT]) -> None:
        self._blocks = blocks
        self._block = block
        self._entered: _Entered[TxT] | None = None
        self._is_open = False

    if not TYPE_CHECKING:  # for type checkers this class has no other attributes

        def __getattr__(self, name: str) -> NoReturn:
            raise _not_entered("with", name)

    def __enter__(self) -> TxT:
        if self._is_open:
            raise IllegalStateError(_ENTERED_TWICE)
        try:
            tx = blocking.run(self._block.begin())
            self._entered = _Entered(self._blocks, tx)
            _innermost.set(self._entered)
        except BaseException:
            self._leave()
            blocking.run(self._block.abandon())
            raise
        self._is_open = True  # no interruption can come between here and the block, nor in a `with` before `__exit__`
        return tx

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the block, and finish an end that was interrupted."""
        try:
            self._is_open = False
            self._leave()
            blocking.run(self._block.end(error))
        except BaseException:
            self._leave()
            blocking.run(self._block.abandon())
            raise

    def _leave(self) -> None:
        if self._entered is not None:
            self._entered.leave()

    def __del__(self) -> None:
        # Roll an entered block back, as a generator's would be. An exception may have struck `__init__`.
        if getattr(self, "_is_open", False):
            self.__exit__(None, GeneratorExit(), None)


class _AsyncScope(Generic[TxT]):
    """A block of a task."""

    __slots__ = ("_block", "_blocks", "_entered", "_loop")

    def __init__(self, blocks: Blocks[TxT], block: Block[Any, TxT]) -> None:
        self._blocks = blocks
        self._block = block
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of an entered block; None before and after the block."""

    if not TYPE_CHECKING:  # for type checkers this class has no other attributes

        def __getattr__(self, name: str) -> NoReturn:
            raise _not_entered("async with", name)

    async def __aenter__(self) -> TxT:
        if self._loop is not None:
            raise IllegalStateError(_ENTERED_TWICE)
        tx = await self._block.begin()
        entered = self._entered = _Entered(self._blocks, tx)
        _innermost.set(entered)
        self._loop = None if entered.task is None else entered.task.get_loop()
        return tx

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop = None
        self._entered.leave()
        await self._block.end(error)

    def __del__(self) -> None:
        loop = getattr(self, "_loop", None)
        if loop is not None and not loop.is_closed():  # garbage-collected inside the block: roll back, as for a thread
            self._loop = None
            self._entered.leave()
            loop.call_soon_threadsafe(loop.create_task, self._block.end(GeneratorExit()))


# ---- faces -------------------------------------------------------------------------------------------------------


class _Writer(Generic[BindT, TxT]):
    """The members that all writers have.

    `backend`, `slots`, `new_records` and `producer_settings` are for recipes that extend writers, not for users.
    """

    backend: Backend[BindT, TxT]
    _runtime: type[ThreadRuntime | TaskRuntime]

    def __init__(self, backend: Backend[BindT, TxT], ids: OneId | PoolSettings) -> None:
        self.backend = backend
        self._ids = ids
        self.new_records = ids.new_records
        self.producer_settings = ids.producer_settings
        self.slots = self._new_slots()

    def _new_slots(self) -> Slots:
        """Return slots for this process."""
        ids, backend = self._ids, self.backend
        if isinstance(ids, OneId):
            return SingleId(ids.coordinator(backend.database, backend.waiting))
        return _new_pool(cast("PoolBackend[BindT, TxT]", backend), ids, self._runtime())

    @property
    def is_pool(self) -> bool:
        """Whether this writer has a pool of transactional ids, because it was given `prefix=`."""
        return self._ids.is_pool

    # ---- with transactional_id=; a pool raises IllegalStateError -----------------------------------------------

    @property
    def coordinator(self) -> DualWriteCoordinator:
        """The coordinator of the id's dual writes; for recipes that extend writers."""
        if isinstance(self.slots, PoolCoordinator):
            raise IllegalStateError(
                f"this writer has a pool of transactional ids with prefix {self.prefix!r}, and no single state; "
                "nothing was changed: use `status`, which covers all of them"
            )
        return self.slots.coordinator

    @property
    def transactional_id(self) -> str:
        """The name given to this writer, and the key of its state row."""
        return self.coordinator.transactional_id

    @property
    def kafka_transactional_id(self) -> str | None:
        """The transactional id as Kafka knows it: with the suffix of the database. None before the first use."""
        return self.coordinator.owned.kafka_id

    @property
    def state(self) -> SlotState:
        """The state of the transactional id, as this writer knows it."""
        return self.coordinator.state

    @property
    def in_doubt(self) -> PreparedTxnState:
        """The dual write that the database committed and whose Kafka commit is not confirmed yet; else empty.

        The next `transaction()` with records, or `recover()`, here or in any process, completes it first. In state
        FENCED only the process that took the id over, or a new writer, can do that.
        """
        return self.coordinator.owned.in_doubt

    # ---- with prefix=; a writer with one id raises IllegalStateError -------------------------------------------

    @property
    def pool(self) -> PoolCoordinator:
        """The coordinator of the pool's dual writes; for recipes that extend writers."""
        if not isinstance(self.slots, PoolCoordinator):
            raise IllegalStateError(
                f"this writer has one transactional id, {self.transactional_id!r}, and no pool; nothing was changed: "
                "use `state` and `in_doubt`"
            )
        return self.slots

    @property
    def prefix(self) -> str:
        """The beginning of this pool's transactional ids; a dash and a number follow."""
        return self.pool.prefix

    @property
    def status(self) -> PoolStatus:
        """The current state, and totals since the pool was created. Cheap to read, from any thread."""
        return self.pool.status()


class ThreadWriter(_Writer[BindT, TxT]):
    """The face for threads."""

    _runtime = ThreadRuntime

    def __init__(self, backend: Backend[BindT, TxT], ids: OneId | PoolSettings) -> None:
        super().__init__(backend, ids)
        self.blocks: Blocks[TxT] = Blocks()
        if self.is_pool:
            self._of_parents: list[PoolCoordinator] = []
            weakref.finalize(self, self.pool.forget)
            _pools.add(self)

    def begin_life_of_child(self) -> None:
        """Leave everything of a pool to the parent, and create slots for this forked process."""
        self.pool.leave_to_parent()
        self._of_parents.append(self.pool)  # kept, so that garbage collection closes none of its connections
        self.slots = self._new_slots()
        weakref.finalize(self, self.pool.forget)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def scope(self, bind: BindT | None = None) -> AbstractContextManager[TxT]:
        """Return the block that `transaction()` documents."""
        return _BlockingScope(self.blocks, Block(self, bind))

    @property
    def transactional(self) -> Transactional[TxT]:
        """Decorates a function whose call is a dual write: `@writer.transactional`, or with settings."""
        return Transactional(self)

    def recover(self) -> list[Resolution]:
        """Complete transactions left open, and return each one found and its outcome; harmless at any time.

        With one id: complete its transaction by the row, which also tells the outcome of a commit that raised
        OutcomeUnknown. This fences a live owner of the id. Several processes may call it at the same time: the row lock
        makes them queue, and the later ones find no open transaction. Raises RowLockTimeoutError while a database
        transaction holds the row; OutcomeUnknown while the database cannot be queried, or if a later dual write of
        another process has replaced the row; and RetriableError if Kafka has not confirmed records that were published
        again: repeat the call, in a new writer if this one was fenced.

        A pool completes those ids of its prefix that no live process leases. The background does the same continuously;
        a dead process is detected by its lease, at most `lease_ms` after its death. If some ids cannot be recovered
        now, the others still are; then the first error is raised.
        """
        return blocking.run(self.slots.recover())

    def close(self, timeout_s: float = 30.0) -> None:
        """Accept no new blocks, wait at most `timeout_s` seconds for running ones, and give up the ids. Idempotent.

        A last dual write that Kafka has confirmed is settled in the state row, by one short transaction.

        With one id: raises IllegalStateError, and closes nothing, if a block of another thread takes longer, or inside
        a block of this thread. A dual write in doubt stays so, safely, until the id is next used or recovered.

        For a pool, the remaining time is for one attempt at each dual write in doubt, and for one dead process's id if
        the background has not looked for them yet, unless Kafka is known to be away. Those that stay in doubt are safe,
        and are recovered by the other processes, or the next one.
        """
        blocking.run(self.slots.close(timeout_s))
        blocking.run(self.backend.close())


class TaskWriter(_Writer[BindT, TxT]):
    """The face for asyncio."""

    _runtime = TaskRuntime

    def __init__(self, backend: Backend[BindT, TxT], ids: OneId | PoolSettings) -> None:
        super().__init__(backend, ids)
        self.blocks: Blocks[TxT] = Blocks()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def scope(self, bind: BindT | None = None) -> AbstractAsyncContextManager[TxT]:
        """Return the block that `transaction()` documents."""
        return _AsyncScope(self.blocks, Block(self, bind))

    @property
    def transactional(self) -> AsyncTransactional[TxT]:
        """Decorates a coroutine function whose call is a dual write: `@writer.transactional`, or with settings."""
        return AsyncTransactional(self)

    async def recover(self) -> list[Resolution]:
        """Complete transactions left open, and return each one found and its outcome; harmless at any time.

        As `DualWriter.recover`; it also tells the outcome of a commit that was cancelled. Cancelling it loses nothing:
        the next call completes the rest.
        """
        return await self.slots.recover()

    async def close(self, timeout_s: float = 30.0) -> None:
        """Accept no new blocks, wait at most `timeout_s` seconds for running ones, and give up the ids. Idempotent.

        As `DualWriter.close`, with tasks in place of threads. A block that was cancelled runs until it is rolled back.
        """
        await self.slots.close(timeout_s)
        await self.backend.close()


# ---- pools -------------------------------------------------------------------------------------------------------


def _new_pool(backend: PoolBackend[BindT, TxT], settings: PoolSettings, runtime: Runtime) -> PoolCoordinator:
    """Return a coordinator with its own slots, leases and background, on connections of this process alone."""
    backend.begin_life()
    availability = settings.new_availability(backend.waiting)

    def leases_of(prefix: str) -> Leases:
        return backend.leases(prefix, owner=settings.new_owner(), lease_ms=settings.lease_ms)

    def new_outbox(counts: Counts) -> OutboxPublisher:
        leases = leases_of(outbox_prefix_of(settings.prefix))
        return settings.new_outbox(backend.outbox, backend.waiting, availability, leases, runtime, counts)

    leases = leases_of(settings.prefix)
    return PoolCoordinator(
        settings,
        leases=leases,
        new_coordinator=settings.coordinator_maker(backend.database, backend.waiting, availability, leases),
        availability=availability,
        runtime=runtime,
        leases_inside_blocks=backend.leases_inside_blocks,
        connect_first=backend.connect_first,
        new_outbox=None if settings.outbox is None else new_outbox,
    )


_pools: weakref.WeakSet[ThreadWriter[Any, Any]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for pool in list(_pools):
        pool.begin_life_of_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
