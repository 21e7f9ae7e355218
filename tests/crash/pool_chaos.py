"""Processes, the database and the broker are killed and frozen at random; afterwards both sides must agree.

    python -m tests.crash.pool_chaos --seconds 600                      # pools under kills, tier 1
    python -m tests.crash.pool_chaos --seconds 600 --freezes --tier 4   # the emulator as Apache Kafka 3.9
    python -m tests.crash.pool_chaos --seconds 600 --freezes --tier 3 --real

Workers do dual writes, without a pause unless the plan has one, while a seeded director sends SIGKILL to them, to
Postgres and to the broker, and starts them again. With `--freezes` there are rivals for one transactional id, and a
recovery service too; processes, the ways that their requests take to the broker, the broker and the database are
stopped in their tracks for longer than the database lets a transaction idle, than a lease lasts, and on tiers 3 and 4
than `transaction.timeout.ms`; many of them at a pause point, or right after. `--operator` adds a process that ends
transactions of others by hand, with and without a trace. `--real` runs an Apache Kafka of that tier instead of the
emulator.

Then comes calm, in which everything must come right without help: `chaos_verdict.py`. Exit status 1 where it does not;
the journals and logs of the processes are kept then.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from dualwrite.guarantee import Tier
from dualwrite.producer import Producer
from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.testing.postgres import PostgresServer
from tests.crash.chaos_brokers import broker_of
from tests.crash.chaos_database import ChaosDatabase
from tests.crash.chaos_job import Job, Trap, log_to
from tests.crash.chaos_reader import AlongReader
from tests.crash.chaos_servers import DEADLINE_S, KillableEmulator, KillableKafka, KillablePostgres, Lane
from tests.crash.chaos_verdict import Findings, Verdict
from tests.crash.operator_worker import OPERATOR, work_as_operator
from tests.crash.pool_worker import work_through_pool
from tests.crash.rival_worker import ONLY_KINDS, RECOVERY, work_as_only_writer, work_as_recovery, work_as_rival
from tests.support.conditions import until
from tests.support.forked_processes import processes

TOPIC: Final = "chaos"
PARTITIONS: Final = 4
POOLS: Final = ("sqlalchemy", "psycopg")
OUTBOXES: Final = ("outbox_sqlalchemy", "outbox_psycopg", "outbox_tasks")
EVERYBODY: Final = (
    *("rival-sqlalchemy", "rival-psycopg", "rival-async-psycopg", "rival-async-sqlalchemy"),
    *("sqlalchemy", "psycopg", "tasks", RECOVERY),
)
KILLS: Final[Mapping[str, float]] = {"worker": 6, "database": 1, "broker": 1}
KILLS_AND_FREEZES: Final[Mapping[str, float]] = {
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
_LANES: Final = 2
_SERVER_AWAY_S: Final = 2.0
"""The longest freeze of the broker or the database, which freezes all processes."""
_NEXT_POINT_S: Final = 0.02
"""The longest after a pause point at which a trap springs."""


@dataclass(frozen=True)
class Plan:
    """The settings of a run; the director's choices follow from the seed, their instants from the machine."""

    seconds: float
    seed: int
    processes: int = 8
    writers: int = 8
    pause_s: tuple[float, float] = (0.2, 1.2)
    """Between two deeds."""
    away_s: tuple[float, float] = (0.0, 1.5)
    """For which a server stays dead."""
    rest_s: float = 0.0
    """The longest that a slot rests between two dual writes."""
    tier: Tier = Tier.KEEP_PREPARED
    real: bool = False
    deeds: Mapping[str, float] = dataclasses.field(default_factory=lambda: KILLS)
    """The deeds, by weight."""
    kinds: Sequence[str] = POOLS
    """The kinds of the processes, in turns."""
    keeps_kinds: bool = False
    """Whether the process that takes the place of a dead one is of its kind."""
    lanes: int = 0
    idle_timeout_ms: int | None = None
    """The database's limit for a session that idles in a transaction."""
    lease_ms: int = 2_000
    transaction_timeout_ms: int = 2_000
    """On tiers 3 and 4."""
    away: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Settings of all writers: the treatment of blocks while Kafka is away."""
    niceness: int = 10
    """The workers' niceness: other processes go first where workers hardly pause."""
    keep: bool = False
    """Keep the processes' journals and logs even after a good run."""

    @property
    def is_bounded(self) -> bool:
        return self.tier in (Tier.BOUNDED, Tier.BOUNDED_V1)

    @property
    def has_repairs(self) -> bool:
        """Whether decided transactions are aborted in numbers: by brokers, or by an operator."""
        return self.lanes > 0 and (self.is_bounded or OPERATOR in self.kinds)


