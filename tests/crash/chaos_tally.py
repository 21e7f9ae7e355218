"""The counts and the problems of a run of chaos."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from dualwrite.admin import HangingTransaction
from dualwrite.verify.anomalies import Anomaly
from tests.crash.chaos_absences import Absence
from tests.crash.chaos_ways import WAYS

Told = Counter[tuple[str, str]]
"""The blocks of each way, by their results."""


@dataclass
class Tally:
    """Counts of events, for people, and what must not be."""

    deeds: Counter[str] = field(default_factory=Counter)
    traps: Counter[str] = field(default_factory=Counter)
    told: Told = field(default_factory=Counter)
    absences: list[tuple[Absence, Told]] = field(default_factory=list)
    """The blocks that began and ended without Kafka."""
    ordered: Counter[str] = field(default_factory=Counter)
    """The records of locked rows, by their way."""
    out_of_place: int = 0
    """Direct blocks that were published again, maybe behind others of their row."""
    anomalies: Counter[Anomaly] = field(default_factory=Counter)
    rows: int = 0
    records: int = 0
    read: int = 0
    """Records that a reader got while it raged."""
    proofs: int = 0
    """How often the log was read to prove the end of a transaction, by log message."""
    repairs: int = 0
    """Decided transactions, aborted by Kafka and published again, by log message."""
    slots: int = 0
    hanging: list[HangingTransaction] = field(default_factory=list)
    """Transactions that Kafka left without an end marker (KAFKA-20734), ended by hand."""
    problems: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"kills and freezes: {_counted(self.deeds)}"
        yield f"traps sprung: {_counted(self.traps)}"
        for way in WAYS:
            yield f"{way}: blocks {_of(way, self.told)}; {self.ordered[way]} records of locked rows"
        for absence, told in self.absences:
            yield f"without Kafka for {absence.back_s - absence.gone_s:.1f} s: " + "; ".join(
                f"{way}: {_of(way, told)}" for way in WAYS
            )
        yield (
            f"{self.rows} rows, {self.records} records, {self.read} of them read meanwhile; {self.slots} slots; "
            f"{self.proofs} proofs from the log, {self.repairs} repairs, {self.out_of_place} direct blocks in another "
            f"place by them; {len(self.hanging)} left by Kafka without a marker (KAFKA-20734)"
        )
        yield f"anomalies: {_counted(self.anomalies)}; problems: {len(self.problems)}"


def _counted(counts: Counter[str] | Counter[Anomaly]) -> str:
    return ", ".join(f"{number} {what}" for what, number in sorted(counts.items())) or "none"


def _of(way: str, told: Told) -> str:
    return _counted(Counter({how: number for (each, how), number in told.items() if each == way}))
