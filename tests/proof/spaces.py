"""The spaces that are searched: which broker, which faults, and which dual writes.

`SMALL` is for `make test`, `LARGE` for `make proof`. Two processes share one transactional id in each. `python -m
tests.proof.explore` searches any other space.
"""

from __future__ import annotations

from itertools import product
from typing import Final, NamedTuple

from tests.proof.explore import Explorer, Found
from tests.proof.kafka_model import PROFILES
from tests.proof.owner import DEFAULTS, Settings
from tests.proof.world import Budget, Rules

_ONE_EACH: Final = ((b"a1",), (b"b1",))
_TWO_AND_ONE: Final = ((b"a1", b"a2"), (b"b1",))
_TWO: Final = ((b"a1", b"a2"),)
_THREE: Final = ((b"a1", b"a2", b"a3"),)

_STORES: Final = Settings(stores_blocks=True)
_STORES_ONE: Final = Settings(stores_blocks=True, most_bytes=40)
"""Room for one block, so that the next one is refused."""

_STORES_LARGE: Final = Settings(stores_blocks=True, blocks_are_large=True)
_FOLLOWS: Final = Settings(follows_later=True)
_STORES_AND_FOLLOWS: Final = Settings(stores_blocks=True, follows_later=True)
_COPIES: Final = Settings(keeps_copy=True)


class Space(NamedTuple):
    """One search."""

    tier: int
    budget: Budget
    written: tuple[tuple[bytes, ...], ...] = _ONE_EACH
    """The dual writes of each process."""
    predicts: bool = False
    """Whether the row is written ahead of the records, as with psycopg."""
    settings: Settings = DEFAULTS

    @property
    def name(self) -> str:
        faults = "-".join(f"{name}{n}" for name, n in self.budget._asdict().items() if n)
        count = sum(len(values) for values in self.written)
        shared = f"{count} writes of {len(self.written)}"
        settings = "".join(f"-{name}" for name, value in self.settings._asdict().items() if value)
        return f"tier{self.tier}-{faults or 'nothing fails'}-{shared}{'-ahead' if self.predicts else ''}{settings}"

    def search(self) -> Found:
        """Visit every state."""
        rules = Rules(PROFILES[self.tier], self.written, (b"c1",), predicts=self.predicts, settings=self.settings)
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
    Space(1, Budget(losses=1), _TWO, settings=_FOLLOWS),
    Space(4, Budget(timeouts=1), _TWO, settings=_FOLLOWS),
    Space(1, Budget(outages=1), _TWO),
    Space(1, Budget(outages=1), _TWO, settings=_STORES),
    Space(1, Budget(outages=1), _TWO, settings=_STORES_AND_FOLLOWS),
    Space(1, Budget(outages=1), _TWO, settings=_STORES_ONE),
    Space(1, Budget(give_ups=1), _TWO, settings=_STORES),
    Space(3, Budget(timeouts=1, deletions=1), ((b"a1",),)),
    Space(3, Budget(timeouts=1, deletions=1), ((b"a1",),), settings=_COPIES),
)

_ONE_FAULT: Final = tuple(Budget(**{name: 1}) for name in Budget._fields)

LARGE: Final = (
    *(Space(tier, budget) for tier, budget in product(PROFILES, _ONE_FAULT)),
    *(Space(tier, Budget(kills=1), _TWO_AND_ONE, predicts=True) for tier in PROFILES),
    *(Space(tier, Budget(timeouts=2)) for tier in (3, 4)),
    *(Space(tier, Budget(kills=1, timeouts=1)) for tier in (3, 4)),
    *(Space(tier, budget, _TWO, settings=_FOLLOWS) for tier, budget in product(PROFILES, _ONE_FAULT)),
    *(Space(tier, Budget(outages=1), _TWO, settings=_STORES) for tier in (2, 3, 4)),
    *(Space(tier, Budget(outages=1), _TWO, settings=_STORES_AND_FOLLOWS) for tier in (2, 3, 4)),
    *(
        Space(1, budget._replace(outages=budget.outages + 1), _TWO, settings=_STORES)
        for budget in _ONE_FAULT
        if not budget.timeouts
    ),
    *(Space(tier, Budget(outages=1, timeouts=1), _TWO, settings=_STORES) for tier in (3, 4)),
    *(Space(tier, Budget(outages=1), settings=_STORES) for tier in (1, 3)),
    *(Space(tier, Budget(outages=1), _THREE, settings=_STORES_LARGE) for tier in (1, 3)),
    Space(1, Budget(outages=1), _TWO, predicts=True, settings=_STORES),
    *(Space(tier, Budget(timeouts=1, crashes=1), ((b"a1",),), settings=_COPIES) for tier in (3, 4)),
    Space(3, Budget(timeouts=1, deletions=1, crashes=1), ((b"a1",),), settings=_COPIES),
    Space(3, Budget(timeouts=1, deletions=1), settings=_COPIES),
    *(Space(tier, Budget(timeouts=1, deletions=1, losses=1), ((b"a1",),), settings=_COPIES) for tier in (3, 4)),
)
