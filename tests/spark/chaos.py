"""Kill a Spark query, its database and its broker at random; afterwards input, topic and table must agree.

    python -m tests.spark.chaos --seconds 600                   # tier 1
    python -m tests.spark.chaos --seconds 600 --tier 4          # the emulator as Apache Kafka 3.9
    python -m tests.spark.chaos --seconds 600 --tier 3 --real
    python -m tests.spark.chaos --seconds 600 --table delta     # a Delta table, not one of the database
    python -m tests.spark.chaos --seconds 600 --store topic     # no table, and no database: the store is in a topic

A streaming query writes new files to a topic and to a table. Meanwhile a seeded director arms faults at the sink's
pause points, kills and freezes workers, the JVM, Postgres and the broker, takes all connections of Postgres, fills its
disk (where file systems may be mounted), restores an older checkpoint, and suspends a driver and resumes it beside its
successor, on tiers 3 and 4 for longer than the broker keeps a transaction, too. The seed also decides whether Postgres
confirms commits before they are on its disk, and whether an option or the session has the place of the checkpoint. A
calm phase follows, in which the query must reach the end of its input without help. Exit status 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from dualwrite.admin import TransactionAdmin
from dualwrite.guarantee import Tier
from dualwrite.testing.postgres import PostgresServer
from spark_sink.pause_points import PausePoint
from tests.crash.chaos_brokers import broker_of
from tests.crash.chaos_servers import KillableEmulator, KillableKafka, KillablePostgres
from tests.crash.small_disk import can_mount
from tests.spark.chaos_driver import QUERY, Job
from tests.spark.chaos_stores import SINK_ID, LakeTable, NoTable, Place, SqlTable
from tests.spark.driver_process import DriverProcess
from tests.spark.faults import Action, Fault
from tests.spark.restored_checkpoints import Checkpoints
from tests.support.conditions import until
from tests.support.topics import read_topic

TOPIC = "chaos"
PARTITIONS = 3
ROWS_PER_FILE = 20
MOST_FILES_WAITING = 12
MOST_ARMED = 2
CALM_S = 300.0
MISMATCH = "CheckpointMismatchError"
NEVER = {"BatchLostError", "StoreWentBackError", "SinkOptionError"}
"""The errors that no fault may cause; `MISMATCH` only an older checkpoint."""
BOUNDED_MS = 10_000
"""How long a broker of tier 3 or 4 keeps a transaction."""
CONNECTIONS = 40
SPARE_BYTES = 96 << 20
"""Free space on Postgres's disk, where this process may mount one."""
REFUSED_WITHIN_S = 60.0
OVER = {"Empty", "CompleteCommit", "CompleteAbort", "Dead"}


@dataclass(frozen=True)
class Plan:
    """The settings of a run; the seed determines the director's choices, and the machine their times."""

    seconds: float
    seed: int
    pause_s: tuple[float, float] = (0.1, 1.0)
    """The shortest time between two faults."""
    patience_s: float = 20.0
    """The longest time between two faults, if there is no progress."""
    rows_of_life: tuple[int, int] = (40, 800)
    """The rows that a driver writes before it is killed: a JVM takes long to start, with no fault tested meanwhile."""
    longest_life_s: float = 90.0
    away_s: tuple[float, float] = (0.0, 1.5)
    """How long a server stays down."""
    asleep_s: tuple[float, float] = (1.0, 6.0)
    """How long a driver is suspended while its successor works."""
    stall_s: float = 3.0
    """How long a process is suspended at a pause point."""
    frozen_s: tuple[float, float] = (0.3, 5.0)
    """How long a server is frozen, or has no connection left."""
    tier: Tier = Tier.KEEP_PREPARED
    real: bool = False
    table: str = "sql"
    """`sql`, `delta`, or `none`: then the store is in a topic."""

    @property
    def is_bounded(self) -> bool:
        return self.tier in (Tier.BOUNDED, Tier.BOUNDED_V1)


