"""The spaces that are searched: which broker, which faults, and which dual writes.

`SMALL` is for `make test`, `LARGE` for `make proof`. Two processes share one transactional id in each. `python -m
tests.proof.explore` searches any other space.
"""

from __future__ import annotations

from itertools import product
from typing import Final, NamedTuple

from tests.proof.explore import Explorer, Found
from tests.proof.kafka_model import PROFILES, UPGRADED
from tests.proof.shape import ONE_RECORD, Shape
from tests.proof.world import Budget, Rules

_ONE_EACH: Final = ((b"a1",), (b"b1",))
_TWO_AND_ONE: Final = ((b"a1", b"a2"), (b"b1",))

_ONE_WRITER: Final = ((b"a1", b"a2"),)

_TWO_PARTITIONS: Final = Shape(partitions=2)
_APART: Final = Shape(partitions=2, apart=True)
_OFFSETS: Final = Shape(has_offsets=True)


class Space(NamedTuple):
    """One search."""

    tier: int
    budget: Budget
    written: tuple[tuple[bytes, ...], ...] = _ONE_EACH
    """The dual writes of each process."""
    predicts: bool = False
    """Whether the row is written ahead of the records, as with psycopg."""
    shape: Shape = ONE_RECORD

    @property
    def name(self) -> str:
        faults = "-".join(f"{name}{n}" for name, n in self.budget._asdict().items() if n)
        count = sum(len(values) for values in self.written)
        shape = f"-{self.shape.name}" if self.shape.name else ""
        return f"tier{self.tier}-{faults or 'nothing fails'}-{count} writes{'-ahead' if self.predicts else ''}{shape}"

    def search(self) -> Found:
        """Visit every state."""
        profile = UPGRADED if self.budget.upgrades else PROFILES[self.tier]
        rules = Rules(profile, self.written, (b"c1",), predicts=self.predicts, shape=self.shape)
        try:
            return Explorer(rules, self.budget).search()
        finally:
            rules.close()


SMALL: Final = (
    Space(1, Budget(losses=1)),
    Space(1, Budget(foreigners=1)),
    Space(1, Budget(kills=1), _TWO_AND_ONE),
    Space(2, Budget(expiries=1)),
    Space(3, Budget(timeouts=1)),
    Space(3, Budget(expiries=1)),
    Space(3, Budget(), _TWO_AND_ONE, predicts=True),
    Space(4, Budget(timeouts=1)),
    Space(4, Budget(expiries=1)),
    Space(1, Budget(), shape=_TWO_PARTITIONS),
    Space(4, Budget(), shape=_TWO_PARTITIONS),
    Space(3, Budget(), _TWO_AND_ONE, shape=_APART),
    Space(1, Budget(), _TWO_AND_ONE, shape=_OFFSETS),
    Space(4, Budget(), _TWO_AND_ONE, shape=_OFFSETS),
    Space(1, Budget(moves=1)),
    Space(4, Budget(upgrades=1)),
    Space(1, Budget(terminations=1)),
    Space(1, Budget(aborts=1)),
    Space(3, Budget(aborts=1)),
)

_ONE_FAULT: Final = tuple(Budget(**{name: 1}) for name in Budget._fields if name != "upgrades")

_OF_KAFKA: Final = ("crashes", "timeouts", "terminations", "aborts")
"""Faults by which the partitions of a transaction could end differently. An abort of offsets is noticed by nobody."""

LARGE: Final = (
    *(Space(tier, budget) for tier, budget in product(PROFILES, _ONE_FAULT)),
    *(Space(tier, Budget(kills=1), _TWO_AND_ONE, predicts=True) for tier in PROFILES),
    *(Space(tier, Budget(timeouts=2)) for tier in (3, 4)),
    *(Space(tier, Budget(kills=1, timeouts=1)) for tier in (3, 4)),
    *(Space(4, Budget(upgrades=1, **{name: 1})) for name in ("crashes", "kills", "timeouts", "moves")),
    *(Space(tier, Budget(**{name: 1}), shape=_TWO_PARTITIONS) for tier, name in product(PROFILES, _OF_KAFKA)),
    *(Space(tier, Budget(**{name: 1}), _TWO_AND_ONE, shape=_APART) for tier, name in ((1, "losses"), (3, "timeouts"))),
    *(Space(tier, Budget(**{name: 1}), shape=_OFFSETS) for tier, name in product(PROFILES, _OF_KAFKA[:-1])),
    *(Space(tier, Budget(losses=1), _ONE_WRITER, shape=_OFFSETS) for tier in PROFILES),
)
