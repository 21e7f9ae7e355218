"""Work of processes that are killed with SIGKILL in the middle; each reports, and dies."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from typing import Any

import sqlalchemy as sa

from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.apache_kafka.backends import BACKENDS, SQL
from tests.apache_kafka.faces import Face
from tests.crash.scenario import AtPoint


def prepare(tell: Connection, face: str, settings: dict[str, Any], topic: str, value: bytes) -> None:
    """Prepare a transaction and tell its state."""
    producer = Face(face, settings)
    producer.init_transactions()
    tell.send(str(producer.prepare(topic, value)))
    die()


def dual_write(
    tell: Connection, point: PausePoint, database_url: str, settings: dict[str, Any], topic: str, backend: str = SQL
) -> None:
    """Write event 1 to both sides and die at `point`."""
    writing = BACKENDS[backend]
    tell.send(repr(writing.write(writing.make(database_url, settings, AtPoint(point, die)), topic, 1)))


def send_records(
    tell: Connection, point: PausePoint, database_url: str, settings: dict[str, Any], records: list[dict[str, Any]]
) -> None:
    """Send `records` in one dual write and die at `point`."""
    writer = DualWriter(sa.create_engine(database_url), pause=AtPoint(point, die), **settings)
    with writer.transaction() as tx:
        for record in records:
            tx.send(**record)


def recover(tell: Connection, point: PausePoint, database_url: str, settings: dict[str, Any], backend: str) -> None:
    """Die at `point` of a recovery."""
    tell.send(repr(BACKENDS[backend].make(database_url, settings, AtPoint(point, die)).recover()))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
