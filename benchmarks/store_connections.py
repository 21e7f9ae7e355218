"""How many connections the commit store of a large cluster needs: costs measured here, and a simulation with them.

    python -m benchmarks.store_connections

One Postgres, the sink's own connections, no Kafka: what one task does in the store is timed, then tasks by the thousand
share a number of connections by these times. A task holds a connection for its first statements and for up to
`LINGER_S` after them; what it does with Kafka meanwhile may take longer; then it needs one again. That the database
itself gets slower under load is not simulated.
"""

from __future__ import annotations

import heapq
import statistics
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from dualwrite.prepared_state import PreparedTxnState
from dualwrite.testing.postgres import PostgresServer
from spark_sink.attempt.states import Prepared
from spark_sink.handoff import TaskIdentity
from spark_sink.options import OnNewCheckpoint, StoreOptions
from spark_sink.store.commit_store import CommitStore
from spark_sink.store.connections import LINGER_S

TASKS_PER_EXECUTOR = 4
POLICY = OnNewCheckpoint.FAIL


@dataclass(frozen=True)
class Costs:
    """What one task costs, in seconds."""

    connect_s: float
    first_s: float
    """Until it has its lease and has taken its id over."""
    last_s: float
    """Recording what it has prepared."""


def measured(tries: int = 200) -> Costs:
    """Time what a task does, one after the other, each with new connections."""
    with PostgresServer.start() as server:
        url = server.url.render_as_string(hide_password=False)
        store = CommitStore.open(StoreOptions(url=url, url_env=None, schema=None))
        generation = store.plan("sink", query_id="q", on_new_checkpoint=POLICY).generation
        connects, firsts, lasts = [], [], []
        for number in range(tries):
            store.engine.dispose()
            began_s = time.perf_counter()
            store.engine.connect().close()
            connected_s = time.perf_counter()
            identity = TaskIdentity("q", 0, number, 1, "host")
            store.is_decided_for("sink", generation, identity, POLICY)
            lease = store.lease("sink", generation, identity)
            assert lease is not None
            store.is_open(lease.attempt_id)
            leased_s = time.perf_counter()
            store.mark_prepared(lease.attempt_id, Prepared(PreparedTxnState("1:1"), "m" * 200), records=1)
            connects.append(connected_s - began_s)
            firsts.append(leased_s - connected_s)
            lasts.append(time.perf_counter() - leased_s)
        store.engine.dispose()
    return Costs(*(statistics.median(each) for each in (connects, firsts, lasts)))


def holds_of(costs: Costs, kafka_s: float) -> list[tuple[float, float]]:
    """Return what a task does as (seconds without a connection, seconds with one), in order."""
    if kafka_s <= LINGER_S:
        return [(0.0, costs.connect_s + costs.first_s + kafka_s + costs.last_s)]
    return [
        (0.0, costs.connect_s + costs.first_s + LINGER_S),
        (kafka_s - LINGER_S, costs.connect_s + costs.last_s),
    ]


def simulated(tasks: int, room: float, holds: list[tuple[float, float]]) -> tuple[int, float]:
    """Let tasks begin at once, with `room` connections; return the largest number in use, and the end of the last."""
    events: list[tuple[float, int, int, bool]] = [(holds[0][0], task, 0, False) for task in range(tasks)]
    heapq.heapify(events)
    waiting: deque[tuple[int, int]] = deque()
    used = most = 0
    now_s = 0.0

    def admitted() -> Iterator[tuple[int, int]]:
        while waiting and used < room:
            yield waiting.popleft()

    while events:
        now_s, task, step, is_end = heapq.heappop(events)
        if is_end:
            used -= 1
            if step + 1 < len(holds):
                heapq.heappush(events, (now_s + holds[step + 1][0], task, step + 1, False))
        else:
            waiting.append((task, step))
        for each, its_step in admitted():
            used += 1
            most = max(most, used)
            heapq.heappush(events, (now_s + holds[its_step][1], each, its_step, True))
    return most, now_s


def main() -> None:
    """Print the costs and the table."""
    costs = measured()
    print(
        f"one task: connect {costs.connect_s * 1000:.1f} ms, first statements {costs.first_s * 1000:.1f} ms, "
        f"last {costs.last_s * 1000:.1f} ms; an idle connection is kept for {LINGER_S * 1000:.0f} ms"
    )
    print("executors  tasks  Kafka's part   most connections   with 100: end of the last task, and without sharing")
    for executors in (100, 1_000):
        tasks = executors * TASKS_PER_EXECUTOR
        for kafka_s in (0.05, 5.0, 60.0):
            holds = holds_of(costs, kafka_s)
            most, alone_s = simulated(tasks, float("inf"), holds)
            _, shared_s = simulated(tasks, 100, holds)
            print(f"{executors:9} {tasks:6} {kafka_s:11.2f} s {most:18} {shared_s:12.2f} s, {alone_s:.2f} s")


if __name__ == "__main__":
    main()
