"""Publish decided records that Kafka does not have: stored blocks, and the records of aborted transactions.

`recover` does that for one transactional id: a take-over, which completes the transaction in doubt, and then dual
writes without a block, as long as records are owed or stored.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from copy import copy
from functools import partial
from typing import Any, Final

from dualwrite.client.transactions.manifest import Manifest
from dualwrite.errors import (
    AuthorizationError,
    DualWriteError,
    KafkaUnreachableError,
    NotProvenError,
    OwedRecordsRefusedError,
    PreparedTransactionLost,
    RetriableError,
    RowLockTimeoutError,
    TransactionHangsError,
)
from dualwrite.guarded import pass_on_signal
from dualwrite.outcome import Outcome
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.availability import here
from dualwrite.recipes.core.buffer import RecordBuffer
from dualwrite.recipes.core.completion import LostCommits, VerdictNoted, leave_to_successor, take_over
from dualwrite.recipes.core.database_errors import first_line
from dualwrite.recipes.core.dual_write import NOTHING_PREPARED, DualWriteProgress, Resolution
from dualwrite.recipes.core.own_transactions import in_own_transaction
from dualwrite.recipes.core.owned_id import OwnedId
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.proof import is_forgotten, is_settled, manifest_of, settled_text
from dualwrite.recipes.core.refused import is_refusal, refused_topic
from dualwrite.recipes.core.repair import verify
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.core.steps import DualWriteSteps
from dualwrite.recipes.core.store import DatabaseTransaction, Diversion
from dualwrite.recipes.core.stored_blocks import BlockStore, NextAttemptError, Waiting
from dualwrite.recipes.core.waiting import pause_after

_log = logging.getLogger("dualwrite.recipes.core.coordinator")  # one logger for all steps of a dual write

_SECONDS_TO_ASK_AGAIN: Final = 5.0
"""How long after blocks were asked to wait for the end of a diversion they are asked again."""

_MS_TO_WAIT_FOR_BLOCKS: Final = 1_000
"""How long to wait for the blocks that hold a diversion, as long as others wait for its end; nothing is published."""


class _AbortedInPartError(RetriableError):
    """The transaction that published is committed, and an operator has aborted it in a partition."""


class Publishing:
    """Publishes the stored blocks and owed records of one transactional id, which its caller has acquired."""

    def __init__(
        self,
        owned: OwnedId,
        steps: DualWriteSteps,
        *,
        lost_commits: LostCommits,
        blocks: BlockStore,
        clock_s: Callable[[], float],
    ) -> None:
        self._owned = owned
        self._slot = owned.slot
        self._steps = steps
        self._lost_commits = lost_commits
        self._blocks = blocks
        self._clock_s = clock_s
        self._not_before_s = 0.0
        """When a block tries again to publish owed records that Kafka refused, by the monotonic clock."""
        self._asks_not_before_s = 0.0
        """When blocks may be asked again to wait for the end of a diversion, by the monotonic clock."""
        self._ends_not_before_s = 0.0
        """When to try again to end a diversion that a block held for too long, by the monotonic clock."""
        self.is_unsettled = False
        """Whether this process has published a batch of an outbox that a broker may abort, and the row does not note
        yet that it is committed."""

    def assert_owed_not_refused(self) -> None:
        """Raise OwedRecordsRefusedError again for a while: each attempt raises the producer epoch."""
        refused = self._blocks.owed_refusal
        if refused is not None and self._clock_s() < self._not_before_s:
            raise copy(refused) from refused.__cause__

    async def retry_owed(self) -> None:
        """Publish owed records that Kafka has refused. Raises OwedRecordsRefusedError, also if it is too early."""
        self.assert_owed_not_refused()
        try:
            await self.recover()
        except KafkaUnreachableError as error:  # which the block that follows meets too
            pass_on_signal(error)

    async def why_refused(self, error: DualWriteError) -> DualWriteError:
        """Return the error for refused records, after publishing the owed ones alone to see if it was those."""
        expected: tuple[type[Exception], ...] = (DualWriteError, *self._owned.database.errors)
        try:
            await self.recover()
        except OwedRecordsRefusedError as refused:
            return refused
        except expected as failure:
            pass_on_signal(failure)
            return error
        return RetriableError(
            f"transactional id {self._owned.transactional_id!r} sent owed records together with this block, and Kafka "
            f"refused them ({first_line(error)}). The owed records are now published alone, and this block has "
            "changed neither side: repeat the block"
        )

    async def publish_stored(self) -> Resolution:
        """Publish the oldest stored blocks, under an id that is acquired and that this process has recovered.

        `owned.has_stored` tells whether more are stored. Raises as `recover` does: call `recover` next then.
        """
        try:
            resolution = await self._publish_next()
            self._assert_confirmed()
        except KafkaUnreachableError as error:
            raise self._owned.availability.note(error, of_block=False) from error
        return resolution

    async def settle(self) -> None:
        """Note in the row that the last batch of an outbox is committed, as long as that can be seen.

        The id must be acquired. Publish nothing meanwhile. Raises as `_settle_last` does: call `recover` next then.
        """
        if self.is_unsettled:
            await self._settle_last()

    async def end_diversion(self, name: str) -> bool:
        """End the diversion of a pool to its outbox, if the outbox has nothing left to publish, repair or settle.

        Return whether the diversion has ended. It waits a moment for blocks, no longer, because one may be frozen.
        Raises as `_settle_last` does.
        """
        owned = self._owned
        await self.settle()
        if self.is_unsettled or self._clock_s() < self._ends_not_before_s:
            return False
        if self._clock_s() >= self._asks_not_before_s:
            self._asks_not_before_s = self._clock_s() + _SECONDS_TO_ASK_AGAIN
            await in_own_transaction(owned.database.begin, partial(self._ask_to_wait, name), owned.uninterrupted)
        is_over = await in_own_transaction(
            owned.database.begin, partial(self._end_diversion, name), owned.uninterrupted
        )
        if is_over:
            _log.info(
                "transactional id %s: all blocks are published, and later ones go to Kafka again",
                owned.transactional_id,
            )
        return is_over

    async def _ask_to_wait(self, name: str, database: Any) -> None:
        """Ask blocks to wait, so that there is a moment at which none of them has added records."""
        await database.diversion(name, _MS_TO_WAIT_FOR_BLOCKS).ask(time.time_ns() // 1_000_000)
        await database.commit()

    async def _end_diversion(self, name: str, database: Any) -> bool:
        owned = self._owned
        row = await self._steps.lock_row(database)
        if self._slot.state is not SlotState.READY or row != owned.row or owned.owed:
            return False  # the transaction of the last batch may be in doubt, or another process publishes
        diversion: Diversion = database.diversion(name, _MS_TO_WAIT_FOR_BLOCKS)
        try:
            if not await diversion.lock():
                return True
        except RowLockTimeoutError as error:
            pass_on_signal(error)
            self._ends_not_before_s = self._asks_not_before_s
            return False
        table = database.stored_blocks(owned.transactional_id)
        # after the lock, which blocks hold up to their commit: it sees all that are committed now
        newest_seq, _ = await table.waiting(owned.transactional_id, max_bytes=0)
        if newest_seq:
            return False
        await diversion.end()
        await database.commit()
        return True

    async def repair_at_once(self) -> None:
        """Publish aborted records again, or leave that to the next use. Raises PreparedTransactionLost."""
        expected: tuple[type[Exception], ...] = (DualWriteError, *self._owned.database.errors)
        try:
            await self.recover()
        except PreparedTransactionLost:
            raise
        except expected as error:
            pass_on_signal(error)
            _log.warning(
                "transactional id %s: owed records could not be published now (%s); the next use of the id publishes "
                "them",
                self._owned.transactional_id,
                first_line(error),
            )

    async def recover(
        self, examine: Callable[[PreparedTxnState], bool] | None = None, *, publishes_all: bool = True
    ) -> Resolution:
        """Carry out `DualWriteCoordinator.recover`, also after a commit whose response was lost."""
        owned = self._owned
        if self._slot.state is SlotState.UNRESOLVED:
            with suppress(PreparedTransactionLost):  # the take-over below repairs the transaction, or raises this again
                resolution = await self._lost_commits.resolve()
                await self._keep_provable()
                return resolution  # the next call would find nothing open, and not return the outcome again
        owned.assert_usable()
        await owned.ensure_row()
        try:
            return await self._recover_and_publish(examine, publishes_all=publishes_all)
        except KafkaUnreachableError as error:
            raise owned.availability.note(error, of_block=False) from error

    async def _recover_and_publish(
        self, examine: Callable[[PreparedTxnState], bool] | None, *, publishes_all: bool
    ) -> Resolution:
        try:
            resolution = await self._recover(examine)
        except NextAttemptError as next_attempt:
            await self._blocks.get_ready(next_attempt)
            resolution = await self._publish_next()
        if resolution.outcome in (Outcome.PUBLISHED, Outcome.REPAIRED):
            await self._keep_provable()
            while publishes_all and self._owned.has_stored:
                await self._publish_next()
            if not self._owned.has_stored:
                await self._settle_last()
            self._assert_confirmed()
        return resolution

    def _assert_confirmed(self) -> None:
        """Raise RetriableError if Kafka has not confirmed the transaction that published: it must be completed."""
        owned = self._owned
        if self._slot.state in (SlotState.IN_DOUBT, SlotState.FENCED) and not owned.in_doubt.is_empty:
            raise RetriableError(
                f"transactional id {owned.transactional_id!r}: the database has decided {owned.in_doubt}, which "
                "publishes owed or stored records, but Kafka has not confirmed it: call recover() again, in a new "
                "writer if this one was fenced, or use the id, which completes it"
            )

    async def _publish_next(self) -> Resolution:
        """Publish the next stored blocks, by as many attempts as it takes to find a block that Kafka refuses."""
        while True:
            try:
                resolution = await self._publish_more()
            except NextAttemptError as next_attempt:
                await self._blocks.get_ready(next_attempt)
            except VerdictNoted:
                continue
            else:
                await self._keep_provable()
                return resolution

    async def _recover(self, examine: Callable[[PreparedTxnState], bool] | None) -> Resolution:
        """Take the id over and publish; repeat after an attempt that ended by noting a verdict."""
        noted: VerdictNoted | None = None
        while True:
            try:
                resolution = await self._recover_once(examine)
            except VerdictNoted as found:
                noted, examine = noted or found, None
            else:
                return noted.resolution if noted and resolution.outcome is Outcome.NOTHING else resolution

    async def _recover_once(self, examine: Callable[[PreparedTxnState], bool] | None) -> Resolution:
        owned = self._owned

        async def recover(database: DatabaseTransaction) -> Resolution:
            row = await database.lock(owned.transactional_id, timeout_ms=owned.lock_timeout_ms)
            owned.telemetry.reach(PausePoint.AFTER_LOCK)
            if examine is not None and not examine(row):
                await self._settle(database, row)
                return Resolution(owned.transactional_id, NOTHING_PREPARED, Outcome.NOTHING)
            if self._slot.state is SlotState.READY:  # another process may have taken the id over meanwhile
                if row != owned.row:
                    await leave_to_successor(owned, row)
                else:
                    self._slot.move(SlotState.NEW)
            row, resolution, proof = await take_over(owned, database)
            waiting = await self._blocks.oldest(database)
            if owned.owed or waiting.blocks:
                return await self._publish(database, row, waiting)
            if examine is None or not proof.needs_manifest:
                await self._settle(database, row)
            return resolution

        return await self._in_own_transaction(recover)

    async def _in_own_transaction(self, steps: Callable[[DatabaseTransaction], Awaitable[Resolution]]) -> Resolution:
        """Carry out `steps` in a new database transaction; the next take-over gets what they have left owed."""
        owned = self._owned

        async def carried_out(database: DatabaseTransaction) -> Resolution:
            try:
                return await steps(database)
            finally:
                await self.leave_owed()

        return await in_own_transaction(owned.database.begin, carried_out, owned.uninterrupted)

    async def _publish_more(self) -> Resolution:
        """Publish the stored blocks behind those of the last batch; another process may have published them."""
        owned = self._owned
        owned.assert_usable()

        async def publish(database: DatabaseTransaction) -> Resolution:
            row = await self._steps.lock_row(database)
            if self._slot.state is SlotState.READY and row != owned.row:
                await leave_to_successor(owned, row)
                await owned.assert_leased(database)  # a take-over would fence the owner of the lease
            if self._slot.state is not SlotState.READY:
                row = (await take_over(owned, database))[0]
            waiting = await self._blocks.oldest(database)
            if owned.owed or waiting.blocks:
                return await self._publish(database, row, waiting)
            return Resolution(owned.transactional_id, row, Outcome.NOTHING)

        return await self._in_own_transaction(publish)

    async def leave_owed(self) -> None:
        """Leave owed records that could not be sent to the next take-over; an id that is READY owes nothing."""
        if self._slot.state is SlotState.READY and self._owned.owed:
            self._slot.move(SlotState.NEW)
            await self._owned.give_up()

    async def _keep_provable(self) -> None:
        """Settle the row at once if the log may not show how the last batch has ended.

        Then only the coordinator knows, and the next batch makes it forget. If settling fails, the next take-over asks
        the coordinator.
        """
        if not self.is_unsettled or self._slot.state is not SlotState.READY:  # unconfirmed: the producer is given up
            return
        if await self._steps.log_will_tell():
            return
        await self._settle_last()
        if self.is_unsettled and self._slot.state is SlotState.READY:
            self._slot.move(SlotState.NEW)
            await self._owned.give_up()

    async def _settle_last(self) -> None:
        """Settle the row of the last transaction that published, if Kafka has confirmed it.

        Raises RetriableError, TransactionHangsError, NotProvenError or PreparedTransactionLost if readers do not see
        all of it.
        """
        owned = self._owned
        if self._slot.state is not SlotState.READY:
            return
        expected: tuple[type[Exception], ...] = (DualWriteError, *owned.database.errors)
        try:
            await self._settle_confirmed()
        except (_AbortedInPartError, NotProvenError, PreparedTransactionLost, TransactionHangsError):
            self._slot.move(SlotState.NEW)  # the next take-over looks again
            await owned.give_up()
            raise
        except expected as error:  # everything is published, and the next recovery settles the row
            pass_on_signal(error)
            _log.info("transactional id %s: its row is not settled yet (%s)", owned.transactional_id, first_line(error))

    async def _settle_confirmed(self) -> None:
        owned = self._owned

        async def settle(database: DatabaseTransaction) -> None:
            row = await database.lock(owned.transactional_id, timeout_ms=owned.lock_timeout_ms)
            if row == owned.row:
                if (await verify(owned, database, row)).owed:
                    raise _AbortedInPartError(
                        f"Kafka has committed {row}, which published records of transactional id "
                        f"{owned.transactional_id!r}, and an operator has aborted it in a partition; they are owed "
                        "now, and the next use of the id, or recover(), publishes them"
                    )
                await self._settle(database, row)
            else:
                self.is_unsettled = False  # another process has replaced the row, and settles it

        await in_own_transaction(owned.database.begin, settle, owned.uninterrupted)

    async def _settle(
        self, database: DatabaseTransaction, row: PreparedTxnState, *, deletes_batch: bool = True
    ) -> None:
        """Note in the row that its transaction needs no more proof, before the evidence leaves the log.

        `deletes_batch`: the rows of the batch that it published are deleted, where no stored blocks wait.
        """
        owned, transactional_id = self._owned, self._owned.transactional_id
        text = await database.read_manifest(transactional_id)
        if not row.is_empty and not is_settled(row, text) and not is_forgotten(row, text):
            if deletes_batch:
                await database.stored_blocks(transactional_id).publish(transactional_id, ())
            await database.write(transactional_id, previous=row, new=row, manifest=settled_text(row, text))
            await database.commit()
        self.is_unsettled = False
        owned.settled = row

    async def settle_before_leaving(self, timeout_ms: int) -> None:
        """Note in the row that its transaction is committed, if Kafka has confirmed it to this process.

        From then on Kafka is not asked about it, and the id can continue in another cluster. If the log does not show
        it, or cannot be read in time, the row stays as it is, and the next take-over asks.
        """
        owned = self._owned
        is_sure = self._slot.state is SlotState.READY and owned.row == owned.confirmed and not owned.owed
        if not is_sure or owned.row == owned.settled or owned.has_stored or owned.availability.is_away:
            return
        if owned.taken_over_in != here() or timeout_ms <= 0:
            return
        owned.limit_waits(timeout_ms)
        try:
            await self._settle_if_seen()
        except Exception as error:
            pass_on_signal(error)
            _log.info("transactional id %s: its row is not settled (%s)", owned.transactional_id, first_line(error))

    async def _settle_if_seen(self) -> None:
        owned = self._owned

        async def settle(database: DatabaseTransaction) -> None:
            row = await database.lock(owned.transactional_id, timeout_ms=owned.lock_timeout_ms)
            manifest = manifest_of(row, await database.read_manifest(owned.transactional_id))
            if row == owned.row and (manifest is None or await self._is_seen(manifest)):
                await self._settle(database, row, deletes_batch=False)

        await in_own_transaction(owned.database.begin, settle, owned.uninterrupted)

    async def _is_seen(self, manifest: Manifest) -> bool:
        """Return whether readers see the committed transaction; believe the coordinator as `verify` does."""
        try:
            end = await self._owned.kafka.end_of(manifest, self._owned.resolve_timeout_ms, is_over=True)
        except AuthorizationError:
            return True
        return not end.aborted

    async def _publish(self, database: DatabaseTransaction, row: PreparedTxnState, waiting: Waiting) -> Resolution:
        """Publish owed and stored records, by a dual write that changes the row and the stored blocks.

        Raises RetriableError if Kafka aborts that too, RecordsRefusedError if Kafka refuses a block or the owed records
        for good, and NextAttemptError if it refuses one of several blocks, or a timestamp.
        """
        owned = self._owned
        is_repair = bool(owned.owed)
        owned.slot.note(owed=self._blocks.timestamps.of(owned.owed))
        waiting = waiting._replace(records=self._blocks.timestamps.of(waiting.records))
        write = DualWriteProgress(database, RecordBuffer(), owned.uninterrupted)
        write.transactional_id = owned.transactional_id
        write.locked_row = row
        try:
            await self._steps.send(write, waiting.records)
            await self._blocks.publish(write, waiting)
            await self._steps.write_prepared(write)
        except BaseException as error:
            refused = None
            if isinstance(error, DualWriteError) and is_refusal(error):
                refused = self._blocks.note_refused(waiting, refused_topic((*owned.owed, *waiting.records)), error)
            await self._steps.roll_back(write)
            if refused is None:
                raise
            if isinstance(refused, OwedRecordsRefusedError):
                self._not_before_s = self._clock_s() + pause_after(refused)
            raise refused from error
        is_kept = self._blocks.keeps_batch(write)
        self.is_unsettled |= is_kept  # however its commit ends: the row then names this batch or the one before
        try:
            await self._steps.decide(write)
        except PreparedTransactionLost as error:
            raise RetriableError(
                f"Kafka has also aborted {write.prepared_state}, which was to publish records of transactional id "
                f"{owned.transactional_id!r}; they are owed now, and the next use of the id, or "
                "recover(), publishes them"
            ) from error
        self.is_unsettled = is_kept
        self._blocks.note_published(waiting)
        if is_repair:
            return Resolution(owned.transactional_id, row, Outcome.REPAIRED)
        return Resolution(owned.transactional_id, write.prepared_state, Outcome.PUBLISHED)
