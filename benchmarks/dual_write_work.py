"""Tables and shared objects of the ways in `benchmarks.dual_write_ways`."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from functools import cached_property
from itertools import count
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from benchmarks.clients import Job
from dualwrite.recipes.sqlalchemy.outbox_table import create_outbox_table
from dualwrite.recipes.sqlalchemy.state_table import create_state_table
from dualwrite.recipes.sqlalchemy.tables import create_lease_table

PoolT = TypeVar("PoolT")

metadata = sa.MetaData()
rows, outbox = (
    sa.Table(
        name,
        metadata,
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("key", sa.String(40), nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    for name in ("bench_rows", "bench_outbox")
)
INSERT = sa.insert(rows).inline()
INSERT_OUTBOX = sa.insert(outbox).inline()
PREFIX = "bench-"
"""The common part of the prefixes of all pools."""
APART = f"{PREFIX}apart"
"""The prefix of pools whose outbox a process of its own publishes."""

PSYCOPG_INSERT = "INSERT INTO bench_rows (key, body) VALUES (%s, %s)"
PSYCOPG_INSERT_OUTBOX = "INSERT INTO bench_outbox (key, body) VALUES (%s, %s)"


def create_tables(engine: sa.Engine) -> None:
    """Drop and create the tables of a run."""
    metadata.drop_all(engine)
    metadata.create_all(engine)
    for create in (create_state_table, create_lease_table, create_outbox_table):
        create(engine)


class Work:
    """The objects that the workers of a process share, and the time at which the block of each key ended."""

    def __init__(self, job: Job, database_url: str) -> None:
        self.job = job
        self.engine = sa.create_engine(database_url, pool_size=job.producers)
        self.conninfo = sa.make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
        self.body = b"x" * job.record_bytes
        self.ended_s: dict[str, float] = {}
        self.pool: Any = None

    @cached_property
    def async_engine(self) -> AsyncEngine:
        """The same database for tasks, all of one loop."""
        return create_async_engine(self.engine.url, pool_size=self.job.producers)

    def keys(self, worker: str) -> Callable[[], str]:
        """Return a function that names the next write of `worker`."""
        numbers = count()
        return lambda: f"{worker}/{next(numbers)}"

    def note_block_end(self, key: str) -> None:
        """Note the time at the end of a block."""
        self.ended_s[key] = time.perf_counter()

    def shared_pool(
        self, make: Callable[..., PoolT], source: Any, *, prefix: str | None = None, **settings: Any
    ) -> PoolT:
        """Return the pool that all workers share."""
        if self.pool is None:
            self.pool = make(
                source,
                prefix=prefix or f"{PREFIX}{uuid.uuid4().hex[:8]}",
                max_writers=self.job.producers,
                bootstrap_servers=self.job.bootstrap_servers,
                **settings,
            )
        pool: PoolT = self.pool
        return pool
