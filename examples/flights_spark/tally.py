"""The counts of a run; no I/O."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from examples.flights_spark.kill_plan import Moment


@dataclass(slots=True)
class Tally:
    """The counts of one run, and the kills that the plot shows."""

    lives: int = 0
    tasks: list[int] = field(default_factory=list)
    """The number of tasks of each life."""
    killed: list[tuple[float, Moment]] = field(default_factory=list)
    """Each kill: seconds since the start of the run, and its moment."""
    rolled_forward: int = 0
    """Batches that a kill left decided; the next life completed them."""
    rolled_back: int = 0
    """Batches that a kill left undecided; the next life aborted them and wrote them again."""

    @property
    def kills(self) -> int:
        return len(self.killed)

    @property
    def killed_in(self) -> Counter[Moment]:
        return Counter(moment for _, moment in self.killed)
