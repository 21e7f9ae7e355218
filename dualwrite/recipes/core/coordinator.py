"""The dual writes under one transactional id, step by step; one implementation for threads and asyncio.

The safety of a dual write rests on the order of its steps, which is KIP-939's recipe:

1. the block runs: statements go to the database, records are buffered;
2. the state row of the transactional id is locked;
3. a producer that is new to the id fences its predecessor and completes its transaction by the row;
4. the records go to Kafka, which is prepared;
5. its `producer id:epoch` is written to the row as the last statement;
6. the database commits: this is the decision;
7. Kafka commits.

A row is only ever written by a transaction whose records Kafka accepted under the lock. So a zombie cannot
overwrite the state of a later dual write that waits to be completed: its records were refused first.

Steps 2 and 4 to 6 are `steps.py`; step 3 is `completion.py`, which also resolves a commit whose response is lost; step
7 is `owned_id.py`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from dualwrite.errors import (
    AbortableError,
    DualWriteError,
    FatalError,
    FencedError,
    IllegalStateError,
    KafkaTimeoutError,
    KafkaUnreachableError,
    OwedRecordsRefusedError,
    PreparedTransactionLost,
    RetriableError,
    TransactionHangsError,
)
from dualwrite.guarded import pass_on_signal
from dualwrite.monkey_patches import assert_unpatched
from dualwrite.outcome import Outcome
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.completion import LostCommits
from dualwrite.recipes.core.dual_write import (
    NOTHING_PREPARED,
    DualWriteProgress,
    Resolution,
    commit_database_alone,
    flush_block,
)
from dualwrite.recipes.core.owned_id import OwnedId
from dualwrite.recipes.core.publishing import Publishing
from dualwrite.recipes.core.refused import RefusedBlock, is_only_of, is_refusal
from dualwrite.recipes.core.repairability import Repairability
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.core.steps import DualWriteSteps
from dualwrite.recipes.core.stored_blocks import BlockStore
from dualwrite.recipes.core.turns import IdUse, IdUsers

_FORGOTTEN: Final = 49
"""INVALID_PRODUCER_ID_MAPPING: the id was not used for `transactional.id.expiration.ms`, seven days."""

_OF_ID: Final = (AbortableError, FencedError, OwedRecordsRefusedError, PreparedTransactionLost, TransactionHangsError)
"""The errors after which a block may go on under another id, if its own records are not the cause."""

SETTLE_MS: Final = 5_000
"""How long closing may wait for each of the row's lock, the markers and the log, to settle the last dual write."""

_log = logging.getLogger(__name__)


def is_away(error: DualWriteError) -> bool:
    """Return whether a block may go on without Kafka after this error, which is not about its records or id."""
    return isinstance(error, KafkaTimeoutError) and not isinstance(error, _OF_ID) and not is_refusal(error)


