"""An emulator's memory of a transactional id, to change where the way there takes thousands of requests."""

from __future__ import annotations

from typing import Any

from dualwrite.broker_emulator import Emulator


def change_transaction(emulator: Emulator, transactional_id: str, **changes: Any) -> None:
    """Change the coordinator's memory of the id, by the names of TransactionMetadata."""

    def apply() -> None:
        for node in emulator.cluster.nodes.values():
            for owned in node.transactions._partitions.values():
                if transactional_id in owned.ids:
                    owned.ids[transactional_id] = owned.ids[transactional_id]._replace(**changes)

    emulator.call_in_loop(apply)
