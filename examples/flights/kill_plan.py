"""Where workers die: a plan drawn from one seed. Pure.

Every pause point is met once before any is met twice, given enough kills. The rest is weighted towards the points at
which the two sides disagree, because those make recovery work.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from dualwrite.recipes.core.pause_points import PausePoint
from examples.flights.errors import PlanError

_P = PausePoint

TAKEOVER_POINTS = frozenset({_P.AFTER_INIT, _P.AFTER_TAKEOVER})
"""Met only when a new process takes the transactional id over, before it writes anything."""

_LEAVING_SOMETHING = (_P.AFTER_DATABASE_COMMIT, _P.BEFORE_DATABASE_COMMIT, _P.AFTER_STATE_WRITE, _P.AFTER_PREPARE)
"""What a worker killed here leaves behind must be rolled forward (the first) or back (the others)."""

_WEIGHTS = {
    _P.AFTER_LOCK: 1,
    _P.AFTER_INIT: 1,
    _P.AFTER_TAKEOVER: 1,
    _P.AFTER_BEGIN: 1,
    _P.AFTER_SEND: 3,
    _P.AFTER_PREPARE: 2,
    _P.AFTER_STATE_WRITE: 2,
    _P.BEFORE_DATABASE_COMMIT: 2,
    _P.AFTER_DATABASE_COMMIT: 8,
    _P.AFTER_KAFKA_COMMIT: 2,
}


@dataclass(frozen=True, slots=True)
class Kill:
    """Die at `point`, in the first transaction that starts at event `from_number` or later.

    `record` counts the records of the transaction and only matters for AFTER_SEND.
    """

    point: PausePoint
    from_number: int
    record: int


def count_transactions(events: int, group_size: int) -> int:
    """How many transactions write `events`."""
    return -(-events // group_size)


def most_kills(seed: int, *, wanted: int, events: int, group_size: int) -> int:
    """How many of `wanted` deaths there is room for: each one that is met while writing needs its own transaction."""
    points = _choose_points(random.Random(seed), wanted)
    writing = [place for place, point in enumerate(points) if point not in TAKEOVER_POINTS]
    transactions = count_transactions(events, group_size)
    return writing[transactions] if len(writing) > transactions else wanted


def plan_kills(seed: int, *, kills: int, events: int, group_size: int) -> list[Kill]:
    """`kills` deaths, in the order in which they will happen. Raises PlanError where there is no room for them."""
    transactions = count_transactions(events, group_size)
    room = most_kills(seed, wanted=kills, events=events, group_size=group_size)
    if room < kills:
        raise PlanError(
            f"{events} events in groups of {group_size} are {transactions} transactions, too few for {kills} kills: "
            f"--kills at most {room} (with --seed {seed}), or more rows, or smaller groups"
        )
    dice = random.Random(seed)
    points = _choose_points(dice, kills)
    writing = sum(point not in TAKEOVER_POINTS for point in points)
    # No transaction is chosen twice, so that a death always finds one left to die in.
    deaths = iter(sorted(dice.sample(range(transactions), writing)))
    return [
        Kill(
            point,
            from_number=0 if point in TAKEOVER_POINTS else next(deaths) * group_size,
            record=dice.randrange(group_size),
        )
        for point in _arrange(dice, points)
    ]


def _choose_points(dice: random.Random, kills: int) -> list[PausePoint]:
    essential = [_P.AFTER_DATABASE_COMMIT, _P.BEFORE_DATABASE_COMMIT]  # one to roll forward, one to roll back
    others = [point for point in PausePoint if point not in essential]
    dice.shuffle(others)
    points = essential + others
    more = dice.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()), k=max(0, kills - len(points)))
    return (points + more)[:kills]


def _arrange(dice: random.Random, points: Sequence[PausePoint]) -> list[PausePoint]:
    """Shuffle, and let each death during a take-over follow one that left something to take over."""
    arranged = [point for point in points if point not in TAKEOVER_POINTS]
    dice.shuffle(arranged)
    for point in points:
        if point in TAKEOVER_POINTS:
            behind = [place for place, before in enumerate(arranged) if before in _LEAVING_SOMETHING]
            arranged.insert(dice.choice(behind) + 1, point)
    return arranged
