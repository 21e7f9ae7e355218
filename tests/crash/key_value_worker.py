"""A process that writes to a RocksDB and kills itself at a pause point; see `killed.py`."""

from __future__ import annotations

import os
import signal

from dualwrite.recipes.core.pause_points import PausePoint
from tests.crash.key_value_scenario import write_events
from tests.crash.scenario import AtPoint
from tests.support.key_value_stores import RocksDbStore


def main(options: list[str]) -> None:
    address, bootstrap_servers, transactional_id, topic, point = options
    kill = AtPoint(PausePoint(point), lambda: os.kill(os.getpid(), signal.SIGKILL))
    store = RocksDbStore(address)
    writer = store.writer(bootstrap_servers=bootstrap_servers, transactional_id=transactional_id, pause=kill)
    raise SystemExit(f"still alive after {point}: {write_events(store, writer, topic, number=1)}")
