"""A block that commits while Kafka is away: its records go into the database instead, in the same commit.

`stored_blocks.py` has the stored blocks and their limits; `publishing.py` publishes them.
"""

from __future__ import annotations

from dualwrite.errors import DualWriteError
from dualwrite.recipes.core.decisions import Outcome
from dualwrite.recipes.core.dual_write import DualWriteProgress
from dualwrite.recipes.core.owned_id import OwnedId
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.core.slot import SlotState
from dualwrite.recipes.core.steps import DualWriteSteps
from dualwrite.recipes.core.stored_blocks import BlockStore


class BlockStoring:
    """Stores blocks of one transactional id."""

    def __init__(self, owned: OwnedId, steps: DualWriteSteps, blocks: BlockStore) -> None:
        self._owned = owned
        self._steps = steps
        self._blocks = blocks

    async def store(self, write: DualWriteProgress, why: DualWriteError) -> None:
        """Store the records in the database instead of sending them. Asks nothing of Kafka."""
        owned, database = self._owned, write.database
        await self.leave_kafka()
        if write.transactional_id is None:
            write.locked_row = await self._steps.lock_row(database)
            write.transactional_id = owned.transactional_id
        manifest = await database.read_manifest(owned.transactional_id)  # the locked row's: none was written
        await self._blocks.append(write, why)
        # the row is written as it was, which proves that the lock is still held
        await self._steps.write_state(write, write.locked_row, manifest)
        owned.telemetry.reach(PausePoint.AFTER_STATE_WRITE)
        owned.telemetry.reach(PausePoint.BEFORE_DATABASE_COMMIT)

    async def leave_kafka(self) -> None:
        """Give the producer up. No row names its transaction, so the next take-over aborts that."""
        owned, state = self._owned, self._owned.slot.state
        if state is SlotState.OPEN and owned.owed:
            await owned.leave_in_doubt(owned.row)  # the row stays as it is, and so do the owed records
        elif state in (SlotState.OPEN, SlotState.READY):
            owned.slot.move(SlotState.NEW)
            await owned.give_up()

    async def decide(self, write: DualWriteProgress, why: DualWriteError) -> None:
        """Commit the database, which decides and stores the records."""
        try:
            await write.database.commit()
        except BaseException as error:
            await self._steps.after_failed_commit(write, error)
        else:
            write.outcome = Outcome.STORED
            self._owned.telemetry.reach(PausePoint.AFTER_DATABASE_COMMIT)
        self._blocks.note_stored(write, why)
