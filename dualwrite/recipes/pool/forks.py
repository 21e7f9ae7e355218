"""Pools for threads across `os.fork()`: the child gets its own slots, leases and background."""

from __future__ import annotations

import os
import weakref

from dualwrite.recipes.pool.coordinator import PoolCoordinator


class BeginsAnewInChildren:
    """A pool that has a separate coordinator in each process."""

    coordinator: PoolCoordinator

    def new_coordinator(self) -> PoolCoordinator:
        """Return a new coordinator for this process, on connections that are not shared with the parent."""
        raise NotImplementedError

    def begin_life(self) -> None:
        """Create the coordinator of this process; call it once, when all settings are known."""
        self._of_parents: list[PoolCoordinator] = []
        self.coordinator = self.new_coordinator()
        weakref.finalize(self, self.coordinator.forget)
        _pools.add(self)

    def begin_life_of_child(self) -> None:
        """Leave everything to the parent, and create a new coordinator for this forked process."""
        self.coordinator.leave_to_parent()
        self._of_parents.append(self.coordinator)  # kept, so that garbage collection does not close anything of it
        self.coordinator = self.new_coordinator()
        weakref.finalize(self, self.coordinator.forget)


_pools: weakref.WeakSet[BeginsAnewInChildren] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for pool in list(_pools):
        pool.begin_life_of_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
