"""The cost of a fleet of dual writers for its database and its brokers: measured costs, and a simulation with them.

    python -m benchmarks.scale

One Postgres and one broker: the CPU time of each party for a dual write, and its WAL, are measured, for blocks with a
commit of their own, for an outbox with a relay, and for a pool's outbox. Then up to 1,000 processes with these costs
share a database, brokers and a network of a given size. The simulation shows the rate of dual writes, the busy part,
the time for which rows are locked, and the time for which a reader of committed records waits for others' open
transactions.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Final

import sqlalchemy as sa

from benchmarks import broker_peers
from benchmarks.broker_peers import RunningBroker
from benchmarks.dual_write import publisher, relay, run_way
from benchmarks.dual_write_ways import OUTBOX, OUTBOXED, POOL
from benchmarks.dual_write_work import create_tables
from benchmarks.producer import duration_of, new_topic, rounds_of
from benchmarks.server_cost import ServerCost
from benchmarks.simulation import Give, Resource, Simulation, Sleep, Take, Work
from dualwrite.testing.postgres import PostgresServer

PROCESSES: Final = (10, 100, 1_000)
_PLAIN: Final = f"asyncio: {POOL}"
_OUTBOX: Final = f"asyncio: {OUTBOX}"
_OUTBOXED: Final = f"asyncio: {OUTBOXED}"
_WARM_S: Final = 2.0
"""Simulated time in which the load builds up and nothing is counted."""
_COUNTED_S: Final = 2.0


@dataclass(frozen=True)
class Costs:
    """The costs of one dual write for each party: seconds of CPU, and bytes of WAL."""

    client_s: float
    database_s: float
    broker_s: float
    wal_bytes: float


@dataclass(frozen=True)
class Site:
    """The size of the database and of Kafka, and how far away they are. Times are in seconds."""

    database_cores: int
    connections: int
    brokers: int
    broker_cores: int
    network_s: float
    flush_s: float
    replication_s: float
    partitions: int


# ---- measuring --------------------------------------------------------------------------------------------------


def costs_of(way: str, workers: int, server: PostgresServer, broker: RunningBroker, duration_s: float) -> Costs:
    """Measure one way with this number of workers in one process, and the relay or publisher of its outbox."""
    engine = sa.create_engine(server.url, poolclass=sa.NullPool)
    create_tables(engine)
    cost = ServerCost(engine)
    url = server.url.render_as_string(hide_password=False)
    with new_topic(broker.bootstrap_servers) as topic:
        before = (cost.cpu_s(), broker.cpu_s(), cost.wal_bytes())
        relayed: AbstractContextManager[list[float]] = nullcontext([0.0])
        if way == _OUTBOX:
            relayed = relay(url, broker.bootstrap_servers, topic)
        elif way == _OUTBOXED:
            relayed = publisher(url, broker.bootstrap_servers)
        with relayed as relay_s:
            written = run_way(way, workers, url, broker.bootstrap_servers, topic, duration_s, 1)
        database_s, broker_s, wal = (
            now - then for now, then in zip((cost.cpu_s(), broker.cpu_s(), cost.wal_bytes()), before, strict=True)
        )
    writes = len(written.ended_s)
    client_s = written.done.cpu_s_per_million / 1e6 + sum(relay_s) / writes
    return Costs(client_s, database_s / writes, broker_s / writes, wal / writes)


def median_of(measured: Sequence[Costs]) -> Costs:
    """Return the median of each cost."""
    names = ("client_s", "database_s", "broker_s", "wal_bytes")
    return Costs(**{name: statistics.median(getattr(each, name) for each in measured) for name in names})


# ---- the parts of a site ----------------------------------------------------------------------------------------


class Flushes:
    """The WAL on its disk: a commit that finds a flush under way is part of the next one, as in Postgres."""

    def __init__(self, duration_s: float) -> None:
        self._duration_s = duration_s
        self._begins_s = self._ends_s = 0.0

    def wait_s(self, now_s: float) -> float:
        """Return the waiting time of a commit that begins now."""
        if now_s >= self._ends_s:
            self._begins_s, self._ends_s = now_s, now_s + self._duration_s
        elif now_s >= self._begins_s:
            self._begins_s, self._ends_s = self._ends_s, self._ends_s + self._duration_s
        return self._ends_s - now_s


@dataclass
class OpenTransaction:
    written_s: float
    marked_s: float | None = None


class Partition:
    """The transactions of one partition: a record can be read once all earlier ones have ended."""

    def __init__(self) -> None:
        self._open: deque[OpenTransaction] = deque()
        self.waits_s: list[float] = []
        """The time for which each ended transaction waited for others."""

    def begin(self, now_s: float) -> OpenTransaction:
        transaction = OpenTransaction(now_s)
        self._open.append(transaction)
        return transaction

    def end(self, transaction: OpenTransaction, now_s: float) -> None:
        transaction.marked_s = now_s
        while self._open and self._open[0].marked_s is not None:
            self.waits_s.append(now_s - self._open.popleft().marked_s)  # type: ignore[operator]  # it is not None


@dataclass
class Counted:
    """The counts after the load has built up. Times are in seconds."""

    blocks: int = 0
    took_s: list[float] = field(default_factory=list)
    locked_s: list[float] = field(default_factory=list)


class Fleet:
    """The database, the brokers, and the processes that share them."""

    def __init__(self, site: Site, costs: Costs) -> None:
        self._chance = random.Random(0)
        self.site = site
        self.costs = costs
        self.simulation = Simulation()
        self.database = Resource(site.database_cores)
        self.connections = Resource(site.connections)
        self.broker = Resource(site.brokers * site.broker_cores)
        self.flushes = Flushes(site.flush_s)
        self.partitions = [Partition() for _ in range(site.partitions)]
        self.counted = Counted()

    def about(self, seconds: float) -> float:
        """Return a random time with this mean, of which a half is certain."""
        return seconds * (0.5 + self._chance.expovariate(2))

    def pause(self, seconds: float) -> Sleep:
        """Wait for the next work, which may come at any time."""
        return Sleep(self._chance.expovariate(1 / seconds) if seconds else 0.0)

    def use(self, what: Resource, seconds: float) -> Iterator[Take | Give | Sleep]:
        """Wait for a free unit of the resource, and keep it busy."""
        yield Take(what)
        yield Sleep(self.about(seconds))
        yield Give(what)

    def database_turn(self, share: float) -> Iterator[Take | Give | Sleep]:
        """Make one round trip to the database, with this share of the database's cost of a block."""
        yield Sleep(self.about(self.site.network_s))
        yield from self.use(self.database, self.costs.database_s * share)

    def broker_turn(self, share: float) -> Iterator[Take | Give | Sleep]:
        """Make one round trip to Kafka, whose response waits for the replicas; each broker does the same work."""
        yield Sleep(self.about(self.site.network_s))
        yield from self.use(self.broker, self.costs.broker_s * share * self.site.brokers)
        yield Sleep(self.about(self.site.replication_s))

    def commit(self, share: float) -> Iterator[Take | Give | Sleep]:
        """Commit in the database, which waits for the disk."""
        yield from self.database_turn(share)
        yield Sleep(self.flushes.wait_s(self.simulation.now_s))

    def partition(self) -> Partition:
        """Return the partition of a record with a random key."""
        return self._chance.choice(self.partitions)

    @property
    def rate(self) -> float:
        """Blocks per second."""
        return self.counted.blocks / _COUNTED_S

    def count(self, began_s: float, locked_s: float) -> None:
        if self.simulation.now_s >= _WARM_S:
            self.counted.blocks += 1
            self.counted.took_s.append(self.simulation.now_s - began_s)
            self.counted.locked_s.append(locked_s)


