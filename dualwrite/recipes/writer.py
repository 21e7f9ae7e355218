"""The writers: two interfaces (for threads and for asyncio) over any backend and either slot policy.

Users call a face (`ThreadFace`, `TaskFace`). A `Backend` (SQLAlchemy, psycopg, RocksDB, ZooKeeper) begins the database
transaction of a block and creates the handle for the block. A slot policy determines the transactional id under which
the block is committed: `OneId` a fixed one, `PoolSettings` leased ones. The public classes (`DualWriter`,
`PsycopgDualWriterPool`, ...) combine a backend with a policy, and are defined in the folders of their backends.
`capabilities.py` lists what a backend cannot do.

May import `core`, `pool`, `transactional.py` and `capabilities.py`; knows no database library.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Protocol, Self, TypeVar

from dualwrite.delivery import Outbox
from dualwrite.errors import ConfigError, IllegalStateError
from dualwrite.guarded import cleaning_up_after
from dualwrite.monkey_patches import assert_unpatched
from dualwrite.outcome import Outcome, note_outcome
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.capabilities import BackendName
from dualwrite.recipes.core import blocking
from dualwrite.recipes.core.availability import Availability
from dualwrite.recipes.core.block_words import say_of_block
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.coordinator import DualWriteCoordinator
from dualwrite.recipes.core.dual_write import DualWrite, DualWriteProgress, Resolution
from dualwrite.recipes.core.leases import Leases, checked_single_id, outbox_prefix_of
from dualwrite.recipes.core.repairability import Repairability
from dualwrite.recipes.core.settings import (
    KafkaSettings,
    WritingSettings,
    checked_delivery,
    store_policy,
)
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.core.store import Database, OutboxDatabase
from dualwrite.recipes.core.task_turns import TaskTurns
from dualwrite.recipes.core.waiting import Waiting
from dualwrite.recipes.pool.coordinator import BeginsAnewInChildren, PoolCoordinator
from dualwrite.recipes.pool.outbox_publisher import OutboxPublisher
from dualwrite.recipes.pool.runtime import Runtime, TaskRuntime, ThreadRuntime
from dualwrite.recipes.pool.settings import PoolSettings
from dualwrite.recipes.pool.status import Counts, PoolStatus
from dualwrite.recipes.transactional import AsyncTransactional, Transactional

BindT_contra = TypeVar("BindT_contra", contravariant=True)
BindT = TypeVar("BindT")
TxT = TypeVar("TxT", bound=DualWrite)
TxT_co = TypeVar("TxT_co", bound=DualWrite, covariant=True)


class Use(Protocol):
    """One block's use of a transactional id."""

    def enter(self) -> None:
        """Begin the use. The caller must `leave` even if this raises IllegalStateError or FencedError."""

    @property
    def needs_slot_early(self) -> bool:
        """Whether `take_slot` must be called before a transaction takes the snapshot that it keeps."""

    async def get_ready(self) -> None:
        """Do what must come before the block's database transaction."""

    async def take_slot(self) -> None:
        """Acquire a transactional id."""

    async def commit(self, write: DualWriteProgress) -> None:
        """Commit both sides, or roll back both and raise the reason."""

    async def roll_back(self, write: DualWriteProgress) -> None:
        """Roll back both sides."""

    def leave(self) -> None:
        """Release the id for other blocks; harmless when repeated."""


class Slots(Protocol):
    """A slot policy in operation: assigns transactional ids to the dual writes of one writer."""

    @property
    def leases_at_commit(self) -> bool:
        """Whether an id may have to be leased while a database transaction is about to commit."""

    def new_use(self) -> Use:
        """Return what a block uses; it acquires nothing before its `enter`."""

    async def get_ready_for_sessions(self) -> None:
        """Prepare what cannot be prepared once a Session's transaction has begun. Costs nothing when repeated."""

    async def commit_in_turn(self, write: DualWriteProgress) -> None:
        """Commit a dual write of a Session, or roll back both sides and raise the reason."""


class Backend(Protocol[BindT_contra, TxT_co]):
    """A database: begins its transactions and creates the handles for blocks."""

    @property
    def name(self) -> BackendName: ...

    @property
    def database(self) -> Database:
        """The database with the state rows; for a pool, a separate object in each process."""

    @property
    def waiting(self) -> Waiting: ...

    async def begin(self, bind: BindT_contra | None, records: RecordBuffer, use: Use) -> TxT_co:
        """Begin the transaction of a block, on `bind` or on one of the backend's own connections.

        If the connection keeps a snapshot and `use.needs_slot_early`, call `use.take_slot` first. On an error, close
        everything that was opened here.
        """

    async def close(self) -> None:
        """Close what the backend keeps open."""


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
        """Whether a lease can be taken while a block of this process has written something."""

    @property
    def connect_first(self) -> Callable[[], Awaitable[None]] | None:
        """A function to await before the first lease; None if there is none."""


