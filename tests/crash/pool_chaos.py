"""Processes with a pool each, the database and the broker are killed at random; afterwards both sides must agree.

    python -m tests.crash.pool_chaos --seconds 600

Workers, every other of them on psycopg alone, do dual writes, without a pause unless the plan has one, while a seeded
director sends SIGKILL to them, to Postgres and to the emulator, and starts again what it has killed. Then comes calm,
in which everything must come right without anybody's help: table and topic are compared record by record, every caller
must have been told the truth, no transaction may be open, no lease held, no slot stuck. Exit status 1 where that is not
so.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import sqlalchemy as sa

from dualwrite.admin import TransactionAdmin
from dualwrite.recipes.decisions import Outcome
from dualwrite.recipes.lease_table import kafka_transaction_lease
from dualwrite.recipes.leases import transactional_id_of
from dualwrite.recipes.sqlalchemy import DualWriter
from dualwrite.testing.postgres import PostgresServer
from tests.crash.chaos_servers import DEADLINE_S, KillableEmulator, KillablePostgres
from tests.crash.pool_worker import COMMITTED, KINDS, MISTAKE, ROLLED_BACK, Job, bodies_of, events, work
from tests.support.conditions import until
from tests.support.forked_processes import processes
from tests.support.topics import read_topic

TOPIC = "chaos"
PARTITIONS = 4
OVER = {"Empty", "CompleteCommit", "CompleteAbort", "Dead"}


@dataclass(frozen=True)
class Plan:
    """What a run does; the director's choices follow from the seed, their instants from the machine."""

    seconds: float
    seed: int
    processes: int = 8
    writers: int = 8
    pause_s: tuple[float, float] = (0.2, 1.2)
    """Between two kills."""
    away_s: tuple[float, float] = (0.0, 1.5)
    """For which a server stays dead."""
    rest_s: float = 0.0
    """The longest that a slot rests between two dual writes."""


@dataclass
class Tally:
    """What happened, for people."""

    kills: Counter[str] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    slots: int = 0
    rows: int = 0

    def __str__(self) -> str:
        kills = ", ".join(f"{count} of {what}" for what, count in sorted(self.kills.items()))
        told = ", ".join(f"{count} {what}" for what, count in sorted(self.told.items()))
        return f"kills: {kills}; dual writes: {told}; {self.rows} rows and records agree; {self.slots} slots"