# ---- the processes ----------------------------------------------------------------------------------------------


def dual_write(fleet: Fleet, interpreter: Resource, pause_s: float) -> Work:
    """Write again and again, each block with a decision of its own."""
    while True:
        yield fleet.pause(pause_s)
        began_s = fleet.simulation.now_s
        yield from fleet.use(interpreter, fleet.costs.client_s)
        yield Take(fleet.connections)
        yield from fleet.database_turn(0.5)
        yield from fleet.database_turn(0.25)
        locked_s = fleet.simulation.now_s
        yield from fleet.broker_turn(0.5)
        partition = fleet.partition()
        transaction = partition.begin(fleet.simulation.now_s)
        yield from fleet.commit(0.25)
        yield Give(fleet.connections)
        locked_s = fleet.simulation.now_s - locked_s
        yield from fleet.broker_turn(0.5)
        fleet.count(began_s, locked_s)
        partition.end(transaction, fleet.simulation.now_s)


def outbox(fleet: Fleet, interpreter: Resource, pause_s: float) -> Work:
    """Write rows only, each with its commit; the measured costs include their publication by other processes."""
    while True:
        yield fleet.pause(pause_s)
        began_s = fleet.simulation.now_s
        yield from fleet.use(interpreter, fleet.costs.client_s)
        yield Take(fleet.connections)
        yield from fleet.database_turn(0.4)
        yield from fleet.database_turn(0.35)
        yield from fleet.commit(0.25)
        yield Give(fleet.connections)
        fleet.count(began_s, 0.0)


