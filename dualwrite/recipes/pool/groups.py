"""The blocks of a pool that commits in groups, step by step; one implementation for threads and asyncio.

`grouping.py` decides, under a lock that nothing waits for. Here a block waits for its turn, begins its group's database
transaction or its own part of it, and ends: it hands the connection over, or commits the group for all. A thread
commits in itself, without another one to wake; a task has another task do it, so that a cancellation does not stop it.

The records of each block are buffered apart, and added to the group's when the block has ended. So those of a block
that fails are never sent. What a block and a group are in a database is up to its `GroupTransaction`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar

from dualwrite.client.admin.results import TopicDescription
from dualwrite.errors import GroupGivenUpError, IllegalStateError, OutcomeUnknown, PoolTimeoutError
from dualwrite.outcome import note_outcome
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.dual_write import DualWrite, DualWriteProgress
from dualwrite.recipes.core.kafka_participant import TopicLookUp
from dualwrite.recipes.core.waiting import Waiting
from dualwrite.recipes.pool.coordinator import PoolCoordinator, PooledBlock
from dualwrite.recipes.pool.group_settings import GroupCommit
from dualwrite.recipes.pool.grouping import Group, Grouping, GroupState, Next, Turn, TurnState
from dualwrite.recipes.pool.runtime import Bell, Runtime
from dualwrite.recipes.pool.settings import PoolSettings

TxT = TypeVar("TxT", bound=DualWrite)
ResultT = TypeVar("ResultT")
P = ParamSpec("P")

_LOOK_S: Final = 1.0
"""How often a waiting block at least looks by itself: a KeyboardInterrupt may keep a bell from ringing."""


class GroupTransaction(Protocol[TxT]):
    """The database transaction of one group, and its blocks, of which one at a time uses it."""

    @property
    def progress(self) -> DualWriteProgress:
        """The dual write of the whole group."""

    @property
    def takes_more(self) -> bool:
        """Whether another block may follow: false once a block has changed settings that would hold for it."""

    def new_block(self, records: RecordBuffer) -> TxT:
        """Return the handle of a block. Sends nothing; raises what the application's functions raise."""

    async def begin_block(self, tx: TxT, *, first: bool) -> None:
        """Begin a block, behind a savepoint unless it is the first one."""

    async def end_block(self, tx: TxT) -> None:
        """Send what the block holds back. Raises if it cannot go into the decision."""

    async def undo_block(self, tx: TxT) -> None:
        """Roll a block back to its savepoint. Raises if the whole transaction must end."""

    async def close_block(self, tx: TxT) -> None:
        """Close what belongs to the block, once its outcome stands. Sends nothing."""

    def cut(self) -> None:
        """Cut the connection while another thread may use it: the database can only roll back."""

    def close(self) -> None:
        """Release what `cut` uses. The connection is closed by `progress.database`."""


class GroupBackend(Protocol[TxT]):
    """A database that can carry groups."""

    @property
    def waiting(self) -> Waiting: ...

    async def begin_group(self, records: RecordBuffer) -> GroupTransaction[TxT]:
        """Begin a group's transaction. Raises IllegalStateError if it would keep a snapshot."""


@dataclass(slots=True)
class _Work(Generic[TxT]):
    """What belongs to one group while it is open."""

    transaction: GroupTransaction[TxT]
    use: PooledBlock
    """The use of a transactional id by the whole group."""
    error: BaseException | None = None
    """Why it is not committed, or not confirmed."""


