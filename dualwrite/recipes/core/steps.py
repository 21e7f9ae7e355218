"""The steps of one dual write with Kafka, each by itself, up to the decision and after it.

The block of a user goes through them in `coordinator.py`, stored and owed records in `publishing.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from dualwrite.client import monotonic
from dualwrite.errors import (
    BoundExceededError,
    OutcomeUnknown,
    PreparedTransactionLost,
    RetriableError,
    TransactionHangsError,
)
from dualwrite.guarded import pass_on_signal
from dualwrite.outcome import Outcome
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.recipes.core.buffer import BufferedRecord
from dualwrite.recipes.core.completion import LostCommits, leave_to_successor, take_over
from dualwrite.recipes.core.dual_write import DualWriteProgress, roll_back_database
from dualwrite.recipes.core.owned_id import OwnedId
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.repairability import Repairability
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.core.store import DatabaseTransaction

_log = logging.getLogger("dualwrite.recipes.core.coordinator")  # one logger for all steps of a dual write

_MOST_MARGIN_MS: Final = 1_000
"""How long before the timeout of a prepared transaction to stop sending COMMIT; at most a tenth of the timeout."""


class DualWriteSteps:
    """The steps of the dual writes under one transactional id, which its caller has acquired."""

    def __init__(self, owned: OwnedId, *, lost_commits: LostCommits, repairability: Repairability) -> None:
        self._owned = owned
        self._slot = owned.slot
        self._lost_commits = lost_commits
        self._repairability = repairability

    # -- the lock ----------------------------------------------------------------------------------------------

    async def lock(self, database: DatabaseTransaction) -> PreparedTxnState:
        """Lock the row, and take the id over unless this process already owns it. Return the content of the row."""
        owned = self._owned
        row = await self.lock_row(database)
        known = self._slot.known
        if known.state is SlotState.READY:
            if row == known.row:
                return row
            await leave_to_successor(owned, row)
            await owned.assert_leased(database)  # a take-over would fence the owner of the lease
        await database.read(owned.transactional_id)  # fails if the lock is gone: then do not fence the successor
        return (await take_over(owned, database))[0]

    async def lock_row(self, database: DatabaseTransaction) -> PreparedTxnState:
        """Lock the row and return its content. It shows the outcome of a lost commit, if there is one."""
        owned = self._owned
        row = await database.lock(owned.transactional_id, timeout_ms=owned.lock_timeout_ms)
        owned.telemetry.reach(PausePoint.AFTER_LOCK)
        if self._slot.known.state is SlotState.UNRESOLVED:
            # This transaction began before the lost commit could be resolved. Its row lock waited for that commit.
            with suppress(PreparedTransactionLost):  # as in get_ready()
                await self._lost_commits.resolve_by(row)
            owned.assert_usable()
        return row

    # -- Kafka is prepared, and the row is written -------------------------------------------------------------

    async def send(self, write: DualWriteProgress, ahead: Sequence[BufferedRecord] = ()) -> None:
        """Begin a Kafka transaction, send the owed records, those `ahead` and the block's, and prepare it.

        Raises UnsupportedByBrokerError or RetriableError if Kafka may abort the block's records against the decision
        and they could not be published again, LeaseLostError if the id is a pool's, and another process had its lease
        at the take-over, and TransactionHangsError if an earlier transaction hangs in a partition of the block.
        """
        owned, kafka, owed = self._owned, self._owned.kafka, self._slot.known.owed
        if not owned.is_lease_known:
            await owned.assert_leased(write.database)
        self._slot.move(SlotState.OPEN)  # before `begin`, so that a failed or interrupted `begin` leads to a take-over
        write.sends_since_s = monotonic.since_boot_s()
        try:
            await kafka.begin()
            owned.telemetry.reach(PausePoint.AFTER_BEGIN)
            write.bounded_ms = kafka.bounded_ms
            unseen: Collection[str] = ()
            if write.bounded_ms is not None:
                unseen = await self._repairability.check(write.records, owned)
            owned.telemetry.sends(write.records, owed, ahead)
            sent = partial(owned.telemetry.reach, PausePoint.AFTER_SEND)
            if owed or ahead:
                await kafka.send((*owed, *ahead), sent, any_size=True)
            await kafka.send(write.records, sent)
            if unseen:
                await self._repairability.check_created(unseen, kafka)
            write.prepared_state = await kafka.prepare()
        except TransactionHangsError as error:
            from dualwrite.recipes.core.hanging import hangs_before

            raise await hangs_before(owned, error) from error
        owned.telemetry.reach(PausePoint.AFTER_PREPARE)

    async def write_prepared(self, write: DualWriteProgress) -> None:
        """Write the prepared state and its manifest, as the last statement before COMMIT. Raises as `send`."""
        owned, previous, new = self._owned, write.locked_row, write.prepared_state
        if new == previous:
            raise self._names_another(write)
        manifest = owned.kafka.manifest
        if manifest is not None and not manifest.cluster_id:  # of consumed offsets alone: no topic was looked up
            manifest = replace(manifest, cluster_id=await owned.kafka.cluster_id(owned.resolve_timeout_ms))
        owned.manifest = "" if manifest is None else str(manifest)
        if not owned.manifest:
            self._repairability.note_no_text(manifest, write, owned)
        # In a transaction that has failed already this raises, where COMMIT would silently roll back.
        await write.database.write(owned.transactional_id, previous=previous, new=new, manifest=owned.manifest)
        owned.telemetry.reach(PausePoint.AFTER_STATE_WRITE)
        owned.telemetry.reach(PausePoint.BEFORE_DATABASE_COMMIT)

    async def log_will_tell(self) -> bool:
        """Return whether the log will show how the last transaction ended, by the settings of its topics."""
        return await self._repairability.log_will_tell(self._owned.manifest, self._owned.kafka)

    def _names_another(self, write: DualWriteProgress) -> RetriableError:
        """Return the error for a pair that the row has from another cluster: it would not show the decision."""
        return RetriableError(
            f"the dual write got the pair {write.prepared_state}, which the state row of transactional id "
            f"{self._owned.transactional_id!r} already holds from another Kafka cluster; neither side was changed: "
            "repeat the block, which gets another pair"
        )

    # -- the decision ------------------------------------------------------------------------------------------

    async def decide(self, write: DualWriteProgress) -> None:
        """Commit the database, which decides, then Kafka."""
        self._slot.move(SlotState.DECIDING)
        try:
            if write.bounded_ms is not None:
                self._assert_within_bound(write, write.bounded_ms)
            await write.database.commit()
        except BaseException as error:
            await self.after_failed_commit(write, error)
        else:
            write.outcome = Outcome.COMMITTED
            await self._after_commit(write)

    def _assert_within_bound(self, write: DualWriteProgress, bounded_ms: int) -> None:
        """Raise BoundExceededError if Kafka may abort before the decision; it counts from the first record."""
        passed_ms = (monotonic.since_boot_s() - write.sends_since_s) * 1000
        if passed_ms < bounded_ms - min(bounded_ms // 10, _MOST_MARGIN_MS):
            return
        raise BoundExceededError(
            f"the dual write {write.prepared_state} of transactional id {self._owned.transactional_id!r} has taken "
            f"{passed_ms:.0f} ms since its first record, and Kafka aborts it after "
            f"transaction.timeout.ms={bounded_ms}: a database commit now could take effect without Kafka's. Neither "
            "side was changed; repeat the dual write, and if it always takes this long, make it smaller or increase "
            "transaction.timeout.ms"
        )

    async def _after_commit(self, write: DualWriteProgress) -> None:
        owned = self._owned
        ours = write.prepared_state
        try:
            owned.telemetry.reach(PausePoint.AFTER_DATABASE_COMMIT)
            self._slot.note(in_doubt=ours)
            await owned.complete_kafka(ours, Outcome.COMMITTED)
            owned.telemetry.reach(PausePoint.AFTER_KAFKA_COMMIT)
        except BaseException as error:
            if self._slot.state is SlotState.DECIDING:
                await owned.leave_in_doubt(ours)
            if not isinstance(error, PreparedTransactionLost):
                error.add_note(f"The dual write {ours} of {owned.transactional_id!r} is committed anyway.")
            raise

    async def after_failed_commit(self, write: DualWriteProgress, error: BaseException) -> None:
        """Roll back if COMMIT was not sent; else resolve the outcome, which only the row shows.

        This transaction must be over before the row can be locked, here or in recover().
        """
        if not write.database.commit_was_sent:
            await self.roll_back(write)
            if isinstance(error, Exception):
                pass_on_signal(error)
            raise error
        self._lost_commits.begin(write)
        await self._owned.uninterrupted(write.database.rollback())
        if not isinstance(error, Exception):
            raise error  # interrupted: querying the database may take long, so leave it to recover()
        pass_on_signal(error)  # the same
        try:
            outcome = (await self._lost_commits.resolve()).outcome
        except OutcomeUnknown as unknown:
            raise unknown from error
        if outcome is Outcome.ROLLED_BACK:
            raise error
        _log.warning(
            "transactional id %s: the dual write %s is committed, although its commit raised",
            self._owned.transactional_id,
            write.prepared_state,
            exc_info=error,
        )

    async def roll_back(self, write: DualWriteProgress) -> None:
        """Roll both sides back, even if the caller is interrupted."""
        await self._owned.uninterrupted(self._roll_back(write))

    async def _roll_back(self, write: DualWriteProgress) -> None:
        await roll_back_database(write)
        if write.transactional_id is not None and self._slot.state in (SlotState.OPEN, SlotState.DECIDING):
            names_another = not write.locked_row.is_empty and write.prepared_state == write.locked_row
            # a take-over would find the pair of the row aborted, and take that for a loss
            await self._owned.complete_kafka(write.locked_row, Outcome.ROLLED_BACK, keeps_id=names_another)
