"""A process that changes a row, and publishes its version."""

from __future__ import annotations

import os
import signal

import sqlalchemy as sa

from dualwrite import DualWriter
from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash.scenario import AtPoint

TOPIC = "accounts"


def change(writer: DualWriter) -> None:
    with writer.transaction() as tx:
        version = tx.session.execute(sa.text("UPDATE accounts SET version = version + 1 RETURNING version"))
        tx.send(TOPIC, key="anna", value=str(version.scalar_one()))


def decide_and_die(arguments: list[str]) -> None:
    """Change the row under the id `first`, and die between the two commits."""
    url, bootstrap_servers = arguments
    kill = AtPoint(PausePoint.AFTER_DATABASE_COMMIT, lambda: os.kill(os.getpid(), signal.SIGKILL))
    with DualWriter(
        sa.create_engine(url), bootstrap_servers=bootstrap_servers, transactional_id="first", pause=kill
    ) as writer:
        change(writer)