Behaviour = Callable[[Fleet, Resource, float], Work]


@dataclass(frozen=True)
class Load:
    """How processes write: this number of workers each."""

    name: str
    costs: Costs
    behaviour: Behaviour
    workers: int


def simulated(site: Site, load: Load, processes: int, pause_s: float = 0.0) -> Fleet:
    """Let processes write, with pauses of this mean; return the fleet after two seconds."""
    fleet = Fleet(site, load.costs)
    for _ in range(processes):
        interpreter = Resource(1)
        for _ in range(load.workers):
            fleet.simulation.start(load.behaviour(fleet, interpreter, pause_s))
    fleet.simulation.run(until_s=_WARM_S + _COUNTED_S)
    return fleet


def at_half_the_rate(site: Site, load: Load, processes: int, most: Fleet) -> Fleet:
    """Let the same processes write half as much as they can."""
    together = processes * load.workers / most.rate
    return simulated(site, load, processes, pause_s=2 * together - statistics.mean(most.counted.took_s) / 2)


# ---- output -----------------------------------------------------------------------------------------------------


def permilles_ms(seconds: Sequence[float], *permilles: int) -> str:
    """Return these thousandths of the times, in milliseconds."""
    if len(seconds) < 2:
        return " ".join(f"{'-':>7}" for _ in permilles)
    cuts = statistics.quantiles(seconds, n=1000, method="inclusive")
    return " ".join(f"{cuts[each - 1] * 1000:7.1f}" for each in permilles)


def show_costs(measured: dict[str, Costs]) -> None:
    print("one block with one row and one record   client   Postgres    broker   WAL")
    for way, costs in measured.items():
        times = (costs.client_s, costs.database_s, costs.broker_s)
        print(f"{way:38} " + " ".join(f"{each * 1e6:6.0f} us" for each in times) + f" {costs.wal_bytes:6,.0f} B")