class OneId:
    """The slot policy "one fixed transactional id". Raises ConfigError for unknown or malformed settings."""

    def __init__(self, transactional_id: str, settings: Mapping[str, Any]) -> None:
        self.writing, producer_settings = WritingSettings.taken_from(settings)
        delivery = checked_delivery(self.writing.delivery)
        if isinstance(delivery, Outbox):
            raise ConfigError(
                "delivery=Outbox() needs a pool, whose processes take turns in publishing: make one with prefix=... in "
                "place of transactional_id=..."
            )
        kafka = KafkaSettings(transactional_id, producer_settings)
        self._transactional_id = checked_single_id(kafka.transactional_id)
        self.producer_settings: Final = kafka.producer
        self._cluster = kafka.cluster()
        self.new_records: Final = partial(
            RecordBuffer, self.writing.max_buffered_bytes, kafka.serializers, kafka.tracer
        )
        self._policy = store_policy(kafka, delivery)

    def coordinator(self, database: Database, waiting: Waiting) -> DualWriteCoordinator:
        """Return the coordinator of the id on `database`."""
        return DualWriteCoordinator(
            self._transactional_id,
            database=database,
            kafka=waiting.new_kafka(self.producer_settings),
            sleep=waiting.sleep,
            lock_timeout_ms=self.writing.lock_timeout_ms,
            resolve_timeout_ms=self.writing.resolve_timeout_ms,
            pause=self.writing.pause,
            uninterrupted=waiting.uninterrupted,
            policy=self._policy,
            repairability=Repairability(),
            availability=Availability(self._cluster, waiting.new_watch()),
        )


# ---- blocks ------------------------------------------------------------------------------------------------------


class ThreadBlocks(Generic[TxT]):
    """The current block of a writer in each thread."""

    def __init__(self) -> None:
        self.of_thread: Final = threading.local()
        """Has an attribute `tx` inside a block."""

    @property
    def current(self) -> TxT | None:
        """The innermost block of this thread."""
        tx: TxT | None = getattr(self.of_thread, "tx", None)
        return tx


class TaskBlocks(Generic[TxT]):
    """The current block of a writer in each task.

    Keyed by task, because tasks that a block starts would inherit a context variable. They must not be in the block:
    two tasks must not use one Session.
    """

    def __init__(self) -> None:
        # Keyed by id(): WeakKeyDictionary is slow. The reference detects that a later task has reused the id.
        self._of_task: dict[int, tuple[weakref.ref[asyncio.Task[Any]], TxT]] = {}

    @property
    def current(self) -> TxT | None:
        """The innermost block of this task."""
        task = asyncio.current_task()
        found = self._of_task.get(id(task))
        return found[1] if found is not None and found[0]() is task else None

    def move(self, task: asyncio.Task[Any], tx: TxT | None) -> TxT | None:
        """Make the block of `tx` the current one of `task`, and return the previous one."""
        found = self._of_task.pop(id(task), None)
        if tx is not None:
            self._of_task[id(task)] = (weakref.ref(task), tx)
        return found[1] if found is not None and found[0]() is task else None


async def _begin(block: Block[Any, TxT]) -> TxT:
    """Begin a block. An error of an earlier dual write, which may be raised here, says nothing of this one."""
    try:
        return await block.begin()
    except BaseException as error:
        note_outcome(error, Outcome.ROLLED_BACK)
        say_of_block(error)
        raise


class Block(Generic[BindT, TxT]):
    """The beginning and the end of one block; the same for both faces."""

    __slots__ = ("_bind", "_tx", "_use", "_writer")

    def __init__(self, writer: _Writer[BindT, TxT], bind: BindT | None) -> None:
        self._writer = writer
        self._bind = bind
        self._use: Use | None = None
        self._tx: TxT | None = None
        """From the beginning of its database transaction until that is closed."""

    async def begin(self) -> TxT:
        assert_unpatched()
        writer = self._writer
        use = self._use = writer.slots.new_use()
        try:
            use.enter()
            await use.get_ready()
            tx = self._tx = await writer.backend.begin(self._bind, writer.new_records(), use)
        except BaseException:
            use.leave()
            raise
        return tx

    async def end(self, error: BaseException | None) -> None:
        """Commit or roll back, close what was opened, and add a note about the outcome to an interrupting exception."""
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
        """Roll the database back unless it has decided, close, and release the id.

        What Kafka has of the block is completed by the row, by the next use of the id.
        """
        tx, use = self._tx, self._use
        if tx is not None:
            if tx.progress.outcome is None:
                await tx.progress.database.rollback()
            await self._close(tx.progress)
        if use is not None:
            use.leave()


