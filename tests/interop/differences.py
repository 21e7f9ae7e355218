"""Where the emulator and a real Apache Kafka are known to behave differently, each with the reason, in one table.

docs/interop.md shows it. What only tells one release of Kafka from another is not here: the emulator has a profile for
it (`BrokerConfig.profile`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Difference:
    """One behaviour that a client can see."""

    subject: str
    emulator: str
    apache_kafka: str
    reason: str


DIFFERENCES: Final[tuple[Difference, ...]] = ()


def as_table() -> str:
    """The table for the page."""
    rows = [(each.subject, each.emulator, each.apache_kafka, each.reason) for each in DIFFERENCES]
    header = ("what", "the emulator", "Apache Kafka", "why")
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