class Chaos:
    """One run on servers of its own."""

    def __init__(self, plan: Plan, directory: Path, postgres: KillablePostgres, emulator: KillableEmulator) -> None:
        self._plan = plan
        self._chance = random.Random(plan.seed)
        self._postgres = postgres
        self._emulator = emulator
        self._processes = processes()
        self._workers: dict[int, tuple[BaseProcess, Connection]] = {}
        self._lives = 0
        self.tally = Tally()
        journals = directory / "journals"
        journals.mkdir()
        self._job = Job(
            database_url=postgres.url.render_as_string(hide_password=False),
            bootstrap_servers=emulator.bootstrap_servers,
            prefix=f"chaos-{uuid.uuid4().hex[:8]}",
            topic=TOPIC,
            writers=plan.writers,
            journals=journals,
            rest_s=plan.rest_s,
        )
        self._engine = sa.create_engine(self._postgres.url, pool_pre_ping=True)
        events.metadata.drop_all(self._engine)
        events.metadata.create_all(self._engine)

    def run(self) -> Tally:
        for number in range(self._plan.processes):
            self._start_worker(number)
        self._rage()
        self._stop_workers()
        self._come_right()
        return self.tally

    # ---- the restless phase ---------------------------------------------------------------------------------

    def _start_worker(self, number: int) -> None:
        self._lives += 1
        name = f"w{number}.{self._lives}"
        ours, theirs = self._processes.Pipe()
        process = self._processes.Process(target=work, args=(self._job, name, KINDS[self._lives % len(KINDS)], theirs))
        process.start()
        theirs.close()
        self._workers[number] = (process, ours)

    def _rage(self) -> None:
        end_s = time.monotonic() + self._plan.seconds
        while time.monotonic() < end_s:
            time.sleep(self._chance.uniform(*self._plan.pause_s))
            victim = self._chance.choices(("worker", "database", "broker"), (6, 1, 1))[0]
            self.tally.kills[victim] += 1
            match victim:
                case "worker":
                    self._kill_worker(self._chance.randrange(self._plan.processes))
                case "database":
                    self._kill_server(self._postgres)
                case "broker":
                    self._kill_server(self._emulator)

    def _kill_worker(self, number: int) -> None:
        process, orders = self._workers[number]
        process.kill()
        process.join()
        orders.close()
        self._start_worker(number)

    def _kill_server(self, server: KillablePostgres | KillableEmulator) -> None:
        server.kill()
        time.sleep(self._chance.uniform(*self._plan.away_s))
        server.start_again()

    def _stop_workers(self) -> None:
        """Half of them end as they should, the others are killed a last time."""
        for number, (process, orders) in self._workers.items():
            if number % 2:
                process.kill()
            else:
                orders.send("stop")
        for process, _ in self._workers.values():
            process.join(DEADLINE_S)
            assert process.exitcode is not None, "a worker does not end"

    # ---- the calm phase -------------------------------------------------------------------------------------

    def _come_right(self) -> None:
        with self._job.pool(self._engine, writers=1) as pool:
            pool.recover()
            until(lambda: not self._held_leases() and not pool.status.set_aside, DEADLINE_S)
            assert pool.status.in_use == 0
        until(lambda: not self._open_transactions(), DEADLINE_S)
        self._assert_sides_agree()
        self._assert_callers_were_told_the_truth()
        self._assert_no_slot_is_stuck()

    def _held_leases(self) -> list[int]:
        table = kafka_transaction_lease
        held = sa.select(table.c.slot).where(table.c.prefix == self._job.prefix, table.c.owner.is_not(None))
        with self._engine.connect() as connection:
            return list(connection.scalars(held))

    def _open_transactions(self) -> list[str]:
        with TransactionAdmin(bootstrap_servers=self._emulator.bootstrap_servers) as admin:
            listed = admin.list_transactions()
        return [str(each) for each in listed if str(each.state) not in OVER]

    def _in_table(self) -> list[str]:
        with self._engine.connect() as connection:
            return sorted(connection.scalars(sa.select(events.c.body)))

    def _assert_sides_agree(self) -> None:
        in_topic = sorted(value for _, value in read_topic(self._emulator.bootstrap_servers, TOPIC))
        in_table = self._in_table()
        assert len(in_topic) == len(set(in_topic)), "a record is in the topic twice"
        only_one = sorted(set(in_table) ^ set(in_topic))
        assert not only_one, f"{len(only_one)} of {len(in_table)} are on one side only, such as {only_one[:5]}"
        self.tally.rows = len(in_table)

    def _assert_callers_were_told_the_truth(self) -> None:
        in_table = set(self._in_table())
        for journal in self._job.journals.iterdir():
            for line in journal.read_text().splitlines():
                name, told, *what = line.split(" ", 2)
                assert told != MISTAKE, f"{name}: {what}"
                there = [body for body in bodies_of(name) if body in in_table]
                assert there in ([], bodies_of(name)), f"half of {name}"
                assert told not in (COMMITTED, ROLLED_BACK) or (told == COMMITTED) is bool(there), line
                self.tally.told[told] += 1

    def _assert_no_slot_is_stuck(self) -> None:
        table = kafka_transaction_lease
        with self._engine.connect() as connection:
            slots = list(connection.scalars(sa.select(table.c.slot).where(table.c.prefix == self._job.prefix)))
        self.tally.slots = len(slots)
        for slot in slots:
            with DualWriter(
                self._engine,
                bootstrap_servers=self._emulator.bootstrap_servers,
                transactional_id=transactional_id_of(self._job.prefix, slot),
            ) as writer:
                assert writer.recover().outcome is Outcome.NOTHING
                with writer.transaction() as tx:
                    tx.send(TOPIC, value="unstuck", key="unstuck")


def run_chaos(plan: Plan) -> Tally:
    """One run; raises AssertionError where something did not come right."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dualwrite-chaos-")))
        postgres = KillablePostgres(stack.enter_context(PostgresServer.start()))
        stack.callback(postgres.stop)
        postgres.allow_connections(4 * plan.processes * plan.writers)
        emulator = KillableEmulator(directory / "emulator", TOPIC, PARTITIONS)
        stack.callback(emulator.stop)
        return Chaos(plan, directory, postgres, emulator).run()


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.pool_chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="of kills (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="of the director (default: a new one)")
    parser.add_argument("--processes", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--writers", type=int, default=8, help="slots of each process (default: %(default)s)")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    try:
        tally = run_chaos(Plan(options.seconds, seed, options.processes, options.writers))
    except AssertionError as error:
        print(f"seed {seed}: {error}", file=sys.stderr)
        return 1
    print(tally)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
