"""The spaces that are searched: which broker, which faults, and which dual writes.

`SMALL` is for `make test`, `LARGE` for `make proof`. Two processes share one transactional id in each. `python -m
tests.proof.explore` searches any other space.
"""

from __future__ import annotations

from itertools import product
from typing import Final, NamedTuple

from tests.proof.explore import Explorer, Found
from tests.proof.kafka_model import PROFILES
from tests.proof.world import Budget, Rules

_ONE_EACH: Final = ((b"a1",), (b"b1",))
_TWO_AND_ONE: Final = ((b"a1", b"a2"), (b"b1",))
_THREE: Final = ((b"a1",), (b"b1",), (b"d1",))
_ONE: Final = ((b"a1",),)
_TWO_ALONE: Final = ((b"a1", b"a2"),)
_ONE_ALONE: Final = ((b"a1", b"a2", b"a3"),)


class Space(NamedTuple):
    """One search."""

    tier: int
    budget: Budget
    written: tuple[tuple[bytes, ...], ...] = _ONE_EACH
    """The dual writes of each process."""
    predicts: bool = False
    """Whether the row is written ahead of the records, as with psycopg."""
    recoveries: int = 0
    """How many processes only call recover()."""
    services: int = 0
    """How many processes carry out one round of a `RecoveryService`."""
    pools: bool = False
    """Whether each process has a pool; they share its ids."""

    @property
    def name(self) -> str:
        faults = "-".join(f"{name}{n}" for name, n in self.budget._asdict().items() if n)
        count = sum(len(values) for values in self.written)
        recoveries = f"-{self.recoveries} recoveries" if self.recoveries else ""
        services = f"-{self.services} services" if self.services else ""
        ahead = "-ahead" if self.predicts else ""
        pools = "-pools" if self.pools else ""
        return f"tier{self.tier}-{faults or 'nothing fails'}-{count} writes{recoveries}{services}{ahead}{pools}"

    def search(self) -> Found:
        """Visit every state."""
        rules = Rules(
            PROFILES[self.tier],
            self.written,
            (b"c1",),
            predicts=self.predicts,
            recoveries=self.recoveries,
            services=self.services,
            fails_over=self.budget.failovers > 0,
            pools=self.pools,
        )
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
    Space(1, Budget(failovers=1)),
    Space(1, Budget(restores=1)),
    *(Space(tier, Budget(restores=1), _ONE_ALONE, predicts=True) for tier in PROFILES),
    Space(1, Budget(), _THREE),
    Space(1, Budget(), _ONE, recoveries=2),
    Space(3, Budget(timeouts=1), _ONE, services=1),
    Space(1, Budget(timeouts=1), pools=True, predicts=True),
    Space(1, Budget(crashes=1), _ONE, pools=True),
)

_OF_POOLS: Final = ("lapses", "rounds")

_ONE_FAULT: Final = tuple(Budget(**{name: 1}) for name in Budget._fields if name not in _OF_POOLS)

_WITHOUT_RETURN: Final = (Budget(failovers=1), Budget(restores=1))

LARGE: Final = (
    *(Space(tier, budget) for tier, budget in product(PROFILES, _ONE_FAULT)),
    *(Space(tier, Budget(kills=1), _TWO_AND_ONE, predicts=True) for tier in PROFILES),
    *(Space(tier, Budget(timeouts=2)) for tier in (3, 4)),
    *(Space(tier, Budget(kills=1, timeouts=1)) for tier in (3, 4)),
    *(
        Space(tier, budget, _TWO_ALONE, predicts=True, recoveries=1)
        for tier, budget in product(PROFILES, _WITHOUT_RETURN)
    ),
    *(Space(tier, Budget(crashes=1), _ONE, services=1) for tier in PROFILES),
    *(Space(tier, Budget(timeouts=1), services=1) for tier in (3, 4)),
    *(Space(tier, Budget(kills=1, expiries=1), _ONE, services=1) for tier in (1, 3)),
    *(Space(tier, Budget(failovers=1, losses=1)) for tier in (1, 3)),
    *(Space(tier, Budget(restores=1, timeouts=1)) for tier in (3, 4)),
    *(Space(tier, Budget(lapses=1), pools=True) for tier in PROFILES),
    Space(1, Budget(kills=1), pools=True),
    Space(4, Budget(crashes=1), _ONE, pools=True),
    Space(3, Budget(timeouts=1), pools=True, predicts=True),
    Space(1, Budget(kills=1), _THREE),
    Space(3, Budget(timeouts=1), _ONE, recoveries=2),
)
