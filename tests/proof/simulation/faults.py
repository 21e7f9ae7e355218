"""Faults drawn from the seed, at drawn times and at named points of a dual write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final, Protocol

from dualwrite.broker_emulator import Delay, Error, Fault
from dualwrite.recipes.core.pause_points import PauseHook, PausePoint
from tests.proof.simulation.brokers import TOPIC, Brokers
from tests.proof.simulation.database import PLACE, DatabaseServer
from tests.proof.simulation.disk import Disk
from tests.proof.simulation.history import History
from tests.proof.simulation.loop import Process, SimulatedLoop
from tests.proof.simulation.network import Network

_PAUSES_S: Final = (0.05, 0.5, 0.5, 5.0, 5.0, 20.0, 20.0, 3600.0)
_WEIGHTS_AT_POINTS: Final = (6, 5, 4, 3, 1, 1, 2, 2)
_CRITICAL: Final = 4
_AROUND_THE_DECISION: Final = frozenset(
    {PausePoint.AFTER_INIT, PausePoint.BEFORE_DATABASE_COMMIT, PausePoint.AFTER_DATABASE_COMMIT}
)
_SHORT_S: Final = (0.02, 0.3, 3.0, 10.0)


class Victims(Protocol):
    """The processes of the application."""

    def living(self) -> list[Process]:
        """Return the running ones."""

    def kill(self, process: Process) -> None:
        """Kill one; it is started again later."""


class Faults:
    def __init__(
        self,
        loop: SimulatedLoop,
        random: Random,
        history: History,
        network: Network,
        brokers: Brokers,
        database: DatabaseServer,
        victims: Victims,
        disk: Disk | None,
    ) -> None:
        self._loop = loop
        self._random = random
        self._history = history
        self._network = network
        self._brokers = brokers
        self._database = database
        self._victims = victims
        self._disk = disk
        self._is_over = False
        self._paused: set[Process] = set()
        self._at_points = random.choice((0.0, 0.04, 0.12))
        self._kinds: list[tuple[Callable[[], None], int]] = [
            (self._kill, 4),
            (self._pause, 4),
            (self._break_connection, 6),
            (self._cut, 3),
            (self._slow_down, 2),
            (self._jump, 1),
            (self._crash_node, 3),
            (self._move_coordinator, 3),
            (self._move_leader, 2),
            (self._hold_replication, 2),
            (self._delay_markers, 2),
            (self._kill_sessions, 4),
            (self._cancel_commits, 2),
            (self._crash_database, 2),
            (self._lose_standby, 2),
            (self._fail_power, 0 if disk is None else 6),
        ]

    def add_outages(self, weight: int) -> None:
        """Let all brokers go away at times."""
        self._kinds.append((self._leave, weight))

    def add_lost_markers(self, weight: int) -> None:
        """Let markers be lost at times."""
        self._kinds.append((self._lose_marker, weight))

    async def run(self, count: int, within_s: float) -> None:
        """Let so many things go wrong."""
        kinds = [kind for kind, _ in self._kinds]
        weights = [weight for _, weight in self._kinds]
        for _ in range(count):
            await asyncio.sleep(self._random.random() * 2 * within_s / count)
            if self._is_over:
                return
            self._random.choices(kinds, weights)[0]()

    def end(self) -> None:
        """Heal everything; nothing goes wrong any more."""
        self._is_over = True
        self._history.note("everything is healed")
        for process in sorted(self._paused, key=lambda each: each.name):
            self._loop.resume(process)
        self._network.heal_all()
        self._brokers.cluster.faults.clear()
        self._brokers.release_all()
        for node_id in self._brokers.node_ids:
            if any(node.is_alive for node in self._brokers.cluster.nodes.values()):
                self._brokers.restart(node_id)
            else:  # the first one begins to lead, which only a running loop can do
                self._loop.call_soon_in(self._loop.world, self._brokers.restart, node_id)
        self._database.begin_listening()
        self._database.set_standby(is_away=False)

    def _later(self, after_s: float, heal: Callable[[], object]) -> None:
        self._loop.call_at_in(self._loop.world, self._loop.now_s + after_s, self._heal, heal)

    def _heal(self, heal: Callable[[], object]) -> None:
        if not self._is_over:
            heal()

    def _victim(self) -> Process | None:
        living = self._victims.living()
        return living[int(self._random.random() * len(living))] if living else None

    def _place(self) -> str:
        return self._random.choice([PLACE, *(f"node{node_id}" for node_id in self._brokers.node_ids)])

    # ---- at named points ------------------------------------------------------------------------------------

    def hook(self, process: Process) -> PauseHook:
        """Return the hook that a process's writer calls at each of its pause points."""

        at_points: list[Callable[[Process], None]] = [
            self._kill_one,
            self._pause_one,
            self._break_one,
            self._cut_off,
            lambda _: self._crash_node(),
            lambda _: self._crash_database(),
            lambda _: self._lose_standby(),
            lambda _: self._fail_power(),
        ]

        def hook(point: PausePoint) -> None:
            likely = self._at_points * (_CRITICAL if point in _AROUND_THE_DECISION else 1)
            if self._is_over or self._random.random() >= likely or not process.is_alive:
                return
            self._history.note(f"{process} is at {point}")
            self._random.choices(at_points, _WEIGHTS_AT_POINTS)[0](process)

        return hook

    # ---- processes ------------------------------------------------------------------------------------------

    def _kill_one(self, process: Process) -> None:
        self._history.note(f"{process} is killed")
        self._victims.kill(process)

    def _kill(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._kill_one(victim)

    def _pause_one(self, process: Process) -> None:
        if process in self._paused:
            return
        duration_s = self._random.choice(_PAUSES_S)
        self._history.note(f"{process} sleeps for {duration_s} s")
        self._paused.add(process)
        self._loop.pause(process)
        self._later(duration_s, lambda: self._wake(process))

    def _wake(self, process: Process) -> None:
        self._paused.discard(process)
        self._history.note(f"{process} wakes")
        self._loop.resume(process)

    def _pause(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._pause_one(victim)

    def _jump(self) -> None:
        victim = self._victim()
        target = self._random.choice([victim or self._database.process, self._brokers.process, self._database.process])
        jump_s = self._random.choice((-3600.0, -5.0, 5.0, 3600.0))
        self._history.note(f"the clock of {target} jumps by {jump_s} s")
        target.clock_offset_s += jump_s

    # ---- the network ----------------------------------------------------------------------------------------

    def _break_one(self, process: Process) -> None:
        links = [link for link in self._network.links.values() if process in (link.near.process, link.far.process)]
        if links:
            link = self._random.choice(links)
            self._history.note(f"connection {link.number} of {link.near.place} to {link.far.place} is lost")
            self._network.break_connection(link)

    def _break_connection(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._break_one(victim)

    def _cut(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._cut_off(victim)

    def _cut_off(self, victim: Process) -> None:
        there, duration_s = self._place(), self._random.choice(_SHORT_S)
        self._history.note(f"{victim} and {there} are cut off from each other for {duration_s} s")
        self._network.cut(victim.name, there)
        self._later(duration_s, lambda: self._network.heal(victim.name, there))

    def _slow_down(self) -> None:
        place, factor = self._place(), self._random.choice((30.0, 300.0, 2000.0))
        self._history.note(f"{place} is {factor} times slower")
        self._network.slowness[place] = factor
        self._later(self._random.choice(_SHORT_S), lambda: self._network.slowness.pop(place, None))

    # ---- the brokers ----------------------------------------------------------------------------------------

    def _crash_node(self) -> None:
        self._crash(self._random.choice(self._brokers.node_ids))

    def _crash(self, node_id: int) -> None:
        brokers = self._brokers
        if node_id in brokers.cluster.nodes and brokers.cluster.nodes[node_id].is_alive:
            self._history.note(f"node{node_id} crashes")
            brokers.crash(node_id)
            self._later(self._random.choice(_SHORT_S), lambda: brokers.restart(node_id))

    def _leave(self) -> None:
        brokers = self._brokers
        self._history.note("all brokers crash")
        for node_id in brokers.node_ids:
            if brokers.cluster.nodes[node_id].is_alive:
                brokers.crash(node_id)
            self._later(self._random.choice(_SHORT_S), partial(brokers.restart, node_id))

    def _move_coordinator(self) -> None:
        brokers = self._brokers
        partition = self._random.choice(brokers.cluster.topics["__transaction_state"].partitions)
        node_id = self._random.choice(brokers.node_ids)
        self._history.note(f"the coordinator of {partition.name.partition} moves to node{node_id}")
        brokers.move(partition, node_id)

    def _move_leader(self) -> None:
        brokers = self._brokers
        partition = self._random.choice(list(brokers.data_partitions()))
        node_id = self._random.choice(brokers.node_ids)
        self._history.note(f"the leader of {partition.name.topic}-{partition.index} becomes node{node_id}")
        brokers.move(partition, node_id)

    def _hold_replication(self) -> None:
        brokers = self._brokers
        partition = self._random.choice(list(brokers.cluster.partitions()))
        duration_s = self._random.choice(_SHORT_S)
        self._history.note(f"followers of {partition.name.topic}-{partition.index} fetch nothing for {duration_s} s")
        brokers.hold_replication(partition, duration_s)

    def _delay_markers(self) -> None:
        faults = self._brokers.cluster.faults
        delay_ms = self._random.choice((30, 400, 4_000))
        self._history.note(f"the next markers are delayed by {delay_ms} ms")
        faults.add(Fault(action=Delay(delay_ms), api="WriteTxnMarkers", count=self._random.choice((1, 3))))

    def _lose_marker(self) -> None:
        """Let the next marker in a partition be lost, as its leader dies (KAFKA-20734)."""
        faults, partition = self._brokers.cluster.faults, self._random.choice((0, 1))
        self._history.note(f"the next marker in {TOPIC}-{partition} will be lost")

        def die(_: object) -> bool:
            self._loop.call_soon_in(self._loop.world, self._crash, self._brokers.leader_of(partition))
            return True

        lost = Error("unsupported_version")
        faults.add(Fault(action=lost, api="WriteTxnMarkers", topic=TOPIC, partition=partition, predicate=die))

    def _fail_power(self) -> None:
        if self._disk is not None and self._brokers.has_power:
            self._brokers.has_power = False  # at once: two faults may be due at the same moment
            self._loop.begin(self._brokers.process, self._fail_and_start(self._disk))

    async def _fail_and_start(self, disk: Disk) -> None:
        self._history.note("the brokers lose their power")
        for torn in await self._brokers.fail(disk):
            self._history.note(torn)
        if not self._is_over:
            await asyncio.sleep(self._random.choice(_SHORT_S))
        self._history.note("the brokers start again")
        self._brokers.start(disk.open())

    # ---- the database ---------------------------------------------------------------------------------------

    def _kill_sessions(self) -> None:
        sessions = self._database.sessions
        if sessions:
            session = self._random.choice(sessions)
            self._history.note(f"the database ends connection {session.end.link.number}")
            self._database.kill_session(session)

    def _cancel_commits(self) -> None:
        self._history.note("the database cancels all waits for the standby")
        self._database.cancel_waits()

    def _crash_database(self) -> None:
        fails_over = self._random.random() < 0.5
        self._history.note("the standby takes over" if fails_over else "the database restarts")
        self._database.crash(fails_over=fails_over)
        self._later(self._random.choice(_SHORT_S), self._database.begin_listening)

    def _lose_standby(self) -> None:
        if self._database.standby_is_away:
            return
        self._history.note("the standby is away")
        self._database.set_standby(is_away=True)
        self._later(self._random.choice(_SHORT_S), lambda: self._database.set_standby(is_away=False))
        if self._random.random() < 0.5:
            self._later(0.01, self._cancel_commits)
        if self._random.random() < 0.3:
            self._later(0.3, self._crash_database)
