"""The counts of a run, from the workers' reports; no I/O."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dualwrite.outcome import Outcome
from dualwrite.recipes.core.pause_points import PausePoint
from examples.flights.job import Report
from examples.flights.kill_plan import TAKEOVER_POINTS

_BEHIND_COMPLETION = (PausePoint.AFTER_COMPLETION, PausePoint.AFTER_TAKEOVER)

# A worker killed right after its take-over does not report the outcome, but its predecessor's point of death shows it.
_COMPLETED_UNSEEN = {
    PausePoint.AFTER_PREPARE: Outcome.ROLLED_BACK,
    PausePoint.AFTER_STATE_WRITE: Outcome.ROLLED_BACK,
    PausePoint.BEFORE_DATABASE_COMMIT: Outcome.ROLLED_BACK,
    PausePoint.AFTER_DATABASE_COMMIT: Outcome.COMMITTED,
}


@dataclass(slots=True)
class Tally:
    """The counts of one run."""

    rows: int = 0
    lives: int = 0
    failures: int = 0
    """Workers that ended by themselves and were started again (--keep-going)."""
    killed_at: Counter[PausePoint] = field(default_factory=Counter)
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    """The outcomes of recoveries, one per life that found a transaction to recover."""
    _left_by: PausePoint | None = None

    @property
    def kills(self) -> int:
        return self.killed_at.total()

    @property
    def rolled_forward(self) -> int:
        return self.outcomes[Outcome.COMMITTED]

    @property
    def rolled_back(self) -> int:
        return self.outcomes[Outcome.ROLLED_BACK]

    def started(self) -> None:
        self.lives += 1

    def reported(self, report: Report) -> None:
        self.rows = report.rows
        if report.recovered is not None:
            self.outcomes[report.recovered] += 1
            self._left_by = None

    def killed(self, point: PausePoint) -> None:
        self.killed_at[point] += 1
        if point in _BEHIND_COMPLETION and self._left_by in _COMPLETED_UNSEEN:
            self.outcomes[_COMPLETED_UNSEEN[self._left_by]] += 1
            self._left_by = None
        elif point not in TAKEOVER_POINTS:
            self._left_by = point

    def failed(self) -> None:
        self.failures += 1
