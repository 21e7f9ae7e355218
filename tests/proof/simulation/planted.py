"""Mistakes planted into the library or into the simulated servers, to show that simulations find them.

A mistake replaces a piece of a module's source while that module is imported, so it is planted into a fresh process.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Final, Literal, NamedTuple

Kind = Literal["writers", "hanging", "ways", "spark"]
"""Dual writes under one id or several, the same while markers are lost, pools with an outbox, or a query with the Spark
sink."""


class Edit(NamedTuple):
    """A piece of a module's source, and its replacement."""

    module: str
    right: str
    wrong: str


class Mistake(NamedTuple):
    """A change that the simulation must find."""

    edits: Sequence[Edit]
    kind: Kind = "writers"


_CORE: Final = "dualwrite.recipes.core"
_SIMULATED: Final = "tests.proof.simulation"

_UNVERIFIED: Final = Edit(f"{_CORE}.completion", "if proof.is_known:", "if False:")
"""No last look at the log: otherwise a transaction that a mistake aborts is published again."""


def _of_ways(module: str, right: str, wrong: str) -> Mistake:
    return Mistake([Edit(f"dualwrite.recipes.pool.{module}", right, wrong)], kind="ways")


MISTAKES: Final = {
    "Kafka commits before the database": Mistake(
        [
            Edit(
                f"{_CORE}.steps",
                (
                    "            if write.bounded_ms is not None:\n"
                    "                self._assert_within_bound(write, write.bounded_ms)\n"
                ),
                "            await self._owned.kafka.commit()\n",
            )
        ],
    ),
    "no earlier owner is fenced": Mistake([Edit(f"{_CORE}.completion", "        await owned.kafka.own()\n", "")]),
    "a batch goes behind a transaction that hangs": Mistake(
        [Edit("dualwrite.client.transactions.earlier", "if self._is_off or is_stored:", "if True:")],
        kind="hanging",
    ),
    "recovery aborts": Mistake(
        [
            Edit(
                f"{_CORE}.completion",
                "await owned.kafka.complete(row, is_over=proof.is_over)",
                "await owned.kafka.complete(NOTHING_PREPARED, is_over=proof.is_over)",
            ),
            _UNVERIFIED,
        ],
    ),
    "the row is not read again after the initialisation": Mistake(
        [
            Edit(
                f"{_CORE}.completion",
                "        row = await database.read(owned.transactional_id)\n        if",
                "        row = owned.row\n        if",
            )
        ],
    ),
    "what was read is not made durable": Mistake(
        [Edit(f"{_CORE}.owned_id", "if not (row.is_empty and ongoing.is_empty):", "if False:")]
    ),
    "a lost commit that was found is not made durable": Mistake(
        [
            Edit(
                f"{_CORE}.completion",
                "        await self._make_durable_or_stay_unresolved(row)\n",
                "        pass\n",
            )
        ],
    ),
    "a commit that was sent counts as rolled back": Mistake(
        [Edit(f"{_CORE}.steps", "if not write.database.commit_was_sent:", "if True:")]
    ),
    "what is owed is forgotten": Mistake([Edit(f"{_CORE}.completion", "owed=proof.owed", "owed=()")]),
    "the log is not asked": Mistake(
        [Edit(f"{_CORE}.repair", "if owned.kafka.memory.knows(row):", "if True:"), _UNVERIFIED]
    ),
    "a lock excludes nobody": Mistake(
        [
            Edit(
                f"{_SIMULATED}.database",
                "        if holder is not None and holder is not session:",
                "        if False:",
            )
        ],
    ),
    "the database acknowledges what is not durable": Mistake(
        [
            Edit(
                f"{_SIMULATED}.database",
                "        if not self.standby_is_away:\n            delay_s",
                "        self._show(session, change)\n        reply(True)\n        if not self.standby_is_away:\n"
                "            delay_s",
            )
        ],
    ),
    "a leader acknowledges what is not replicated": Mistake(
        [
            Edit(
                "dualwrite.broker_emulator.api.produce",
                "    return write.partition is not None and not write.partition.log.is_replicated",
                "    return False",
            )
        ],
    ),
    "a task that was given up begins a transaction": Mistake(
        [
            Edit(
                "spark_sink.attempt.task_transaction",
                "_assert_still_mine(transactional_id, still_mine)\n            producer.begin_transaction()",
                "producer.begin_transaction()",
            ),
        ],
        kind="spark",
    ),
    "blocks do not look for a diversion": _of_ways(
        "coordinator",
        "if pool.availability.away is not None or await self._outbox.writes.follows_diverted(write):",
        "if pool.availability.away is not None:",
    ),
    "a block whose commit was sent counts as rolled back": _of_ways(
        "outbox", "if not write.database.commit_was_sent:", "if True:"
    ),
}


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, edits: Sequence[Edit]) -> None:
        super().__init__(name, path)
        self._edits = edits

    def get_code(self, fullname: str) -> object:  # type: ignore[override]  # never from a cache
        return self.source_to_code(self.get_data(self.path), self.path)

    def get_data(self, path: str) -> bytes:
        data = super().get_data(path)
        if path == self.path:
            for edit in self._edits:
                right = edit.right.encode()
                assert data.count(right) == 1, f"{edit.right!r} is not once in {path}"
                data = data.replace(right, edit.wrong.encode())
        return data


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, edits: Sequence[Edit]) -> None:
        self._edits = edits

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        edits = [edit for edit in self._edits if edit.module == fullname]
        spec = PathFinder.find_spec(fullname, path) if edits else None
        if spec is None or spec.origin is None:
            return None
        spec.loader = _Loader(fullname, spec.origin, edits)
        return spec


def plant(name: str) -> None:
    """Plant a mistake; before the modules that it changes are imported."""
    edits = MISTAKES[name].edits
    for edit in edits:
        assert edit.module not in sys.modules, f"{edit.module} is imported already"
    sys.meta_path.insert(0, _Finder(edits))
