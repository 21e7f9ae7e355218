"""The searched spaces: broker, faults, and dual writes.

`SMALL` is for `make test`, `LARGE` for `make proof`, and `python -m tests.proof.search` goes through `catalogue`. Two
processes share one transactional id in each. `python -m tests.proof.explore` searches any other space.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import chain, combinations_with_replacement, product
from typing import Final, NamedTuple

from tests.proof.explore import Found, explored
from tests.proof.kafka_model import PROFILES
from tests.proof.outbox_world import OutboxSpace
from tests.proof.shape import ONE_RECORD, Shape
from tests.proof.story import Setting
from tests.proof.world import Budget, Rules

_ONE_EACH: Final = ((b"a1",), (b"b1",))
_TWO_AND_ONE: Final = ((b"a1", b"a2"), (b"b1",))
_TWO_EACH: Final = ((b"a1", b"a2"), (b"b1", b"b2"))

_ONE_WRITER: Final = ((b"a1", b"a2"),)
_ONE_ALONE: Final = ((b"a1", b"a2", b"a3"),)

_THREE: Final = ((b"a1",), (b"b1",), (b"d1",))
_ONE: Final = ((b"a1",),)

_TWO_PARTITIONS: Final = Shape(partitions=2)
_APART: Final = Shape(partitions=2, apart=True)
_OFFSETS: Final = Shape(has_offsets=True)


class Space(NamedTuple):
    """One search."""

    tier: int
    budget: Budget
    written: tuple[tuple[bytes, ...], ...] = _ONE_EACH
    """The dual writes of each process."""
    by_commit: bool = False
    """Whether the row is written by the message of COMMIT, as with psycopg."""
    after_crash: tuple[bytes, ...] = (b"c1",)
    """The dual writes of the process that comes after a killed one. Two such processes would write the same."""

    shape: Shape = ONE_RECORD
    """The records of a dual write."""
    is_plain: bool = False
    """Whether the values are transactions of a `Producer` without a database; those with an x are aborted."""
    recoveries: int = 0
    """How many processes only call recover()."""
    services: int = 0
    """How many processes carry out one round of a `RecoveryService`."""
    pools: bool = False
    """Whether each process has a pool; they share its ids."""

    @property
    def name(self) -> str:
        """Return its name, by its particularities."""
        faults = "-".join(f"{name}{n}" for name, n in self.budget._asdict().items() if n)
        writes = "+".join(str(len(values)) for values in self.written)
        name = f"tier{self.tier}-{faults or 'nothing fails'}-{writes} writes"
        after = "none after the crash" if self.budget.crashes and not self.after_crash else ""
        kind = "plain" if self.is_plain else "by commit" if self.by_commit else ""
        recoveries = f"{self.recoveries} recoveries" if self.recoveries else ""
        services = f"{self.services} services" if self.services else ""
        more = (recoveries, services, "pools" if self.pools else "")
        return "-".join(filter(None, (name, kind, after, self.shape.name, *more)))

    @property
    def setting(self) -> Setting:
        """Return it as its story names it."""
        return Setting(**self._asdict())

    @property
    def size(self) -> tuple[int, int]:
        """Return how many dual writes there are, and how many faults."""
        return sum(map(len, self.written)), sum(self.budget)

    def rules(self) -> Rules:
        """Return the possible steps in it, in all orders."""
        return self.setting.rules()

    def search(self, most_states: int | None = None) -> Found:
        """Visit every state, or so many."""
        return explored(self.setting, most_states)


AnySpace = Space | OutboxSpace


SMALL: Final = (
    Space(1, Budget(losses=1)),
    Space(1, Budget(foreigners=1)),
    Space(1, Budget(kills=1), _TWO_AND_ONE),
    Space(2, Budget(expiries=1)),
    Space(3, Budget(timeouts=1)),
    Space(3, Budget(expiries=1)),
    Space(3, Budget(), _TWO_AND_ONE, by_commit=True),
    Space(4, Budget(timeouts=1)),
    Space(4, Budget(expiries=1)),
    Space(1, Budget(outages=1), _ONE_WRITER),
    Space(3, Budget(timeouts=1, deletions=1), ((b"a1",),)),
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
    Space(2, Budget(crashes=1)),
    Space(3, Budget(crashes=1)),
    Space(1, Budget(failovers=1)),
    Space(1, Budget(restores=1)),
    *(Space(tier, Budget(restores=1), _ONE_ALONE, by_commit=True) for tier in PROFILES),
    Space(1, Budget(), _THREE),
    Space(1, Budget(), _ONE, recoveries=2),
    Space(3, Budget(timeouts=1), _ONE, services=1),
    Space(1, Budget(timeouts=1), pools=True, by_commit=True),
    Space(1, Budget(crashes=1), _ONE, pools=True),
)
"""More than 100,000 states, in a few seconds."""


_APART_FROM_PAIRS: Final = ("upgrades", "failovers", "restores", "lapses", "rounds", "hours")
"""Faults that have spaces of their own."""


def _faults(count: int, apart: Container[str] = _APART_FROM_PAIRS) -> tuple[Budget, ...]:
    """Return each choice of so many faults."""
    names = (name for name in Budget._fields if name not in apart)
    chosen = combinations_with_replacement(names, count)
    return tuple(Budget(**{name: names.count(name) for name in names}) for names in chosen)


ONE_FAULT: Final = _faults(1)
TWO_FAULTS: Final = _faults(2)

_OF_KAFKA: Final = ("crashes", "timeouts", "terminations", "aborts")
"""Faults by which the partitions of a transaction could end differently. An abort of offsets cannot be noticed."""

_WITHOUT_RETURN: Final = (Budget(failovers=1), Budget(restores=1))

_HIDES_RESTORE: Final = ("losses", "foreigners", "expiries")
"""Faults that hide a restore of the database, as documented (docs/guarantees.md)."""

_WITH_RETURN: Final = tuple(
    back._replace(**{name: getattr(back, name) + 1})
    for back in _WITHOUT_RETURN
    for name in Budget._fields
    if name not in ("upgrades", "aborts", "lapses", "rounds", "hours", *(_HIDES_RESTORE if back.restores else ()))
)
"""Two faults, one of them a database that goes back."""

_MORE: Final = (
    *(Space(tier, budget) for tier, budget in product(PROFILES, ONE_FAULT)),
    *(Space(1, budget) for budget in TWO_FAULTS if budget.crashes < 2 and not budget.aborts),
    *(Space(tier, Budget(kills=1, losses=1)) for tier in (2, 3, 4)),
    *(Space(tier, Budget(kills=1), _TWO_AND_ONE, by_commit=True) for tier in PROFILES),
    *(Space(tier, Budget(timeouts=2)) for tier in (3, 4)),
    *(Space(tier, Budget(kills=1, timeouts=1)) for tier in (3, 4)),
    *(Space(4, Budget(upgrades=1, **{name: 1})) for name in ("crashes", "timeouts", "moves")),
    *(Space(tier, Budget(**{name: 1}), shape=_TWO_PARTITIONS) for tier, name in product(PROFILES, _OF_KAFKA)),
    *(Space(tier, Budget(**{name: 1}), _TWO_AND_ONE, shape=_APART) for tier, name in ((1, "losses"), (3, "timeouts"))),
    *(Space(tier, Budget(**{name: 1}), shape=_OFFSETS) for tier, name in product(PROFILES, _OF_KAFKA[:-1])),
    *(Space(tier, Budget(losses=1), _ONE_WRITER, shape=_OFFSETS) for tier in PROFILES),
    *(Space(tier, budget) for tier, budget in product(PROFILES, _WITHOUT_RETURN)),
    *(
        Space(tier, budget, _ONE_WRITER, by_commit=True, recoveries=1)
        for tier, budget in product(PROFILES, _WITHOUT_RETURN)
    ),
    *(Space(tier, Budget(crashes=1), _ONE, services=1) for tier in PROFILES),
    Space(4, Budget(timeouts=1), _ONE, services=1),
    *(Space(tier, Budget(kills=1, expiries=1), _ONE, services=1) for tier in (1, 3)),
    *(Space(tier, Budget(failovers=1, losses=1)) for tier in (1, 3)),
    *(Space(tier, Budget(restores=1, timeouts=1)) for tier in (3, 4)),
    *(Space(tier, Budget(lapses=1), pools=True) for tier in PROFILES),
    *(Space(tier, Budget(lapses=1, rounds=1, crashes=1), _ONE, pools=True, after_crash=()) for tier in PROFILES),
    Space(1, Budget(kills=1), pools=True),
    Space(4, Budget(crashes=1), _ONE, pools=True),
    Space(3, Budget(timeouts=1), pools=True, by_commit=True),
    Space(1, Budget(kills=1), _THREE),
    Space(3, Budget(timeouts=1), _ONE, recoveries=2),
)

LARGE: Final = tuple(space for space in _MORE if space not in SMALL)


_NOT_BOTH_WAYS: Final = ("upgrades", "aborts", "deletions", "restores", "rounds", "hours")


def both_ways(tier: int, budget: Budget, written: tuple[tuple[bytes, ...], ...] = _ONE_EACH) -> OutboxSpace:
    """Return a space of a pool whose blocks go to Kafka themselves, and to the outbox while Kafka is away.

    All change one row of the application, and the first process publishes.
    """
    return OutboxSpace(tier, budget, written, publishers=0, touches=True, diverts=True)


def with_both_ways(tier: int, faults: int) -> Iterator[OutboxSpace]:
    """Yield such spaces, after an outage and with one, with each choice of so many faults beside; few blocks first."""
    for written, budget in product((_ONE, _ONE_WRITER, _ONE_EACH, _THREE), _faults(faults, _NOT_BOTH_WAYS)):
        yield both_ways(tier, budget, written)._replace(is_diverted=True)
        yield both_ways(tier, budget._replace(outages=budget.outages + 1), written)


def catalogue(tier: int) -> Iterator[AnySpace]:
    """Yield each space of a tier once: those of the tests, and then with more and more faults and dual writes."""
    known: set[AnySpace] = set()
    both = chain.from_iterable(with_both_ways(tier, faults) for faults in (0, 1, 2))
    every: Iterable[AnySpace] = chain(SMALL, LARGE, both, _of_databases_and_pools(tier), _systematic(tier))
    for space in every:
        if space.tier == tier and space not in known:
            known.add(space)
            yield space


def _systematic(tier: int) -> Iterator[Space]:
    """Yield one fault and then two, with one dual write of each process, then two and one, then two of each."""
    for faults, written in product((ONE_FAULT, TWO_FAULTS), (_ONE_EACH, _TWO_AND_ONE, _TWO_EACH)):
        for budget, by_commit in product((*faults, *_with_upgrade(tier, faults)), (False, True)):
            if budget.aborts and (budget.deletions or max(map(len, written)) > 1):
                continue  # documented as not promised: docs/guarantees.md, test_documented.py
            if budget.crashes < 2:
                yield Space(tier, budget, written, by_commit)
            if budget.crashes:
                yield Space(tier, budget, written, by_commit, after_crash=())
    for budget, shape in product(TWO_FAULTS, (_TWO_PARTITIONS, _OFFSETS)):
        if budget.aborts and (budget.deletions or shape.has_offsets):
            continue  # a manual abort of a group's offsets, or of records that retention deletes, cannot be noticed
        yield Space(tier, budget, after_crash=() if budget.crashes > 1 else (b"c1",), shape=shape)


def _of_databases_and_pools(tier: int) -> Iterator[Space]:
    """Yield one fault beside a database that goes back, and beside a step of a pool's background."""
    for budget, by_commit in product(_WITH_RETURN, (False, True)):
        yield Space(tier, budget, by_commit=by_commit)
    for budget, name in product(ONE_FAULT, ("lapses", "rounds")):
        if not budget.aborts:
            yield Space(tier, budget._replace(**{name: 1}), _ONE if budget.crashes else _ONE_EACH, pools=True)
    for budget in (Budget(lapses=2), Budget(rounds=2), Budget(lapses=1, rounds=1)):
        yield Space(tier, budget, pools=True)


def _with_upgrade(tier: int, faults: Iterable[Budget]) -> Iterator[Budget]:
    """Yield the same faults in a cluster that is upgraded meanwhile: on the last tier only.

    Without ended connections, which are documented as not promised: test_documented.py.
    """
    if tier == max(PROFILES):
        yield from (budget._replace(upgrades=1) for budget in faults if not budget.kills)