def _not_entered(way: str, name: str) -> AttributeError:
    """Return the error for a block that is used as if it were the dual write, which only `as` gives."""
    return AttributeError(
        f"{name!r} belongs to the dual write, which `{way} ... as` gives, and transaction() returns only the block: "
        f"write `{way} writer.transaction() as tx:` and, inside it, tx.{name}",
        name=name,
    )


_ENTERED_TWICE: Final = "this block is already running; nothing was done: call transaction() for each block"


class _BlockingScope(Generic[TxT]):
    """A block of a thread."""

    __slots__ = ("_block", "_blocks", "_is_open", "_outer", "_tx")

    def __init__(self, blocks: ThreadBlocks[TxT], block: Block[Any, TxT]) -> None:
        self._blocks = blocks
        self._block = block
        self._is_open = False

    if not TYPE_CHECKING:  # for type checkers this class has no other attributes

        def __getattr__(self, name: str) -> NoReturn:
            raise _not_entered("with", name)

    def __enter__(self) -> TxT:
        if self._is_open:
            raise IllegalStateError(_ENTERED_TWICE)
        of_thread = self._blocks.of_thread
        self._outer: TxT | None = getattr(of_thread, "tx", None)
        try:
            tx = self._tx = of_thread.tx = blocking.run(_begin(self._block))
        except BaseException:
            blocking.run(self._block.abandon())
            raise
        self._is_open = True  # nothing can strike between here and the block, nor in a `with` before its `__exit__`
        return tx

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        """End the block, and once more what an interruption has left of it."""
        try:
            self._is_open = False
            self._leave_thread()
            blocking.run(self._block.end(error))
        except BaseException:
            self._leave_thread()
            blocking.run(self._block.abandon())
            raise

    def _leave_thread(self) -> None:
        of_thread = self._blocks.of_thread
        if getattr(of_thread, "tx", None) is self._tx:  # the block may end, or be collected, in another thread
            of_thread.tx = self._outer

    def __del__(self) -> None:
        if self._is_open:  # garbage-collected inside the block: roll back, as a generator's block would
            self._end(GeneratorExit())


