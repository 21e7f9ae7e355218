"""Events in the dual writes of one writer or pool that an operator has to know of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """Totals since a writer or pool was created."""

    no_manifest: int = 0
    """Dual writes that went on without a manifest."""
    unproven: int = 0
    """Transactions whose end nothing can prove any more."""
