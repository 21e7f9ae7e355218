"""The simulation of pools with the other two ways to Kafka: `Direct(when_kafka_is_away="store")` and `Outbox()`."""

from __future__ import annotations

from typing import Final

from dualwrite.delivery import Direct, Outbox
from dualwrite.guarantee import Tier
from tests.proof.simulation.application import POOL
from tests.proof.simulation.outbox import OutboxServer
from tests.proof.simulation.run import Result, Writers, simulate

_OUTAGES: Final = 8
"""How likely all brokers go away, beside the other faults."""


class Ways(Writers):
    """Processes that share a pool, whose blocks go to an outbox: always, or while Kafka is away."""

    server = OutboxServer

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        settings = self._settings
        settings.consumes = False  # offsets cannot go to an outbox
        settings.delivery = self.random.choice((Direct(when_kafka_is_away="store"), Outbox()))
        settings.locks_row = self.random.random() < 0.7
        self.faults.add_outages(_OUTAGES)
        self.history.note(f"{settings.delivery}, locks_row={settings.locks_row}")

    def _choose_ids(self) -> list[str]:
        return [POOL]

    def _lease_ends_s(self) -> float:
        assert isinstance(self.database, OutboxServer)
        return max(super()._lease_ends_s(), self.database.outbox_leases.ends_s())

    @property
    def _is_ordered(self) -> bool:  # type: ignore[override]
        """Whether all blocks lock one row, and no broker aborts a decided direct block."""
        settings = self._settings
        aborts = self.tier in (Tier.BOUNDED, Tier.BOUNDED_V1) and isinstance(settings.delivery, Direct)
        return settings.locks_row and not aborts

    def check(self) -> None:
        """Check too that nothing is left in the outbox."""
        assert isinstance(self.database, OutboxServer)
        if left := self.database.waits_at_rest():
            self.history.wrong(f"the blocks {left} are not published at rest")
        super().check()


def simulate_ways(seed: int) -> Result:
    """Run one seed."""
    return simulate(seed, Ways)
