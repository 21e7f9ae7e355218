"""A space's dual write in Kafka, beside its change of the database."""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """By default one record, to the only partition."""

    partitions: int = 1
    apart: bool = False
    """Whether a dual write sends its record to one of the partitions, not one to each."""
    has_offsets: bool = False
    """Whether it commits how far it has read its input."""

    def partitions_of(self, value: bytes) -> tuple[int, ...]:
        """Return the partitions that get the record of a dual write."""
        return (sum(value) % self.partitions,) if self.apart else tuple(range(self.partitions))

    @property
    def name(self) -> str:
        """The words for a space's name; "" for the default."""
        where = f"{self.partitions} partitions{' apart' if self.apart else ''}" if self.partitions > 1 else ""
        return " ".join(filter(None, (where, "offsets" if self.has_offsets else "")))


ONE_RECORD = Shape()
