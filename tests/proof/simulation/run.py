"""One simulation from a seed: set up, let things go wrong, heal, recover, check."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

from dualwrite.errors import PreparedTransactionLost
from dualwrite.guarantee import Tier
from tests.proof.simulation.application import (
    EXPECTED,
    POOL,
    Application,
    Settings,
    Writer,
    group_of,
    new_writer,
    recovered,
)
from tests.proof.simulation.brokers import Brokers
from tests.proof.simulation.database import Change, DatabaseServer
from tests.proof.simulation.determinism import nothing_from_outside
from tests.proof.simulation.disk import Disk, disk_for
from tests.proof.simulation.faults import Faults
from tests.proof.simulation.history import History, Reader
from tests.proof.simulation.judge import judge_writers
from tests.proof.simulation.leases import LeaseTable
from tests.proof.simulation.loop import LivelockError, Process, SimulatedLoop
from tests.proof.simulation.network import Network

_FAULTS_WITHIN_S: Final = (0.15, 0.5, 0.5, 2.0, 6.0)
_ON_DISK: Final = 0.25
_SILENT: Final = 0.1
"""How often a process dies with its machine, so that the others are not notified."""
_WRITING_ENDS_S: Final = 24 * 3600.0
_WITHOUT_POWER_S: Final = 60.0
_SETTLING_S: Final = 300.0
_RECOVERIES: Final = 20

_OFFSETS_LOST: Final = "it contained consumed offsets"
"""On tier 2 a take-over that lost its lock may abort one decided transaction late, and offsets are in no topic."""


class Result(NamedTuple):
    """The result of one seed."""

    seed: int
    problems: list[str]
    lines: list[str]
    digest: str
    """A digest of the history: the same for the same seed."""
    steps: int
    writes: int
    decided: int
    told_of_loss: bool
    """Whether recovery has reported a loss that is documented."""


class World:
    """The common parts of every simulation: brokers, a database, readers, and faults."""

    server: type[DatabaseServer] = DatabaseServer

    expected_errors: tuple[str, ...] = ()
    """Words of errors that a process may log."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.told_of_loss = False
        """Whether recovery has reported a documented loss, so that both sides differ from then on."""
        self.random: Final = Random(f"simulation {seed}")
        self.loop: Final = SimulatedLoop(Random(f"loop {seed}"))  # type: ignore[abstract]  # the rest is not used
        self.history: Final = History(self.loop)
        self.loop.note = self.history.note
        self.network: Final = Network(self.loop, Random(f"network {seed}"))
        self.tier: Final = self.random.choice(tuple(Tier))
        self.brokers: Final = Brokers(self.loop, self.network, self.tier, nodes=3)
        self.disk: Final = (
            Disk(self.loop, self.brokers.process, self.random) if self.random.random() < _ON_DISK else None
        )
        self.database: Final = self.server(self.loop, self.network, Random(f"database {seed}"))
        self.readers: Final[list[Reader]] = []
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
        self.history.note(f"seed {seed}: {self.tier!r}, {'on a disk' if self.disk else 'in memory'}")

    # ---- the course of events -------------------------------------------------------------------------------

    def run(self) -> None:
        """Run it, and check it."""
        loop = self.loop
        self.brokers.on_start = self._on_start
        loop.call_soon_in(self.brokers.process, self.brokers.start, None if self.disk is None else self.disk.open())
        self.begin()
        within_s = self.random.choice(_FAULTS_WITHIN_S)
        loop.begin(loop.world, self.faults.run(self.random.randrange(2, 9), within_s))
        try:
            self._run()
        except LivelockError as error:
            self.history.wrong(str(error))
        for problem in loop.problems:
            self.history.wrong(problem)

    def _run(self) -> None:
        loop, history = self.loop, self.history
        if not loop.run_until(self.is_written, _WRITING_ENDS_S):
            history.wrong(f"processes did not end: {self.living()}")
        self.faults.end()
        loop.run_until(lambda: self.brokers.has_power, loop.now_s + _WITHOUT_POWER_S)
        loop.run_until(_never, loop.now_s + 1.0)
        self.settle()
        if not loop.run_until(self.is_settled, loop.now_s + _SETTLING_S):
            history.wrong("recovery did not end")
        loop.run_until(_never, loop.now_s + 5.0)
        self._check_brokers()
        self.check()

    def _on_start(self) -> None:
        partitions = list(self.brokers.data_partitions())
        if not self.readers:
            self.readers.extend(Reader(self.history, partition) for partition in partitions)
        else:
            for reader, partition in zip(self.readers, partitions, strict=True):
                reader.follow(partition)

    def _check_brokers(self) -> None:
        for partition in self.brokers.data_partitions():
            log = partition.log
            if log.last_stable_offset != log.log_end_offset:
                self.history.wrong(f"a transaction is open in partition {partition.index} at rest")
        for found in self.brokers.operations.transactions():
            if found.state not in ("Empty", "CompleteCommit", "CompleteAbort"):
                self.history.wrong(f"{found.transactional_id} is {found.state} at rest")

    # ---- the workload ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start its processes."""
        raise NotImplementedError

    def is_written(self) -> bool:
        """Return whether they have ended."""
        raise NotImplementedError

    def settle(self) -> None:
        """Begin to recover, when everything is healed."""
        raise NotImplementedError

    def is_settled(self) -> bool:
        """Return whether that has ended."""
        raise NotImplementedError

    def check(self) -> None:
        """Check the invariants at the end."""
        raise NotImplementedError

    def living(self) -> list[Process]:
        """Return the processes that run."""
        raise NotImplementedError

    def kill(self, process: Process) -> None:
        raise NotImplementedError

    def end(self, process: Process) -> None:
        """End a process, with its connections."""
        self.loop.kill(process)
        self.network.drop_connections_of(process, is_silent=self.random.random() < _SILENT)