class DualWriteCoordinator:
    """Carries out dual writes under one transactional id, one at a time.

    Two live coordinators with one id are safe but useless: each fences the other.
    """

    def __init__(
        self,
        owned: OwnedId,
        *,
        sleep: Callable[[float], Awaitable[None]],
        repairability: Repairability | None = None,
        users: IdUsers | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`repairability` is shared by the coordinators of a pool; `users` are the threads (None) or tasks of the id.

        `clock_s` times the pauses between attempts of blocks to publish owed records that Kafka has refused.
        """
        self.transactional_id: Final = owned.transactional_id
        self.owned: Final = owned
        self._slot = self.owned.slot
        self._lost_commits = LostCommits(self.owned, sleep)
        self._blocks = BlockStore(self.owned)
        self._steps = DualWriteSteps(
            self.owned,
            lost_commits=self._lost_commits,
            repairability=Repairability() if repairability is None else repairability,
        )
        self._publishing = Publishing(
            self.owned, self._steps, lost_commits=self._lost_commits, blocks=self._blocks, clock_s=clock_s
        )
        self.users: Final = IdUsers() if users is None else users
        self.roll_back: Final = self._steps.roll_back
        self.publish_stored: Final = self._publishing.publish_stored
        self.settle: Final = self._publishing.settle
        self.end_diversion: Final = self._publishing.end_diversion

    @property
    def state(self) -> SlotState:
        return self._slot.known.state

    @property
    def is_complete(self) -> bool:
        """Whether nothing is open or owed under the id, which another process may use without a recovery then."""
        known = self._slot.known
        return known.state is SlotState.READY and not known.owed

    @property
    def published_blocks(self) -> int:
        return self._blocks.published_blocks

    @property
    def refused(self) -> RefusedBlock | None:
        return self._blocks.refused

    # -- one dual write at a time ------------------------------------------------------------------------------

    def acquire(self, use: IdUse) -> None:
        """Give the id to a use without waiting. The caller must `release` it, even if this raises or is interrupted.

        Raises IllegalStateError if the id is in use, FencedError if it is lost.
        """
        first = self.users.join(use)
        if first is not use:
            raise self._carries_another(use, first)
        self.owned.assert_usable()

    def _carries_another(self, use: IdUse, first: IdUse) -> IllegalStateError:
        carries = f"transactional id {self.transactional_id!r} already carries a dual write"
        if first.thread != use.thread:
            return IllegalStateError(
                f"{carries} of another thread; nothing was written: use a pool (prefix=... in place of "
                "transactional_id=...), which gives each thread its own id"
            )
        return IllegalStateError(
            f"{carries}; nothing was written, because Kafka allows one open transaction per id: finish it first, or "
            "use another writer. For a part that may fail alone, use tx.savepoint(); for concurrent tasks, use a pool"
        )

    async def acquire_in_turn(self, use: IdUse) -> None:
        """Give the id to a use as `acquire` does, after waiting at most as long as for the row lock."""
        timeout_s = None if self.owned.lock_timeout_ms is None else self.owned.lock_timeout_ms / 1000
        if self.users.is_mine:
            raise self._not_its_turn(f"of this same {self.users.kind}")
        if not await self.users.join_and_wait(use, timeout_s):
            raise self._not_its_turn(f"and was not free within {self.owned.lock_timeout_ms} ms")
        self.owned.assert_usable()

    def release(self, use: IdUse) -> None:
        """Let the next use have the id; harmless when repeated, or without having acquired it."""
        self.users.leave(use)

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Acquire the id without waiting, for the duration of a `with`. Raises as `acquire` does."""
        use = IdUse()
        try:
            self.acquire(use)
            yield
        finally:
            try:
                self.release(use)
            except BaseException:  # an interruption
                self.release(use)
                raise

    def _not_its_turn(self, why: str) -> IllegalStateError:
        return IllegalStateError(
            f"transactional id {self.transactional_id!r} carries another dual write {why}; nothing was written: one id "
            "carries one dual write at a time, a pool (prefix=...) several"
        )

    # -- the steps of one dual write ---------------------------------------------------------------------------

    async def get_ready(self) -> None:
        """Get ready for a block: resolve a lost commit, create the state row, publish refused owed records.

        Raises KafkaUnreachableError while Kafka is known to be away.
        """
        self._assert_present()
        if self._slot.state is SlotState.UNRESOLVED:
            with suppress(PreparedTransactionLost):  # the next take-over repairs the transaction, or raises this again
                await self._lost_commits.resolve()
            self.owned.assert_usable()
        if self.owned.kafka_id is None:
            await self.owned.ensure_row()
        if self._blocks.owed_refusal is not None:
            await self._publishing.retry_owed()

    def _assert_present(self) -> None:
        if self.owned.availability.away is not None:
            raise self.owned.availability.refusal()

    async def get_ready_for_sessions(self) -> None:
        """Create the state row before a Session begins a transaction. Costs nothing when repeated."""
        assert_unpatched()
        await self.owned.ensure_row()

    async def commit(self, write: DualWriteProgress) -> None:
        """Commit both sides, or roll back both and raise the reason."""
        try:
            carries_records = await flush_block(write)
            if carries_records:
                await self._prepare(write)
        except BaseException as error:
            may_be_of_owed = self._may_be_of_owed(write, error)
            await self.roll_back(write)
            if isinstance(error, AbortableError) and self._slot.state is SlotState.FENCED:
                raise self.owned.fenced() from error  # brokers first refuse a zombie's records with an abortable code
            if may_be_of_owed and isinstance(error, DualWriteError):
                raise await self._publishing.why_refused(error) from error
            raise
        if carries_records:
            await self._decide_or_repair(write)
        else:
            await commit_database_alone(write)

    def _may_be_of_owed(self, write: DualWriteProgress, error: BaseException) -> bool:
        """Return whether Kafka may have refused for good the owed records that went with the block."""
        owed = self.owned.owed
        return bool(owed) and is_refusal(error) and not is_only_of(write.records.records, owed, error)

    async def commit_or_let_go(self, write: DualWriteProgress, *, diverts: bool = False) -> DualWriteError | None:
        """Commit a flushed dual write with records, for a caller that can retry under another id, or without Kafka.

        Return the reason if this id cannot carry the dual write, or with `diverts` if Kafka is away. Then nothing was
        decided, and the row does not name the dual write, so no process can commit records of it that Kafka may hold.
        The database transaction is still open; if the database has ended it meanwhile, the next statement fails.
        """
        try:
            try:
                await self._prepare(write)
            except DualWriteError as error:
                pass_on_signal(error)
                is_of_id = isinstance(error, _OF_ID) or self._may_be_of_owed(write, error)
                if not await self.owned.uninterrupted(self._let_go(write, error, is_of_id=is_of_id, diverts=diverts)):
                    raise
                return self._why_let_go(error)
        except BaseException:
            await self.roll_back(write)
            raise
        await self._decide_or_repair(write)
        return None

    async def _let_go(
        self, write: DualWriteProgress, error: DualWriteError, *, is_of_id: bool, diverts: bool = False
    ) -> bool:
        """End or leave Kafka's side only. Return whether the block may go on: the row certainly does not name it."""
        if not write.prepared_state.is_empty:
            return False  # the state may have been written to the row: only a rollback undoes that
        if is_of_id:
            if self._slot.state is SlotState.OPEN:
                await self.owned.complete_kafka(write.locked_row, Outcome.ROLLED_BACK)
            if isinstance(error, AbortableError) and self._slot.state not in (SlotState.FENCED, SlotState.IN_DOUBT):
                return False  # the block's own records are the cause, so another id would not help
        elif diverts and is_away(error):
            await self.owned.leave_kafka()  # to the next take-over
        else:
            return False
        write.transactional_id = None
        write.locked_row = NOTHING_PREPARED
        return True

    def _why_let_go(self, error: DualWriteError) -> DualWriteError:
        if not isinstance(error, AbortableError) or self._slot.state is not SlotState.FENCED:
            return error
        fenced = self.owned.fenced()  # brokers first refuse a zombie's records with an abortable code
        fenced.__cause__ = error
        return fenced

    async def _prepare(self, write: DualWriteProgress) -> None:
        """Carry out everything up to the decision, with Kafka. Raises KafkaUnreachableError in the words of a block."""
        owned = self.owned
        if owned.availability.away is not None:
            self._assert_present()
        if self._blocks.owed_refusal is not None:
            self._publishing.assert_owed_not_refused()
        try:
            try:
                await self._lock_and_send(write)
            except FatalError as error:
                if error.error_code != _FORGOTTEN:
                    raise
                if not await owned.uninterrupted(self._let_go(write, error, is_of_id=True)):
                    raise
                owned.assert_usable()
                _log.info("transactional id %s was idle and has expired in Kafka", self.transactional_id)
                await self._lock_and_send(write)
        except KafkaUnreachableError as error:
            raise owned.availability.note(error) from error

    async def _lock_and_send(self, write: DualWriteProgress) -> None:
        """Lock the row, taking the id over unless this process owns it; prepare Kafka, and write the row."""
        write.locked_row = await self._steps.lock(write.database)
        write.transactional_id = self.transactional_id
        if self._slot.known.owed and write.records.has_offsets:
            await self._publishing.leave_owed()
            raise self._owes_records(write)
        await self._steps.send(write)
        await self._steps.write_prepared(write)

    def _owes_records(self, write: DualWriteProgress) -> RetriableError:
        """Return the error for a block with consumed offsets: it could not be repaired, so it takes no owed records."""
        return RetriableError(
            f"transactional id {self.transactional_id!r} owes the records of {write.locked_row}, which Kafka aborted, "
            "and a block with consumed offsets cannot publish them; neither side was changed: call recover(), then "
            "repeat the block"
        )

    async def _decide_or_repair(self, write: DualWriteProgress) -> None:
        """Commit the database, which decides, then Kafka; publish the records again if Kafka has aborted them."""
        try:
            await self._steps.decide(write)
        except PreparedTransactionLost:
            await self._publishing.repair_at_once()
        if self._blocks.owed_refusal is not None:
            self._blocks.note_nothing_owed()

    # -- recovery ----------------------------------------------------------------------------------------------

    async def recover(
        self, examine: Callable[[PreparedTxnState], bool] | None = None, *, publishes_all: bool = True
    ) -> Resolution:
        """Complete the open transaction of the id by the row; publish again the decided records that Kafka aborted.

        Then publish all stored blocks; without `publishes_all` only the oldest batch, and `owned.has_stored` tells
        whether more are stored. The id must be acquired.

        `examine` is called with the locked row before the owner of the id is fenced. If it raises, nothing is changed;
        if it returns False, the row's transaction is settled, and nothing else is changed. Raises RetriableError if
        Kafka has not confirmed the transaction that published, or an operator has aborted it in a partition meanwhile.
        """
        assert_unpatched()
        return await self._publishing.recover(examine, publishes_all=publishes_all)

    @property
    def is_unsettled(self) -> bool:
        """Whether the state row does not note yet that the last outbox batch is committed, which Kafka may forget."""
        return self._publishing.is_unsettled

    # -- the end -----------------------------------------------------------------------------------------------

    async def close(self, timeout_s: float = 0.0, *, settle_ms: int = SETTLE_MS) -> None:
        """Give up the transactional id, after waiting at most `timeout_s` seconds for the use of another thread.

        Under asyncio, of another task. A last dual write that Kafka has confirmed is settled first, which may take
        `settle_ms`. Raises IllegalStateError, and closes nothing, if that takes longer, or if this thread has the id. A
        dual write in doubt stays so, safely, until the id is next used or recovered.
        """
        use = IdUse()
        try:
            if self.users.is_mine:
                raise IllegalStateError(
                    f"this {self.users.kind} runs a dual write; leave its block before closing the writer"
                )
            if not await self.users.join_and_wait(use, timeout_s):
                raise IllegalStateError(
                    f"transactional id {self.transactional_id!r} still carries a dual write of another "
                    f"{self.users.kind} after {timeout_s:g} s; the writer is not closed: close it again when that "
                    "block has ended"
                )
            await self._close(settle_ms)
        finally:
            try:
                self.release(use)
            except BaseException:  # an interruption
                self.release(use)
                raise

    async def _close(self, settle_ms: int) -> None:
        if self._slot.state is SlotState.CLOSED:
            return
        try:
            await self._publishing.settle_before_leaving(settle_ms)
        finally:
            await self._leave()

    async def _leave(self) -> None:
        if self._slot.state in (SlotState.IN_DOUBT, SlotState.UNRESOLVED):
            unresolved = self._lost_commits.unresolved
            _log.warning(
                "transactional id %s is closed while %s is in doubt; recover() with this id completes it",
                self.transactional_id,
                unresolved.prepared_state if unresolved is not None else self.owned.in_doubt,
            )
        if self.owned.has_stored:
            _log.warning(
                "transactional id %s is closed with stored blocks in the database; recover() publishes them",
                self.transactional_id,
            )
        self._slot.move(SlotState.CLOSED)
        await self.owned.give_up()
