"""The director of a run of chaos: it starts the processes, kills and freezes them and their servers, and calms down."""

from __future__ import annotations

import heapq
import random
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from dualwrite.producer import Producer
from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash.chaos_absences import Absence
from tests.crash.chaos_crowd import Crowd
from tests.crash.chaos_database import ChaosDatabase
from tests.crash.chaos_job import Job, Trap, log_to
from tests.crash.chaos_plan import PAUSE_S, SERVER_AWAY_S, SOON_S, Plan
from tests.crash.chaos_reader import AlongReader
from tests.crash.chaos_servers import DEADLINE_S, KillableEmulator, KillableKafka, KillablePostgres, Lane
from tests.crash.chaos_tally import Tally
from tests.crash.chaos_verdict import Verdict
from tests.crash.chaos_ways import RIVAL, WAYS
from tests.support.conditions import until

TOPIC: Final = "chaos"
PARTITIONS: Final = 4
LEASE_MS: Final = 1_000
_LONGEST_FREEZE_S: Final = 2.0
"""Of the broker or the database, which freezes all processes."""


class Chaos:
    """One run on servers of its own."""

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        postgres: KillablePostgres,
        broker: KillableEmulator | KillableKafka,
        lanes: Sequence[Lane] = (),
    ) -> None:
        self._plan = plan
        self._chance = random.Random(plan.seed)
        self._postgres = postgres
        self._broker = broker
        self._lanes = lanes
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._away: set[str] = set()
        self._absences: list[Absence] = []
        self._tally = Tally()
        journals = directory / "journals"
        journals.mkdir()
        self._log = (directory / "director.log").open("a", buffering=1)
        log_to(directory / "calm.log")
        self._database = ChaosDatabase(postgres.url)
        self._reader = AlongReader(broker.bootstrap_servers, TOPIC, PARTITIONS)
        bounded = {"transaction_timeout_ms": plan.transaction_timeout_ms}
        self._job = Job(
            database_url=postgres.url.render_as_string(hide_password=False),
            bootstrap_servers=broker.bootstrap_servers,
            prefix=f"chaos-{uuid.uuid4().hex[:8]}",
            topic=TOPIC,
            writers=plan.writers,
            journals=journals,
            rest_s=plan.rest_s,
            lease_ms=LEASE_MS,
            kafka=bounded if plan.is_bounded else {},
        )
        self._crowd = Crowd(self._job, plan.kinds, lanes, self._chance, self._note, self._wake_later)
        self._database.end_idle_transactions_after(plan.idle_timeout_ms)

    def run(self) -> Tally:
        """Rage, calm down, and judge both sides."""
        self._expect_the_tier()
        self._reader.start()
        try:
            self._crowd.start()
            until(lambda: self._database.ways_that_locked() == set(WAYS), DEADLINE_S)
            self._rage()
            self._calm_down()
        finally:
            self._reader.stop()
        verdict = Verdict(self._job, self._database, self._absences, self._tally)
        verdict.hear(self._reader)
        verdict.reach()
        self._tally.traps = self._crowd.traps
        self._tally.problems += self._crowd.problems
        return self._tally

    def _expect_the_tier(self) -> None:
        with Producer(
            transactional_id=f"{self._job.prefix}-tier",
            transaction_two_phase_commit_enable=True,
            accept_bounded_guarantee=True,
            **self._job.producer,
        ) as producer:
            producer.init_transactions()
            assert producer.guarantee.tier is self._plan.tier, producer.guarantee

    # ---- the restless phase ---------------------------------------------------------------------------------

    def _note(self, what: str) -> None:
        self._log.write(f"{time.time():.3f} {what}\n")

    def _rage(self) -> None:
        self._rage_for(self._plan.between_s)
        for _ in range(self._plan.absences):
            self._be_away_for(self._plan.away_s)
            self._rage_for(self._chance.uniform(*SOON_S))
            self._be_away_for(self._plan.again_s)
            self._rage_for(self._plan.between_s)

    def _rage_for(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self._let_time_pass(self._chance.uniform(*PAUSE_S))
            (deed,) = self._chance.choices(list(self._plan.deeds), list(self._plan.deeds.values()))
            self._tally.deeds[deed] += 1
            self._do(deed)

    def _be_away_for(self, seconds: float) -> None:
        """Let Kafka be away, at least until the ways that store records have stored some."""
        while "broker" in self._away:
            self._let_time_pass(PAUSE_S[0])
        self._note(f"the broker is away for {seconds:.1f} s")
        self._away.add("broker")
        self._broker.kill()
        absence = Absence(time.time())
        self._absences.append(absence)
        self._rage_for(seconds)
        deadline_s = time.monotonic() + DEADLINE_S
        while not absence.stores(self._job) and time.monotonic() < deadline_s:
            self._rage_for(PAUSE_S[1])
        self._crowd.lie_in_wait()
        absence.back_s = time.time()
        self._note("the broker comes back")
        self._broker.start_again()
        self._away.discard("broker")

    def _do(self, deed: str) -> None:
        number = self._victim(deed)
        self._note(f"{deed} ({number})")
        match deed:
            case "worker":
                self._crowd.kill(number)
            case "worker at a pause point":
                self._crowd.set_trap(number, signal.SIGKILL)
            case "frozen worker":
                self._crowd.freeze(number)
            case "frozen worker at a pause point":
                self._crowd.set_trap(number, signal.SIGSTOP)
            case "late requests of a rival":
                self._set_ambush(number)
            case "everybody after a decision":
                trap = Trap(PausePoint.AFTER_DATABASE_COMMIT, 0.0, signal.SIGSTOP)
                self._crowd.send_trap(number, trap, lambda: self._freeze_everybody(number))
            case "backend":
                if "database" not in self._away:
                    with suppress(sa.exc.SQLAlchemyError):
                        self._database.terminate_a_backend()
            case "database":
                self._kill_server("database", self._postgres)
            case "broker":
                self._kill_server("broker", self._broker)
            case "frozen database":
                self._freeze("database", self._postgres, min(self._for_how_long_s(), _LONGEST_FREEZE_S))
            case "frozen broker":
                self._freeze("broker", self._broker, min(self._for_how_long_s(), _LONGEST_FREEZE_S))
            case "frozen lane":
                index = self._chance.randrange(len(self._lanes))
                self._freeze(f"lane {index}", self._lanes[index], self._for_how_long_s())

    def _victim(self, deed: str) -> int:
        """Prefer rivals: they take ids over all the time."""
        rivals = [number for number, worker in self._crowd.workers.items() if worker.kind.startswith(RIVAL)]
        if rivals and ("rival" in deed or ("pause point" in deed and self._chance.random() < 0.5)):
            return self._chance.choice(rivals)
        return self._chance.randrange(len(self._crowd.workers))

    def _let_time_pass(self, seconds: float) -> None:
        """Do due deeds, and hear of traps that have sprung."""
        end_s = time.monotonic() + seconds
        while True:
            now_s = time.monotonic()
            while self._later and self._later[0][0] <= now_s:
                heapq.heappop(self._later)[2]()
            due_s = min(end_s, self._later[0][0] if self._later else end_s)
            self._crowd.hear(max(0.0, due_s - time.monotonic()))
            if time.monotonic() >= end_s:
                return

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, self._chance.getrandbits(60), act))

    def _wake_later(self, for_s: float | None, wake: Callable[[], None]) -> None:
        self._after(self._for_how_long_s() if for_s is None else for_s, wake)

    def _for_how_long_s(self) -> float:
        """Shorter than a database transaction may idle, longer than a lease, or longer than Kafka's bound."""
        bound_s = self._plan.transaction_timeout_ms / 1000
        ranges = [(0.02, 0.8), (1.2, 2.5), (2.5, 4.0)] + [(bound_s * 0.9, bound_s * 1.4)] * self._plan.is_bounded
        (chosen,) = self._chance.choices(ranges, (3, 5, 2, 3)[: len(ranges)])
        return self._chance.uniform(*chosen)

    # ---- deeds of several steps -----------------------------------------------------------------------------

    def _set_ambush(self, number: int) -> None:
        """A rival's request under the lock of the row, such as InitProducerId, comes later than it may idle."""
        if self._crowd.workers[number].lane is not None:
            point = self._chance.choice((PausePoint.AFTER_LOCK, PausePoint.AFTER_LOCK, PausePoint.AFTER_INIT))
            self._crowd.send_trap(number, Trap(point, 0.0, None), lambda: self._spring_ambush(number))

    def _spring_ambush(self, number: int) -> None:
        """Meanwhile another one decides, and stands still between its decision and Kafka's commit."""
        index = self._crowd.workers[number].lane
        assert index is not None
        late_s = self._plan.idle_timeout_ms / 1000 + self._chance.uniform(0.2, 1.5)
        self._freeze(f"lane {index}", self._lanes[index], late_s)
        for other, worker in self._crowd.workers.items():
            if worker.kind.startswith(RIVAL) and worker.lane != index:
                self._crowd.send_trap(
                    other,
                    Trap(PausePoint.AFTER_DATABASE_COMMIT, 0.0, signal.SIGSTOP),
                    partial(self._crowd.frozen, other, late_s + 0.5),
                )

    def _freeze_everybody(self, decided: int) -> None:
        """One has just decided, and others may have: Kafka aborts it all, as if the machine had slept."""
        for_s = self._plan.transaction_timeout_ms / 1000 * self._chance.uniform(1.0, 1.4)
        self._crowd.frozen(decided, for_s)
        for number, worker in self._crowd.workers.items():
            if not worker.is_frozen:
                worker.signal(signal.SIGSTOP)
                self._crowd.frozen(number, for_s)

    # ---- servers --------------------------------------------------------------------------------------------

    def _kill_server(self, name: str, server: KillablePostgres | KillableEmulator | KillableKafka) -> None:
        if name in self._away:
            return
        server.kill()
        time.sleep(self._chance.uniform(*SERVER_AWAY_S))
        server.start_again()

    def _freeze(
        self, name: str, server: KillablePostgres | KillableEmulator | KillableKafka | Lane, for_s: float
    ) -> None:
        if name in self._away:
            return
        self._away.add(name)
        server.freeze()

        def thaw() -> None:
            self._note(f"{name} goes on")
            server.thaw()
            self._away.discard(name)

        self._after(for_s, thaw)

    # ---- the end of it --------------------------------------------------------------------------------------

    def _calm_down(self) -> None:
        """Everything wakes, and the processes end."""
        self._note("calm")
        while self._later:
            heapq.heappop(self._later)[2]()
        self._crowd.end()
