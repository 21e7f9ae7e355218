"""One simulation from a seed: set up, let things go wrong, heal, recover, check."""

from __future__ import annotations

import asyncio
import hashlib
from random import Random
from typing import Final, NamedTuple

from dualwrite.guarantee import Tier
from tests.proof.simulation.application import (
    EXPECTED,
    LEASE_MS,
    POOL,
    Application,
    Settings,
    Writer,
    group_of,
    new_writer,
    outcomes,
)
from tests.proof.simulation.brokers import Brokers
from tests.proof.simulation.database import Change, DatabaseServer
from tests.proof.simulation.determinism import nothing_from_outside
from tests.proof.simulation.disk import Disk, disk_for
from tests.proof.simulation.faults import Faults
from tests.proof.simulation.history import History, Reader, check_at_rest
from tests.proof.simulation.leases import LeaseTable
from tests.proof.simulation.loop import LivelockError, Process, SimulatedLoop
from tests.proof.simulation.network import Network

_FAULTS_WITHIN_S: Final = (0.15, 0.5, 0.5, 2.0, 6.0)
_ON_DISK: Final = 0.25
_WRITING_ENDS_S: Final = 24 * 3600.0
_SETTLING_S: Final = 300.0
_RECOVERIES: Final = 20


class Result(NamedTuple):
    """The result of one seed."""

    seed: int
    problems: list[str]
    lines: list[str]
    digest: str
    """Of the history: the same for the same seed."""
    steps: int
    writes: int
    decided: int