def plan_of_tier(seconds: float, seed: int, tier: Tier, *, real: bool, table: str = "sql") -> Plan:
    """Return the plan of a run; where brokers abort slow transactions, it sleeps for longer than their timeout."""
    plan = Plan(seconds, seed, tier=tier, real=real, table=table)
    return replace(plan, asleep_s=(1.0, 1.5 * BOUNDED_MS / 1000)) if plan.is_bounded else plan


@dataclass
class Tally:
    """A summary of the run."""

    faults: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    """The number of queries that ended, by the reason."""
    drivers: int = 0
    batches: int = 0
    attempts: Counter[str] = field(default_factory=Counter)
    ids: int = 0
    rows: int = 0

    def __str__(self) -> str:
        return (
            f"faults: {_counted(self.faults)}; drivers: {self.drivers}; failed queries: {_counted(self.failures)}; "
            f"{self.batches} batches; attempts: {_counted(self.attempts)}; {self.ids} transactional ids; "
            f"{self.rows} rows of the input, records and rows of the table, if there is one, agree"
        )


def _counted(counter: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counter.items())) or "none"


class Chaos:
    """One run on servers of its own."""

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        postgres: KillablePostgres | None,
        broker: KillableEmulator | KillableKafka,
    ) -> None:
        """`postgres`: the database of the store; None if that is in a topic."""
        self._plan = plan
        self._chance = random.Random(plan.seed)
        self._directory = directory
        self._postgres = postgres
        self._broker = broker
        self._place = self._new_place()
        root = directory / "checkpoints"
        self._checkpoints = Checkpoints(root / QUERY)
        self._job = Job(str(directory), self._options(), plan.stall_s)
        if self._chance.random() < 0.5:
            self._job = replace(self._job, session_checkpoint=str(root))
        else:
            self._job.options["checkpointLocation"] = str(root / QUERY)
        self._job.input.mkdir()
        self._faults = self._job.faults()
        self._job.save(directory / "job")
        self._files = self._written = 0
        self._drivers: list[DriverProcess] = []
        self.tally = Tally()

    def _new_place(self) -> Place:
        if self._postgres is None:
            return NoTable(self._kafka_options())
        engine = sa.create_engine(self._postgres.url, pool_pre_ping=True)
        if self._chance.random() < 0.5:
            with engine.begin() as connection:
                connection.execute(sa.text("ALTER ROLE CURRENT_USER SET synchronous_commit = off"))
        return LakeTable(engine, self._directory) if self._plan.table == "delta" else SqlTable(engine)

    def _options(self) -> dict[str, str]:
        return self._kafka_options() | self._place.options

    def _kafka_options(self) -> dict[str, str]:
        options = {
            "kafka.bootstrap.servers": self._broker.bootstrap_servers,
            "kafka.max.block.ms": "5000",
            "kafka.delivery.timeout.ms": "10000",
            "kafka.request.timeout.ms": "3000",
            "sinkId": SINK_ID,
            "topic": TOPIC,
            "commit.retries": "4",
        }
        return options | ({"txn.timeoutMs": str(BOUNDED_MS)} if self._plan.is_bounded else {})

    def run(self) -> Tally:
        try:
            self._active = self._ready_driver()
            self._active.go()
            self._standby = self._new_driver()
            self._rage()
            self._calm_down()
        finally:
            for driver in self._drivers:
                driver.kill()
        self._assert_right()
        return self.tally

    # ---- drivers ------------------------------------------------------------------------------------------------

    def _new_driver(self) -> DriverProcess:
        """Start a driver, which gets ready while another one works."""
        log = self._directory / f"driver-{self.tally.drivers}.log"
        self.tally.drivers += 1
        driver = DriverProcess("tests.spark.chaos_driver", str(self._directory / "job"), log=log)
        self._drivers.append(driver)
        return driver

    def _ready_driver(self) -> DriverProcess:
        driver = self._new_driver()
        driver.wait_until_ready()
        return driver

    def _succeed(self) -> None:
        """Let the standby driver work, and start another standby."""
        self._standby.wait_until_ready()
        self._standby.go()
        self._active, self._standby = self._standby, self._new_driver()

    def _end(self, driver: DriverProcess) -> None:
        driver.kill()
        self._drivers.remove(driver)

    # ---- the restless phase -------------------------------------------------------------------------------------

    def _rage(self) -> None:
        """Inject a fault after each progress; after enough progress of a driver, one that kills its JVM."""
        actions: dict[Callable[[], None], float] = {
            self._arm: 12,
            self._kill_some_worker: 2,
            self._restart_broker: 1,
            self._freeze_broker: 1,
        }
        if self._postgres is not None:
            actions |= self._faults_of(self._postgres)
        deadly = [
            self._kill_driver,
            self._put_driver_to_sleep,
            self._arm_deadly,
            self._arm_deadly,
            self._restore_checkpoint,
        ]
        end_s = time.monotonic() + self._plan.seconds
        self._begin_life()
        while time.monotonic() < end_s:
            self._wait_for_progress()
            if self._is_old():
                self._chance.choice(deadly)()
                self._begin_life()
            else:
                self._chance.choices(list(actions), list(actions.values()))[0]()
            self._count_struck()
            if not self._active.is_alive:  # a fault has killed the JVM
                self._end(self._active)
                self._succeed()
                self._begin_life()

    def _faults_of(self, postgres: KillablePostgres) -> dict[Callable[[], None], float]:
        faults: dict[Callable[[], None], float] = {
            lambda: self._restart_database(postgres): 1,
            lambda: self._freeze_database(postgres): 1,
            lambda: self._take_connections(postgres): 1,
        }
        if postgres.has_small_disk:
            faults[lambda: self._fill_disk(postgres)] = 1
        return faults

    def _begin_life(self) -> None:
        self._rows_of_life = self._written + self._chance.randint(*self._plan.rows_of_life)
        self._end_of_life_s = time.monotonic() + self._plan.longest_life_s

    def _is_old(self) -> bool:
        return self._written >= self._rows_of_life or time.monotonic() > self._end_of_life_s

    def _wait_for_progress(self) -> None:
        """Wait for a while, or until there is progress if the last fault prevents it."""
        before = self._written
        deadline_s = time.monotonic() + self._plan.patience_s
        time.sleep(self._chance.uniform(*self._plan.pause_s))
        self._feed()
        while self._written == before and time.monotonic() < deadline_s and self._active.is_alive:
            time.sleep(0.1)
            self._feed()

    def _feed(self) -> None:
        """Check how much is written, and add input unless too much of it is waiting."""
        written = self._place.written()
        if written is None:
            return
        self._written = written
        if self._files - self._written / ROWS_PER_FILE < MOST_FILES_WAITING:
            for _ in range(4):
                self._add_file()

    def _add_file(self) -> None:
        rows = [json.dumps({"value": value}) for value in self._values(self._files)]
        partial = self._directory / "partial"
        partial.write_text("\n".join(rows) + "\n")
        partial.rename(self._job.input / f"{self._files:06}.json")
        self._files += 1

    @staticmethod
    def _values(file: int) -> list[str]:
        return [f"{file}-{row}" for row in range(ROWS_PER_FILE)]

    def _arm(self) -> None:
        """Arm a fault at any point, for the first process that reaches it."""
        self._arm_one(self._chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0])

    def _arm_deadly(self) -> None:
        self._arm_one(self._chance.choice([Action.KILL_JVM, Action.ORPHAN]))

    def _arm_one(self, action: Action) -> None:
        if self._faults.armed() < MOST_ARMED:
            self._faults.arm(Fault(self._chance.choice(list(PausePoint)), action))

    def _count_struck(self) -> None:
        self.tally.faults.update(fault.action for fault in self._faults.struck())

    def _kill_some_worker(self) -> None:
        workers = self._active.workers()
        if workers:
            with suppress(ProcessLookupError):
                os.kill(self._chance.choice(workers), signal.SIGKILL)
            self.tally.faults["a worker killed at any instant"] += 1

    def _restart_database(self, postgres: KillablePostgres) -> None:
        self._restart(postgres)
        self.tally.faults["database killed"] += 1

    def _restart_broker(self) -> None:
        self._restart(self._broker)
        self.tally.faults["broker killed"] += 1

    def _freeze_database(self, postgres: KillablePostgres) -> None:
        self._freeze(postgres)
        self.tally.faults["database frozen"] += 1

    def _freeze_broker(self) -> None:
        self._freeze(self._broker)
        self.tally.faults["broker frozen"] += 1

    def _freeze(self, server: KillablePostgres | KillableEmulator | KillableKafka) -> None:
        server.freeze()
        time.sleep(self._chance.uniform(*self._plan.frozen_s))
        server.thaw()

    def _take_connections(self, postgres: KillablePostgres) -> None:
        """Hold all remaining connections of Postgres for a while."""
        engine = sa.create_engine(postgres.url, poolclass=sa.NullPool)
        with ExitStack() as held:
            with suppress(DBAPIError):
                for _ in range(CONNECTIONS):
                    held.enter_context(engine.connect())
            time.sleep(self._chance.uniform(*self._plan.frozen_s))
        self.tally.faults["no connection left"] += 1

    def _fill_disk(self, postgres: KillablePostgres) -> None:
        """Leave Postgres no room for a while: statements fail, and it may end itself."""
        with postgres.full_disk():
            time.sleep(self._chance.uniform(*self._plan.frozen_s))
        self.tally.faults["database disk full"] += 1

    def _restart(self, server: KillablePostgres | KillableEmulator | KillableKafka) -> None:
        server.kill()
        time.sleep(self._chance.uniform(*self._plan.away_s))
        server.start_again()

    def _kill_driver(self) -> None:
        self._end(self._active)
        self._succeed()
        self.tally.faults["driver killed at any instant"] += 1

    def _restore_checkpoint(self) -> None:
        """Let the successor begin with an older checkpoint, which it must refuse, then with the current one."""
        self._end(self._active)
        decided = max((batch.batch_id for batch in self._place.store.batches(SINK_ID)), default=-1) + 1
        if self._checkpoints.is_old(decided):
            self._faults.disarm()
            self._checkpoints.restore()
            before = self._mismatches()
            self._succeed()
            until(lambda: self._mismatches() > before, REFUSED_WITHIN_S)
            self._end(self._active)
            self._checkpoints.undo()
            self.tally.faults["older checkpoint"] += 1
        self._checkpoints.back_up(decided)
        self._succeed()
        self.tally.faults["driver killed at any instant"] += 1

    def _mismatches(self) -> int:
        return self._journal().count(MISMATCH)

    def _journal(self) -> list[str]:
        return self._job.journal.read_text().split() if self._job.journal.exists() else []

    def _put_driver_to_sleep(self) -> None:
        """Suspend the driver, and resume it beside a successor that it does not know of."""
        sleeper = self._active
        sleeper.send(signal.SIGSTOP)
        self._succeed()
        time.sleep(self._chance.uniform(*self._plan.asleep_s))
        sleeper.send(signal.SIGCONT)
        time.sleep(self._chance.uniform(*self._plan.asleep_s))
        self._end(sleeper)
        self.tally.faults["driver asleep"] += 1

    # ---- the calm phase -----------------------------------------------------------------------------------------

    def _calm_down(self) -> None:
        self._count_struck()
        self._faults.disarm()
        self._job.calm.touch()
        if not self._active.is_alive:
            self._end(self._active)
            self._standby.wait_until_ready()
            self._active = self._standby
            self._active.go()
        assert self._active.wait(CALM_S) == 0, "the driver does not end well"

    def _assert_right(self) -> None:
        self._count_failures()
        written = sorted(value for file in range(self._files) for value in self._values(file))
        in_topic = sorted(value for _, value in read_topic(self._broker.bootstrap_servers, TOPIC))
        _assert_same("the topic", written, in_topic)
        in_table = self._place.rows()
        if in_table is not None:
            _assert_same("the table", written, in_table)
        self.tally.rows = len(written)
        self._assert_nothing_is_left()

    def _count_failures(self) -> None:
        self.tally.failures.update(self._journal())
        forbidden = (
            NEVER if self.tally.faults["older checkpoint"] else NEVER | {MISMATCH}
        ) & self.tally.failures.keys()
        assert not forbidden, f"queries have failed by {forbidden}"

    def _assert_nothing_is_left(self) -> None:
        with TransactionAdmin(bootstrap_servers=self._broker.bootstrap_servers) as admin:
            left = [str(each) for each in admin.list_transactions() if str(each.state) not in OVER]
        assert not left, f"open at the broker: {left}"
        attempts, batches = self._place.store.attempts(SINK_ID), self._place.store.batches(SINK_ID)
        self.tally.attempts.update(str(each.status) for each in attempts)
        self.tally.ids = len({each.transactional_id for each in attempts})
        self.tally.batches = len(batches)
        assert set(self.tally.attempts) <= {"COMMITTED", "ABORTED"}, self.tally.attempts
        assert {str(each.status) for each in batches} == {"DONE"}
        assert not self._place.left_over()


