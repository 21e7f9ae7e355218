"""Write one row and one record in each way: `python -m benchmarks.dual_write_ways WAY ...` prints one JSON object.

Runs in a process of its own, whose workers are threads, or tasks of one event loop, as in a service. There are five
styles: SQLAlchemy's Session in threads, its AsyncSession in one event loop, psycopg in threads, psycopg with asyncio,
and asyncpg. All ways of a style send the same INSERT.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from unittest.mock import patch

import uvloop
from sqlalchemy.orm import Session

from benchmarks import asyncpg_ways, psycopg_ways, sqlalchemy_async_ways
from benchmarks.clients import Done, Job, Transact, measure_tasks, measure_threads
from benchmarks.dual_write_work import APART, INSERT, INSERT_OUTBOX, Work
from benchmarks.psycopg_ways import AsyncWay, Way
from dualwrite import DualWriter, Outbox, Producer
from dualwrite.client.transactions.manifest import Manifest
from dualwrite.delivery import Direct

DATABASE = "database alone"
KAFKA = "Kafka transaction alone"
SEQUENCE = "database, then Kafka transaction"
NAIVE = "naive: commit, then produce"
OUTBOX = "outbox with relay"
DUAL = "dual write"
POOL = "dual write, pool"
OUTBOXED = "dual write, outbox"
OUTBOXED_HERE = "dual write, outbox, published in process"

PUBLISHED_APART: dict[str, Any] = {"delivery": Outbox(publishes=False), "prefix": APART}
"""The settings of a pool whose outbox a process of its own publishes, as the relay does for an ordinary one."""


@dataclass(frozen=True)
class Recipe:
    """A dual write, and the other ways of the same style with which it is compared."""

    dual: str
    database: str
    kafka: str
    outbox: str


def _styled(style: str, *duals: str) -> list[Recipe]:
    kafka = KAFKA if style == "psycopg" else f"asyncio: {KAFKA}"
    return [Recipe(f"{style}: {dual}", f"{style}: {DATABASE}", kafka, f"{style}: {OUTBOX}") for dual in duals]


RECIPES = [
    *(Recipe(dual, DATABASE, KAFKA, OUTBOX) for dual in (DUAL, POOL, OUTBOXED, OUTBOXED_HERE)),
    *_styled("psycopg", POOL, OUTBOXED, OUTBOXED_HERE),
    *_styled("asyncio", POOL, OUTBOXED, OUTBOXED_HERE),
    *_styled("asyncpg", POOL, OUTBOXED, OUTBOXED_HERE),
    *_styled("AsyncSession", POOL, OUTBOXED, OUTBOXED_HERE),
]


@contextmanager
def database_alone(work: Work, worker: str) -> Iterator[Transact]:
    key_of_next = work.keys(worker)

    def transact() -> None:
        with Session(work.engine) as session, session.begin():
            session.execute(INSERT, {"key": key_of_next(), "body": work.body})

    yield transact


@contextmanager
def kafka_alone(work: Work, worker: str) -> Iterator[Transact]:
    key_of_next = work.keys(worker)
    with Producer(bootstrap_servers=work.job.bootstrap_servers, transactional_id=worker) as producer:
        producer.init_transactions()

        def transact() -> None:
            producer.begin_transaction()
            producer.send(work.job.topic, work.body, key_of_next())
            producer.commit_transaction()

        yield transact


@contextmanager
def in_sequence(work: Work, worker: str) -> Iterator[Transact]:
    """Commit both one after the other: the steps of a dual write without its guarantee."""
    key_of_next = work.keys(worker)
    with Producer(bootstrap_servers=work.job.bootstrap_servers, transactional_id=worker) as producer:
        producer.init_transactions()

        def transact() -> None:
            key = key_of_next()
            with Session(work.engine) as session, session.begin():
                session.execute(INSERT, {"key": key, "body": work.body})
                work.note_block_end(key)
            producer.begin_transaction()
            producer.send(work.job.topic, work.body, key)
            producer.commit_transaction()

        yield transact


@contextmanager
def naive(work: Work, worker: str) -> Iterator[Transact]:
    """Commit, then produce without a transaction; a crash in between loses the record."""
    key_of_next = work.keys(worker)
    with Producer(bootstrap_servers=work.job.bootstrap_servers, linger_ms=0) as producer:

        def transact() -> None:
            key = key_of_next()
            with Session(work.engine) as session, session.begin():
                session.execute(INSERT, {"key": key, "body": work.body})
                work.note_block_end(key)
            producer.send(work.job.topic, work.body, key).result()

        yield transact


@contextmanager
def with_outbox(work: Work, worker: str) -> Iterator[Transact]:
    """Write the record as a row of the same commit; `benchmarks.outbox_relay` publishes it."""
    key_of_next = work.keys(worker)

    def transact() -> None:
        key = key_of_next()
        with Session(work.engine) as session, session.begin():
            session.execute(INSERT, {"key": key, "body": work.body})
            session.execute(INSERT_OUTBOX, {"key": key, "body": work.body})
            work.note_block_end(key)

    yield transact


@contextmanager
def dual_write(work: Work, worker: str) -> Iterator[Transact]:
    """Use a DualWriter for each worker."""
    key_of_next = work.keys(worker)
    servers = work.job.bootstrap_servers
    with DualWriter(work.engine, bootstrap_servers=servers, transactional_id=worker) as writer:

        def transact() -> None:
            key = key_of_next()
            with writer.transaction() as tx:
                tx.session.execute(INSERT, {"key": key, "body": work.body})
                tx.send(work.job.topic, work.body, key)
                work.note_block_end(key)

        yield transact


def pooled(**settings: Any) -> Way:
    """Use one pool for all workers."""

    @contextmanager
    def way(work: Work, worker: str) -> Iterator[Transact]:
        key_of_next = work.keys(worker)
        pool = work.shared_pool(DualWriter, work.engine, **settings)

        def transact() -> None:
            key = key_of_next()
            with pool.transaction() as tx:
                tx.session.execute(INSERT, {"key": key, "body": work.body})
                tx.send(work.job.topic, work.body, key)
                work.note_block_end(key)

        yield transact

    return way


WITH_SQLALCHEMY: dict[str, Way] = {
    DATABASE: database_alone,
    KAFKA: kafka_alone,
    SEQUENCE: in_sequence,
    NAIVE: naive,
    OUTBOX: with_outbox,
    DUAL: dual_write,
    POOL: pooled(),
    OUTBOXED: pooled(**PUBLISHED_APART),
    OUTBOXED_HERE: pooled(delivery=Outbox()),
}
"""The ways that do not depend on a driver: they run on MariaDB as well."""
BY_THREADS: dict[str, Way] = {
    **WITH_SQLALCHEMY,
    f"psycopg: {DATABASE}": psycopg_ways.database_alone,
    f"psycopg: {OUTBOX}": psycopg_ways.with_outbox,
    f"psycopg: {POOL}": psycopg_ways.dual_write(),
    f"psycopg: {OUTBOXED}": psycopg_ways.dual_write(**PUBLISHED_APART),
    f"psycopg: {OUTBOXED_HERE}": psycopg_ways.dual_write(delivery=Outbox()),
}
BY_TASKS: dict[str, AsyncWay] = {
    f"asyncio: {DATABASE}": psycopg_ways.async_database_alone,
    f"asyncio: {KAFKA}": psycopg_ways.async_kafka_alone,
    f"asyncio: {OUTBOX}": psycopg_ways.async_outbox,
    f"asyncio: {POOL}": psycopg_ways.async_dual_write(),
    f"asyncio: {OUTBOXED}": psycopg_ways.async_dual_write(**PUBLISHED_APART),
    f"asyncio: {OUTBOXED_HERE}": psycopg_ways.async_dual_write(delivery=Outbox()),
    f"asyncpg: {DATABASE}": asyncpg_ways.database_alone,
    f"asyncpg: {OUTBOX}": asyncpg_ways.with_outbox,
    f"asyncpg: {POOL}": asyncpg_ways.dual_write(),
    f"asyncpg: {OUTBOXED}": asyncpg_ways.dual_write(**PUBLISHED_APART),
    f"asyncpg: {OUTBOXED_HERE}": asyncpg_ways.dual_write(delivery=Outbox()),
    f"AsyncSession: {DATABASE}": sqlalchemy_async_ways.database_alone,
    f"AsyncSession: {OUTBOX}": sqlalchemy_async_ways.with_outbox,
    f"AsyncSession: {POOL}": sqlalchemy_async_ways.dual_write(),
    f"AsyncSession: {OUTBOXED}": sqlalchemy_async_ways.dual_write(**PUBLISHED_APART),
    f"AsyncSession: {OUTBOXED_HERE}": sqlalchemy_async_ways.dual_write(delivery=Outbox()),
}
WAYS = [*BY_THREADS, *BY_TASKS]


def without_manifest(way: Way) -> Way:
    """Store no manifest beside the prepared state, and build none: for the rest of the process."""

    @contextmanager
    def bare(work: Work, worker: str) -> Iterator[Transact]:
        patch.object(Manifest, "__str__", lambda _: "").start()
        with way(work, worker) as transact:
            yield transact

    return bare


STORE = "dual write, pool, when_kafka_is_away=store"
BARE = "dual write, pool, no manifest"
STORED: dict[str, Way] = {
    STORE: pooled(delivery=Direct(when_kafka_is_away="store")),
    BARE: without_manifest(pooled()),
    f"psycopg: {STORE}": psycopg_ways.dual_write(delivery=Direct(when_kafka_is_away="store")),
    f"psycopg: {BARE}": without_manifest(psycopg_ways.dual_write()),
}
"""The ways of `benchmarks.stored_blocks` and `benchmarks.manifest_cost`."""
EVERY_BY_THREADS: dict[str, Way] = {**BY_THREADS, **STORED}


@dataclass(frozen=True)
class Written:
    """The measurements, and the `time.perf_counter()` at which the block of each key ended."""

    done: Done
    ended_s: dict[str, float]

    @classmethod
    def of_json(cls, text: str) -> Written:
        fields = json.loads(text)
        return cls(Done(**fields["done"]), fields["ended_s"])


def write(way: str, job: Job, database_url: str) -> Written:
    """Run `job.producers` workers in one way, in this process."""
    work = Work(job, database_url)
    if way in BY_TASKS:
        done = uvloop.run(_in_a_loop(BY_TASKS[way], work))
    else:
        done = measure_threads(lambda _, worker: EVERY_BY_THREADS[way](work, worker), job)
        if work.pool is not None:
            work.pool.close()
    return Written(done, work.ended_s)


async def _in_a_loop(way: AsyncWay, work: Work) -> Done:
    done = await measure_tasks(lambda _, worker: way(work, worker), work.job)
    if work.pool is not None:
        await work.pool.close()
    await work.async_engine.dispose()
    return done


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dual_write_ways")
    parser.add_argument("way", choices=[*WAYS, *STORED])
    parser.add_argument("--database-url", required=True)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--duration-s", type=float, default=1.0)
    chosen = parser.parse_args()
    job = Job(chosen.bootstrap_servers, chosen.topic, producers=chosen.workers, duration_s=chosen.duration_s)
    json.dump(asdict(write(chosen.way, job, chosen.database_url)), sys.stdout)


if __name__ == "__main__":
    main()