class Simulation:
    """One simulation."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        random = Random(f"simulation {seed}")
        self._random = random
        self.loop: Final = SimulatedLoop(Random(f"loop {seed}"))  # type: ignore[abstract]  # the rest is not used
        self.history: Final = History(self.loop)
        self.loop.note = self.history.note
        self.network: Final = Network(self.loop, Random(f"network {seed}"))
        tier = random.choice(tuple(Tier))
        self.brokers: Final = Brokers(self.loop, self.network, tier, nodes=3)
        self.disk: Final = Disk(self.loop, self.brokers.process, random) if random.random() < _ON_DISK else None
        self.database: Final = DatabaseServer(self.loop, self.network, Random(f"database {seed}"))
        self.database.on_durable = self._on_durable
        self._settings = Settings(random, self.brokers.bootstrap, tier)
        self._ids = random.choice((["id0"], ["id0"], ["id0", "id1"], [POOL]))
        self.database.leases = LeaseTable().carry_out
        self._readers: list[Reader] = []
        self._processes: dict[Process, int] = {}
        """Those that run, with the number of dual writes that they were started for."""
        self._starting = 0
        """How many are about to be started."""
        self._recovered = 0
        self.faults: Final = Faults(
            self.loop,
            Random(f"faults {seed}"),
            self.history,
            self.network,
            self.brokers,
            self.database,
            self,
            self.disk,
        )
        self.history.note(f"seed {seed}: {tier!r}, {self._settings}")

    # ---- the course of events -------------------------------------------------------------------------------

    def run(self) -> None:
        """Run it, and check it."""
        loop = self.loop
        self.brokers.on_start = self._on_start
        loop.call_soon_in(self.brokers.process, self.brokers.start, None if self.disk is None else self.disk.open())
        for number in range(self._random.choice((2, 3))):
            self._start(f"P{number}", self._random.choice((2, 3, 4)))
        within_s = self._random.choice(_FAULTS_WITHIN_S)
        loop.begin(loop.world, self.faults.run(self._random.randrange(2, 9), within_s))
        try:
            self._run()
        except LivelockError as error:
            self.history.wrong(str(error))
        for problem in loop.problems:
            self.history.wrong(problem)

    def _run(self) -> None:
        loop, history = self.loop, self.history
        if not loop.run_until(self._is_written, _WRITING_ENDS_S):
            history.wrong(f"processes did not end: {sorted(map(str, self._processes))}")
        self.faults.end()
        loop.run_until(_never, loop.now_s + (LEASE_MS / 1000 if self._ids == [POOL] else 0) + 1.0)
        for transactional_id in self._ids:
            loop.begin(Process(f"recovery of {transactional_id}"), self._recover(transactional_id))
        if not loop.run_until(self._is_recovered, loop.now_s + _SETTLING_S):
            history.wrong("recover() did not return")
        loop.run_until(_never, loop.now_s + 5.0)
        self._check()

    def _is_written(self) -> bool:
        return not self._processes and not self._starting

    def _is_recovered(self) -> bool:
        return self._recovered == len(self._ids)

    def _on_start(self) -> None:
        partitions = list(self.brokers.data_partitions())
        if not self._readers:
            self._readers = [Reader(self.history, partition) for partition in partitions]
        else:
            for reader, partition in zip(self._readers, partitions, strict=True):
                reader.follow(partition)

    def _on_durable(self, change: Change) -> None:
        of = _id_of(change)
        for (table, _), value in change.rows.items():
            if table == "writes":
                self.history.decide(value, of)

    # ---- processes ------------------------------------------------------------------------------------------

    def _start(self, name: str, writes: int) -> None:
        process = Process(name)
        self._processes[process] = writes
        self.loop.begin(process, self._program(process, writes))

    async def _program(self, process: Process, writes: int) -> None:
        application = Application(
            self.history,
            Random(f"{process} {self.seed}"),
            lambda transactional_id: self._new_writer(process, transactional_id),
            self._ids,
            process.name,
            consumes=self._settings.consumes,
        )
        await application.run(writes)
        self._processes.pop(process, None)

    def _new_writer(self, process: Process, transactional_id: str) -> Writer:
        return new_writer(self.loop, self.network, self._settings, transactional_id, self.faults.hook(process))

    def living(self) -> list[Process]:
        """Return the processes that run."""
        return list(self._processes)

    def kill(self, process: Process) -> None:
        """Kill a process, and start another one in its place later."""
        writes = self._processes.pop(process, 0)
        self.loop.kill(process)
        self.network.drop_connections_of(process, is_silent=self._random.random() < 0.1)
        if writes:
            self._starting += 1
            after_s = self._random.choice((0.0, 0.1, 1.0, 10.0))
            name = f"{process.name}'"
            self.loop.call_at_in(self.loop.world, self.loop.now_s + after_s, self._start_again, name, writes - 1)

    def _start_again(self, name: str, writes: int) -> None:
        self._starting -= 1
        self.history.note(f"{name} starts")
        self._start(name, writes)

    async def _recover(self, transactional_id: str) -> None:
        for _ in range(_RECOVERIES):
            writer = new_writer(self.loop, self.network, self._settings, transactional_id, None)
            try:
                found = await writer.recover()
                await writer.close()
            except EXPECTED as error:
                self.history.note(f"recover({transactional_id}) raised {type(error).__name__}: {error}")
                await asyncio.sleep(1.0)
            else:
                self.history.note(f"recover({transactional_id}) found {outcomes(found)}")
                break
        else:
            self.history.wrong(f"nobody could recover {transactional_id}")
        application = Application(
            self.history,
            Random(0),
            lambda its_id: new_writer(self.loop, self.network, self._settings, its_id, None),
            [transactional_id],
            f"after {transactional_id}",
            consumes=self._settings.consumes,
        )
        await application.write_at_last(transactional_id)
        self._recovered += 1

    # ---- what must hold -------------------------------------------------------------------------------------

    def _check(self) -> None:
        history = self.history
        committed = {
            value: _id_of(change)
            for change in self.database.log
            for (table, _), value in change.rows.items()
            if table == "writes"
        }
        if list(history.decided.items()) != list(committed.items()):
            history.wrong(f"the database lost decisions: {history.decided.keys() ^ committed.keys()}")
        for partition in self.brokers.data_partitions():
            log = partition.log
            if log.last_stable_offset != log.log_end_offset:
                history.wrong(f"a transaction is open in partition {partition.index} at rest")
        for found in self.brokers.operations.transactions():
            if found.state not in ("Empty", "CompleteCommit", "CompleteAbort"):
                history.wrong(f"{found.transactional_id} is {found.state} at rest")
        for transactional_id, position in self._consumed().items():
            at = self.brokers.committed_offset(group_of(transactional_id))
            if at != position:
                history.wrong(f"{group_of(transactional_id)} is at {at}, and was committed with {position}")
        check_at_rest(history, self._readers, committed)

    def _consumed(self) -> dict[str, int]:
        """Return the last committed position of each id."""
        return {
            transactional_id: position
            for change in self.database.log
            for (table, transactional_id), position in change.rows.items()
            if table == "offsets"
        }


def _id_of(change: Change) -> str:
    return next((key for table, key in change.rows if table == "state"), "")


def _never() -> bool:
    return False


def simulate(seed: int) -> Result:
    """Run one seed."""
    simulation = Simulation(seed)
    history = simulation.history
    with nothing_from_outside(simulation.loop, seed), disk_for(simulation.disk):
        try:
            simulation.run()
        finally:
            simulation.loop.close()
    lines = history.lines()
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    return Result(seed, history.problems, lines, digest, simulation.loop.steps, len(history.told), len(history.decided))
