"""The settings of a run of chaos: its processes, the deeds of the director, and Kafka's absences."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dualwrite.guarantee import Tier
from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash.operator_worker import OPERATOR

RECOVERY: Final = "recovery"
PROCESSES: Final = (
    *("rival-sqlalchemy", "rival-psycopg", "rival-psycopg-awaited", "rival-sqlalchemy-awaited"),
    *("direct-sqlalchemy", "direct-psycopg", "direct-asyncpg-alone"),
    *("store-sqlalchemy", "store-psycopg-awaited", "store-asyncpg"),
    *("outbox-sqlalchemy-awaited", "outbox-psycopg", "outbox-asyncpg-alone"),
    RECOVERY,
)
"""The processes of a run, each of a way and a library. The one that takes the place of a dead one is of its kind."""
DEEDS: Final[Mapping[str, float]] = {
    "worker": 2,
    "worker at a pause point": 3,
    "backend": 2,
    "frozen worker": 3,
    "frozen worker at a pause point": 12,
    "frozen lane": 3,
    "late requests of a rival": 5,
    "database": 0.2,
    "broker": 0.2,
    "frozen database": 0.4,
    "frozen broker": 0.4,
}
"""The deeds, by weight."""
WHERE_BROKERS_ABORT: Final[Mapping[str, float]] = {"everybody after a decision": 1}
"""Added on tiers 3 and 4: no process completes decided transactions, for longer than `transaction.timeout.ms`."""
TRAPS: Final[Mapping[PausePoint, float]] = dict.fromkeys(PausePoint, 1.0) | {
    PausePoint.AFTER_LOCK: 3,
    PausePoint.AFTER_INIT: 2,
    PausePoint.AFTER_PREPARE: 2,
    PausePoint.BEFORE_DATABASE_COMMIT: 2,
    PausePoint.AFTER_DATABASE_COMMIT: 4,
}
"""Where processes are stopped, by weight: around the decision, and where an id is taken over."""
PUBLISHING: Final = (
    PausePoint.AFTER_INIT,
    PausePoint.AFTER_TAKEOVER,
    PausePoint.AFTER_BEGIN,
    PausePoint.AFTER_SEND,
    PausePoint.AFTER_PREPARE,
)
"""Points that are not reached while Kafka is away, so that the first process to get there is publishing."""
PAUSE_S: Final = (0.1, 1.0)
"""Between two deeds."""
SERVER_AWAY_S: Final = (0.0, 1.5)
"""For which a killed server stays dead."""
SOON_S: Final = (0.2, 1.5)
"""How long Kafka is back before it leaves again, while blocks are being published."""
LONGEST_AGAIN_S: Final = 5.0
"""For how long it is away then."""


@dataclass(frozen=True)
class Plan:
    """The settings of a run; the director's choices follow from the seed, their instants from the machine."""

    seconds: float
    """Of everything, Kafka's absences included."""
    seed: int
    tier: Tier
    real: bool = False
    absences: int = 1
    """How often Kafka is away for long."""
    away_s: float = 60.0
    """For how long, each time."""
    operator: bool = False
    """Whether transactions are aborted by hand, too."""
    writers: int = 3
    """The threads or tasks of each process of a pool."""
    rest_s: float = 0.2
    """The longest that one rests between two dual writes."""
    transaction_timeout_ms: int = 2_000
    """On tiers 3 and 4."""
    keep: bool = False
    """Keep the processes' journals and logs even after a good run."""

    @property
    def kinds(self) -> tuple[str, ...]:
        return (*PROCESSES, OPERATOR) if self.operator else PROCESSES

    @property
    def deeds(self) -> Mapping[str, float]:
        return {**DEEDS, **WHERE_BROKERS_ABORT} if self.is_bounded else DEEDS

    @property
    def idle_timeout_ms(self) -> int:
        """The database's limit for a session that idles in a transaction."""
        return random.Random(self.seed).choice((1_000, 1_500, 2_000))

    @property
    def again_s(self) -> float:
        """How long Kafka is away again, soon after each absence."""
        return min(LONGEST_AGAIN_S, self.away_s / 3)

    @property
    def between_s(self) -> float:
        """How long Kafka is there before, between and after its absences."""
        away_s = self.absences * (self.away_s + SOON_S[1] + self.again_s)
        return max(1.0, (self.seconds - away_s) / (self.absences + 1))

    @property
    def is_bounded(self) -> bool:
        return self.tier in (Tier.BOUNDED, Tier.BOUNDED_V1)
