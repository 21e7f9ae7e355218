"""The anomalies of a history, and findings of them, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_MOST_SHOWN: Final = 5


class Anomaly(StrEnum):
    """The kinds. G0 to G1c are those of Adya's "Weak Consistency" (MIT, 1999), here across both sides."""

    LOST_WRITE = "lost write"
    """Its rows exist, its records do not."""
    PHANTOM = "phantom"
    """A record exists without the rows of its dual write; or no dual write made this row or record."""
    DUPLICATE = "duplicate"
    TORN = "torn"
    """One part of a dual write is visible, and the rest is not."""
    ABORTED_READ = "aborted read (G1a)"
    """The dual write that made the value was rolled back."""
    INTERMEDIATE_READ = "intermediate read (G1b)"
    """The value is not the final one that its dual write made of the key."""
    PRECOMMITTED_READ = "precommitted read"
    """The dual write that made the value was not decided yet."""
    UNSTABLE_READ = "unstable read"
    """A reader with `read_committed` got a record that is not before the last stable offset."""
    MISSED_READ = "missed read"
    """A reader with `read_committed` went past a record that is visible now: it will never get it."""
    CHANGED_RECORD = "changed record"
    """Two records were seen at one offset."""
    NON_MONOTONIC_POLL = "non-monotonic poll"
    """A reader was taken back to offsets before its position."""
    OUT_OF_ORDER = "out of order"
    """Records of one key stand in another order than the rows of the key."""
    OFFSETS_BACK = "offsets going back"
    """The committed offset of a consumer group has become smaller."""
    TOLD_FALSELY = "told falsely"
    """A caller or a recovery got a false outcome."""
    LOST_UPDATE = "lost update"
    """Two dual writes made the same version of a key."""
    WRITE_CYCLE = "write cycle (G0)"
    """Dual writes that each come before the other, by their writes alone."""
    INFORMATION_CYCLE = "circular information flow (G1c)"
    """Dual writes that each come before the other, by their writes and reads."""
    OPEN_AT_REST = "open at rest"
    """A transaction still hides the end of a partition."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One case of an anomaly."""

    anomaly: Anomaly
    sentence: str
    dual_writes: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    """Partitions with offsets, `orders-3@17`."""

    def __str__(self) -> str:
        return f"{self.anomaly}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a check."""

    findings: tuple[Finding, ...]
    dual_writes: int
    committed: int
    """Dual writes with rows at rest; if they have no rows, with records."""
    rolled_back: int
    """All other dual writes."""
    records: int
    """Records of dual writes, at rest."""
    read: int
    """Records that readers with `read_committed` got, each as often as they got it."""

    @property
    def is_clean(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    @property
    def counts(self) -> Counter[Anomaly]:
        """The number of findings of each kind."""
        return Counter(finding.anomaly for finding in self.findings)

    def __str__(self) -> str:
        what = (
            f"{self.dual_writes} dual writes: {self.committed} committed, {self.rolled_back} rolled back; "
            f"{self.records} records, read {self.read} times"
        )
        if self.is_clean:
            return f"{what}; no anomaly"
        counts = ", ".join(f"{number} of {anomaly}" for anomaly, number in self.counts.items())
        return "\n".join([f"{what}; {counts}", *shown_of(self.findings)])


def shown_of(findings: Iterable[Finding], most: int = _MOST_SHOWN) -> list[str]:
    """Return the sentences of the first findings of each kind, and the number of further ones."""
    shown: list[str] = []
    seen: Counter[Anomaly] = Counter()
    for finding in findings:
        seen[finding.anomaly] += 1
        if seen[finding.anomaly] <= most:
            shown.append(str(finding))
    return shown + [f"{anomaly}: and {number - most} more" for anomaly, number in seen.items() if number > most]


def place(partition: str, offset: int) -> str:
    """Return the name of a place in the log."""
    return f"{partition}@{offset}"


def listed(names: Iterable[object]) -> str:
    """Return names with commas, the first few if there are many."""
    all_names = [str(name) for name in names]
    rest = len(all_names) - _MOST_SHOWN
    shown = ", ".join(all_names[:_MOST_SHOWN])
    return f"{shown} and {rest} more" if rest > 0 else shown