class Writers(World):
    """Processes that write under shared transactional ids, or from a pool of them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.database.on_durable = self._on_durable
        self._leases: Final = LeaseTable()
        self.database.leases = self._leases.carry_out
        self._settings = Settings(self.random, self.brokers.bootstrap, self.tier)
        self._ids = self._choose_ids()
        self._processes: dict[Process, int] = {}
        """The running processes, with the number of dual writes that they were started for."""
        self._starting = 0
        """How many are about to be started."""
        self._recovered = 0
        self.history.note(f"{self._ids}, {self._settings}")

    def _choose_ids(self) -> list[str]:
        return self.random.choice((["id0"], ["id0"], ["id0", "id1"], [POOL]))

    def begin(self) -> None:
        for number in range(self.random.choice((2, 3))):
            self._start(f"P{number}", self.random.choice((2, 3, 4)))

    def is_written(self) -> bool:
        return not self._processes and not self._starting

    def settle(self) -> None:
        """Begin to recover each id, in a pool once all leases of dead processes have expired.

        After a clock change of the database they expire later, as documented.
        """
        ends_s = self._lease_ends_s() - self.database.process.clock_offset_s
        self.loop.run_until(_never, max(self.loop.now_s, ends_s))
        for transactional_id in self._ids:
            self.loop.begin(Process(f"recovery of {transactional_id}"), self._recover(transactional_id))

    def _lease_ends_s(self) -> float:
        return self._leases.ends_s()

    def is_settled(self) -> bool:
        return self._recovered == len(self._ids)

    def _on_durable(self, change: Change) -> None:
        found = next(((key, row) for (table, key), row in change.rows.items() if table == "state"), ("", ("", "")))
        transactional_id, (prepared_state, _) = found
        for write in _written(change):
            self.history.decide(write, transactional_id, prepared_state)

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
            locks_row=self._settings.locks_row,
            operate=self.operate,
        )
        await application.run(writes)
        self._processes.pop(process, None)

    def _new_writer(self, process: Process, transactional_id: str) -> Writer:
        return new_writer(self.loop, self.network, self._settings, transactional_id, self.faults.hook(process))

    async def operate(self, error: BaseException) -> None:
        """Do an operator's work after an error of a dual write, or of a recovery."""

    def living(self) -> list[Process]:
        return list(self._processes)

    def kill(self, process: Process) -> None:
        """Kill a process, and start another one in its place later."""
        writes = self._processes.pop(process, 0)
        self.end(process)
        if writes:
            self._starting += 1
            after_s = self.random.choice((0.0, 0.1, 1.0, 10.0))
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
                try:
                    found = await writer.recover()
                finally:
                    await writer.close()  # a pool that is not closed keeps the leases of its unresolved slots
            except PreparedTransactionLost as error:
                self.history.note(f"recover({transactional_id}) raised {type(error).__name__}: {error}")
                if self.tier is Tier.STORED_PAIR and _OFFSETS_LOST in str(error):
                    self.told_of_loss = True
                    self._recovered += 1
                    return
                await asyncio.sleep(1.0)
            except EXPECTED as error:
                self.history.note(f"recover({transactional_id}) raised {type(error).__name__}: {error}")
                await self.operate(error)
                await asyncio.sleep(1.0)
            else:
                recovered(self.history, transactional_id, found)
                break
        else:
            self.history.wrong(f"recovery has never succeeded {transactional_id}")
        application = Application(
            self.history,
            Random(0),
            lambda its_id: new_writer(self.loop, self.network, self._settings, its_id, None),
            [transactional_id],
            f"after {transactional_id}",
            consumes=self._settings.consumes,
            locks_row=self._settings.locks_row,
            operate=self.operate,
        )
        await application.write_at_last(transactional_id)
        self._recovered += 1

    # ---- invariants -----------------------------------------------------------------------------------------

    _is_ordered = False
    """Whether the records of all blocks are in the order of their commits."""

    def check(self) -> None:
        """Compare the database, Kafka, and the callers' results."""
        history = self.history
        if self.told_of_loss:
            return
        rows = [write for change in self.database.log for write in _written(change)]
        if list(history.decided) != rows:
            history.wrong(f"the database lost decisions: {set(history.decided).symmetric_difference(rows)}")
        for transactional_id, position in self._consumed().items():
            at = self.brokers.committed_offset(group_of(transactional_id))
            if at != position:
                history.wrong(f"{group_of(transactional_id)} is at {at}, and was committed with {position}")
        judge_writers(history, self.readers, rows, in_pool=self._ids == [POOL], is_ordered=self._is_ordered)

    def _consumed(self) -> dict[str, int]:
        """Return the last committed position of each id."""
        return {
            transactional_id: position
            for change in self.database.log
            for (table, transactional_id), position in change.rows.items()
            if table == "offsets"
        }


def _written(change: Change) -> list[str]:
    return [write for (table, _), write in change.rows.items() if table == "writes"]


def _never() -> bool:
    return False


def simulate(seed: int, kind: Callable[[int], World] = Writers) -> Result:
    """Run one seed."""
    world = kind(seed)
    history = world.history
    with nothing_from_outside(world.loop, seed, world.expected_errors), disk_for(world.disk):
        try:
            world.run()
        finally:
            world.loop.close()
    lines = history.lines()
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    counts = world.loop.steps, len(history.told), len(history.decided)
    return Result(seed, history.problems, lines, digest, *counts, world.told_of_loss)
