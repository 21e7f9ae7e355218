"""A process that does dual writes 1, 2, ... and kills itself at a pause point: `python -m tests.crash.worker ...`."""

from __future__ import annotations

import argparse
import os
import signal

import sqlalchemy as sa

from dualwrite.recipes.pause_points import PausePoint
from tests.crash.scenario import AtPoint, make_writer, write_events


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--database-url", "--bootstrap-servers", "--transactional-id", "--topic", "--point"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args()
    kill = AtPoint(PausePoint(arguments.point), lambda: os.kill(os.getpid(), signal.SIGKILL))
    engine = sa.create_engine(arguments.database_url)
    writer = make_writer(engine, arguments.bootstrap_servers, arguments.transactional_id, pause=kill)
    seen = write_events(writer, arguments.topic, number=1)
    raise SystemExit(f"still alive after {arguments.point}: {seen}")


if __name__ == "__main__":
    main()
