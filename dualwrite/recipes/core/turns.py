"""Turns of threads, and of asyncio tasks, under one transactional id."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from dualwrite.errors import IllegalStateError
from dualwrite.recipes.core.coordinator import DualWriteCoordinator
from dualwrite.recipes.core.dual_write import DualWriteProgress, Resolution, found_in
from dualwrite.recipes.core.id_users import IdUse


class ThreadTurns:
    """The uses of one coordinator by threads: one block at a time, and Sessions one after the other."""

    leases_at_commit = False

    def __init__(self, coordinator: DualWriteCoordinator) -> None:
        self.coordinator: Final = coordinator
        self.get_ready_for_sessions = coordinator.get_ready_for_sessions

    def new_use(self) -> UseByBlock:
        """Return the use of the id by one block, which has not acquired it yet."""
        return UseByBlock(self.coordinator)

    async def commit_in_turn(self, write: DualWriteProgress) -> None:
        """Commit a dual write of this thread when the id is free. Raises as `acquire_in_turn` does."""
        use = IdUse()
        try:
            self.coordinator.acquire_in_turn(use)
            await self.coordinator.commit(write)
        finally:
            try:
                self.coordinator.release(use)
            except BaseException:  # an interruption
                self.coordinator.release(use)
                raise

    async def recover(self) -> list[Resolution]:
        """Recover the id, as `DualWriteCoordinator.recover`. Raises IllegalStateError if it is in use."""
        with self.coordinator.exclusively():
            return found_in(await self.coordinator.recover())

    async def close(self, timeout_s: float) -> None:
        """Close the coordinator, as `DualWriteCoordinator.close`."""
        await self.coordinator.close(timeout_s)
        self.coordinator.owned.availability.close()


class UseByBlock(IdUse):
    """The use of the id by one block, from its beginning to its end."""

    __slots__ = ("_coordinator", "commit", "get_ready", "roll_back")

    needs_slot_early = False

    def __init__(self, coordinator: DualWriteCoordinator) -> None:
        super().__init__()
        self._coordinator = coordinator
        self.get_ready = coordinator.get_ready
        self.commit = coordinator.commit
        self.roll_back = coordinator.roll_back

    def enter(self) -> None:
        """Acquire the id, as `DualWriteCoordinator.acquire`."""
        self._coordinator.acquire(self)

    async def take_slot(self) -> None:
        """Do nothing: the block has its id from `enter` on."""

    def leave(self) -> None:
        """Release the id, as `DualWriteCoordinator.release`."""
        self._coordinator.release(self)


class TaskTurns:
    """The uses of one coordinator by the tasks of one loop, first come, first served."""

    leases_at_commit = False

    def __init__(self, coordinator: DualWriteCoordinator) -> None:
        self.coordinator: Final = coordinator
        timeout_ms = coordinator.owned.lock_timeout_ms
        self._timeout_s = None if timeout_ms is None else timeout_ms / 1000
        self._user: asyncio.Task[Any] | None = None
        self._use = IdUse()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closing = 0
        self.get_ready = coordinator.get_ready
        self.get_ready_for_sessions = coordinator.get_ready_for_sessions
        self.commit = coordinator.commit
        self.roll_back = coordinator.roll_back

    def new_use(self) -> UseByTask:
        """Return the use of the id by one block, which has not acquired it yet."""
        return UseByTask(self)

    def enter(self) -> None:
        """Acquire the id without waiting, as `DualWriteCoordinator.acquire`; tasks that wait get their turn after it.

        Raises IllegalStateError while `close` waits.
        """
        use = IdUse()
        try:
            if self._closing:
                raise IllegalStateError("this writer is being closed; nothing was done: make a new one")
            self.coordinator.acquire(use)
        except BaseException:
            self.coordinator.release(use)
            if self._user is None:
                self._wake_next()
            raise
        self._user, self._use = asyncio.current_task(), use

    def leave(self) -> None:
        """Let the task that has waited longest have the id."""
        self._user = None
        self.coordinator.release(self._use)
        self._wake_next()

    async def commit_in_turn(self, write: DualWriteProgress) -> None:
        """Commit a dual write of this task when the id is free.

        Raises IllegalStateError if its turn does not come within the lock timeout of the row.
        """
        if self._user is not None and self._user is asyncio.current_task():
            raise self.coordinator.not_its_turn("task", is_mine=True)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._wait()
        except TimeoutError:
            raise self.coordinator.not_its_turn("task", is_mine=False) from None
        self.enter()
        try:
            await self.commit(write)
        finally:
            self.leave()

    async def recover(self) -> list[Resolution]:
        """Recover the id, as `DualWriteCoordinator.recover`. Raises IllegalStateError if it is in use."""
        self.enter()
        try:
            return found_in(await self.coordinator.recover())
        finally:
            self.leave()

    async def close(self, timeout_s: float) -> None:
        """Close the coordinator when the id is free, and let no task use it from now on.

        Raises IllegalStateError, and closes nothing, if this task uses it, or if it is not free within `timeout_s`
        seconds.
        """
        if self._user is not None and self._user is asyncio.current_task():
            raise IllegalStateError("this task runs a dual write; leave its block before closing the writer")
        self._closing += 1
        try:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wait()
            except TimeoutError:
                raise self.coordinator.still_used("task", timeout_s) from None
            await self.coordinator.close()
            self.coordinator.owned.availability.close()
        finally:
            self._closing -= 1
            if self._user is None:
                self._wake_next()

    async def _wait(self) -> None:
        was_waiting = False
        while self._user is not None or (self._waiting and not was_waiting):
            turn = asyncio.get_running_loop().create_future()
            (self._waiting.appendleft if was_waiting else self._waiting.append)(turn)
            try:
                await turn
            except BaseException:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                elif self._user is None:
                    self._wake_next()  # this task was given the turn and does not take it
                raise
            was_waiting = True

    def _wake_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


class UseByTask:
    """The use of the id by one block of a task."""

    needs_slot_early = False

    def __init__(self, turns: TaskTurns) -> None:
        self._turns = turns
        self._has_id = False
        self.get_ready = turns.get_ready
        self.commit = turns.commit
        self.roll_back = turns.roll_back

    def enter(self) -> None:
        """Acquire the id, as `TaskTurns.enter`."""
        self._turns.enter()
        self._has_id = True

    async def take_slot(self) -> None:
        """Do nothing: the block has its id from `enter` on."""

    def leave(self) -> None:
        """Release the id, if the block has it."""
        if self._has_id:
            self._has_id = False
            self._turns.leave()
