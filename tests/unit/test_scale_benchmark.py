"""The simulations of `benchmarks.scale` and `benchmarks.spark_scale` count as ordered."""

from __future__ import annotations

import pytest

from benchmarks.scale import Costs, Flushes, Load, Partition, Site, dual_write, simulated
from benchmarks.simulation import Give, Resource, Sleep, Take, Work, end_of

SITE = Site(
    database_cores=4,
    connections=100,
    brokers=1,
    broker_cores=100,
    network_s=0.001,
    flush_s=0.001,
    replication_s=0.001,
    partitions=4,
)
COSTS = Costs(client_s=0.0001, database_s=0.002, broker_s=0.0001, wal_bytes=0)


def worker(shared: Resource) -> Work:
    yield Take(shared)
    yield Sleep(1.0)
    yield Give(shared)


def test_workers_wait_for_a_busy_resource() -> None:
    two = Resource(2)
    assert end_of(worker(two) for _ in range(5)) == 3.0
    assert (two.used, two.most) == (0, 2)


def test_commits_share_the_next_flush() -> None:
    flushes = Flushes(1.0)
    assert [flushes.wait_s(now_s) for now_s in (0.0, 0.25, 0.5)] == [1.0, 1.75, 1.5]
    assert flushes.wait_s(1.5) == 1.5, "the second flush is under way, so this is the third"
    assert flushes.wait_s(9.0) == 1.0


def test_records_wait_for_transactions_that_began_earlier() -> None:
    partition = Partition()
    first, second = partition.begin(1.0), partition.begin(2.0)
    partition.end(second, 3.0)
    assert partition.waits_s == []
    partition.end(first, 5.0)
    assert partition.waits_s == [0.0, 2.0]


def test_the_cores_of_the_database_limit_the_fleet() -> None:
    fleet = simulated(SITE, Load("all", COSTS, dual_write, workers=8), processes=50)
    assert fleet.rate == pytest.approx(SITE.database_cores / COSTS.database_s, rel=0.02)


def test_one_process_is_limited_by_its_round_trips() -> None:
    fleet = simulated(SITE, Load("one", COSTS, dual_write, workers=1), processes=1)
    around_s = 5 * SITE.network_s + 2 * SITE.replication_s + SITE.flush_s + 0.0001 + 0.002 + 0.0001
    assert fleet.rate == pytest.approx(1 / around_s, rel=0.05)
