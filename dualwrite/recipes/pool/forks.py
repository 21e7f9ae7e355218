"""Pools of threads across `os.fork()`: the child gets slots, leases and a background of its own."""

from __future__ import annotations

import os
import weakref

from dualwrite.recipes.pool.coordinator import PoolCoordinator


class BeginsAnewInChildren:
    """A pool that has another life in each process."""

    _writes: PoolCoordinator

    def _begin_life(self) -> None:
        """Make `_writes`, for this process."""
        raise NotImplementedError

    def _live(self) -> None:
        """To be called once, when all settings are known."""
        self._of_parents: list[PoolCoordinator] = []
        self._begin_life()
        weakref.finalize(self, self._writes.forget)
        _pools.add(self)

    def _after_fork_in_child(self) -> None:
        self._writes.leave_to_parent()
        self._of_parents.append(self._writes)  # kept, so that nothing of it is ended by being collected
        self._begin_life()
        weakref.finalize(self, self._writes.forget)


_pools: weakref.WeakSet[BeginsAnewInChildren] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for pool in list(_pools):
        pool._after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
