"""`AsyncPsycopgGroupCommit`: commit the dual writes of many tasks in groups, with one commit on each side.

    async with AsyncPsycopgDualWriterPool("dbname=shop", prefix="orders", bootstrap_servers=...) as pool:
        async with AsyncPsycopgGroupCommit(pool) as group_commit:
            async with group_commit.transaction() as tx:  # in any task
                await tx.connection.execute("INSERT INTO orders VALUES (%s, %s)", (1, "lamp"))
                tx.send("orders", key=..., value=...)

Here a block is a unit: it has the connection to itself until it ends, and then waits until its group is committed.
Units that arrive while others run join their group, one after the other; those that arrive while groups commit form
the next one. So a single unit is an ordinary dual write, and the more units arrive at the same time, the less each
pays for the row lock, the commits and Kafka's transaction.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count, islice
from types import TracebackType
from typing import Any, Final, Self

import psycopg

from dualwrite.async_producer import AsyncProducer
from dualwrite.client.admin.results import TopicDescription
from dualwrite.errors import ConfigError, IllegalStateError, PoolTimeoutError
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.capabilities import Feature, assert_can
from dualwrite.recipes.core.buffer import BufferedOffsets, BufferedRecord, RecordBuffer
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.dual_write import DualWrite
from dualwrite.recipes.psycopg.transaction import PsycopgTransaction
from dualwrite.recipes.psycopg.writer_async import AsyncPsycopgDualTransaction, AsyncPsycopgDualWriterPool

__all__ = ["AsyncPsycopgGroupCommit", "GroupedDualWrite"]

_numbers = count(1)

# PostgreSQL caches up to 64 subtransactions of a transaction in shared memory; beyond that, taking a snapshot becomes
# slower for every session.
MOST_UNITS: Final = 64


class GroupedDualWrite:
    """One unit; what `AsyncPsycopgGroupCommit.transaction()` yields. Usable until its block ends."""

    def __init__(self, group: _Group, tx: AsyncPsycopgDualTransaction) -> None:
        self._group = group
        self._tx = tx
        self.is_running = True

    @property
    def _running(self) -> AsyncPsycopgDualTransaction:
        if not self.is_running:
            raise IllegalStateError(
                "this unit has ended, and its connection may serve another; nothing was done: send and execute inside "
                "the `async with` block that it belongs to"
            )
        return self._tx

    @property
    def connection(self) -> psycopg.AsyncConnection[Any]:
        """The group's connection, exclusive to this unit until its block ends.

        `connection.transaction()` is a savepoint. Raises IllegalStateError after the block.
        """
        return self._running.connection

    @property
    def group(self) -> int:
        """The number of its group in this process; `dualwrite-group-N` is the name of the task that commits it."""
        return self._group.number

    @property
    def transactional_id(self) -> str | None:
        """As `DualWrite.transactional_id`, of the group."""
        return self._tx.transactional_id

    @property
    def prepared_state(self) -> PreparedTxnState:
        """As `DualWrite.prepared_state`, of the group."""
        return self._tx.prepared_state

    @property
    def outcome(self) -> Outcome | None:
        """As `DualWrite.outcome`, of the group; ROLLED_BACK for a unit that was rolled back by itself."""
        return Outcome.ROLLED_BACK if self in self._group.undone else self._tx.outcome

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> BufferedRecord:
        """Send as `DualWrite.send` does; a record that is refused dooms the unit, and not its group."""
        return self._running.send(topic, value, key, headers, partition, timestamp_ms)

    def send_offsets(self, offsets: Mapping[Any, Any] | Iterable[Any], group_metadata: Any) -> None:
        """Commit consumed offsets with the unit, as `DualWrite.send_offsets`."""
        self._running.send_offsets(offsets, group_metadata)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[Self]:
        """Begin a part that may fail by itself, as `PsycopgDualTransaction.savepoint`."""
        async with self._running.savepoint():
            yield self


class AsyncPsycopgGroupCommit:
    """Commits dual writes of `pool` in groups of at most `max_units`; at most `max_groups` groups are open at a time.

    It is meant for short units from many concurrent tasks. Either all units of a group are committed, or none; a unit
    that fails is undone by itself and its group goes on. So is one that could not be repaired on these brokers
    (UnsupportedByBrokerError), except before the first commit of a process, which finds out what they are. The units
    run one after the other on one connection. So a unit sees what earlier ones wrote, a slow unit delays all others, a
    row stays locked until the group is committed, and `now()` is the time at which the group began.

    Requires READ COMMITTED: with an older snapshot a unit would not see what was committed before it began. Belongs to
    the event loop in which it is used; the caller keeps the pool and closes it. Raises ConfigError.
    """

    def __init__(self, pool: AsyncPsycopgDualWriterPool, *, max_units: int = 32, max_groups: int = 2) -> None:
        if not 1 <= max_units <= MOST_UNITS:
            raise ConfigError(f"max_units must be 1 to {MOST_UNITS}, not {max_units}")
        if max_groups < 1:
            raise ConfigError(f"max_groups must be at least 1, not {max_groups}")
        assert_can(pool.backend.name, Feature.GROUP_COMMIT)
        self._groups: Final = _Groups(pool, max_units=max_units, max_groups=max_groups)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Accept no new units, and wait for those that run or are queued. The pool is not closed."""
        await self._groups.close()

    def transaction(self) -> AbstractAsyncContextManager[GroupedDualWrite]:
        """Run a block as a unit of a group: leaving it waits until both sides are committed.

        An exception that leaves the block rolls back this unit only. Raises what the block raises; if the group fails,
        what `AsyncPsycopgDualWriterPool.transaction` raises, in each of its units; IllegalStateError after `close`,
        inside another unit, or if the connection's isolation level is not READ COMMITTED; PoolTimeoutError if the unit
        did not get its turn within the pool's `acquire_timeout_ms`.

        A cancellation inside the block counts as an exception of the block. One that arrives while the group commits
        is raised at once, and the group goes on; `tx.outcome` has the result later.
        """
        return _UnitBlock(self._groups)


