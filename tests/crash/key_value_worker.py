"""A process that does a dual write on a key-value store and kills itself at a pause point."""

from __future__ import annotations

import os
import signal
import sys

from dualwrite.recipes.pause_points import PausePoint
from tests.crash.key_value_scenario import write_events
from tests.crash.scenario import AtPoint
from tests.support.key_value_stores import opened


def main(kind: str, address: str, bootstrap_servers: str, transactional_id: str, topic: str, point: str) -> None:
    kill = AtPoint(PausePoint(point), lambda: os.kill(os.getpid(), signal.SIGKILL))
    store = opened(kind, address)
    writer = store.writer(bootstrap_servers=bootstrap_servers, transactional_id=transactional_id, pause=kill)
    raise SystemExit(f"still alive after {point}: {write_events(store, writer, topic, number=1)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
