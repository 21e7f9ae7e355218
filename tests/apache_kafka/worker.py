"""What processes do that are killed with SIGKILL in the middle; each tells what it must, and dies."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from typing import Any

import sqlalchemy as sa

from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.recipes.sqlalchemy.writer import DualWriter
from tests.apache_kafka.faces import Face
from tests.crash.scenario import AtPoint, write_events


def prepare(tell: Connection, face: str, settings: dict[str, Any], topic: str, value: bytes) -> None:
    """Prepare a transaction and tell its state."""
    producer = Face(face, settings)
    producer.init_transactions()
    tell.send(str(producer.prepare(topic, value)))
    _die()


def dual_write(tell: Connection, point: PausePoint, database_url: str, settings: dict[str, Any], topic: str) -> None:
    """Write event 1 to both sides and die at `point`."""
    writer = DualWriter(sa.create_engine(database_url), pause=AtPoint(point, _die), **settings)
    tell.send(repr(write_events(writer, topic, number=1)))


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