class Groups(Generic[TxT]):
    """The groups of one pool in one process."""

    def __init__(
        self,
        limits: GroupCommit,
        *,
        backend: GroupBackend[TxT],
        pool: PoolCoordinator,
        settings: PoolSettings,
        runtime: Runtime,
        current: Callable[[], TxT | None],
    ) -> None:
        """Start with no group. `current` returns the block that the calling thread or task is in."""
        self.limits: Final = limits
        self.backend: Final = backend
        self.pool: Final = pool
        self.acquire_timeout_ms: Final = settings.acquire_timeout_ms
        self.look_s: Final = min(limits.slow_block_ms / 1000, _LOOK_S)
        self.new_records: Final = settings.new_records
        self.runtime: Final = runtime
        self._repairability: Final = settings.repairability
        self._look_up: Final = _TopicLookUp(backend.waiting, settings.connection)
        self._current: Final = current
        self._grouping: Final[Grouping[_Work[TxT]]] = Grouping(limits, settings.max_writers)
        self._deciding: Final = threading.Lock()

    def block(self) -> GroupedBlock[TxT]:
        """Return the steps of a new block."""
        return GroupedBlock(self)

    @property
    def waiting(self) -> int:
        """The number of blocks that wait for their turn."""
        return len(self._grouping.waiting)

    @property
    def open(self) -> int:
        """The number of groups that are not over."""
        return len(self._grouping.open)

    async def close(self) -> None:
        """Close the connection for looking topics up."""
        await self._look_up.close()

    def assert_outside(self) -> None:
        """Raise IllegalStateError inside a block of a group, for which another one would wait."""
        current = self._current()
        if current is not None and current.group is not None:
            raise IllegalStateError(
                "this code is inside a block of a group already, and another one would wait for it; nothing was "
                "written: write and send everything in one block, with tx.savepoint() for a part that may fail by "
                "itself, or use transaction(alone=True) for a dual write of its own"
            )

    def decide(
        self, decision: Callable[Concatenate[Grouping[_Work[TxT]], P], ResultT], *args: P.args, **kwargs: P.kwargs
    ) -> ResultT:
        """Let the grouping decide, and wake the blocks that it concerns."""
        grouping = self._grouping
        with self._deciding:
            result = decision(grouping, *args, **kwargs)
            woken = grouping.woken[:]
            grouping.woken.clear()
        for turn in woken:
            turn.wake()
        return result

    async def assert_repairable(self, records: RecordBuffer) -> None:
        """Raise UnsupportedByBrokerError if a broker may abort what a block sends, and it were lost then.

        Before the first commit of this process it is not known whether brokers do; then the whole group is refused.
        """
        if self._repairability.bounded is not None:
            await self._repairability.check_early(records, self._look_up)

    def timeout(self) -> PoolTimeoutError:
        """Return the error of a block that did not get its turn in time."""
        self.pool.count_timeout()
        return PoolTimeoutError(
            f"no group of pool {self.pool.prefix!r} took this block within {self.acquire_timeout_ms} ms: {self.open} "
            f"groups are open, and {self.waiting} more blocks are waiting; nothing was written: try again later, make "
            "blocks shorter, use transaction(alone=True) for long ones, or raise max_groups, max_writers or "
            "acquire_timeout_ms"
        )

    # ---- the end of a group -------------------------------------------------------------------------------------

    async def go_on(self, group: Group[_Work[TxT]], then: Next) -> None:
        """Do what a block has to do for its group after its turn."""
        if then is Next.COMMIT:
            await self.runtime.carry_out(f"dualwrite-group-{group.number}", partial(self._commit, group))
        elif then in (Next.ROLL_BACK, Next.CLEAN_UP):
            await self.backend.waiting.uninterrupted(self._roll_back(group))

    async def _commit(self, group: Group[_Work[TxT]]) -> None:
        """Commit both sides; its blocks learn why that failed, and the caller only of an interruption."""
        work = _work_of(group)
        write = work.transaction.progress
        try:
            try:
                await work.use.commit(write)
            finally:
                await self._close(work)
        except BaseException as error:
            work.error = error
            if not isinstance(error, Exception):
                raise
        finally:
            self._over(group, work)

    async def _roll_back(self, group: Group[_Work[TxT]]) -> None:
        work = _work_of(group)
        try:
            try:
                await work.use.roll_back(work.transaction.progress)
            finally:
                await self._close(work)
        finally:
            self._over(group, work)

    async def _close(self, work: _Work[TxT]) -> None:
        write = work.transaction.progress
        write.records.close()
        work.transaction.close()
        if not write.database.close_at_once():
            await write.uninterrupted(write.database.close())

    def _over(self, group: Group[_Work[TxT]], work: _Work[TxT]) -> None:
        work.use.leave()
        rolled_back = work.transaction.progress.outcome is Outcome.ROLLED_BACK
        self.decide(Grouping.over, group, rolled_back=rolled_back, now_s=time.monotonic())