class _AsyncScope(Generic[TxT]):
    """A block of a task."""

    __slots__ = ("_block", "_blocks", "_loop", "_outer", "_task")

    def __init__(self, blocks: TaskBlocks[TxT], block: Block[Any, TxT]) -> None:
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
        tx = await _begin(self._block)
        self._task = asyncio.current_task()
        if self._task is not None:
            self._loop = self._task.get_loop()
            self._outer = self._blocks.move(self._task, tx)
        return tx

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop = None
        if self._task is not None:
            self._blocks.move(self._task, self._outer)
        await self._block.end(error)

    def __del__(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():  # garbage-collected inside the block: roll back, as for a thread
            self._loop = None
            assert self._task is not None, "the loop was taken from the task"
            self._blocks.move(self._task, self._outer)
            loop.call_soon_threadsafe(loop.create_task, self._block.end(GeneratorExit()))


# ---- faces and slot policies -------------------------------------------------------------------------------------


class _Writer(Generic[BindT, TxT]):
    """The members that all writers have.

    These four attributes are for recipes that extend writers, not for users.
    """

    backend: Backend[BindT, TxT]
    slots: Slots
    new_records: Callable[[], RecordBuffer]
    producer_settings: Mapping[str, Any]


class ThreadFace(_Writer[BindT, TxT]):
    """The face for threads."""

    blocks: ThreadBlocks[TxT]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back what the writer has."""
        raise NotImplementedError

    def scope(self, bind: BindT | None = None) -> AbstractContextManager[TxT]:
        """Return the block that `transaction()` documents."""
        return _BlockingScope(self.blocks, Block(self, bind))

    @property
    def transactional(self) -> Transactional[TxT]:
        """Decorates a function whose call is a dual write: `@writer.transactional`, or with settings; see there."""
        return Transactional(self)


class TaskFace(_Writer[BindT, TxT]):
    """The face for asyncio."""

    blocks: TaskBlocks[TxT]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give back what the writer has."""
        raise NotImplementedError

    def scope(self, bind: BindT | None = None) -> AbstractAsyncContextManager[TxT]:
        """Return the block that `transaction()` documents."""
        return _AsyncScope(self.blocks, Block(self, bind))

    @property
    def transactional(self) -> AsyncTransactional[TxT]:
        """Decorates a coroutine function whose call is a dual write: `@writer.transactional`, or with settings."""
        return AsyncTransactional(self)


class _OneIdWriter(_Writer[BindT, TxT]):
    """A writer under one fixed transactional id."""

    def __init__(self, backend: Backend[BindT, TxT], one_id: OneId) -> None:
        self.backend = backend
        self.new_records = one_id.new_records
        self.producer_settings = one_id.producer_settings
        self.coordinator: Final = one_id.coordinator(backend.database, backend.waiting)

    @property
    def transactional_id(self) -> str:
        """The name given to this writer, which is also the key of its state row."""
        return self.coordinator.transactional_id

    @property
    def kafka_transactional_id(self) -> str | None:
        """The transactional id as Kafka knows it: with the suffix of the database. None before the first use."""
        return self.coordinator.kafka_transactional_id

    @property
    def state(self) -> SlotState:
        """What this writer knows about its transactional id."""
        return self.coordinator.state

    @property
    def in_doubt(self) -> PreparedTxnState:
        """The dual write that the database committed and whose Kafka commit is not confirmed yet; else empty.

        The next `transaction()` with records, or `recover()`, here or in any process, completes it first. In state
        FENCED that is for the process that took the id over, or for a new writer.
        """
        return self.coordinator.in_doubt


class OneIdWriter(_OneIdWriter[BindT, TxT], ThreadFace[BindT, TxT]):
    """The face for threads, under one transactional id."""

    def __init__(self, backend: Backend[BindT, TxT], one_id: OneId) -> None:
        super().__init__(backend, one_id)
        self.slots = self.coordinator
        self.blocks = ThreadBlocks()

    def recover(self) -> Resolution:
        """Complete what a crash left open under this transactional id, by the row; harmless at any time.

        This fences a live owner of the id. Several processes may call it at the same time: the row lock makes them
        queue, and the later ones find nothing to do. Raises RowLockTimeoutError while a database transaction holds
        the row, and RetriableError if Kafka has not confirmed what was published again: repeat the call, in a new
        writer if this one was fenced.
        """
        with self.coordinator.exclusively():
            return blocking.run(self.coordinator.recover())

    def resolve(self) -> Resolution:
        """Read the outcome of the commit that raised OutcomeUnknown, and complete Kafka's transaction accordingly.

        Raises OutcomeUnknown again while the database cannot be queried, or if a later dual write of another process
        has replaced the row. With nothing unresolved it does the same as `recover()`.
        """
        return self.recover()

    def close(self) -> None:
        """Give up the transactional id. What is in doubt stays so, safely, until the id is next used or recovered."""
        blocking.run(self.coordinator.close())
        self.coordinator.owned.availability.close()
        blocking.run(self.backend.close())


class AsyncOneIdWriter(_OneIdWriter[BindT, TxT], TaskFace[BindT, TxT]):
    """The face for asyncio, under one transactional id."""

    def __init__(self, backend: Backend[BindT, TxT], one_id: OneId) -> None:
        super().__init__(backend, one_id)
        self.slots: TaskTurns = TaskTurns(self.coordinator)
        self.blocks = TaskBlocks()

    async def recover(self) -> Resolution:
        """Complete what a crash left open under this transactional id, by the row; harmless at any time.

        As `DualWriter.recover`. Cancelling it loses nothing: the next call does the rest.
        """
        self.slots.enter()
        try:
            return await self.coordinator.recover()
        finally:
            self.slots.leave()

    async def resolve(self) -> Resolution:
        """Read the outcome of a commit that raised OutcomeUnknown or was cancelled, and complete Kafka's transaction.

        As `DualWriter.resolve`.
        """
        return await self.recover()

    async def close(self, timeout_s: float = 30.0) -> None:
        """Accept no new blocks, wait at most `timeout_s` seconds for one of another task, and give up the id.

        A block that was cancelled is one until it is rolled back. Raises IllegalStateError, and closes nothing, if it
        takes longer, or inside a block of this task. Idempotent. What is in doubt stays so, safely, until the id is
        next used or recovered.
        """
        await self.slots.close(timeout_s)
        self.coordinator.owned.availability.close()
        await self.backend.close()


class _PooledWriter(_Writer[BindT, TxT]):
    """A writer under leased transactional ids."""

    backend: PoolBackend[BindT, TxT]
    coordinator: PoolCoordinator

    def __init__(self, backend: PoolBackend[BindT, TxT], settings: PoolSettings) -> None:
        self.backend = backend
        self.settings: Final = settings
        self.new_records = settings.new_records
        self.producer_settings = settings.producer_settings

    def new_coordinator(self) -> PoolCoordinator:
        """Return a new coordinator for this process, with its own slots, leases and background task."""
        backend, settings, runtime = self.backend, self.settings, self._new_runtime()
        backend.begin_life()
        availability = settings.new_availability(backend.waiting)
        leases = backend.leases(settings.prefix, owner=settings.new_owner(), lease_ms=settings.lease_ms)
        self.slots = PoolCoordinator(
            settings,
            leases=leases,
            new_coordinator=settings.coordinator_maker(backend.database, backend.waiting, availability, leases),
            availability=availability,
            runtime=runtime,
            leases_inside_blocks=backend.leases_inside_blocks,
            connect_first=backend.connect_first,
            new_outbox=None if settings.outbox is None else partial(self._new_outbox, availability, runtime),
        )
        return self.slots

    def _new_outbox(self, availability: Availability, runtime: Runtime, counts: Counts) -> OutboxPublisher:
        backend, settings = self.backend, self.settings
        prefix = outbox_prefix_of(settings.prefix)
        leases = backend.leases(prefix, owner=settings.new_owner(), lease_ms=settings.lease_ms)
        return settings.new_outbox(backend.outbox, backend.waiting, availability, leases, runtime, counts)

    def _new_runtime(self) -> Runtime:
        raise NotImplementedError

    @property
    def prefix(self) -> str:
        """What the transactional ids of this pool begin with; a dash and a number follow."""
        return self.settings.prefix

    @property
    def status(self) -> PoolStatus:
        """The current state, and totals since the pool was created. Cheap to read, from any thread."""
        return self.coordinator.status()


class PooledWriter(_PooledWriter[BindT, TxT], BeginsAnewInChildren, ThreadFace[BindT, TxT]):
    """The face for threads, under leased transactional ids."""

    def __init__(self, backend: PoolBackend[BindT, TxT], settings: PoolSettings) -> None:
        super().__init__(backend, settings)
        self.blocks = ThreadBlocks()
        self.begin_life()

    def _new_runtime(self) -> Runtime:
        return ThreadRuntime()

    def recover(self) -> list[Resolution]:
        """Complete what was left open under those ids of this prefix that no live process leases; harmless at any time.

        Return each transaction found and its outcome. The background does the same continuously; a dead process is
        detected by its lease, at most `lease_ms` after its death. If some ids cannot be recovered now, the others still
        are; then the first error is raised.
        """
        return blocking.run(self.coordinator.recover())

    def close(self, timeout_s: float = 30.0) -> None:
        """Accept no new blocks, wait at most `timeout_s` seconds for running ones, and release all ids.

        Idempotent. What remains of the time is for one attempt at each dual write in doubt, unless Kafka is known to be
        away; what stays so does it safely, and is recovered by the other processes, or the next one.
        """
        blocking.run(self.coordinator.close(timeout_s))
        blocking.run(self.backend.close())


class AsyncPooledWriter(_PooledWriter[BindT, TxT], TaskFace[BindT, TxT]):
    """The face for asyncio, under leased transactional ids."""

    def __init__(self, backend: PoolBackend[BindT, TxT], settings: PoolSettings) -> None:
        super().__init__(backend, settings)
        self.blocks = TaskBlocks()
        self.coordinator = self.new_coordinator()

    def _new_runtime(self) -> Runtime:
        return TaskRuntime()

    async def recover(self) -> list[Resolution]:
        """Complete what was left open under those ids of this prefix that no live process leases; harmless at any time.

        As `DualWriterPool.recover`.
        """
        return await self.coordinator.recover()

    async def close(self, timeout_s: float = 30.0) -> None:
        """Accept no new blocks, wait at most `timeout_s` seconds for running ones, and release all ids.

        As `DualWriterPool.close`.
        """
        await self.coordinator.close(timeout_s)
        await self.backend.close()
