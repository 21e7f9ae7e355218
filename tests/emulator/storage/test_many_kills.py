"""Fifty kills under load in each fsync mode, with one node and with two: all acknowledged records are there, once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.emulator.killable_broker import KillableBroker, Work, committed, make_producer
from tests.support.conditions import until

KILLS = 50


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("fsync", ["always", "interval", "never"])
def test_nothing_acknowledged_is_lost(fsync: str, nodes: int, tmp_path: Path) -> None:
    random = Random(f"{fsync} {nodes}")
    broker = KillableBroker(tmp_path / "data", fsync, nodes).start()
    work = Work(broker)
    try:
        for _ in range(KILLS):
            wanted = len(work.acknowledged) + random.randint(1, 40)
            until(lambda wanted=wanted: len(work.acknowledged) >= wanted, timeout_s=60)  # type: ignore[misc]
            broker.kill()
            broker.start()
        wanted = len(work.acknowledged) + 20
        until(lambda: len(work.acknowledged) >= wanted, timeout_s=60)
    finally:
        work.finish()
    for name in ("w0", "w1"):  # aborts transactions that are still open
        make_producer(broker, name).init_transactions()
    found = Counter(value.decode() for value in committed(broker))
    assert {value: found[value] for value in work.acknowledged} == dict.fromkeys(work.acknowledged, 2)
    assert set(found.values()) == {2}  # a record on each partition, or on none
    assert found.keys() <= work.begun
    assert broker.stop() == 0
    assert "Traceback" not in broker.log
    assert "ERROR" not in broker.log
