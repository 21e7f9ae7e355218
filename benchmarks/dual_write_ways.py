"""One row and one record by each way: `python -m benchmarks.dual_write_ways WAY ...` prints one JSON object.

Runs in a process of its own: its workers are threads that share an engine, as they would in a service. All ways send
the same INSERT through a Session.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from itertools import count

import sqlalchemy as sa
from sqlalchemy.orm import Session

from benchmarks.clients import Done, Job, Transact, measure_threads
from dualwrite import Producer
from dualwrite.recipes.pause_points import PausePoint
from dualwrite.recipes.sqlalchemy import DualWriter
from dualwrite.recipes.state_table import create_state_table

DATABASE = "database alone"
KAFKA = "Kafka transaction alone"
SEQUENCE = "database, then Kafka transaction"
NAIVE = "naive: commit, then produce"
OUTBOX = "outbox with relay"
DUAL = "dual write"

metadata = sa.MetaData()
rows = sa.Table(
    "bench_rows",
    metadata,
    sa.Column("id", sa.BigInteger, primary_key=True),
    sa.Column("key", sa.String(40), nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)
outbox = sa.Table(
    "bench_outbox",
    metadata,
    sa.Column("id", sa.BigInteger, primary_key=True),
    sa.Column("key", sa.String(40), nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)
_INSERT = sa.insert(rows).inline()
_INSERT_OUTBOX = sa.insert(outbox).inline()


class Work:
    """What the workers share, and when the database committed the write of each key."""

    def __init__(self, job: Job, engine: sa.Engine) -> None:
        self.job = job
        self.engine = engine
        self.body = b"x" * job.record_bytes
        self.committed_s: dict[str, float] = {}

    def keys(self, worker: str) -> Callable[[], str]:
        """Names the next write of `worker`."""
        numbers = count()
        return lambda: f"{worker}/{next(numbers)}"

    def committed(self, key: str) -> None:
        self.committed_s[key] = time.perf_counter()


@contextmanager
def database_alone(work: Work, worker: str) -> Iterator[Transact]:
    key_of_next = work.keys(worker)

    def transact() -> None:
        with Session(work.engine) as session, session.begin():
            session.execute(_INSERT, {"key": key_of_next(), "body": work.body})

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
    """What a dual write consists of, without what makes it one."""
    key_of_next = work.keys(worker)
    with Producer(bootstrap_servers=work.job.bootstrap_servers, transactional_id=worker) as producer:
        producer.init_transactions()

        def transact() -> None:
            key = key_of_next()
            with Session(work.engine) as session, session.begin():
                session.execute(_INSERT, {"key": key, "body": work.body})
            work.committed(key)
            producer.begin_transaction()
            producer.send(work.job.topic, work.body, key)
            producer.commit_transaction()

        yield transact


@contextmanager
def naive(work: Work, worker: str) -> Iterator[Transact]:
    """Both, one after the other; a crash in between loses the record."""
    key_of_next = work.keys(worker)
    with Producer(bootstrap_servers=work.job.bootstrap_servers, linger_ms=0) as producer:

        def transact() -> None:
            key = key_of_next()
            with Session(work.engine) as session, session.begin():
                session.execute(_INSERT, {"key": key, "body": work.body})
            work.committed(key)
            producer.send(work.job.topic, work.body, key).result()

        yield transact


@contextmanager
def with_outbox(work: Work, worker: str) -> Iterator[Transact]:
    """The record is a row of the same commit; `benchmarks.outbox_relay` carries it on."""
    key_of_next = work.keys(worker)

    def transact() -> None:
        key = key_of_next()
        with Session(work.engine) as session, session.begin():
            session.execute(_INSERT, {"key": key, "body": work.body})
            session.execute(_INSERT_OUTBOX, {"key": key, "body": work.body})
        work.committed(key)

    yield transact


@contextmanager
def dual_write(work: Work, worker: str) -> Iterator[Transact]:
    """A DualWriter for each worker."""
    key_of_next = work.keys(worker)
    current = ""

    def pause(point: PausePoint) -> None:
        if point is PausePoint.AFTER_DATABASE_COMMIT:
            work.committed(current)

    servers = work.job.bootstrap_servers
    with DualWriter(work.engine, bootstrap_servers=servers, transactional_id=worker, pause=pause) as writer:

        def transact() -> None:
            nonlocal current
            current = key_of_next()
            with writer.transaction() as tx:
                tx.session.execute(_INSERT, {"key": current, "body": work.body})
                tx.send(work.job.topic, work.body, current)

        yield transact


Way = Callable[[Work, str], AbstractContextManager[Transact]]
WAYS: dict[str, Way] = {
    DATABASE: database_alone,
    KAFKA: kafka_alone,
    SEQUENCE: in_sequence,
    NAIVE: naive,
    OUTBOX: with_outbox,
    DUAL: dual_write,
}


@dataclass(frozen=True)
class Written:
    """What the workers did, and at which `time.perf_counter()` the database had committed each key."""

    done: Done
    committed_s: dict[str, float]

    @classmethod
    def of_json(cls, text: str) -> Written:
        fields = json.loads(text)
        return cls(Done(**fields["done"]), fields["committed_s"])


def create_tables(engine: sa.Engine) -> None:
    """Empty ones, for a run."""
    metadata.drop_all(engine)
    metadata.create_all(engine)
    create_state_table(engine)


def write(way: str, job: Job, database_url: str) -> Written:
    """Have `job.producers` workers go this way, in this process."""
    work = Work(job, sa.create_engine(database_url, pool_size=job.producers))
    done = measure_threads(lambda _, worker: WAYS[way](work, worker), job)
    return Written(done, work.committed_s)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dual_write_ways")
    parser.add_argument("way", choices=WAYS)
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