class _Groups:
    """The groups of one `AsyncPsycopgGroupCommit`, and the queue of units for the next one."""

    def __init__(self, pool: AsyncPsycopgDualWriterPool, *, max_units: int, max_groups: int) -> None:
        self._pool: Final = pool
        self._max_units: Final = max_units
        self._max_groups: Final = max_groups
        self._waiting: deque[_Turn] = deque()
        self._groups: set[asyncio.Task[None]] = set()
        self._collects = False
        """Whether one of the groups accepts units; the others commit."""
        self.running: set[asyncio.Task[Any] | None] = set()
        self._repairability: Final = pool.settings.repairability
        self._look_up: Final = _TopicLookUp(pool.settings.connection)
        self._expiry: asyncio.TimerHandle | None = None
        self._is_closed = False

    async def close(self) -> None:
        """Accept no new units, and wait for those that run or are queued. The pool is not closed."""
        self._is_closed = True
        while self._groups:
            await asyncio.wait(self._groups)
        if self._expiry is not None:
            self._expiry.cancel()
        await self._look_up.close()

    async def assert_repairable(self, group: _Group) -> None:
        """Raise UnsupportedByBrokerError if a broker may abort what the running unit sends, and it were lost then.

        Before the first commit of this process it is not known whether brokers do; then the whole group is refused.
        """
        if self._repairability.bounded is not None:
            await self._repairability.check_early(group.entries_of_unit, self._look_up)

    # ---- turns ----------------------------------------------------------------------------------------------

    def request_turn(self) -> _Turn:
        if asyncio.current_task() in self.running:
            raise IllegalStateError(
                "this task is inside a unit already, and another one would wait for it; nothing was written: write and "
                "send everything in one block, with tx.savepoint() for a part that may fail by itself"
            )
        if self._is_closed:
            raise IllegalStateError("this group commit is closed; nothing was written: make a new one")
        turn = _Turn(asyncio.get_running_loop())
        self._waiting.append(turn)
        self._keep_time()
        self._begin_group()
        return turn

    def _keep_time(self) -> None:
        """Keep one timer for all waiting units: the first one has waited longest."""
        if self._expiry is None and self._waiting:
            loop = asyncio.get_running_loop()
            self._expiry = loop.call_at(self._waiting[0].requested_s + self._acquire_timeout_s, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        now_s = asyncio.get_running_loop().time()
        while self._waiting and self._waiting[0].requested_s + self._acquire_timeout_s <= now_s:
            self._waiting.popleft().refuse(self._timeout())
        self._keep_time()

    @property
    def _acquire_timeout_s(self) -> float:
        return self._pool.settings.acquire_timeout_ms / 1000

    def _timeout(self) -> PoolTimeoutError:
        return PoolTimeoutError(
            f"no group took this unit within {self._pool.settings.acquire_timeout_ms} ms: {len(self._groups)} "
            f"of {self._max_groups} groups are open, and {len(self._waiting)} more units are waiting; nothing "
            "was written: try again later, make units shorter, or raise max_groups or acquire_timeout_ms"
        )

    def give_up(self, turn: _Turn) -> None:
        """Withdraw a turn whose task was interrupted, possibly at the moment at which the turn was granted."""
        if turn in self._waiting:
            self._waiting.remove(turn)
        if turn.group is not None:
            turn.group.unit_ended(undo=True)

    # ---- groups ---------------------------------------------------------------------------------------------

    def _begin_group(self) -> None:
        """Begin a group if units are waiting, no group collects them, and `max_groups` allows one more."""
        if not self._waiting or self._collects or len(self._groups) >= self._max_groups:
            return
        self._collects = True
        group = _Group(next(_numbers), self._waiting, self._max_units)
        task = asyncio.get_running_loop().create_task(self._carry_out(group), name=f"dualwrite-group-{group.number}")
        self._groups.add(task)
        task.add_done_callback(self._group_ended)

    def _group_ended(self, task: asyncio.Task[None]) -> None:
        self._groups.discard(task)
        self._begin_group()

    async def _carry_out(self, group: _Group) -> None:
        try:
            async with self._pool.transaction() as tx:
                await self._assert_sees_now(tx)
                group.begin(tx)
                try:
                    await group.collect()
                finally:
                    self._collects = False
                    self._begin_group()
            group.end(None)
        except _NothingLeftError:
            group.end(None)
        except BaseException as error:
            if group.tx is None:
                self._refuse_waiting(error)
            group.end(error)
            if not isinstance(error, Exception):
                raise
        finally:
            if group.tx is None:
                self._collects = False

    async def _assert_sees_now(self, tx: AsyncPsycopgDualTransaction) -> None:
        if await self._pool.backend.database.keeps_a_snapshot(tx.connection):
            raise IllegalStateError(
                "the connection's isolation level keeps a snapshot, in which a unit would not see what was committed "
                "after its group began; nothing was written: use READ COMMITTED, or pool.transaction(), which runs "
                "each dual write in its own database transaction"
            )

    def _refuse_waiting(self, error: BaseException) -> None:
        """Refuse all waiting units: a group could not begin, and another attempt would fail as well."""
        while self._waiting:
            self._waiting.popleft().refuse(error)


class _TopicLookUp:
    """Looks topics up over a connection of its own, because a group has none before it is committed."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._producer: AsyncProducer | None = None

    async def __call__(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        if self._producer is None:
            self._producer = AsyncProducer(**self._settings)
        return await self._producer.describe_topics(topics)

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close(timeout_s=0)


class _UnitBlock:
    """The block around one unit."""

    def __init__(self, groups: _Groups) -> None:
        self._groups = groups

    async def __aenter__(self) -> GroupedDualWrite:
        turn = self._groups.request_turn()
        try:
            self._group = await turn.granted
        except BaseException:
            self._groups.give_up(turn)
            raise
        self._task = asyncio.current_task()
        self._groups.running.add(self._task)
        self._unit = self._group.new_unit()
        return self._unit

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unit.is_running = False
        self._groups.running.discard(self._task)
        if error is not None:
            self._group.undo(self._unit)
            return
        try:
            self._group.assert_intact()
            await self._groups.assert_repairable(self._group)
        except BaseException:
            self._group.undo(self._unit)
            raise
        self._group.unit_ended()
        await self._group.committed()


class _NothingLeftError(Exception):
    """The only unit so far was undone: its transaction is rolled back."""


class _Turn:
    """The turn of a unit, which first waits and then has the connection of a group."""

    __slots__ = ("granted", "group", "requested_s")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.requested_s = loop.time()
        self.granted: asyncio.Future[_Group] = loop.create_future()
        self.group: _Group | None = None

    def refuse(self, error: BaseException) -> None:
        if not self.granted.done():
            self.granted.set_exception(error)

    def grant(self, group: _Group) -> bool:
        """Grant the turn. Return whether its task was still waiting: a cancelled task withdraws its turn later."""
        if self.granted.done():
            return False
        self.group = group
        self.granted.set_result(group)
        return True


class _Group:
    """Units that are committed together; one at a time has the connection."""

    def __init__(self, number: int, waiting: deque[_Turn], max_units: int) -> None:
        self.number: Final = number
        self.tx: AsyncPsycopgDualTransaction | None = None
        self.undone: set[GroupedDualWrite] = set()
        self._waiting: Final = waiting
        self._max_units: Final = max_units
        self._group_units: GroupUnits | None = None
        self._pending_return: asyncio.Future[bool] | None = None
        self._committers: list[asyncio.Future[None]] = []
        self._is_over = False
        self._error: BaseException | None = None

    # ---- units --------------------------------------------------------------------------------------------------

    def begin(self, tx: AsyncPsycopgDualTransaction) -> None:
        self.tx = tx
        self._group_units = GroupUnits.of(tx)

    def new_unit(self) -> GroupedDualWrite:
        assert self.tx is not None, "a unit begins when its group has"
        return GroupedDualWrite(self, self.tx)

    async def collect(self) -> None:
        """Let waiting units take their turns. Raises _NothingLeftError if the first is undone."""
        while self._takes_one_more:
            await self._units.begin()  # before a unit leaves the queue: if this fails, the next group takes them all
            if self._waiting:  # the first may have given up meanwhile
                await self._let(self._waiting.popleft())

    async def _let(self, turn: _Turn) -> None:
        """Let a unit run, and those after it, until the next one has to wait for the database."""
        self._pending_return = asyncio.get_running_loop().create_future()
        undo = await self._pending_return if turn.grant(self) else True
        if undo and not await self._units.undo():
            raise _NothingLeftError

    def unit_ended(self, *, undo: bool = False) -> None:
        """Hand the connection to the next unit; called by the unit that has it."""
        if self._connection_returned.done():
            return
        if not undo and self._takes_one_more and self._units.begin_at_once() and self._waiting.popleft().grant(self):
            return  # directly to the next unit: going through the group's task costs one more event loop iteration
        self._connection_returned.set_result(undo)

    @property
    def _takes_one_more(self) -> bool:
        return bool(self._waiting) and self._units.count < self._max_units and self._units.has_room

    def undo(self, unit: GroupedDualWrite) -> None:
        """End a unit that failed."""
        self.undone.add(unit)
        self.unit_ended(undo=True)

    @property
    def entries_of_unit(self) -> Sequence[BufferedRecord | BufferedOffsets]:
        """What the running unit has sent."""
        return self._units.entries

    def assert_intact(self) -> None:
        if not self._connection_returned.done():  # otherwise `committed` raises the reason
            self._units.assert_intact()

    @property
    def _connection_returned(self) -> asyncio.Future[bool]:
        """The future that a unit resolves to hand the connection back to the group's task.

        If it is done while a unit still runs, the group's task was cancelled: its transaction is over, and the
        connection may already serve another group.
        """
        assert self._pending_return is not None, "units run while the group's task waits for them"
        return self._pending_return

    @property
    def _units(self) -> GroupUnits:
        assert self._group_units is not None, "its transaction has begun"
        return self._group_units

    # ---- the end ------------------------------------------------------------------------------------------------

    def end(self, error: BaseException | None) -> None:
        self._error = error
        self._is_over = True
        for committer in self._committers:
            if not committer.done():
                committer.set_result(None)

    async def committed(self) -> None:
        """Wait until the group is committed. Raises the group's error if it failed."""
        if not self._is_over:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._committers.append(ended)
            try:
                await ended
            except asyncio.CancelledError as cancelled:
                cancelled.add_note(
                    f"The unit had ended, and its group {self.number} goes on: both sides are changed unless that "
                    "fails; the unit's outcome has the result later."
                )
                raise
        if self._error is not None:
            raise self._error


class GroupUnits:
    """The units in one transaction. A savepoint precedes each unit but the first, which begins the transaction."""

    def __init__(self, transaction: PsycopgTransaction, records: RecordBuffer) -> None:
        self._transaction = transaction
        self._records = records
        self._reuses_savepoint = False
        """Whether the last unit was rolled back to the newest savepoint, so that the next unit can use it."""
        self._savepoints = 0
        self._first_entry = 0
        self.count = 0

    @classmethod
    def of(cls, write: DualWrite) -> Self:
        """Return the units of one dual write, none so far."""
        transaction = write.progress.database
        assert isinstance(transaction, PsycopgTransaction)
        return cls(transaction, write.progress.records)

    @property
    def entries(self) -> Sequence[BufferedRecord | BufferedOffsets]:
        """What the last unit has sent."""
        return list(islice(self._records, self._first_entry, None))

    @property
    def has_room(self) -> bool:
        """Whether there is room for the records of another unit."""
        return not self._records.is_half_full

    async def begin(self) -> None:
        """Begin the next unit here."""
        if self._needs_savepoint:
            await self._transaction.savepoint(self._next_savepoint)
        self._has_begun()

    def begin_at_once(self) -> bool:
        """Begin the next unit without waiting. Return False, and do nothing, if that would have to wait."""
        if self._needs_savepoint and not self._transaction.savepoint_ahead(self._next_savepoint):
            return False
        self._has_begun()
        return True

    @property
    def _needs_savepoint(self) -> bool:
        return self.count > 0 and not self._reuses_savepoint

    def _has_begun(self) -> None:
        if self._needs_savepoint:
            self._savepoints += 1
            self._records.savepoint(self._savepoint)
        self._first_entry = len(self._records)
        self.count += 1
        self._reuses_savepoint = False

    # Each savepoint has its own name: if one was not set, rolling back to it must fail rather than undo another unit.

    @property
    def _savepoint(self) -> str:
        return f"dualwrite_unit_{self._savepoints}"

    @property
    def _next_savepoint(self) -> str:
        return f"dualwrite_unit_{self._savepoints + 1}"

    def assert_intact(self) -> None:
        """Raise a RecipeError or IllegalStateError if a part of the unit failed and its error was swallowed."""
        self._transaction.assert_intact()

    async def undo(self) -> bool:
        """Roll the last unit back, statements and records. Return False if the transaction has no other unit.

        Raises IllegalStateError if a statement of the unit is still in progress, and psycopg's errors; then the whole
        transaction must end.
        """
        if self.count == 1:
            return False
        if self._transaction.is_busy:
            raise IllegalStateError(_UNFINISHED)
        await self._transaction.roll_back_to_savepoint(self._savepoint)
        self._records.roll_back_to_savepoint(self._savepoint)
        self._transaction.forgive()
        self._reuses_savepoint = True
        return True


_UNFINISHED: Final = (
    "another unit of this group ended while its COPY, stream or other statement was in progress; neither database nor "
    "Kafka was changed: finish such statements inside the unit, and repeat this one"
)
