"""The cost of a large cluster for its commit store and its driver: measured costs, and a simulation with them.

    python -m benchmarks.spark_scale

One Postgres, the sink's own store, and a broker for phase two. Measured are the times of one task in the store and of
the driver in it for all tasks, and the CPU time that Postgres needs for both. Then thousands of tasks share a number of
connections and the cores of the database by these times. A task holds a connection for its first statements and for up
to `LINGER_S` after them; its work with Kafka may take longer; then it needs a connection again.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import sqlalchemy as sa

from benchmarks import broker_peers, spark_phase_two
from benchmarks.server_cost import ServerCost
from benchmarks.simulation import Give, Resource, Sleep, Take, Work, end_of
from dualwrite.prepared_state import PreparedTxnState
from dualwrite.testing.postgres import PostgresServer
from spark_sink.handoff import TaskIdentity
from spark_sink.options import OnNewCheckpoint, StoreOptions
from spark_sink.store.attempt_states import Ended, Ending, Prepared
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.connections import LINGER_S
from spark_sink.store.tables import Decision

TASKS_PER_EXECUTOR: Final = 4
EXECUTORS: Final = (10, 100, 1_000)
KAFKA_S: Final = (0.05, 5.0)
"""Time for which a task sends rows."""
BATCH_S: Final = 10.0
"""Time between two batches, for statements per second."""
SINK, QUERY, POLICY = "sink", "query", OnNewCheckpoint.FAIL


@dataclass(frozen=True)
class TaskCosts:
    """The costs of one task, in seconds and in statements."""

    connect_s: float
    first_s: float
    """Time until it has its lease and has taken its id over."""
    last_s: float
    """Time to record its prepared state."""
    database_cpu_s: float
    """CPU time of Postgres, with two new connections."""
    pooled_cpu_s: float
    """CPU time of Postgres, with connections that are open, as behind a pooler."""
    statements: float


@dataclass(frozen=True)
class DriverCosts:
    """The driver's times in the store for all tasks of a batch, in seconds."""

    plan_s: float
    decide_s: float
    record_s: float


class Store:
    """A commit store on a Postgres of its own, and its cost so far."""

    def __init__(self, server: PostgresServer) -> None:
        url = server.url.render_as_string(hide_password=False)
        self.commits = CommitStore.open(StoreOptions(url=url, url_env=None, schema=None))
        self.statements = 0
        self._attempts = 0
        self.server = ServerCost(self.commits.engine)
        sa.event.listen(self.commits.engine, "before_cursor_execute", self._count)

    def _count(self, *_: object) -> None:
        self.statements += 1

    def plan(self) -> int:
        generation = self.commits.plan(SINK, query_id=QUERY, on_new_checkpoint=POLICY).generation
        assert generation is not None
        return generation

    def lease(self, generation: int, batch: int, partition: int) -> str:
        """Make a task's calls before it may send; return its attempt's id."""
        identity = TaskIdentity(QUERY, batch, partition, 1, "host")
        lease = self.commits.lease(SINK, generation, identity)
        assert lease is not None
        self.commits.is_open(lease.attempt_id)
        return lease.attempt_id

    def prepare(self, attempt_id: str) -> None:
        self._attempts += 1
        state = PreparedTxnState(f"{self._attempts}:1")
        self.commits.mark_prepared(attempt_id, Prepared(state, "m" * 200), records=1)


def cost_of_a_task(store: Store, tries: int) -> TaskCosts:
    """Time tasks, one after the other, each with new connections as after a long time with Kafka."""
    generation = store.plan()
    connects, firsts, lasts = [], [], []
    cpu_s, statements = store.server.cpu_s(), store.statements
    for number in range(tries):
        began_s = time.perf_counter()
        store.commits.engine.connect().close()
        connected_s = time.perf_counter()
        attempt_id = store.lease(generation, 0, number)
        leased_s = time.perf_counter()
        store.commits.engine.dispose()
        store.commits.engine.connect().close()
        again_s = time.perf_counter()
        store.prepare(attempt_id)
        connects.append(connected_s - began_s)
        firsts.append(leased_s - connected_s)
        lasts.append(time.perf_counter() - again_s)
        store.commits.engine.dispose()
    cpu_s, statements = store.server.cpu_s() - cpu_s, store.statements - statements
    return TaskCosts(
        connect_s=statistics.median(connects),
        first_s=statistics.median(firsts),
        last_s=statistics.median(lasts),
        database_cpu_s=cpu_s / tries,
        pooled_cpu_s=pooled_cpu_of_a_task(store, generation, tries),
        statements=statements / tries,
    )


def pooled_cpu_of_a_task(store: Store, generation: int, tries: int) -> float:
    """Return the CPU time of Postgres for a task whose connection was open before."""
    cpu_s = store.server.cpu_s()
    for number in range(tries):
        store.prepare(store.lease(generation, 0, tries + number))
    return (store.server.cpu_s() - cpu_s) / tries


def cost_of_a_driver(store: Store, batch: int, tasks: int) -> DriverCosts:
    """Time the driver in the store after this number of tasks has prepared, and the plan after it."""
    generation = store.plan()
    attempts = [store.lease(generation, batch, partition) for partition in range(tasks)]
    for each in attempts:
        store.prepare(each)
    decision = Decision(SINK, QUERY, batch, generation, tuple(attempts), tasks, 0, False, f"digest-{batch}")
    began_s = time.perf_counter()
    decided = store.commits.decide(decision, POLICY)
    decided_s = time.perf_counter()
    ended = {each.attempt_id: Ended(Ending.COMMITTED, judged=each.prepared_state) for each in decided.claims}
    store.commits.record(SINK, ended)
    recorded_s = time.perf_counter()
    store.plan()
    return DriverCosts(time.perf_counter() - recorded_s, decided_s - began_s, recorded_s - decided_s)


