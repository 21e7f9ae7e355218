"""`python -m benchmarks.clients` sends no more than the emulator has memory for, at any rate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from benchmarks import clients
from benchmarks.clients import Done, Job, Transact, TransactAsync, measure_tasks, measure_threads
from benchmarks.producer import BULK_LARGE

MOST = 100
"""Transactions of each producer."""


@pytest.mark.parametrize("measure", ["threads", "tasks"])
def test_a_measurement_ends_when_as_much_was_sent_as_the_emulator_keeps(
    monkeypatch: pytest.MonkeyPatch, measure: str
) -> None:
    job = Job("", "", producers=2, records=10, record_bytes=1_000, duration_s=10.0)
    monkeypatch.setattr(clients, "_MOST_BYTES", MOST * 2 * 10 * 1_000)
    made: dict[str, int] = {}

    @contextmanager
    def for_threads(job: Job, name: str) -> Iterator[Transact]:
        made[name] = 0

        def transact() -> None:
            made[name] += 1

        yield transact

    @asynccontextmanager
    async def for_tasks(job: Job, name: str) -> AsyncIterator[TransactAsync]:
        made[name] = 0

        async def transact() -> None:
            made[name] += 1

        yield transact

    done = measure_threads(for_threads, job) if measure == "threads" else asyncio.run(measure_tasks(for_tasks, job))
    assert list(made.values()) == [MOST, MOST]
    assert isinstance(done, Done)


def test_the_largest_transactions_are_measured_after_the_warm_up() -> None:
    job = Job("", "", records=BULK_LARGE.records, record_bytes=BULK_LARGE.record_bytes)
    assert job.most_transactions > 3 * job.most_to_warm_up
