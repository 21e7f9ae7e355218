"""Read the lines that `batch_log` has written: how long each phase of a batch took. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Final

from spark_sink.store.rules import JOB_PREFIX, owner_of

PHASES: Final = ("plan", "write", "decide", "complete")


class Outcome(StrEnum):
    """Why a batch has a line."""

    COMMITTED = "committed"
    REPLAYED = "replayed"
    """Spark repeated the batch after its decision, so nothing was written."""
    COMPLETED_LATER = "completed-later"
    """Its driver died after the decision and a later plan completed it; the other phases have no times."""


@dataclass(frozen=True, slots=True)
class BatchLine:
    """The line of one batch. `times_ms` has the phases in the order of `PHASES`; 0 where the line has none."""

    sink_id: str
    query_id: str
    batch_id: int
    outcome: Outcome
    records: int
    times_ms: tuple[int, ...]

    @property
    def total_ms(self) -> int:
        """Duration of the whole batch while the sink took part in it."""
        return sum(self.times_ms)


_LINE: Final = re.compile(
    r"sink (?P<sink>\S+), batch (?P<batch>\d+) of (?P<query>.+?)"
    r"(?P<replayed>, which was decided before)?(?P<later>, which was decided [\d.]+ s before this plan)?"
    r": attempts=\d+ (?P<counts>(?:\w+=\d+ ?)+)"
)
_COUNT: Final = re.compile(r"(\w+)=(\d+)")


def batch_lines(log: Iterable[str]) -> Iterator[BatchLine]:
    """Yield the batches of a log, in its order; ignore text before and after a batch line."""
    for text in log:
        found = _LINE.search(text)
        if found is not None:
            yield _batch(found)


def medians_ms(batches: Sequence[BatchLine]) -> tuple[float, ...]:
    """Return the median of each phase, over the batches with all phases if there are any, else over all batches."""
    whole = [batch.times_ms for batch in batches if batch.outcome is Outcome.COMMITTED]
    return tuple(median(column) for column in zip(*(whole or [batch.times_ms for batch in batches]), strict=True))


def labels(batches: Sequence[BatchLine]) -> list[str]:
    """Return short names of the batches of one sink: numbers, prefixed with the query if there are several; job ids.

    A later call of foreachBatch for the same batch adds the number of the call: `7#2`.
    """
    several = len({owner_of(batch.query_id) for batch in batches}) > 1
    return [_label(batch, several=several) for batch in batches]


def _label(batch: BatchLine, *, several: bool) -> str:
    query = owner_of(batch.query_id)
    if query.startswith(JOB_PREFIX):
        return batch.query_id.removeprefix(JOB_PREFIX)
    name = f"{batch.batch_id}{batch.query_id.removeprefix(query)}"
    return f"{query[:8]}/{name}" if several else name


def _batch(found: re.Match[str]) -> BatchLine:
    counts = {name: int(value) for name, value in _COUNT.findall(found["counts"])}
    outcome = Outcome.COMMITTED
    if found["replayed"] is not None:
        outcome = Outcome.REPLAYED
    elif found["later"] is not None:
        outcome = Outcome.COMPLETED_LATER
    return BatchLine(
        found["sink"],
        found["query"],
        int(found["batch"]),
        outcome,
        counts.get("records", 0),
        tuple(counts.get(f"{phase}_ms", 0) for phase in PHASES),
    )
