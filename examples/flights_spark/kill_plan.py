"""Plan when the application is killed, and in how many tasks it writes, from one seed; pure functions.

Most kills come at a random moment. A random kill hardly ever falls into the few milliseconds between the decision and
Kafka's commit, so for some kills the supervisor waits for exactly that.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_MOST_TASKS: Final = 5


class Moment(StrEnum):
    """The event that the supervisor waits for before it kills."""

    STARTING = "while it starts"
    RUNNING = "at any moment"
    DECIDED = "between decision and Kafka's commit"


_LATEST_S: Final = {Moment.STARTING: 6.0, Moment.RUNNING: 4.0, Moment.DECIDED: 3.0}


@dataclass(frozen=True, slots=True)
class Kill:
    """The end of one life: `after_s` seconds after its start (STARTING) or after its first new attempt (the others)."""

    moment: Moment
    after_s: float


@dataclass(frozen=True, slots=True)
class Life:
    """One run of the application; without a `kill` it ends when everything is written."""

    tasks: int
    kill: Kill | None


def plan_lives(seed: int, kills: int) -> Sequence[Life]:
    """Return `kills` lives that are killed, each with another number of tasks than its predecessor, and a last one."""
    dice = random.Random(seed)
    moments = [_moment(number) for number in range(kills)]
    dice.shuffle(moments)
    tasks, lives = 0, []
    for moment in moments:
        tasks = _another(dice, tasks)
        lives.append(Life(tasks, Kill(moment, dice.uniform(0, _LATEST_S[moment]))))
    return [*lives, Life(_another(dice, tasks), None)]


def _moment(number: int) -> Moment:
    """Return the moment of a kill: of every six kills, two wait for a decision, and one hits the start."""
    return (Moment.DECIDED, Moment.RUNNING, Moment.RUNNING, Moment.DECIDED, Moment.RUNNING, Moment.STARTING)[number % 6]


def _another(dice: random.Random, tasks: int) -> int:
    return dice.choice([number for number in range(1, _MOST_TASKS + 1) if number != tasks])