def a_task(costs: TaskCosts, kafka_s: float, connections: Resource, cores: Resource) -> Work:
    """Use the database and Kafka as a task does, in order."""
    cpu_s = costs.database_cpu_s / 2
    linger_s = min(kafka_s, LINGER_S)
    yield Take(connections)
    yield Take(cores)
    yield Sleep(cpu_s)
    yield Give(cores)
    yield Sleep(max(0.0, costs.connect_s + costs.first_s - cpu_s) + linger_s)
    connect_s = 0.0
    if kafka_s > LINGER_S:
        yield Give(connections)
        yield Sleep(kafka_s - LINGER_S)
        yield Take(connections)
        connect_s = costs.connect_s
    yield Take(cores)
    yield Sleep(cpu_s)
    yield Give(cores)
    yield Sleep(max(0.0, connect_s + costs.last_s - cpu_s))
    yield Give(connections)


def end_of_tasks(tasks: int, costs: TaskCosts, kafka_s: float, connections: Resource, cores: int) -> float:
    """Let tasks begin at once on a database with this number of cores; return when the last one ends, in seconds."""
    shared = Resource(cores)
    return end_of(a_task(costs, kafka_s, connections, shared) for _ in range(tasks))


def show_task(costs: TaskCosts) -> None:
    print(
        f"one task: connect {costs.connect_s * 1000:.1f} ms, first statements {costs.first_s * 1000:.1f} ms, "
        f"last {costs.last_s * 1000:.1f} ms; {costs.statements:.0f} statements; "
        f"{costs.database_cpu_s * 1000:.1f} ms of CPU in Postgres, {costs.pooled_cpu_s * 1000:.1f} ms of it without "
        "connecting; an idle connection is kept for "
        f"{LINGER_S * 1000:.0f} ms"
    )


def show_connections(costs: TaskCosts, room: int, cores: int) -> None:
    """Print how many connections tasks use that begin at once, and the cost of sharing `room` of them."""
    pooled = replace(costs, connect_s=0.0, database_cpu_s=costs.pooled_cpu_s)
    print(f"\nall tasks begin at once; {cores} cores of the database; the end of the last task")
    print(f"executors  tasks  Kafka's part   most connections       alone   with {room} connections   ... of a pooler")
    for executors in EXECUTORS:
        tasks = executors * TASKS_PER_EXECUTOR
        for kafka_s in KAFKA_S:
            connections = Resource(float("inf"))
            alone_s = end_of_tasks(tasks, costs, kafka_s, connections, cores)
            shared_s = end_of_tasks(tasks, costs, kafka_s, Resource(room), cores)
            pooled_s = end_of_tasks(tasks, pooled, kafka_s, Resource(room), cores)
            print(
                f"{executors:9} {tasks:6} {kafka_s:11.2f} s {connections.most:18} {alone_s:9.2f} s {shared_s:22.2f} s "
                f"{pooled_s:14.2f} s"
            )


def show_batches(costs: TaskCosts, drivers: Sequence[tuple[int, DriverCosts]], phase_two_s: float) -> None:
    """Print the driver's cost of a batch beside its tasks, and the database's work for it."""
    print(f"\na batch each {BATCH_S:.0f} s; cores of the database that are busy with it")
    print("executors  tasks    plan   decide  phase two  record   statements/s   cores   ... behind a pooler")
    for executors, driver in drivers:
        tasks = executors * TASKS_PER_EXECUTOR
        each_s = tasks / BATCH_S
        times = (driver.plan_s, driver.decide_s, phase_two_s * tasks, driver.record_s)
        shown = " ".join(f"{one * 1000:6.0f}ms" for one in times)
        print(
            f"{executors:9} {tasks:6} {shown} {costs.statements * each_s:14.0f} {costs.database_cpu_s * each_s:7.2f} "
            f"{costs.pooled_cpu_s * each_s:14.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_scale", description=__doc__.splitlines()[0])
    parser.add_argument("--kafka", action="store_true", help="phase two on a real Apache Kafka, not on the emulator")
    parser.add_argument("--connections", type=int, default=100, metavar="N", help="to share; default: %(default)s")
    parser.add_argument("--cores", type=int, default=4, metavar="N", help="of the database; default: %(default)s")
    parser.add_argument("--tries", type=int, default=200, metavar="N", help="tasks to time; default: %(default)s")
    chosen = parser.parse_args()
    with PostgresServer.start() as server:
        store = Store(server)
        costs = cost_of_a_task(store, chosen.tries)
        show_task(costs)
        drivers = [
            (executors, cost_of_a_driver(store, batch, executors * TASKS_PER_EXECUTOR))
            for batch, executors in enumerate(EXECUTORS)
        ]
    peer = broker_peers.APACHE_KAFKA if chosen.kafka else broker_peers.EMULATOR
    with broker_peers.PEERS[peer]() as broker:
        walls = [wall_ms for wall_ms, _ in spark_phase_two.measure(broker.bootstrap_servers, (512,), 3)[512]]
    show_connections(costs, chosen.connections, chosen.cores)
    show_batches(costs, drivers, statistics.median(walls) / 1000 / 512)


if __name__ == "__main__":
    main()