def with_freezes(
    seconds: float, seed: int, *, tier: Tier, real: bool = False, operator: bool = False, **changes: Any
) -> Plan:
    """Everything at once."""
    kinds = (*EVERYBODY, OPERATOR) if operator else EVERYBODY
    plan = Plan(
        seconds,
        seed,
        processes=len(kinds),
        writers=3,
        pause_s=(0.05, 0.5),
        rest_s=0.05,
        niceness=0,
        tier=tier,
        real=real,
        deeds=KILLS_AND_FREEZES,
        kinds=kinds,
        keeps_kinds=True,
        lanes=_LANES,
        idle_timeout_ms=random.Random(seed).choice((400, 600, 800)),
        lease_ms=1_000,
    )
    if plan.is_bounded:
        plan = dataclasses.replace(plan, deeds={**plan.deeds, **WHERE_BROKERS_ABORT})
    return dataclasses.replace(plan, **changes)


@dataclass
class Tally:
    """Counts of events, for people."""

    kills: Counter[str] = field(default_factory=Counter)
    traps: Counter[str] = field(default_factory=Counter)
    findings: Findings = field(default_factory=Findings)

    @property
    def told(self) -> Counter[str]:
        return self.findings.told

    def __str__(self) -> str:
        kills = ", ".join(f"{count} of {what}" for what, count in sorted(self.kills.items()))
        traps = ", ".join(f"{count} {what}" for what, count in sorted(self.traps.items()))
        told = ", ".join(f"{count} {what}" for what, count in sorted(self.told.items()))
        found = self.findings
        return (
            f"kills and freezes: {kills}; traps sprung: {traps or 'none'}; dual writes: {told}; "
            f"{found.rows} rows, {found.records} records, {found.read} of them read meanwhile; "
            f"{found.repairs} repairs, {found.proofs} proofs from the log; "
            f"{found.slots} slots"
            + (f"; {len(found.hanging)} left by Kafka without a marker (KAFKA-20734)" if found.hanging else "")
        )