def show_fleet(site: Site, loads: Sequence[Load]) -> None:
    print(
        f"\na database with {site.database_cores} cores, {site.connections} connections and a flush of "
        f"{site.flush_s * 1000:g} ms; {site.brokers} brokers with {site.broker_cores} cores; {site.network_s * 1000:g} "
        f"ms a round trip, {site.replication_s * 1000:g} ms for the replicas; {site.partitions} partitions"
    )
    print(
        f"{'processes':9}  {'way':34} {'blocks/s':>8} {'database':>8} {'brokers':>8}   block ms p50, p99   "
        "locked ms p50, p99   behind others ms p99, p99.9"
    )
    for processes in PROCESSES:
        for load in loads:
            most = simulated(site, load, processes)
            show_load(processes, load.name, load.costs, most)
            show_load(processes, "  at half that rate", load.costs, at_half_the_rate(site, load, processes, most))


def show_load(processes: int, name: str, costs: Costs, fleet: Fleet) -> None:
    busy = (
        fleet.rate * costs.database_s / fleet.site.database_cores,
        fleet.rate * costs.broker_s / fleet.site.broker_cores,
    )
    waits_s = [each for partition in fleet.partitions for each in partition.waits_s]
    print(
        f"{processes:9}  {name:34} {fleet.rate:8,.0f} " + " ".join(f"{each:8.0%}" for each in busy) + "   "
        f"{permilles_ms(fleet.counted.took_s, 500, 990):>17}   {permilles_ms(fleet.counted.locked_s, 500, 990):>18}   "
        f"{permilles_ms(waits_s, 990, 999):>27}"
    )


def options() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__.splitlines()[0])
    parser.add_argument("--kafka", action="store_true", help="measure a real Apache Kafka, not the emulator")
    for name, default, what in (
        ("database-cores", 16, "cores of the database"),
        ("connections", 300, "connections of the database that all processes share"),
        ("brokers", 3, "brokers, each with every partition"),
        ("broker-cores", 8, "cores of each broker"),
        ("partitions", 48, "partitions that the fleet writes to"),
    ):
        parser.add_argument(f"--{name}", type=rounds_of, default=default, metavar="N", help=f"{what}; %(default)s")
    for name, milliseconds, what in (
        ("network-ms", 0.5, "a round trip"),
        ("flush-ms", 1.0, "a flush of the WAL"),
        ("replication-ms", 2.0, "until the replicas have a batch"),
    ):
        parser.add_argument(
            f"--{name}", type=float, default=milliseconds, metavar="MS", help=f"{what}; default: %(default)s"
        )
    parser.add_argument("--rounds", type=rounds_of, default=3, metavar="N", help="measurements; %(default)s")
    parser.add_argument("--duration-s", type=duration_of, default=3.0, metavar="S", help="of each; %(default)s")
    return parser


def main() -> None:
    chosen = options().parse_args()
    peer = broker_peers.APACHE_KAFKA if chosen.kafka else broker_peers.EMULATOR
    rounds: dict[str, list[Costs]] = {_PLAIN: [], _OUTBOX: [], _OUTBOXED: []}
    with PostgresServer.start() as server, broker_peers.PEERS[peer]() as broker:
        for _ in range(1 + chosen.rounds):
            for way, measured in rounds.items():
                measured.append(costs_of(way, 8, server, broker, chosen.duration_s))
    # the first round warms the servers up: a JVM needs many times its CPU time then
    costs = {way: median_of(measured[1:]) for way, measured in rounds.items()}
    show_costs(costs)
    site = Site(
        database_cores=chosen.database_cores,
        connections=chosen.connections,
        brokers=chosen.brokers,
        broker_cores=chosen.broker_cores,
        network_s=chosen.network_ms / 1000,
        flush_s=chosen.flush_ms / 1000,
        replication_s=chosen.replication_ms / 1000,
        partitions=chosen.partitions,
    )
    loads = (
        Load("a commit for each block", costs[_PLAIN], dual_write, workers=8),
        Load("outbox with relay", costs[_OUTBOX], outbox, workers=8),
        Load("pool with outbox", costs[_OUTBOXED], outbox, workers=8),
    )
    show_fleet(site, loads)
    show_fleet(replace(site, network_s=site.network_s * 4), loads)


if __name__ == "__main__":
    main()
