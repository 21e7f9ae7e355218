"""Plan where workers are killed, from one seed; pure functions.

Given enough kills, every pause point is used once before any is used twice. The remaining kills favour the points at
which table and topic disagree, because only then recovery has work to do.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from dualwrite.recipes.core.pause_points import PausePoint
from examples.flights.errors import PlanError

_P = PausePoint

TAKEOVER_POINTS = frozenset({_P.AFTER_INIT, _P.AFTER_COMPLETION, _P.AFTER_TAKEOVER})
"""Reached only when a new process takes the transactional id over, before it writes anything."""

_LEAVING_SOMETHING = (_P.AFTER_DATABASE_COMMIT, _P.BEFORE_DATABASE_COMMIT, _P.AFTER_STATE_WRITE, _P.AFTER_PREPARE)
"""A worker killed here leaves a transaction to roll forward (the first point) or back (the others)."""

_WEIGHTS = {
    _P.AFTER_LOCK: 1,
    _P.AFTER_INIT: 1,
    _P.AFTER_COMPLETION: 1,
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
    """A kill at `point`, in the first transaction that starts at event `from_number` or later.

    `record` counts the records of the transaction and is only used for AFTER_SEND.
    """

    point: PausePoint
    from_number: int
    record: int


def count_transactions(events: int, group_size: int) -> int:
    """Return how many transactions write `events`."""
    return -(-events // group_size)


def most_kills(seed: int, *, wanted: int, events: int, group_size: int) -> int:
    """Return how many of `wanted` kills are possible: each kill while writing needs a transaction of its own."""
    points = _choose_points(random.Random(seed), wanted)
    writing = [place for place, point in enumerate(points) if point not in TAKEOVER_POINTS]
    transactions = count_transactions(events, group_size)
    return writing[transactions] if len(writing) > transactions else wanted


def plan_kills(seed: int, *, kills: int, events: int, group_size: int) -> list[Kill]:
    """Return `kills` kills in their order. Raises PlanError if there are too few transactions."""
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
    # No transaction is chosen twice, so that every kill has one.
    chosen = iter(sorted(dice.sample(range(transactions), writing)))
    return [
        Kill(
            point,
            from_number=0 if point in TAKEOVER_POINTS else next(chosen) * group_size,
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
    """Shuffle the points, so that each kill during a take-over follows one that left a transaction to take over."""
    arranged = [point for point in points if point not in TAKEOVER_POINTS]
    dice.shuffle(arranged)
    for point in points:
        if point in TAKEOVER_POINTS:
            behind = [place for place, before in enumerate(arranged) if before in _LEAVING_SOMETHING]
            arranged.insert(dice.choice(behind) + 1, point)
    return arranged
