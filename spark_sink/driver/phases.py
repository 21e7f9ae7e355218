"""How long the phases of a batch took: plan, write, decide, complete. For operators; nothing is decided by it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_sink.handoff import TaskResult


@dataclass(frozen=True)
class PhaseTimes:
    """The phases of one batch, in seconds; 0 for those that the process did not see."""

    plan_s: float = 0.0
    write_s: float = 0.0
    """From the end of the plan until the committer had the results of all tasks."""
    decide_s: float = 0.0
    complete_s: float = 0.0


class PhaseClock:
    """Measures the phases from the beginning of COMMIT on; the results of the tasks give the earlier ones."""

    def __init__(self, results: Sequence[TaskResult]) -> None:
        self._since_s = time.perf_counter()
        planned = next((result.plan_time for result in results if result.plan_time is not None), None)
        self.times = PhaseTimes()
        if planned is not None:
            self.times = PhaseTimes(planned.took_s, max(0.0, time.time() - planned.ended_at_s))

    def decided(self) -> None:
        """Note the end of the decision."""
        self.times = replace(self.times, decide_s=self._lap_s())

    def completed(self) -> None:
        """Note the end of the completion."""
        self.times = replace(self.times, complete_s=self._lap_s())

    def _lap_s(self) -> float:
        began_s, self._since_s = self._since_s, time.perf_counter()
        return self._since_s - began_s
