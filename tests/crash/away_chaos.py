"""Kafka is killed for a minute at a time, while writers go on and are killed; afterwards both sides must agree.

    python -m tests.crash.away_chaos --refuse                        # the emulator, tier 1
    python -m tests.crash.away_chaos --store --away-s 60 --times 2
    python -m tests.crash.away_chaos --store --tier 3 --real         # an Apache Kafka of that tier

`--store`: blocks are stored by the database while Kafka is away. Workers are killed and frozen all the time, among them
pools of every kind, and a recovery service. Traps are set for the moment of Kafka's
return, so that some die in the middle of publishing, and Kafka leaves again while others do. No block may fail, or with
`--cuts`, which terminates backends of the database too, none because of Kafka.

`--refuse`: blocks are refused while Kafka is away, and workers are only killed: a frozen one would hold its transaction
open in any case. No transaction may idle for long, and a writer or pool that knows of Kafka's absence answers within
100 ms.

The calm phase is that of `pool_chaos.py`; further checks of both sides are in `away_verdict.py`.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from dualwrite.delivery import Direct
from dualwrite.guarantee import Tier
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.sqlalchemy.outbox_table import create_outbox_table
from tests.crash.away_verdict import Absence, AwayFindings, AwayVerdict
from tests.crash.chaos_database import ChaosDatabase
from tests.crash.chaos_job import Trap
from tests.crash.chaos_servers import KillableEmulator, KillableKafka, KillablePostgres, Lane
from tests.crash.pool_chaos import Chaos, ChaosError, Plan, Tally, run_chaos
from tests.crash.rival_worker import ONLY_KINDS, RECOVERY

POOL_KINDS: Final = ("sqlalchemy", "psycopg", "tasks")
STORE: Final = "store"
REFUSE: Final = "refuse"
_KILLS: Final[Mapping[str, float]] = {"worker": 1}
_KILLS_AND_FREEZES: Final[Mapping[str, float]] = {
    "worker": 3,
    "worker at a pause point": 5,
    "frozen worker": 2,
    "frozen worker at a pause point": 3,
    "frozen lane": 1,
}
_PUBLISHING: Final = (
    PausePoint.AFTER_INIT,
    PausePoint.AFTER_TAKEOVER,
    PausePoint.AFTER_BEGIN,
    PausePoint.AFTER_SEND,
    PausePoint.AFTER_PREPARE,
)
"""Points that are not reached while Kafka is away, so that the first process to get there is publishing."""
_TRAPPED: Final = 0.6
"""How many of the workers are stopped as they publish."""
_SOON_S: Final = (0.2, 1.5)
"""How long Kafka is back before it leaves again, while blocks are being published."""
_SAMPLE_S: Final = 0.02


@dataclass(frozen=True)
class AwayPlan(Plan):
    """The settings of a run; `seconds` are those before, between and after the absences."""

    mode: str = STORE
    times: int = 1
    """How often Kafka is away for long."""
    away_s_each: float = 60.0
    again_s: float = 5.0
    """For how long it is away again, soon after each of these."""
    cuts: bool = False
    """Whether backends of the database are terminated, too."""


def plan_of(
    mode: str, *, away_s: float, seed: int, tier: Tier, real: bool = False, cuts: bool = False, **changes: Any
) -> AwayPlan:
    """Kafka away under load."""
    stores = mode == STORE
    plan = AwayPlan(
        seconds=10.0,
        seed=seed,
        processes=9 if stores else 8,
        writers=3,
        pause_s=(0.05, 0.5) if stores else (0.5, 2.0),
        rest_s=0.2,
        niceness=0,
        tier=tier,
        real=real,
        deeds={**(_KILLS_AND_FREEZES if stores else _KILLS), **({"backend": 4} if cuts else {})},
        cuts=cuts,
        kinds=(*POOL_KINDS, RECOVERY) if stores else (*ONLY_KINDS, *POOL_KINDS),
        keeps_kinds=True,
        lanes=2 if stores else 0,
        lease_ms=1_000,
        away={"delivery": Direct(when_kafka_is_away="store" if stores else "refuse")},
        mode=mode,
        away_s_each=away_s,
        again_s=min(5.0, away_s / 3),
    )
    return dataclasses.replace(plan, **changes)


class Watch:
    """A thread that watches the database: how long transactions idle, and which blocks are stored."""

    def __init__(self, database: ChaosDatabase) -> None:
        self._database = database
        self._absence: Absence | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="watch")

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def of(self, absence: Absence) -> None:
        """Assign observations to this absence from now on."""
        self._absence = absence

    def _look_on(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            if (absence := self._absence) is not None:
                with suppress(sa.exc.SQLAlchemyError):  # its own backend was terminated
                    self._look(absence)

    def _look(self, absence: Absence) -> None:
        at_s = time.time()
        if absence.is_over:
            if absence.published_s is None and not self._database.is_stored_before(absence.back_s):
                absence.published_s = at_s - absence.back_s
        else:
            idle_s = min(self._database.longest_idle_s(), at_s - absence.gone_s)
            absence.oldest_idle_s = max(absence.oldest_idle_s, idle_s)
            absence.crowd = max(absence.crowd, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
            absence.stored, absence.stored_bytes = self._database.stored()


class AwayChaos(Chaos):
    """One run on servers of its own; the broker is away at times."""

    def __init__(
        self,
        plan: AwayPlan,
        directory: Path,
        postgres: KillablePostgres,
        broker: KillableEmulator | KillableKafka,
        lanes: Sequence[Lane] = (),
    ) -> None:
        super().__init__(plan, directory, postgres, broker, lanes)
        create_outbox_table(self._database.engine)
        self._away_plan = plan
        self._watch = Watch(self._database)
        self.absences: list[Absence] = []

    def _rage(self) -> None:
        plan = self._away_plan
        with self._watch:
            self._rage_for(plan.seconds)
            for _ in range(plan.times):
                self._be_away_for(plan.away_s_each)
                self._rage_for(self._chance.uniform(*_SOON_S))
                self._be_away_for(plan.again_s)
                self._rage_for(plan.seconds)

    def _be_away_for(self, seconds: float) -> None:
        self._note(f"the broker is away for {seconds:.1f} s")
        self._broker.kill()
        absence = Absence(time.time())
        self.absences.append(absence)
        self._watch.of(absence)
        self._rage_for(seconds)
        if self._away_plan.mode == STORE:
            self._lie_in_wait()
        absence.back_s = time.time()
        self._note("the broker comes back")
        self._broker.start_again()
        absence.there_s = time.time()

    def _lie_in_wait(self) -> None:
        """Kill or freeze many of the workers as they publish."""
        for number in self._workers:
            if self._chance.random() < _TRAPPED:
                point = self._chance.choice(_PUBLISHING)
                stop = self._chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP))
                after_s = self._chance.choice((0.0, self._chance.uniform(0, 0.02)))
                sprung = partial(self._bury if stop is signal.SIGKILL else self._frozen, number)
                self._send_trap(number, Trap(point, after_s, stop), sprung)

    def _verdict(self) -> AwayVerdict:
        plan = self._away_plan
        return AwayVerdict(
            self._job, self._database, self.absences, refuses=plan.mode == REFUSE, only_of_kafka=plan.cuts
        )


def run_away_chaos(plan: AwayPlan) -> Tally:
    """One run; raises ChaosError after a failure."""
    return run_chaos(plan, AwayChaos)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.away_chaos", description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    for name in (STORE, REFUSE):
        mode.add_argument(f"--{name}", dest="mode", action="store_const", const=name)
    parser.add_argument("--away-s", type=float, default=60.0, help="of each long absence (default: %(default)s)")
    parser.add_argument("--times", type=int, default=1, help="how many of them (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="of the director (default: a new one)")
    parser.add_argument(
        "--tier", type=int, choices=[1, 2, 3, 4], default=1, help="of the broker (default: %(default)s)"
    )
    parser.add_argument("--real", action="store_true", help="an Apache Kafka of tier 2, 3 or 4")
    parser.add_argument("--cuts", action="store_true", help="backends of the database are terminated, too")
    parser.add_argument("--keep", action="store_true", help="what was noted and logged, even where all is well")
    options = parser.parse_args(arguments)
    if options.real and options.tier == 1:
        parser.error("no Apache Kafka is of tier 1")
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    plan = plan_of(
        options.mode,
        away_s=options.away_s,
        seed=seed,
        tier=Tier(options.tier),
        real=options.real,
        cuts=options.cuts,
        times=options.times,
        keep=options.keep,
    )
    try:
        tally = run_away_chaos(plan)
    except ChaosError as error:
        notes = "\n".join(getattr(error, "__notes__", ()))
        print(f"seed {seed}: {error}\n{notes}", file=sys.stderr)
        return 1
    print(tally)
    assert isinstance(tally.findings, AwayFindings)
    for line in tally.findings.lines():
        print(line)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
