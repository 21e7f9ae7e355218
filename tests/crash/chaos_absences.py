"""The times without Kafka in a run of chaos, and what became of the blocks meanwhile.

No block of a way that stores records fails because of Kafka, and none of the others is committed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dualwrite import errors
from dualwrite.errors import KafkaError, StoredBlocksError, StoreFullError
from tests.crash.chaos_job import BEGUN, COMMITTED, GivenUpError, Job, journal_lines
from tests.crash.chaos_ways import NEED_KAFKA, WAYS, way_of

OF_KAFKA: Final = (KafkaError, StoredBlocksError, StoreFullError)
_ERROR: Final = re.compile(r"(\w+)\(")


@dataclass
class Absence:
    """A time without Kafka, in seconds since 1970."""

    gone_s: float
    back_s: float = float("inf")
    """When it was about to come back."""

    def told(self, job: Job) -> Counter[tuple[str, str]]:
        """Count the blocks that began and ended without Kafka, by way and result: COMMITTED, or an error's name."""
        begun: set[str] = set()
        found: Counter[tuple[str, str]] = Counter()
        for line in journal_lines(job):
            name, told, at, *rest = line.split(" ", 3)
            if not self.gone_s <= float(at) <= self.back_s:
                continue
            if told == BEGUN:
                begun.add(name)
            elif name in begun:
                named = None if told == COMMITTED else _ERROR.search(rest[0])
                found[way_of(name), told if named is None else named[1]] += 1
        return found

    def stores(self, job: Job) -> bool:
        """Whether blocks were committed in each of the ways that do without Kafka."""
        told = self.told(job)
        return all(told[way, COMMITTED] for way in WAYS if way not in NEED_KAFKA)

    def problems(self, told: Counter[tuple[str, str]]) -> Iterator[str]:
        """Yield the results that no block may have without Kafka, and the ways that wrote nothing."""
        for (way, how), number in told.items():
            if how == COMMITTED if way in NEED_KAFKA else issubclass(getattr(errors, how, GivenUpError), OF_KAFKA):
                yield f"without Kafka since {self.gone_s:.3f} {number} blocks of {way} ended as {how}"
        for way in WAYS:
            if way not in NEED_KAFKA and not told[way, COMMITTED]:
                yield f"without Kafka since {self.gone_s:.3f} no block of {way} was committed"