class GroupedBlock(Generic[TxT]):
    """The steps of one block."""

    __slots__ = ("_bell", "_group", "_groups", "_turn", "_tx", "_use", "_work")

    _group: Group[_Work[TxT]]
    _work: _Work[TxT]
    _turn: Turn[_Work[TxT]]
    _tx: TxT

    def __init__(self, groups: Groups[TxT]) -> None:
        self._groups = groups
        self._bell: Bell = groups.runtime.bell()
        self._use: PooledBlock | None = None
        """Registers the block with the pool; None while it does not run, and once it became its group's."""

    # ---- the beginning ------------------------------------------------------------------------------------------

    async def begin(self) -> TxT:
        """Wait for a turn, and begin. Raises as `transaction()` documents."""
        self._groups.assert_outside()
        use = self._use = self._groups.pool.new_use()
        try:
            use.enter()
            return await self._begin(use)
        except BaseException:
            self._leave()
            raise

    async def abandon(self) -> None:
        """Do nothing: groups end by what `end` does."""

    def _leave(self) -> None:
        use, self._use = self._use, None
        if use is not None:
            use.leave()

    async def _begin(self, use: PooledBlock) -> TxT:
        deadline_s = time.monotonic() + self._groups.acquire_timeout_ms / 1000
        again = False
        while True:
            turn = self._turn = Turn(self._bell.ring)
            try:
                await self._take_turn(turn, deadline_s, again=again)
                if turn.state is TurnState.LEADS:
                    await self._lead(turn, use)
            except BaseException:
                await self._withdraw(turn)
                raise
            if await self._start(turn):
                return self._tx
            again = True

    async def _take_turn(self, turn: Turn[_Work[TxT]], deadline_s: float, *, again: bool) -> None:
        groups = self._groups
        groups.decide(Grouping.request, turn, time.monotonic(), again=again)
        while turn.state is TurnState.WAITING:
            groups.pool.assert_present()
            now_s = time.monotonic()
            if now_s >= deadline_s:
                if groups.decide(Grouping.time_out, turn):
                    raise groups.timeout()
                return
            await self._bell.wait(min(deadline_s - now_s, groups.look_s))
            if turn.state is TurnState.WAITING:
                groups.decide(Grouping.begin_groups, time.monotonic())

    async def _lead(self, turn: Turn[_Work[TxT]], use: PooledBlock) -> None:
        """Begin the transaction of a new group."""
        groups = self._groups
        await use.get_ready()
        work = _Work(await groups.backend.begin_group(groups.new_records()), use)
        self._use = None
        groups.decide(Grouping.begun, turn, work, time.monotonic())

    async def _start(self, turn: Turn[_Work[TxT]]) -> bool:
        """Begin the block in its group. Return False if the connection broke before anything of it was sent."""
        assert turn.group is not None
        assert turn.group.work is not None
        self._group, self._work = turn.group, turn.group.work
        is_first = not self._group.ended
        transaction = self._work.transaction
        try:
            tx = self._tx = transaction.new_block(self._groups.new_records())
        except BaseException:
            await self._withdraw(turn)
            raise
        tx.join(self._group.number)
        try:
            await transaction.begin_block(tx, first=is_first)
        except BaseException as error:
            await self._break(error)
            if is_first or not isinstance(error, Exception):
                raise
            return False
        return True

    async def _withdraw(self, turn: Turn[_Work[TxT]]) -> None:
        """Give a turn up that was perhaps granted in this moment."""
        groups = self._groups
        if turn.state is not TurnState.LEFT_OUT:
            then = groups.decide(Grouping.withdraw, turn, time.monotonic())
            if turn.group is not None:
                await groups.go_on(turn.group, then)

    async def _break(self, error: BaseException) -> None:
        """End the whole group, whose transaction cannot go on."""
        self._work.error = error
        self._tx.end_in_group(None)
        then = self._groups.decide(Grouping.broken, self._turn)
        await self._groups.go_on(self._group, then)

    # ---- the end ------------------------------------------------------------------------------------------------

    async def end(self, error: BaseException | None) -> None:
        """End the block: commit it with its group, or undo it if `error` ends it. Raises why it is not committed."""
        if not self._groups.pool.is_of_this_process:
            self._tx.progress.records.close()
            if error is None:
                raise IllegalStateError(_OF_THE_PARENT)
            return
        try:
            failure = error or await self._failure_at_end()
            if failure is None:
                await self._decided()
            else:
                await self._groups.backend.waiting.uninterrupted(self._undo(failure))
        finally:
            self._leave()
        if failure is not None:
            self._tx.tell(failure)
            if failure is not error:
                raise failure

    async def _failure_at_end(self) -> BaseException | None:
        """Return why the block cannot go into the decision, although it has ended without an error."""
        try:
            await self._work.transaction.end_block(self._tx)
            await self._groups.assert_repairable(self._tx.progress.records)
        except BaseException as failure:
            return failure
        return None

    async def _undo(self, failure: BaseException) -> None:
        """Roll the block back by itself; if that is impossible, its group."""
        groups, transaction, turn = self._groups, self._work.transaction, self._turn
        self._tx.end_in_group(None)
        try:
            if self._group.ended:
                await transaction.undo_block(self._tx)
        except BaseException as broken:
            await self._break(broken)
        else:
            then = groups.decide(Grouping.undone, turn, takes_more=self._takes_more, now_s=time.monotonic())
            await groups.go_on(self._group, then)
        finally:
            await transaction.close_block(self._tx)

    async def _decided(self) -> None:
        """Put the block into the decision of its group, and wait for that."""
        groups, transaction, turn = self._groups, self._work.transaction, self._turn
        transaction.progress.records.absorb(self._tx.progress.records)
        self._tx.end_in_group(transaction.progress)
        then = groups.decide(Grouping.ended, turn, takes_more=self._takes_more, now_s=time.monotonic())
        try:
            await groups.go_on(self._group, then)
            await self._wait_for_decision()
        except BaseException as interruption:
            self._note(interruption)
            raise
        await transaction.close_block(self._tx)
        try:
            self._raise_error()
        except Exception as error:
            self._tx.tell(error)
            raise

    @property
    def _takes_more(self) -> bool:
        transaction = self._work.transaction
        return transaction.takes_more and not transaction.progress.records.is_half_full

    async def _wait_for_decision(self) -> None:
        groups, group, turn = self._groups, self._group, self._turn
        while group.state not in (GroupState.GIVEN_UP, GroupState.OVER):
            given_up_in_s = groups.decide(Grouping.give_up_after_s, turn, time.monotonic())
            if given_up_in_s == 0 and groups.decide(Grouping.give_up, turn, time.monotonic()):
                self._work.transaction.cut()
            else:
                await self._bell.wait(_LOOK_S if given_up_in_s is None else min(given_up_in_s, _LOOK_S))
        if turn.state is TurnState.LEFT_OUT:  # no block of the group sends COMMIT any more
            self._work.transaction.progress.outcome = Outcome.ROLLED_BACK

    def _given_up(self) -> GroupGivenUpError:
        return GroupGivenUpError(
            f"another block of group {self._group.number} ran for longer than max_block_ms="
            f"{self._groups.limits.max_block_ms}, so the group was given up; neither database nor Kafka was changed: "
            "repeat this block, and run blocks that take so long with transaction(alone=True)"
        )

    def _note(self, interruption: BaseException) -> None:
        if self._tx.outcome is not None:
            self._tx.tell(interruption)
        else:
            note_outcome(interruption, Outcome.UNKNOWN)
            interruption.add_note(
                f"The block had ended, and its group {self._group.number} goes on: both sides are changed unless that "
                "fails; the block's outcome has the result later."
            )

    def _raise_error(self) -> None:
        """Raise why the group is not committed, or why that is unknown."""
        error = self._work.error
        if error is None:
            if self._turn.state is TurnState.LEFT_OUT:
                raise self._given_up()
            return
        if isinstance(error, Exception):
            raise error
        outcome = self._tx.outcome
        if outcome is Outcome.ROLLED_BACK:
            raise GroupGivenUpError(
                f"the block that committed group {self._group.number} was interrupted ({type(error).__name__}); "
                "neither database nor Kafka was changed: repeat this block"
            ) from error
        if outcome is None:
            raise OutcomeUnknown(
                f"the block that committed group {self._group.number} was interrupted ({type(error).__name__}), and "
                f"the database commit of {self._tx.prepared_state} got no response: the pool reads the outcome in the "
                "background, and `tx.outcome` has it then",
                transactional_id=self._tx.transactional_id or "",
                prepared_state=str(self._tx.prepared_state),
            ) from error


class _TopicLookUp:
    """Looks topics up over a connection of its own, because a group has none before it is committed."""

    def __init__(self, waiting: Waiting, settings: Mapping[str, Any]) -> None:
        self._waiting = waiting
        self._settings = settings
        self._kafka: TopicLookUp | None = None
        self._making = threading.Lock()

    async def __call__(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        with self._making:
            if self._kafka is None:
                self._kafka = self._waiting.new_look_up(self._settings)
            kafka = self._kafka
        return await kafka.describe_topics(topics)

    async def close(self) -> None:
        with self._making:
            kafka, self._kafka = self._kafka, None
        if kafka is not None:
            await kafka.close()


def _work_of(group: Group[_Work[TxT]]) -> _Work[TxT]:
    assert group.work is not None, "its transaction has begun"
    return group.work


_OF_THE_PARENT: Final = (
    "this dual write belongs to the process that forked; nothing was written here: leave its block in the parent, and "
    "begin new blocks in the child"
)
