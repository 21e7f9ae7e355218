"""Fetch, ListOffsets, last stable offset and aborted transactions for readers (KIP-98)."""

from __future__ import annotations

import pytest

from dualwrite.broker_emulator import PausePoint
from tests.emulator.wire.world import ABORT, COMMIT, World
from tests.interop.wire import EARLIEST, LATEST, NOBODY, READ_COMMITTED, Code, Fetched, wait_until

rule = pytest.mark.rule
NONE = Code.NONE
READ_UNCOMMITTED = 0


def plain(world: World) -> None:
    assert world.wire.produce(None, NOBODY, "t", -1, transactional=False, version=11).error == NONE


def offsets(fetched: Fetched) -> list[int]:
    return [batch.base_offset for batch in fetched.batches]


@rule("Fetch / read_uncommitted: up to the high watermark, aborted transactions null")
@rule("Fetch / read_committed: up to the last stable offset, aborted transactions a list")
@rule("ListOffsets / latest: high watermark, or last stable offset for read_committed")
@rule("ListOffsets / earliest is the log start")
@rule("Last stable offset / the first offset of the earliest open transaction, else the high watermark")
def test_isolation(world: World) -> None:
    wire = world.wire
    plain(world)
    opened = world.open()
    plain(world)
    everything = wire.fetch("t", isolation=READ_UNCOMMITTED)
    assert (offsets(everything), everything.high_watermark, everything.last_stable_offset) == ([0, 1, 2], 3, 1)
    assert everything.aborted is None
    stable = wire.fetch("t", isolation=READ_COMMITTED)
    assert (offsets(stable), stable.high_watermark, stable.last_stable_offset, stable.aborted) == ([0], 3, 1, ())
    assert [wire.list_offsets("t", LATEST, isolation) for isolation in (0, 1)] == [3, 1]
    assert [wire.list_offsets("t", EARLIEST, isolation) for isolation in (0, 1)] == [0, 0]
    world.end("x", opened, commit=COMMIT)
    assert [wire.list_offsets("t", LATEST, isolation) for isolation in (0, 1)] == [4, 4]


@rule("Fetch / control batches are returned")
def test_control_batches(world: World) -> None:
    world.end("x", world.open(), commit=COMMIT)
    assert [batch.is_control for batch in world.wire.fetch("t", isolation=READ_COMMITTED).batches] == [False, True]


@rule("ListOffsets / by time: nothing at or beyond the limit of the isolation level")
def test_by_time(world: World) -> None:
    opened = world.open()
    assert world.wire.list_offsets("t", 1, READ_UNCOMMITTED) == 0
    assert world.wire.list_offsets("t", 1, READ_COMMITTED) == -1
    world.end("x", opened, commit=COMMIT)
    assert world.wire.list_offsets("t", 1, READ_COMMITTED) == 0


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


@rule("Last stable offset / two open transactions: the earlier one holds it")
def test_two_open(world: World) -> None:
    wire = world.wire
    first, second = wire.init_ok("a"), wire.init_ok("b")
    assert world.write("a", first).base_offset == 0
    assert world.write("b", second).base_offset == 1
    world.end("b", second, commit=COMMIT)
    assert wire.list_offsets("t", isolation=READ_COMMITTED) == 0
    world.end("a", first, commit=COMMIT)
    assert wire.list_offsets("t", isolation=READ_COMMITTED) == 4


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
