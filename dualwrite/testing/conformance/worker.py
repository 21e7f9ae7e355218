"""A process that starts one dual write and kills itself at a pause point."""

from __future__ import annotations

import os
import signal
import sys

import sqlalchemy as sa

from dualwrite.recipes.core.pause_points import PausePoint
from dualwrite.testing.conformance.site import make_writer, put


def main(url: str, bootstrap_servers: str, transactional_id: str, topic: str, point: str) -> None:
    def kill(reached: PausePoint) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    writer = make_writer(sa.create_engine(url), bootstrap_servers, transactional_id, kill)
    with writer.transaction() as tx:
        put(tx, topic, 1)
    raise SystemExit(f"still alive after {point}")


if __name__ == "__main__":
    main(*sys.argv[1:])