@dataclass
class _Worker:
    """A process, and the director's end of its pipe."""

    kind: str
    process: BaseProcess
    orders: Connection
    lane: int | None
    """The lane of its requests; None: it has none."""
    is_frozen: bool = False
    sprung: Callable[[], None] | None = None
    """The action when it reports the point of its trap."""

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)


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
        self._processes = processes()
        self._workers: dict[int, _Worker] = {}
        self._lives = 0
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._away: set[str] = set()
        self.tally = Tally()
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
            lease_ms=plan.lease_ms,
            niceness=plan.niceness,
            kafka=bounded if plan.is_bounded else {},
            away=dict(plan.away),
        )
        if plan.idle_timeout_ms is not None:
            self._database.end_idle_transactions_after(plan.idle_timeout_ms)

    def run(self) -> Tally:
        self._expect_the_tier()
        self._reader.start()
        try:
            for number in range(self._plan.processes):
                self._start_worker(number)
            until(lambda: bool(self._database.bodies()), DEADLINE_S)
            self._rage()
            self._calm_down()
        finally:
            self._reader.stop()
        verdict = self._verdict()
        verdict.hear(self._reader)
        self.tally.findings = verdict.reach()
        return self.tally

    def _verdict(self) -> Verdict:
        return Verdict(self._job, self._database)

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

    def _start_worker(self, number: int) -> None:
        self._lives += 1
        kinds = self._plan.kinds
        kind = kinds[(number if self._plan.keeps_kinds else self._lives) % len(kinds)]
        lane = self._chance.choice((None, *range(len(self._lanes))))
        way = self._broker.bootstrap_servers if lane is None else self._lanes[lane].address
        job = dataclasses.replace(self._job, bootstrap_servers=way, away=dict(self._plan.away))
        ours, theirs = self._processes.Pipe()
        name = f"w{number}.{self._lives}"
        process = self._processes.Process(target=_work_of(kind), args=(job, name, kind, theirs))
        process.start()
        theirs.close()
        self._workers[number] = _Worker(kind, process, ours, lane)
        self._note(f"{name} is {kind}, by {way}, {job.away}, process {process.pid}")

    def _note(self, what: str) -> None:
        self._log.write(f"{time.time():.3f} {what}\n")

    def _rage(self) -> None:
        self._rage_for(self._plan.seconds)

    def _rage_for(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self._let_time_pass(self._chance.uniform(*self._plan.pause_s))
            (deed,) = self._chance.choices(list(self._plan.deeds), list(self._plan.deeds.values()))
            self.tally.kills[deed] += 1
            self._do(deed)

    def _do(self, deed: str) -> None:
        number = self._victim(deed)
        self._note(f"{deed} ({number})")
        match deed:
            case "worker":
                self._kill_worker(number)
            case "worker at a pause point":
                self._set_trap(number, signal.SIGKILL)
            case "frozen worker":
                self._freeze_worker(number)
            case "frozen worker at a pause point":
                self._set_trap(number, signal.SIGSTOP)
            case "late requests of a rival":
                self._set_ambush(number)
            case "everybody after a decision":
                trap = Trap(PausePoint.AFTER_DATABASE_COMMIT, 0.0, signal.SIGSTOP)
                self._send_trap(number, trap, lambda: self._freeze_everybody(number))
            case "backend":
                if "database" not in self._away:
                    with suppress(sa.exc.SQLAlchemyError):
                        self._database.terminate_a_backend()
            case "database":
                self._kill_server("database", self._postgres)
            case "broker":
                self._kill_server("broker", self._broker)
            case "frozen database":
                self._freeze("database", self._postgres, min(self._for_how_long_s(), _SERVER_AWAY_S))
            case "frozen broker":
                self._freeze("broker", self._broker, min(self._for_how_long_s(), _SERVER_AWAY_S))
            case "frozen lane":
                index = self._chance.randrange(len(self._lanes))
                self._freeze(f"lane {index}", self._lanes[index], self._for_how_long_s())

    def _victim(self, deed: str) -> int:
        """Prefer rivals: they take ids over all the time."""
        rivals = [number for number, worker in self._workers.items() if worker.kind.startswith("rival")]
        if rivals and ("rival" in deed or ("pause point" in deed and self._chance.random() < 0.5)):
            return self._chance.choice(rivals)
        return self._chance.randrange(self._plan.processes)

    def _let_time_pass(self, seconds: float) -> None:
        """Do due deeds, and hear of traps that have sprung."""
        end_s = time.monotonic() + seconds
        while True:
            now_s = time.monotonic()
            while self._later and self._later[0][0] <= now_s:
                heapq.heappop(self._later)[2]()
            due_s = min(end_s, self._later[0][0] if self._later else end_s)
            self._hear(max(0.0, due_s - time.monotonic()))
            if time.monotonic() >= end_s:
                return

    def _hear(self, timeout_s: float) -> None:
        pipes = {worker.orders: number for number, worker in self._workers.items()}
        for pipe in wait(list(pipes), timeout_s):
            number = pipes[pipe]  # type: ignore[index]
            try:
                point = self._workers[number].orders.recv()
            except (EOFError, OSError):
                self._note(f"worker {number} has ended")
                self._bury(number)
                continue
            self.tally.traps[point] += 1
            self._note(f"worker {number} is at {point}")
            sprung, self._workers[number].sprung = self._workers[number].sprung, None
            if sprung is not None:
                sprung()

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, self._chance.getrandbits(60), act))

    def _for_how_long_s(self) -> float:
        """Shorter than a database transaction may idle, longer than a lease, or longer than Kafka's bound."""
        bound_s = self._plan.transaction_timeout_ms / 1000
        ranges = [(0.02, 0.4), (0.6, 1.5), (1.5, 3.0)] + [(bound_s * 0.9, bound_s * 1.4)] * self._plan.is_bounded
        (chosen,) = self._chance.choices(ranges, (3, 5, 2, 3)[: len(ranges)])
        return self._chance.uniform(*chosen)

    # ---- processes ------------------------------------------------------------------------------------------

    def _kill_worker(self, number: int) -> None:
        self._workers[number].process.kill()
        self._bury(number)

    def _bury(self, number: int) -> None:
        """One that is dead, or dying; another takes its place."""
        worker = self._workers[number]
        worker.process.kill()
        worker.process.join()
        worker.orders.close()
        self._start_worker(number)

    def _set_trap(self, number: int, stop: signal.Signals) -> None:
        (point,) = self._chance.choices(list(TRAPS), list(TRAPS.values()))
        after_s = self._chance.choice((0.0, self._chance.uniform(0, _NEXT_POINT_S)))
        ends = stop is signal.SIGKILL
        self._send_trap(
            number, Trap(point, after_s, stop), lambda: self._bury(number) if ends else self._frozen(number)
        )

    def _send_trap(self, number: int, trap: Trap, sprung: Callable[[], None]) -> None:
        worker = self._workers[number]
        if not worker.is_frozen:
            worker.sprung = sprung
            with suppress(OSError):
                worker.orders.send(trap)

    def _set_ambush(self, number: int) -> None:
        """A rival's request under the lock of the row, such as InitProducerId, comes later than it may idle."""
        if self._workers[number].lane is not None:
            point = self._chance.choice((PausePoint.AFTER_LOCK, PausePoint.AFTER_LOCK, PausePoint.AFTER_INIT))
            self._send_trap(number, Trap(point, 0.0, None), lambda: self._spring_ambush(number))

    def _spring_ambush(self, number: int) -> None:
        """Meanwhile another one decides, and stands still between its decision and Kafka's commit."""
        index = self._workers[number].lane
        assert index is not None
        late_s = (self._plan.idle_timeout_ms or 0) / 1000 + self._chance.uniform(0.2, 1.5)
        self._freeze(f"lane {index}", self._lanes[index], late_s)
        for other, worker in self._workers.items():
            if worker.kind.startswith("rival") and worker.lane != index:
                self._send_trap(
                    other,
                    Trap(PausePoint.AFTER_DATABASE_COMMIT, 0.0, signal.SIGSTOP),
                    partial(self._frozen, other, late_s + 0.5),
                )

    def _freeze_everybody(self, decided: int) -> None:
        """One has just decided, and others may have: Kafka aborts it all, as if the machine had slept."""
        for_s = self._plan.transaction_timeout_ms / 1000 * self._chance.uniform(1.0, 1.4)
        self._frozen(decided, for_s)
        for number, worker in self._workers.items():
            if not worker.is_frozen:
                worker.signal(signal.SIGSTOP)
                self._frozen(number, for_s)

    def _freeze_worker(self, number: int) -> None:
        if not self._workers[number].is_frozen:
            self._workers[number].signal(signal.SIGSTOP)
            self._frozen(number)

    def _frozen(self, number: int, for_s: float | None = None) -> None:
        """It stands still; some never wake again."""
        worker = self._workers[number]
        worker.is_frozen = True
        dies = self._chance.random() < 0.15

        def wake() -> None:
            if self._workers[number] is not worker:
                return
            self._note(f"worker {number} {'dies' if dies else 'wakes'}")
            worker.is_frozen = False
            if dies:
                self._kill_worker(number)
            else:
                worker.signal(signal.SIGCONT)

        self._after(self._for_how_long_s() if for_s is None else for_s, wake)

    # ---- servers --------------------------------------------------------------------------------------------

    def _kill_server(self, name: str, server: KillablePostgres | KillableEmulator | KillableKafka) -> None:
        if name in self._away:
            return
        server.kill()
        time.sleep(self._chance.uniform(*self._plan.away_s))
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
        """Everything wakes; half of the workers end as they should, the others are killed a last time."""
        self._note("calm")
        while self._later:
            heapq.heappop(self._later)[2]()
        for number, worker in self._workers.items():
            if number % 2:
                worker.process.kill()
            else:
                with suppress(OSError):
                    worker.orders.send("stop")
        deadline_s = time.monotonic() + DEADLINE_S
        while alive := [each for each in self._workers.values() if each.process.is_alive()]:
            assert time.monotonic() < deadline_s, f"workers do not end: {[each.kind for each in alive]}"
            for worker in alive:
                worker.signal(signal.SIGCONT)  # a trap may have sprung on the way
            alive[0].process.join(0.1)


