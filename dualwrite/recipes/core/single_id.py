"""The blocks, Sessions and recoveries of a writer with one transactional id."""

from __future__ import annotations

from typing import Final

from dualwrite.recipes.core.coordinator import DualWriteCoordinator
from dualwrite.recipes.core.dual_write import DualWriteProgress, Resolution, found_in
from dualwrite.recipes.core.turns import IdUse


class SingleId:
    """The uses of one coordinator: one block at a time, and Sessions one after the other."""

    leases_at_commit = False

    def __init__(self, coordinator: DualWriteCoordinator) -> None:
        self.coordinator: Final = coordinator
        self.get_ready_for_sessions = coordinator.get_ready_for_sessions

    def new_use(self) -> UseByBlock:
        return UseByBlock(self.coordinator)

    async def commit_in_turn(self, write: DualWriteProgress) -> None:
        """Commit the dual write of a Session when the id is free. Raises as `acquire_in_turn` does."""
        use = self.new_use()
        try:
            await self.coordinator.acquire_in_turn(use)
            await self.coordinator.commit(write)
        finally:
            try:
                use.leave()
            except BaseException:  # an interruption
                use.leave()
                raise

    async def recover(self) -> list[Resolution]:
        """Recover the id, as `DualWriteCoordinator.recover`. Raises IllegalStateError if it is in use."""
        with self.coordinator.exclusively():
            return found_in(await self.coordinator.recover())

    async def close(self, timeout_s: float) -> None:
        await self.coordinator.close(timeout_s)
        self.coordinator.owned.availability.close()


class UseByBlock(IdUse):
    """The use of the id by one block, from its beginning to its end."""

    __slots__ = ("_coordinator", "commit", "get_ready", "roll_back")

    needs_slot_early = False

    def __init__(self, coordinator: DualWriteCoordinator) -> None:
        super().__init__(coordinator.users.current())
        self._coordinator = coordinator
        self.get_ready = coordinator.get_ready
        self.commit = coordinator.commit
        self.roll_back = coordinator.roll_back

    def enter(self) -> None:
        self._coordinator.acquire(self)

    async def take_slot(self) -> None:
        """Do nothing: the block has its id from `enter` on."""

    def leave(self) -> None:
        self._coordinator.release(self)
