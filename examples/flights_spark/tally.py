"""What has happened so far, counted. No I/O."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from examples.flights_spark.kill_plan import Moment


@dataclass(slots=True)
class Tally:
    """The counts of one run, and the moments that the plot shows."""

    lives: int = 0
    tasks: list[int] = field(default_factory=list)
    """In how many tasks each life has written."""
    killed: list[tuple[float, Moment]] = field(default_factory=list)
    """When, in seconds since the start of the run, and in what moment."""
    rolled_forward: int = 0
    """Batches that a death left decided, so that the next life completed them."""
    rolled_back: int = 0
    """Batches that a death left undecided, so that the next life undid them and wrote them anew."""

    @property
    def kills(self) -> int:
        return len(self.killed)

    @property
    def killed_in(self) -> Counter[Moment]:
        return Counter(moment for _, moment in self.killed)
