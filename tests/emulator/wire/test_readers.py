"""Fetch, ListOffsets, last stable offset and aborted transactions for readers (KIP-98)."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator import PausePoint
from tests.emulator.wire.world import ABORT, COMMIT, World
from tests.interop.wire import READ_COMMITTED, Code, Fetched, wait_until

rule = pytest.mark.rule
NONE = Code.NONE


def offsets(fetched: Fetched) -> list[int]:
    return [batch.base_offset for batch in fetched.batches]


@rule("Aborted transactions / only aborts with data, in the order of their markers")
@rule("Aborted transactions / those that overlap what is returned")
def test_aborted(world: World) -> None:
    wire = world.wire
    first, second = wire.init_ok("a"), wire.init_ok("b")
    assert world.write("a", first).base_offset == 0
    assert world.write("b", second).base_offset == 1
    world.end("b", second, commit=ABORT)  # marker at 2
    world.end("a", first, commit=ABORT)  # marker at 3
    third = wire.init_ok("c")
    assert world.write("c", third).base_offset == 4
    world.end("c", third, commit=COMMIT)  # marker at 5
    aborted = wire.fetch("t", isolation=READ_COMMITTED).aborted
    assert aborted == ((second.producer_id, 1), (first.producer_id, 0))
    assert wire.fetch("t", 3, READ_COMMITTED).aborted == ((first.producer_id, 0),)
    assert wire.fetch("t", 4, READ_COMMITTED).aborted == ()


@rule("Last stable offset / data is stable only when its marker is replicated")
@rule("Fetch / nothing beyond the high watermark")
def test_marker_behind_the_high_watermark(world: World) -> None:
    opened = world.open()
    held = world.emulator.hold_replication("t")
    written = world.hold(PausePoint.BEFORE_MARKER)
    assert world.wire.end("x", opened, commit=COMMIT, version=5 if world.has_tv2 else 4).error == NONE
    written.release()
    wait_until(lambda: world.emulator.log("t").log_end_offset == 2)
    fetched = world.wire.fetch("t", isolation=READ_COMMITTED)
    assert (fetched.high_watermark, fetched.last_stable_offset, offsets(fetched)) == (1, 0, [])
    assert offsets(world.wire.fetch("t")) == [0]
    held.release()
    world.wire.wait_until_settled("x")
    fetched = world.wire.fetch("t", isolation=READ_COMMITTED)
    assert (fetched.high_watermark, fetched.last_stable_offset, offsets(fetched)) == (2, 2, [0, 1])
