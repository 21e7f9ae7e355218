"""Mistakes that are planted into the library or into the simulated servers, to show that simulations find them.

A mistake replaces a piece of a module's source while that module is imported, so it is planted into a fresh process.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Final, NamedTuple


class Mistake(NamedTuple):
    """A piece of a module's source, and what it becomes."""

    module: str
    right: str
    wrong: str
    found_by: int
    """A seed that finds it."""


_CORE: Final = "dualwrite.recipes.core"
_SIMULATED: Final = "tests.proof.simulation"

MISTAKES: Final = {
    "Kafka commits before the database": Mistake(
        f"{_CORE}.steps",
        "            await write.database.commit()\n        except BaseException as error:\n            await self.after",
        "            await self._owned.kafka.commit()\n            await write.database.commit()\n"
        "        except BaseException as error:\n            await self.after",
        0,
    ),
    "nobody is fenced": Mistake(f"{_CORE}.completion", "        await owned.kafka.own()\n", "", 0),
    "recovery aborts": Mistake(
        f"{_CORE}.completion",
        "await owned.kafka.complete(row, is_over=proof.is_over)",
        "await owned.kafka.complete(PreparedTxnState(), is_over=proof.is_over)",
        0,
    ),
    "the row is not read again after the initialisation": Mistake(
        f"{_CORE}.completion",
        "        row = await database.read(owned.transactional_id)\n        if",
        "        row = owned.row\n        if",
        0,
    ),
    "what was read is not made durable": Mistake(
        f"{_CORE}.owned_id", "if not (row.is_empty and ongoing.is_empty):", "if False:", 0
    ),
    "a lost commit that was found is not made durable": Mistake(
        f"{_CORE}.completion", "            await self._make_durable_or_stay_unresolved(write, ours)\n", "            pass\n", 0
    ),
    "a row that has changed is not noticed": Mistake(f"{_CORE}.steps", "if row == owned.row:", "if True:", 0),
    "a commit that was sent counts as rolled back": Mistake(
        f"{_CORE}.steps", "if not write.database.commit_was_sent:", "if True:", 0
    ),
    "what is owed is forgotten": Mistake(f"{_CORE}.completion", "owned.owed = proof.owed", "owned.owed = ()", 0),
    "the log is not asked": Mistake(f"{_CORE}.repair", "if owned.kafka.coordinator_knows(row):", "if True:", 0),
    "the last look at the log is left out": Mistake(f"{_CORE}.completion", "if proof.is_known:", "if False:", 0),
    "the lock is not looked at again": Mistake(
        f"{_CORE}.completion",
        "        await _assert_still_locked(owned, database, row)\n        await owned.kafka.own()",
        "        await owned.kafka.own()",
        0,
    ),
    "a lock excludes nobody": Mistake(
        f"{_SIMULATED}.database",
        "        if holder is not None and holder is not session:",
        "        if False:",
        0,
    ),
    "the database acknowledges what is not durable": Mistake(
        f"{_SIMULATED}.database",
        "        if not self.standby_is_away:\n            delay_s",
        "        self._show(session, change)\n        reply(True)\n        if not self.standby_is_away:\n            delay_s",
        0,
    ),
    "brokers acknowledge what is not replicated": Mistake(
        "dualwrite.broker_emulator.cluster.node",
        "        if error is NO_ERROR and not log.is_replicated:\n            return await",
        "        if False:\n            return await",
        0,
    ),
}


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, mistake: Mistake) -> None:
        super().__init__(name, path)
        self._mistake = mistake

    def get_code(self, fullname: str) -> object:  # type: ignore[override]  # never from a cache
        return self.source_to_code(self.get_data(self.path), self.path)

    def get_data(self, path: str) -> bytes:
        data = super().get_data(path)
        right = self._mistake.right.encode()
        if path != self.path:
            return data
        assert data.count(right) == 1, f"{self._mistake.right!r} is not once in {path}"
        return data.replace(right, self._mistake.wrong.encode())


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mistake: Mistake) -> None:
        self._mistake = mistake

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path) if fullname == self._mistake.module else None
        if spec is None or spec.origin is None:
            return None
        spec.loader = _Loader(fullname, spec.origin, self._mistake)
        return spec


def plant(name: str) -> None:
    """Plant a mistake; before the module is imported."""
    mistake = MISTAKES[name]
    assert mistake.module not in sys.modules, f"{mistake.module} is imported already"
    sys.meta_path.insert(0, _Finder(mistake))
