"""Processes that change and publish a few rows, until they are killed."""

from __future__ import annotations

import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from dualwrite import DualWriter
from dualwrite.errors import DualWriteError
from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash.scenario import AtPoint

KEYS = ("anna", "bert", "cleo")
PREFIX = "ordered"
LEASE_MS = 300
_THREADS = 4
_CHANGE = sa.text("UPDATE accounts SET version = version + 1 WHERE owner = :owner RETURNING version")


def work(url: str, bootstrap_servers: str, topic: str, settings: dict[str, Any]) -> None:
    """Write without end, by a pool with these settings too."""
    with (
        DualWriter(
            sa.create_engine(url, pool_size=2 * _THREADS),
            prefix=PREFIX,
            max_writers=_THREADS,
            lease_ms=LEASE_MS,
            bootstrap_servers=bootstrap_servers,
            **settings,
        ) as pool,
        ThreadPoolExecutor(_THREADS) as threads,
    ):
        for ended in [threads.submit(_write_without_end, pool, topic) for _ in range(_THREADS)]:
            ended.result()


def _write_without_end(pool: DualWriter, topic: str) -> None:
    while True:
        owners = sorted(random.sample(KEYS, random.choice((1, 1, 2))))
        with suppress(DualWriteError, sa.exc.OperationalError), pool.transaction() as tx:  # a killed process's locks
            for owner in owners:
                version = tx.session.execute(_CHANGE, {"owner": owner}).scalar_one()
                tx.send(topic, key=owner, value=str(version))


def change(writer: DualWriter, topic: str, owner: str) -> None:
    """Change a row, and publish its version."""
    with writer.transaction() as tx:
        version = tx.session.execute(_CHANGE, {"owner": owner}).scalar_one()
        tx.send(topic, key=owner, value=str(version))


def decide_and_die(arguments: list[str]) -> None:
    """Change a row of `anna` under the id `first`, and die between the two commits."""
    url, bootstrap_servers, topic = arguments
    kill = AtPoint(PausePoint.AFTER_DATABASE_COMMIT, lambda: os.kill(os.getpid(), signal.SIGKILL))
    with DualWriter(
        sa.create_engine(url), bootstrap_servers=bootstrap_servers, transactional_id="first", pause=kill
    ) as writer:
        change(writer, topic, "anna")
