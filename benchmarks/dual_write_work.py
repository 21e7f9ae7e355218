"""What the ways of `benchmarks.dual_write_ways` share: tables, and what the workers of a process have together."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from itertools import count
from typing import Any, TypeVar

import sqlalchemy as sa

from benchmarks.clients import Job
from dualwrite import AsyncPsycopgDualWriterPool, AsyncPsycopgGroupCommit
from dualwrite.recipes.pause_points import PauseHook, PausePoint
from dualwrite.recipes.state_table import create_state_table

PoolT = TypeVar("PoolT")

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
INSERT = sa.insert(rows).inline()
INSERT_OUTBOX = sa.insert(outbox).inline()
PSYCOPG_INSERT = "INSERT INTO bench_rows (key, body) VALUES (%s, %s)"
PSYCOPG_INSERT_OUTBOX = "INSERT INTO bench_outbox (key, body) VALUES (%s, %s)"

_key: ContextVar[str] = ContextVar("key")


def create_tables(engine: sa.Engine) -> None:
    """Empty ones, for a run."""
    metadata.drop_all(engine)
    metadata.create_all(engine)
    create_state_table(engine)


class Work:
    """What the workers share, and when the database committed the write of each key."""

    def __init__(self, job: Job, database_url: str) -> None:
        self.job = job
        self.engine = sa.create_engine(database_url, pool_size=job.producers)
        self.conninfo = sa.make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
        self.body = b"x" * job.record_bytes
        self.committed_s: dict[str, float] = {}
        self.pool: Any = None
        self.group_commit: AsyncPsycopgGroupCommit | None = None
        self._group_committed_s: dict[str, float] = {}

    def keys(self, worker: str) -> Callable[[], str]:
        """Names the next write of `worker`, which runs in this thread or task."""
        numbers = count()

        def next_key() -> str:
            key = f"{worker}/{next(numbers)}"
            _key.set(key)
            return key

        return next_key

    def committed(self, key: str) -> None:
        self.committed_s[key] = time.perf_counter()

    def pause(self, point: PausePoint) -> None:
        """The hook of dual writes."""
        if point is PausePoint.AFTER_DATABASE_COMMIT:
            self.committed(_key.get())

    def pause_of_groups(self, point: PausePoint) -> None:
        """The hook of dual writes of several workers at a time."""
        task = asyncio.current_task() if point is PausePoint.AFTER_DATABASE_COMMIT else None
        if task is not None:
            self._group_committed_s[task.get_name()] = time.perf_counter()

    def committed_in(self, group: int, key: str) -> None:
        self.committed_s[key] = self._group_committed_s[f"dualwrite-group-{group}"]

    def the_group_commit(self, confirm: str) -> AsyncPsycopgGroupCommit:
        """One for all workers."""
        if self.group_commit is None:
            pool = self.the_pool(AsyncPsycopgDualWriterPool, self.conninfo, confirm, self.pause_of_groups)
            self.group_commit = AsyncPsycopgGroupCommit(pool)
        return self.group_commit

    def the_pool(self, make: Callable[..., PoolT], source: Any, confirm: str, pause: PauseHook | None = None) -> PoolT:
        """One for all workers. An id that Kafka has not confirmed yet is not free, so then there are two for each."""
        if self.pool is None:
            self.pool = make(
                source,
                prefix=f"bench-{uuid.uuid4().hex[:8]}",
                max_writers=self.job.producers * (2 if confirm == "database" else 1),
                bootstrap_servers=self.job.bootstrap_servers,
                confirm=confirm,
                pause=pause or self.pause,
            )
        pool: PoolT = self.pool
        return pool