_WEIGHTS = {Action.RAISE: 2, Action.KILL_WORKER: 2, Action.STALL: 1}


def _assert_same(where: str, written: Sequence[str], found: Sequence[str]) -> None:
    missing, surplus = Counter(written) - Counter(found), Counter(found) - Counter(written)
    assert not missing, f"{len(missing)} of {len(written)} rows are not in {where}, such as {list(missing)[:5]}"
    assert not surplus, f"{len(surplus)} rows are in {where} too often, such as {list(surplus)[:5]}"


def run_chaos(plan: Plan, keep: Path | None = None) -> Tally:
    """Do one run; raise AssertionError if a check fails. `keep`: the directory for its files."""
    with ExitStack() as stack:
        directory = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dualwrite-spark-chaos-")))
        postgres = None
        if plan.table != "none":
            postgres = KillablePostgres(stack.enter_context(PostgresServer.start()))
            stack.callback(postgres.stop)
            if can_mount():
                postgres.move_to_small_disk(SPARE_BYTES)
            postgres.allow_connections(CONNECTIONS)
        broker = broker_of(plan.tier, directory, TOPIC, PARTITIONS, real=plan.real)
        stack.callback(broker.stop)
        return Chaos(plan, directory, postgres, broker).run()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="of faults (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="of the director (default: a new one)")
    parser.add_argument(
        "--tier", type=int, choices=[1, 2, 3, 4], default=1, help="of the broker (default: %(default)s)"
    )
    parser.add_argument("--real", action="store_true", help="an Apache Kafka of tier 2, 3 or 4")
    parser.add_argument("--table", choices=["sql", "delta"], default="sql", help="the table (default: %(default)s)")
    parser.add_argument(
        "--store", choices=["sql", "topic"], default="sql", help="where the decisions are; in a topic without a table"
    )
    parser.add_argument("--keep", type=Path, default=None, help="an empty directory for logs, which stay there")
    options = parser.parse_args(arguments)
    if options.real and options.tier == 1:
        parser.error("no Apache Kafka is of tier 1")
    if options.store == "topic" and options.table == "delta":
        parser.error("a store in a topic has no table")
    table = "none" if options.store == "topic" else options.table
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    try:
        tally = run_chaos(
            plan_of_tier(options.seconds, seed, Tier(options.tier), real=options.real, table=table), options.keep
        )
    except AssertionError as error:
        print(f"seed {seed}: {error}", file=sys.stderr)
        return 1
    print(tally)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