def _work_of(kind: str) -> Callable[[Job, str, str, Any], None]:
    if kind in _OTHERS:
        return _OTHERS[kind]
    if kind in ONLY_KINDS:
        return work_as_only_writer
    return work_as_rival if kind.startswith("rival") else work_through_pool


_OTHERS: Final = {RECOVERY: work_as_recovery, OPERATOR: work_as_operator}


class ChaosError(AssertionError):
    """A failure, and the directory of the processes' journals."""


def run_chaos(plan: Plan, kind: Callable[..., Chaos] = Chaos) -> Tally:
    """One run; raises ChaosError after a failure."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dualwrite-chaos-")))
        postgres = KillablePostgres(stack.enter_context(PostgresServer.start()))
        stack.callback(postgres.stop)
        postgres.allow_connections(20 + 4 * plan.processes * plan.writers)
        lanes = tuple(Lane(number) for number in range(plan.lanes))
        for lane in lanes:
            stack.callback(lane.close)
        broker = broker_of(plan.tier, directory, TOPIC, PARTITIONS, real=plan.real, lanes=lanes)
        stack.callback(broker.stop)
        chaos = kind(plan, directory, postgres, broker, lanes)
        try:
            tally = chaos.run()
        except BaseException as error:
            error.add_note(f"kept: {_keep(directory)}")
            raise
        if tally.findings.problems:
            failure = ChaosError("\n".join([str(tally), *tally.findings.problems]))
            kept = _keep(directory)
            if isinstance(broker, KillableKafka):
                broker.keep(kept / "kafka")
            failure.add_note(f"kept: {kept}")
            raise failure
        if plan.keep:
            print(f"kept: {_keep(directory)}")
        return tally


def _keep(directory: Path) -> Path:
    kept = Path(tempfile.mkdtemp(prefix="dualwrite-chaos-kept-"))
    shutil.copytree(directory, kept, dirs_exist_ok=True, ignore=shutil.ignore_patterns("emulator"))
    return kept


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.pool_chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="of chaos (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="of the director (default: a new one)")
    parser.add_argument("--processes", type=int, default=None, help="(default: 8, or 9 with freezes)")
    parser.add_argument("--writers", type=int, default=None, help="of each process (default: 8, or 3 with freezes)")
    parser.add_argument(
        "--tier", type=int, choices=[1, 2, 3, 4], default=1, help="of the broker (default: %(default)s)"
    )
    parser.add_argument("--real", action="store_true", help="an Apache Kafka of tier 2, 3 or 4 (implies --freezes)")
    parser.add_argument("--freezes", action="store_true", help="everything, and not only kills under pools")
    parser.add_argument("--operator", action="store_true", help="transactions are aborted by hand, too (with freezes)")
    parser.add_argument("--transaction-timeout-ms", type=int, default=None, help="on tiers 3 and 4 (default: 2000)")
    parser.add_argument("--keep", action="store_true", help="what was noted and logged, even where all is well")
    options = parser.parse_args(arguments)
    if options.real and options.tier == 1:
        parser.error("no Apache Kafka is of tier 1")
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    changes: dict[str, Any] = {
        name: value
        for name in ("processes", "writers", "transaction_timeout_ms")
        if (value := getattr(options, name)) is not None
    }
    changes["keep"] = options.keep
    tier = Tier(options.tier)
    if options.freezes or options.real:
        plan = with_freezes(options.seconds, seed, tier=tier, real=options.real, operator=options.operator, **changes)
    else:
        plan = dataclasses.replace(Plan(options.seconds, seed, tier=tier), **changes)
    try:
        tally = run_chaos(plan)
    except AssertionError as error:
        notes = "\n".join(getattr(error, "__notes__", ()))
        print(f"seed {seed}: {error}\n{notes}", file=sys.stderr)
        return 1
    print(tally)
    if plan.has_repairs and not tally.findings.repairs:
        print("nothing was repaired, so that nothing is proven: run it for longer", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
